//! Whether a response says that the request does not fit the window, and with which numbers
//! (`docs/protocols.md` 1.6, 2.5, 3.6, 4.3, 5.5).
//!
//! The messages are data in `config/overflow.toml`: a new provider is a new entry. Limits of rate and money
//! have similar messages, and are excluded. Pure; must not know what happens next.

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

/// What a response says about the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overflow {
    /// How many tokens would fit, if it says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<u64>,
    /// How many tokens the provider counted in the prompt; `None` if it does not say, or only "at least" and
    /// "about".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<u64>,
}

/// A response instead of a reply.
#[derive(Clone, Copy, Debug)]
pub struct ErrorResponse<'a> {
    /// Its HTTP status; 200 for an error in a stream, or in a response that looks like a success.
    pub status: u16,
    /// The upstream's host name: some messages count for one provider only.
    pub host: &'a str,
    /// Its body, decompressed.
    pub body: &'a [u8],
}

/// Numbers outside this range are not windows, tokens.
pub(super) const WINDOWS: std::ops::RangeInclusive<u64> = 128..=1_000_000_000;
/// Statuses of refusals that blame the request.
const REFUSALS: &[u16] = &[400, 413, 422];

/// Whether a response says that the request does not fit.
pub fn overflow(answer: &ErrorResponse<'_>) -> Option<Overflow> {
    let text = lowercase_text(answer.body);
    let file = built_in();
    if file.except.iter().any(|pattern| text.contains(&**pattern)) {
        return None;
    }
    let fitting = file.patterns.iter().filter(|says| {
        let statuses = says.status.as_deref().unwrap_or(REFUSALS);
        statuses.contains(&answer.status)
            && says.host.as_deref().is_none_or(|host| answer.host.ends_with(host))
    });
    let mut found: Option<Overflow> = None;
    for seen in fitting.filter_map(|says| says.seen(&text)) {
        let found = found.get_or_insert_default();
        found.window = found.window.or(seen.window);
        found.input = found.input.or(seen.input);
    }
    found
}

/// The content of `config/overflow.toml`.
#[derive(Deserialize)]
struct OverflowFile {
    /// Words of other messages, in lower case.
    except: Vec<Box<str>>,
    #[serde(rename = "says")]
    patterns: Vec<OverflowPattern>,
}

/// One entry of `config/overflow.toml`.
#[derive(Deserialize)]
struct OverflowPattern {
    text: Box<str>,
    status: Option<Vec<u16>>,
    host: Option<Box<str>>,
}

/// The built-in patterns, parsed on first use. A test checks that they are valid.
fn built_in() -> &'static OverflowFile {
    static FILE: OnceLock<OverflowFile> = OnceLock::new();
    FILE.get_or_init(|| {
        let mut file: OverflowFile = toml::from_str(include_str!("../../../config/overflow.toml"))
            .unwrap_or_else(|_| OverflowFile { except: Vec::new(), patterns: Vec::new() });
        file.patterns.iter_mut().for_each(|says| says.text = says.text.to_lowercase().into());
        file
    })
}

impl OverflowPattern {
    /// The numbers at the first match of the pattern.
    fn seen(&self, text: &str) -> Option<Overflow> {
        if self.text.is_empty() {
            return text.trim().is_empty().then(Overflow::default);
        }
        let first = self.text.split([' ', '{']).next().unwrap_or_default();
        let starts = memchr::memmem::find_iter(text.as_bytes(), first.as_bytes());
        starts.filter_map(|start| fits(&self.text, text.get(start..)?)).next()
    }
}

/// The numbers in `text`, if it begins with `pattern`.
fn fits(pattern: &str, text: &str) -> Option<Overflow> {
    let (mut pattern, mut text) = (pattern, text);
    let mut numbers = Overflow::default();
    while let Some(next) = pattern.chars().next() {
        if next == '{' {
            let (name, rest) = pattern[1..].split_once('}')?;
            let (number, after) = number(text)?;
            match name {
                "window" => numbers.window = number.filter(|window| WINDOWS.contains(window)),
                "input" => numbers.input = number,
                _ => {}
            }
            (pattern, text) = (rest, after);
        } else if next == ' ' {
            (pattern, text) = (&pattern[1..], text.trim_start());
        } else {
            text = text.strip_prefix(next)?;
            pattern = &pattern[next.len_utf8()..];
        }
    }
    Some(numbers)
}

/// A number with its separators (`1,048,576`), and the rest of the text.
pub(super) fn number(text: &str) -> Option<(Option<u64>, &str)> {
    let inside = |(at, byte): (usize, &u8)| {
        let next = text.as_bytes().get(at + 1);
        byte.is_ascii_digit()
            || (matches!(byte, b',' | b'_') && at > 0 && next.is_some_and(u8::is_ascii_digit))
    };
    let end = text.as_bytes().iter().enumerate().take_while(|digit| inside(*digit)).count();
    let (digits, rest) = text.split_at(end);
    let digits: String = digits.chars().filter(char::is_ascii_digit).collect();
    // A number that is too long to parse still matches.
    (!digits.is_empty()).then(|| (digits.parse().ok(), rest))
}

/// The text of a body in lower case, with JSON escapes decoded: some servers escape `>`, `'` or all quotes in
/// an error that they forward.
fn lowercase_text(body: &[u8]) -> String {
    unescaped(body).to_lowercase()
}

/// The same without lowering the case.
pub(super) fn unescaped(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let mut out = String::with_capacity(text.len());
    let mut rest = &*text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let hex = rest.strip_prefix('u').and_then(|hex| hex.get(..4));
        let escaped = hex.and_then(|hex| u32::from_str_radix(hex, 16).ok());
        if let Some(sign) = escaped {
            out.push(char::from_u32(sign).unwrap_or(char::REPLACEMENT_CHARACTER));
            rest = &rest[5..];
        } else if let Some(sign) = rest.chars().next() {
            out.push(if matches!(sign, 'n' | 'r' | 't') { ' ' } else { sign });
            rest = &rest[sign.len_utf8()..];
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overflow_of(status: u16, body: &str) -> Option<Overflow> {
        overflow(&ErrorResponse { status, host: "api.example.com", body: body.as_bytes() })
    }

    #[test]
    fn every_known_overflow_message_is_read_with_its_numbers() {
        let file = built_in();
        assert!(file.patterns.len() > 40 && file.except.len() > 10, "the data does not parse");
        for says in &file.patterns {
            let text = says.text.replace("{window}", "200,000").replace("{input}", "210001");
            let body = format!(r#"{{"error":{{"message":"Oh: {}!"}}}}"#, text.replace("{}", "77"));
            let body = if text.is_empty() { String::new() } else { body };
            let status = says.status.as_ref().map_or(400, |statuses| statuses[0]);
            let host = says.host.as_deref().unwrap_or("api.example.com");
            let answer = ErrorResponse { status, host, body: body.as_bytes() };
            let seen = overflow(&answer).unwrap_or_else(|| panic!("{body}"));
            let expected = |name, number| says.text.contains(name).then_some(number);
            assert_eq!(seen.window, expected("{window}", 200_000), "{body}");
            assert_eq!(seen.input, expected("{input}", 210_001), "{body}");
            assert_eq!(overflow(&ErrorResponse { status: 429, ..answer }), None, "{body}");
            assert_eq!(overflow(&ErrorResponse { status: 401, ..answer }), None, "{body}");
        }
    }

    #[test]
    fn a_token_number_after_at_least_or_about_is_not_a_count() {
        let body = "This model's maximum context length is 2048 tokens. However, you requested 512 \
                    output tokens and your prompt contains at least 1537 input tokens, for a total \
                    of at least 2049 tokens. Please reduce the length of the input prompt or the \
                    number of requested output tokens.";
        assert_eq!(overflow_of(400, body), Some(Overflow { window: Some(2048), input: None }));
        assert_eq!(overflow_of(500, body), Some(Overflow { window: Some(2048), input: None }));
        let about = "This endpoint's maximum context length is 200000 tokens. However, you requested \
                     about 2500021 tokens (2500021 of text input).";
        assert_eq!(overflow_of(400, about), Some(Overflow { window: Some(200_000), input: None }));
    }

    #[test]
    fn escaped_and_nested_overflow_messages_are_read() {
        for body in [
            r#"{"error":{"message":"prompt is too long: 210000 tokens \u003e 200000 maximum"}}"#,
            "{\"message\": \"Prompt is too\\n long: 210000 tokens\n > 200000   maximum\"}",
            r#"{"metadata":{"raw":"{\"message\":\"prompt is too long: 210000 tokens > 200000 maximum\"}"}}"#,
        ] {
            let seen = Some(Overflow { window: Some(200_000), input: Some(210_000) });
            assert_eq!(overflow_of(400, body), seen, "{body}");
        }
        assert!(overflow_of(200, r#"{"error":{"code": "1261","message":"x"}}"#).is_some());
    }

    #[test]
    fn limits_of_rate_quota_or_output_are_no_overflow() {
        for (status, body) in [
            (
                413,
                "Request too large for model `m` on tokens per minute (TPM): Limit 6000, Requested 7000, please reduce the length of the messages or completion",
            ),
            (400, "ThrottlingException: Too many tokens, please wait before trying again."),
            (400, "Rate limit: maximum context length is 5 tokens"),
            (
                400,
                r#"{"error":{"code":"string_above_max_length","message":"maximum context length is 9000 tokens"}}"#,
            ),
            (400, "You exceeded your current quota, please check your plan and billing details."),
            (
                400,
                "max_tokens is too large: 99999. This model supports at most 16384 completion tokens",
            ),
            (200, r#"{"error":{"code":400,"message":"Token limit reached"}}"#),
            (413, ""),
        ] {
            assert_eq!(overflow_of(status, body), None, "{body}");
        }
    }

    #[test]
    fn no_error_body_makes_the_reader_panic() {
        for body in [
            "\\",
            "\\u",
            "\\u12",
            "\\ud800 ü",
            "{\"a\":\"\\",
            "maximum context length is ",
            "\u{0}",
        ] {
            let _ = overflow_of(400, body);
        }
        let long = format!("maximum context length is {} tokens", "9".repeat(40));
        assert_eq!(overflow_of(400, &long), Some(Overflow::default()));
        assert_eq!(
            overflow_of(400, "maximum context length is 5 tokens"),
            Some(Overflow::default())
        );
    }
}
