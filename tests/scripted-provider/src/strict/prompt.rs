//! The pieces of a prompt: one walk over a JSON value gives hash and tokens of a piece.
//!
//! Hashes are of the meaning as it is rendered: a text is the same as a string and as a block, cache
//! markers are not part of it, key order is (`docs/protocols.md` 7.1, 10.7). The token rule is made up,
//! cheap, and the same for output and input: bytes / 4, rounded up, and [`PIECE_OVERHEAD_TOKENS`] a
//! piece; a picture or a file costs [`MEDIA_TOKENS`].

use std::fmt;

use serde_json::Value;
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

/// Tokens around each piece.
pub const PIECE_OVERHEAD_TOKENS: u64 = 4;
/// Tokens of a picture or a file, whatever its size.
pub const MEDIA_TOKENS: u64 = 1500;
/// Tokens of the fixed part of every prompt.
pub const PROMPT_TOKENS: u64 = 3;

/// A place in a request, by the indexes of the request as it was sent. Ordered as the prompt is.
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

/// How long a cached prefix is kept unused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Ttl {
    /// Five minutes.
    Minutes5,
    /// One hour.
    Hour1,
}

/// A piece of the prompt as the model reads it.
#[derive(Clone, Copy, Debug)]
pub(super) struct PromptPiece {
    pub(super) place: Place,
    pub(super) hash: u128,
    pub(super) tokens: u64,
    pub(super) breakpoint: Option<Ttl>,
}

/// Hash and tokens of a piece, wherever it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PieceContent {
    pub(super) hash: u128,
    pub(super) tokens: u64,
}

impl PieceContent {
    /// As a piece without a cache marker.
    pub(super) fn at(self, place: Place) -> PromptPiece {
        PromptPiece { place, hash: self.hash, tokens: self.tokens, breakpoint: None }
    }
}

/// Hash and tokens of a content block, a tool or an item, without its cache markers.
pub(super) fn measure(tag: &str, value: &Value) -> PieceContent {
    let mut hasher = ContentHasher::new(tag);
    hasher.add_block(value);
    hasher.finish()
}

/// Hash and tokens of a text, the same as those of a text block that holds it.
pub(super) fn measure_text(tag: &str, text: &str) -> PieceContent {
    let mut hasher = ContentHasher::new(tag);
    hasher.add_text(text);
    hasher.finish()
}

/// Encrypted or signed reasoning, whose tokens are known.
pub(super) fn measure_encrypted(tag: &str, signature: &str, tokens: u64) -> PieceContent {
    PieceContent { hash: hash(&[tag, signature]), tokens: tokens + PIECE_OVERHEAD_TOKENS }
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
    let mut pair = [0; 32];
    pair[..16].copy_from_slice(&chain.to_le_bytes());
    pair[16..].copy_from_slice(&hash.to_le_bytes());
    xxh3_128(&pair)
}

/// Fields that are not rendered.
const CACHE_MARKERS: [&str; 2] = ["cache_control", "prompt_cache_breakpoint"];

struct ContentHasher {
    hasher: Xxh3,
    bytes: u64,
    media: u64,
}

impl ContentHasher {
    fn new(tag: &str) -> Self {
        let mut hasher = Self { hasher: Xxh3::new(), bytes: 0, media: 0 };
        hasher.add_tagged(b'r', tag);
        hasher
    }

    fn finish(self) -> PieceContent {
        let tokens = PIECE_OVERHEAD_TOKENS + self.bytes.div_ceil(4) + self.media * MEDIA_TOKENS;
        PieceContent { hash: self.hasher.digest128(), tokens }
    }

    fn add_tagged(&mut self, tag: u8, text: &str) {
        self.hasher.update(&[tag]);
        self.hasher.update(&(text.len() as u64).to_le_bytes());
        self.hasher.update(text.as_bytes());
    }

    fn add_text(&mut self, text: &str) {
        self.bytes += text.len() as u64;
        self.add_tagged(b'"', text);
    }

    fn add_block(&mut self, value: &Value) {
        // A block; a text block is its text, and blocks in its `content` are blocks too.
        match value {
            Value::Object(block) if is_plain_text(value) => {
                self.add_text(block.get("text").and_then(Value::as_str).unwrap_or_default());
            }
            Value::Object(block) => {
                self.hasher.update(b"{");
                for (key, value) in
                    block.iter().filter(|(key, _)| !CACHE_MARKERS.contains(&key.as_str()))
                {
                    self.add_tagged(b':', key);
                    match (key.as_str(), value) {
                        ("source" | "inlineData" | "inline_data" | "image_url", media) => {
                            self.media += 1;
                            self.add_value(media, false);
                        }
                        ("content", Value::Array(blocks)) => {
                            blocks.iter().for_each(|block| self.add_block(block));
                        }
                        // Ids are rendered, but cost no more than the structure they stand for.
                        ("type" | "id" | "tool_use_id" | "call_id" | "tool_call_id", id) => {
                            self.add_value(id, false);
                        }
                        (_, value) => self.add_value(value, true),
                    }
                }
                self.hasher.update(b"}");
            }
            other => self.add_value(other, true),
        }
    }

    fn add_value(&mut self, value: &Value, counts: bool) {
        let bytes_before = self.bytes;
        match value {
            Value::Null => self.hasher.update(b"n"),
            Value::Bool(is) => self.hasher.update(if *is { b"t" } else { b"f" }),
            Value::Number(number) => {
                self.bytes += 4;
                self.add_tagged(b'#', &number.to_string());
            }
            Value::String(text) => self.add_text(text),
            Value::Array(values) => {
                self.hasher.update(b"[");
                values.iter().for_each(|value| self.add_value(value, counts));
                self.hasher.update(b"]");
            }
            Value::Object(fields) => {
                self.hasher.update(b"{");
                for (key, value) in fields {
                    self.bytes += key.len() as u64;
                    self.add_tagged(b':', key);
                    self.add_value(value, counts);
                }
                self.hasher.update(b"}");
            }
        }
        if !counts {
            self.bytes = bytes_before;
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
    fn string_and_text_block_measure_same() {
        let plain = measure_text("user", "hello");
        let marked =
            json!({"type": "text", "text": "hello", "cache_control": {"type": "ephemeral"}});
        assert_eq!(plain, measure("user", &marked));
        assert_ne!(plain, measure("assistant", &marked));
        assert_eq!(plain.tokens, PIECE_OVERHEAD_TOKENS + 2);
        let result = |content: Value| {
            measure("user", &json!({"type": "tool_result", "tool_use_id": "t", "content": content}))
        };
        assert_eq!(
            result(json!([{"type": "text", "text": "x"}])).hash,
            result(json!([{"type": "text", "text": "x", "cache_control": {}}])).hash
        );
    }

    #[test]
    fn every_byte_changes_the_hash() {
        let one = measure("t", &json!({"a": {"b": 1, "c": [true, null]}}));
        for other in [
            json!({"a": {"c": [true, null], "b": 1}}),
            json!({"a": {"b": 2, "c": [true, null]}}),
            json!({"a": {"b": 1, "c": [false, null]}}),
            json!({"a": {"b": 1, "c": [true]}}),
        ] {
            assert_ne!(one.hash, measure("t", &other).hash, "{other}");
        }
    }

    #[test]
    fn picture_costs_same_at_any_size() {
        let picture = |data: &str| json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}});
        let small = measure("user", &picture("AAAA"));
        let large = measure("user", &picture(&"AAAA".repeat(1000)));
        assert_eq!(small.tokens, large.tokens);
        assert_ne!(small.hash, large.hash);
        assert!(small.tokens >= MEDIA_TOKENS);
    }
}
