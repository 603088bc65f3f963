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
                let places = places(request, *part, known.kept_from());
                for (at, found) in places {
                    let edit = media::edits(request.conversation, request.body, found, text);
                    let Some(edit) = edit.filter(|edit| is_free(plan, edit)) else { continue };
                    let key = PartKey::of_bytes(text.as_bytes());
                    let tokens = (text.len() / 4) as u32;
                    plan.sent.replace(found.span, key, tokens);
                    add_step(request, known, plan, one, at, std::slice::from_ref(&edit));
                    plan.edits.push(edit);
                }
            }
            Repair::Picture { part, data } => {
                let places = places(request, *part, known.kept_from());
                for (at, found) in places {
                    let edit = media::replaced(request.body, found, data);
                    let Some(edit) = edit.filter(|edit| is_free(plan, edit)) else { continue };
                    let key = PartKey::of_bytes(data.as_bytes());
                    let detail = found.media.as_ref().and_then(|media| media.detail);
                    let tokens = base64_tokens(data, &request.model.pictures, detail);
                    plan.sent.replace(found.span, key, tokens);
                    add_step(request, known, plan, one, at, std::slice::from_ref(&edit));
                    plan.edits.push(edit);
                }
            }
            Repair::Prefill { part, text } => {
                let ends = |message: &crate::dialect::Message| {
                    message.parts.iter().rev().find_map(|part| part.key) == Some(*part)
                };
                let messages = &request.conversation.messages;
                let Some(message) = messages.iter().rposition(ends) else { continue };
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

/// Rules for the whole body, applied to the result of the other edits.
pub(super) fn of_text(request: &PlanRequest<'_>, known: &RecordedDecisions, plan: &mut Plan) {
    let mut sent: Option<Vec<u8>> = None;
    for one in known.repairs_of(request) {
        let is_of_part = matches!(
            one.repair,
            Repair::Media { .. } | Repair::Picture { .. } | Repair::Prefill { .. }
        );
        if is_of_part {
            continue;
        }
        let body = sent.get_or_insert_with(|| splice::applied(request.body, &plan.edits));
        let edits = one.repair.edits(request.conversation.dialect, body);
        if edits.is_empty() {
            continue;
        }
        let next = splice::applied(body, &edits);
        let Some(composed) = splice::compose(&plan.edits, body, edits.clone()) else { continue };
        add_step(request, known, plan, one, PartIndex::default(), &edits);
        plan.edits = composed;
        sent = Some(next);
    }
}

/// The parts with this key, from the message `from` on.
fn places<'r>(request: &PlanRequest<'r>, key: PartKey, from: usize) -> Vec<(PartIndex, &'r Part)> {
    let messages = request.conversation.messages.iter().enumerate().skip(from);
    let parts = messages.flat_map(|(at, message)| {
        message.parts.iter().enumerate().map(move |(part, found)| (PartIndex::new(at, part), found))
    });
    parts.filter(|(_, part)| part.key == Some(key)).collect()
}

/// Whether no other edit touches these bytes.
fn is_free(plan: &Plan, edit: &Edit) -> bool {
    let Span { start, end } = edit.at;
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
