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
    Some(PartKey::of_signature(&root.get_any(&SIGNATURE_MEMBERS)?.text()?))
}

/// Whether a block of an API compatible with Chat Completions has a signature, at any depth: without it, its text alone is
/// not enough.
pub(super) fn is_signed_within(raw: &str) -> bool {
    let document = Document::read(raw.as_bytes()).unwrap_or_default();
    let Some(root) = document.root(raw.as_bytes()) else { return false };
    for (_, member) in root.entries() {
        for block in member.items() {
            // The signature may stand in an item of a block's summary.
            let is_in_summary =
                block.get("summary").is_some_and(|summary| summary.items().any(is_signed));
            if is_in_summary || is_signed(block) {
                return true;
            }
        }
    }
    false
}

fn is_signed(block: Value<'_>) -> bool {
    let signature = block.get_any(&["signature", "data"]).and_then(|signature| signature.text());
    signature.is_some_and(|signature| !signature.is_empty())
}

/// The same for a block without a signature, too: the hash of its text, as it is written.
pub(super) fn reasoning_key(raw: &str) -> Option<PartKey> {
    signature_key(raw).or_else(|| {
        let document = Document::read(raw.as_bytes()).ok()?;
        Some(PartKey::of_literal(document.root(raw.as_bytes())?.get_any(&TEXT_MEMBERS)?.raw()))
    })
}
