//! Words in place of a picture or document.
//!
//! The block keeps its place and its cache marker. Must not decide which one.

use crate::dialect::rewrite::{Removal, edit, room, within, words};
use crate::dialect::{Conversation, Dialect, Part, PartKind};
use crate::wire::json::{Document, Kind};
use crate::wire::splice::Edit;

/// The edit that puts words in place of a picture or document; `None` where it is no block of a list, or none.
pub fn edits(conversation: &Conversation, body: &[u8], part: &Part, text: &str) -> Option<Edit> {
    if !matches!(part.kind, PartKind::Image | PartKind::Document) {
        return None;
    }
    let raw = part.span.of(body);
    let document = Document::read(raw).ok()?;
    let block = document.root(raw).filter(|block| block.kind() == Kind::Object)?;
    let shared = room(body, part.span)?;
    if matches!(&shared, Removal::Alone(list) if list.of(body).first() != Some(&b'[')) {
        return None;
    }
    // In an answer of Gemini's functions nothing but media may stand.
    let is_in_response = conversation.dialect == Dialect::Gemini
        && conversation.parts().any(|other| {
            other.kind == PartKind::ToolResult
                && other.span != part.span
                && within(part.span, other.span)
        });
    if is_in_response {
        return Some(match shared {
            Removal::Shared(at) => edit(at, ""),
            Removal::Alone(at) => edit(at, "[]"),
        });
    }
    Some(edit(part.span, words(conversation.dialect, block, text)))
}
