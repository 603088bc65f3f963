//! Reasoning that a client left out while results before it were cut, and sends after all.
//!
//! Where a model binds reasoning to its prefix, the cut that was free then would make it void now
//! (design §6.2): such a cut is not repeated while the reasoning is there. What was made after a cut
//! rests on it, and stays.

use std::collections::HashMap;

use super::Known;
use crate::context::ledger::Ledger;
use crate::context::plan::Request;
use crate::context::{Echoed, reasoning};
use crate::dialect::{Chain, Conversation, PartKind};

impl Known {
    /// Finds where the requests ended that decided the cuts, if it may matter.
    pub(super) fn find_ends(&mut self, ledger: &Ledger, conversation: &Conversation) {
        let thinks = || conversation.parts().any(|part| part.kind == PartKind::Reasoning);
        if self.cuts.is_empty() || !thinks() {
            return;
        }
        let ends = conversation.chains().zip(&self.spots).map(|(chain, spot)| (chain, spot.at));
        let ends: HashMap<Chain, (usize, usize)> = ends.collect();
        for cut in self.cuts.values() {
            let turn = ledger.turn(&cut.request);
            let end = turn.and_then(|turn| ends.get(&turn.standing.chain));
            self.ends.extend(end.map(|end| (cut.request.clone(), *end)));
        }
    }

    /// Lets go of the cuts that would make reasoning void which came back.
    pub fn spares_reasoning(&mut self, request: &Request<'_>) {
        if self.ends.is_empty() || !request.is_bound() || request.policy.prune.accept_reasoning_loss
        {
            return;
        }
        let messages = request.conversation.messages.iter().enumerate();
        let parts = messages.flat_map(|(index, message)| {
            message.parts.iter().enumerate().map(move |(number, part)| ((index, number), part))
        });
        let is_out = |about: u128| self.echo(about).is_some_and(|echo| echo.does == Echoed::Out);
        let thoughts = parts.filter(|(_, part)| {
            reasoning::identity(part, request.body).is_some_and(|about| !is_out(about))
        });
        let thoughts: Vec<(usize, usize)> = thoughts.map(|(at, _)| at).collect();
        let is_void = |at, end| thoughts.iter().any(|thought| (at..end).contains(thought));
        let ends = |about| self.ends.get(&self.cuts.get(about)?.request);
        let spots = self
            .spots
            .iter()
            .filter(|spot| ends(&spot.about).is_some_and(|end| is_void(spot.at, *end)));
        let spared: Vec<u128> = spots.map(|spot| spot.about).collect();
        spared.iter().for_each(|about| drop(self.cuts.remove(about)));
    }
}
