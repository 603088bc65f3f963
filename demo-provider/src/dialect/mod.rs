//! The four dialects of the scripted provider: parse a request, write a reply as one body or as events.
//!
//! Written from `docs/protocols.md`, without the product's own readers, so that neither hides the
//! other's mistakes.

pub mod anthropic;
pub mod gemini;
pub mod openai_chat;
pub mod openai_responses;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

/// One event of a stream.
#[derive(Debug, Clone)]
pub struct Event {
    /// The `event:` line, where the protocol has one.
    pub name: Option<&'static str>,
    /// The `data:` line.
    pub data: String,
}

impl Event {
    fn named(name: &'static str, data: &Value) -> Self {
        Self { name: Some(name), data: data.to_string() }
    }

    fn data(data: &Value) -> Self {
        Self { name: None, data: data.to_string() }
    }

    /// The bytes on the wire; lines end with LF or CRLF.
    pub fn frame(&self, crlf: bool) -> String {
        let end = if crlf { "\r\n" } else { "\n" };
        match self.name {
            Some(name) => format!("event: {name}{end}data: {}{end}{end}", self.data),
            None => format!("data: {}{end}{end}", self.data),
        }
    }
}

/// Splits a text into deltas of a few words each.
fn deltas(text: &str) -> Vec<String> {
    let words: Vec<&str> = text.split_inclusive(' ').collect();
    words.chunks(4).map(<[&str]>::concat).collect()
}

/// A signature on reasoning, or its encrypted content, that holds how many tokens it has.
fn signature(tokens: u64, id: &str) -> String {
    STANDARD.encode(format!("plimsoll-demo {tokens} {id} {}", "seal".repeat(24)))
}

/// The tokens of signed reasoning; `None` if the signature is not ours.
fn signature_tokens(signature: &str) -> Option<u64> {
    let plain = String::from_utf8(STANDARD.decode(signature).ok()?).ok()?;
    let mut fields = plain.split(' ');
    (fields.next()? == "plimsoll-demo").then(|| fields.next()?.parse().ok())?
}

/// The text of a content field: a string, or a list of parts that hold some.
fn content_text(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().map(content_text).collect::<Vec<_>>().join("\n"),
        Value::Object(part) => {
            part.get("text").or_else(|| part.get("content")).map(content_text).unwrap_or_default()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => String::new(),
    }
}

fn items(value: &Value) -> impl DoubleEndedIterator<Item = &Value> + ExactSizeIterator {
    value.as_array().map(Vec::as_slice).unwrap_or_default().iter()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
