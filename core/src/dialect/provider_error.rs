//! The error that a provider reports in a body or in a stream, whatever form it has.
//!
//! Takes the message as it is; `error_kind` judges them.

use serde::{Deserialize, Serialize};

use super::quota::{self, ExhaustedQuota};
use crate::wire::json::Value;

/// An error that the provider reported, in a body or in a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProviderError {
    /// Its `code` if that is a name, else `type` or `status`, as the provider wrote it.
    pub kind: Option<Box<str>>,
    /// The message. Never logged: providers quote prompts in it.
    pub message: Option<Box<str>>,
    /// The limits that it says are used up.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exhausted: Vec<ExhaustedQuota>,
}

impl ProviderError {
    /// Kind and message.
    pub fn text(&self) -> String {
        [self.kind.as_deref(), self.message.as_deref()].map(Option::unwrap_or_default).join(" ")
    }
}

/// The error in a value, in any form that providers use: `{"error": {…}}`, `{"error": "…"}`,
/// `[{"error": {…}}]` (Gemini), or its members without a wrapper. A code that is a name is more specific than
/// the type: `context_length_exceeded` is also an `invalid_request_error` (`docs/protocols.md` 2.5, 3.6).
pub(super) fn error_in(value: Value<'_>) -> ProviderError {
    let value = value.items().next().unwrap_or(value);
    let inner = value.get("error").filter(|error| !error.is_null()).unwrap_or(value);
    let code = inner.get("code").or_else(|| value.get("code")).and_then(|code| code.text());
    ProviderError {
        kind: code
            .filter(|code| is_name(code))
            .map(Into::into)
            .or_else(|| first_word(inner, &["type", "status", "code"])),
        exhausted: quota::in_refusal(inner),
        message: inner.text().map(Into::into).or_else(|| first_word(inner, &["message", "detail"])),
    }
}

fn is_name(code: &str) -> bool {
    // Some servers put a status or a sentence there.
    code.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
        && code.bytes().any(|byte| byte.is_ascii_alphabetic())
}

fn first_word(object: Value<'_>, names: &[&str]) -> Option<Box<str>> {
    names.iter().find_map(|name| word(object.get(name)?))
}

fn word(value: Value<'_>) -> Option<Box<str>> {
    // A string, or a number as a string.
    match value.text() {
        Some(text) => Some(text.into()),
        None => value.as_u64().map(|number| number.to_string().into()),
    }
}
