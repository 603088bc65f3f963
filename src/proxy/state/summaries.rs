//! Which summaries are being written, and for which threads none is begun after failures.
//!
//! Only one per thread is written at a time. Waiting requests continue when it is written or has failed. What
//! is known of a thread is its [`WriterState`]; what a request does then is decided in
//! `context/compact/schedule.rs`. Knows nothing about requests.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::HashMap;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::clock::now;
use crate::context::compact::schedule::{SummaryFailures, SummaryWriter, WriterState, WritingEnd};
use crate::context::{Millis, ThreadId};
use crate::store::Scope;

/// Most threads whose failures are remembered; past it, all are forgotten.
const MOST_THREADS: usize = 10_000;
/// Most summaries written at once: each holds a request in memory, and sends another one of that size. A tenant for
/// which none is written may begin one past it, so that nobody takes all.
const AT_ONCE: usize = 16;
/// Most summaries written at once, those included.
const AT_ONCE_IN_ALL: usize = 64;

/// Which summaries are being written, and how earlier ones ended.
#[derive(Default)]
pub(crate) struct SummariesInProgress {
    threads: Mutex<HashMap<CompactionKey, ThreadSummary>>,
    /// The keys of the claims of this process.
    claims: Mutex<HashSet<u128>>,
}

pub(crate) type CompactionKey = (Scope, ThreadId);

#[derive(Default)]
struct ThreadSummary {
    state: WriterState,
    /// The channel of the summary that is being written. It closes when that is written or has failed.
    writing: Option<watch::Receiver<()>>,
}

/// Held while a summary is written; dropping it wakes the waiting requests.
pub(crate) struct SummaryGuard {
    summaries: Arc<SummariesInProgress>,
    /// How long the thread cools down if it fails, ms.
    cool_down_ms: Millis,
    key: CompactionKey,
    end: WritingEnd,
    _ended: watch::Sender<()>,
}

impl SummaryGuard {
    pub(crate) fn set_requested(&mut self) {
        // From now on, dropping it counts as a failure.
        self.end = WritingEnd::Failed;
    }

    pub(crate) fn set_elsewhere(&self) {
        let mut threads = self.summaries.lock();
        let thread = threads.entry(self.key.clone()).or_default();
        thread.state = thread.state.found_elsewhere();
    }

    /// The thread, and until when it cools down if this fails now.
    pub(crate) fn if_failed(&self) -> (&ThreadId, Millis) {
        (&self.key.1, now().saturating_add(self.cool_down_ms))
    }

    pub(crate) fn end(mut self, end: WritingEnd) {
        self.end = end;
    }
}

impl Drop for SummaryGuard {
    fn drop(&mut self) {
        let cools_until = now().saturating_add(self.cool_down_ms);
        let mut threads = self.summaries.lock();
        let thread = threads.entry(self.key.clone()).or_default();
        thread.writing = None;
        thread.state = thread.state.ended(self.end, cools_until);
    }
}

impl SummariesInProgress {
    fn lock(&self) -> MutexGuard<'_, HashMap<CompactionKey, ThreadSummary>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(in crate::proxy) fn claims(&self) -> MutexGuard<'_, HashSet<u128>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add_claim(&self, claim: u128) {
        self.claims().insert(claim);
    }

    pub(crate) fn remove_claim(&self, claim: u128) {
        self.claims().remove(&claim);
    }

    pub(in crate::proxy) fn writing(&self, key: &CompactionKey) -> Option<watch::Receiver<()>> {
        self.lock().get(key)?.writing.clone()
    }

    /// Begins a summary for a thread; `None` if one is being written, or too many others are ([`AT_ONCE`]).
    pub(crate) fn begin(
        self: &Arc<Self>,
        key: &CompactionKey,
        cool_down_ms: Millis,
    ) -> Option<SummaryGuard> {
        let mut threads = self.lock();
        if threads.len() >= MOST_THREADS {
            threads.retain(|_, thread| thread.writing.is_some());
        }
        let mut at_once = 0;
        // A tenant for which none is written may begin one past the limit, so that nobody takes all.
        let mut limit = AT_ONCE_IN_ALL;
        for ((scope, _), thread) in &*threads {
            if thread.writing.is_some() {
                at_once += 1;
                if scope.tenant == key.0.tenant {
                    limit = AT_ONCE;
                }
            }
        }
        if at_once >= limit {
            return None;
        }
        let thread = threads.entry(key.clone()).or_default();
        if thread.writing.is_some() {
            return None;
        }
        let (ended, writing) = watch::channel(());
        thread.writing = Some(writing);
        thread.state = thread.state.begun();
        Some(SummaryGuard {
            summaries: self.clone(),
            cool_down_ms,
            key: key.clone(),
            end: WritingEnd::Cancelled,
            _ended: ended,
        })
    }

    /// Who writes the summary of a thread. `common_failures`: those of all processes, if several share the store.
    pub(in crate::proxy) fn writer(
        &self,
        key: &CompactionKey,
        common_failures: Option<SummaryFailures>,
        max_failures: u32,
        now: Millis,
    ) -> SummaryWriter {
        let threads = self.lock();
        let state = threads.get(key).map(|thread| thread.state).unwrap_or_default();
        let state = common_failures.map_or(state, |failures| state.with_failures(failures));
        state.writer(max_failures, now)
    }

    pub(in crate::proxy) fn reset_failures(&self, key: impl FnOnce() -> CompactionKey) {
        let mut threads = self.lock();
        // Nearly always; the key need not be made.
        if threads.is_empty() {
            return;
        }
        let key = key();
        if threads.get(&key).is_some_and(|thread| thread.writing.is_none()) {
            threads.remove(&key);
        }
    }
}

/// Waits until a summary is written or has failed; `false` if the time ran out.
pub(in crate::proxy) async fn wait_until_done(
    mut writing: watch::Receiver<()>,
    until: Instant,
) -> bool {
    // Nothing is ever sent on the channel: it closes when the writer is done.
    let closed = async { while writing.changed().await.is_ok() {} };
    tokio::time::timeout_at(until, closed).await.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_summaries_written_at_once_is_limited() {
        let summaries = Arc::new(SummariesInProgress::default());
        let key = |number: usize| {
            let session = number.to_string().into();
            (Scope { tenant: "t".into(), session }, ThreadId::from("thread"))
        };
        let mut writing: Vec<SummaryGuard> =
            (0..AT_ONCE).filter_map(|number| summaries.begin(&key(number), 0)).collect();
        assert_eq!(writing.len(), AT_ONCE, "at the limit");
        assert!(summaries.begin(&key(AT_ONCE), 0).is_none(), "past it");
        assert!(summaries.writing(&key(AT_ONCE)).is_none(), "nobody waits for it");
        drop(writing.pop());
        assert!(summaries.begin(&key(AT_ONCE), 0).is_some(), "one has ended");
    }

    #[test]
    fn one_tenants_summaries_do_not_keep_others_from_theirs() {
        let summaries = Arc::new(SummariesInProgress::default());
        let key = |tenant: usize, session: usize| {
            let (tenant, session) = (tenant.to_string().into(), session.to_string().into());
            (Scope { tenant, session }, ThreadId::from("thread"))
        };
        let begin = |tenant, session| summaries.begin(&key(tenant, session), 0);
        let mut writing: Vec<SummaryGuard> =
            (0..AT_ONCE).filter_map(|session| begin(0, session)).collect();
        for tenant in 1..=AT_ONCE_IN_ALL - AT_ONCE {
            writing.extend(begin(tenant, 0));
            assert!(begin(tenant, 1).is_none(), "it has one");
        }
        assert_eq!(writing.len(), AT_ONCE_IN_ALL, "at the limit");
        assert!(begin(AT_ONCE_IN_ALL, 0).is_none(), "past it");
    }
}
