//! Whether a kept HTTP/1.1 connection closed before or after its upstream read a request.
//!
//! If an upstream closed an idle connection, this shows within a round trip after a request was sent on it,
//! and without a byte of a response. If it shows later, or after any byte, the request may have been read.
//! The time is measured by the connection's own task, so if the task was not scheduled, the limit has not
//! passed.

use std::future::Future as _;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Context;
use std::time::{Duration, Instant};

use tokio::time::{Sleep, sleep};

/// The shortest [`crossing_time`].
const SHORTEST: Duration = Duration::from_millis(50);
/// The longest [`crossing_time`].
const LONGEST: Duration = Duration::from_millis(250);

/// How long after a request was sent a close means that the request was not read: two round trips, but not less than
/// [`SHORTEST`], because machines may be busy.
pub(super) fn crossing_time(round_trip: Duration) -> Duration {
    (round_trip * 2).clamp(SHORTEST, LONGEST)
}

/// Whether a request was sent so recently that a close may still have crossed it, allowing for delays here.
pub(super) fn may_have_crossed(sent: Instant) -> bool {
    sent.elapsed() < LONGEST
}

/// What was seen on a connection since the last request was sent on it.
#[derive(Debug, Default)]
pub(super) struct CloseWatch {
    /// A request was sent, and no byte has come back.
    is_silent: AtomicBool,
    /// The connection has been silent for longer than a crossing close takes.
    is_late: AtomicBool,
}

impl CloseWatch {
    /// A request is sent on an idle connection.
    pub(super) fn begin(&self) {
        self.is_late.store(false, Ordering::Release);
        self.is_silent.store(true, Ordering::Release);
    }

    /// Whether the connection, if it closed, closed before the request was read.
    pub(super) fn is_unread(&self) -> bool {
        self.is_silent.load(Ordering::Acquire) && !self.is_late.load(Ordering::Acquire)
    }
}

/// The connection's side of a [`CloseWatch`].
pub(super) struct CloseTimer {
    watch: Arc<CloseWatch>,
    crossing_time: Duration,
    /// Runs from the first byte of a request to the first byte of its response.
    crossing: Option<Pin<Box<Sleep>>>,
}

impl CloseTimer {
    pub(super) fn new(watch: Arc<CloseWatch>, crossing_time: Duration) -> Self {
        Self { watch, crossing_time, crossing: None }
    }

    /// Called when bytes are written.
    pub(super) fn wrote(&mut self, cx: &mut Context<'_>) {
        if self.crossing.is_none() && self.watch.is_unread() {
            self.crossing = Some(Box::pin(sleep(self.crossing_time)));
            self.poll(cx);
        }
    }

    /// Called when there is nothing to read yet.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) {
        let Some(crossing) = &mut self.crossing else { return };
        if crossing.as_mut().poll(cx).is_ready() {
            self.watch.is_late.store(true, Ordering::Release);
            self.crossing = None;
        }
    }

    /// Called when bytes were read.
    pub(super) fn read(&mut self) {
        self.watch.is_silent.store(false, Ordering::Release);
        self.crossing = None;
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[test]
    fn the_crossing_time_is_two_round_trips_within_its_bounds() {
        for (round_trip, bound) in [(0, 50), (10, 50), (40, 80), (100, 200), (2000, 250)] {
            let round_trip = Duration::from_millis(round_trip);
            assert_eq!(crossing_time(round_trip), Duration::from_millis(bound));
        }
    }

    /// The result after these steps: `b` a request begins, `w` bytes are written, `r` bytes are read, `.` there is
    /// nothing to read, `-` the crossing time passes.
    #[tokio::test]
    async fn a_request_is_unread_if_the_close_comes_soon_and_before_any_byte() {
        for (steps, is_unread) in [
            ("", false),
            ("w", false),
            ("b", true),
            ("bw", true),
            ("bw.", true),
            // The task did not run while the time passed, so the close may have arrived in time.
            ("bw-", true),
            ("bw-.", false),
            ("bwr", false),
            ("bwrw", false),
            ("bwr-.", false),
            ("bwrb", true),
            ("bw-.b", true),
            ("bwrbw-.", false),
        ] {
            let watch = Arc::new(CloseWatch::default());
            let bound = if steps.contains('-') { SHORTEST } else { Duration::from_secs(60) };
            let mut timer = CloseTimer::new(watch.clone(), bound);
            let mut cx = Context::from_waker(Waker::noop());
            for step in steps.chars() {
                match step {
                    'b' => watch.begin(),
                    'w' => timer.wrote(&mut cx),
                    'r' => timer.read(),
                    '.' => timer.poll(&mut cx),
                    _ => sleep(SHORTEST * 2).await,
                }
            }
            assert_eq!(watch.is_unread(), is_unread, "{steps:?}");
        }
    }
}
