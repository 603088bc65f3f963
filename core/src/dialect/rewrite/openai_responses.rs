//! Which bytes change when reasoning items come or go in Responses (`docs/protocols.md` 3.2, 3.5).
//!
//! The provider pairs reasoning with what it led to by their ids, where both have one and it keeps
//! them: sealed items go back with their id only beside one that has its own, and when one leaves,
//! those it led to lose theirs.

use super::beside::{Removal, edit, first_member, insert, room, runs};
use super::{Conversation, Message, PartKind, ReasoningInsert, Role, Span, shifted};
use crate::wire::json::{Document, Kind, Value};
use crate::wire::splice::Edit;

/// Items before an item, or after it. `stored`: the provider keeps what it said.
pub(super) fn put_back(
    message: &Message,
    item: Value<'_>,
    stored: bool,
    blocks: &[ReasoningInsert<'_>],
) -> Vec<Edit> {
    let has_id = item.get_any(&["id"]).is_some();
    let (mut before, mut after) = (String::new(), String::new());
    for block in blocks {
        let Some(raw) = fitting(block.raw, has_id, stored) else { continue };
        if block.before > 0 && block.before >= message.parts.len() {
            after.extend([",", &raw]);
        } else {
            before.extend([&raw, ","]);
        }
    }
    let edits = [insert(message.span.start, before), insert(message.span.end, after)];
    edits.into_iter().filter(|edit| !edit.with.is_empty()).collect()
}

/// A reasoning item as it is understood here: with its id beside an item that has one, or where the
/// provider knows it by its id alone. `None` where it says nothing without what the provider did not
/// keep.
fn fitting(raw: &str, has_id: bool, stored: bool) -> Option<String> {
    let document = Document::read(raw.as_bytes()).ok()?;
    let item = document.root(raw.as_bytes())?;
    let is_sealed = item.get_any(&["encrypted_content"]).is_some();
    // Open models: the words themselves.
    let is_open = item.get("content").is_some_and(|content| content.items().next().is_some());
    let is_known = stored && item.get_any(&["id"]).is_some();
    if !is_sealed && !is_open && !is_known {
        return None;
    }
    let mut fitting = raw.to_owned();
    if !has_id && (is_sealed || !is_known) {
        for at in members(item, "id", raw.as_bytes(), 0)?.into_iter().rev() {
            fitting.replace_range(at.start..at.end, "");
        }
    }
    Some(fitting)
}

/// The members of that name, each with a comma, where they stand in `body`; `None` where nothing
/// else would be left.
fn members(object: Value<'_>, name: &str, body: &[u8], offset: usize) -> Option<Vec<Span>> {
    let named = object.entries().filter(|(key, _)| key.is(name));
    let named =
        named.map(|(key, value)| shifted(Span::new(key.span().start, value.span().end), offset));
    let gone = runs(body, named.collect()).into_iter().map(|run| match room(body, run)? {
        Removal::Shared(at) => Some(at),
        Removal::Alone(_) => None,
    });
    gone.collect()
}

/// Items that may come without an id. The provider's own tools may not.
const FREE: &[&str] =
    &["message", "function_call", "custom_tool_call", "shell_call", "apply_patch_call"];

/// Edits that take the ids off what the reasoning at `message` led to, so that the provider does not
/// ask for it: "was provided without its required 'reasoning' item". `None` where it would ask. What it
/// was told not to keep it seldom misses, but it may: those ids go too, as far as they can.
pub(super) fn unbind(
    conversation: &Conversation,
    body: &[u8],
    message: usize,
) -> Option<Vec<Edit>> {
    let is_kept = conversation.stored != Some(false);
    let mut edits = Vec::new();
    for next in conversation.messages.get(message + 1..)? {
        let reasons = next.parts.iter().any(|part| part.kind == PartKind::Reasoning);
        if reasons || matches!(next.role, Role::User | Role::System) {
            break;
        }
        if next.role == Role::Tool {
            continue; // what the client says is paired with calls alone
        }
        let raw = next.span.of(body);
        let document = Document::read(raw).unwrap_or_default();
        let Some(item) = document.root(raw).filter(|item| item.get_any(&["id"]).is_some()) else {
            continue;
        };
        let kind = item.get_text("type").unwrap_or("message".into());
        let is_call = next.parts.iter().any(|part| part.kind == PartKind::ToolCall);
        let is_named = !is_call || item.get_any(&["call_id"]).is_some();
        let unknown =
            next.parts.iter().any(|it| it.kind == PartKind::Opaque && it.span == next.span);
        if !FREE.contains(&&*kind) || !is_named || unknown {
            if is_kept {
                return None;
            }
            continue;
        }
        let gone = members(item, "id", body, next.span.start)?;
        edits.extend(gone.into_iter().map(|at| edit(at, "")));
    }
    Some(edits)
}

/// Responses: asks for reasoning's encrypted content; `None` where it is asked for already, or
/// `include` is no list.
pub fn include_encrypted_reasoning(body: &[u8]) -> Option<Edit> {
    const WANTED: &str = "reasoning.encrypted_content";
    let document = Document::read(body).ok()?;
    let root = document.root(body)?;
    let list = match root.get("include") {
        None => {
            let member = format!("\"include\":[\"{WANTED}\"]");
            return first_member(body, root.span().start, &member);
        }
        Some(null) if null.is_null() => {
            return Some(edit(null.span(), format!("[\"{WANTED}\"]")));
        }
        Some(list) => list,
    };
    let is_there = |item: Value<'_>| item.text().is_some_and(|text| text == WANTED);
    if list.kind() != Kind::Array || list.items().any(is_there) {
        return None;
    }
    let comma = if list.items().next().is_some() { "," } else { "" };
    Some(insert(list.span().start + 1, format!("\"{WANTED}\"{comma}")))
}
