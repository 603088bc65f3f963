//! Edits of Gemini's contents: a response, a thought, a part's signature.
//!
//! A response stays an object (`docs/protocols.md` 5.2), and a failure stays a failure; a signature is put
//! back on its own part (`docs/protocols.md` 5.4). Handles both key styles.

use super::beside::{Removal, edit, literal, room, runs, set};
use super::blocks::{ReasoningInsert, around, between};
use super::ranges::shifted;
use crate::dialect::{Message, Part, PartKind, Span};
use crate::wire::json::{Document, Kind, Value};
use crate::wire::splice::Edit;

/// Replaces the response at `content`; `drops`: images in it are removed.
pub(super) fn cut(part: &Part, body: &[u8], content: Span, text: &str, drops: bool) -> Vec<Edit> {
    // A response with an `error` means that the tool failed.
    let name = if part.is_error { "error" } else { "output" };
    let mut edits = vec![edit(content, format!("{{\"{name}\":{}}}", literal(text)))];
    if drops {
        let raw = part.span.slice(body);
        let document = Document::read(raw).unwrap_or_default();
        let response = document
            .root(raw)
            .and_then(|root| root.get_any(&["functionResponse", "function_response"]));
        let members = response.iter().flat_map(Value::entries).filter(|(key, _)| key.is("parts"));
        let members = members.map(|(key, value)| {
            shifted(Span::new(key.span().start, value.span().end), part.span.start)
        });
        for run in runs(body, members.collect()) {
            if let Some(Removal::Shared(at)) = room(body, run) {
                edits.push(edit(at, ""));
            }
        }
    }
    edits
}

pub(super) fn put_back(
    message: &Message,
    root: Value<'_>,
    blocks: &[ReasoningInsert<'_>],
) -> Vec<Edit> {
    let Some(parts) = root.get_any(&["parts"]) else { return Vec::new() };
    let at = shifted(parts.span(), message.span.start);
    match parts.kind() {
        Kind::Array => {
            let items = parts.items().map(|item| shifted(item.span(), message.span.start));
            between(message, at, &items.collect::<Vec<_>>(), blocks)
        }
        // A single part instead of a list, which Google's own parser accepts.
        Kind::Object => around(at, "", "", blocks),
        Kind::Null | Kind::Bool | Kind::Number | Kind::String => Vec::new(),
    }
}

pub(super) fn restore_signature(part: &Part, body: &[u8], signature: &str) -> Option<Edit> {
    // An unknown part with a signature would be taken for a thought.
    if part.kind == PartKind::Opaque && part.texts.first() == Some(&part.span) {
        return None;
    }
    let raw = part.span.slice(body);
    let document = Document::read(raw).ok()?;
    let has_snake = document.root(raw)?.get("thought_signature").is_some();
    let name = if has_snake { "thought_signature" } else { "thoughtSignature" };
    set(body, part.span, &[name], &literal(signature))
}
