//! The order of bound reasoning: a piece that was made after another is void where anything else
//! stands before it (`docs/protocols.md` 1.5.3). Pieces may be missing from the start, never between.
//!
//! Works from the newest reply back: whatever is put back must lead on to what stands after it.

use crate::context::plan::{Overlay, PlanRequest, RecordedDecisions, ReturnedReply};
use crate::dialect::{PartIndex, PartKey, PartKind};
use crate::wire::json::Document;

/// What may stand before the oldest piece that stays.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OrderConstraint {
    /// Nothing stays yet: anything.
    Free,
    /// This piece, or none.
    Exactly(Option<PartKey>),
    /// It is not known: none of ours.
    Unknown,
}

/// Which replies' reasoning is put back, of those that are `wanted`: all of them where the model does
/// not bind it.
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
            // Nothing of it came back: what stands there is of a reply that was made in its place.
            chosen[index] = false;
        } else if keeps_some || returned.parts.is_empty() {
            // The client kept some of it, or what it sends is another's: what it is worth is the provider's
            // to say.
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

/// Whether the reasoning at the place of a reply without words or calls is another known reply's.
fn is_elsewhere(known: &RecordedDecisions, returned: &ReturnedReply) -> bool {
    let at = returned.begins();
    known.replies.iter().any(|other| other.number != returned.number && other.spans(at))
}

/// Where a client sends reasoning that no known reply holds.
fn foreign(request: &PlanRequest<'_>, known: &RecordedDecisions) -> Vec<PartIndex> {
    let messages = request.conversation.messages.iter().enumerate().skip(known.kept_from());
    let parts = messages.flat_map(|(index, message)| {
        let parts = message.parts.iter().enumerate();
        let reasoning = parts.filter(|(_, part)| part.kind == PartKind::Reasoning);
        reasoning.map(move |(part, _)| PartIndex::new(index, part))
    });
    parts.filter(|at| !known.replies.iter().any(|returned| returned.spans(*at))).collect()
}

/// The newest reasoning that is sent: what is made next is bound to stand after it.
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

/// The fields that seal a block.
const SEALS: [&str; 4] = ["signature", "data", "encrypted_content", "thoughtSignature"];
/// Those of the look-alikes of Chat Completions, whose words are all that it is.
const WORDS: [&str; 2] = ["reasoning_content", "reasoning"];

/// The identity of a block as it was received: of its seal, as [`Part::reasoning_key`](crate::dialect::Part::reasoning_key) has it of a client's.
pub fn seal(raw: &str) -> Option<PartKey> {
    let document = Document::read(raw.as_bytes()).ok()?;
    let root = document.root(raw.as_bytes())?;
    Some(PartKey::of_bytes(root.get_any(&SEALS)?.text()?.as_bytes()))
}

/// What a client's block is known by ([`Part::reasoning_key`](crate::dialect::Part::reasoning_key)), of one as it was received: its seal, else its words,
/// as they stand there.
pub fn literal(raw: &str) -> Option<String> {
    let document = Document::read(raw.as_bytes()).ok()?;
    let root = document.root(raw.as_bytes())?;
    let found = root.get_any(&SEALS).or_else(|| root.get_any(&WORDS))?;
    let literal = std::str::from_utf8(found.raw()).ok()?;
    Some(literal.strip_prefix('"')?.strip_suffix('"')?.to_owned())
}
