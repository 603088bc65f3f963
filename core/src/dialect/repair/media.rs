//! Words in place of a picture or document.
//!
//! The block keeps its place and its cache marker. Must not decide which one.

use crate::dialect::key::CACHE_MARKERS;
use crate::dialect::rewrite::{Room, edit, literal, room};
use crate::dialect::{Conversation, Dialect, Part, PartKind, Span};
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
    let is_in_list = match &shared {
        Room::Shared(_) => block.kind() == Kind::Object,
        Room::Alone(list) => list.of(body).first() == Some(&b'['),
    };
    if !is_in_list {
        return None;
    }
    // In an answer of Gemini's functions nothing but media may stand.
    let is_in_response = conversation.dialect == Dialect::Gemini
        && conversation.parts().any(|other| {
            other.kind == PartKind::ToolResult
                && other.span != part.span
                && holds(other.span, part.span)
        });
    if is_in_response {
        return Some(match shared {
            Room::Shared(at) => edit(at, ""),
            Room::Alone(at) => edit(at, "[]"),
        });
    }
    let marker = CACHE_MARKERS.iter().find_map(|name| {
        let (key, value) = block.entries().find(|(key, _)| key.is(name))?;
        std::str::from_utf8(raw.get(key.span().start..value.span().end)?).ok()
    });
    let marker = marker.map(|marker| format!(",{marker}")).unwrap_or_default();
    let text = literal(text);
    let with = match conversation.dialect {
        Dialect::Gemini => format!("{{\"text\":{text}}}"),
        Dialect::OpenaiResponses => format!("{{\"type\":\"input_text\",\"text\":{text}{marker}}}"),
        Dialect::Anthropic | Dialect::OpenaiChat => {
            format!("{{\"type\":\"text\",\"text\":{text}{marker}}}")
        }
    };
    Some(edit(part.span, with))
}

fn holds(outer: Span, inner: Span) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}
