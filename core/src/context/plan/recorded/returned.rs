//! Reasoning that a client dropped while results before it were cut, and that it sends after all.
//!
//! If a model binds reasoning to its prefix, a cut that was harmless then would make the reasoning void now
//! (`docs/architecture.md` "When a rewrite is allowed"). Such a cut is not repeated as long as the reasoning
//! is sent. Reasoning that was made after a cut depends on the cut, which then stays.

use foldhash::HashMap;

use super::branch::{Branch, CutCount};
use super::{RecordedDecisions, again};
use crate::context::ReasoningAction;
use crate::context::ledger::Ledger;
use crate::context::plan::PlanRequest;
use crate::context::policy::StripPolicy;
use crate::dialect::{Chain, Conversation, PartIndex, PartKind};

impl RecordedDecisions {
    /// Finds how far this history agrees with the requests that decided the cuts, if that can matter.
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
        let mut shared: HashMap<Box<str>, Option<PartIndex>> = HashMap::default();
        let cuts = self.keyed_parts.iter().flat_map(|keyed| {
            let nth = [(keyed.about, CutCount::Once), (again(keyed.about), CutCount::Twice)];
            nth.map(|(about, nth)| Some((&**self.cuts.get(&about)?, nth.of(keyed.key))))
        });
        for (about, request) in branch.began(cuts.flatten()) {
            let end = shared.entry(request).or_insert_with_key(|it| last_shared(ledger, &ends, it));
            self.ends.extend(end.map(|end| (about.0, end)));
        }
    }

    /// Drops the cuts that would make returned reasoning void, unless policy accepts its loss.
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
        // Reasoning of another model is not read, so it does not matter what changes before it.
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

/// How far a history agrees with the request of an exchange: to the end of that request, or to where it
/// diverged (a rewind, a fork). `ends`: the chains of the history, with their places.
fn last_shared(
    ledger: &Ledger,
    ends: &HashMap<Chain, PartIndex>,
    request: &str,
) -> Option<PartIndex> {
    let mut turn = ledger.turn(request)?;
    let mut end = ends.get(&turn.position.chain);
    // No branch is longer than the number of turns.
    for _ in ledger.turns() {
        if end.is_some() {
            break;
        }
        turn = ledger.turn(turn.position.parent.as_deref()?)?;
        end = ends.get(&turn.after).or_else(|| ends.get(&turn.position.chain));
    }
    end.copied()
}
