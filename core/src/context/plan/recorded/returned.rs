//! Reasoning that a client dropped while results before it were cut, and that it sends after all.
//!
//! If a model binds reasoning to its prefix, a cut that was harmless then would make the reasoning void now
//! (`docs/architecture.md` "When a rewrite is allowed"). Such a cut is not repeated as long as the reasoning
//! is sent. Reasoning that was made after a cut depends on the cut, which then stays. A cut also stays if this
//! branch has already sent it together with the same reasoning: policy accepted the loss at that time, and the
//! provider's cache holds those bytes.

use foldhash::{HashMap, HashSet};

use super::branch::{Branch, CutCount};
use super::{CutReach, RecordedDecisions, clearing_key};
use crate::context::ledger::Ledger;
use crate::context::plan::PlanRequest;
use crate::context::policy::StripPolicy;
use crate::context::{ExchangeId, ReasoningAction};
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
        let thinks = || conversation.parts().any(|part| part.kind == PartKind::Reasoning);
        if self.cuts.is_empty() || !thinks() {
            return;
        }
        let ends =
            conversation.chains().zip(&self.keyed_parts).map(|(chain, keyed)| (chain, keyed.at));
        let ends: HashMap<Chain, PartIndex> = ends.collect();
        let mut shared: HashMap<ExchangeId, Option<PartIndex>> = HashMap::default();
        let mut sent = HashSet::default();
        let cuts = self.keyed_parts.iter().enumerate().flat_map(|(index, keyed)| {
            let nth = [(keyed.about, CutCount::Once), (clearing_key(keyed.about), CutCount::Twice)];
            let form = forms.get(&index);
            sent.extend(nth.iter().filter(|(_, nth)| form >= Some(nth)).map(|(about, _)| *about));
            nth.map(|(about, nth)| Some((&**self.cuts.get(&about)?, nth.of(keyed.key))))
        });
        let began = branch.began(cuts.flatten());
        for (about, exchange) in began {
            let end =
                shared.entry(exchange).or_insert_with_key(|it| last_shared(ledger, &ends, it));
            let reach = end.map(|end| CutReach { end, is_sent: sent.contains(&about.0) });
            self.reaches.extend(reach.map(|reach| (about.0, reach)));
        }
    }

    /// Drops the cuts that would make returned reasoning void, unless policy accepts its loss.
    pub fn drop_cuts_that_void_reasoning(&mut self, request: &PlanRequest<'_>) {
        let policy = request.policy;
        let loses =
            policy.prune.accept_reasoning_loss || policy.reasoning.strip() != StripPolicy::None;
        if self.reaches.is_empty() || !request.is_bound() || loses {
            return;
        }
        let messages = request.conversation.messages.iter().enumerate();
        let parts = messages.flat_map(|(index, message)| {
            message
                .parts
                .iter()
                .enumerate()
                .map(move |(number, part)| (PartIndex::new(index, number), part))
        });
        let is_out = |about: u128| {
            self.reasoning_decision(about)
                .is_some_and(|decision| decision.does == ReasoningAction::Remove)
        };
        // Reasoning of another model is not read, so it does not matter what changes before it.
        let others = self.replies.iter().filter(|reply| *reply.reasoning.model != *request.name);
        let others: Vec<_> = others.collect();
        let is_foreign = |at| others.iter().any(|reply| reply.spans(at));
        let thoughts = parts.filter_map(|(at, part)| {
            let key = part.reasoning_key.filter(|_| !part.removal_key().is_some_and(is_out))?;
            (!is_foreign(at)).then(|| (at, self.thoughts.contains(&PartKey(key))))
        });
        let thoughts: Vec<(PartIndex, bool)> = thoughts.collect();
        let is_void = |at, reach: &CutReach| {
            let mut here = thoughts.iter().filter(|(thought, _)| (at..reach.end).contains(thought));
            here.any(|(_, was_sent)| !(*was_sent && reach.is_sent))
        };
        let abouts = self
            .keyed_parts
            .iter()
            .flat_map(|keyed| [keyed.about, clearing_key(keyed.about)].map(|it| (it, keyed.at)));
        let spared = abouts
            .filter(|(about, at)| self.reaches.get(about).is_some_and(|reach| is_void(*at, reach)));
        let spared: Vec<u128> = spared.map(|(about, _)| about).collect();
        spared.iter().for_each(|about| drop(self.cuts.remove(about)));
    }
}

/// How far a history agrees with the request of an exchange: to the end of that request, or to where it
/// diverged (a rewind, a fork). `ends`: the chains of the history, with their places.
fn last_shared(
    ledger: &Ledger,
    ends: &HashMap<Chain, PartIndex>,
    exchange: &ExchangeId,
) -> Option<PartIndex> {
    let mut turn = ledger.turn(exchange)?;
    let mut end = ends.get(&turn.position.chain);
    // No branch is longer than the number of turns.
    for _ in ledger.turns() {
        if end.is_some() {
            break;
        }
        turn = ledger.turn(turn.position.parent.as_ref()?)?;
        end = ends.get(&turn.after).or_else(|| ends.get(&turn.position.chain));
    }
    end.copied()
}
