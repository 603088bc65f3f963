//! Which message of the user a session's calls were made for: what the main line asked, its sub-agents, titles, summaries.
//!
//! A turn of the user begins with a request of the main line that continues no call of a tool. Whatever the session calls
//! until the next one is part of it, because nothing says which sub-agent was started by which message.

use super::ledger::Ledger;
use super::{ExchangeId, Millis, Turn};
use crate::dialect::Purpose;
use crate::dialect::hints::RequestClass;

/// The beginnings of a session's turns of the user.
pub struct UserTurns(Vec<(Millis, ExchangeId)>);

impl UserTurns {
    /// Those of a session.
    pub fn from_ledger(ledger: &Ledger) -> Self {
        let mut begins = Vec::new();
        let Some(first) = ledger.turns().find(|turn| turn.purpose == Purpose::Turn) else {
            return Self(begins);
        };
        for turn in ledger.turns().filter(|turn| is_on_line_of(first, turn)) {
            if ledger.parent(&turn.position).is_none_or(|parent| parent.called.is_empty()) {
                begins.push((turn.at, turn.exchange.clone()));
            }
        }
        begins.sort();
        Self(begins)
    }

    /// When the one began that something at this time belongs to, and its first exchange.
    pub fn at(&self, at: Millis) -> Option<&(Millis, ExchangeId)> {
        let count = self.0.partition_point(|(began, _)| *began <= at);
        self.0.get(count.checked_sub(1)?)
    }
}

fn is_on_line_of(first: &Turn, turn: &Turn) -> bool {
    let class = turn.hints.as_ref().and_then(|hints| hints.class);
    let [main, position] = [&first.position, &turn.position];
    // Sub-agents are named by their client, or have other system prompts.
    turn.purpose == Purpose::Turn
        && class.is_none_or(|class| class == RequestClass::Main)
        && position.client_thread == main.client_thread
        && (position.thread == main.thread || position.system == main.system)
}
