//! Reasoning that a client dropped while results before it were cut, and that it sends after all.
//!
//! If a model binds reasoning to its prefix, a cut that was harmless then would make the reasoning void now
//! (`docs/architecture.md` "When a rewrite is allowed"). Such a cut is not repeated as long as the reasoning
//! is sent. Reasoning that was made after a cut depends on the cut, which then stays. A cut also stays if this
//! branch has already sent it to this model together with the same reasoning: policy accepted the loss at that time, and
//! the provider's cache holds those bytes.

use foldhash::{HashMap, HashSet};

use super::branch::{Branch, CutCount};
use super::{CutReach, RecordedDecisions, ReturnedReply, clearing_key};
use crate::context::ledger::Ledger;
use crate::context::plan::PlanRequest;
use crate::context::{ExchangeId, ReasoningAction, Turn};
use crate::dialect::{Chain, Conversation, PartIndex, PartKey, PartKind};

impl RecordedDecisions {
    /// Finds how far this history agrees with the requests that decided the cuts, if that can matter.
    /// `forms`: in which form the parent turn sent the parts that were cut.
    pub(super) fn find_reaches(
        &mut self,
        ledger: &Ledger,
        conversation: &Conversation,
        branch: &Branch<'_>,
        forms: &HashMap<usize, CutCount>,
    ) {
        // Without a cut no reasoning is void, and without reasoning none could be.
        if self.cuts.is_empty()
            || !conversation.parts().any(|part| part.kind == PartKind::Reasoning)
        {
            return;
        }
        let ends = conversation.chains().iter().zip(&self.keyed_parts);
        let ends: HashMap<Chain, PartIndex> =
            ends.map(|(chain, keyed)| (*chain, keyed.at)).collect();
        let mut shared: HashMap<ExchangeId, Option<PartIndex>> = HashMap::default();
        let mut sent_abouts = HashSet::default();
        let cuts = self.keyed_parts.iter().enumerate().flat_map(|(index, keyed)| {
            let nth = [(keyed.about, CutCount::Once), (clearing_key(keyed.about), CutCount::Twice)];
            let form = forms.get(&index);
            sent_abouts
                .extend(nth.iter().filter(|(_, nth)| form >= Some(nth)).map(|(about, _)| *about));
            nth.map(|(about, nth)| Some((&**self.cuts.get(&about)?, nth.applied_to(keyed.key))))
        });
        let began = branch.began(cuts.flatten());
        for (about, exchange) in began {
            let end = *shared
                .entry(exchange)
                .or_insert_with_key(|exchange| last_shared(ledger, &ends, exchange));
            if let Some(end) = end {
                let is_sent = sent_abouts.contains(&about.0);
                self.reaches.insert(about.0, CutReach { end, is_sent });
            }
        }
    }

    /// Drops the cuts that would make returned reasoning void. If policy accepts its loss, those stay that the parent turn sent
    /// to this model; others gain nothing here, where the cache holds what they cut.
    pub fn drop_cuts_that_void_reasoning(&mut self, request: &PlanRequest<'_>) {
        self.drop_voiding_cuts(request, request.accepts_reasoning_loss());
    }

    /// The same, whatever policy accepts: its provider has just refused that reasoning.
    pub fn drop_cuts_before_returned_reasoning(&mut self, request: &PlanRequest<'_>) {
        self.drop_voiding_cuts(request, false);
    }

    fn drop_voiding_cuts(&mut self, request: &PlanRequest<'_>, accepts_loss: bool) {
        if self.reaches.is_empty() || !request.is_bound() {
            return;
        }
        let thoughts = self.returned_thoughts(request);
        // Another model lost nothing: it does not read this reasoning.
        let was_read = self.continues_model(request);
        for keyed in &self.keyed_parts {
            for about in [keyed.about, clearing_key(keyed.about)] {
                let Some(reach) = self.reaches.get(&about) else { continue };
                let voids = thoughts.iter().any(|(at, was_sent)| {
                    // What the model was sent together with the cut is lost already, and cached so.
                    let is_lost = was_read && reach.is_sent && (*was_sent || accepts_loss);
                    (keyed.at..reach.end).contains(at) && !is_lost
                });
                if voids {
                    self.cuts.remove(&about);
                }
            }
        }
    }

    /// The index of the first keyed part that a summary or a cut replaces.
    pub(in crate::context) fn first_change(&self) -> Option<usize> {
        if self.compact().is_some() {
            return Some(0);
        }
        self.keyed_parts.iter().position(|keyed| self.cut(keyed.about).is_some())
    }

    /// The places of the client's reasoning that the model reads, and whether the parent turn sent it.
    fn returned_thoughts(&self, request: &PlanRequest<'_>) -> Vec<(PartIndex, bool)> {
        // Reasoning of another model is not read, so it does not matter what changes before it.
        let foreign: Vec<&ReturnedReply> =
            self.replies.iter().filter(|reply| *reply.reasoning.model != *request.name).collect();
        let mut thoughts = Vec::new();
        for (index, message) in request.conversation.messages.iter().enumerate() {
            for (number, part) in message.parts.iter().enumerate() {
                let Some(key) = part.reasoning_key else { continue };
                let place = PartIndex::new(index, number);
                let decision = part.removal_key().and_then(|about| self.reasoning_decision(about));
                let is_removed =
                    decision.is_some_and(|decision| decision.does == ReasoningAction::Remove);
                if !is_removed && !foreign.iter().any(|reply| reply.spans(place)) {
                    thoughts.push((place, self.thoughts.has(PartKey(key))));
                }
            }
        }
        thoughts
    }
}

/// How far a history agrees with the request of an exchange: to the end of that request, or to where it
/// diverged (a rewind, a fork). `ends`: the chains of the history, with their places.
fn last_shared(
    ledger: &Ledger,
    ends: &HashMap<Chain, PartIndex>,
    exchange: &ExchangeId,
) -> Option<PartIndex> {
    let mut turn: &Turn = ledger.turn(exchange)?;
    let mut end = ends.get(&turn.position.chain);
    // No branch is longer than the number of turns.
    for _ in ledger.turns() {
        if end.is_some() {
            break;
        }
        turn = ledger.parent(&turn.position)?;
        end = ends.get(&turn.after).or_else(|| ends.get(&turn.position.chain));
    }
    end.copied()
}
