//! Whether a response says that the request does not fit the window, and with which numbers
//! (`docs/protocols.md` 4.3).
//!
//! Read by structure first: the error's names and number fields, then its sentences and the numbers in them,
//! then fragments of known messages (`config/overflow.toml`). Limits of rate and money have similar messages, and
//! are excluded. Pure; must not know what happens next.

mod languages;
mod sentences;

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use self::languages::translated;
use super::error_message::ErrorMessage;
use super::numbers::{WINDOWS, number};
use super::{ProviderError, status};

/// What a response says about the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[derive(Serialize, Deserialize, schemars::JsonSchema)]
pub struct Overflow {
    /// How many tokens would fit, if it says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<u64>,
    /// How many tokens the provider counted in the prompt; `None` if it does not say, or only "at least" and
    /// "about".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<u64>,
    /// Nothing but two numbers says so: they have to agree with the estimate.
    #[serde(skip)]
    pub is_inferred: bool,
    /// It counts the output beside `input`, which is the prompt's alone.
    #[serde(skip)]
    pub counts_output: bool,
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

/// Whether a response says that the request does not fit.
pub fn overflow(answer: &ErrorResponse<'_>) -> Option<Overflow> {
    if answer.status != 200 && !status::may_not_fit(answer.status) {
        return None;
    }
    stated(&lowercase_text(answer.body), &ErrorMessage::all(answer.body), answer)
}

/// Whether an error in a reply says so. `host`: the upstream's host name.
pub fn overflow_in_reply(error: &ProviderError, host: &str) -> Option<Overflow> {
    let text = error.text();
    let response = ErrorResponse { status: 200, host, body: text.as_bytes() };
    let mut messages = ErrorMessage::all(error.message.as_deref().unwrap_or_default().as_bytes());
    messages.push(ErrorMessage::from_error(error));
    stated(&lowercase_text(text.as_bytes()), &messages, &response)
}

fn stated(text: &str, messages: &[ErrorMessage], answer: &ErrorResponse<'_>) -> Option<Overflow> {
    let file = built_in();
    // A server that failed says so about its own faults, too.
    if answer.status == 500 && !text.contains("context") {
        return None;
    }
    // The code of an error in a stream, or of another server's.
    let mut statuses = messages.iter().filter_map(|message| message.status);
    if statuses.any(status::is_elsewhere) {
        return None;
    }
    let text = &translated(text);
    if file.except.iter().any(|pattern| text.contains(&**pattern)) {
        return None;
    }
    let mut overflow = Overflow::default();
    for message in messages {
        overflow.add(message.window, message.input);
    }
    let has_both = overflow.window.is_some() && overflow.input > overflow.window;
    let is_named = messages.iter().any(|message| file.names(message));
    let mut is_certain = has_both || is_named;
    let mut is_inferred = false;
    for message in messages {
        let says = sentences::read(&translated(&lowercase_text(message.text.as_bytes())));
        is_certain |= says.is_too_long;
        is_inferred |= says.is_too_many && says.is_of_tokens;
        // Numbers that do not explain a refusal are about something else.
        if says.is_too_many || says.input.is_none() {
            overflow.add(says.window, says.input);
            overflow.counts_output |= says.counts_output;
        }
    }
    for known in file.patterns.iter().filter(|known| known.is_for(answer)) {
        if let Some(seen) = known.seen(text) {
            is_certain = true;
            overflow.add(seen.window, seen.input);
        }
    }
    if is_certain || is_inferred {
        Some(Overflow { is_inferred: !is_certain, ..overflow })
    } else {
        None
    }
}

impl Overflow {
    fn add(&mut self, window: Option<u64>, input: Option<u64>) {
        self.window = self.window.or(window.filter(|window| WINDOWS.contains(window)));
        self.input = self.input.or(input);
    }
}

/// The content of `config/overflow.toml`.
#[derive(Deserialize)]
struct OverflowFile {
    /// Words of other messages, in lower case.
    except: Vec<Box<str>>,
    /// Names of the error, in lower case.
    names: Vec<Box<str>>,
    #[serde(rename = "says")]
    patterns: Vec<OverflowPattern>,
}

/// One entry of `config/overflow.toml`.
#[derive(Deserialize)]
struct OverflowPattern {
    text: Box<str>,
    status: Option<u16>,
    host: Option<Box<str>>,
}

fn built_in() -> &'static OverflowFile {
    static FILE: OnceLock<OverflowFile> = OnceLock::new();
    FILE.get_or_init(|| {
        // A test checks that it is valid.
        toml::from_str(include_str!("../../../config/overflow.toml"))
            .unwrap_or_else(|_| OverflowFile { except: vec![], names: vec![], patterns: vec![] })
    })
}

impl OverflowFile {
    /// Whether the error has a name that says so, among its kinds or in its text.
    fn names(&self, message: &ErrorMessage) -> bool {
        let mut words = message
            .text
            .split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')));
        // In a sentence, a word without an underscore may be any other word.
        let mut kinds = message.kinds.iter();
        kinds.any(|kind| self.lists(kind) || is_of_context(kind))
            // vLLM's `param` if the prompt is too long.
            || message.places.iter().any(|place| &**place == "input_tokens")
            || words.any(|word| is_of_context(word) || word.contains('_') && self.lists(word))
    }

    fn lists(&self, name: &str) -> bool {
        self.names.iter().any(|listed| listed.eq_ignore_ascii_case(name))
    }
}

fn is_of_context(name: &str) -> bool {
    // `context_length_exceeded`, `ContextWindowExceededError`.
    let letters: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
    let letters = letters.to_ascii_lowercase();
    letters.contains("context")
        && ["exceed", "overflow", "toolong"].iter().any(|word| letters.contains(word))
}

impl OverflowPattern {
    fn is_for(&self, answer: &ErrorResponse<'_>) -> bool {
        self.status.is_none_or(|status| status == answer.status)
            && self.host.as_deref().is_none_or(|host| answer.host.ends_with(host))
    }

    /// The numbers at the first match of the pattern.
    fn seen(&self, text: &str) -> Option<Overflow> {
        if self.text.is_empty() {
            // A pattern without text means an empty body.
            return if text.trim().is_empty() { Some(Overflow::default()) } else { None };
        }
        let first_word = self.text.split([' ', '{']).next().unwrap_or_default();
        let starts = memchr::memmem::find_iter(text.as_bytes(), first_word.as_bytes());
        starts.filter_map(|start| fits(&self.text, text.get(start..)?)).next()
    }
}

fn fits(pattern: &str, text: &str) -> Option<Overflow> {
    let mut pattern = pattern;
    let mut text = text;
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
            pattern = rest;
            text = after;
        } else if next == ' ' {
            pattern = &pattern[1..];
            text = text.trim_start();
        } else {
            text = text.strip_prefix(next)?;
            pattern = &pattern[next.len_utf8()..];
        }
    }
    Some(numbers)
}

fn lowercase_text(body: &[u8]) -> String {
    // Some servers escape `>`, `'` or all quotes in an error that they forward.
    ENTITIES.iter().fold(unescaped(body).to_lowercase(), |text, (entity, sign)| {
        if text.contains('&') { text.replace(entity, sign) } else { text }
    })
}

/// Entities of HTML: proxies wrap a message in a page, or quote it so.
const ENTITIES: [(&str, &str); 7] = [
    ("&gt;", ">"),
    ("&lt;", "<"),
    ("&quot;", "\""),
    ("&#39;", "'"),
    ("&#x27;", "'"),
    ("&nbsp;", " "),
    ("&amp;", "&"),
];

/// The same without lowering the case.
pub(super) fn unescaped(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let mut unescaped = String::with_capacity(text.len());
    let mut rest = &*text;
    while let Some(at) = rest.find('\\') {
        unescaped.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let hex = rest.strip_prefix('u').and_then(|hex| hex.get(..4));
        let escaped = hex.and_then(|hex| u32::from_str_radix(hex, 16).ok());
        if let Some(sign) = escaped {
            unescaped.push(char::from_u32(sign).unwrap_or(char::REPLACEMENT_CHARACTER));
            rest = &rest[5..];
        } else if let Some(sign) = rest.chars().next() {
            unescaped.push(if matches!(sign, 'n' | 'r' | 't') { ' ' } else { sign });
            rest = &rest[sign.len_utf8()..];
        }
    }
    unescaped.push_str(rest);
    unescaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overflow_of(status: u16, body: &str) -> Option<Overflow> {
        overflow(&ErrorResponse { status, host: "api.example.com", body: body.as_bytes() })
    }

    fn seen(window: Option<u64>, input: Option<u64>) -> Option<Overflow> {
        Some(Overflow { window, input, ..Overflow::default() })
    }

    #[test]
    fn every_listed_message_is_overflow() {
        let file = built_in();
        assert!(file.patterns.len() > 5, "the data does not parse");
        assert!(file.except.len() > 10, "the data does not parse");
        for says in &file.patterns {
            let text = says.text.replace("{window}", "200,000").replace("{}", "77");
            let body = format!(r#"{{"error":{{"message":"Oh: {text}!"}}}}"#);
            let body = if text.is_empty() { String::new() } else { body };
            let (status, host) = (says.status.unwrap_or(400), says.host.as_deref());
            let host = host.unwrap_or("api.example.com");
            let answer = ErrorResponse { status, host, body: body.as_bytes() };
            let seen = overflow(&answer).unwrap_or_else(|| panic!("{body}"));
            let window = says.text.contains("{window}").then_some(200_000);
            assert_eq!(seen.window, window, "{body}");
            assert!(!seen.is_inferred, "{body}");
            assert_eq!(overflow(&ErrorResponse { status: 429, ..answer }), None, "{body}");
            assert_eq!(overflow(&ErrorResponse { status: 401, ..answer }), None, "{body}");
        }
    }

    #[test]
    fn names_and_number_fields_say_that_request_does_not_fit() {
        for body in [
            r#"{"error":{"code":"context_length_exceeded","message":""}}"#,
            r#"{"error":{"message":"x","details":{"error_code":"context_window_exceeded"}}}"#,
            r#"{"error":"context_length_exceeded"}"#,
            "context_length_exceeded",
            r#"{"error":{"type":"ContextWindowExceededError","message":"No."}}"#,
            r#"{"error":{"code":1261,"message":"x"}}"#,
            r#"{"error":{"code": "1261","message":"x"}}"#,
            r#"{"error":{"message":"no","n_ctx":512,"n_prompt_tokens":2009}}"#,
        ] {
            for status in [200, 400, 413] {
                assert!(overflow_of(status, body).is_some_and(|seen| !seen.is_inferred), "{body}");
            }
            assert_eq!(overflow_of(404, body), None);
        }
        assert_eq!(overflow_of(400, r#"{"error":{"message":"no","n_ctx":512}}"#), None);
        let error = ProviderError {
            kind: Some("1261".into()),
            message: Some("No.".into()),
            ..ProviderError::default()
        };
        assert!(overflow_in_reply(&error, "").is_some());
        let wrapped = r#"Upstream: {"error":{"code":"context_length_exceeded","message":"No."}}"#;
        let error =
            ProviderError { kind: None, message: Some(wrapped.into()), ..ProviderError::default() };
        assert!(overflow_in_reply(&error, "").is_some());
    }

    #[test]
    fn token_number_after_at_least_or_about_is_not_count() {
        let body = "This model's maximum context length is 2048 tokens. However, you requested 512 \
                    output tokens and your prompt contains at least 1537 input tokens, for a total \
                    of at least 2049 tokens. Please reduce the length of the input prompt or the \
                    number of requested output tokens.";
        assert_eq!(overflow_of(400, body), seen(Some(2048), None));
        assert_eq!(overflow_of(500, body), seen(Some(2048), None));
        let about = "This endpoint's maximum context length is 200000 tokens. However, you requested \
                     about 2500021 tokens (2500021 of text input).";
        assert_eq!(overflow_of(400, about), seen(Some(200_000), None));
    }

    #[test]
    fn escaped_and_nested_overflow_messages_are_read() {
        for body in [
            r#"{"error":{"message":"prompt is too long: 210000 tokens \u003e 200000 maximum"}}"#,
            "{\"message\": \"Prompt is too\\n long: 210000 tokens\n > 200000   maximum\"}",
            r#"{"metadata":{"raw":"{\"message\":\"prompt is too long: 210000 tokens > 200000 maximum\"}"}}"#,
        ] {
            assert_eq!(overflow_of(400, body), seen(Some(200_000), Some(210_000)), "{body}");
        }
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
            (
                200,
                r#"{"error":{"code":402,"message":"You requested up to 64000 tokens, but have 8192."}}"#,
            ),
            (
                400,
                "This request requires more credits, or fewer max_tokens. You requested up to 64000 tokens, but can only afford 8192.",
            ),
            (
                400,
                r#"{"error":{"code":"429","message":"Limit reached: 6000 tokens, requested 7000."}}"#,
            ),
            (413, ""),
        ] {
            assert_eq!(overflow_of(status, body), None, "{body}");
        }
    }

    #[test]
    fn no_error_body_makes_reader_panic() {
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
