//! Reasoning that its provider does not take back: the piece that is named goes, and where that does not help, all
//! that the client sends.

use super::Subject;
use crate::context::plan::DecisionReason;
use crate::context::{Fact, ReasoningAction, ReasoningDecision};
use crate::dialect::repair::path::Place;
use crate::dialect::{Part, PartKey, PartKind, Span};
use crate::wire::json::Document;

/// Decisions to take reasoning out.
pub(super) fn propose(subject: &Subject<'_>, place: Option<&Place>) -> Vec<Fact> {
    let request = subject.request;
    let conversation = request.conversation;
    let is_out = |about: u128| {
        let echo = subject.known.echo(about);
        echo.is_some_and(|echo| echo.does == ReasoningAction::Out)
    };
    let own = conversation.parts().filter(|part| part.kind == PartKind::Reasoning);
    let own: Vec<(u128, &Part)> =
        own.filter_map(|part| Some((part.reasoning_key(request.body)?, part))).collect();
    let tried = own.iter().any(|(about, _)| {
        let echo = subject.known.echo(*about);
        echo.is_some_and(|echo| *echo.request == *request.id && echo.why == DecisionReason::Refusal)
    });
    let left: Vec<(u128, &Part)> = own.into_iter().filter(|(about, _)| !is_out(*about)).collect();
    let named = if tried { Vec::new() } else { named(subject, place, &left) };
    let is_named = place.is_some() || subject.refusal.name.is_some();
    let chosen = match named.is_empty() {
        // What is named and not the client's was put back by us.
        true if is_named && !tried => Vec::new(),
        true => left.iter().map(|(about, _)| *about).collect(),
        false => named,
    };
    chosen.into_iter().map(|about| out(subject, about)).collect()
}

/// The client's reasoning at the place that is named, or with the id.
fn named(subject: &Subject<'_>, place: Option<&Place>, own: &[(u128, &Part)]) -> Vec<u128> {
    let body = subject.request.body;
    if let Some(name) = subject.refusal.name.as_deref() {
        let has_id = |part: &Part| {
            let raw = part.span.of(body);
            let document = Document::read(raw).unwrap_or_default();
            let id = document.root(raw).and_then(|root| root.get_text("id"));
            id.is_some_and(|id| *id == *name)
        };
        return own.iter().filter(|(_, part)| has_id(part)).map(|(about, _)| *about).collect();
    }
    let Some(place) = place else { return Vec::new() };
    let sent = crate::dialect::read(subject.request.conversation.dialect, "/", subject.sent);
    let there = sent.parts().filter(|part| part.kind == PartKind::Reasoning);
    let there = there.filter(|part| meets(part.span, place.span));
    let there: Vec<u128> = there.filter_map(|part| part.reasoning_key(subject.sent)).collect();
    own.iter().map(|(about, _)| *about).filter(|about| there.contains(about)).collect()
}

/// Whether one holds the other.
pub(super) fn meets(one: Span, two: Span) -> bool {
    let holds = |outer: Span, inner: Span| outer.start <= inner.start && inner.end <= outer.end;
    holds(one, two) || holds(two, one)
}

fn out(subject: &Subject<'_>, about: u128) -> Fact {
    Fact::Echo(Box::new(ReasoningDecision {
        about: PartKey(about),
        at: subject.request.now,
        request: subject.request.id.into(),
        does: ReasoningAction::Out,
        why: DecisionReason::Refusal,
        shadow: false,
        after: None,
    }))
}
