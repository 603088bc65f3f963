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

pub(super) fn put_back(
    message: &Message,
    item: Value<'_>,
    stored: bool,
    blocks: &[ReasoningInsert<'_>],
) -> Vec<Edit> {
    let has_id = item.get_any(&["id"]).is_some();
    let mut preceding = String::new();
    let mut following = String::new();
    for block in blocks {
        let Some(raw) = fitting(block.raw, has_id, stored) else { continue };
        if block.before > 0 && block.before >= message.parts.len() {
            following.extend([",", &raw]);
        } else {
            preceding.extend([&raw, ","]);
        }
    }
    let edits = [insert(message.span.start, preceding), insert(message.span.end, following)];
    edits.into_iter().filter(|edit| !edit.with.is_empty()).collect()
}

fn fitting(raw: &str, has_id: bool, stored: bool) -> Option<String> {
    let document = Document::read(raw.as_bytes()).ok()?;
    let item = document.root(raw.as_bytes())?;
    // Beside an item that has its id the provider expects one, and without encrypted content it
    // knows the reasoning only by its id.
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
    let spans = runs(body, named.collect()).into_iter().map(|run| match room(body, run)? {
        Removal::Shared(at) => Some(at),
        Removal::Alone(_) => None,
    });
    spans.collect()
}

/// Types of items that may have no id. The provider's own tools need one.
const FREE: &[&str] =
    &["message", "function_call", "custom_tool_call", "shell_call", "apply_patch_call"];

pub(super) fn unbind(
    conversation: &Conversation,
    body: &[u8],
    message: usize,
) -> Option<Vec<Edit>> {
    // The provider would refuse them: "was provided without its required 'reasoning' item". If it
    // was told not to store, it rarely checks, but may: those ids are removed where possible, too.
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
        let raw = next.span.slice(body);
        let document = Document::read(raw).unwrap_or_default();
        let Some(item) = document.root(raw).filter(|item| item.get_any(&["id"]).is_some()) else {
            continue;
        };
        let kind = item.get_text("type").unwrap_or("message".into());
        let is_call = next.parts.iter().any(|part| part.kind == PartKind::ToolCall);
        let is_named = !is_call || item.get_any(&["call_id"]).is_some();
        let is_unknown =
            next.parts.iter().any(|part| part.kind == PartKind::Opaque && part.span == next.span);
        if !FREE.contains(&&*kind) || !is_named || is_unknown {
            if is_kept {
                return None;
            }
            continue;
        }
        for id in members(item, "id", body, next.span.start)? {
            edits.push(edit(id, ""));
        }
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
    if list.kind() != Kind::Array || list.items().any(|item| item.text().as_deref() == Some(WANTED))
    {
        return None;
    }
    let comma = if list.items().next().is_some() { "," } else { "" };
    Some(insert(list.span().start + 1, format!("\"{WANTED}\"{comma}")))
}
