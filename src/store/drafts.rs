//! Drafts of turns: what is known of an exchange while it is on its way.
//!
//! A draft is no fact: it is replaced as the exchange goes on, and goes with the turn that it becomes. Only
//! where a process ends without a word do drafts stay behind. Each is of an instance, whose beat says that
//! it lives; drafts of one that is gone become turns as they stand. No clock of the machine is asked: an
//! instance is gone when whoever watches it saw no beat for the length of a lease.

use std::time::{Duration, Instant};

use foldhash::{HashMap, HashMapExt as _};

use super::record::{Record, Scope};

/// How long an instance may be silent that has exchanges on their way. It writes once a second.
pub(crate) const LEASE: Duration = Duration::from_secs(15);

/// How a turn says that it was made of a draft: its outcome.
pub(crate) const INTERRUPTED: &str = "interrupted";

/// The turn of an exchange as it would be if nothing more came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    /// Whose.
    pub scope: Scope,
    /// The turn, under the key that it will have.
    pub record: Record,
    /// When what it rests on was known: where the scope was deleted since, it is not kept.
    pub since: Instant,
}

/// The beats of other instances, as they were seen last.
#[derive(Default)]
pub(super) struct HeartbeatWatch(HashMap<u64, (u64, Instant)>);

impl HeartbeatWatch {
    /// Those of these instances, each with its beat, that were silent for a lease.
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
