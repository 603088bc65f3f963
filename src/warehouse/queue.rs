//! The turns that wait for the warehouse, and sessions that are to be deleted there.
//!
//! Bounded by bytes: whoever hands a turn over never waits. Order stays, so that a deletion deletes what came before it.

use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::context::Millis;
use crate::store::turn_columns::before_sketch;
use crate::store::{Record, Scope};

/// Turns that wait, bytes; past it, a turn is dropped.
const QUEUE_BYTES: usize = 8 << 20;
/// Most turns in one statement.
const MOST_TOGETHER: usize = 500;

/// A turn as it waits.
#[derive(Debug, PartialEq, Eq)]
pub struct QueuedTurn {
    pub(super) scope: Scope,
    pub(super) key: u128,
    pub(super) at: Millis,
    /// The members of its JSON that can be columns.
    pub(super) value: Box<[u8]>,
}

/// What is written in one statement.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Batch {
    /// No turn is among them twice.
    Turns(Vec<QueuedTurn>),
    Deletion(Scope),
}

/// What waits.
#[derive(Default)]
pub(super) struct WriteQueue {
    state: Mutex<WaitingTurns>,
    changed: Notify,
}

#[derive(Default)]
struct WaitingTurns {
    jobs: VecDeque<WarehouseJob>,
    bytes: usize,
    is_closed: bool,
}

enum WarehouseJob {
    Turn(QueuedTurn),
    Deletion(Scope),
}

impl QueuedTurn {
    pub(super) fn new(scope: &Scope, turn: &Record) -> Self {
        let value = before_sketch(&turn.value);
        Self { scope: scope.clone(), key: turn.key, at: turn.at, value: value.into() }
    }
}

impl Batch {
    pub(super) fn turns(&self) -> usize {
        match self {
            Self::Turns(turns) => turns.len(),
            Self::Deletion(_) => 0,
        }
    }
}

impl WarehouseJob {
    fn bytes(&self) -> usize {
        let (scope, value) = match self {
            Self::Turn(turn) => (&turn.scope, turn.value.len()),
            Self::Deletion(scope) => (scope, 0),
        };
        size_of::<Self>() + scope.tenant.as_str().len() + scope.session.as_str().len() + value
    }
}

impl WriteQueue {
    /// Adds a turn; `false` if there is no room.
    pub(super) fn add(&self, turn: QueuedTurn) -> bool {
        self.push(WarehouseJob::Turn(turn), QUEUE_BYTES)
    }

    /// Deletes a session: what waits of it, and then what was written.
    pub(super) fn delete(&self, scope: &Scope) {
        self.state().forget(scope);
        // Turns may not take its place.
        self.push(WarehouseJob::Deletion(scope.clone()), 2 * QUEUE_BYTES);
    }

    fn push(&self, entry: WarehouseJob, most: usize) -> bool {
        let mut state = self.state();
        let bytes = state.bytes + entry.bytes();
        if bytes > most || state.is_closed {
            return false;
        }
        state.bytes = bytes;
        state.jobs.push_back(entry);
        drop(state);
        self.changed.notify_one();
        true
    }

    /// The next batch, once there is one; `None` if it is closed and empty. Has one reader.
    pub(super) async fn next(&self) -> Option<Batch> {
        loop {
            {
                let mut state = self.state();
                if let Some(batch) = state.take() {
                    return Some(batch);
                }
                if state.is_closed {
                    return None;
                }
            }
            self.changed.notified().await;
        }
    }

    /// Whether a whole batch waits.
    pub(super) fn is_long(&self) -> bool {
        self.state().jobs.len() >= MOST_TOGETHER
    }

    pub(super) fn close(&self) {
        self.state().is_closed = true;
        self.changed.notify_one();
    }

    /// Waits, unless it is closed.
    pub(super) async fn closed_within(&self, pause: Duration) {
        let closing = async {
            while !self.state().is_closed {
                self.changed.notified().await;
            }
        };
        let _ = tokio::time::timeout(pause, closing).await;
    }

    fn state(&self) -> MutexGuard<'_, WaitingTurns> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WaitingTurns {
    fn take(&mut self) -> Option<Batch> {
        let mut turns = Vec::new();
        let mut keys = HashSet::new();
        while let Some(WarehouseJob::Turn(turn)) = self.jobs.front()
            && turns.len() < MOST_TOGETHER
            // A turn that comes again is for the next statement.
            && keys.insert((turn.scope.clone(), turn.key))
            && let Some(WarehouseJob::Turn(turn)) = self.pop()
        {
            turns.push(turn);
        }
        if !turns.is_empty() {
            return Some(Batch::Turns(turns));
        }
        match self.pop()? {
            WarehouseJob::Turn(turn) => Some(Batch::Turns(vec![turn])),
            WarehouseJob::Deletion(scope) => Some(Batch::Deletion(scope)),
        }
    }

    fn pop(&mut self) -> Option<WarehouseJob> {
        let entry = self.jobs.pop_front()?;
        self.bytes -= entry.bytes();
        Some(entry)
    }

    fn forget(&mut self, scope: &Scope) {
        self.jobs
            .retain(|entry| !matches!(entry, WarehouseJob::Turn(turn) if turn.scope == *scope));
        self.bytes = self.jobs.iter().map(WarehouseJob::bytes).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(session: &str, key: u128, bytes: usize) -> QueuedTurn {
        let scope = Scope { tenant: "t".into(), session: session.into() };
        QueuedTurn { scope, key, at: 1, value: vec![b' '; bytes].into() }
    }

    #[tokio::test]
    async fn waiting_turns_are_bounded() {
        let queue = WriteQueue::default();
        let large = QUEUE_BYTES / 8;
        let taken = (0..20).filter(|key| queue.add(turn("a", *key, large))).count();
        assert_eq!(taken, 7, "and what a turn takes beside its value");
        queue.delete(&turn("b", 0, 0).scope);
        assert_eq!(queue.next().await.unwrap().turns(), 7);
        assert_eq!(queue.next().await, Some(Batch::Deletion(turn("b", 0, 0).scope)));
        assert!(queue.add(turn("a", 1, large)), "there is room again");
        let state = queue.state();
        assert_eq!(state.bytes, state.jobs[0].bytes());
    }

    #[tokio::test]
    async fn repeated_turns_are_apart() {
        let queue = WriteQueue::default();
        for key in [1, 2, 1, 3] {
            assert!(queue.add(turn("a", key, 1)));
        }
        assert!(queue.add(turn("b", 3, 1)));
        queue.close();
        assert!(!queue.add(turn("a", 4, 1)), "it is closed");
        assert_eq!(queue.next().await.unwrap().turns(), 2);
        assert_eq!(queue.next().await.unwrap().turns(), 3);
        assert_eq!(queue.next().await, None);
    }

    #[tokio::test]
    async fn statements_are_bounded() {
        let queue = WriteQueue::default();
        for key in 0..=MOST_TOGETHER as u128 {
            assert!(queue.add(turn("a", key, 1)));
        }
        assert!(queue.is_long());
        assert_eq!(queue.next().await.unwrap().turns(), MOST_TOGETHER);
        assert_eq!(queue.next().await.unwrap().turns(), 1);
    }

    #[tokio::test]
    async fn deleted_sessions_do_not_wait() {
        let queue = WriteQueue::default();
        assert!(queue.add(turn("a", 1, 1)));
        assert!(queue.add(turn("b", 2, 1)));
        let scope = turn("a", 0, 0).scope;
        queue.delete(&scope);
        assert!(queue.add(turn("a", 3, 1)), "a new session of that name");
        assert_eq!(queue.next().await, Some(Batch::Turns(vec![turn("b", 2, 1)])));
        assert_eq!(queue.next().await, Some(Batch::Deletion(scope)));
        assert_eq!(queue.next().await, Some(Batch::Turns(vec![turn("a", 3, 1)])));
        assert_eq!(queue.state().bytes, 0);
    }
}
