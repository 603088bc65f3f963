//! One budget of memory for what traffic makes us hold: bodies, what they unfold to, what is read of them.
//!
//! Whoever collects, unfolds or reads asks first, and at a no stands aside: the bytes pass unread. What is
//! held goes back when its guard is dropped. No connection gets more than half of it, so that one client
//! cannot take it from all. Must not know what is held; who waits for it says how long.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;

use crate::telemetry::{MemoryKind, Telemetry};
use crate::wire::memory::Memory;

/// Memory is counted in pieces of so many bytes, so that a stream of small frames seldom counts.
const PIECE: usize = 4096;

/// The budget of the process.
pub(crate) struct MemoryBudget {
    /// Most bytes held at once.
    limit: usize,
    /// Most of them by what is read of requests.
    analysis: usize,
    held: AtomicUsize,
    held_by_analysis: AtomicUsize,
    /// Somebody was refused, and nothing has been given back since.
    is_short: AtomicBool,
    /// Told when somebody is refused.
    refused: Notify,
    /// Told when something is given back.
    given_back: Notify,
    telemetry: Arc<Telemetry>,
}

impl MemoryBudget {
    /// A budget of `limit` bytes, of which what is read of requests may take `analysis`.
    pub(crate) fn new(limit: usize, analysis: usize, telemetry: Arc<Telemetry>) -> Arc<Self> {
        telemetry.memory_limit(limit as u64);
        Arc::new(Self {
            limit,
            analysis,
            held: AtomicUsize::new(0),
            held_by_analysis: AtomicUsize::new(0),
            is_short: AtomicBool::new(false),
            refused: Notify::new(),
            given_back: Notify::new(),
            telemetry,
        })
    }

    /// One connection's share of it.
    pub(crate) fn share(self: &Arc<Self>) -> Arc<MemoryShare> {
        Arc::new(MemoryShare { budget: self.clone(), held: AtomicUsize::new(0) })
    }

    /// Ready when somebody is refused, and at once where nothing was given back since.
    pub(crate) async fn short(&self) {
        let refused = self.refused.notified();
        if !self.is_short.load(Ordering::Relaxed) {
            refused.await;
        }
    }

    fn refuse(&self) {
        self.is_short.store(true, Ordering::Relaxed);
        self.refused.notify_waiters();
    }
}

/// What one connection may hold: no more than half of the budget.
pub(crate) struct MemoryShare {
    budget: Arc<MemoryBudget>,
    held: AtomicUsize,
}

impl MemoryShare {
    /// A guard that holds nothing yet.
    pub(crate) fn guard(self: &Arc<Self>, kind: MemoryKind) -> HeldMemory {
        HeldMemory { share: self.clone(), kind, bytes: 0 }
    }

    /// [`MemoryShare::guard`] for who may not know what stands behind it.
    pub(crate) fn boxed(self: &Arc<Self>, kind: MemoryKind) -> Box<dyn Memory> {
        Box::new(self.guard(kind))
    }

    /// A guard for what must be held whatever is left, because a stream depends on it: counted as far as it
    /// fits, never refused.
    pub(crate) fn counting(self: &Arc<Self>, kind: MemoryKind) -> Box<dyn Memory> {
        Box::new(Counting(self.guard(kind)))
    }

    /// The budget that it is a share of.
    pub(crate) fn budget(&self) -> &MemoryBudget {
        &self.budget
    }
}

/// Memory that is held until this is dropped.
pub(crate) struct HeldMemory {
    share: Arc<MemoryShare>,
    kind: MemoryKind,
    bytes: usize,
}

impl Memory for HeldMemory {
    fn hold(&mut self, bytes: usize) -> bool {
        let wanted = bytes.saturating_add(PIECE - 1) / PIECE * PIECE;
        if wanted > self.bytes && !self.grow(wanted - self.bytes) {
            return false;
        }
        if wanted < self.bytes {
            self.give_back(self.bytes - wanted);
        }
        true
    }
}

/// Memory that is never refused.
struct Counting(HeldMemory);

impl Memory for Counting {
    fn hold(&mut self, bytes: usize) -> bool {
        let _ = self.0.hold(bytes);
        true
    }
}

impl HeldMemory {
    /// [`Memory::hold`], tried again as memory is given back, for no longer than `patience`.
    pub(crate) async fn hold_within(&mut self, bytes: usize, patience: Duration) -> bool {
        let budget = self.share.budget.clone();
        let holding = async {
            loop {
                let mut given_back = pin!(budget.given_back.notified());
                given_back.as_mut().enable();
                if self.hold(bytes) {
                    return;
                }
                given_back.await;
            }
        };
        tokio::time::timeout(patience, holding).await.is_ok()
    }

    /// Bytes that it holds.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// `bytes`, with this guard held as long as any part of them: the same allocation.
    pub(crate) fn with(self, bytes: Bytes) -> Bytes {
        if self.bytes == 0 { bytes } else { Bytes::from_owner(HeldBytes { bytes, _held: self }) }
    }

    fn grow(&mut self, by: usize) -> bool {
        let budget = &self.share.budget;
        if !add(&self.share.held, by, budget.limit / 2) {
            return false;
        }
        if !add(&budget.held, by, budget.limit) {
            self.share.held.fetch_sub(by, Ordering::Relaxed);
            budget.refuse();
            return false;
        }
        if self.kind == MemoryKind::Analysis && !add(&budget.held_by_analysis, by, budget.analysis)
        {
            self.share.held.fetch_sub(by, Ordering::Relaxed);
            budget.held.fetch_sub(by, Ordering::Relaxed);
            return false;
        }
        self.bytes += by;
        budget.telemetry.memory_held(self.kind, by as i64);
        true
    }

    fn give_back(&mut self, bytes: usize) {
        let budget = &self.share.budget;
        self.bytes -= bytes;
        self.share.held.fetch_sub(bytes, Ordering::Relaxed);
        budget.held.fetch_sub(bytes, Ordering::Relaxed);
        if self.kind == MemoryKind::Analysis {
            budget.held_by_analysis.fetch_sub(bytes, Ordering::Relaxed);
        }
        budget.is_short.store(false, Ordering::Relaxed);
        budget.given_back.notify_waiters();
        budget.telemetry.memory_held(self.kind, -(bytes as i64));
    }
}

/// Adds, where the sum stays within `limit`.
fn add(sum: &AtomicUsize, more: usize, limit: usize) -> bool {
    let add = |now: usize| now.checked_add(more).filter(|sum| *sum <= limit);
    sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
}

impl Drop for HeldMemory {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.give_back(self.bytes);
        }
    }
}

/// Bytes, and the memory that they take.
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

    impl MemoryShare {
        /// For tests that have memory enough.
        pub(crate) fn ample() -> Arc<Self> {
            MemoryBudget::new(usize::MAX, usize::MAX, Telemetry::silent().unwrap()).share()
        }
    }

    fn budget(limit: usize, analysis: usize) -> Arc<MemoryBudget> {
        MemoryBudget::new(limit, analysis, Telemetry::silent().unwrap())
    }

    #[test]
    fn what_is_held_goes_back_and_past_the_limit_nothing_is_granted() {
        let budget = budget(8 * PIECE, 8 * PIECE);
        let mut one = budget.share().guard(MemoryKind::Request);
        let mut two = budget.share().guard(MemoryKind::Reply);
        assert!(one.hold(4 * PIECE) && two.hold(4 * PIECE - 1), "at the limit");
        let mut three = budget.share().guard(MemoryKind::Request);
        assert!(!three.hold(1), "past it");
        assert!(one.hold(3 * PIECE) && three.hold(1) && !one.hold(4 * PIECE));
        assert_eq!(one.bytes(), 3 * PIECE, "a refusal changes nothing");
        drop((one, two, three));
        assert_eq!(budget.held.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn one_connection_gets_half_and_analysis_its_own_part() {
        let budget = budget(8 * PIECE, 2 * PIECE);
        let share = budget.share();
        let mut one = share.guard(MemoryKind::Request);
        assert!(one.hold(4 * PIECE) && !share.guard(MemoryKind::Reply).hold(1));
        let mut other = budget.share().guard(MemoryKind::Analysis);
        assert!(other.hold(2 * PIECE) && !other.hold(3 * PIECE));
        assert!(budget.share().guard(MemoryKind::Request).hold(2 * PIECE));
    }

    #[test]
    fn bytes_hold_their_memory_as_long_as_any_part_of_them() {
        let budget = budget(8 * PIECE, 8 * PIECE);
        let mut guard = budget.share().guard(MemoryKind::Request);
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
    async fn who_waits_hears_when_memory_is_short() {
        let budget = budget(2 * PIECE, PIECE);
        let (mut one, mut two) =
            (budget.share().guard(MemoryKind::Request), budget.share().guard(MemoryKind::Request));
        assert!(one.hold(PIECE) && two.hold(PIECE));
        let mut three = budget.share().guard(MemoryKind::Request);
        assert!(!three.hold_within(1, Duration::from_millis(1)).await);
        budget.short().await;
        drop(one);
        assert!(three.hold_within(1, Duration::from_secs(9)).await, "what was given back");
    }
}
