//! Runs long work off the async threads, at most as much at once as half of the cores.
//!
//! The other half is for streams. Tenants get their work done in turn. Work that a client waits for starts soon or is
//! skipped.

mod fair_queue;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::LazyLock;
use std::time::Duration;

use tokio::task::JoinError;

use self::fair_queue::FairQueue;
use crate::context::TenantId;
use crate::telemetry::FailOpen;

/// Larger bodies are read, planned and measured off the async threads: that takes about 1 ms per MB, more if
/// much is new, and other streams must not wait for it.
pub(super) const OFF_THREAD: usize = 256 * 1024;

/// How long work that a client waits for may be queued; then it is skipped.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Work that needs much memory: one at a time.
static ALONE: LazyLock<FairQueue> = LazyLock::new(|| FairQueue::new(1));

/// Long work at once.
static AT_ONCE: LazyLock<FairQueue> = LazyLock::new(|| FairQueue::new(permits()));

fn permits() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (cores / 2).max(1)
}

pub(super) async fn long_work<T: Send + 'static>(
    tenant: Option<&TenantId>,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    run_in(AT_ONCE.acquire(tenant).await, run).await
}

/// Runs work here, or off the async threads if it is long.
pub(super) async fn long_work_if<T: Send + 'static>(
    is_long: bool,
    tenant: Option<&TenantId>,
    run: impl FnOnce() -> T + Send + 'static,
) -> T {
    // A panic is passed on, as on this thread.
    match is_long {
        // Boxed, because little work is long and the future is large.
        true => Box::pin(long_work(tenant, run))
            .await
            .unwrap_or_else(|panicked| resume_unwind(panicked.into_panic())),
        false => run(),
    }
}

/// [`long_work`] that a client waits for: it starts soon or is skipped.
///
/// # Errors
/// The reason why it was not done.
pub(super) async fn long_work_soon<T: Send + 'static>(
    tenant: Option<&TenantId>,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<T, FailOpen> {
    joined_soon(tenant, run).await?.map_err(|_| FailOpen::Panicked)
}

/// [`long_work_soon`], but a panic is passed on, as on this thread.
///
/// # Errors
/// There was no permit in time.
pub(super) async fn long_work_soon_or_panic<T: Send + 'static>(
    tenant: Option<&TenantId>,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<T, FailOpen> {
    let joined = joined_soon(tenant, run).await?;
    Ok(joined.unwrap_or_else(|panicked| resume_unwind(panicked.into_panic())))
}

async fn joined_soon<T: Send + 'static>(
    tenant: Option<&TenantId>,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<Result<T, JoinError>, FailOpen> {
    let turn = tokio::time::timeout(TIMEOUT, AT_ONCE.acquire(tenant)).await;
    let turn = turn.map_err(|_| FailOpen::AnalysisBudget)?;
    Ok(run_in(turn, run).await)
}

/// [`long_work_soon`] that needs much memory: no other such work runs meanwhile.
///
/// # Errors
/// The reason why it was not done.
pub(super) async fn long_work_alone<T: Send + 'static>(
    tenant: Option<&TenantId>,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<T, FailOpen> {
    let turns = async { (ALONE.acquire(tenant).await, AT_ONCE.acquire(tenant).await) };
    let turns = tokio::time::timeout(TIMEOUT, turns).await;
    let turns = turns.map_err(|_| FailOpen::AnalysisBudget)?;
    run_in(turns, run).await.map_err(|_| FailOpen::Panicked)
}

async fn run_in<T: Send + 'static>(
    turn: impl Send + 'static,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    // The permit moves into the thread: the work goes on even if nobody waits for the result any more.
    tokio::task::spawn_blocking(move || {
        let _turn = turn;
        run()
    })
    .await
}

/// Every permit, so that other long work is queued.
#[cfg(test)]
pub(super) struct AllPermits {
    permits: Vec<fair_queue::Permit>,
    /// One test at a time: others would wait for too long.
    _alone: tokio::sync::MutexGuard<'static, ()>,
}

#[cfg(test)]
impl AllPermits {
    pub(super) async fn take() -> Self {
        static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
        let _alone = ALONE.lock().await;
        let mut held = Vec::new();
        for _ in 0..permits() {
            held.push(AT_ONCE.acquire(None).await);
        }
        Self { permits: held, _alone }
    }

    /// From now on, long work is done, but no two at once.
    pub(super) fn release_one(&mut self) {
        self.permits.pop();
    }
}

/// Runs a computation here if it is small, else off the async threads. An error if there was no permit in
/// time, or if it panicked.
pub(super) async fn off_thread<T: Send + 'static>(
    size: usize,
    tenant: Option<&TenantId>,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<T, FailOpen> {
    match size > OFF_THREAD {
        // Boxed, because little work is long and the future is large.
        true => Box::pin(long_work_soon(tenant, run)).await,
        false => catch_unwind(AssertUnwindSafe(run)).map_err(|_| FailOpen::Panicked),
    }
}
