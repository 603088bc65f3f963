//! The progress of a client's connection, and whether it waits for the client or for the upstream.
//!
//! If memory for connections is short, connections are closed that wait for a client which neither sends nor
//! reads. A connection that waits for a model is never closed for that.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// If others need the memory, a client that neither sends nor reads for this long loses its connection.
const STALL: Duration = Duration::from_secs(5);

/// What is in progress on one connection.
#[derive(Default)]
pub(crate) struct ConnectionProgress {
    exchanges: AtomicUsize,
    /// Request bodies that have not ended.
    bodies: AtomicUsize,
    /// Pieces of responses that are not written yet.
    unsent: AtomicUsize,
    /// When the client last sent or read something, ms of [`clock`].
    last_activity: AtomicU64,
}

/// What is counted while it is in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InFlight {
    /// An exchange.
    Exchange,
    /// The body of a request.
    Body,
    /// A piece of a response.
    Piece,
}

impl ConnectionProgress {
    /// Counts one more.
    pub(crate) fn begin(&self, what: InFlight) {
        self.counter(what).fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one less.
    pub(crate) fn end(&self, what: InFlight) {
        self.counter(what).fetch_sub(1, Ordering::Relaxed);
    }

    /// Records that the client sent or read bytes.
    pub(crate) fn record_activity(&self) {
        self.last_activity.store(clock(), Ordering::Relaxed);
    }

    /// Whether no exchange is in progress, nor the body of one that has ended, so that the next bytes are headers.
    pub(super) fn is_between_exchanges(&self) -> bool {
        let count = |what| self.counter(what).load(Ordering::Relaxed);
        count(InFlight::Exchange) == 0 && count(InFlight::Body) == 0
    }

    /// How much longer the client may be idle; zero if its time is over. The whole time if the connection
    /// does not wait for the client.
    pub(crate) fn time_left(&self) -> Duration {
        let count = |what| self.counter(what).load(Ordering::Relaxed);
        let waits_for_client =
            self.is_between_exchanges() || count(InFlight::Body) > 0 || count(InFlight::Piece) > 0;
        if !waits_for_client {
            return STALL;
        }
        STALL.saturating_sub(self.idle_time())
    }

    /// How long the client has neither sent nor read.
    pub(crate) fn idle_time(&self) -> Duration {
        Duration::from_millis(clock().saturating_sub(self.last_activity.load(Ordering::Relaxed)))
    }

    fn counter(&self, what: InFlight) -> &AtomicUsize {
        match what {
            InFlight::Exchange => &self.exchanges,
            InFlight::Body => &self.bodies,
            InFlight::Piece => &self.unsent,
        }
    }
}

/// Milliseconds since the first call.
fn clock() -> u64 {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    BEGAN.get_or_init(Instant::now).elapsed().as_millis() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_connection_that_waits_for_its_client_runs_out_of_time() {
        let progress = ConnectionProgress::default();
        progress.record_activity();
        assert!(progress.time_left() > Duration::ZERO);
        clock();
        let long_ago = ConnectionProgress::default();
        std::thread::sleep(Duration::from_millis(20));
        let less = |progress: &ConnectionProgress| progress.time_left() < STALL;
        assert!(less(&long_ago), "between two requests");
        long_ago.begin(InFlight::Exchange);
        assert!(!less(&long_ago), "a model thinks");
        for what in [InFlight::Body, InFlight::Piece] {
            long_ago.begin(what);
            assert!(less(&long_ago), "{what:?}");
            long_ago.end(what);
        }
        assert!(!less(&long_ago));
    }
}
