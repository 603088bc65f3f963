//! Replays recorded decisions: makes the edits, and describes what is then sent.
//!
//! The same facts and the same request always give the same bytes. If edits contradict each other, none is
//! made.

use foldhash::HashSet;

use super::{
    Change, DecisionReason, Overlay, Plan, PlanRequest, PlanStep, RecordedDecisions, ReturnedReply,
    repairs,
};
use crate::context::policy::ReasoningRule;
use crate::context::{ReasoningAction, ReasoningDecision, reasoning};
use crate::dialect::rewrite::{self, ReasoningInsert};
use crate::dialect::{Dialect, Part, PartIndex, PartKey, PartKind, Span};
use crate::wire::splice::{self, Edit};

/// What is forwarded if nothing is changed.
pub fn original_overlay(request: &PlanRequest<'_>) -> Overlay {
    let mut sent = RecordedDecisions::bare(request.conversation).sent();
    sent.thought = reasoning::newest(request, &sent);
    sent
}

/// Replays every recorded decision that applies, and nothing else.
pub fn replay(request: &PlanRequest<'_>, known: &RecordedDecisions) -> Plan {
    if request.conversation.held.is_some() {
        return Plan { sent: original_overlay(request), ..Plan::default() };
    }
    let sent = known.sent().cleared_past(request.clears_past);
    let mut plan = Plan { sent, ..Plan::default() };
    compact(request, known, &mut plan);
    cuts(request, known, &mut plan);
    inject(request, known, &mut plan);
    reasoning_of(request, known, &mut plan);
    repairs::of_parts(request, known, &mut plan);
    match splice::check(&plan.edits, request.body.len()) {
        Ok(()) if !plan.conflict => {
            repairs::of_text(request, known, &mut plan);
            plan.sent.thought = reasoning::newest(request, &plan.sent);
            plan
        }
        Ok(()) | Err(_) => {
            let sent = original_overlay(request).cleared_past(request.clears_past);
            Plan { sent, conflict: true, ..Plan::default() }
        }
    }
}

fn compact(request: &PlanRequest<'_>, known: &RecordedDecisions, plan: &mut Plan) {
    let Some((cut, compact)) = known.compact() else { return };
    let conversation = request.conversation;
    let edits = rewrite::compact(conversation, request.body, cut, &compact.raw);
    let Some(edits) = edits.filter(|edits| !edits.is_empty()) else {
        // Decisions that depend on the summary cannot be sent either.
        plan.conflict = true;
        return;
    };
    plan.sent.summarize(compact, &conversation.messages[..cut]);
    let decision = known.decision(compact.address().0, &compact.exchange, request.exchange);
    let (why, at) = (compact.why, PartIndex::default());
    plan.steps.push(PlanStep {
        tokens_before: compact.was,
        tokens_after: u64::from(compact.tokens),
        ..PlanStep::made(Change::Compacted, decision, why, at, &edits)
    });
    plan.summary = Some(compact.by);
    plan.edits.extend(edits);
}

fn cuts(request: &PlanRequest<'_>, known: &RecordedDecisions, plan: &mut Plan) {
    for (at, key, cut) in known.cuts_here() {
        let was = known.tokens_before(at, cut);
        let Some(part) = request.part(at) else { continue };
        let replacement = cut.content.text(part, request.body);
        let edits = replacement.map_or_else(Vec::new, |replacement| {
            if part.kind == PartKind::Image {
                return rewrite::cut_picture(request.conversation, request.body, at, &replacement);
            }
            if part.kind == PartKind::Text {
                return rewrite::cut_text(part, &replacement).into_iter().collect();
            }
            let change = rewrite::CutContent { text: &replacement, keep_media: cut.keep_media };
            rewrite::cut(request.conversation, request.body, at, &change)
        });
        if edits.is_empty() {
            // The text that the cut was decided for is not in this body.
            let tokens = u64::from(cut.was);
            plan.steps.push(PlanStep::declined(
                Change::Cut,
                DecisionReason::Structure,
                at,
                part.span,
                tokens,
            ));
            continue;
        }
        plan.sent.replace(part.span, key, cut.tokens);
        if !cut.keep_media {
            let message = &request.conversation.messages[at.message];
            let inner = message.parts[at.part + 1..].iter();
            let inner = inner.take_while(|inner| inner.span.end <= part.span.end);
            inner.for_each(|inner| plan.sent.remove(inner.span));
        }
        let decision = known.decision(cut.about.0, &cut.exchange, request.exchange);
        plan.steps.push(PlanStep {
            tokens_before: was,
            tokens_after: u64::from(cut.tokens),
            ..PlanStep::made(Change::Cut, decision, cut.why, at, &edits)
        });
        plan.edits.extend(edits);
    }
}

/// Injected messages, at their places.
fn inject(request: &PlanRequest<'_>, known: &RecordedDecisions, plan: &mut Plan) {
    for (at, injected) in known.injections() {
        let Some(part) = request.part(at) else { continue };
        let places: Vec<_> = injected
            .iter()
            .filter_map(|injected| Some((injected.key(), injected.place()?)))
            .collect();
        let texts: Vec<&str> = places.iter().map(|(_, place)| &*place.text).collect();
        let edits = rewrite::inject(request.conversation, request.body, at, &texts);
        for (key, place) in places {
            let tokens = u64::from(place.tokens);
            let declined = PlanStep::declined(
                Change::Injected,
                DecisionReason::Structure,
                at,
                part.span,
                tokens,
            );
            if edits.is_empty() {
                plan.steps.push(declined);
                continue;
            }
            plan.sent.inject(part.span, key, place.tokens);
            plan.steps.push(PlanStep {
                decision: known.decision(key.0, &place.exchange, request.exchange),
                why: DecisionReason::Queued,
                byte: part.span.end as u64,
                bytes_before: 0,
                bytes_after: place.text.len() as u64,
                tokens_before: 0,
                tokens_after: tokens,
                ..declined
            });
        }
        plan.edits.extend(edits);
    }
}

fn reasoning_of(request: &PlanRequest<'_>, known: &RecordedDecisions, plan: &mut Plan) {
    let sent = &plan.sent;
    let is_back = |returned: &ReturnedReply| reasoning::is_back(request, known, sent, returned);
    let chosen = reasoning::chosen(request, known, is_back);
    for (returned, chosen) in known.replies.iter().zip(chosen) {
        if let Some(decision) =
            known.reasoning_decision(returned.reasoning.after.0).filter(|_| chosen)
        {
            put_back(request, known, returned, decision, plan);
        }
    }
    // Another model than the one that required a stand-in may refuse it. The same model gets it again, even
    // if it is no longer known to require it.
    let is_demanded = request.reasoning_rule == ReasoningRule::Demanded;
    let one_field = request.conversation.dialect == Dialect::OpenaiChat;
    let place = |at: PartIndex| (at.message, if one_field { 0 } else { at.part });
    let put_back = plan.steps.iter().filter(|step| step.change == Change::PutBack);
    let put_back: HashSet<_> = put_back.map(|step| place(step.at)).collect();
    // What stands in for another model is not needed where this model's own reasoning is back.
    let stands_in = |at: PartIndex, decision: &ReasoningDecision| {
        (is_demanded || known.is_of_its_model(decision)) && !put_back.contains(&place(at))
    };
    for (at, decision) in known.stand_ins().filter(|(at, decision)| stands_in(*at, decision)) {
        let ReasoningAction::StandIn(raw) = &decision.does else { continue };
        let edits = stand_in(request, at, raw);
        let step = step_of(request, known, Change::StandIn, at, decision, &edits);
        if !edits.is_empty() {
            plan.steps.push(step);
            plan.edits.extend(edits);
        }
    }
    take_out(request, known, plan);
}

/// Inserts a stand-in: a signature on the part itself (Gemini), or a field of its message.
fn stand_in(request: &PlanRequest<'_>, at: PartIndex, raw: &str) -> Vec<Edit> {
    let conversation = request.conversation;
    match conversation.dialect {
        Dialect::Gemini => {
            rewrite::restore_signature(conversation, request.body, at, raw).into_iter().collect()
        }
        Dialect::Anthropic | Dialect::OpenaiChat | Dialect::OpenaiResponses => {
            let block = ReasoningInsert { before: at.part, raw };
            rewrite::put_back(conversation, request.body, at.message, &[block])
        }
    }
}

/// Inserts missing reasoning, message by message, and missing signatures, part by part.
fn put_back(
    request: &PlanRequest<'_>,
    known: &RecordedDecisions,
    returned: &ReturnedReply,
    decision: &ReasoningDecision,
    plan: &mut Plan,
) {
    let conversation = request.conversation;
    let missing = returned.missing(request);
    let mut blocks: Vec<(usize, ReasoningInsert<'_>)> = Vec::new();
    for thought in &missing.blocks {
        let Some(at) = returned.place(conversation, thought) else { continue };
        blocks.push((at.message, ReasoningInsert { before: at.part, raw: &thought.raw }));
    }
    let mut rest = &blocks[..];
    while let Some((message, _)) = rest.first() {
        let run = rest.iter().take_while(|(other, _)| other == message).count();
        let group: Vec<ReasoningInsert<'_>> = rest[..run].iter().map(|(_, block)| *block).collect();
        let edits = rewrite::put_back(conversation, request.body, *message, &group);
        let at = PartIndex::new(*message, group[0].before);
        plan.steps.push(step_of(request, known, Change::PutBack, at, decision, &edits));
        if !edits.is_empty() {
            for block in &group {
                let signature = reasoning::signature_key(block.raw);
                let key = signature.unwrap_or_else(|| PartKey::of_bytes(block.raw.as_bytes()));
                plan.sent.put_back(conversation, PartIndex::new(*message, block.before), key);
            }
        }
        plan.edits.extend(edits);
        rest = &rest[run..];
    }
    for &(at, signature) in &missing.signatures {
        let Some(edit) = rewrite::restore_signature(conversation, request.body, at, signature)
        else {
            continue;
        };
        plan.sent.put_back(conversation, at, PartKey::of_bytes(signature.as_bytes()));
        let edits = vec![edit];
        plan.steps.push(step_of(request, known, Change::PutBack, at, decision, &edits));
        plan.edits.extend(edits);
    }
}

fn take_out(request: &PlanRequest<'_>, known: &RecordedDecisions, plan: &mut Plan) {
    if !known.removes_reasoning() {
        return;
    }
    let messages = request.conversation.messages.iter().enumerate();
    for (index, message) in messages.skip(known.kept_from()) {
        let is_out = |part: &Part| known.takes_out_reasoning(request, part.removal_key()?);
        let out: Vec<(usize, &ReasoningDecision)> = message
            .parts
            .iter()
            .enumerate()
            .filter(|(_, part)| part.kind == PartKind::Reasoning)
            .filter_map(|(at, part)| Some((at, is_out(part)?)))
            .collect();
        let Some((first, decision)) = out.first().copied() else { continue };
        let parts: Vec<usize> = out.iter().map(|(at, _)| *at).collect();
        let removal = rewrite::take_out(request.conversation, request.body, index, &parts);
        // A message that is removed whole cannot have other edits.
        let within =
            |other: &Edit| message.span.start < other.at.end && other.at.start < message.span.end;
        let is_changed = || plan.edits.iter().any(within);
        let goes_whole = |edits: &[Edit]| edits.iter().any(|it| it.at.len() >= message.span.len());
        let Some(edits) = removal.filter(|edits| !(goes_whole(edits) && is_changed())) else {
            continue;
        };
        parts.iter().for_each(|part| plan.sent.remove(message.parts[*part].span));
        let at = PartIndex::new(index, first);
        plan.steps.push(step_of(request, known, Change::Removed, at, decision, &edits));
        plan.edits.extend(edits);
    }
}

/// The step for a change with these edits; without edits, the structure of the body did not allow it.
fn step_of(
    request: &PlanRequest<'_>,
    known: &RecordedDecisions,
    change: Change,
    at: PartIndex,
    decision: &ReasoningDecision,
    edits: &[Edit],
) -> PlanStep {
    if edits.is_empty() {
        let span = request.part(at).map_or(Span::new(0, 0), |part| part.span);
        return PlanStep::declined(change, DecisionReason::Structure, at, span, 0);
    }
    let why = decision.why;
    let decision = known.decision(decision.about.0, &decision.exchange, request.exchange);
    PlanStep::made(change, decision, why, at, edits)
}
