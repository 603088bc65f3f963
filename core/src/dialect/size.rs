//! The memory for reading a request: estimates its parts and bytes before they are made, and shortens names
//! that are too long to store.
//!
//! A part takes a few hundred bytes whatever its content, so a body of many small parts takes many times its
//! length.

use xxhash_rust::xxh3::xxh3_128;

use super::{Message, Part};
use crate::wire::json::{Document, Kind, Value};

/// Most parts of a request that is read.
pub const MOST_PARTS: usize = 200_000;
/// Longest name of a model that is kept as it is, bytes.
const LONGEST_NAME: usize = 128;

/// Memory for a part: itself, its ranges and key, and what measuring and planning make from it.
const PART: usize = size_of::<Part>() + size_of::<Message>() + 512;
/// How many levels of values below a request can be parts or hold them.
const DEPTH: usize = 4;
/// Memory for a value that is not a part: a range in the part that contains it.
const VALUE: usize = 24;

/// How much memory a request takes once it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestSize {
    /// Parts, at most.
    pub parts: usize,
    /// Bytes of memory besides the body and the document, roughly.
    pub bytes: usize,
}

impl RequestSize {
    /// The size for a document: parts are the values in the arrays of its members and of their items. `known`: what is
    /// counted in elements that were passed over.
    pub fn from_document(document: &Document, body: &[u8], known: usize) -> Self {
        let Some(root) = document.root(body) else { return Self { parts: 0, bytes: 0 } };
        let parts = items(root, DEPTH) + known;
        Self { parts, bytes: parts * PART + document.values() * VALUE }
    }
}

/// What is counted in an element of a list that is in so many arrays and objects.
pub(super) fn items_in(element: Value<'_>, depth: usize) -> usize {
    inner_items(element, DEPTH.saturating_sub(depth))
}

fn items(value: Value<'_>, depth: usize) -> usize {
    match value.kind() {
        Kind::Object => value.entries().map(|(_, value)| inner_items(value, depth)).sum(),
        Kind::Array => value.items().map(|item| 1 + inner_items(item, depth)).sum(),
        Kind::Null | Kind::Bool | Kind::Number | Kind::String => 0,
    }
}

#[inline]
fn inner_items(value: Value<'_>, depth: usize) -> usize {
    // Most values are strings, for which nothing is called.
    match (value.kind(), depth.checked_sub(1)) {
        (Kind::Object | Kind::Array, Some(depth)) => items(value, depth),
        _ => 0,
    }
}

/// A model's name as it is stored: a name that is too long is replaced by its hash, because stored keys
/// contain names.
pub(super) fn name(name: Box<str>) -> Box<str> {
    match name.len() > LONGEST_NAME {
        true => format!("long-name-{:032x}", xxh3_128(name.as_bytes())).into(),
        false => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::{self, Dialect};

    fn parts(dialect: Dialect, body: &str) -> (usize, usize) {
        let document = Document::read(body.as_bytes()).unwrap();
        let conversation = dialect::read(dialect, "", body.as_bytes());
        (
            RequestSize::from_document(&document, body.as_bytes(), 0).parts,
            conversation.all_parts().count(),
        )
    }

    #[test]
    fn part_estimate_is_never_too_low() {
        let text = r#"{"type":"text","text":"a"}"#;
        let many = [text; 9].join(",");
        for (dialect, body) in [
            (Dialect::Anthropic, format!(r#"{{"system":[{many}],"messages":[{{"role":"user","content":[{many}]}}]}}"#)),
            (Dialect::OpenaiChat, r#"{"messages":[1,2,"a",{"role":"user","content":["a",3]}]}"#.to_owned()),
            (Dialect::OpenaiResponses, format!(r#"{{"input":[{{"role":"user","content":[{many}]}},7]}}"#)),
            (Dialect::Gemini, r#"{"systemInstruction":{"parts":[{"text":"a"},{"text":"b"}]},"tools":[{"functionDeclarations":[{},{}]}],"contents":[{"parts":[{"text":"a"},{"text":"b"}]}]}"#.to_owned()),
        ] {
            let (estimated, made) = parts(dialect, &body);
            assert!(estimated >= made, "{dialect:?}: {estimated} estimated, {made} made");
            assert!(made > 1, "{dialect:?}: {estimated} estimated, {made} made");
        }
    }

    #[test]
    fn model_name_that_is_too_long_is_replaced_by_its_hash() {
        let read = |length: usize| {
            let body = format!(r#"{{"model":"{}","messages":[]}}"#, "m".repeat(length));
            dialect::read(Dialect::OpenaiChat, "", body.as_bytes()).model.unwrap()
        };
        assert_eq!(read(LONGEST_NAME).len(), LONGEST_NAME, "at the limit");
        let hashed = read(LONGEST_NAME + 1);
        assert!(hashed.len() < LONGEST_NAME);
        assert!(hashed.starts_with("long-name-"));
        assert_ne!(hashed, read(1 << 20), "two long names are two models");
    }
}
