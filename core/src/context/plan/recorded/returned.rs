//! Reasoning that a client left out while results before it were cut, and sends after all.
//!
//! Where a model binds reasoning to its prefix, the cut that was free then would make it void now
//! (`docs/architecture.md` "When a rewrite is allowed"): such a cut is not repeated while the reasoning is
//! there. What was made after a cut rests on it, and stays.

use foldhash::HashMap;

use super::branch::{Branch, CutCount};
use super::{RecordedDecisions, again};
use crate::context::ledger::Ledger;
use crate::context::plan::PlanRequest;
use crate::context::policy::StripPolicy;
use crate::context::{ExchangeId, ReasoningAction};
use crate::dialect::{Chain, Conversation, PartIndex, PartKind};

impl RecordedDecisions {
    /// Finds how far the history goes with the requests that decided the cuts, if it may matter.
    pub(super) fn find_ends(
        &mut self,
        ledger: &Ledger,
        conversation: &Conversation,
        branch: &Branch<'_>,
    ) {
        let thinks = || conversation.parts().any(|part| part.kind == PartKind::Reasoning);
        if self.cuts.is_empty() || !thinks() {
            return;
        }
        let ends =
            conversation.chains().zip(&self.keyed_parts).map(|(chain, keyed)| (chain, keyed.at));
        let ends: HashMap<Chain, PartIndex> = ends.collect();
        let mut shared: HashMap<ExchangeId, Option<PartIndex>> = HashMap::default();
        let cuts = self.keyed_parts.iter().flat_map(|keyed| {
            let nth = [(keyed.about, CutCount::Once), (again(keyed.about), CutCount::Twice)];
            nth.map(|(about, nth)| Some((&**self.cuts.get(&about)?, nth.of(keyed.key))))
        });
        for (about, exchange) in branch.began(cuts.flatten()) {
            let end =
                shared.entry(exchange).or_insert_with_key(|it| last_shared(ledger, &ends, it));
            self.ends.extend(end.map(|end| (about.0, end)));
        }
    }

    /// Lets go of the cuts that would make reasoning void which came back, where policy does not accept
    /// its loss.
    pub fn spares_reasoning(&mut self, request: &PlanRequest<'_>) {
        let policy = request.policy;
        let loses =
            policy.prune.accept_reasoning_loss || policy.reasoning.strip() != StripPolicy::None;
        if self.ends.is_empty() || !request.is_bound() || loses {
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
        let is_out =
            |about: u128| self.echo(about).is_some_and(|echo| echo.does == ReasoningAction::Out);
        // What another model thought is nothing to this one, whatever stands before it.
        let others = self.replies.iter().filter(|reply| *reply.reasoning.model != *request.name);
        let others: Vec<_> = others.collect();
        let is_foreign = |at| others.iter().any(|reply| reply.spans(at));
        let thoughts = parts.filter(|(at, part)| {
            part.reasoning_key(request.body).is_some_and(|about| !is_out(about)) && !is_foreign(*at)
        });
        let thoughts: Vec<PartIndex> = thoughts.map(|(at, _)| at).collect();
        let is_void = |at, end| thoughts.iter().any(|thought| (at..end).contains(thought));
        let abouts = self
            .keyed_parts
            .iter()
            .flat_map(|keyed| [keyed.about, again(keyed.about)].map(|it| (it, keyed.at)));
        let spared =
            abouts.filter(|(about, at)| self.ends.get(about).is_some_and(|end| is_void(*at, *end)));
        let spared: Vec<u128> = spared.map(|(about, _)| about).collect();
        spared.iter().for_each(|about| drop(self.cuts.remove(about)));
    }
}

/// How far a history goes with the request of an exchange: to that request's end, or as far as to where
/// it left it (a rewind, a fork). `ends`: the chains of the history, with their places.
fn last_shared(
    ledger: &Ledger,
    ends: &HashMap<Chain, PartIndex>,
    exchange: &ExchangeId,
) -> Option<PartIndex> {
    let mut turn = ledger.turn(exchange)?;
    let mut end = ends.get(&turn.position.chain);
    // No line is longer.
    for _ in ledger.turns() {
        if end.is_some() {
            break;
        }
        turn = ledger.turn(turn.position.parent.as_ref()?)?;
        end = ends.get(&turn.after).or_else(|| ends.get(&turn.position.chain));
    }
    end.copied()
}
