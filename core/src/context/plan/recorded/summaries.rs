//! The summaries of a request: those written for its history, and the one in use.
//!
//! A summary is found by the chain at its cut, or by the parts before the cut if the client changed something
//! earlier (`docs/architecture.md` "Branches and decisions").

use std::sync::Arc;

use foldhash::HashMap;

use super::RecordedDecisions;
use super::branch::Branch;
use crate::context::ledger::{self, Ledger};
use crate::context::policy::{DecisionMode, SummaryAuthor};
use crate::context::{CompactionRecord, ForwardedHistory};
use crate::dialect::rewrite;
use crate::dialect::{Chain, Conversation, PartKey, PartKind, Role, Span};

/// How many keyed parts before a cut are stored to find it again.
const NEAR: usize = 4;

impl RecordedDecisions {
    /// The index of the first message after a summary's cut in this history, by its chain, else by the parts
    /// before it. `None` if the cut is not in the history (a rewind), or not at the start of a message.
    fn cut_of(&self, chains: &HashMap<Chain, usize>, compact: &CompactionRecord) -> Option<usize> {
        let near = |index: usize| {
            let before = self.keyed_parts[..=index].iter().rev().map(|keyed| keyed.key);
            before.take(compact.near.len()).eq(compact.near.iter().copied())
        };
        let by_parts = || {
            let nearby = (0..self.keyed_parts.len()).rev().filter(|_| compact.is_own);
            let mut last = compact.near.first().into_iter().flat_map(|last| {
                nearby
                    .clone()
                    .filter(|index| self.keyed_parts[*index].key == *last)
                    .collect::<Vec<_>>()
            });
            last.find(|index| near(*index))
        };
        let index = chains.get(&compact.about).copied().or_else(by_parts)?;
        let cut = self.keyed_parts[index].at.message + 1;
        let next = self.keyed_parts.get(index + 1)?;
        (next.at.message >= cut).then_some(cut)
    }

    pub(super) fn find_summaries(
        &mut self,
        ledger: &Ledger,
        conversation: &Conversation,
        mode: DecisionMode,
        branch: &Branch<'_>,
    ) {
        let mut written = ledger.summaries(mode).chain(ledger.compacts(mode)).peekable();
        if written.peek().is_none() {
            return;
        }
        let chains = indexed(conversation);
        let model = conversation.model.as_deref();
        let suits = |one: &&Arc<CompactionRecord>| one.is_for(model);
        let placed = |one: &Arc<CompactionRecord>| {
            let cut = self.cut_of(&chains, one)?;
            let is_sent = branch.has_sent(one.key());
            Some((cut, if is_sent { one.clone() } else { self.alternating(cut, one.clone()) }))
        };
        let used = ledger.compacts_holding(mode, self.epoch).filter(suits);
        let used = used.filter_map(placed).filter(|(_, one)| branch.has_compact(one));
        let used = used.max_by_key(|(cut, one)| (*cut, std::cmp::Reverse(one.at)));
        let written = ledger.summaries_holding(mode, self.epoch).filter(suits).filter_map(placed);
        let written: Vec<_> = written.collect();
        let first = used.as_ref().and_then(|(_, one)| ledger.turn(&one.exchange));
        self.compacted_to = first.and_then(|turn| {
            let estimated = turn.estimate.as_ref().map(|estimate| estimate.tokens);
            turn.usage.input.or(estimated)
        });
        self.compact = used;
        let kept = self.kept_from();
        self.summaries = written.into_iter().filter(|(cut, _)| *cut > kept).collect();
    }

    /// Whether `ledger` has a summary for this history that is not known here and replaces more than
    /// the one in use.
    pub fn has_new_summary(
        &self,
        ledger: &Ledger,
        conversation: &Conversation,
        mode: DecisionMode,
    ) -> bool {
        let model = conversation.model.as_deref();
        let is_known = |one: &CompactionRecord| {
            self.summaries.iter().any(|(_, known)| (known.about, known.at) == (one.about, one.at))
        };
        let new = ledger.summaries_holding(mode, self.epoch);
        let mut new = new.filter(|one| one.is_for(model) && !is_known(one)).peekable();
        if new.peek().is_none() {
            return false;
        }
        let chains = indexed(conversation);
        new.any(|one| self.cut_of(&chains, one).is_some_and(|cut| cut > self.kept_from()))
    }

    /// A summary in the form in which it is sent before the message at `cut`. It may have been written in another
    /// branch, where the user's message follows, and end with a boundary of the model. Before a message of the model
    /// it has none: two of them in a row would be one, and its reasoning would no longer come first.
    fn alternating(&self, cut: usize, one: Arc<CompactionRecord>) -> Arc<CompactionRecord> {
        let next = self.keyed_parts.partition_point(|keyed| keyed.at.message < cut);
        let next = self.keyed_parts.get(next);
        let is_models = next.is_some_and(|keyed| keyed.role == Role::Assistant);
        if one.by == SummaryAuthor::Provider || !is_models {
            return one;
        }
        match rewrite::without_boundary(&one.raw) {
            Some(raw) => {
                Arc::new(CompactionRecord { raw: raw.into(), ..CompactionRecord::clone(&one) })
            }
            None => one,
        }
    }

    /// The summary in use, with the index of the first message that stays.
    pub fn compact(&self) -> Option<(usize, &CompactionRecord)> {
        self.compact.as_ref().map(|(cut, compact)| (*cut, &**compact))
    }

    /// The index of the first message that is sent as it came; 0 without a summary.
    pub(crate) fn kept_from(&self) -> usize {
        self.compact.as_ref().map_or(0, |(cut, _)| *cut)
    }

    /// Removes the replies that the summary covers.
    pub(super) fn only_kept(&mut self) {
        let from = self.kept_from();
        if from > 0 {
            self.replies.retain(|returned| returned.start().message >= from);
            let replies = self.replies.iter_mut().enumerate();
            replies.for_each(|(number, returned)| returned.number = number);
        }
    }

    /// Puts a summary that was written for this request into use.
    pub(super) fn use_summary(&mut self, compact: CompactionRecord) {
        let written = self.summaries.iter().find(|(_, one)| one.about == compact.about);
        if let Some(cut) = written.map(|(cut, _)| *cut).filter(|cut| *cut > self.kept_from()) {
            self.adopt(compact.address().0, &compact.exchange);
            self.compact = Some((cut, self.alternating(cut, Arc::new(compact))));
            self.summaries.retain(|(other, _)| *other > cut);
            self.only_kept();
        }
    }

    /// The chain at a cut, and the keyed parts before it, nearest first. `None` if the message before it does
    /// not end with a keyed part, so that the cut could not be found again.
    pub(crate) fn at_cut(&self, cut: usize) -> Option<(Chain, Vec<PartKey>)> {
        let before = self.keyed_parts.partition_point(|keyed| keyed.at.message < cut);
        let keyed_parts = &self.keyed_parts[..before];
        keyed_parts.last().filter(|keyed| keyed.at.message + 1 == cut)?;
        let chain = keyed_parts.iter().map(|keyed| keyed.key).fold(Chain::START, Chain::then);
        Some((chain, keyed_parts.iter().rev().take(NEAR).map(|keyed| keyed.key).collect()))
    }

    /// Whether one of the parts just before a cut is unique: by an id of its own, or because it is a text of
    /// the model that is long enough.
    pub(crate) fn has_own_near(&self, conversation: &Conversation, cut: usize) -> bool {
        let before = self.keyed_parts.partition_point(|keyed| keyed.at.message < cut);
        self.keyed_parts[..before].iter().rev().take(NEAR).any(|keyed| {
            let message = conversation.messages.get(keyed.at.message);
            let part = message.and_then(|message| message.parts.get(keyed.at.part));
            let text = part.filter(|it| it.kind == PartKind::Text && it.role == Role::Assistant);
            let length = text.map_or(0, |part| part.texts.iter().map(Span::len).sum());
            keyed.about == keyed.key.0 || length >= ledger::ANCHOR_BYTES
        })
    }

    /// What is forwarded before a message of the history.
    pub fn carried(&self, cut: usize) -> ForwardedHistory {
        let before = self.keyed_parts.partition_point(|keyed| keyed.at.message < cut);
        ForwardedHistory { head: self.head, sent: self.sent().before(before) }
    }
}

/// The chains of a history, each with the index of its part.
fn indexed(conversation: &Conversation) -> HashMap<Chain, usize> {
    conversation.chains().enumerate().map(|(index, chain)| (chain, index)).collect()
}
