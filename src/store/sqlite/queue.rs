//! The jobs of the thread that writes, and the limits of what may wait for it.
//!
//! Knows nothing of the database.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use tokio::sync::oneshot;

use super::retention::RetentionRule;
use crate::store::drafts::Draft;
use crate::store::precondition::Precondition;
use crate::store::{Record, Scope, StoreError, SweepStep, WriteOutcome};

/// Jobs that may wait. A disk that is slower than this will not catch up while a client waits.
pub(super) const QUEUE: usize = 4096;
/// Bytes of the jobs that may wait; as much may wait in the journal.
pub(crate) const QUEUE_BYTES: usize = 16 << 20;

/// The sender for a job's answer.
pub(super) type DueAnswer<T> = oneshot::Sender<Result<T, StoreError>>;

/// The jobs of the writer.
pub(super) enum WriterJob {
    /// Goes into a transaction with others.
    Write(QueuedWrite),
    Adopt {
        instance: u64,
        answer: DueAnswer<Vec<Scope>>,
    },
    Expire {
        rule: RetentionRule,
        answer: DueAnswer<SweepStep>,
    },
    /// The journal has entries, which are to be moved by this time.
    Gathering {
        due: Instant,
    },
    /// A query needs the entries of the journal.
    Move {
        answer: DueAnswer<()>,
    },
    Close {
        answer: DueAnswer<()>,
    },
}

/// A write, and the sender for its answer.
pub(super) enum QueuedWrite {
    Put {
        scope: Scope,
        records: Vec<Record>,
        only_if: Precondition,
        answer: DueAnswer<Vec<WriteOutcome>>,
    },
    Draft {
        instance: u64,
        drafts: Vec<Draft>,
        ended: Vec<u128>,
        answer: DueAnswer<()>,
    },
    Drop {
        scope: Scope,
        answer: DueAnswer<u64>,
    },
}

impl WriterJob {
    /// Its memory while it waits, bytes.
    pub(super) fn bytes(&self) -> usize {
        match self {
            WriterJob::Write(QueuedWrite::Put { records, .. }) => {
                records.iter().map(record_bytes).sum()
            }
            WriterJob::Write(QueuedWrite::Draft { drafts, ended, .. }) => {
                let drafts =
                    drafts.iter().map(|draft| record_bytes(&draft.record) + size_of::<Scope>());
                drafts.sum::<usize>() + size_of_val(&**ended)
            }
            // Jobs that take almost no memory are always accepted.
            WriterJob::Write(QueuedWrite::Drop { .. })
            | WriterJob::Adopt { .. }
            | WriterJob::Expire { .. }
            | WriterJob::Gathering { .. }
            | WriterJob::Move { .. }
            | WriterJob::Close { .. } => 0,
        }
    }
}

fn record_bytes(record: &Record) -> usize {
    record.value.len() + size_of::<Record>()
}

/// The jobs that wait for the writer.
#[derive(Default)]
pub(super) struct WriterQueue {
    pub(super) jobs: AtomicUsize,
    pub(super) bytes: AtomicUsize,
}

impl WriterQueue {
    pub(super) fn add(&self, bytes: usize) -> bool {
        let added = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |waiting| {
            let sum = waiting.saturating_add(bytes);
            // A job that is larger than the queue must pass, too.
            let fits = waiting == 0 || bytes == 0 || sum <= QUEUE_BYTES;
            if fits { Some(sum) } else { None }
        });
        if added.is_ok() {
            self.jobs.fetch_add(1, Ordering::Relaxed);
        }
        added.is_ok()
    }

    pub(super) fn remove(&self, bytes: usize) {
        self.jobs.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::conformance::{scope, turn};

    const SMALL: usize = 10;

    #[test]
    fn job_bytes_are_counted() {
        let (row, (answer, _due)) = (size_of::<Record>(), oneshot::channel());
        let records = vec![turn(1, &"x".repeat(SMALL), 1), turn(2, &"x".repeat(SMALL), 1)];
        let only_if = Precondition::default();
        let put =
            WriterJob::Write(QueuedWrite::Put { scope: scope("t", "s"), records, only_if, answer });
        assert_eq!(put.bytes(), 2 * (SMALL + row));
        let (answer, _due) = oneshot::channel();
        let (record, since) = (turn(1, &"x".repeat(SMALL), 1), Instant::now());
        let drafts = vec![Draft { scope: scope("t", "s"), record, since }];
        let draft =
            WriterJob::Write(QueuedWrite::Draft { instance: 1, drafts, ended: vec![1, 2], answer });
        assert_eq!(draft.bytes(), SMALL + row + size_of::<Scope>() + 2 * size_of::<u128>());
        let (answer, _due) = oneshot::channel();
        assert_eq!(
            WriterJob::Write(QueuedWrite::Drop { scope: scope("t", "s"), answer }).bytes(),
            0
        );
    }

    #[test]
    fn one_job_of_any_size_fits() {
        let queue = WriterQueue::default();
        assert!(queue.add(QUEUE_BYTES + 1), "one that is larger than all");
        assert!(!queue.add(1), "what takes no memory is always accepted");
        assert!(queue.add(0), "what takes no memory is always accepted");
        assert_eq!(queue.jobs.load(Ordering::Relaxed), 2);
        queue.remove(0);
        queue.remove(QUEUE_BYTES + 1);
        assert_eq!(queue.jobs.load(Ordering::Relaxed), 0);
        assert_eq!(queue.bytes.load(Ordering::Relaxed), 0);
        assert!(queue.add(QUEUE_BYTES - 1), "at the limit");
        assert!(queue.add(1), "at the limit");
        assert!(!queue.add(1));
    }
}
