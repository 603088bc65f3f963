//! The order of bound reasoning: a piece is void unless the reasoning before it is the same as when it was
//! made (`docs/protocols.md` 1.5.3). Pieces may be missing at the start, never in between.
//!
//! Works backwards from the newest reply: each piece that is put back must lead to the one after it.

use crate::context::plan::{
    ForeignReasoning, Overlay, PlanRequest, RecordedDecisions, ReturnedReply,
};
use crate::context::signature::signature_key;
use crate::dialect::PartKey;

/// Which reasoning may come before the oldest piece that stays.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OrderConstraint {
    /// Any, because nothing stays yet.
    Free,
    /// Only this piece; with `None`, no piece.
    Exactly(Option<PartKey>),
    /// Unknown, so none of ours.
    Unknown,
}

/// Which of the `wanted` replies get their reasoning back. All of them if the model does not bind it.
pub fn chosen(
    request: &PlanRequest<'_>,
    known: &RecordedDecisions,
    wanted: impl Fn(&ReturnedReply) -> bool,
) -> Vec<bool> {
    let mut chosen: Vec<bool> = known.replies.iter().map(&wanted).collect();
    if !request.is_bound() || !chosen.contains(&true) {
        return chosen;
    }
    let mut foreign = &known.foreign[..];
    let mut need = OrderConstraint::Free;
    // The replies since the client's own reasoning that get theirs back.
    let mut back: Vec<usize> = Vec::new();
    for (index, returned) in known.replies.iter().enumerate().rev() {
        let begins = returned.start();
        let is_before = |other: &ForeignReasoning| other.at > begins || returned.spans(other.at);
        while let Some((last, rest)) = foreign.split_last().filter(|(last, _)| is_before(last)) {
            foreign = rest;
            let made = last.made.as_ref().map(|made| made.order);
            need = made.map_or(OrderConstraint::Unknown, OrderConstraint::Exactly);
            back.clear();
        }
        // What goes out without its reasoning asks for nothing before it.
        if returned.is_replaced || is_taken_out(request, known, returned) {
            chosen[index] = false;
            continue;
        }
        let missing = returned.missing(request);
        let order = OrderConstraint::Exactly(returned.reasoning.order);
        let last = returned.reasoning.blocks.last().and_then(|block| signature_key(&block.raw));
        let leads_on = match need {
            OrderConstraint::Free => true,
            OrderConstraint::Exactly(before) => before.is_some() && before == last,
            OrderConstraint::Unknown => false,
        };
        let keeps_some = missing.blocks.len() < returned.reasoning.blocks.len();
        if missing.is_nothing() || keeps_some && missing.is_partial() {
            // What the client sends stays, so what does not follow on it cannot come back.
            let stays = !returned.reasoning.blocks.is_empty();
            let void = back.drain(..).filter(|_| stays && !leads_on);
            void.for_each(|later| chosen[later] = false);
            need = order;
        } else if !keeps_some && returned.parts.is_empty() && is_elsewhere(known, returned) {
            // No part of it came back: the reasoning there belongs to a reply that was made in its place.
            chosen[index] = false;
        } else if keeps_some || returned.parts.is_empty() {
            // The client kept some of it, or sends reasoning of another reply; the provider decides what that
            // is worth.
            (chosen[index], need) = (false, OrderConstraint::Unknown);
            back.clear();
        } else if chosen[index] {
            (chosen[index], need) = if leads_on { (true, order) } else { (false, need) };
            back.extend(leads_on.then_some(index));
        }
    }
    chosen
}

/// Whether its client sends reasoning of a reply, and all of it is decided to be left out.
fn is_taken_out(
    request: &PlanRequest<'_>,
    known: &RecordedDecisions,
    returned: &ReturnedReply,
) -> bool {
    let conversation = request.conversation;
    let keys = returned.places(conversation).filter_map(|at| request.part(at)?.removal_key());
    let mut keys = keys.peekable();
    keys.peek().is_some() && keys.all(|about| known.takes_out_reasoning(request, about).is_some())
}

/// Whether the reasoning at the place of a reply without text or calls belongs to another known reply.
fn is_elsewhere(known: &RecordedDecisions, returned: &ReturnedReply) -> bool {
    let at = returned.start();
    known.replies.iter().any(|other| other.number != returned.number && other.spans(at))
}

/// The newest reasoning that is sent: the model's next reasoning is bound to come after it.
pub fn newest(request: &PlanRequest<'_>, sent: &Overlay) -> Option<PartKey> {
    let messages = request.conversation.messages.iter().rev();
    for message in messages {
        let at_end = sent.back(message.span.end).last();
        let mut found = at_end.copied();
        for part in message.parts.iter().rev() {
            if found.is_some() {
                return found;
            }
            found = match part.reasoning_key {
                Some(own) if !sent.is_gone(part.span) => Some(PartKey(own)),
                _ => sent.back(part.span.start).last().copied(),
            };
        }
        if found.is_some() {
            return found;
        }
    }
    None
}
