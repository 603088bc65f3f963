//! Reasoning that the provider refuses: the named piece is removed, and if that does not help, all reasoning
//! that the client sends.

use super::refused::RefusedRequest;
use crate::context::plan::DecisionReason;
use crate::context::{Fact, ReasoningAction, ReasoningDecision};
use crate::dialect::repair::path::PathTarget;
use crate::dialect::{Part, PartKey, PartKind, Span};
use crate::wire::json::Document;

/// Decisions to remove reasoning.
pub(super) fn propose(refused: &RefusedRequest<'_>, place: Option<&PathTarget>) -> Vec<Fact> {
    let request = refused.request;
    let conversation = request.conversation;
    let is_out = |about: u128| {
        let decision = refused.known.reasoning_decision(about);
        decision.is_some_and(|decision| decision.does == ReasoningAction::Remove)
    };
    let own = conversation.parts().filter(|part| part.kind == PartKind::Reasoning);
    let own: Vec<(u128, &Part)> =
        own.filter_map(|part| Some((part.removal_key()?, part))).collect();
    let tried = own.iter().any(|(about, _)| {
        let decision = refused.known.reasoning_decision(*about);
        decision.is_some_and(|decision| {
            decision.exchange == *request.exchange && decision.why == DecisionReason::Refusal
        })
    });
    let left: Vec<(u128, &Part)> = own.into_iter().filter(|(about, _)| !is_out(*about)).collect();
    let named = if tried { Vec::new() } else { named(refused, place, &left) };
    let is_named = place.is_some() || refused.refusal.name.is_some();
    let chosen = match named.is_empty() {
        // The named reasoning is not the client's, so we put it back ourselves.
        true if is_named && !tried => Vec::new(),
        true => left.iter().map(|(about, _)| *about).collect(),
        false => named,
    };
    chosen.into_iter().map(|about| out(refused, about)).collect()
}

/// The client's reasoning at the named place, with the named id, or with the named content.
fn named(
    refused: &RefusedRequest<'_>,
    place: Option<&PathTarget>,
    own: &[(u128, &Part)],
) -> Vec<u128> {
    let body = refused.request.body;
    if let Some(name) = refused.refusal.name.as_deref() {
        let has_name = |part: &Part| {
            let raw = part.span.slice(body);
            let document = Document::read(raw).unwrap_or_default();
            let Some(root) = document.root(raw) else { return false };
            let is = |member: &str, fits: &dyn Fn(&str) -> bool| {
                root.get_text(member).is_some_and(|text| fits(&text))
            };
            is("id", &|id| id == name) || is("encrypted_content", &|it| abbreviates(name, it))
        };
        return own.iter().filter(|(_, part)| has_name(part)).map(|(about, _)| *about).collect();
    }
    let Some(place) = place else { return Vec::new() };
    let sent = crate::dialect::read(refused.request.conversation.dialect, "/", refused.sent);
    let there = sent.parts().filter(|part| part.kind == PartKind::Reasoning);
    let there = there.filter(|part| meets(part.span, place.span));
    let there: Vec<u128> = there.filter_map(|part| part.reasoning_key).collect();
    let is_there = |part: &Part| part.reasoning_key.is_some_and(|key| there.contains(&key));
    own.iter().filter(|(_, part)| is_there(part)).map(|(about, _)| *about).collect()
}

/// OpenAI names content without an id by its first and last characters: `gAAA...DQ==` (`docs/protocols.md` 3.2).
fn abbreviates(name: &str, content: &str) -> bool {
    let ends = name.split_once("...").filter(|(start, end)| !start.is_empty() && !end.is_empty());
    ends.is_some_and(|(start, end)| content.starts_with(start) && content.ends_with(end))
}

/// Whether one range contains the other.
pub(super) fn meets(one: Span, two: Span) -> bool {
    let holds = |outer: Span, inner: Span| outer.start <= inner.start && inner.end <= outer.end;
    holds(one, two) || holds(two, one)
}

fn out(refused: &RefusedRequest<'_>, about: u128) -> Fact {
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
