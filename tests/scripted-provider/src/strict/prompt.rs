//! What a piece of a prompt is and what it costs: one walk over a JSON value gives both.
//!
//! Hashes are of the meaning as it is rendered: a text is the same as a string and as a block, cache
//! markers are not part of it, key order is (`docs/protocols.md` 7.1, 10.7). The token rule
//! is made up, cheap, and the same for what is written and for what comes back: bytes / 4, rounded
//! up, and [`STRUCTURE`] a piece; a picture or a file costs [`MEDIA`].

use std::fmt;

use serde_json::Value;
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

/// Tokens around each piece.
pub const STRUCTURE: u64 = 4;
/// Tokens of a picture or a file, whatever its size.
pub const MEDIA: u64 = 1500;
/// Tokens of every prompt's fixed part.
pub const PROMPT: u64 = 3;

/// Where in a request something stands, by the indexes of the request as it was sent. Ordered as the
/// prompt is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// A tool's definition.
    Tool(usize),
    /// A block of the system prompt.
    System(usize),
    /// Not a place but a setting that belongs to the prefix: tool choice, thinking on or off,
    /// pictures present or not (`docs/protocols.md` 7.1).
    Settings,
    /// A content block of a message, item or content.
    Message {
        /// Index of the message (Responses: item; Gemini: content).
        message: usize,
        /// Index of the block (part) in it.
        block: usize,
    },
    /// After the last piece.
    End,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tool(tool) => write!(f, "tools.{tool}"),
            Self::System(block) => write!(f, "system.{block}"),
            Self::Settings => f.write_str("settings"),
            Self::Message { message, block } => write!(f, "messages.{message}.content.{block}"),
            Self::End => f.write_str("end"),
        }
    }
}

/// How long a cached prefix lives unused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Ttl {
    /// Five minutes.
    Minutes5,
    /// One hour.
    Hour1,
}

/// A piece of the prompt as the model reads it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) place: Place,
    pub(super) hash: u128,
    pub(super) tokens: u64,
    pub(super) mark: Option<Ttl>,
}

/// Hash and weight of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Weighed {
    pub(super) hash: u128,
    pub(super) tokens: u64,
}

impl Weighed {
    /// As a piece without a cache marker.
    pub(super) fn at(self, place: Place) -> Piece {
        Piece { place, hash: self.hash, tokens: self.tokens, mark: None }
    }
}

/// Weighs a content block, a tool or an item, without its cache markers.
pub(super) fn weigh(tag: &str, value: &Value) -> Weighed {
    let mut walk = Walk::new(tag);
    walk.block(value);
    walk.done()
}

/// Weighs a text, as [`weigh`] does a text block that holds it.
pub(super) fn weigh_text(tag: &str, text: &str) -> Weighed {
    let mut walk = Walk::new(tag);
    walk.text(text);
    walk.done()
}

/// Reasoning whose weight is known and whose content is a seal.
pub(super) fn weigh_sealed(tag: &str, seal: &str, tokens: u64) -> Weighed {
    Weighed { hash: hash(&[tag, seal]), tokens: tokens + STRUCTURE }
}

/// Hash of a few texts.
pub(super) fn hash(texts: &[&str]) -> u128 {
    let mut hasher = Xxh3::new();
    for text in texts {
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    }
    hasher.digest128()
}

/// The next link of a chain of hashes.
pub(super) fn link(chain: u128, hash: u128) -> u128 {
    let mut both = [0; 32];
    both[..16].copy_from_slice(&chain.to_le_bytes());
    both[16..].copy_from_slice(&hash.to_le_bytes());
    xxh3_128(&both)
}

/// Fields that say nothing to the model.
const SILENT: [&str; 2] = ["cache_control", "prompt_cache_breakpoint"];

struct Walk {
    hasher: Xxh3,
    bytes: u64,
    media: u64,
}

impl Walk {
    fn new(tag: &str) -> Self {
        let mut walk = Self { hasher: Xxh3::new(), bytes: 0, media: 0 };
        walk.mix(b'r', tag);
        walk
    }

    fn done(self) -> Weighed {
        let tokens = STRUCTURE + self.bytes.div_ceil(4) + self.media * MEDIA;
        Weighed { hash: self.hasher.digest128(), tokens }
    }

    fn mix(&mut self, tag: u8, text: &str) {
        self.hasher.update(&[tag]);
        self.hasher.update(&(text.len() as u64).to_le_bytes());
        self.hasher.update(text.as_bytes());
    }

    fn text(&mut self, text: &str) {
        self.bytes += text.len() as u64;
        self.mix(b'"', text);
    }

    /// A block; a text block is its text, and blocks in its `content` are blocks too.
    fn block(&mut self, value: &Value) {
        match value {
            Value::Object(block) if is_plain_text(value) => {
                self.text(block.get("text").and_then(Value::as_str).unwrap_or_default());
            }
            Value::Object(block) => {
                self.hasher.update(b"{");
                for (key, value) in block.iter().filter(|(key, _)| !SILENT.contains(&key.as_str()))
                {
                    self.mix(b':', key);
                    match (key.as_str(), value) {
                        ("source" | "inlineData" | "inline_data" | "image_url", media) => {
                            self.media += 1;
                            self.any(media, false);
                        }
                        ("content", Value::Array(blocks)) => {
                            blocks.iter().for_each(|block| self.block(block));
                        }
                        // Ids are rendered, but cost no more than the structure they stand for.
                        ("type" | "id" | "tool_use_id" | "call_id" | "tool_call_id", id) => {
                            self.any(id, false);
                        }
                        (_, value) => self.any(value, true),
                    }
                }
                self.hasher.update(b"}");
            }
            other => self.any(other, true),
        }
    }

    fn any(&mut self, value: &Value, counts: bool) {
        let before = self.bytes;
        match value {
            Value::Null => self.hasher.update(b"n"),
            Value::Bool(is) => self.hasher.update(if *is { b"t" } else { b"f" }),
            Value::Number(number) => {
                self.bytes += 4;
                self.mix(b'#', &number.to_string());
            }
            Value::String(text) => self.text(text),
            Value::Array(values) => {
                self.hasher.update(b"[");
                values.iter().for_each(|value| self.any(value, counts));
                self.hasher.update(b"]");
            }
            Value::Object(fields) => {
                self.hasher.update(b"{");
                for (key, value) in fields {
                    self.bytes += key.len() as u64;
                    self.mix(b':', key);
                    self.any(value, counts);
                }
                self.hasher.update(b"}");
            }
        }
        if !counts {
            self.bytes = before;
        }
    }
}

/// A block that holds nothing but a text.
fn is_plain_text(block: &Value) -> bool {
    let kinds = ["text", "input_text", "output_text"];
    let kind = block.get("type").and_then(Value::as_str).unwrap_or("text");
    kinds.contains(&kind) && block.get("text").is_some_and(Value::is_string)
}

/// The elements of a list; none of anything else.
pub(super) fn items(
    value: &Value,
) -> impl DoubleEndedIterator<Item = &Value> + ExactSizeIterator + Clone {
    value.as_array().map(Vec::as_slice).unwrap_or_default().iter()
}

/// A string; empty for anything else.
pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_text_is_the_same_in_every_dress() {
        let plain = weigh_text("user", "hello");
        let marked =
            json!({"type": "text", "text": "hello", "cache_control": {"type": "ephemeral"}});
        assert_eq!(plain, weigh("user", &marked));
        assert_ne!(plain, weigh("assistant", &marked));
        assert_eq!(plain.tokens, STRUCTURE + 2);
        let result = |content: Value| {
            weigh("user", &json!({"type": "tool_result", "tool_use_id": "t", "content": content}))
        };
        assert_eq!(
            result(json!([{"type": "text", "text": "x"}])).hash,
            result(json!([{"type": "text", "text": "x", "cache_control": {}}])).hash
        );
    }

    #[test]
    fn every_byte_and_the_order_of_keys_count() {
        let one = weigh("t", &json!({"a": {"b": 1, "c": [true, null]}}));
        for other in [
            json!({"a": {"c": [true, null], "b": 1}}),
            json!({"a": {"b": 2, "c": [true, null]}}),
            json!({"a": {"b": 1, "c": [false, null]}}),
            json!({"a": {"b": 1, "c": [true]}}),
        ] {
            assert_ne!(one.hash, weigh("t", &other).hash, "{other}");
        }
    }

    #[test]
    fn a_picture_costs_the_same_at_any_size() {
        let picture = |data: &str| json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}});
        let small = weigh("user", &picture("AAAA"));
        let large = weigh("user", &picture(&"AAAA".repeat(1000)));
        assert_eq!((small.tokens, small.hash == large.hash), (large.tokens, false));
        assert!(small.tokens >= MEDIA);
    }
}
