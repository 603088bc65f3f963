//! The order of bound reasoning: a piece is void unless the reasoning before it is the same as when it was
//! made (`docs/protocols.md` 1.5.3). Pieces may be missing at the start, never in between.
//!
//! Works backwards from the newest reply: each piece that is put back must lead to the one after it.

use crate::context::plan::{Overlay, PlanRequest, RecordedDecisions, ReturnedReply};
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
    let mut reinserted: Vec<usize> = Vec::new();
    for (index, returned) in known.replies.iter().enumerate().rev() {
        let start = returned.start();
        while let Some((newest, older)) = foreign.split_last()
            && (newest.at > start || returned.spans(newest.at))
        {
            foreign = older;
            need = match &newest.made {
                Some(record) => OrderConstraint::Exactly(record.order),
                None => OrderConstraint::Unknown,
            };
            reinserted.clear();
        }
        // What goes out without its reasoning asks for nothing before it.
        if returned.is_replaced || is_taken_out(request, known, returned) {
            chosen[index] = false;
            continue;
        }
        let missing = returned.missing(request);
        let order = OrderConstraint::Exactly(returned.reasoning.order);
        let newest = returned.reasoning.blocks.last().and_then(|block| signature_key(&block.raw));
        let leads_on = match need {
            OrderConstraint::Free => true,
            OrderConstraint::Exactly(before) => before.is_some() && before == newest,
            OrderConstraint::Unknown => false,
        };
        let keeps_some = missing.blocks.len() < returned.reasoning.blocks.len();
        if missing.is_nothing() || keeps_some && missing.is_partial() {
            // What the client sends stays, so what does not follow on it cannot come back.
            if !returned.reasoning.blocks.is_empty() && !leads_on {
                for later in &reinserted {
                    chosen[*later] = false;
                }
            }
            reinserted.clear();
            need = order;
        } else if !keeps_some && returned.parts.is_empty() && is_elsewhere(known, returned) {
            // No part of it came back: the reasoning there belongs to a reply that was made in its place.
            chosen[index] = false;
        } else if keeps_some || returned.parts.is_empty() {
            // The client kept some of it, or sends reasoning of another reply; the provider decides what that
            // is worth.
            chosen[index] = false;
            need = OrderConstraint::Unknown;
            reinserted.clear();
        } else if chosen[index] && leads_on {
            need = order;
            reinserted.push(index);
        } else {
            chosen[index] = false;
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

fn is_elsewhere(known: &RecordedDecisions, returned: &ReturnedReply) -> bool {
    // A reply of reasoning alone has no part by which it could be told apart.
    let start = returned.start();
    known.replies.iter().any(|other| other.number != returned.number && other.spans(start))
}

/// The newest reasoning that is sent: the model's next reasoning is bound to come after it.
pub fn newest(request: &PlanRequest<'_>, sent: &Overlay) -> Option<PartKey> {
    let messages = request.conversation.messages.iter().rev();
    for message in messages {
        // What is put back stands before a part, or at the end of the message.
        let mut newest = sent.back(message.span.end).last().copied();
        for part in message.parts.iter().rev() {
            if newest.is_some() {
                return newest;
            }
            newest = match part.reasoning_key {
                Some(key) if !sent.is_gone(part.span) => Some(PartKey(key)),
                _ => sent.back(part.span.start).last().copied(),
            };
        }
        if newest.is_some() {
            return newest;
        }
    }
    None
}
