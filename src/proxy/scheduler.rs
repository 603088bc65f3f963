//! Which summaries are being written, and which threads pause after failures.
//!
//! Only one per thread is written at a time. Waiting requests continue when it is written or has failed.
//! Knows nothing about requests.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::HashMap;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::context::compact::CompactionNeed;
use crate::context::{Millis, ThreadId};
use crate::store::Scope;
use crate::telemetry::clock::now;

/// Most threads whose failures are remembered; past it, all are forgotten.
const MOST_THREADS: usize = 10_000;
/// Most summaries written at once: each holds a request in memory, and sends another one of that size.
const AT_ONCE: usize = 16;

/// Which summaries are being written, and which threads pause after failures.
#[derive(Default)]
pub(crate) struct CompactionScheduler {
    threads: Mutex<HashMap<CompactionKey, SchedulerState>>,
    /// The names of the claims of this process.
    claims: Mutex<HashSet<String>>,
}

pub(crate) type CompactionKey = (Scope, ThreadId);

#[derive(Default)]
struct SchedulerState {
    /// The channel closes when the summary is written or has failed.
    writing: Option<watch::Receiver<()>>,
    /// Another replica writes it, so it appears in the store first.
    elsewhere: bool,
    /// Failures in a row.
    failures: u32,
    /// Nothing is tried before this time.
    rests_until: Millis,
}

/// Held while a summary is written; dropping it wakes the waiting requests.
pub(crate) struct SummaryGuard {
    scheduler: Arc<CompactionScheduler>,
    /// How long the thread pauses if it fails, ms.
    cool_down_ms: Millis,
    key: CompactionKey,
    /// Whether it was written; `None` if neither success nor failure counts.
    succeeded: Option<bool>,
    _tells: watch::Sender<()>,
}

impl SummaryGuard {
    /// Records that the summary was requested: from now on, dropping it counts as a failure.
    pub(crate) fn begins(&mut self) {
        self.succeeded = Some(false);
    }

    /// Records that another replica writes it.
    pub(crate) fn is_elsewhere(&self) {
        self.scheduler.all().entry(self.key.clone()).or_default().elsewhere = true;
    }

    /// Records whether it was written; `None` if it is nobody's failure.
    pub(crate) fn ended(mut self, succeeded: Option<bool>) {
        self.succeeded = succeeded;
    }
}

impl Drop for SummaryGuard {
    fn drop(&mut self) {
        let mut all = self.scheduler.all();
        let state = all.entry(self.key.clone()).or_default();
        (state.writing, state.elsewhere) = (None, false);
        let (failures, rests_until) = (state.failures, state.rests_until);
        (state.failures, state.rests_until) = match self.succeeded {
            Some(true) => (0, 0),
            Some(false) => (failures.saturating_add(1), now().saturating_add(self.cool_down_ms)),
            None => (failures, rests_until),
        };
    }
}

impl CompactionScheduler {
    fn all(&self) -> MutexGuard<'_, HashMap<CompactionKey, SchedulerState>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn claims(&self) -> MutexGuard<'_, HashSet<String>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that this process claimed a summary.
    pub(crate) fn has_claimed(&self, what: String) {
        self.claims().insert(what);
    }

    /// Records that a claimed summary is written or has failed; the claim expires by itself.
    pub(crate) fn is_done_with(&self, what: &str) {
        self.claims().remove(what);
    }

    /// The summary that is being written for a thread.
    pub(super) fn writing(&self, key: &CompactionKey) -> Option<watch::Receiver<()>> {
        self.all().get(key)?.writing.clone()
    }

    /// Begins a summary for a thread; `None` if one is being written, or too many others are.
    pub(crate) fn begin(
        self: &Arc<Self>,
        key: &CompactionKey,
        cool_down_ms: Millis,
    ) -> Option<SummaryGuard> {
        let mut all = self.all();
        if all.len() >= MOST_THREADS {
            all.retain(|_, state| state.writing.is_some());
        }
        if all.values().filter(|state| state.writing.is_some()).count() >= AT_ONCE {
            return None;
        }
        let state = all.entry(key.clone()).or_default();
        if state.writing.is_some() {
            return None;
        }
        let (tells, writing) = watch::channel(());
        state.writing = Some(writing);
        Some(SummaryGuard {
            scheduler: self.clone(),
            cool_down_ms,
            key: key.clone(),
            succeeded: None,
            _tells: tells,
        })
    }

    /// Whether a thread pauses because summaries failed.
    pub(super) fn rests(&self, key: &CompactionKey, max_failures: u32) -> bool {
        let rests =
            |state: &SchedulerState| state.failures >= max_failures || now() < state.rests_until;
        self.all().get(key).is_some_and(rests)
    }

    /// Whether the store may have a summary that is not known here. If one is due, the store is asked even
    /// while this thread pauses: all replicas must use the same beginning of a thread.
    pub(super) fn may_be_elsewhere(
        &self,
        key: &CompactionKey,
        max_failures: u32,
        due: CompactionNeed,
    ) -> bool {
        let writing = self.all().get(key).map(|state| (state.writing.is_some(), state.elsewhere));
        match writing {
            Some((true, elsewhere)) => elsewhere && due >= CompactionNeed::Swap,
            Some((false, _)) => due >= CompactionNeed::Swap || !self.rests(key, max_failures),
            None => true,
        }
    }

    /// Forgets the failures of a thread whose context is small again.
    pub(super) fn forgive(&self, key: impl FnOnce() -> CompactionKey) {
        let mut all = self.all();
        if all.is_empty() {
            return;
        }
        let key = key();
        if all.get(&key).is_some_and(|state| state.writing.is_none()) {
            all.remove(&key);
        }
    }
}

/// Waits until a summary is written or has failed; `false` if the time ran out.
pub(super) async fn waited(mut writing: watch::Receiver<()>, until: Instant) -> bool {
    // Nothing is ever sent on the channel: it closes when the writer is done.
    let closed = async { while writing.changed().await.is_ok() {} };
    tokio::time::timeout_at(until, closed).await.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_summaries_are_written_at_once_than_there_may_be() {
        let scheduler = Arc::new(CompactionScheduler::default());
        let key = |number: usize| {
            let session = number.to_string().into();
            (Scope { tenant: "t".into(), session }, ThreadId::from("thread"))
        };
        let mut writing: Vec<SummaryGuard> =
            (0..AT_ONCE).filter_map(|number| scheduler.begin(&key(number), 0)).collect();
        assert_eq!(writing.len(), AT_ONCE, "at the limit");
        assert!(scheduler.begin(&key(AT_ONCE), 0).is_none(), "past it");
        assert!(scheduler.writing(&key(AT_ONCE)).is_none(), "nobody waits for it");
        drop(writing.pop());
        assert!(scheduler.begin(&key(AT_ONCE), 0).is_some(), "one has ended");
    }
}
