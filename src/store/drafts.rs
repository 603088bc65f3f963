//! Drafts of turns: what is known about an exchange in flight.
//!
//! A draft is not a fact: it is replaced during the exchange, and removed with the turn that it becomes.
//! Drafts only remain if a process is killed. Each belongs to an instance, whose heartbeat shows that it is
//! alive; drafts of a dead instance become turns as they are. System clocks are not compared: an instance is
//! dead if another one saw no heartbeat for the length of a lease.

use std::time::{Duration, Instant};

use foldhash::{HashMap, HashMapExt as _};

use super::record::{Record, Scope};

/// How long an instance with exchanges in flight may be silent. It writes once a second.
pub(crate) const LEASE: Duration = Duration::from_secs(15);

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

/// The last heartbeats that were seen of other instances.
#[derive(Default)]
pub(super) struct HeartbeatWatch(HashMap<u64, (u64, Instant)>);

impl HeartbeatWatch {
    /// Those of these instances (with their heartbeats) that were silent for a lease.
    pub(super) fn gone(&mut self, beats: &[(u64, u64)], lease: Duration) -> Vec<u64> {
        let mut seen = HashMap::with_capacity(beats.len());
        let mut gone = Vec::new();
        for (instance, beat) in beats {
            let before = self.0.get(instance).filter(|(last, _)| last == beat);
            let since = before.map_or_else(Instant::now, |(_, since)| *since);
            if since.elapsed() >= lease {
                gone.push(*instance);
            }
            seen.insert(*instance, (*beat, since));
        }
        self.0 = seen;
        gone
    }
}
