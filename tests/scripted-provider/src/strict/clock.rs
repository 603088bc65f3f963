//! The time of the strict provider: the machine's, or one that a test advances.
//!
//! Caches and logs get the time from here as a duration since the start.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The machine's clock, or one that a test sets.
#[derive(Clone, Debug)]
pub struct Clock(ClockSource);

#[derive(Clone, Debug)]
enum ClockSource {
    Real(Instant),
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// The machine's clock; its time starts now.
    pub fn real() -> Self {
        Self(ClockSource::Real(Instant::now()))
    }

    /// A clock that stands still until it is advanced. Copies share its time.
    pub fn manual() -> Self {
        Self(ClockSource::Manual(Arc::default()))
    }

    /// Advances the time; does nothing on the machine's clock.
    pub fn advance(&self, by: Duration) {
        if let ClockSource::Manual(ms) = &self.0 {
            ms.fetch_add(by.as_millis() as u64, Ordering::SeqCst);
        }
    }

    /// Time since the start.
    pub fn now(&self) -> Duration {
        match &self.0 {
            ClockSource::Real(start) => start.elapsed(),
            ClockSource::Manual(ms) => Duration::from_millis(ms.load(Ordering::SeqCst)),
        }
    }
}
