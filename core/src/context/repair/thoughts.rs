//! Reasoning that the provider refuses: the named piece is removed, and if that does not help, all reasoning
//! that the client sends.

use super::refused::RefusedRequest;
use crate::context::plan::DecisionReason;
use crate::context::{Fact, ReasoningAction, ReasoningDecision};
use crate::dialect::repair::path::PathTarget;
use crate::dialect::{Part, PartKey, PartKind, Span};
use crate::wire::json::Document;

pub(super) fn propose(refused: &RefusedRequest<'_>, place: Option<&PathTarget>) -> Vec<Fact> {
    let request = refused.request;
    let conversation = request.conversation;
    let mut was_tried = false;
    let mut thoughts: Vec<(u128, &Part)> = Vec::new();
    for part in conversation.parts().filter(|part| part.kind == PartKind::Reasoning) {
        let Some(about) = part.removal_key() else { continue };
        let decision = refused.known.reasoning_decision(about);
        was_tried |= decision.is_some_and(|decision| {
            decision.exchange == *request.exchange && decision.why == DecisionReason::Refusal
        });
        if !decision.is_some_and(|decision| decision.does == ReasoningAction::Remove) {
            thoughts.push((about, part));
        }
    }
    // Removing the named piece did not help, so all of it goes.
    let mut abouts = if was_tried { Vec::new() } else { named(refused, place, &thoughts) };
    if abouts.is_empty() {
        // If a piece is named that is not the client's, we put it back ourselves.
        let is_named = place.is_some() || refused.refusal.name.is_some();
        if is_named && !was_tried {
            return Vec::new();
        }
        abouts.extend(thoughts.iter().map(|(about, _)| *about));
    }
    abouts.into_iter().map(|about| removal(refused, about)).collect()
}

/// The client's reasoning at the named place, with the named id, or with the named content.
fn named(
    refused: &RefusedRequest<'_>,
    place: Option<&PathTarget>,
    thoughts: &[(u128, &Part)],
) -> Vec<u128> {
    let body = refused.request.body;
    if let Some(name) = refused.refusal.name.as_deref() {
        return thoughts
            .iter()
            .filter(|(_, part)| has_name(part.span.slice(body), name))
            .map(|(about, _)| *about)
            .collect();
    }
    let Some(place) = place else { return Vec::new() };
    // The place is one in the body that was sent, where parts are elsewhere than in the client's.
    let conversation =
        crate::dialect::read(refused.request.conversation.dialect, "/", refused.sent);
    let keys: Vec<u128> = conversation
        .parts()
        .filter(|part| part.kind == PartKind::Reasoning && meets(part.span, place.span))
        .filter_map(|part| part.reasoning_key)
        .collect();
    thoughts
        .iter()
        .filter(|(_, part)| part.reasoning_key.is_some_and(|key| keys.contains(&key)))
        .map(|(about, _)| *about)
        .collect()
}

fn has_name(raw: &[u8], name: &str) -> bool {
    let document = Document::read(raw).unwrap_or_default();
    let Some(root) = document.root(raw) else { return false };
    root.get_text("id").is_some_and(|id| id == name)
        || root.get_text("encrypted_content").is_some_and(|content| abbreviates(name, &content))
}

fn abbreviates(name: &str, content: &str) -> bool {
    // OpenAI names content without an id by its first and last characters: `gAAA...DQ==` (`docs/protocols.md`
    // 3.2).
    let Some((start, end)) = name.split_once("...") else { return false };
    // Without one of the two, the rest would fit too much.
    !start.is_empty() && !end.is_empty() && content.starts_with(start) && content.ends_with(end)
}

pub(super) fn meets(one: Span, two: Span) -> bool {
    one.start <= two.start && two.end <= one.end || two.start <= one.start && one.end <= two.end
}

fn removal(refused: &RefusedRequest<'_>, about: u128) -> Fact {
    Fact::ReasoningDecision(Box::new(ReasoningDecision {
        about: PartKey(about),
        at: refused.request.now,
        exchange: refused.request.exchange.clone(),
        does: ReasoningAction::Remove,
        why: DecisionReason::Refusal,
        shadow: false,
        epoch: None,
    }))
}
