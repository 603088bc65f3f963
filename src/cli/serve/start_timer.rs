//! How long each step of the start takes, logged at level `debug`.
//!
//! Logs the names that it is given, and knows no steps itself.

use std::time::Instant;

/// Runs from the beginning of the start.
pub(super) struct StartTimer {
    began: Instant,
    /// When the previous step ended.
    last: Instant,
}

impl StartTimer {
    pub(super) fn begin() -> Self {
        let began = Instant::now();
        Self { began, last: began }
    }

    /// Logs the end of a step.
    pub(super) fn done(&mut self, what: &str) {
        let step = std::mem::replace(&mut self.last, Instant::now()).elapsed();
        let total = self.began.elapsed();
        tracing::debug!("start: {what} after {step:.1?}, {total:.1?} in all");
    }
}
