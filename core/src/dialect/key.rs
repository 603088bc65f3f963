//! Keys of parts and chains of prefixes: they identify content by its meaning, not by its spelling.
//!
//! What a client changes without changing the meaning must not change a key (`docs/protocols.md` 10.7, 10.8):
//! cache markers, string or block form, order and spacing of tool arguments, white space around text, the
//! base64 alphabet. Reasoning has no key, because clients drop it.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

use super::{PartKind, Role};
use crate::wire::json::{Document, Kind, Value};

/// 128-bit hash of a part's stable content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartKey(pub u128);

impl PartKey {
    pub(crate) fn of_bytes(bytes: &[u8]) -> PartKey {
        PartKey(xxh3_128(bytes))
    }

    /// The key of a signature, whose base64 clients write in either alphabet (`docs/protocols.md` 10.8).
    pub(crate) fn of_signature(signature: &str) -> PartKey {
        match memchr::memchr2(b'-', b'_', signature.as_bytes()) {
            Some(_) => {
                let standard = signature.replace('-', "+").replace('_', "/");
                PartKey::of_bytes(standard.as_bytes())
            }
            None => PartKey::of_bytes(signature.as_bytes()),
        }
    }

    pub(crate) fn of_literal(literal: &[u8]) -> PartKey {
        // What stands between its quotes, as it is written: escapes are not resolved.
        let text = literal.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
        PartKey::of_bytes(text.unwrap_or(literal))
    }

    /// The key of the same part after its content was cut.
    #[must_use]
    pub fn cut(self) -> PartKey {
        PartKey(Chain(self.0).then(PartKey(0)).0)
    }
}

/// A sentence, or another piece of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sentence {
    /// The hash of its words.
    pub key: PartKey,
    /// Bytes of its words, without spaces.
    pub length: usize,
}

/// The identity of a conversation's prefix: a running hash of part keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Chain(pub u128);

impl Chain {
    /// The empty prefix.
    pub const START: Chain = Chain(0);

    /// The prefix with one more part.
    #[must_use]
    pub(crate) fn then(self, key: PartKey) -> Chain {
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
                f.write_str(hex(self.0, &mut [0; 32]))
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
                to.serialize_str(hex(self.0, &mut [0; 32]))
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

fn hex(number: u128, digits: &mut [u8; 32]) -> &str {
    // Each turn writes several; with `format!`, they took two fifths of the time for its JSON.
    for (byte, pair) in number.to_be_bytes().into_iter().zip(digits.as_chunks_mut().0) {
        *pair = PAIRS[usize::from(byte)];
    }
    std::str::from_utf8(digits).unwrap_or_default()
}

/// The two hex digits of each byte.
const PAIRS: [[u8; 2]; 256] = {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut pairs = [[0; 2]; 256];
    let mut byte = 0;
    while byte < pairs.len() {
        pairs[byte] = [DIGITS[byte >> 4], DIGITS[byte & 15]];
        byte += 1;
    }
    pairs
};

as_hex!(PartKey);
as_hex!(Chain);

/// Members that mark a block as the end of a cached prefix (`docs/protocols.md` 1.2, 3.2).
pub(super) const CACHE_MARKERS: [&str; 2] = ["cache_control", "prompt_cache_breakpoint"];

/// The arguments of a tool call, in one of the two forms that clients and providers use.
#[derive(Clone, Copy)]
pub(crate) enum ToolArguments<'a> {
    /// A JSON value; a string is read as [`ToolArguments::Text`].
    Value(Value<'a>),
    /// A string that should hold JSON; empty and `null` mean `{}`.
    Text(&'a str),
}

/// A text, or a JSON value with it.
pub(crate) enum TextValue<'a> {
    Text(Cow<'a, str>),
    /// A JSON string; any other value stands for its own bytes.
    Value(Value<'a>),
}

impl<'a> From<Cow<'a, str>> for TextValue<'a> {
    fn from(text: Cow<'a, str>) -> Self {
        TextValue::Text(text)
    }
}

impl<'a, T: AsRef<str> + ?Sized> From<&'a T> for TextValue<'a> {
    fn from(text: &'a T) -> Self {
        TextValue::Text(text.as_ref().into())
    }
}

impl<'a> From<Value<'a>> for TextValue<'a> {
    fn from(value: Value<'a>) -> Self {
        TextValue::Value(value)
    }
}

/// Initial buffer for a short part, bytes: one allocation instead of several.
const SHORT: usize = 128;

/// Makes part keys. Keeps its buffers, so that a long history needs no allocation per part.
#[derive(Debug, Default)]
pub(crate) struct Keyer {
    buffer: Vec<u8>,
    arguments: Document,
}

impl Keyer {
    /// The key of a text by `role`. White space around it is ignored; an empty text has no key.
    pub(super) fn text<'a>(
        &mut self,
        role: Role,
        text: impl Into<TextValue<'a>>,
    ) -> Option<PartKey> {
        self.begin(PartKind::Text, role);
        let start = self.buffer.len();
        self.append(text.into());
        // White space around it is ignored, because clients trim; an empty text has no key.
        trim(&mut self.buffer, start);
        (self.buffer.len() > start).then(|| self.end())
    }

    /// The key of a tool call. Without `id` if clients make their own (Gemini).
    pub(crate) fn tool_call(
        &mut self,
        id: Option<&str>,
        name: &str,
        arguments: ToolArguments<'_>,
    ) -> Option<PartKey> {
        self.begin(PartKind::ToolCall, Role::Assistant);
        self.word(id.unwrap_or_default());
        self.word(name);
        match arguments {
            ToolArguments::Value(value) => match value.text() {
                Some(text) => self.arguments(&text),
                None => canonical(&mut self.buffer, value),
            },
            ToolArguments::Text(text) => self.arguments(text),
        }
        Some(self.end())
    }

    /// The key of a tool result: `pieces` are its texts in order; a single string and several blocks with the
    /// same text have the same key. If there are no ids, `id` is the tool's name.
    pub(crate) fn tool_result<'a>(
        &mut self,
        id: &str,
        pieces: impl IntoIterator<Item = impl Into<TextValue<'a>>>,
    ) -> Option<PartKey> {
        self.begin(PartKind::ToolResult, Role::Tool);
        self.word(id);
        let start = self.buffer.len();
        // A single string and several blocks with the same text have the same key.
        for piece in pieces {
            self.append(piece.into());
        }
        trim(&mut self.buffer, start);
        Some(self.end())
    }

    /// The key of an image or document, from its data (base64 in either alphabet) or its URL.
    pub(super) fn media<'a>(
        &mut self,
        kind: PartKind,
        role: Role,
        data: impl Into<TextValue<'a>>,
    ) -> Option<PartKey> {
        self.begin(kind, role);
        let start = self.buffer.len();
        self.append(data.into());
        standard_base64(&mut self.buffer, start);
        Some(self.end())
    }

    /// The key of a part of another kind that is identified by a text.
    pub(super) fn text_of_kind<'a>(
        &mut self,
        kind: PartKind,
        role: Role,
        source: impl Into<TextValue<'a>>,
    ) -> Option<PartKey> {
        self.begin(kind, role);
        let start = self.buffer.len();
        self.append(source.into());
        trim(&mut self.buffer, start);
        Some(self.end())
    }

    /// The key of any other JSON value: members in any order, without cache markers.
    pub(super) fn value(
        &mut self,
        kind: PartKind,
        role: Role,
        value: Value<'_>,
    ) -> Option<PartKey> {
        self.begin(kind, role);
        canonical(&mut self.buffer, value);
        Some(self.end())
    }

    fn arguments(&mut self, text: &str) {
        let text = match text.trim() {
            "" | "null" => "{}",
            text => text,
        };
        // Text that is not JSON was cut off, or is the input of a free-form tool: it is hashed as it is.
        let read = self.arguments.reread(text.as_bytes());
        match read.ok().and_then(|()| self.arguments.root(text.as_bytes())) {
            Some(value) => canonical(&mut self.buffer, value),
            None => self.buffer.extend_from_slice(text.as_bytes()),
        }
    }

    fn append(&mut self, source: TextValue<'_>) {
        match source {
            TextValue::Text(text) => self.buffer.extend_from_slice(text.as_bytes()),
            TextValue::Value(value) => {
                if !value.append_text(&mut self.buffer) {
                    self.buffer.extend_from_slice(value.raw());
                }
            }
        }
    }

    fn begin(&mut self, kind: PartKind, role: Role) {
        // Keys are stored, so the numbers of kinds and roles must never change.
        self.buffer.clear();
        self.buffer.reserve(SHORT);
        self.buffer.extend_from_slice(&[kind as u8, role as u8]);
    }

    fn word(&mut self, word: &str) {
        sized(&mut self.buffer, |out| out.extend_from_slice(word.as_bytes()));
    }

    fn end(&self) -> PartKey {
        PartKey(xxh3_128(&self.buffer))
    }
}

fn canonical(out: &mut Vec<u8>, value: Value<'_>) {
    // No white space, escapes resolved, numbers as doubles (because half of all clients know no
    // others), members in any order, without cache markers and `null`s, which clients add and drop.
    // Recursion is limited by the depth of the JSON reader.
    match value.kind() {
        Kind::Null | Kind::Bool => out.extend_from_slice(value.raw()),
        Kind::Number => match value.as_f64() {
            Some(number) => out.extend_from_slice(&(number + 0.0).to_bits().to_le_bytes()),
            None => out.extend_from_slice(value.raw()),
        },
        Kind::String => sized(out, |out| {
            value.append_text(out);
        }),
        Kind::Array => {
            out.push(b'[');
            for item in value.items() {
                canonical(out, item);
                out.push(b',');
            }
            out.push(b']');
        }
        Kind::Object => {
            let start = out.len();
            let mut sum = 0u128;
            for (key, value) in value.entries() {
                if value.is_null() || CACHE_MARKERS.iter().any(|name| key.is(name)) {
                    continue;
                }
                sized(out, |out| key.append_text(out));
                canonical(out, value);
                sum = sum.wrapping_add(xxh3_128(&out[start..]));
                out.truncate(start);
            }
            out.push(b'{');
            out.extend_from_slice(&sum.to_le_bytes());
        }
    }
}

fn sized(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    // Writes data with its length in front, so that what follows cannot be confused with it.
    out.extend_from_slice(&[b'"', 0, 0, 0, 0]);
    let start = out.len();
    write(out);
    let length = (out.len() - start) as u32;
    out[start - 4..start].copy_from_slice(&length.to_le_bytes());
}

fn trim(out: &mut Vec<u8>, start: usize) {
    let mut text = out[start..].trim_ascii();
    let ends = [text.first(), text.last()];
    if !ends.into_iter().flatten().all(u8::is_ascii) {
        // Unicode white space is rare, so the slower search is only made here.
        text = std::str::from_utf8(text).map_or(text, |unicode| unicode.trim().as_bytes());
    }
    let leading = text.as_ptr() as usize - out[start..].as_ptr() as usize;
    let length = text.len();
    out.truncate(start + leading + length);
    out.drain(start..start + leading);
}

fn standard_base64(out: &mut Vec<u8>, start: usize) {
    let padding = out[start..].iter().rev().take_while(|byte| **byte == b'=').count();
    out.truncate(out.len() - padding);
    standard_alphabet(&mut out[start..]);
}

pub(crate) fn standard_alphabet(base64: &mut [u8]) {
    for byte in base64 {
        *byte = match *byte {
            b'-' => b'+',
            b'_' => b'/',
            other => other,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_json(text: &str) -> Option<PartKey> {
        let document = Document::read(text.as_bytes()).unwrap();
        let value = document.root(text.as_bytes()).unwrap();
        Keyer::default().tool_call(Some("id"), "f", ToolArguments::Value(value))
    }

    fn of_text(text: &str) -> Option<PartKey> {
        Keyer::default().tool_call(Some("id"), "f", ToolArguments::Text(text))
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
    fn differences_in_how_clients_write_arguments_do_not_change_key() {
        let key = of_json(r#"{"a":1}"#);
        assert_eq!(of_json(r#"{"a":1,"b":null}"#), key);
        assert_eq!(of_json(r#""{\"a\": 1}""#), key);
        assert_eq!(of_text(r#"{"a":1.0}"#), key);
        assert_eq!(of_text("null"), of_text(" "));
        assert_eq!(of_json(r#"{"n":-0}"#), of_json(r#"{"n":0}"#));
        // As a client without 64-bit integers writes it again.
        assert_eq!(
            of_text(r#"{"n":12345678901234567890}"#),
            of_text(r#"{"n":12345678901234567000}"#)
        );
    }

    #[test]
    fn different_content_has_another_key() {
        for (one, other) in [
            (r#"["a\",\"b"]"#, r#"["a","b"]"#),
            (r#"[["a"],"b"]"#, r#"[["a","b"]]"#),
            (r#"{"a":{"b":1}}"#, r#"{"a":{},"b":1}"#),
            (r#"{"a":"b"}"#, r#"{"b":"a"}"#),
            (r#"["1"]"#, "[1]"),
            (r#"["true"]"#, "[true]"),
            (r#"[[]]"#, r#"[[],[]]"#),
        ] {
            assert_ne!(of_json(one), of_json(other), "{one} {other}");
        }
        let mut keyer = Keyer::default();
        let nothing = ToolArguments::Text("");
        let call = keyer.tool_call(Some("a"), "bc", nothing);
        assert_ne!(keyer.tool_call(Some("ab"), "c", nothing), call);
    }

    /// Keys are stored. If one of these changes, no stored key can be found any more.
    #[test]
    fn part_keys_never_change() {
        let mut keyer = Keyer::default();
        let text = keyer.text(Role::User, "hello").unwrap();
        assert_eq!(text.to_string(), "202c6730729b6a85dbf29f3f86ae5db5");
        assert_eq!(
            of_json(r#"{"a":[1,"x",true]}"#).unwrap().to_string(),
            "7ac5d9921abfbe716c7f96331ad74273"
        );
    }

    #[test]
    fn outer_white_space_does_not_count() {
        let mut keyer = Keyer::default();
        let key = keyer.text(Role::User, "hello");
        assert_eq!(keyer.text(Role::User, " hello\n"), key);
        assert_eq!(keyer.text(Role::User, "\u{a0} hello \u{3000}\n"), key);
        assert_ne!(keyer.text(Role::User, "é"), keyer.text(Role::User, "è"));
        assert_ne!(keyer.text(Role::Assistant, "hello"), key);
        assert_eq!(keyer.text(Role::User, " \n"), None);
    }

    #[test]
    fn blocks_or_string_are_one_result() {
        let mut keyer = Keyer::default();
        let one = keyer.tool_result("t", ["ab\n"]);
        assert_eq!(keyer.tool_result("t", ["a", "b"]), one);
        assert_ne!(keyer.tool_result("u", ["ab"]), one);
    }

    #[test]
    fn base64_alphabets_are_one_picture() {
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
        assert_eq!(json, format!("\"{:032x}\"", chain.0));
        assert_eq!(PartKey(0xab).to_string(), format!("{:032x}", 0xab));
        assert_eq!(serde_json::from_str::<Chain>(&json).unwrap(), chain);
    }
}
