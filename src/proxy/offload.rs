//! Runs long work off the async threads, at most as much at once as half of the cores.
//!
//! The other half is for streams. Work that a client waits for starts soon or is skipped.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::LazyLock;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinError;

use crate::telemetry::FailOpen;

/// Larger bodies are read, planned and measured off the async threads: that takes about 1 ms per MB, more if
/// much is new, and other streams must not wait for it.
pub(super) const OFF_THREAD: usize = 256 * 1024;

/// How long work that a client waits for may be queued; then it is skipped.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Work that needs much memory: one at a time.
static ALONE: Semaphore = Semaphore::const_new(1);

/// Long work at once: half of the cores, so that streams have the others.
static AT_ONCE: LazyLock<Semaphore> = LazyLock::new(|| {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Semaphore::new((cores / 2).max(1))
});

/// Runs long work off the async threads, when there is a permit.
pub(super) async fn long_work<T: Send + 'static>(
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    run_in(AT_ONCE.acquire().await.ok(), run).await
}

/// Runs work here, or off the async threads if it is long. A panic is passed on, as on this thread.
pub(super) async fn long_work_if<T: Send + 'static>(
    is_long: bool,
    run: impl FnOnce() -> T + Send + 'static,
) -> T {
    match is_long {
        // Boxed, because little work is long and the future is large.
        true => Box::pin(long_work(run))
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
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<T, FailOpen> {
    joined_soon(run).await?.map_err(|_| FailOpen::Panicked)
}

/// [`long_work_soon`], but a panic is passed on, as on this thread.
///
/// # Errors
/// There was no permit in time.
pub(super) async fn long_work_soon_or_panic<T: Send + 'static>(
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<T, FailOpen> {
    let joined = joined_soon(run).await?;
    Ok(joined.unwrap_or_else(|panicked| resume_unwind(panicked.into_panic())))
}

async fn joined_soon<T: Send + 'static>(
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<Result<T, JoinError>, FailOpen> {
    let turn = tokio::time::timeout(TIMEOUT, AT_ONCE.acquire()).await;
    let turn = turn.map_err(|_| FailOpen::AnalysisBudget)?;
    Ok(run_in(turn.ok(), run).await)
}

/// [`long_work_soon`] that needs much memory: no other such work runs meanwhile.
///
/// # Errors
/// The reason why it was not done.
pub(super) async fn long_work_alone<T: Send + 'static>(
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<T, FailOpen> {
    let turns = async { (ALONE.acquire().await, AT_ONCE.acquire().await) };
    let turns = tokio::time::timeout(TIMEOUT, turns).await;
    let turns = turns.map_err(|_| FailOpen::AnalysisBudget)?;
    run_in(turns, run).await.map_err(|_| FailOpen::Panicked)
}

/// Runs work while holding a permit, even if nobody waits for the result any more. (The semaphore is never
/// closed.)
async fn run_in<T: Send + 'static>(
    turn: impl Send + 'static,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    tokio::task::spawn_blocking(move || {
        let _turn = turn;
        run()
    })
    .await
}

/// Takes every permit, so that other long work is queued.
#[cfg(test)]
pub(super) async fn all_permits() -> Option<tokio::sync::SemaphorePermit<'static>> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    AT_ONCE.acquire_many((cores / 2).max(1) as u32).await.ok()
}

/// Runs a computation here if it is small, else off the async threads. An error if there was no permit in
/// time, or if it panicked.
pub(super) async fn off_thread<T: Send + 'static>(
    size: usize,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<T, FailOpen> {
    match size > OFF_THREAD {
        // Boxed, because little work is long and the future is large.
        true => Box::pin(long_work_soon(run)).await,
        false => catch_unwind(AssertUnwindSafe(run)).map_err(|_| FailOpen::Panicked),
    }
}
