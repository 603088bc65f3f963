//! What has to hold when a write is carried out: the session was not deleted since, and nobody cancelled it.
//!
//! A store looks at it in the transaction that writes, so that nothing comes between. Deletions are remembered
//! by tombstones, for as long as something may be in flight, and no more of them than so many.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

/// How long a deletion is remembered: nothing that was begun before it is in flight for longer.
pub(super) const TOMBSTONE_LIFE: Duration = Duration::from_secs(24 * 3600);
/// Most deletions that are remembered; past it the oldest go.
pub(super) const TOMBSTONES: usize = 10_000;

/// What has to hold for a write; where it does not, nothing of it is kept. The default asks for nothing.
#[derive(Clone, Debug, Default)]
pub struct Precondition {
    /// The scope was not deleted since: what is written rests on what was known then.
    pub since: Option<Instant>,
    /// Nobody cancelled it.
    pub token: Option<WriteToken>,
}

impl Precondition {
    /// The scope was not deleted since.
    pub fn since(since: Instant) -> Self {
        Self { since: Some(since), token: None }
    }
}

const WAITING: u8 = 0;
const BEGUN: u8 = 1;
const CANCELLED: u8 = 2;

/// Cancels a write as long as it has not begun. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct WriteToken(Arc<AtomicU8>);

impl WriteToken {
    /// Cancels the write; `false` where it has begun, and may be kept.
    pub(crate) fn cancel(&self) -> bool {
        self.moves_to(CANCELLED)
    }

    /// The write begins; `false` where it was cancelled.
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
    fn a_write_is_cancelled_or_begun_and_never_both() {
        let cancelled = WriteToken::default();
        assert!(cancelled.cancel() && cancelled.cancel());
        assert!(!cancelled.begin());
        let begun = WriteToken::default();
        assert!(begun.clone().begin());
        assert!(!begun.cancel());
    }
}
