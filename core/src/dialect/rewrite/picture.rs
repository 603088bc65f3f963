//! Replaces an image or document: its block becomes a text block, and keeps its cache marker.
//!
//! The rest of the message stays byte for byte. Must not know why it is replaced.

use super::beside::{edit, literal};
use super::ranges::within;
use crate::dialect::key::CACHE_MARKERS;
use crate::dialect::{Dialect, Message, Role};
use crate::wire::json::{Document, Kind, Value};
use crate::wire::splice::Edit;

/// The edit for part `at` of a message; none if the image is inside a tool result, shares its block, or is
/// signed.
pub(super) fn cut(
    dialect: Dialect,
    message: &Message,
    at: usize,
    body: &[u8],
    text: &str,
) -> Vec<Edit> {
    let part = &message.parts[at];
    // The part itself is one of those that it overlaps with.
    let overlapping = message
        .parts
        .iter()
        .filter(|other| within(other.span, part.span) || within(part.span, other.span));
    let is_shared = overlapping.count() > 1;
    if message.role != Role::User || is_shared || part.signature.is_some() {
        return Vec::new();
    }
    let raw = part.span.slice(body);
    let document = Document::read(raw).unwrap_or_default();
    let Some(root) = document.root(raw).filter(|root| root.kind() == Kind::Object) else {
        return Vec::new();
    };
    vec![edit(part.span, text_block(dialect, root, text))]
}

/// A text block in place of another block, with its cache marker.
pub(in crate::dialect) fn text_block(dialect: Dialect, block: Value<'_>, text: &str) -> String {
    let kind = match dialect {
        Dialect::Anthropic | Dialect::OpenaiChat => "\"type\":\"text\",",
        Dialect::OpenaiResponses => "\"type\":\"input_text\",",
        Dialect::Gemini => "",
    };
    let mut replacement = format!("{{{kind}\"text\":{}", literal(text));
    for marker in CACHE_MARKERS {
        if let Some(value) = block.get(marker).filter(|value| !value.is_null()) {
            replacement
                .push_str(&format!(",\"{marker}\":{}", String::from_utf8_lossy(value.raw())));
        }
    }
    replacement.push('}');
    replacement
}
