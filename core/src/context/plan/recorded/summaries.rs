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
        let index = match chains.get(&compact.about) {
            Some(index) => *index,
            // Parts that occur more than once do not tell where the cut was.
            None if compact.is_own && !compact.near.is_empty() => {
                (0..self.keyed_parts.len()).rev().find(|index| self.is_near(compact, *index))?
            }
            None => return None,
        };
        let cut = self.keyed_parts[index].at.message + 1;
        let following = self.keyed_parts.get(index + 1)?;
        if following.at.message >= cut { Some(cut) } else { None }
    }

    fn is_near(&self, compact: &CompactionRecord, index: usize) -> bool {
        let keys = self.keyed_parts[..=index].iter().rev().map(|keyed| keyed.key);
        keys.take(compact.near.len()).eq(compact.near.iter().copied())
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
        let used = ledger
            .compacts_holding(mode, self.epoch)
            .filter(|one| one.is_for(model))
            .filter_map(|one| self.placed(&chains, branch, one))
            .filter(|(_, one)| branch.has_compact(one));
        let compact = used.max_by_key(|(cut, one)| (*cut, std::cmp::Reverse(one.at)));
        let summaries: Vec<_> = ledger
            .summaries_holding(mode, self.epoch)
            .filter(|one| one.is_for(model))
            .filter_map(|one| self.placed(&chains, branch, one))
            .collect();
        let turn = compact.as_ref().and_then(|(_, one)| ledger.turn(&one.exchange));
        self.compacted_to = turn.and_then(|turn| {
            let estimate = turn.estimate.as_ref().map(|estimate| estimate.tokens);
            turn.usage.input.or(estimate)
        });
        self.compact = compact;
        // A summary of less than the one in use would bring back what is gone.
        let from = self.kept_from();
        self.summaries = summaries.into_iter().filter(|(cut, _)| *cut > from).collect();
    }

    fn placed(
        &self,
        chains: &HashMap<Chain, usize>,
        branch: &Branch<'_>,
        one: &Arc<CompactionRecord>,
    ) -> Option<(usize, Arc<CompactionRecord>)> {
        let cut = self.cut_of(chains, one)?;
        // What this branch has sent stays as it is, for the cache.
        if branch.has_sent(one.key()) {
            return Some((cut, one.clone()));
        }
        Some((cut, self.alternating(cut, one.clone())))
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
        let mut unknown = ledger
            .summaries_holding(mode, self.epoch)
            .filter(|one| {
                let mut summaries = self.summaries.iter();
                one.is_for(model)
                    && !summaries.any(|(_, other)| other.about == one.about && other.at == one.at)
            })
            .peekable();
        // The chains of a long history take time.
        if unknown.peek().is_none() {
            return false;
        }
        let chains = indexed(conversation);
        unknown.any(|one| self.cut_of(&chains, one).is_some_and(|cut| cut > self.kept_from()))
    }

    fn alternating(&self, cut: usize, one: Arc<CompactionRecord>) -> Arc<CompactionRecord> {
        let index = self.keyed_parts.partition_point(|keyed| keyed.at.message < cut);
        let following = self.keyed_parts.get(index);
        let is_models = following.is_some_and(|keyed| keyed.role == Role::Assistant);
        if one.by == SummaryAuthor::Provider || !is_models {
            return one;
        }
        // It may have been written in another branch, where the user's message follows, and end with a
        // boundary of the model. Before a message of the model that would be a second one in a row, and its
        // reasoning would no longer come first.
        match rewrite::with_boundary_moved(&one.raw) {
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

    pub(super) fn only_kept(&mut self) {
        let from = self.kept_from();
        if from > 0 {
            self.replies.retain(|returned| returned.start().message >= from);
            for (number, returned) in self.replies.iter_mut().enumerate() {
                returned.number = number;
            }
        }
    }

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
    /// not end with a keyed part.
    pub(crate) fn at_cut(&self, cut: usize) -> Option<(Chain, Vec<PartKey>)> {
        let index = self.keyed_parts.partition_point(|keyed| keyed.at.message < cut);
        let keyed_parts = &self.keyed_parts[..index];
        // Otherwise the cut could not be found again.
        keyed_parts.last().filter(|keyed| keyed.at.message + 1 == cut)?;
        let chain = keyed_parts.iter().map(|keyed| keyed.key).fold(Chain::START, Chain::then);
        Some((chain, keyed_parts.iter().rev().take(NEAR).map(|keyed| keyed.key).collect()))
    }

    /// Whether one of the parts just before a cut is unique: by an id of its own, or because it is a text of
    /// the model that is long enough.
    pub(crate) fn has_own_near(&self, conversation: &Conversation, cut: usize) -> bool {
        let index = self.keyed_parts.partition_point(|keyed| keyed.at.message < cut);
        self.keyed_parts[..index].iter().rev().take(NEAR).any(|keyed| {
            let message = conversation.messages.get(keyed.at.message);
            let part = message.and_then(|message| message.parts.get(keyed.at.part));
            let text =
                part.filter(|part| part.kind == PartKind::Text && part.role == Role::Assistant);
            let length = text.map_or(0, |part| part.texts.iter().map(Span::len).sum());
            keyed.about == keyed.key.0 || length >= ledger::ANCHOR_BYTES
        })
    }

    /// What is forwarded before a message of the history.
    pub fn carried(&self, cut: usize) -> ForwardedHistory {
        let index = self.keyed_parts.partition_point(|keyed| keyed.at.message < cut);
        ForwardedHistory { head: self.head, sent: self.sent().before(index) }
    }
}

fn indexed(conversation: &Conversation) -> HashMap<Chain, usize> {
    conversation.chains().iter().enumerate().map(|(index, chain)| (*chain, index)).collect()
}
