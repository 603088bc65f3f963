//! Memory goes back to the system once traffic has gone.
//!
//! The allocator frees for the system what a thread frees while that thread goes on. Of a burst at whose end
//! the thread sleeps it keeps all: some 100 MiB after a flood. Where memory cannot be had it looks for all
//! that it keeps of the thread that asks, and gives it back. So each worker that was busy asks for more than
//! there is before it sleeps, now and then. An allocator that does otherwise says no, and nothing has changed.

use std::cell::Cell;
use std::convert::Infallible;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;

/// How often it is asked whether anything was done.
const EVERY: Duration = Duration::from_secs(5);
/// What all workers have to have done since for it to be worth while. A round takes less.
const BUSY: Duration = Duration::from_millis(20);
/// As many rounds follow, in two minutes: connections are kept for a while, and what they held goes later.
const ROUNDS: u32 = 24;
/// More memory than a process has addresses for, and less than what the allocator refuses without a look.
const TOO_MUCH: usize = 255 << 40;

/// How many times memory was to be given back.
static ROUND: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The round that this thread has taken part in.
    static SEEN: Cell<u64> = const { Cell::new(0) };
}

/// Has the allocator give back what it keeps of this thread.
fn give_back() {
    let mut none: Vec<u8> = Vec::new();
    let refused = none.try_reserve_exact(TOO_MUCH).is_err();
    // Else the compiler sees that nothing is done with it.
    black_box((none, refused));
}

/// What a worker does before it sleeps.
pub(super) fn before_sleep() {
    let round = ROUND.load(Ordering::Relaxed);
    if SEEN.replace(round) != round {
        give_back();
    }
}

/// Begins rounds after work was done, for as long as it is polled. The thread that polls it takes part, too.
pub(super) async fn run() -> Infallible {
    let (mut before, mut left) = (Duration::ZERO, 0);
    loop {
        tokio::time::sleep(EVERY).await;
        let metrics = Handle::current().metrics();
        let workers = metrics.num_workers();
        let busy: Duration =
            (0..workers).map(|worker| metrics.worker_total_busy_duration(worker)).sum();
        if busy.saturating_sub(before) > BUSY {
            left = ROUNDS;
        }
        if left > 0 {
            left -= 1;
            ROUND.fetch_add(1, Ordering::Relaxed);
            wake(workers);
            give_back();
        }
        before = busy;
    }
}

/// Wakes workers that sleep, so that they sleep again.
fn wake(workers: usize) {
    for _ in 0..workers * 4 {
        tokio::spawn(async {
            for _ in 0..8 {
                tokio::task::yield_now().await;
            }
        });
    }
}
