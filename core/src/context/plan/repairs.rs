//! Replays the changes that answer refusals. Changes of one part come first, among the other edits; rules for
//! the whole body come last, over the result of the others.

use super::{Change, DecisionReason, Plan, PlanRequest, PlanStep, RecordedDecisions};
use crate::context::repair::RepairDecision;
use crate::dialect::repair::{Repair, media, prefill};
use crate::dialect::{Part, PartIndex, PartKey, Span};
use crate::tokens::media::base64_tokens;
use crate::wire::splice::{self, Edit};

/// Text or a smaller image in place of media, and a message after the model's last one.
pub(super) fn of_parts(request: &PlanRequest<'_>, known: &RecordedDecisions, plan: &mut Plan) {
    for one in known.repairs_of(request) {
        match &one.repair {
            Repair::Media { part, text } => {
                for (at, media_part) in places(request, *part, known.kept_from()) {
                    let edit = media::edits(request.conversation, request.body, media_part, text);
                    let Some(edit) = edit.filter(|edit| is_free(plan, edit)) else { continue };
                    let key = PartKey::of_bytes(text.as_bytes());
                    // It is our own short text: a vocabulary would not change the number by much.
                    let tokens = (text.len() / 4) as u32;
                    plan.sent.replace(media_part.span, key, tokens);
                    add_step(request, known, plan, one, at, std::slice::from_ref(&edit));
                    plan.edits.push(edit);
                }
            }
            Repair::Picture { part, data } => {
                for (at, media_part) in places(request, *part, known.kept_from()) {
                    let edit = media::replaced(request.body, media_part, data);
                    let Some(edit) = edit.filter(|edit| is_free(plan, edit)) else { continue };
                    let key = PartKey::of_bytes(data.as_bytes());
                    let detail = media_part.media.as_ref().and_then(|media| media.detail);
                    let tokens = base64_tokens(data, &request.model.pictures, detail);
                    plan.sent.replace(media_part.span, key, tokens);
                    add_step(request, known, plan, one, at, std::slice::from_ref(&edit));
                    plan.edits.push(edit);
                }
            }
            Repair::Prefill { part, text } => {
                let message = request.conversation.messages.iter().rposition(|message| {
                    message.parts.iter().rev().find_map(|part| part.key) == Some(*part)
                });
                let Some(message) = message else { continue };
                let edit = prefill::edits(request.conversation, message, text);
                let Some(edit) = edit.filter(|edit| is_free(plan, edit)) else { continue };
                add_step(
                    request,
                    known,
                    plan,
                    one,
                    PartIndex::new(message, 0),
                    std::slice::from_ref(&edit),
                );
                plan.edits.push(edit);
            }
            _ => {}
        }
    }
}

pub(super) fn of_text(request: &PlanRequest<'_>, known: &RecordedDecisions, plan: &mut Plan) {
    let mut rewritten: Option<Vec<u8>> = None;
    for one in known.repairs_of(request) {
        let is_of_part = matches!(
            one.repair,
            Repair::Media { .. } | Repair::Picture { .. } | Repair::Prefill { .. }
        );
        if is_of_part {
            continue;
        }
        let body = rewritten.get_or_insert_with(|| splice::applied(request.body, &plan.edits));
        let edits = one.repair.edits(request.conversation.dialect, body);
        if edits.is_empty() {
            continue;
        }
        // The rules are applied one after the other, each to what the ones before made.
        let body_after = splice::applied(body, &edits);
        let Some(composed) = splice::compose(&plan.edits, body, edits.clone()) else { continue };
        add_step(request, known, plan, one, PartIndex::default(), &edits);
        plan.edits = composed;
        rewritten = Some(body_after);
    }
}

fn places<'r>(request: &PlanRequest<'r>, key: PartKey, from: usize) -> Vec<(PartIndex, &'r Part)> {
    let mut places = Vec::new();
    for (index, message) in request.conversation.messages.iter().enumerate().skip(from) {
        for (number, part) in message.parts.iter().enumerate() {
            if part.key == Some(key) {
                places.push((PartIndex::new(index, number), part));
            }
        }
    }
    places
}

fn is_free(plan: &Plan, edit: &Edit) -> bool {
    let Span { start, end } = edit.at;
    // Adjacent ranges count as touched: their order would not be certain.
    plan.edits.iter().all(|other| other.at.end < start || end < other.at.start)
}

fn add_step(
    request: &PlanRequest<'_>,
    known: &RecordedDecisions,
    plan: &mut Plan,
    one: &RepairDecision,
    at: PartIndex,
    edits: &[Edit],
) {
    let decision = known.decision(one.about.0, &one.exchange, request.exchange);
    let step = PlanStep::made(Change::Repaired, decision, DecisionReason::Refusal, at, edits);
    plan.steps.push(step);
}
