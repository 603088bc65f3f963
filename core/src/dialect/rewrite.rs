//! Makes edits: which bytes change if a result is cut, or reasoning is put back or removed.
//!
//! Returns disjoint edits of the body that a conversation was read from; everything else stays byte for byte.
//! Never decides whether to change anything; if the structure of the body does not allow a change, there is
//! no edit. Must not know policy, and does not panic. The rules are in `rewrite/testing/invariants.rs`.

mod anthropic;
mod beside;
mod blocks;
mod compact;
mod diagnosis;
mod display;
mod gemini;
mod inject;
#[cfg(any(test, fuzzing))]
#[path = "rewrite/testing/invariants.rs"]
pub mod invariants;
mod listed;
mod openai_chat;
mod openai_responses;
mod picture;
mod ranges;

pub(crate) use blocks::ReasoningInsert;
pub(super) use compact::message;
pub use compact::{compact, continued, end_before, with_boundary, with_boundary_moved};
pub use diagnosis::{diagnose, hide_diagnosis, mentions_diagnosis};
pub use display::show_thinking;
pub use inject::inject;
#[cfg(any(test, fuzzing))]
pub use invariants::fuzz;
pub use openai_responses::include_encrypted_reasoning;

use super::{Conversation, Dialect, Part, PartIndex, PartKind, Role};
use crate::wire::json::{Document, Kind};
use crate::wire::splice::Edit;
pub(super) use beside::{
    Removal, edit, first_member, insert, literal, room, runs, set, without_member,
};
pub(super) use picture::text_block;
pub(super) use ranges::within;
use serde::de::IgnoredAny;

/// What replaces a cut tool result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CutContent<'a> {
    /// The text. Not empty, because providers refuse empty blocks.
    pub text: &'a str,
    /// Whether images and documents in it are kept.
    pub keep_media: bool,
}

/// Edits that replace a tool result's content, but nothing else of its block. `at`: message and part. Cache
/// markers inside the content are kept. Empty if the part has no content that can be replaced
/// ([`Part::content`]).
pub(crate) fn cut(
    conversation: &Conversation,
    body: &[u8],
    at: PartIndex,
    cut: &CutContent<'_>,
) -> Vec<Edit> {
    let Some(message) = conversation.messages.get(at.message) else { return Vec::new() };
    let Some(part) = message.parts.get(at.part) else { return Vec::new() };
    let Some(content) = part.content else { return Vec::new() };
    // The parts inside a result come after it.
    let inner = &message.parts[at.part + 1..];
    let inner = &inner[..inner.iter().take_while(|other| within(other.span, part.span)).count()];
    let kept_parts = if cut.keep_media { inner } else { &[] };
    let kind = match conversation.dialect {
        Dialect::Gemini => {
            let drops_media = kept_parts.len() < inner.len();
            return gemini::cut(part, body, content, cut.text, drops_media);
        }
        Dialect::Anthropic | Dialect::OpenaiChat => "text",
        Dialect::OpenaiResponses => "input_text",
    };
    listed::cut(&listed::ToolAnswer { part, content, kept: kept_parts, kind }, body, cut.text)
}

/// The edit that replaces the text of a message of the user. `None` if the part is no such text, or has several.
pub(crate) fn cut_text(part: &Part, text: &str) -> Option<Edit> {
    if part.kind != PartKind::Text || part.role != Role::User || part.signature.is_some() {
        return None;
    }
    let [span] = part.texts[..] else { return None };
    Some(beside::edit(span, beside::literal(text)))
}

/// The edit that replaces an image of the user by text. `at`: message and part. Empty if there is no such
/// image, or it is inside a tool result.
pub(crate) fn cut_picture(
    conversation: &Conversation,
    body: &[u8],
    at: PartIndex,
    text: &str,
) -> Vec<Edit> {
    let Some(message) = conversation.messages.get(at.message) else { return Vec::new() };
    match message.parts.get(at.part) {
        Some(part) if part.kind == PartKind::Image => {
            picture::cut(conversation.dialect, message, at.part, body, text)
        }
        _ => Vec::new(),
    }
}

/// Edits that put blocks back into message `message` (in Responses, each item is a message here), as they
/// were received, at their places. In Chat Completions they become members of the message, or come first in
/// its content, whatever `before` says.
pub(crate) fn put_back(
    conversation: &Conversation,
    body: &[u8],
    message: usize,
    blocks: &[ReasoningInsert<'_>],
) -> Vec<Edit> {
    let Some(message) = conversation.messages.get(message) else { return Vec::new() };
    let blocks: Vec<ReasoningInsert<'_>> =
        blocks.iter().filter(|block| is_object(block.raw)).copied().collect();
    // In other dialects reasoning is inside a message; here the adjacent item may be a tool result.
    let is_beside = conversation.dialect == Dialect::OpenaiResponses;
    if blocks.is_empty() || !(is_beside || message.role == Role::Assistant) {
        return Vec::new();
    }
    let raw = message.span.slice(body);
    let document = Document::read(raw).unwrap_or_default();
    let Some(root) = document.root(raw).filter(|root| root.kind() == Kind::Object) else {
        return Vec::new();
    };
    match conversation.dialect {
        Dialect::Anthropic => anthropic::put_back(message, root, &blocks),
        Dialect::OpenaiChat => openai_chat::put_back(message, root, body, &blocks),
        Dialect::OpenaiResponses => {
            let stored = conversation.stored != Some(false);
            openai_responses::put_back(message, root, stored, &blocks)
        }
        Dialect::Gemini => gemini::put_back(message, root, &blocks),
    }
}

/// The edit that puts a signature back on a part: in Gemini any part, in Chat Completions a call, for Google
/// (`docs/protocols.md` 5.4). `None` if there is one, or the part is not an object.
pub(crate) fn restore_signature(
    conversation: &Conversation,
    body: &[u8],
    at: PartIndex,
    signature: &str,
) -> Option<Edit> {
    let message = conversation.messages.get(at.message)?;
    let part = message.parts.get(at.part)?;
    if message.role != Role::Assistant || part.signature.is_some() {
        return None;
    }
    match conversation.dialect {
        Dialect::Gemini => gemini::restore_signature(part, body, signature),
        Dialect::OpenaiChat => openai_chat::restore_signature(part, body, signature),
        Dialect::Anthropic | Dialect::OpenaiResponses => None,
    }
}

/// Edits that remove reasoning from a message; `parts` are the indexes of its reasoning parts. In Responses
/// they also remove the ids of items that the reasoning led to, where the provider would ask for the
/// reasoning. In Anthropic's dialect, a message without anything else is removed as a whole: its neighbours
/// may have the same role (`docs/protocols.md` 1.2). `None` if a message would become empty or invalid, or a
/// part is not reasoning.
pub(crate) fn take_out(
    conversation: &Conversation,
    body: &[u8],
    message: usize,
    parts: &[usize],
) -> Option<Vec<Edit>> {
    let index = message;
    let message = conversation.messages.get(index)?;
    let mut goes = vec![false; message.parts.len()];
    for part in parts {
        *goes.get_mut(*part)? = true;
    }
    let (removed, rest): (Vec<_>, Vec<_>) =
        message.parts.iter().zip(goes).partition(|(_, goes)| *goes);
    if removed.is_empty() || removed.iter().any(|(part, _)| part.kind != PartKind::Reasoning) {
        return None;
    }
    let dialect = conversation.dialect;
    // Two neighbours of one role are allowed there, an empty message is not.
    if dialect == Dialect::Anthropic && rest.is_empty() && index > 0 {
        return match beside::room(body, message.span)? {
            Removal::Shared(at) => Some(vec![edit(at, "")]),
            Removal::Alone(_) => None,
        };
    }
    if dialect != Dialect::OpenaiResponses && !rest.iter().any(|(part, _)| has_content(part)) {
        return None;
    }
    let calls = rest.iter().any(|(part, _)| part.kind == PartKind::ToolCall);
    let mut edits = Vec::new();
    for run in beside::runs(body, removed.iter().map(|(part, _)| part.span).collect()) {
        edits.push(match beside::room(body, run)? {
            Removal::Shared(at) => edit(at, ""),
            // Beside calls, content may be absent, but not an empty list (`docs/protocols.md` 2.2).
            Removal::Alone(list) if dialect == Dialect::OpenaiChat && calls => edit(list, "null"),
            Removal::Alone(_) => return None,
        });
    }
    if dialect == Dialect::OpenaiResponses {
        edits.extend(openai_responses::unbind(conversation, body, index)?);
    }
    Some(edits)
}

fn is_object(raw: &str) -> bool {
    // A strict parser must accept it, because the body does.
    raw.trim_start().starts_with('{') && serde_json::from_str::<IgnoredAny>(raw).is_ok()
}

fn has_content(part: &Part) -> bool {
    part.kind != PartKind::Text || part.texts.iter().any(|text| text.len() > 2)
}

#[cfg(test)]
mod tests;
