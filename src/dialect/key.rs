//! Identity by meaning: keys of parts and chains of prefixes, the same however a client spells it.
//!
//! What a client changes without changing the meaning must not change a key (`clients.md` §0.9,
//! §0.10): cache markers, string or block form, order and spacing of tool arguments, white space
//! around text, the base64 alphabet. Reasoning has no key: clients drop it.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

use super::{PartKind, Role};
use crate::wire::json::{Document, Kind, Value};

/// 128-bit identity of a part's stable content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartKey(pub u128);

/// Identity of a prefix of a conversation: a running hash of part keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Chain(pub u128);

impl Chain {
    /// The empty prefix.
    pub const START: Chain = Chain(0);

    /// The prefix with one more part.
    #[must_use]
    pub fn then(self, key: PartKey) -> Chain {
        let mut bytes = [0; 32];
        bytes[..16].copy_from_slice(&self.0.to_le_bytes());
        bytes[16..].copy_from_slice(&key.0.to_le_bytes());
        Chain(xxh3_128(&bytes))
    }
}

macro_rules! as_hex {
    ($name:ident) => {
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{:032x}", self.0)
            }
        }

        impl std::str::FromStr for $name {
            type Err = std::num::ParseIntError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                u128::from_str_radix(text, 16).map(Self)
            }
        }

        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(from)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

as_hex!(PartKey);
as_hex!(Chain);

/// A tool call's arguments, as one of the two forms that clients and providers use.
#[derive(Clone, Copy)]
pub enum Arguments<'a> {
    /// A JSON value.
    Value(Value<'a>),
    /// A string that should hold JSON; empty means `{}`.
    Text(&'a str),
}

/// Makes part keys; keeps one buffer, so that a long history costs no allocation a part.
#[derive(Debug, Default)]
pub struct Keyer {
    buffer: Vec<u8>,
}

impl Keyer {
    /// Words of `role`. White space around them does not count; without words there is no key.
    pub fn text(&mut self, role: Role, text: &str) -> Option<PartKey> {
        let text = text.trim();
        if text.is_empty() {
            return None;
        }
        self.begin(PartKind::Text, role);
        self.buffer.extend_from_slice(text.as_bytes());
        Some(self.end())
    }

    /// A tool call. Give no `id` where clients make their own (Gemini).
    pub fn tool_call(
        &mut self,
        id: Option<&str>,
        name: &str,
        arguments: Arguments<'_>,
    ) -> Option<PartKey> {
        self.begin(PartKind::ToolCall, Role::Assistant);
        self.word(id.unwrap_or_default());
        self.word(name);
        match arguments {
            Arguments::Value(value) => canonical(&mut self.buffer, value),
            Arguments::Text(text) => self.arguments(text.trim()),
        }
        Some(self.end())
    }

    /// A tool's answer: `pieces` are its texts in order; one string and several blocks with the
    /// same words are the same answer. Give the tool's name as `id` where there are no ids.
    pub fn tool_result<'a>(
        &mut self,
        id: &str,
        pieces: impl IntoIterator<Item = Cow<'a, str>>,
    ) -> Option<PartKey> {
        self.begin(PartKind::ToolResult, Role::Tool);
        self.word(id);
        let start = self.buffer.len();
        for piece in pieces {
            self.buffer.extend_from_slice(piece.as_bytes());
        }
        let kept = start + self.buffer[start..].trim_ascii_end().len();
        self.buffer.truncate(kept);
        Some(self.end())
    }

    /// A picture or document by its data (base64 in either alphabet) or its address.
    pub fn media(&mut self, kind: PartKind, role: Role, data: &str) -> Option<PartKey> {
        self.begin(kind, role);
        base64(&mut self.buffer, data);
        Some(self.end())
    }

    /// Anything else that is JSON: its members in any order, without cache markers.
    pub fn value(&mut self, kind: PartKind, role: Role, value: Value<'_>) -> Option<PartKey> {
        self.begin(kind, role);
        canonical(&mut self.buffer, value);
        Some(self.end())
    }

    fn arguments(&mut self, text: &str) {
        let text = if text.is_empty() { "{}" } else { text };
        let document = Document::read(text.as_bytes());
        match document.as_ref().ok().and_then(|document| document.root(text.as_bytes())) {
            Some(value) => canonical(&mut self.buffer, value),
            None => self.buffer.extend_from_slice(text.as_bytes()),
        }
    }

    fn begin(&mut self, kind: PartKind, role: Role) {
        self.buffer.clear();
        self.buffer.extend_from_slice(&[kind as u8, role as u8]);
    }

    fn word(&mut self, word: &str) {
        self.buffer.extend_from_slice(word.as_bytes());
        self.buffer.push(0);
    }

    fn end(&self) -> PartKey {
        PartKey(xxh3_128(&self.buffer))
    }
}

/// One spelling for every spelling of a value: members sorted, no white space, escapes resolved,
/// numbers by value, cache markers out. Recursion is bounded by the reader's depth.
fn canonical(out: &mut Vec<u8>, value: Value<'_>) {
    match value.kind() {
        Kind::Null | Kind::Bool => out.extend_from_slice(value.raw()),
        Kind::Number => match value.as_f64() {
            Some(number) => out.extend_from_slice(number.to_string().as_bytes()),
            None => out.extend_from_slice(value.raw()),
        },
        Kind::String => {
            out.push(b'"');
            out.extend_from_slice(value.text().unwrap_or_default().as_bytes());
            out.push(b'"');
        }
        Kind::Array => {
            out.push(b'[');
            for item in value.items() {
                canonical(out, item);
                out.push(b',');
            }
            out.push(b']');
        }
        Kind::Object => {
            let mut members: Vec<_> = value.entries().map(|(key, v)| (key.text(), v)).collect();
            members.retain(|(key, _)| key != "cache_control");
            members.sort_by(|a, b| a.0.cmp(&b.0));
            out.push(b'{');
            for (key, value) in members {
                out.extend_from_slice(key.as_bytes());
                out.push(b':');
                canonical(out, value);
                out.push(b',');
            }
            out.push(b'}');
        }
    }
}

/// Base64 in the standard alphabet and without padding, whichever it came in.
pub fn base64(out: &mut Vec<u8>, data: &str) {
    out.extend(data.trim_end_matches('=').bytes().map(|byte| match byte {
        b'-' => b'+',
        b'_' => b'/',
        other => other,
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_json(text: &str) -> Option<PartKey> {
        let document = Document::read(text.as_bytes()).unwrap();
        let value = document.root(text.as_bytes()).unwrap();
        Keyer::default().tool_call(Some("id"), "f", Arguments::Value(value))
    }

    fn of_text(text: &str) -> Option<PartKey> {
        Keyer::default().tool_call(Some("id"), "f", Arguments::Text(text))
    }

    #[test]
    fn arguments_are_compared_by_meaning() {
        let key = of_json(r#"{"a":1,"b":["x\n",1.0]}"#);
        assert_eq!(of_json(r#"{ "b" : [ "x\u000a", 1 ], "a" : 1e0 }"#), key);
        assert_eq!(of_text(r#" {"a": 1, "b": ["x\n", 1]} "#), key);
        assert_ne!(of_text(r#"{"a":2,"b":["x\n",1]}"#), key);
        assert_eq!(of_text(""), of_json("{}"));
        assert_ne!(of_text("{\"a\":"), of_text("{\"b\":"));
    }

    #[test]
    fn white_space_around_text_does_not_count() {
        let mut keyer = Keyer::default();
        let key = keyer.text(Role::User, "hello");
        assert_eq!(keyer.text(Role::User, " hello\n"), key);
        assert_ne!(keyer.text(Role::Assistant, "hello"), key);
        assert_eq!(keyer.text(Role::User, " \n"), None);
    }

    #[test]
    fn a_result_in_blocks_is_the_result_in_one_string() {
        let mut keyer = Keyer::default();
        let one = keyer.tool_result("t", ["ab\n".into()]);
        assert_eq!(keyer.tool_result("t", ["a".into(), "b".into()]), one);
        assert_ne!(keyer.tool_result("u", ["ab".into()]), one);
    }

    #[test]
    fn base64_in_either_alphabet_is_the_same_picture() {
        let mut keyer = Keyer::default();
        let key = keyer.media(PartKind::Image, Role::User, "ab+/cd==");
        assert_eq!(keyer.media(PartKind::Image, Role::User, "ab-_cd"), key);
    }

    #[test]
    fn cache_markers_are_not_content() {
        let text = br#"{"type":"x","cache_control":{"type":"ephemeral"}}"#;
        let plain = br#"{"type":"x"}"#;
        let key = |text: &[u8]| {
            let document = Document::read(text).unwrap();
            Keyer::default().value(PartKind::Opaque, Role::User, document.root(text).unwrap())
        };
        assert_eq!(key(text), key(plain));
    }

    #[test]
    fn keys_and_chains_are_hex_in_json() {
        let chain = Chain::START.then(PartKey(7));
        let json = serde_json::to_string(&chain).unwrap();
        assert_eq!(json.len(), 34);
        assert_eq!(serde_json::from_str::<Chain>(&json).unwrap(), chain);
    }
}
