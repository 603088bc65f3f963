//! Long work off the async threads, and no more of it at once than half of the cores.
//!
//! Streams have the other half. What a client waits for gets its turn soon, or is not done.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::LazyLock;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinError;

use crate::telemetry::FailOpen;

/// Bodies larger than this are read, planned and measured off the async threads: that takes about
/// 1 ms a MB, more where much is new, and other streams must not wait meanwhile.
pub(crate) const OFF_THREAD: usize = 256 * 1024;

/// How long work that a client waits for waits for its turn. Past it: it is not done.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Work that takes much memory: one at a time.
static ALONE: Semaphore = Semaphore::const_new(1);

/// Long work at once: half of the cores, so that streams have the others.
static AT_ONCE: LazyLock<Semaphore> = LazyLock::new(|| {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Semaphore::new((cores / 2).max(1))
});

/// Runs long work off the async threads, in its turn.
pub(crate) async fn long_work<T: Send + 'static>(
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    run_in(AT_ONCE.acquire().await.ok(), run).await
}

/// The same for what a client waits for: its turn comes soon, or it is not done.
///
/// # Errors
/// Why it was not done.
pub(crate) async fn long_work_soon<T: Send + 'static>(
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<T, FailOpen> {
    soon(run).await?.map_err(|_| FailOpen::Panicked)
}

/// The same, where a panic is its caller's.
///
/// # Errors
/// Its turn did not come.
pub(crate) async fn soon<T: Send + 'static>(
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<Result<T, JoinError>, FailOpen> {
    let turn = tokio::time::timeout(TIMEOUT, AT_ONCE.acquire()).await;
    let turn = turn.map_err(|_| FailOpen::AnalysisBudget)?;
    Ok(run_in(turn.ok(), run).await)
}

/// The same for work that takes much memory: no other such work runs meanwhile.
///
/// # Errors
/// Why it was not done.
pub(crate) async fn long_work_alone<T: Send + 'static>(
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<T, FailOpen> {
    let turns = async { (ALONE.acquire().await, AT_ONCE.acquire().await) };
    let turns = tokio::time::timeout(TIMEOUT, turns).await;
    let turns = turns.map_err(|_| FailOpen::AnalysisBudget)?;
    run_in(turns, run).await.map_err(|_| FailOpen::Panicked)
}

/// Runs it in a turn that ends with it, even where nobody waits any more. (The semaphore is never closed.)
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

/// Runs a computation where it fits, a long one within its turn. No turn in time, or a panic: why there is
/// none.
pub(crate) async fn off_thread<T: Send + 'static>(
    size: usize,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<T, FailOpen> {
    match size > OFF_THREAD {
        true => long_work_soon(run).await,
        false => catch_unwind(AssertUnwindSafe(run)).map_err(|_| FailOpen::Panicked),
    }
}
