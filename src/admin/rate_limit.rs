//! Requests with a wrong token are answered one by one, so that guessing is slow.
//!
//! All guesses share it; a right token never comes here. It also decides when a refusal is logged. Takes the
//! time as an argument.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The interval between responses to wrong tokens.
const PAUSE: Duration = Duration::from_millis(500);
/// The longest wait of one; a request that would wait longer is refused at once.
const LONGEST_WAIT: Duration = Duration::from_secs(4);
/// At most one refusal is logged in this time.
const BETWEEN_LINES: Duration = Duration::from_secs(60);

/// Spaces out the responses to wrong tokens.
#[derive(Debug, Default)]
pub(super) struct WrongTokenLimiter(Mutex<WrongTokenLimiterState>);

#[derive(Debug, Default)]
struct WrongTokenLimiterState {
    /// When the last waiting request is answered.
    last: Option<Instant>,
    /// When a refusal was last logged.
    written: Option<Instant>,
    /// The number of refusals since then, which were not logged.
    unwritten: u64,
}

impl WrongTokenLimiter {
    /// How long a wrong token waits for its response; `None` if too many wait already.
    pub(super) fn wait(&self, now: Instant) -> Option<Duration> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let answered = state.last.map_or(now, |last| last.max(now)) + PAUSE;
        let wait = answered - now;
        if wait > LONGEST_WAIT {
            return None;
        }
        state.last = Some(answered);
        Some(wait)
    }

    /// Whether a refusal is logged; if so, returns the number of refusals before it that were not.
    pub(super) fn line(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.written.is_some_and(|written| now.duration_since(written) < BETWEEN_LINES) {
            state.unwritten += 1;
            return None;
        }
        state.written = Some(now);
        Some(std::mem::take(&mut state.unwritten))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_tokens_wait_in_turn() {
        let (limiter, now) = (WrongTokenLimiter::default(), Instant::now());
        let waits: Vec<_> = (0..50).map(|_| limiter.wait(now)).collect();
        for (number, wait) in (1..).zip(&waits[..8]) {
            assert_eq!(*wait, Some(PAUSE * number));
        }
        assert!(waits[8..].iter().all(Option::is_none), "{waits:?}");
        let later = now + PAUSE;
        assert_eq!(limiter.wait(later), Some(LONGEST_WAIT), "one place is free again");
        assert_eq!(limiter.wait(later), None);
        assert_eq!(limiter.wait(now + Duration::from_secs(60)), Some(PAUSE), "and all are, later");
    }

    #[test]
    fn one_refusal_minute_is_logged() {
        let (limiter, now) = (WrongTokenLimiter::default(), Instant::now());
        assert_eq!(limiter.line(now), Some(0));
        for seconds in [0, 1, 59] {
            assert_eq!(limiter.line(now + Duration::from_secs(seconds)), None);
        }
        assert_eq!(limiter.line(now + Duration::from_secs(60)), Some(3));
    }
}
