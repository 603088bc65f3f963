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
use crate::dialect::{Chain, Conversation, Dialect, Part, PartIndex, PartKey, PartKind, Role};

/// A reply that was found in a request.
struct AlignedReply {
    /// The place of each of its parts; `None` for those that the client did not send back.
    parts: Vec<Option<PartIndex>>,
    /// The first and the last keyed part of it.
    first: usize,
    last: usize,
}

impl RecordedDecisions {
    pub(super) fn find_replies(
        &mut self,
        ledger: &Ledger,
        conversation: &Conversation,
        branch: &Branch<'_>,
    ) {
        let mut aligned_chains: HashSet<Chain> = HashSet::default();
        let mut covered = vec![false; self.keyed_parts.len()];
        for (index, &chain) in conversation.chains().iter().enumerate() {
            let Some(reasoning) = branch.reasoning(chain) else {
                // A reply without known reasoning gets none of another with the same text.
                let turn = ledger.replied_to(chain).next();
                let form = turn.and_then(|turn| turn.forms().find(|form| form.after == chain));
                let count = form.map_or(0, |form| form.parts.len());
                let start = (index + 1).saturating_sub(count);
                covered[start..=index].fill(true);
                // One that broke off may have the same beginning. This one came back in its place.
                self.replies.retain(|other| other.parts.is_empty() || other.index < start);
                continue;
            };
            let count = reasoning.parts.len();
            let Some(first) = (index + 1).checked_sub(count) else { continue };
            // It was reasoning alone.
            if count == 0 {
                self.replies.extend(self.thought_only(conversation, reasoning, index));
                continue;
            }
            covered[first..=index].fill(true);
            aligned_chains.insert(chain);
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
                // What is left of a reply tells less, so that only the newest of its text that is not elsewhere comes into
                // question.
                let limit = if is_whole { usize::MAX } else { 1 };
                let alike = ledger.reasoning_by_anchor_key(keyed.key);
                let alike = alike.filter(|one| !aligned_chains.contains(&one.after)).take(limit);
                for reasoning in alike {
                    if branch.is_of_another(reasoning) {
                        continue;
                    }
                    let Some(aligned) = self.aligned(reasoning, index) else { continue };
                    if !is_whole || aligned.parts.iter().all(Option::is_some) {
                        aligned_chains.insert(reasoning.after);
                        covered[aligned.first..=aligned.last].fill(true);
                        self.add_aligned(conversation, reasoning, aligned, &covered);
                        break;
                    }
                }
            }
        }
        self.find_calls(ledger, conversation, branch, &mut covered, &mut aligned_chains);
        self.sort_replies();
        for (number, returned) in self.replies.iter_mut().enumerate() {
            returned.number = number;
        }
        self.find_foreign(ledger, conversation);
        self.only_kept();
    }

    /// Finds replies of which only calls came back as they were: their texts were merged, edited or dropped. All of
    /// the request before them did.
    fn find_calls(
        &mut self,
        ledger: &Ledger,
        conversation: &Conversation,
        branch: &Branch<'_>,
        covered: &mut [bool],
        aligned_chains: &mut HashSet<Chain>,
    ) {
        if !ledger.knows_reasoning() {
            return;
        }
        let requests = conversation.chains();
        for index in 0..self.keyed_parts.len() {
            let keyed = self.keyed_parts[index];
            let is_call =
                conversation.part(keyed.at).is_some_and(|part| part.kind == PartKind::ToolCall);
            if covered[index] || !is_call {
                continue;
            }
            let run = self.keyed_parts[..index].iter().rev();
            let run = run.take_while(|keyed| keyed.role == Role::Assistant).count();
            let Some(request) = (index - run).checked_sub(1).map(|end| requests[end]) else {
                continue;
            };
            let mut turns = ledger.ended_at(request).filter(|turn| turn.has_in_reply(keyed.key));
            // The newest one, whether it reasoned or not.
            let made = turns
                .next()
                .and_then(|turn| turn.forms().find_map(|form| branch.reasoning(form.after)));
            if let Some(reasoning) = made
                && !aligned_chains.contains(&reasoning.after)
                && let Some(aligned) = self.aligned(reasoning, index)
            {
                aligned_chains.insert(reasoning.after);
                covered[aligned.first..=aligned.last].fill(true);
                self.add_aligned(conversation, reasoning, aligned, covered);
            }
        }
    }

    fn add_aligned(
        &mut self,
        conversation: &Conversation,
        reasoning: &Arc<ReasoningRecord>,
        aligned: AlignedReply,
        covered: &[bool],
    ) {
        let AlignedReply { parts, first, last } = aligned;
        // The client edited what is missing at its ends: the reasoning beside it belongs to this reply.
        let missing = parts.iter().take_while(|part| part.is_none()).count();
        let start = self.edited(covered, (0..first).rev(), missing).unwrap_or(first);
        let missing = parts.iter().rev().take_while(|part| part.is_none()).count();
        let following = last + 1..self.keyed_parts.len();
        let end = self.edited(covered, following, missing).unwrap_or(last);
        let region = self.region(conversation, start, end);
        let returned = self.returned(conversation, reasoning, parts, first, last);
        self.replies.push(ReturnedReply { region, ..returned });
    }

    /// The last of the parts of the model next to a reply, as many as it misses there, that belong to no other.
    fn edited(
        &self,
        covered: &[bool],
        next: impl Iterator<Item = usize>,
        missing: usize,
    ) -> Option<usize> {
        next.take(missing)
            .take_while(|at| self.keyed_parts[*at].role == Role::Assistant && !covered[*at])
            .last()
    }

    fn sort_replies(&mut self) {
        self.replies.sort_by_key(|returned| {
            (returned.index, !returned.parts.is_empty(), Reverse(returned.last_part()))
        });
        // A reply that ends within another broke off: its request was repeated, and the second reply came
        // back.
        let mut end = None;
        self.replies.retain(|returned| {
            let last_part = returned.last_part();
            let is_within = last_part.is_some() && last_part < end;
            end = end.max(last_part);
            !is_within
        });
    }

    /// Finds the client's own reasoning that belongs to no reply which it sent back, and the replies whose place
    /// it takes.
    fn find_foreign(&mut self, ledger: &Ledger, conversation: &Conversation) {
        let mut from = 0;
        let mut intact = HashSet::default();
        for (at, part) in places_of_parts(conversation) {
            let Some(key) = part.reasoning_key.map(PartKey) else { continue };
            let made = ledger.reasoning_by_signature(key);
            // Replies and reasoning are in the same order.
            while self.replies.get(from).is_some_and(|returned| returned.region.end <= at) {
                from += 1;
            }
            let mut spanning: Vec<&mut ReturnedReply> = self.replies[from..]
                .iter_mut()
                .take_while(|returned| returned.region.start <= at)
                .filter(|returned| returned.spans(at))
                .collect();
            let is_unsigned = part.signature.is_none() && !spanning.is_empty();
            if let Some(returned) = spanning.iter().find(|returned| returned.made(made, key)) {
                intact.insert(returned.number);
                continue;
            }
            if is_unsigned {
                continue;
            }
            for returned in &mut spanning {
                returned.is_replaced = true;
            }
            self.foreign.push(ForeignReasoning { at, made: made.cloned() });
        }
        // The client sends some of its reasoning, so it is there, whatever else is beside it.
        for returned in &mut self.replies {
            returned.is_replaced &= !intact.contains(&returned.number);
        }
    }

    /// The record of the reply that made the reasoning at a place within `returned`: of another reply if the
    /// client sends that one's.
    pub(in crate::context) fn maker_at<'k>(
        &'k self,
        at: PartIndex,
        returned: &'k ReturnedReply,
    ) -> &'k ReasoningRecord {
        let foreign = self.foreign.iter().find(|reasoning| reasoning.at == at);
        foreign.and_then(|reasoning| reasoning.made.as_ref()).unwrap_or(&returned.reasoning)
    }

    fn thought_only(
        &self,
        conversation: &Conversation,
        reasoning: &Arc<ReasoningRecord>,
        index: usize,
    ) -> Option<ReturnedReply> {
        let returned = self.returned(conversation, reasoning, Vec::new(), index + 1, index);
        // Without the reasoning, nothing of such a reply comes back.
        let thought = returned.places(conversation).find(|at| {
            let part = conversation.part(*at);
            part.is_some_and(|part| {
                part.kind == PartKind::Reasoning && part.role == Role::Assistant
            })
        });
        Some(ReturnedReply { region: thought?..returned.region.end, ..returned })
    }

    /// Finds the parts of a reply, in order, around the one at `marked`.
    fn aligned(&self, reasoning: &ReasoningRecord, marked: usize) -> Option<AlignedReply> {
        // A reply is among adjacent parts of the model.
        let keyed_parts = &self.keyed_parts;
        let run = keyed_parts[..marked].iter().rev();
        let mut start = marked - run.take_while(|keyed| keyed.role == Role::Assistant).count();
        let run = keyed_parts[marked..].iter();
        let end = marked + run.take_while(|keyed| keyed.role == Role::Assistant).count();
        let mut places = Vec::new();
        for key in &reasoning.parts {
            let place = (start..end).find(|index| keyed_parts[*index].key == *key);
            places.push(place);
            start = place.map_or(start, |place| place + 1);
        }
        let mut indexes = places.iter().flatten().copied();
        let first = indexes.next()?;
        let last = indexes.next_back().unwrap_or(first);
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

    fn region(&self, conversation: &Conversation, first: usize, last: usize) -> Range<PartIndex> {
        let has_parts = first <= last;
        // The fields of a message have no order: whatever its client added, its reasoning is this reply's.
        if has_parts && conversation.dialect == Dialect::OpenaiChat {
            let [first, last] = [first, last].map(|index| self.keyed_parts[index].at.message);
            return PartIndex::new(first, 0)..PartIndex::new(last + 1, 0);
        }
        // Reasoning has no key: what stands between two keyed parts belongs to the reply.
        let previous = first.checked_sub(1).map(|index| self.keyed_parts[index].at);
        let start = previous.map_or_else(PartIndex::default, PartIndex::after);
        let following = self.keyed_parts.get(last + 1).map(|keyed| keyed.at);
        start..following.unwrap_or_else(|| PartIndex::new(conversation.messages.len(), 0))
    }
}

fn places_of_parts(conversation: &Conversation) -> impl Iterator<Item = (PartIndex, &Part)> {
    conversation.messages.iter().enumerate().flat_map(|(index, message)| {
        let parts = message.parts.iter().enumerate();
        parts.map(move |(number, part)| (PartIndex::new(index, number), part))
    })
}

#[cfg(test)]
mod tests;
