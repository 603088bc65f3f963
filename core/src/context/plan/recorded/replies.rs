//! Replies that a client sent back and whose reasoning is recorded: where their parts are, and which
//! reasoning is missing.
//!
//! They are found by their chain, or by an anchor key if the client changed something before them.

use std::cmp::Reverse;
use std::ops::Range;
use std::sync::Arc;

use foldhash::HashSet;

use super::RecordedDecisions;
use crate::context::ledger::Ledger;
use crate::context::plan::PlanRequest;
use crate::context::reasoning::Signature;
use crate::context::seal::seal;
use crate::context::{ReasoningBlock, ReasoningRecord};
use crate::dialect::{Chain, Conversation, Dialect, Part, PartIndex, PartKey, PartKind, Role};
use crate::wire::json::text_of;

/// A reply that the client sent back and whose reasoning is recorded.
#[derive(Clone, Debug)]
pub struct ReturnedReply {
    /// Its recorded reasoning.
    pub reasoning: Arc<ReasoningRecord>,
    /// The place of each of its keyed parts; `None` for those that the client dropped.
    pub parts: Vec<Option<PartIndex>>,
    /// Its index among the known replies of the request.
    pub number: usize,
    /// The index of its first keyed part among all keyed parts of the history.
    pub index: usize,
    /// The places of the parts that belong to it, with a key or without: from the first to one past the last.
    region: Range<PartIndex>,
    /// The client sends reasoning of another reply in its place: the request was repeated.
    pub is_replaced: bool,
}

/// A client's own reasoning that belongs to no reply which the client sent back.
#[derive(Clone, Debug)]
pub struct ForeignReasoning {
    /// Its place.
    pub at: PartIndex,
    /// The record of the reply that it is from. `None` if it is not known who made it.
    pub made: Option<Arc<ReasoningRecord>>,
}

/// Reasoning that a client left out of a reply.
#[derive(Clone, Debug, Default)]
pub struct DroppedReasoning<'r> {
    /// Blocks, in order.
    pub blocks: Vec<&'r ReasoningBlock>,
    /// Signatures, with the part that each belongs to.
    pub seals: Vec<(PartIndex, &'r str)>,
}

impl DroppedReasoning<'_> {
    /// Whether the client dropped nothing.
    pub fn is_nothing(&self) -> bool {
        self.blocks.is_empty() && self.seals.is_empty()
    }

    /// Whether the client dropped only blocks that may be incomplete.
    pub fn is_partial(&self) -> bool {
        self.seals.is_empty() && self.blocks.iter().all(|block| block.partial)
    }
}

impl RecordedDecisions {
    /// Finds replies by the chain after them, else by an anchor key.
    pub(super) fn find_replies(&mut self, ledger: &Ledger, conversation: &Conversation) {
        let mut found: HashSet<Chain> = HashSet::default();
        let mut covered = vec![false; self.keyed_parts.len()];
        for (index, chain) in conversation.chains().enumerate() {
            let Some(reasoning) = ledger.reasoning(chain) else { continue };
            let count = reasoning.parts.len();
            let Some(first) = (index + 1).checked_sub(count) else { continue };
            if count == 0 {
                self.replies.extend(self.thought_only(conversation, reasoning, index));
                continue;
            }
            covered[first..=index].fill(true);
            found.insert(chain);
            let parts =
                self.keyed_parts[first..=index].iter().map(|keyed| Some(keyed.at)).collect();
            self.replies.push(self.returned(conversation, reasoning, parts, first, index));
        }
        // Replies that came back whole are found first. Of replies with the same text, the newest is the last.
        for is_whole in [true, false] {
            for index in (0..self.keyed_parts.len()).rev() {
                let keyed = self.keyed_parts[index];
                if covered[index] || keyed.role != Role::Assistant {
                    continue;
                }
                // What is left of a reply tells less, so that only the newest of its text comes into question.
                let most = if is_whole { usize::MAX } else { 1 };
                let alike = ledger.reasoning_by_anchor_key(keyed.key).take(most);
                let aligned = alike.filter(|it| !found.contains(&it.after)).find_map(|reasoning| {
                    let (parts, first, last) = self.aligned(reasoning, index)?;
                    let fits = !is_whole || parts.iter().all(Option::is_some);
                    fits.then_some((reasoning, parts, first, last))
                });
                if let Some((reasoning, parts, first, last)) = aligned {
                    found.insert(reasoning.after);
                    covered[first..=last].fill(true);
                    self.replies.push(self.returned(conversation, reasoning, parts, first, last));
                }
            }
        }
        self.sort_replies();
        let replies = self.replies.iter_mut().enumerate();
        replies.for_each(|(number, returned)| returned.number = number);
        self.find_foreign(ledger, conversation);
        self.only_kept();
    }

    /// Sorts the replies by their places. Drops a reply whose parts are the first ones of another reply: it
    /// broke off, its request was repeated, and the second reply came back.
    fn sort_replies(&mut self) {
        let last = |returned: &ReturnedReply| returned.parts.iter().flatten().next_back().copied();
        let order = |returned: &ReturnedReply| {
            (returned.index, !returned.parts.is_empty(), Reverse(last(returned)))
        };
        self.replies.sort_by_key(order);
        let mut end = None;
        self.replies.retain(|returned| {
            let is_within = last(returned).is_some() && last(returned) < end;
            end = end.max(last(returned));
            !is_within
        });
    }

    /// Finds the client's own reasoning that belongs to no reply which it sent back, and the replies whose place
    /// it takes.
    fn find_foreign(&mut self, ledger: &Ledger, conversation: &Conversation) {
        let messages = conversation.messages.iter().enumerate();
        let parts = messages.flat_map(|(index, message)| {
            let parts = message.parts.iter().enumerate();
            parts.map(move |(part, it)| (PartIndex::new(index, part), it))
        });
        let (mut from, mut kept) = (0, HashSet::default());
        for (at, part) in parts {
            let Some(key) = part.reasoning_key.map(PartKey) else { continue };
            let made = ledger.reasoning_by_signature(key);
            // Replies and reasoning are in the same order.
            from += self.replies[from..].iter().take_while(|it| it.region.end <= at).count();
            let here = self.replies[from..].iter_mut().take_while(|it| it.region.start <= at);
            let mut here: Vec<_> = here.filter(|it| it.spans(at)).collect();
            let holds = |it: &ReturnedReply| {
                made.is_some_and(|made| Arc::ptr_eq(made, &it.reasoning))
                    || it.reasoning.blocks.iter().any(|block| seal(&block.raw) == Some(key))
            };
            let is_unsigned = part.sealed.is_none() && !here.is_empty();
            let own = here.iter().find(|it| holds(it)).map(|it| it.number);
            kept.extend(own);
            if is_unsigned || own.is_some() {
                continue;
            }
            here.iter_mut().for_each(|returned| returned.is_replaced = true);
            self.foreign.push(ForeignReasoning { at, made: made.cloned() });
        }
        // The client sends some of its reasoning, so it is there, whatever else is beside it.
        let kept = self.replies.iter_mut().filter(|it| kept.contains(&it.number));
        kept.for_each(|returned| returned.is_replaced = false);
    }

    /// The record of the reply that made the reasoning at a place within `returned`: of another reply if the
    /// client sends that one's.
    pub(in crate::context) fn maker_at<'k>(
        &'k self,
        at: PartIndex,
        returned: &'k ReturnedReply,
    ) -> &'k ReasoningRecord {
        let foreign = self.foreign.iter().find(|it| it.at == at);
        foreign.and_then(|it| it.made.as_ref()).unwrap_or(&returned.reasoning)
    }

    /// A reply of nothing but reasoning, after the part at `index`, if its client sends the reasoning.
    fn thought_only(
        &self,
        conversation: &Conversation,
        reasoning: &Arc<ReasoningRecord>,
        index: usize,
    ) -> Option<ReturnedReply> {
        let returned = self.returned(conversation, reasoning, Vec::new(), index + 1, index);
        let thought = returned.places(conversation).find(|at| {
            conversation
                .part(*at)
                .is_some_and(|it| (it.kind, it.role) == (PartKind::Reasoning, Role::Assistant))
        });
        Some(ReturnedReply { region: thought?..returned.region.end, ..returned })
    }

    /// Finds the parts of a reply, in order, around the one at `marked`.
    #[allow(clippy::type_complexity, reason = "used once")]
    fn aligned(
        &self,
        reasoning: &ReasoningRecord,
        marked: usize,
    ) -> Option<(Vec<Option<PartIndex>>, usize, usize)> {
        let is_models = |index: &usize| self.keyed_parts[*index].role == Role::Assistant;
        let first = (0..marked).rev().take_while(is_models).last().unwrap_or(marked);
        let last = (marked..self.keyed_parts.len()).take_while(is_models).last()?;
        let (mut at, mut places) = (first, Vec::new());
        for key in &reasoning.parts {
            let place = (at..=last).find(|index| self.keyed_parts[*index].key == *key);
            places.push(place);
            at = place.map_or(at, |place| place + 1);
        }
        let mut there = places.iter().flatten().copied();
        let first = there.next()?;
        let last = there.next_back().unwrap_or(first);
        let parts = places.iter().map(|place| place.map(|at| self.keyed_parts[at].at)).collect();
        Some((parts, first, last))
    }

    fn returned(
        &self,
        conversation: &Conversation,
        reasoning: &Arc<ReasoningRecord>,
        parts: Vec<Option<PartIndex>>,
        first: usize,
        last: usize,
    ) -> ReturnedReply {
        let before = first.checked_sub(1).map(|before| self.keyed_parts[before].at);
        let begin = before.map_or_else(PartIndex::default, PartIndex::after);
        let end = match self.keyed_parts.get(last + 1) {
            Some(next) => next.at,
            None => PartIndex::new(conversation.messages.len(), 0),
        };
        ReturnedReply {
            reasoning: reasoning.clone(),
            parts,
            number: 0,
            index: first,
            region: begin..end,
            is_replaced: false,
        }
    }
}

impl ReturnedReply {
    /// Whether all its keyed parts came back.
    pub fn is_whole(&self) -> bool {
        self.parts.iter().all(Option::is_some)
    }

    /// Whether its stream broke off inside a reasoning block that a client may send back.
    pub fn is_partial(&self) -> bool {
        self.reasoning.blocks.iter().any(|block| block.partial)
    }

    /// The place of its first part.
    pub fn begins(&self) -> PartIndex {
        self.parts.iter().flatten().next().copied().unwrap_or(self.region.start)
    }

    /// Whether a place is within it.
    pub fn spans(&self, at: PartIndex) -> bool {
        self.region.contains(&at)
    }

    /// Whether one of its keyed parts is at this place.
    pub fn holds(&self, at: PartIndex) -> bool {
        self.parts.iter().flatten().any(|part| *part == at)
    }

    /// The reasoning that the client dropped. What it sends is left as it is: one signature stands for its
    /// block, and in dialects with one reasoning field, that field stands for all.
    pub fn missing(&self, request: &PlanRequest<'_>) -> DroppedReasoning<'_> {
        if self.is_replaced {
            return DroppedReasoning::default();
        }
        let sent: Vec<&Part> = self.region(request.conversation);
        let is_reasoning = |part: &&&Part| part.kind == PartKind::Reasoning;
        let sent: Vec<&Part> = sent.iter().filter(is_reasoning).copied().collect();
        let one_field = request.conversation.dialect == Dialect::OpenaiChat;
        let is_there = |raw: &str| {
            sent.iter().any(|part| match part.sealed {
                Some(sealed) => {
                    let literal = sealed.of(request.body);
                    let words = literal.get(1..literal.len().saturating_sub(1));
                    words.is_some_and(|words| memchr::memmem::find(raw.as_bytes(), words).is_some())
                }
                None => true,
            })
        };
        let blocks = self.reasoning.blocks.iter();
        let blocks = blocks.filter(|block| match one_field {
            true => sent.is_empty(),
            false => !is_there(&block.raw),
        });
        let seals = self.reasoning.seals.iter().filter_map(|signature| {
            let at = self.signed(request, signature)?;
            let is_bare = request.part(at).is_some_and(|part| part.sealed.is_none());
            is_bare.then_some((at, &*signature.seal))
        });
        DroppedReasoning { blocks: blocks.collect(), seals: seals.collect() }
    }

    /// The part that a signature belongs to. `None` if that part did not come back, or if it is text that
    /// came back split differently, so that the signature does not fit.
    fn signed(&self, request: &PlanRequest<'_>, signature: &Signature) -> Option<PartIndex> {
        let keyed = self.parts.get(signature.part as usize).copied().flatten()?;
        if request.part(keyed)?.kind != PartKind::Text {
            return Some(keyed);
        }
        let before: Vec<_> =
            self.places(request.conversation).take_while(|at| *at <= keyed).collect();
        let is_of_run = |at: &&PartIndex| {
            **at == keyed || request.part(**at).is_some_and(|part| part.key.is_none())
        };
        let mut run: Vec<(PartIndex, usize)> = before
            .iter()
            .rev()
            .take_while(is_of_run)
            .filter_map(|at| Some((*at, said_bytes(request.part(*at)?, request.body)?)))
            .collect();
        run.reverse();
        let whole = run.iter().map(|(_, bytes)| bytes).sum();
        let piece = signature.piece.map_or((0, whole), |(from, to)| (from as usize, to as usize));
        let mut ends = 0;
        run.into_iter().find_map(|(at, bytes)| {
            let begins = ends;
            ends += bytes;
            (bytes > 0 && (begins, ends) == piece).then_some(at)
        })
    }

    /// The part that a block has to be inserted before. `None` if the block led to a call that ran at the
    /// provider and did not come back: alone, the block would be refused (`docs/protocols.md` 3.2).
    pub fn place(
        &self,
        conversation: &Conversation,
        thought: &ReasoningBlock,
    ) -> Option<PartIndex> {
        let before = self.parts.len().min(thought.before as usize);
        let (earlier, later) = self.parts.split_at(before);
        let after = earlier.iter().flatten().next_back().copied();
        if !thought.leads {
            let last = after.map(PartIndex::after);
            return later.iter().flatten().next().copied().or(last);
        }
        let all: Vec<PartIndex> = self.places(conversation).collect();
        let start = match after {
            Some(after) => all.iter().position(|at| *at == after)? + 1,
            None => 0,
        };
        let ran = all[start..].iter().filter(|at| conversation.part(**at).is_some_and(is_hosted));
        ran.copied().nth(thought.hosted as usize)
    }

    /// The places of all parts within it.
    pub(in crate::context) fn places(
        &self,
        conversation: &Conversation,
    ) -> impl Iterator<Item = PartIndex> {
        let Range { start, end } = self.region;
        let messages = conversation.messages.iter().enumerate().skip(start.message);
        let messages = messages.take_while(move |(index, _)| *index <= end.message);
        messages.flat_map(move |(index, message)| {
            let from = if index == start.message { start.part } else { 0 };
            let to = if index == end.message { end.part } else { message.parts.len() };
            (from..to).map(move |part| PartIndex::new(index, part))
        })
    }

    /// Every part of the model within the reply's range.
    pub(in crate::context) fn region<'c>(&self, conversation: &'c Conversation) -> Vec<&'c Part> {
        let places = self.places(conversation);
        let parts = places.filter_map(|at| conversation.part(at));
        parts.filter(|part| part.role == Role::Assistant).collect()
    }
}

/// Whether a part of the model ran at the provider: it has no key, and is neither text nor reasoning.
fn is_hosted(part: &Part) -> bool {
    let said = matches!(part.kind, PartKind::Text | PartKind::Reasoning);
    part.role == Role::Assistant && part.key.is_none() && !said
}

/// Length of a text part's text, bytes; `None` for other parts.
fn said_bytes(part: &Part, body: &[u8]) -> Option<usize> {
    let bytes = part.texts.iter().map(|text| text_of(text.of(body)).map_or(0, |text| text.len()));
    (part.kind == PartKind::Text).then(|| bytes.sum())
}

#[cfg(test)]
mod tests;
