//! Memory goes back to the system once traffic has gone.
//!
//! The allocator returns memory that a thread frees to the system only while that thread keeps running. If
//! the thread sleeps at the end of a burst, it keeps everything: some 100 MiB after a flood. If an allocation
//! fails, the allocator looks through everything that it keeps for the thread and returns it. So each worker
//! that was busy requests, now and then before it sleeps, more memory than exists. An allocator that works
//! differently refuses, and nothing has changed.

use std::cell::Cell;
use std::convert::Infallible;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;

/// How often to check whether work was done.
const EVERY: Duration = Duration::from_secs(5);
/// The work of all workers since the last check that makes a round worthwhile. A round takes less.
const BUSY: Duration = Duration::from_millis(20);
/// This many rounds follow, over two minutes: connections are kept open for a while, and their memory is
/// freed later.
const ROUNDS: u32 = 24;
/// More memory than a process can address, and less than what the allocator refuses without a search.
const TOO_MUCH: usize = 255 << 40;

/// The number of rounds so far.
static ROUND: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The last round that this thread took part in.
    static SEEN: Cell<u64> = const { Cell::new(0) };
}

/// Makes the allocator return what it keeps for this thread.
fn give_back() {
    let mut none: Vec<u8> = Vec::new();
    let refused = none.try_reserve_exact(TOO_MUCH).is_err();
    // Otherwise the compiler sees that the result is not used, and removes the allocation.
    black_box((none, refused));
}

/// Runs on a worker before it sleeps.
pub(super) fn before_sleep() {
    let round = ROUND.load(Ordering::Relaxed);
    if SEEN.replace(round) != round {
        give_back();
    }
}

/// Starts rounds after work was done, as long as it is polled.
pub(super) async fn run() -> Infallible {
    // The polling thread takes part, too.
    let mut previous_busy = Duration::ZERO;
    let mut rounds_left = 0;
    loop {
        tokio::time::sleep(EVERY).await;
        let metrics = Handle::current().metrics();
        let workers = metrics.num_workers();
        let busy: Duration =
            (0..workers).map(|worker| metrics.worker_total_busy_duration(worker)).sum();
        if busy.saturating_sub(previous_busy) > BUSY {
            rounds_left = ROUNDS;
        }
        if rounds_left > 0 {
            rounds_left -= 1;
            ROUND.fetch_add(1, Ordering::Relaxed);
            wake(workers);
            give_back();
        }
        previous_busy = busy;
    }
}

fn wake(workers: usize) {
    // Going to sleep again, they take part in the round.
    for _ in 0..workers * 4 {
        tokio::spawn(async {
            for _ in 0..8 {
                tokio::task::yield_now().await;
            }
        });
    }
}
