//! Whether a client's connection goes on, and who has to do something for it: the client, or we and the
//! upstream.
//!
//! Where memory for connections is short, those go that wait for a client which brings and takes nothing. A
//! connection that waits for a model is never one of them.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// A client that brings and takes nothing for this long loses its connection where others need the memory.
const STALL: Duration = Duration::from_secs(5);

/// What is under way on one connection.
#[derive(Default)]
pub(crate) struct ConnectionProgress {
    exchanges: AtomicUsize,
    /// Request bodies that have not ended.
    bodies: AtomicUsize,
    /// Pieces of answers that have not left.
    unsent: AtomicUsize,
    /// When the client last brought or took something, ms of [`clock`].
    moved: AtomicU64,
}

/// What is counted, until its guard is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InFlightGuard {
    /// An exchange.
    Exchange,
    /// A request's body.
    Body,
    /// A piece of an answer.
    Piece,
}

impl ConnectionProgress {
    /// One more.
    pub(crate) fn begin(&self, what: InFlightGuard) {
        self.counter(what).fetch_add(1, Ordering::Relaxed);
    }

    /// One less.
    pub(crate) fn end(&self, what: InFlightGuard) {
        self.counter(what).fetch_sub(1, Ordering::Relaxed);
    }

    /// The client brought or took bytes.
    pub(crate) fn moved(&self) {
        self.moved.store(clock(), Ordering::Relaxed);
    }

    /// No exchange is under way: what comes now is headers.
    pub(crate) fn is_between(&self) -> bool {
        self.exchanges.load(Ordering::Relaxed) == 0
    }

    /// How much longer the client may bring and take nothing; zero where its time is over. The whole time
    /// where it is not the client that is waited for.
    pub(crate) fn timeout(&self) -> Duration {
        let count = |what| self.counter(what).load(Ordering::Relaxed);
        let waits_for_client =
            self.is_between() || count(InFlightGuard::Body) > 0 || count(InFlightGuard::Piece) > 0;
        if !waits_for_client {
            return STALL;
        }
        STALL.saturating_sub(self.still())
    }

    /// Since when the client has brought and taken nothing.
    pub(crate) fn still(&self) -> Duration {
        Duration::from_millis(clock().saturating_sub(self.moved.load(Ordering::Relaxed)))
    }

    fn counter(&self, what: InFlightGuard) -> &AtomicUsize {
        match what {
            InFlightGuard::Exchange => &self.exchanges,
            InFlightGuard::Body => &self.bodies,
            InFlightGuard::Piece => &self.unsent,
        }
    }
}

/// Ms since it was first asked for.
fn clock() -> u64 {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    BEGAN.get_or_init(Instant::now).elapsed().as_millis() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_waits_for_a_model_has_its_time_and_a_client_that_stalls_has_not() {
        let progress = ConnectionProgress::default();
        progress.moved();
        assert!(progress.timeout() > Duration::ZERO);
        clock();
        let long_ago = ConnectionProgress::default();
        std::thread::sleep(Duration::from_millis(20));
        let less = |progress: &ConnectionProgress| progress.timeout() < STALL;
        assert!(less(&long_ago), "between two requests");
        long_ago.begin(InFlightGuard::Exchange);
        assert!(!less(&long_ago), "a model thinks");
        for what in [InFlightGuard::Body, InFlightGuard::Piece] {
            long_ago.begin(what);
            assert!(less(&long_ago), "{what:?}");
            long_ago.end(what);
        }
        assert!(!less(&long_ago));
    }
}
