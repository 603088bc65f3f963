//! The runtime of servers: as many workers as there are cores, and a few threads for blocking work.
//!
//! Those few are limited: past the limit such work waits for its turn. Waiting for other machines (host
//! names) has a limit of its own (`proxy/http/upstream/dns.rs`), and the store has threads of its own.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::{Builder, Handle, Runtime};

use super::reclaim;

/// The most threads besides the workers.
const BLOCKING: usize = 16;

/// The number of all threads of the runtime, of which a process has one.
static THREADS: AtomicUsize = AtomicUsize::new(0);

/// As many workers as there are cores, and [`BLOCKING`] threads besides them.
///
/// # Errors
/// If the system cannot start a thread for it.
pub(in crate::cli) fn runtime() -> std::io::Result<Runtime> {
    Builder::new_multi_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING)
        .on_thread_start(|| _ = THREADS.fetch_add(1, Ordering::Relaxed))
        .on_thread_park(reclaim::before_sleep)
        .on_thread_stop(|| _ = THREADS.fetch_sub(1, Ordering::Relaxed))
        .build()
}

/// The number of threads of the runtime besides its workers.
pub(super) fn blocking() -> usize {
    let workers = Handle::try_current().map_or(0, |runtime| runtime.metrics().num_workers());
    THREADS.load(Ordering::Relaxed).saturating_sub(workers)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Barrier};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn blocking_work_waits_for_threads() {
        let runtime = runtime().unwrap();
        runtime.block_on(async {
            let gate = Arc::new(Barrier::new(BLOCKING + 1));
            let wait = |_| {
                let gate = gate.clone();
                tokio::task::spawn_blocking(move || _ = gate.wait())
            };
            let holding: Vec<_> = (0..BLOCKING).map(wait).collect();
            let until = Instant::now() + Duration::from_secs(30);
            while blocking() < BLOCKING && Instant::now() < until {
                tokio::task::yield_now().await;
            }
            let past = tokio::task::spawn_blocking(|| 7);
            assert_eq!(blocking(), BLOCKING);
            assert!(!past.is_finished());
            std::thread::spawn(move || gate.wait()).join().unwrap();
            assert_eq!(past.await.unwrap(), 7);
            for one in holding {
                one.await.unwrap();
            }
        });
    }
}
