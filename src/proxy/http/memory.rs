//! The memory budget for what traffic brings: bodies, what is parsed of them, replies, and messages.
//!
//! Whoever collects, decompresses or parses reserves memory first. If there is none, the bytes pass unread. Memory is
//! released when its guard is dropped. What a connection itself takes is bounded by constants and by the number of
//! connections, not here. Must not know what the memory is used for; callers decide how long to wait for it.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;

use crate::telemetry::{MemoryKind, Telemetry};
use crate::wire::memory::Memory;

/// Memory is counted in units of this many bytes, so that a stream of small frames rarely changes the count.
const PIECE: usize = 4096;

/// The memory budget of the process.
pub(crate) struct MemoryBudget {
    /// Most bytes held at once.
    limit: usize,
    held: AtomicUsize,
    /// Whether a reservation was refused, and nothing has been released since.
    is_short: AtomicBool,
    /// Notified when a reservation is refused.
    refused: Notify,
    /// Notified when memory is released.
    released: Notify,
    telemetry: Arc<Telemetry>,
}

impl MemoryBudget {
    pub(crate) fn new(limit: usize, telemetry: Arc<Telemetry>) -> Arc<Self> {
        telemetry.memory_limit(limit as u64);
        Arc::new(Self {
            limit,
            held: AtomicUsize::default(),
            is_short: AtomicBool::default(),
            refused: Notify::default(),
            released: Notify::default(),
            telemetry,
        })
    }

    pub(crate) fn guard(self: &Arc<Self>, kind: MemoryKind) -> HeldMemory {
        HeldMemory { budget: self.clone(), kind, bytes: 0 }
    }

    /// [`MemoryBudget::guard`] as a trait object, for code that must not know this type.
    pub(crate) fn boxed(self: &Arc<Self>, kind: MemoryKind) -> Box<dyn Memory> {
        Box::new(self.guard(kind))
    }

    /// A guard for memory that a stream cannot do without: counted as far as the budget allows, and never refused.
    pub(crate) fn counting(self: &Arc<Self>, kind: MemoryKind) -> Box<dyn Memory> {
        Box::new(CountedMemory(self.guard(kind)))
    }

    pub(super) async fn short(&self) {
        // `notified` is made first, so that no refusal is missed between the two. If nothing was released since
        // the last refusal, it is short already.
        let refused = self.refused.notified();
        if !self.is_short.load(Ordering::Relaxed) {
            refused.await;
        }
    }

    fn take(&self, bytes: usize) -> bool {
        let outcome = self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
            held.checked_add(bytes).filter(|sum| *sum <= self.limit)
        });
        if outcome.is_err() {
            self.is_short.store(true, Ordering::Relaxed);
            self.refused.notify_waiters();
        }
        outcome.is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
        self.is_short.store(false, Ordering::Relaxed);
        self.released.notify_waiters();
    }
}

/// Memory that is held until this is dropped.
pub(crate) struct HeldMemory {
    budget: Arc<MemoryBudget>,
    kind: MemoryKind,
    bytes: usize,
}

impl Memory for HeldMemory {
    fn hold(&mut self, bytes: usize) -> bool {
        let wanted = bytes.saturating_add(PIECE - 1) / PIECE * PIECE;
        if wanted > self.bytes && !self.budget.take(wanted - self.bytes) {
            return false;
        }
        if wanted < self.bytes {
            self.budget.give_back(self.bytes - wanted);
        }
        if wanted != self.bytes {
            self.budget.telemetry.memory_held(self.kind, wanted as i64 - self.bytes as i64);
        }
        self.bytes = wanted;
        true
    }
}

/// Memory that is never refused.
struct CountedMemory(HeldMemory);

impl Memory for CountedMemory {
    fn hold(&mut self, bytes: usize) -> bool {
        let _ = self.0.hold(bytes);
        true
    }
}

impl HeldMemory {
    /// [`Memory::hold`], tried again whenever memory is released, for at most `timeout`.
    pub(super) async fn hold_within(&mut self, bytes: usize, timeout: Duration) -> bool {
        let budget = self.budget.clone();
        let holding = async {
            loop {
                let mut released = pin!(budget.released.notified());
                // From now on a release is seen, even between the attempt and the wait.
                released.as_mut().enable();
                if self.hold(bytes) {
                    return;
                }
                released.await;
            }
        };
        tokio::time::timeout(timeout, holding).await.is_ok()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Attaches this guard to `bytes`, for as long as any part of them lives: the same allocation.
    pub(crate) fn with(self, bytes: Bytes) -> Bytes {
        if self.bytes == 0 { bytes } else { Bytes::from_owner(HeldBytes { bytes, _held: self }) }
    }
}

impl Drop for HeldMemory {
    fn drop(&mut self) {
        self.hold(0);
    }
}

/// Bytes with the memory that they hold.
struct HeldBytes {
    bytes: Bytes,
    _held: HeldMemory,
}

impl AsRef<[u8]> for HeldBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl MemoryBudget {
        /// A budget without a limit, for tests.
        pub(crate) fn ample() -> Arc<Self> {
            Self::new(usize::MAX, Telemetry::silent().unwrap())
        }
    }

    fn budget(pieces: usize) -> Arc<MemoryBudget> {
        MemoryBudget::new(pieces * PIECE, Telemetry::silent().unwrap())
    }

    #[test]
    fn memory_is_limited_and_reused() {
        let budget = budget(8);
        let mut one = budget.guard(MemoryKind::Request);
        let mut two = budget.guard(MemoryKind::Reply);
        assert!(one.hold(4 * PIECE));
        assert!(two.hold(4 * PIECE - 1), "at the limit");
        let mut three = budget.guard(MemoryKind::Request);
        assert!(!three.hold(1), "past it");
        assert!(one.hold(3 * PIECE));
        assert!(three.hold(1));
        assert!(!one.hold(4 * PIECE));
        assert_eq!(one.bytes(), 3 * PIECE, "a refusal changes nothing");
        drop((one, two, three));
        assert_eq!(budget.held.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn bytes_hold_memory_until_dropped() {
        let budget = budget(8);
        let mut guard = budget.guard(MemoryKind::Request);
        assert!(guard.hold(10));
        let bytes = Bytes::from(vec![7; 10]);
        let at = bytes.as_ptr();
        let held = guard.with(bytes);
        assert_eq!(held.as_ptr(), at, "the same allocation");
        let part = held.slice(3..4);
        drop(held);
        assert_eq!(budget.held.load(Ordering::Relaxed), PIECE);
        drop(part);
        assert_eq!(budget.held.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn waiters_hear_of_release() {
        let budget = budget(2);
        let (mut one, mut two) =
            (budget.guard(MemoryKind::Request), budget.guard(MemoryKind::Request));
        assert!(one.hold(PIECE));
        assert!(two.hold(PIECE));
        let mut three = budget.guard(MemoryKind::Request);
        assert!(!three.hold_within(1, Duration::from_millis(1)).await);
        budget.short().await;
        drop(one);
        assert!(three.hold_within(1, Duration::from_secs(9)).await, "what was given back");
    }
}
