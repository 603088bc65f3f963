//! Edits that insert or remove reasoning items in Responses (`docs/protocols.md` 3.2, 3.5).
//!
//! The provider pairs reasoning with the item that it led to by their ids, if both have one and it stores
//! them. So an encrypted item is put back with its id only beside an item that has its own id, and if one is
//! removed, the items that it led to lose their ids.

use super::beside::{Removal, edit, first_member, insert, room, runs};
use super::blocks::ReasoningInsert;
use super::ranges::shifted;
use crate::dialect::{Conversation, Message, PartKind, Role, Span};
use crate::wire::json::{Document, Kind, Value};
use crate::wire::splice::Edit;

/// Inserts items before or after an item. `stored`: the provider stores its responses.
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

/// A reasoning item in the form that is accepted here: with its id beside an item that has one, or if the
/// provider knows it only by its id. `None` if it is useless without data that the provider did not store.
fn fitting(raw: &str, has_id: bool, stored: bool) -> Option<String> {
    let document = Document::read(raw.as_bytes()).ok()?;
    let item = document.root(raw.as_bytes())?;
    let is_encrypted = item.get_any(&["encrypted_content"]).is_some();
    // Open models: the text itself.
    let is_open = item.get("content").is_some_and(|content| content.items().next().is_some());
    let is_known = stored && item.get_any(&["id"]).is_some();
    if !is_encrypted && !is_open && !is_known {
        return None;
    }
    let mut fitting = raw.to_owned();
    if !has_id && (is_encrypted || !is_known) {
        for at in members(item, "id", raw.as_bytes(), 0)?.into_iter().rev() {
            fitting.replace_range(at.start..at.end, "");
        }
    }
    Some(fitting)
}

/// The ranges of the members with this name, each with a comma; `None` if nothing else would be left.
/// `offset` is added to them.
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

/// Types of items that may have no id. The provider's own tools need one.
const FREE: &[&str] =
    &["message", "function_call", "custom_tool_call", "shell_call", "apply_patch_call"];

/// Edits that remove the ids of items that the reasoning at `message` led to, so that the provider does not
/// refuse them: "was provided without its required 'reasoning' item". `None` if it would refuse. If it was
/// told not to store, it rarely checks, but may: those ids are removed where possible, too.
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
            continue; // a tool result is paired only with calls
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

/// Responses: requests encrypted reasoning; `None` if it is already requested, or `include` is not a list.
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
