//! The order of bound reasoning: a piece is void unless the reasoning before it is the same as when it was
//! made (`docs/protocols.md` 1.5.3). Pieces may be missing at the start, never in between.
//!
//! Works backwards from the newest reply: each piece that is put back must lead to the one after it.

use crate::context::plan::{Overlay, PlanRequest, RecordedDecisions, ReturnedReply};
use crate::dialect::{PartIndex, PartKey, PartKind};
use crate::wire::json::Document;

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
    let mut foreign = foreign(request, known);
    let mut need = OrderConstraint::Free;
    for (index, returned) in known.replies.iter().enumerate().rev() {
        let begins = returned.begins();
        while foreign.last().is_some_and(|at| *at > begins) {
            foreign.pop();
            need = OrderConstraint::Unknown;
        }
        let missing = returned.missing(request);
        let order = OrderConstraint::Exactly(returned.reasoning.order);
        let keeps_some = missing.blocks.len() < returned.reasoning.blocks.len();
        if missing.is_nothing() || keeps_some && missing.is_partial() {
            need = order;
        } else if !keeps_some && returned.parts.is_empty() && is_elsewhere(known, returned) {
            // No part of it came back: the reasoning there belongs to a reply that was made in its place.
            chosen[index] = false;
        } else if keeps_some || returned.parts.is_empty() {
            // The client kept some of it, or sends reasoning of another reply; the provider decides what that
            // is worth.
            (chosen[index], need) = (false, OrderConstraint::Unknown);
        } else if chosen[index] {
            let last = returned.reasoning.blocks.last().and_then(|block| seal(&block.raw));
            let leads_on = match need {
                OrderConstraint::Free => true,
                OrderConstraint::Exactly(before) => before.is_some() && before == last,
                OrderConstraint::Unknown => false,
            };
            (chosen[index], need) = if leads_on { (true, order) } else { (false, need) };
        }
    }
    chosen
}

/// Whether the reasoning at the place of a reply without text or calls belongs to another known reply.
fn is_elsewhere(known: &RecordedDecisions, returned: &ReturnedReply) -> bool {
    let at = returned.begins();
    known.replies.iter().any(|other| other.number != returned.number && other.spans(at))
}

/// The places where a client sends reasoning that is in no known reply.
fn foreign(request: &PlanRequest<'_>, known: &RecordedDecisions) -> Vec<PartIndex> {
    let messages = request.conversation.messages.iter().enumerate().skip(known.kept_from());
    let parts = messages.flat_map(|(index, message)| {
        let parts = message.parts.iter().enumerate();
        let reasoning = parts.filter(|(_, part)| part.kind == PartKind::Reasoning);
        reasoning.map(move |(part, _)| PartIndex::new(index, part))
    });
    parts.filter(|at| !known.replies.iter().any(|returned| returned.spans(*at))).collect()
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
            found = match part.reasoning_key(request.body) {
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

/// The members of a block that hold its seal.
const SEALS: [&str; 4] = ["signature", "data", "encrypted_content", "thoughtSignature"];
/// The members of APIs compatible with Chat Completions, which send reasoning as plain text.
const WORDS: [&str; 2] = ["reasoning_content", "reasoning"];

/// The key of a block as it was received: the hash of its seal, the same as
/// [`Part::reasoning_key`](crate::dialect::Part::reasoning_key) gives for a client's block.
pub fn seal(raw: &str) -> Option<PartKey> {
    let document = Document::read(raw.as_bytes()).ok()?;
    let root = document.root(raw.as_bytes())?;
    Some(PartKey::of_bytes(root.get_any(&SEALS)?.text()?.as_bytes()))
}

/// What [`Part::reasoning_key`](crate::dialect::Part::reasoning_key) hashes, taken from a block as it was
/// received: its seal, else its text, as a raw JSON string without quotes.
pub fn literal(raw: &str) -> Option<String> {
    let document = Document::read(raw.as_bytes()).ok()?;
    let root = document.root(raw.as_bytes())?;
    let found = root.get_any(&SEALS).or_else(|| root.get_any(&WORDS))?;
    let literal = std::str::from_utf8(found.raw()).ok()?;
    Some(literal.strip_prefix('"')?.strip_suffix('"')?.to_owned())
}
