//! The identity of a block of reasoning, taken from the block as it was received: its signature, else its text.
//!
//! A client's own block has the same identity ([`Part::reasoning_key`](crate::dialect::Part::reasoning_key)). Pure.

use crate::dialect::PartKey;
use crate::wire::json::{Document, Value};

/// The members of a block that hold its signature, or the encrypted text that stands for it.
const SIGNATURE_MEMBERS: [&str; 4] = ["signature", "data", "encrypted_content", "thoughtSignature"];
/// The members of APIs compatible with Chat Completions, which send reasoning as plain text.
const TEXT_MEMBERS: [&str; 2] = ["reasoning_content", "reasoning"];

/// The key of a block as it was received: the hash of its signature, the same as
/// [`Part::reasoning_key`](crate::dialect::Part::reasoning_key) gives for a client's block.
pub(crate) fn signature_key(raw: &str) -> Option<PartKey> {
    let document = Document::read(raw.as_bytes()).ok()?;
    let root = document.root(raw.as_bytes())?;
    Some(PartKey::of_bytes(root.get_any(&SIGNATURE_MEMBERS)?.text()?.as_bytes()))
}

/// Whether a block of an API compatible with Chat Completions has a signature, at any depth: without it, its text alone is
/// not enough.
pub(super) fn is_signed_within(raw: &str) -> bool {
    let is_signed = |value: Value<'_>| {
        let signed = value.get_any(&["signature", "data"]).and_then(|signature| signature.text());
        signed.is_some_and(|signature| !signature.is_empty())
    };
    let document = Document::read(raw.as_bytes()).unwrap_or_default();
    let members = document
        .root(raw.as_bytes())
        .into_iter()
        .flat_map(|root| root.entries().map(|(_, value)| value).collect::<Vec<_>>());
    members.into_iter().any(|member| {
        let blocks = member.items().flat_map(|block| {
            let inner = block.get("summary");
            inner.iter().flat_map(Value::items).chain([block]).collect::<Vec<_>>()
        });
        blocks.into_iter().any(is_signed)
    })
}

/// What [`Part::reasoning_key`](crate::dialect::Part::reasoning_key) hashes, taken from a block as it was
/// received: its signature, else its text, as a raw JSON string without quotes.
pub fn literal(raw: &str) -> Option<String> {
    let document = Document::read(raw.as_bytes()).ok()?;
    let root = document.root(raw.as_bytes())?;
    let found = root.get_any(&SIGNATURE_MEMBERS).or_else(|| root.get_any(&TEXT_MEMBERS))?;
    let literal = std::str::from_utf8(found.raw()).ok()?;
    Some(literal.strip_prefix('"')?.strip_suffix('"')?.to_owned())
}
