//! How secrets are masked in text that people read or share: by their form, so that a few stay and a few words go.
//!
//! Text alone is masked, JSON as text, too. What was stored stays as it is.

use std::sync::LazyLock;

use regex_lite::Regex;

/// What stands in place of a secret.
const MASK: &str = "[secret]";

/// Secrets by their form, in text or in JSON: private keys, tokens with the prefixes of those who issue them, credentials in
/// addresses and headers, and values that are named as secrets.
const SECRETS: [&str; 5] = [
    r#"-----BEGIN [A-Z ]*PRIVATE KEY-----[^"]*?-----END [A-Z ]*PRIVATE KEY-----"#,
    r"\b(?:sk|pk|rk|xai|gsk|hf|glpat|npm|pypi|dop_v1|shpat|ghp|gho|ghu|ghs|ghr|github_pat|xox[abprs])[-_][A-Za-z0-9_-]{16,}",
    r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bAIza[A-Za-z0-9_-]{30,}|\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*",
    r#"(?P<before>(?i:://[^/\s:@"]*:))[^/\s@"]+(?P<after>@)|(?P<scheme>(?i:bearer|basic) )[A-Za-z0-9._~+/=-]{16,}"#,
    r#"(?P<name>(?i:api[_-]?key|secret|passw(?:or)?d|access[_-]?token|auth[_-]?token)[\\"']*\s*[:=]\s*[\\"']*)[^\s"'\\,;&]{8,}"#,
];

static SECRET_PATTERNS: LazyLock<Vec<Regex>> =
    LazyLock::new(|| SECRETS.iter().filter_map(|pattern| Regex::new(pattern).ok()).collect());

/// The text with its secrets masked, and how many there were.
pub(crate) fn masked(text: &str) -> (String, usize) {
    let mut masked = text.to_owned();
    let mut count = 0;
    for secret in &*SECRET_PATTERNS {
        let replaced = secret.replace_all(&masked, |found: &regex_lite::Captures<'_>| {
            count += 1;
            let prefix = ["before", "scheme", "name"].iter().find_map(|group| found.name(group));
            let after = found.name("after").map_or("", |after| after.as_str());
            format!("{}{MASK}{after}", prefix.map_or("", |prefix| prefix.as_str()))
        });
        masked = replaced.into_owned();
    }
    (masked, count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_masked_by_their_form() {
        assert_eq!(SECRET_PATTERNS.len(), SECRETS.len(), "each pattern is one");
        for (text, expected) in [
            (concat!("key sk-", "ant-api03-0123456789abcdef done"), "key [secret] done"),
            ("ghp_0123456789abcdefghij", "[secret]"),
            ("AKIAIOSFODNN7EXAMPLE", "[secret]"),
            (
                "curl -H 'Authorization: Bearer abcdefghijklmnop'",
                "curl -H 'Authorization: Bearer [secret]'",
            ),
            ("postgres://user:hunter22@db/x", "postgres://user:[secret]@db/x"),
            ("PASSWORD=correct-horse", "PASSWORD=[secret]"),
            (r#"{\"api_key\": \"0123456789\"}"#, r#"{\"api_key\": \"[secret]\"}"#),
            (
                r"-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY----- after",
                "[secret] after",
            ),
        ] {
            assert_eq!(masked(text), (expected.to_owned(), 1), "{text}");
            let (line, _) = masked(&serde_json::json!({"text": text, "name": "a"}).to_string());
            assert!(serde_json::from_str::<serde_json::Value>(&line).is_ok(), "{line}");
        }
    }

    #[test]
    fn ordinary_words_are_no_secrets() {
        for text in [
            "the task-force of 2026 met at https://example.com:8080/a@b",
            r#"{"tokens":1204,"usage":{"input_total":98765432}}"#,
            "password: short",
            "sk-short",
            "a basic question about bearer bonds",
        ] {
            assert_eq!(masked(text), (text.to_owned(), 0));
        }
    }
}
