//! Drafts of turns: what is known about an exchange in flight.
//!
//! A draft is not a fact: it is replaced during the exchange, and removed with the turn that it becomes.
//! Drafts only remain if a process is killed, and become turns as they are. Each belongs to an instance, which is a
//! process.

use std::time::Instant;

use super::record::{Record, Scope};

/// The outcome of a turn that was made from a draft.
pub(super) const INTERRUPTED: &str = "interrupted";
/// The outcome of a turn with its whole reply.
pub(super) const COMPLETE: &str = "complete";

/// The turn of an exchange as it would be if nothing more arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    /// The tenant and session of the exchange.
    pub scope: Scope,
    /// The turn, under the key that it will have.
    pub record: Record,
    /// When the data that it is based on was known: if the scope was deleted since, it is dropped.
    pub since: Instant,
}
