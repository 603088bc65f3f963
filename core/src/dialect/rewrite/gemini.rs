//! Which bytes change in Gemini's contents: a response, a thought, a part's signature.
//!
//! A response stays an object (`docs/protocols.md` 5.2), a failure stays one; a signature goes back on
//! the part it came with (`docs/protocols.md` 5.4). Both key styles.

use super::beside::{Removal, edit, literal, room, runs, set};
use super::{Message, Part, PartKind, ReasoningInsert, Span, around, between, shifted};
use crate::wire::json::{Document, Kind, Value};
use crate::wire::splice::Edit;

/// Replaces the response that stands at `content`; `drops`: the pictures beside it go.
pub(super) fn cut(part: &Part, body: &[u8], content: Span, text: &str, drops: bool) -> Vec<Edit> {
    // A response with an `error` says that the tool failed.
    let name = if part.is_error { "error" } else { "output" };
    let mut edits = vec![edit(content, format!("{{\"{name}\":{}}}", literal(text)))];
    if drops {
        let raw = part.span.of(body);
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

/// Thoughts between the parts of a content.
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
        // One part in place of a list, as Google's own parser has it.
        Kind::Object => around(at, "", "", blocks),
        Kind::Null | Kind::Bool | Kind::Number | Kind::String => Vec::new(),
    }
}

/// A signature on a part. Not on one that is not understood: it would be taken for a thought.
pub(super) fn seal(part: &Part, body: &[u8], signature: &str) -> Option<Edit> {
    if part.kind == PartKind::Opaque && part.texts.first() == Some(&part.span) {
        return None;
    }
    let raw = part.span.of(body);
    let document = Document::read(raw).ok()?;
    let has_snake = document.root(raw)?.get("thought_signature").is_some();
    let name = if has_snake { "thought_signature" } else { "thoughtSignature" };
    set(body, part.span, &[name], &literal(signature))
}
