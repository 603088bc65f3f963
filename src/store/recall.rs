//! Waiting for the store: how long a request may wait, and what many requests wait for together.
//!
//! All reads of a request share one [`ReadBudget`]. A [`Recall`] is read by one task for all that wait for
//! it. The task continues if nobody waits any more, and is tried again after a failure, with growing pauses. A
//! late answer does not mean that there is no data: nothing is concluded from it. Knows nothing of facts.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep};

use super::StoreError;

/// The pause after a failed read; it doubles with each failure, up to the longest.
const REST: Duration = Duration::from_secs(1);
const LONGEST_REST: Duration = Duration::from_secs(60);

/// How long a request may wait for all of its reads together. Clones share it.
#[derive(Clone, Debug)]
pub struct ReadBudget {
    whole: Duration,
    /// The limit for everything but the first load, and for everything once a shutdown has begun.
    usual: Duration,
    /// Becomes true when a shutdown begins.
    shutdown: Option<watch::Receiver<bool>>,
    spent_us: Arc<AtomicU64>,
}

impl ReadBudget {
    /// An unused budget.
    pub fn new(whole: Duration) -> Self {
        Self { whole, usual: whole, shutdown: None, spent_us: Arc::default() }
    }

    /// The same, with `whole` as the limit for the first load of a session and other data that is read once.
    /// `shutdown` becomes true when nobody should wait that long any more.
    pub(crate) fn with_first_load(self, whole: Duration, shutdown: watch::Receiver<bool>) -> Self {
        Self { whole: whole.max(self.usual), shutdown: Some(shutdown), ..self }
    }

    /// The same for later reads, with the time already spent.
    pub(super) fn after_first_load(&self) -> Self {
        Self { whole: self.usual, ..self.clone() }
    }

    fn left(&self) -> Duration {
        self.whole.saturating_sub(self.spent())
    }

    /// The time spent waiting; zero if nothing had to be read.
    pub(crate) fn spent(&self) -> Duration {
        Duration::from_micros(self.spent_us.load(Ordering::Relaxed))
    }

    /// Whether that is longer than the limit for later reads.
    pub(crate) fn is_overspent(&self) -> bool {
        self.spent() > self.usual
    }

    /// Waits for an answer; `None` if the time left is not enough.
    pub(crate) async fn wait<F: Future>(&self, answer: F) -> Option<F::Output> {
        self.wait_at_most(self.whole, answer).await
    }

    /// The same for a read that began at `since`: later callers wait for a shorter time.
    async fn wait_since<F: Future>(&self, since: Instant, answer: F) -> Option<F::Output> {
        self.wait_at_most(self.whole.saturating_sub(since.elapsed()), answer).await
    }

    pub(super) async fn wait_once_more<F: Future>(
        &self,
        since: Instant,
        answer: F,
    ) -> Option<F::Output> {
        // Later callers may wait at least the limit for later reads, because they ask again.
        self.wait_at_most(self.whole.saturating_sub(since.elapsed()).max(self.usual), answer).await
    }

    async fn wait_at_most<F: Future>(&self, most: Duration, answer: F) -> Option<F::Output> {
        let began = Instant::now();
        let answer = tokio::select! {
            // An answer that is there counts, even if the time has just run out.
            biased;
            answer = answer => Some(answer),
            () = self.runs_out(most) => None,
        };
        // At least 1 µs, so that a quick read differs from none.
        let spent = (began.elapsed().as_micros() as u64).max(1);
        self.spent_us.fetch_add(spent, Ordering::Relaxed);
        answer
    }

    async fn runs_out(&self, most: Duration) {
        let usual = self.usual.saturating_sub(self.spent());
        let Some(mut shutdown) = self.shutdown.clone() else {
            return sleep(self.left().min(most)).await;
        };
        let stopped = async {
            // The sender is gone: nothing is served any more.
            let _ = shutdown.wait_for(|begun| *begun).await;
        };
        tokio::join!(sleep(usual.min(most)), async {
            tokio::select! {
                () = sleep(self.left().min(most)) => {}
                () = stopped => {}
            }
        });
    }
}

/// The result of looking for a session.
pub(crate) enum LookupOutcome<T> {
    /// It was found.
    Found(T),
    /// There is none.
    None,
    /// The store did not answer in time, or failed: nothing may be concluded from it, and no session begun.
    Late,
}

/// The result of waiting for a [`Recall`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecallOutcome {
    /// The store's data is loaded.
    Known,
    /// The store did not answer in time; it still may.
    Late,
    /// Reading failed, and will be tried again later.
    Failed,
}

/// Data that is read from the store once. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Recall(Arc<RecallInner>);

#[derive(Default)]
struct RecallInner {
    state: Mutex<RecallState>,
    /// Notified when a read ends.
    ended: Notify,
}

#[derive(Default)]
struct RecallState {
    progress: RecallProgress,
    failures: u32,
}

/// What a caller has to do.
pub(super) enum RecallStart {
    /// Nothing: it is loaded.
    Known,
    /// Continue without it: reading has just failed.
    Failed,
    /// Wait for the read that began at this time.
    Reading(Instant),
    /// Read it, and report the result.
    Read(RecallRun, Instant),
}

#[derive(Clone, Copy, Default)]
enum RecallProgress {
    #[default]
    Unread,
    Reading {
        since: Instant,
    },
    Failed {
        at: Instant,
    },
    Known,
}

impl Recall {
    /// Whether it has been read.
    pub(crate) fn is_known(&self) -> bool {
        matches!(self.state().progress, RecallProgress::Known)
    }

    pub(super) fn set_known(&self) {
        self.state().progress = RecallProgress::Known;
    }

    /// Reads it with `read` in a task of its own, unless it is being read or has failed too recently; waits
    /// for that within the budget.
    pub(crate) async fn wait<F>(
        &self,
        budget: &ReadBudget,
        read: impl FnOnce() -> F,
    ) -> RecallOutcome
    where
        F: Future<Output = Result<(), StoreError>> + Send + 'static,
    {
        if self.is_known() {
            return RecallOutcome::Known;
        }
        let ended = self.0.ended.notified();
        tokio::pin!(ended);
        // Before the state is looked at: a read that ends in between would not be noticed.
        ended.as_mut().enable();
        let since = match self.begin() {
            RecallStart::Known => return RecallOutcome::Known,
            RecallStart::Failed => return RecallOutcome::Failed,
            RecallStart::Reading(since) => since,
            RecallStart::Read(run, since) => {
                // In a task of its own: the client that began it may leave, and others wait for it.
                tokio::spawn(run.run(read()));
                since
            }
        };
        if budget.wait_since(since, ended).await.is_none() {
            return RecallOutcome::Late;
        }
        if self.is_known() { RecallOutcome::Known } else { RecallOutcome::Failed }
    }

    pub(super) fn begin(&self) -> RecallStart {
        // The first caller reads for all.
        let mut state = self.state();
        match state.progress {
            RecallProgress::Known => RecallStart::Known,
            RecallProgress::Failed { at } if at.elapsed() < rest(state.failures) => {
                RecallStart::Failed
            }
            RecallProgress::Reading { since } => RecallStart::Reading(since),
            RecallProgress::Unread | RecallProgress::Failed { .. } => {
                let since = Instant::now();
                state.progress = RecallProgress::Reading { since };
                RecallStart::Read(RecallRun { recall: self.clone(), read: None }, since)
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, RecallState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn rest(failures: u32) -> Duration {
    REST.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(LONGEST_REST)
}

/// A read in progress; a panic in it counts as a failure.
pub(super) struct RecallRun {
    recall: Recall,
    read: Option<Result<(), StoreError>>,
}

impl RecallRun {
    async fn run(self, read: impl Future<Output = Result<(), StoreError>>) {
        let read = read.await;
        self.end(read);
    }

    pub(super) fn end(mut self, read: Result<(), StoreError>) {
        self.read = Some(read);
    }
}

impl Drop for RecallRun {
    fn drop(&mut self) {
        let mut state = self.recall.state();
        match &self.read {
            Some(Ok(())) => state.progress = RecallProgress::Known,
            Some(Err(_)) | None => {
                state.failures += 1;
                state.progress = RecallProgress::Failed { at: Instant::now() };
            }
        }
        drop(state);
        self.recall.0.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    const SHORT: Duration = Duration::from_millis(5);
    const LONG: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn all_reads_share_one_budget() {
        let budget = ReadBudget::new(SHORT);
        let never = std::future::pending::<()>;
        assert_eq!(budget.wait(never()).await, None);
        assert_eq!(budget.left(), Duration::ZERO);
        assert_eq!(budget.wait(std::future::ready(7)).await, Some(7), "what is there is taken");
        let began = Instant::now();
        for _ in 0..100 {
            assert_eq!(budget.clone().wait(never()).await, None);
        }
        assert!(began.elapsed() < LONG);
    }

    #[tokio::test]
    async fn first_load_may_take_longer() {
        let never = std::future::pending::<()>;
        let (stop, shutdown) = watch::channel(false);
        let budget = |whole| ReadBudget::new(SHORT).with_first_load(whole, shutdown.clone());
        let (first, began) = (budget(10 * SHORT), Instant::now());
        assert_eq!(first.wait(never()).await, None);
        assert!(began.elapsed() >= 10 * SHORT);
        assert!(first.is_overspent());
        assert_eq!(first.after_first_load().left(), Duration::ZERO, "the time spent is shared");
        let began = Instant::now();
        let ends = async {
            sleep(2 * SHORT).await;
            stop.send_replace(true);
        };
        let second = budget(LONG);
        let (answer, ()) = tokio::join!(second.wait(never()), ends);
        assert_eq!(answer, None, "a shutdown does not wait");
        assert!(began.elapsed() < LONG, "a shutdown does not wait");
        let began = Instant::now();
        assert_eq!(budget(LONG).wait(never()).await, None);
        assert!((SHORT..LONG).contains(&began.elapsed()), "as long as anything else");
    }

    #[test]
    fn overspent_budget_ends_reads() {
        let (_stop, shutdown) = watch::channel(false);
        let first = ReadBudget::new(SHORT).with_first_load(LONG, shutdown);
        assert_eq!(first.left(), LONG);
        assert_eq!(first.after_first_load().left(), SHORT);
        let micros = SHORT.as_micros() as u64;
        for (spent, is_overspent) in [(0, false), (micros, false), (micros + 1, true)] {
            first.spent_us.store(spent, Ordering::Relaxed);
            assert_eq!(first.is_overspent(), is_overspent, "{spent} us");
        }
    }

    /// Sets the time of the last failure back, so that the pause after it is over.
    fn rests(recall: &Recall) {
        let mut state = recall.state();
        let long_ago = Instant::now().checked_sub(rest(state.failures)).unwrap();
        state.progress = RecallProgress::Failed { at: long_ago };
    }

    #[tokio::test]
    async fn one_read_serves_all_waiters() {
        let recall = Recall::default();
        let reads = Arc::new(AtomicUsize::new(0));
        let ask = |outcome: Result<(), StoreError>| {
            let (recall, reads) = (recall.clone(), reads.clone());
            async move {
                let read = move || async move {
                    reads.fetch_add(1, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    outcome
                };
                recall.wait(&ReadBudget::new(LONG), read).await
            }
        };
        let failed = || Err(StoreError::Closed);
        let (one, other) = tokio::join!(ask(failed()), ask(Ok(())));
        assert_eq!(one, RecallOutcome::Failed);
        assert_eq!(other, RecallOutcome::Failed);
        assert_eq!(reads.load(Ordering::SeqCst), 1, "one for both");
        assert_eq!(ask(Ok(())).await, RecallOutcome::Failed, "it is left alone");
        rests(&recall);
        assert_eq!(ask(Ok(())).await, RecallOutcome::Known);
        assert_eq!(ask(failed()).await, RecallOutcome::Known);
        assert_eq!(reads.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn retries_pause_longer_each_time() {
        let recall = Recall::default();
        let budget = ReadBudget::new(LONG);
        let fails = || recall.wait(&budget, || async { Err(StoreError::Closed) });
        assert_eq!(fails().await, RecallOutcome::Failed);
        rests(&recall);
        assert_eq!(fails().await, RecallOutcome::Failed);
        // Only the pause of a first failure has passed, and this was the second.
        let at = Instant::now().checked_sub(rest(1)).unwrap();
        recall.state().progress = RecallProgress::Failed { at };
        assert!(matches!(recall.begin(), RecallStart::Failed));
        rests(&recall);
        assert!(matches!(recall.begin(), RecallStart::Read(..)));
    }

    #[test]
    fn retry_pauses_grow_up_to_maximum() {
        let rests = [1, 2, 3, 7, 1000].map(|failures| rest(failures).as_secs());
        assert_eq!(rests, [1, 2, 4, 60, 60]);
    }

    #[tokio::test]
    async fn late_read_serves_later_waiters() {
        let recall = Recall::default();
        let (go, gate) = tokio::sync::oneshot::channel::<()>();
        let read = || async move { gate.await.map_err(|_| StoreError::Closed) };
        assert_eq!(recall.wait(&ReadBudget::new(SHORT), read).await, RecallOutcome::Late);
        let never = std::future::pending;
        assert_eq!(recall.wait(&ReadBudget::new(SHORT), never).await, RecallOutcome::Late);
        go.send(()).unwrap();
        assert_eq!(recall.wait(&ReadBudget::new(LONG), never).await, RecallOutcome::Known);
    }

    #[tokio::test]
    async fn panicking_read_has_failed() {
        let recall = Recall::default();
        let read = || async { panic!("a mistake") };
        assert_eq!(recall.wait(&ReadBudget::new(LONG), read).await, RecallOutcome::Failed);
    }
}
