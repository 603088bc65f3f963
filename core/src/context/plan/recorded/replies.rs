//! Which replies a client sent back, of those whose reasoning is recorded; and reasoning of its own that belongs
//! to none of them.
//!
//! They are found by their chain, or by an anchor key if the client changed something before them.

use std::cmp::Reverse;
use std::ops::Range;
use std::sync::Arc;

use foldhash::HashSet;

use super::RecordedDecisions;
use super::branch::Branch;
use super::reply::{ForeignReasoning, ReturnedReply};
use crate::context::ReasoningRecord;
use crate::context::ledger::Ledger;
use crate::context::signature::signature_key;
use crate::dialect::{Chain, Conversation, PartIndex, PartKey, PartKind, Role};

/// A reply that was found in a request.
struct AlignedReply {
    /// The place of each of its parts; `None` for those that the client did not send back.
    parts: Vec<Option<PartIndex>>,
    /// The first and the last keyed part of it.
    first: usize,
    last: usize,
}

impl RecordedDecisions {
    /// Finds replies by the chain after them, else by an anchor key.
    pub(super) fn find_replies(
        &mut self,
        ledger: &Ledger,
        conversation: &Conversation,
        branch: &Branch<'_>,
    ) {
        let mut found: HashSet<Chain> = HashSet::default();
        let mut covered = vec![false; self.keyed_parts.len()];
        for (index, chain) in conversation.chains().enumerate() {
            let Some(reasoning) = branch.reasoning(chain) else {
                // A reply without known reasoning gets none of another with the same text.
                let mut forms =
                    ledger.replied_to(chain).next().into_iter().flat_map(|it| it.forms());
                let form = forms.find(|form| form.after == chain);
                let count = form.map_or(0, |form| form.parts.len());
                let first = (index + 1).saturating_sub(count);
                covered[first..=index].fill(true);
                // One that broke off may have the same beginning. This one came back in its place.
                self.replies.retain(|other| other.parts.is_empty() || other.index < first);
                continue;
            };
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
                let aligned = alike
                    .filter(|it| !found.contains(&it.after) && !branch.is_of_another(it))
                    .find_map(|reasoning| {
                        let aligned = self.aligned(reasoning, index)?;
                        let fits = !is_whole || aligned.parts.iter().all(Option::is_some);
                        fits.then_some((reasoning, aligned))
                    });
                if let Some((reasoning, AlignedReply { parts, first, last })) = aligned {
                    found.insert(reasoning.after);
                    covered[first..=last].fill(true);
                    // The client edited what is missing at its ends: the reasoning beside it belongs to this reply.
                    let missing = parts.iter().take_while(|part| part.is_none()).count();
                    let begin = self.edited(&covered, (0..first).rev(), missing).unwrap_or(first);
                    let missing = parts.iter().rev().take_while(|part| part.is_none()).count();
                    let after = last + 1..self.keyed_parts.len();
                    let end = self.edited(&covered, after, missing).unwrap_or(last);
                    let region = self.region(conversation, begin, end);
                    let returned = self.returned(conversation, reasoning, parts, first, last);
                    self.replies.push(ReturnedReply { region, ..returned });
                }
            }
        }
        self.sort_replies();
        let replies = self.replies.iter_mut().enumerate();
        replies.for_each(|(number, returned)| returned.number = number);
        self.find_foreign(ledger, conversation);
        self.only_kept();
    }

    /// The last of the parts of the model next to a reply, as many as it misses there, that belong to no other.
    fn edited(
        &self,
        covered: &[bool],
        next: impl Iterator<Item = usize>,
        missing: usize,
    ) -> Option<usize> {
        let is_free = |at: &usize| self.keyed_parts[*at].role == Role::Assistant && !covered[*at];
        next.take(missing).take_while(is_free).last()
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
                    || it
                        .reasoning
                        .blocks
                        .iter()
                        .any(|block| signature_key(&block.raw) == Some(key))
            };
            let is_unsigned = part.signature.is_none() && !here.is_empty();
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
    fn aligned(&self, reasoning: &ReasoningRecord, marked: usize) -> Option<AlignedReply> {
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
        Some(AlignedReply { parts, first, last })
    }

    fn returned(
        &self,
        conversation: &Conversation,
        reasoning: &Arc<ReasoningRecord>,
        parts: Vec<Option<PartIndex>>,
        first: usize,
        last: usize,
    ) -> ReturnedReply {
        ReturnedReply {
            reasoning: reasoning.clone(),
            parts,
            number: 0,
            index: first,
            region: self.region(conversation, first, last),
            is_replaced: false,
        }
    }

    /// From the keyed part before `first` to the one after `last`, both excluded.
    fn region(&self, conversation: &Conversation, first: usize, last: usize) -> Range<PartIndex> {
        let before = first.checked_sub(1).map(|before| self.keyed_parts[before].at);
        let begin = before.map_or_else(PartIndex::default, PartIndex::after);
        let next = self.keyed_parts.get(last + 1).map(|next| next.at);
        begin..next.unwrap_or_else(|| PartIndex::new(conversation.messages.len(), 0))
    }
}

#[cfg(test)]
mod tests;
