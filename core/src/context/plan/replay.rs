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
use crate::dialect::{Dialect, PartIndex, PartKey, PartKind, Span};
use crate::wire::splice::{self, Edit};

/// What is forwarded if nothing is changed.
pub fn original_overlay(request: &PlanRequest<'_>) -> Overlay {
    let mut overlay = RecordedDecisions::bare(request.conversation).sent();
    overlay.thought = reasoning::newest(request, &overlay);
    overlay
}

/// Replays every recorded decision that applies, and nothing else.
pub fn replay(request: &PlanRequest<'_>, known: &RecordedDecisions) -> Plan {
    // The history is at the provider: nothing of it can be changed here.
    if request.conversation.held.is_some() {
        return Plan { sent: original_overlay(request), ..Plan::default() };
    }
    let overlay = known.sent().cleared_past(request.clears_past);
    let mut plan = Plan { sent: overlay, ..Plan::default() };
    // In this order: what a summary replaced is not cut, and whether reasoning comes back depends on what is
    // sent before it.
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
        // Half of the edits would be a request that nobody decided on.
        Ok(()) | Err(_) => {
            let overlay = original_overlay(request).cleared_past(request.clears_past);
            Plan { sent: overlay, conflict: true, ..Plan::default() }
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
    plan.steps.push(PlanStep {
        tokens_before: compact.was,
        tokens_after: u64::from(compact.tokens),
        ..PlanStep::made(Change::Compacted, decision, compact.why, PartIndex::default(), &edits)
    });
    plan.summary = Some(compact.by);
    plan.edits.extend(edits);
}

fn cuts(request: &PlanRequest<'_>, known: &RecordedDecisions, plan: &mut Plan) {
    for (at, key, cut) in known.cuts_here() {
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
            // Images in a result are parts of their own, and go with it.
            for inner in &message.parts[at.part + 1..] {
                if inner.span.end > part.span.end {
                    break;
                }
                plan.sent.remove(inner.span);
            }
        }
        let decision = known.decision(cut.about.0, &cut.exchange, request.exchange);
        plan.steps.push(PlanStep {
            tokens_before: known.tokens_before(at, cut),
            tokens_after: u64::from(cut.tokens),
            ..PlanStep::made(Change::Cut, decision, cut.why, at, &edits)
        });
        plan.edits.extend(edits);
    }
}

fn inject(request: &PlanRequest<'_>, known: &RecordedDecisions, plan: &mut Plan) {
    for (at, injected) in known.injections() {
        let Some(part) = request.part(at) else { continue };
        let places: Vec<_> = injected
            .iter()
            .filter_map(|injected| Some((injected.key(), injected.place()?)))
            .collect();
        // All texts of a place go in with one edit, because two would contradict each other.
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
    let chosen = reasoning::chosen(request, known, |returned| {
        reasoning::is_back(request, known, &plan.sent, returned)
    });
    for (returned, is_chosen) in known.replies.iter().zip(chosen) {
        let decision = known.reasoning_decision(returned.reasoning.after.0);
        if is_chosen && let Some(decision) = decision {
            put_back(request, known, returned, decision, plan);
        }
    }
    put_stand_ins(request, known, plan);
    take_out(request, known, plan);
}

fn put_stand_ins(request: &PlanRequest<'_>, known: &RecordedDecisions, plan: &mut Plan) {
    // Another model than the one that required a stand-in may refuse it. The same model gets it again, even
    // if it is no longer known to require it.
    let is_demanded = request.reasoning_rule == ReasoningRule::Demanded;
    // Chat Completions has one field for a whole message.
    let one_field = request.conversation.dialect == Dialect::OpenaiChat;
    let mut places: HashSet<(usize, usize)> = HashSet::default();
    for step in plan.steps.iter().filter(|step| step.change == Change::PutBack) {
        places.insert((step.at.message, if one_field { 0 } else { step.at.part }));
    }
    for (at, decision) in known.stand_ins() {
        let ReasoningAction::StandIn(raw) = &decision.does else { continue };
        // What stands in for another model is not needed where this model's own reasoning is back.
        let has_own = places.contains(&(at.message, if one_field { 0 } else { at.part }));
        if has_own || !(is_demanded || known.is_of_its_model(decision)) {
            continue;
        }
        let edits = stand_in(request, at, raw);
        let step = step_of(request, known, Change::StandIn, at, decision, &edits);
        if !edits.is_empty() {
            plan.steps.push(step);
            plan.edits.extend(edits);
        }
    }
}

fn stand_in(request: &PlanRequest<'_>, at: PartIndex, raw: &str) -> Vec<Edit> {
    let conversation = request.conversation;
    // A signature on the part itself (Gemini), or a field of its message.
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
    let mut remaining = &blocks[..];
    while let Some((message, _)) = remaining.first() {
        // Blocks of one message are inserted at once, so that their edits do not meet.
        let run = remaining.iter().take_while(|(other, _)| other == message).count();
        let group: Vec<ReasoningInsert<'_>> =
            remaining[..run].iter().map(|(_, block)| *block).collect();
        let edits = rewrite::put_back(conversation, request.body, *message, &group);
        let place = PartIndex::new(*message, group[0].before);
        plan.steps.push(step_of(request, known, Change::PutBack, place, decision, &edits));
        if !edits.is_empty() {
            for block in &group {
                let signature = reasoning::signature_key(block.raw);
                let key = signature.unwrap_or_else(|| PartKey::of_bytes(block.raw.as_bytes()));
                plan.sent.put_back(conversation, PartIndex::new(*message, block.before), key);
            }
        }
        plan.edits.extend(edits);
        remaining = &remaining[run..];
    }
    for &(at, signature) in &missing.signatures {
        let Some(edit) = rewrite::restore_signature(conversation, request.body, at, signature)
        else {
            continue;
        };
        plan.sent.put_back(conversation, at, PartKey::of_signature(signature));
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
        let mut parts: Vec<usize> = Vec::new();
        let mut decisions: Vec<&ReasoningDecision> = Vec::new();
        for (at, part) in message.parts.iter().enumerate() {
            let Some(about) = part.removal_key() else { continue };
            if part.kind == PartKind::Reasoning
                && let Some(decision) = known.takes_out_reasoning(request, about)
            {
                parts.push(at);
                decisions.push(decision);
            }
        }
        let Some(decision) = decisions.first() else { continue };
        let removal = rewrite::take_out(request.conversation, request.body, index, &parts);
        let Some(edits) = removal else { continue };
        // A message that is removed whole cannot have other edits.
        let goes_whole = edits.iter().any(|edit| edit.at.len() >= message.span.len());
        if goes_whole && plan.edits.iter().any(|edit| overlaps(edit, message.span)) {
            continue;
        }
        for part in &parts {
            plan.sent.remove(message.parts[*part].span);
        }
        let place = PartIndex::new(index, parts[0]);
        plan.steps.push(step_of(request, known, Change::Removed, place, decision, &edits));
        plan.edits.extend(edits);
    }
}

fn overlaps(edit: &Edit, span: Span) -> bool {
    span.start < edit.at.end && edit.at.start < span.end
}

fn step_of(
    request: &PlanRequest<'_>,
    known: &RecordedDecisions,
    change: Change,
    at: PartIndex,
    decision: &ReasoningDecision,
    edits: &[Edit],
) -> PlanStep {
    if edits.is_empty() {
        // The structure of the body did not allow the edit.
        let span = request.part(at).map_or(Span::new(0, 0), |part| part.span);
        return PlanStep::declined(change, DecisionReason::Structure, at, span, 0);
    }
    let why = decision.why;
    let decision = known.decision(decision.about.0, &decision.exchange, request.exchange);
    PlanStep::made(change, decision, why, at, edits)
}
