//! The memory budget for traffic, in two parts: for bodies and what is parsed of them, and for connections.
//!
//! Whoever collects, decompresses or parses reserves memory first. If there is none, the bytes pass unread;
//! connections read less from their sockets, and new ones are refused. Memory is released when its guard is
//! dropped. A connection gets at most half of a part, so that one client cannot use it all up. Must not know
//! what the memory is used for; callers decide how long to wait for it.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio::time::sleep;

use super::progress::ConnectionProgress;
use crate::telemetry::{MemoryKind, Telemetry};
use crate::wire::memory::Memory;

/// Memory is counted in units of this many bytes, so that a stream of small frames rarely changes the count.
pub(super) const PIECE: usize = 4096;

/// The memory budget of the process.
pub(crate) struct MemoryBudget {
    /// For bodies, replies, messages, and what is parsed of them.
    traffic: MemoryPart,
    /// For connections and their buffers.
    connections: MemoryPart,
    /// How many connections had a share so far.
    shares: AtomicU64,
    telemetry: Arc<Telemetry>,
}

/// One part of the budget.
#[derive(Default)]
struct MemoryPart {
    /// Most bytes held at once.
    limit: usize,
    /// Most bytes of the kind that has a limit of its own ([`is_capped`]).
    capped_limit: usize,
    held: AtomicUsize,
    capped_held: AtomicUsize,
    /// A lack of any memory of this part.
    shortage: Shortage,
    /// A lack of the capped kind alone, for which somebody waits.
    capped_shortage: Shortage,
    /// Notified when memory is released.
    released: Notify,
}

/// Whether a request for memory was refused, and nothing has been released since.
#[derive(Default)]
struct Shortage {
    is_on: AtomicBool,
    /// Notified when a request is refused.
    refused: Notify,
}

impl Shortage {
    fn begin(&self) {
        self.is_on.store(true, Ordering::Relaxed);
        self.refused.notify_waiters();
    }

    fn end(&self) {
        self.is_on.store(false, Ordering::Relaxed);
    }

    fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Ready when a request is refused; at once if nothing was released since the last refusal.
    async fn wait(&self) {
        let refused = self.refused.notified();
        if !self.is_on() {
            refused.await;
        }
    }
}

/// What there is not enough of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lack {
    /// The share of the connection.
    Share,
    /// The part of the budget.
    Part,
    /// The limit of its kind.
    Cap,
}

impl MemoryBudget {
    /// A budget of `limit` bytes, of which parsed requests may use `analysis`; and of `connections` bytes, of
    /// which buffers may use half.
    pub(crate) fn new(
        limit: usize,
        analysis: usize,
        connections: usize,
        telemetry: Arc<Telemetry>,
    ) -> Arc<Self> {
        telemetry.memory_limit(limit as u64);
        let part =
            |limit, capped_limit| MemoryPart { limit, capped_limit, ..MemoryPart::default() };
        Arc::new(Self {
            traffic: part(limit, analysis),
            connections: part(connections, connections / 2),
            shares: AtomicU64::default(),
            telemetry,
        })
    }

    /// The share of one connection.
    pub(crate) fn share(self: &Arc<Self>) -> Arc<MemoryShare> {
        self.share_of(Weak::new())
    }

    /// The share of a client's connection with this permit. Stored requests hold the share for longer than
    /// the connection lasts, so only the connection itself owns the permit.
    pub(crate) fn share_of(
        self: &Arc<Self>,
        permit: Weak<OwnedSemaphorePermit>,
    ) -> Arc<MemoryShare> {
        Arc::new(MemoryShare {
            budget: self.clone(),
            held: Default::default(),
            buffers: AtomicUsize::default(),
            progress: ConnectionProgress::default(),
            connection: self.shares.fetch_add(1, Ordering::Relaxed) + 1,
            permit,
        })
    }

    /// Ready when memory for traffic is refused; at once if none was released since the last refusal.
    pub(super) async fn short(&self) {
        self.traffic.shortage.wait().await;
    }

    fn part(&self, kind: MemoryKind) -> &MemoryPart {
        if is_of_connections(kind) { &self.connections } else { &self.traffic }
    }
}

fn is_of_connections(kind: MemoryKind) -> bool {
    matches!(kind, MemoryKind::Connection | MemoryKind::Buffer)
}

/// Whether this kind of memory has a limit of its own, so that it leaves room for the others in its part.
fn is_capped(kind: MemoryKind) -> bool {
    matches!(kind, MemoryKind::Analysis | MemoryKind::Buffer)
}

/// The memory that one connection may hold: at most half of each part of the budget.
pub(crate) struct MemoryShare {
    budget: Arc<MemoryBudget>,
    /// Held for traffic, and for connections.
    held: [AtomicUsize; 2],
    /// Held for buffers, out of what is held for connections.
    buffers: AtomicUsize,
    progress: ConnectionProgress,
    /// The number of its connection, from 1.
    connection: u64,
    /// Its permit, of which there are `limits.connections`.
    permit: Weak<OwnedSemaphorePermit>,
}

impl MemoryShare {
    /// The number of its connection in this process.
    pub(crate) fn connection(&self) -> u64 {
        self.connection
    }

    /// The connection's permit, for a tunnel that continues after an upgrade.
    pub(crate) fn permit(&self) -> Option<Arc<OwnedSemaphorePermit>> {
        self.permit.upgrade()
    }

    /// A guard that holds nothing yet.
    pub(crate) fn guard(self: &Arc<Self>, kind: MemoryKind) -> HeldMemory {
        HeldMemory { share: self.clone(), kind, bytes: 0 }
    }

    /// [`MemoryShare::guard`] as a trait object, for code that must not know this type.
    pub(crate) fn boxed(self: &Arc<Self>, kind: MemoryKind) -> Box<dyn Memory> {
        Box::new(self.guard(kind))
    }

    /// A guard for memory that a stream cannot do without: counted as far as the budget allows, and never
    /// refused.
    pub(crate) fn counting(self: &Arc<Self>, kind: MemoryKind) -> Box<dyn Memory> {
        Box::new(CountedMemory(self.guard(kind)))
    }

    /// The budget that this is a share of.
    pub(crate) fn budget(&self) -> &MemoryBudget {
        &self.budget
    }

    /// The progress of its connection.
    pub(crate) fn progress(&self) -> &ConnectionProgress {
        &self.progress
    }

    fn held(&self, kind: MemoryKind) -> &AtomicUsize {
        &self.held[usize::from(is_of_connections(kind))]
    }

    /// Whether others need memory that its connection would give back: any memory for connections, or buffers if
    /// only those have run out.
    pub(crate) fn is_needed(&self) -> bool {
        let part = &self.budget.connections;
        part.shortage.is_on() || part.capped_shortage.is_on() && self.has_buffers()
    }

    /// Ready when [`MemoryShare::is_needed`].
    pub(crate) async fn needed(&self) {
        let part = &self.budget.connections;
        let buffers_needed = async {
            loop {
                part.capped_shortage.wait().await;
                if self.has_buffers() {
                    return;
                }
                sleep(LOOK_AGAIN).await;
            }
        };
        tokio::select! {
            () = part.shortage.wait() => {}
            () = buffers_needed => {}
        }
    }

    fn has_buffers(&self) -> bool {
        self.buffers.load(Ordering::Relaxed) > 0
    }
}

/// While buffers have run out, how often a connection that holds none is looked at again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Memory that is held until this is dropped.
pub(crate) struct HeldMemory {
    share: Arc<MemoryShare>,
    kind: MemoryKind,
    bytes: usize,
}

impl Memory for HeldMemory {
    fn hold(&mut self, bytes: usize) -> bool {
        self.try_hold(bytes).is_ok()
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
    fn try_hold(&mut self, bytes: usize) -> Result<(), Lack> {
        let wanted = bytes.saturating_add(PIECE - 1) / PIECE * PIECE;
        if wanted > self.bytes {
            return self.grow(wanted - self.bytes);
        }
        if wanted < self.bytes {
            self.release(self.bytes - wanted);
        }
        Ok(())
    }

    /// [`Memory::hold`] for a caller that cannot go on without: connections that stall have to give theirs back.
    pub(super) fn demand(&mut self, bytes: usize) -> bool {
        let held = self.try_hold(bytes);
        if held == Err(Lack::Cap) {
            self.share.budget.part(self.kind).capped_shortage.begin();
        }
        held.is_ok()
    }

    /// [`Memory::hold`], tried again whenever memory is released, for at most `timeout`.
    pub(super) async fn hold_within(&mut self, bytes: usize, timeout: Duration) -> bool {
        let budget = self.share.budget.clone();
        let holding = async {
            loop {
                let mut released = pin!(budget.part(self.kind).released.notified());
                released.as_mut().enable();
                if self.hold(bytes) {
                    return;
                }
                released.await;
            }
        };
        tokio::time::timeout(timeout, holding).await.is_ok()
    }

    /// The bytes that it holds.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Attaches this guard to `bytes`, for as long as any part of them lives: the same allocation.
    pub(crate) fn with(self, bytes: Bytes) -> Bytes {
        if self.bytes == 0 { bytes } else { Bytes::from_owner(HeldBytes { bytes, _held: self }) }
    }

    fn grow(&mut self, by: usize) -> Result<(), Lack> {
        let (held, part) = (self.share.held(self.kind), self.share.budget.part(self.kind));
        if !add(held, by, part.limit / 2) {
            return Err(Lack::Share);
        }
        if !add(&part.held, by, part.limit) {
            held.fetch_sub(by, Ordering::Relaxed);
            part.shortage.begin();
            return Err(Lack::Part);
        }
        if is_capped(self.kind) && !add(&part.capped_held, by, part.capped_limit) {
            held.fetch_sub(by, Ordering::Relaxed);
            part.held.fetch_sub(by, Ordering::Relaxed);
            return Err(Lack::Cap);
        }
        if self.kind == MemoryKind::Buffer {
            self.share.buffers.fetch_add(by, Ordering::Relaxed);
        }
        self.bytes += by;
        self.share.budget.telemetry.memory_held(self.kind, by as i64);
        Ok(())
    }

    fn release(&mut self, bytes: usize) {
        let (held, part) = (self.share.held(self.kind), self.share.budget.part(self.kind));
        self.bytes -= bytes;
        held.fetch_sub(bytes, Ordering::Relaxed);
        part.held.fetch_sub(bytes, Ordering::Relaxed);
        if is_capped(self.kind) {
            part.capped_held.fetch_sub(bytes, Ordering::Relaxed);
            part.capped_shortage.end();
        }
        if self.kind == MemoryKind::Buffer {
            self.share.buffers.fetch_sub(bytes, Ordering::Relaxed);
        }
        part.shortage.end();
        part.released.notify_waiters();
        self.share.budget.telemetry.memory_held(self.kind, -(bytes as i64));
    }
}

/// Adds, if the sum stays within `limit`.
fn add(sum: &AtomicUsize, more: usize, limit: usize) -> bool {
    let add = |now: usize| now.checked_add(more).filter(|sum| *sum <= limit);
    sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
}

impl Drop for HeldMemory {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.release(self.bytes);
        }
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
    use futures_util::FutureExt as _;

    use super::*;

    impl MemoryShare {
        /// A share without limits, for tests.
        pub(crate) fn ample() -> Arc<Self> {
            MemoryBudget::new(usize::MAX, usize::MAX, usize::MAX, Telemetry::silent().unwrap())
                .share()
        }
    }

    fn budget(limit: usize, analysis: usize) -> Arc<MemoryBudget> {
        MemoryBudget::new(limit, analysis, limit, Telemetry::silent().unwrap())
    }

    #[test]
    fn memory_past_the_limit_is_refused_and_released_memory_is_reused() {
        let budget = budget(8 * PIECE, 8 * PIECE);
        let mut one = budget.share().guard(MemoryKind::Request);
        let mut two = budget.share().guard(MemoryKind::Reply);
        assert!(one.hold(4 * PIECE) && two.hold(4 * PIECE - 1), "at the limit");
        let mut three = budget.share().guard(MemoryKind::Request);
        assert!(!three.hold(1), "past it");
        assert!(one.hold(3 * PIECE) && three.hold(1) && !one.hold(4 * PIECE));
        assert_eq!(one.bytes(), 3 * PIECE, "a refusal changes nothing");
        drop((one, two, three));
        assert_eq!(budget.traffic.held.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_connection_gets_half_the_budget_and_analysis_has_its_own() {
        let budget = budget(8 * PIECE, 2 * PIECE);
        let share = budget.share();
        let mut one = share.guard(MemoryKind::Request);
        assert!(one.hold(4 * PIECE) && !share.guard(MemoryKind::Reply).hold(1));
        let mut other = budget.share().guard(MemoryKind::Analysis);
        assert!(other.hold(2 * PIECE) && !other.hold(3 * PIECE));
        assert!(budget.share().guard(MemoryKind::Request).hold(2 * PIECE));
    }

    #[test]
    fn bytes_reserve_memory_until_their_last_slice_is_dropped() {
        let budget = budget(8 * PIECE, 8 * PIECE);
        let mut guard = budget.share().guard(MemoryKind::Request);
        assert!(guard.hold(10));
        let bytes = Bytes::from(vec![7; 10]);
        let at = bytes.as_ptr();
        let held = guard.with(bytes);
        assert_eq!(held.as_ptr(), at, "the same allocation");
        let part = held.slice(3..4);
        drop(held);
        assert_eq!(budget.traffic.held.load(Ordering::Relaxed), PIECE);
        drop(part);
        assert_eq!(budget.traffic.held.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn connections_traffic_and_buffers_have_separate_memory_limits() {
        let budget = budget(8 * PIECE, 8 * PIECE);
        let holds = |kind, pieces: usize| {
            let mut guard = budget.share().guard(kind);
            guard.hold(pieces * PIECE).then_some(guard)
        };
        let traffic =
            [holds(MemoryKind::Request, 4).unwrap(), holds(MemoryKind::Reply, 4).unwrap()];
        assert!(holds(MemoryKind::Request, 1).is_none(), "traffic has taken its part");
        let buffers = holds(MemoryKind::Buffer, 4).unwrap();
        assert!(holds(MemoryKind::Buffer, 1).is_none(), "buffers have taken their half");
        let connections = holds(MemoryKind::Connection, 4).unwrap();
        assert!(holds(MemoryKind::Connection, 1).is_none());
        drop((traffic, buffers, connections));
        assert_eq!(budget.connections.held.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn waiters_are_notified_when_memory_is_short_and_when_it_is_released() {
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

    /// Buffers that would be convenient take nothing from anybody.
    #[tokio::test]
    async fn a_connection_with_buffers_is_needed_once_another_waits_for_them() {
        let budget = budget(8 * PIECE, PIECE);
        let (full, idle) = (budget.share(), budget.share());
        let mut held = [full.guard(MemoryKind::Buffer), idle.guard(MemoryKind::Connection)];
        assert!(held[0].hold(4 * PIECE) && held[1].hold(PIECE));
        let mut waiting = budget.share().guard(MemoryKind::Buffer);
        assert!(!waiting.hold(1) && !full.is_needed(), "there is memory for connections");
        assert!(!waiting.demand(1) && full.is_needed() && !idle.is_needed());
        full.needed().await;
        assert!(idle.needed().now_or_never().is_none(), "it has no buffers");
        drop(held);
        assert!(!full.is_needed() && waiting.demand(1));
    }
}
