//! The conditions of a write: the session was not deleted since, and the write was not cancelled.
//!
//! A store checks them in the transaction that writes, so that nothing can come in between.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Instant;

/// The conditions of a write; if one does not hold, nothing is stored. The default has none.
#[derive(Clone, Debug, Default)]
pub struct Precondition {
    /// The scope was not deleted since this time, when the write's data was created.
    pub since: Option<Instant>,
    /// The write was not cancelled.
    pub token: Option<WriteToken>,
}

impl Precondition {
    pub(super) fn since(since: Instant) -> Self {
        Self { since: Some(since), token: None }
    }
}

const WAITING: u8 = 0;
const BEGUN: u8 = 1;
const CANCELLED: u8 = 2;

/// Cancels a write, as long as it has not begun. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct WriteToken(Arc<AtomicU8>);

impl WriteToken {
    /// Cancels the write; `false` if it has begun, and may be stored.
    pub(super) fn cancel(&self) -> bool {
        self.moves_to(CANCELLED)
    }

    /// Begins the write; `false` if it was cancelled.
    pub(super) fn begin(&self) -> bool {
        self.moves_to(BEGUN)
    }

    fn moves_to(&self, next: u8) -> bool {
        let moved = self.0.compare_exchange(WAITING, next, Ordering::AcqRel, Ordering::Acquire);
        moved.is_ok() || moved == Err(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_begins_or_is_cancelled() {
        let cancelled = WriteToken::default();
        assert!(cancelled.cancel());
        assert!(cancelled.cancel());
        assert!(!cancelled.begin());
        let begun = WriteToken::default();
        assert!(begun.clone().begin());
        assert!(!begun.cancel());
    }
}
