//! The threads that make ledgers from records: a few of their own.
//!
//! A session of megabytes takes tens of milliseconds. The bodies of requests are read on the runtime's
//! blocking threads, so the two never wait for each other. If the queue is full, jobs are refused.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use tokio::sync::oneshot;

use crate::store::StoreError;

/// Threads per process.
const THREADS: usize = 2;
/// Sessions that may wait for a thread.
const QUEUE: usize = 256;

type ParserJob = Box<dyn FnOnce() + Send>;

/// They live as long as the process, which does not wait for them at its end.
static QUEUED: LazyLock<SyncSender<ParserJob>> = LazyLock::new(|| {
    let (jobs, queue) = sync_channel(QUEUE);
    let queue = Arc::new(Mutex::new(queue));
    for _ in 0..THREADS {
        let queue = queue.clone();
        let thread = std::thread::Builder::new().name("store-parse".into());
        // Without a thread, every job is refused as closed.
        drop(thread.spawn(move || run(&queue)));
    }
    jobs
});

/// Runs a job on one of them.
///
/// # Errors
/// If the queue is full, or the job panicked.
pub(super) async fn parse<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, StoreError> {
    let (answer, done) = oneshot::channel();
    let job: ParserJob = Box::new(move || drop(answer.send(work())));
    QUEUED.try_send(job).map_err(|_| StoreError::Closed)?;
    done.await.map_err(|_| StoreError::Failed("the stored data could not be read".to_owned()))
}

fn run(queue: &Mutex<Receiver<ParserJob>>) {
    loop {
        let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = job else { return };
        // A job that panics loses its result, not the thread.
        drop(catch_unwind(AssertUnwindSafe(job)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn parser_panic_loses_its_result() {
        for _ in 0..=THREADS {
            assert!(parse(|| panic!("a mistake")).await.is_err());
        }
        assert_eq!(parse(|| 7).await.unwrap(), 7);
    }
}
