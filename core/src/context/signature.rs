//! The identity of a block of reasoning, taken from the block as it was received: its signature, else its text.
//!
//! A client's own block has the same identity ([`Part::reasoning_key`](crate::dialect::Part::reasoning_key)). Pure.

use crate::dialect::PartKey;
use crate::wire::json::Document;

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

/// What [`Part::reasoning_key`](crate::dialect::Part::reasoning_key) hashes, taken from a block as it was
/// received: its signature, else its text, as a raw JSON string without quotes.
pub fn literal(raw: &str) -> Option<String> {
    let document = Document::read(raw.as_bytes()).ok()?;
    let root = document.root(raw.as_bytes())?;
    let found = root.get_any(&SIGNATURE_MEMBERS).or_else(|| root.get_any(&TEXT_MEMBERS))?;
    let literal = std::str::from_utf8(found.raw()).ok()?;
    Some(literal.strip_prefix('"')?.strip_suffix('"')?.to_owned())
}
