//! The thread that writes: all waiting jobs go into one transaction, and are answered together.
//!
//! A job is answered only after its transaction is committed. A failing job fails its whole group, of which
//! nothing is stored. What is in the journal ([`super::journal`]) goes first; alone, it waits for more. Between
//! groups the thread does a step of upkeep ([`super::upkeep`]). Another thread makes checkpoints, because they wait
//! for the disk.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use tokio::sync::oneshot;

use super::errors::failed;
use super::facts::FactWriter;
use super::journal::{Journal, JournalBatch};
use super::queue::{DueAnswer, QUEUE, QueuedWrite, WriterJob, WriterQueue};
use super::readers::ReaderGate;
use super::upkeep::{self, Upkeep, in_transaction};
use super::{drafts, facts};
use crate::store::precondition::Precondition;
use crate::store::{Scope, StoreError, StoreFuture, WriteOutcome};

/// Most jobs in one transaction, so that the first of them does not wait long.
const GROUP: usize = 256;
/// A transaction with this many bytes of records takes no more jobs: it is in the log as a whole.
const GROUP_BYTES: usize = 4 << 20;
/// Bytes of the log past which the writer empties it, if the checkpoint thread did not.
const LOG: u64 = 24 << 20;
/// Bytes of the log past which nothing is written before it is emptied, and admin queries are interrupted.
const LOG_MOST: u64 = 36 << 20;
/// How long the writer waits for readers: the second value past [`LOG_MOST`]. Readers are quick; if they are
/// not, it tries again.
const TIMEOUT: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(250));
/// How long until emptying the log is tried again if it is still being read: the first and the longest pause.
/// Past [`LOG_MOST`], it doubles each time, because another program's reader cannot be ended.
const TRUNCATE_PAUSES: (Duration, Duration) =
    (Duration::from_millis(50), Duration::from_millis(500));
/// Jobs between checkpoints.
const CHECKPOINT: usize = 1024;
/// A step of upkeep counts as this many jobs.
const STEP_JOBS: usize = 64;
/// The pause after a step of upkeep is as long as the step, within these limits.
const PAUSE: (Duration, Duration) = (Duration::from_micros(500), Duration::from_millis(20));
/// The pause after a failed step of upkeep.
const AFTER_FAILURE: Duration = Duration::from_secs(1);
/// No upkeep for this long after the start, so that the start has the disk to itself.
const AT_START: Duration = Duration::from_secs(1);
/// How long an entry of the journal waits for more: the more there are, the less each costs.
const GATHER: Duration = Duration::from_millis(500);
/// How long the writer sleeps if there is nothing to do.
const IDLE: Duration = Duration::from_secs(3600);

pub(super) struct Writer {
    jobs: SyncSender<WriterJob>,
    waiting: Arc<WriterQueue>,
    restarts: Arc<AtomicUsize>,
    pub(super) journal: Arc<Journal>,
}

impl Writer {
    /// Starts the threads, with a connection for each. They end when the writer is dropped and its queue is
    /// empty.
    pub(super) fn start(
        path: &Path,
        connection: Connection,
        checkpoint_connection: Connection,
        make_way: Arc<ReaderGate>,
        journal: Journal,
    ) -> Self {
        let (jobs, queue) = sync_channel(QUEUE);
        let (due, checkpoints) = sync_channel(1);
        // Without the writer thread, every job is refused as closed, and the proxy runs without a store.
        // Without the other, the writer makes all checkpoints itself ([`WriterThread::bound_log`]).
        let checkpointing = Arc::<Mutex<()>>::default();
        let busy = checkpointing.clone();
        let checkpoint = std::thread::Builder::new()
            .name("checkpoint".into())
            .spawn(move || run_checkpoints(&checkpoint_connection, &checkpoints, &busy))
            .ok();
        let waiting = Arc::<WriterQueue>::default();
        let journal = Arc::new(journal);
        let writing = WriterThread {
            connection,
            queue,
            waiting: waiting.clone(),
            upkeep: Upkeep::new(path),
            upkeep_due: Some(Instant::now() + AT_START),
            failure: None,
            // What an earlier process left is moved at once.
            move_due: if journal.holds(|_| true) { Some(Instant::now()) } else { None },
            journal: journal.clone(),
            worked: false,
            since: 0,
            checkpoint: (due, checkpoint),
            checkpointing,
            make_way,
            is_full: false,
            log_due: CheckpointSchedule {
                may_from: Instant::now(),
                must_by: Instant::now(),
                pause: TRUNCATE_PAUSES.0,
            },
        };
        let restarts = Arc::<AtomicUsize>::default();
        let counted = restarts.clone();
        let thread = std::thread::Builder::new().name("store".into());
        drop(thread.spawn(move || writing.guarded(&counted)));
        Self { jobs, waiting, restarts, journal }
    }

    /// Writes what has joined the journal ([`Journal::write_joining`]), and has it moved soon.
    pub(super) fn write_joining(&self) {
        self.journal.write_joining(|waiting| self.gather(waiting));
    }

    /// Tells the thread of the first entry and of a whole group. `waiting`: how many waited before a write, and after it.
    fn gather(&self, waiting: Range<usize>) {
        let due = match waiting {
            Range { start: 0, end: 1.. } => Instant::now() + GATHER,
            Range { start: ..GROUP, end: GROUP.. } => Instant::now(),
            _ => return,
        };
        // If the queue is full, the next group takes the entries with it.
        self.waiting.add(0);
        if self.jobs.try_send(WriterJob::Gathering { due }).is_err() {
            self.waiting.remove(0);
        }
    }

    /// Hands over a write, which is answered once it is committed.
    pub(super) fn write<T: Send + 'static>(
        &self,
        write: impl FnOnce(DueAnswer<T>) -> QueuedWrite,
    ) -> StoreFuture<'static, T> {
        self.submit(|answer| WriterJob::Write(write(answer)))
    }

    pub(super) fn submit<T: Send + 'static>(
        &self,
        job: impl FnOnce(DueAnswer<T>) -> WriterJob,
    ) -> StoreFuture<'static, T> {
        let (answer, due) = oneshot::channel();
        let job = job(answer);
        let bytes = job.bytes();
        let is_queued = self.waiting.add(bytes) && {
            let queued = self.jobs.try_send(job).is_ok();
            if !queued {
                self.waiting.remove(bytes);
            }
            queued
        };
        Box::pin(async move {
            match is_queued {
                false => Err(StoreError::Closed),
                true => due.await.unwrap_or(Err(StoreError::Closed)),
            }
        })
    }

    pub(super) fn restarts(&self) -> usize {
        self.restarts.load(Ordering::Relaxed)
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.jobs.load(Ordering::Relaxed)
    }

    pub(super) fn waiting_bytes(&self) -> usize {
        self.waiting.bytes.load(Ordering::Relaxed)
    }
}

fn run_checkpoints(connection: &Connection, due: &Receiver<()>, busy: &Mutex<()>) {
    while due.recv().is_ok() {
        let _busy = busy.lock().unwrap_or_else(PoisonError::into_inner);
        // What is not possible now is done next time.
        drop(connection.execute_batch("PRAGMA wal_checkpoint(PASSIVE)"));
    }
}

/// Writes a page, to check whether the disk has room.
const PROBE: &str = "UPDATE secrets SET value = value WHERE name = 'tenant_key'";

fn is_full_disk(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull)
}

/// The state of the writer thread.
struct WriterThread {
    connection: Connection,
    queue: Receiver<WriterJob>,
    waiting: Arc<WriterQueue>,
    upkeep: Upkeep,
    /// When the next step of upkeep is due; `None` if there is nothing to do.
    upkeep_due: Option<Instant>,
    /// Why the last step failed, until one succeeds or the failure is reported.
    failure: Option<StoreError>,
    journal: Arc<Journal>,
    /// When the entries of the journal are to be moved; `None` if there are none.
    move_due: Option<Instant>,
    /// Whether a step changed anything since there was last nothing to do.
    worked: bool,
    /// Jobs since the last checkpoint.
    since: usize,
    checkpoint: (SyncSender<()>, Option<JoinHandle<()>>),
    /// Held during a checkpoint.
    checkpointing: Arc<Mutex<()>>,
    /// Interrupts admin queries that keep the log from being emptied.
    make_way: Arc<ReaderGate>,
    /// The last write found the disk full.
    is_full: bool,
    log_due: CheckpointSchedule,
}

/// When emptying the log is tried again, if readers prevented it.
struct CheckpointSchedule {
    /// Past [`LOG`]: it is tried again from this time on, without waiting.
    may_from: Instant,
    /// Past [`LOG_MOST`]: from this time on, writes wait for it again.
    must_by: Instant,
    /// How long until they wait again, the next time that waiting fails.
    pause: Duration,
}

/// Why the thread ends.
enum WriterEnd {
    /// It was closed.
    Closed(DueAnswer<()>),
    /// All senders are gone.
    Abandoned,
}

/// What a write did, as far as its answer says so.
#[derive(Default)]
struct CommitOutcome {
    puts: Vec<WriteOutcome>,
    /// Records that were deleted.
    dropped: u64,
}

impl WriterThread {
    fn guarded(mut self, restarts: &AtomicUsize) {
        // A panic loses the jobs of its group and delays upkeep, but does not
        // end the thread.
        loop {
            match catch_unwind(AssertUnwindSafe(|| self.run())) {
                Ok(WriterEnd::Closed(answer)) => return self.close(answer),
                Ok(WriterEnd::Abandoned) => return,
                Err(_) => {}
            }
            restarts.fetch_add(1, Ordering::Relaxed);
            tracing::error!("the thread that writes to the store panicked and restarted");
            // Its transaction is undone.
            if !self.connection.is_autocommit() {
                drop(self.connection.execute_batch("ROLLBACK"));
            }
            if self.upkeep_due.is_some() {
                self.upkeep_due = Some(Instant::now() + AFTER_FAILURE);
            }
        }
    }

    fn run(&mut self) -> WriterEnd {
        loop {
            let due = [self.upkeep_due, self.move_due].into_iter().flatten().min();
            let until = due.map(|due| due.saturating_duration_since(Instant::now()));
            match self.queue.recv_timeout(until.unwrap_or(IDLE)) {
                Ok(first) => {
                    if let Some(answer) = self.group(first) {
                        return WriterEnd::Closed(answer);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return WriterEnd::Abandoned,
            }
            if self.move_due.is_some_and(|due| due <= Instant::now()) {
                // If it fails, it is tried again; whoever writes meanwhile is told why.
                drop(self.write(Vec::new()));
            }
            if self.upkeep_due.is_some_and(|due| due <= Instant::now()) {
                self.step();
            }
            if self.since >= CHECKPOINT {
                self.since = 0;
                // A checkpoint in progress does this one's work, too.
                let _ = self.checkpoint.0.try_send(());
            }
            self.bound_log();
        }
    }

    fn bound_log(&mut self) {
        // While others read from it, and while the checkpoint thread
        // is behind, it can only grow. Past `LOG_MOST`, writes wait for both, and admin queries are
        // interrupted and have to be repeated. A reader in another process cannot be ended, so the
        // log grows until it is gone.
        let log_bytes = self.upkeep.log_bytes();
        let time = Instant::now();
        if log_bytes >= LOG_MOST && self.log_due.must_by <= time {
            let _idle = self.checkpointing.lock().unwrap_or_else(PoisonError::into_inner);
            let emptied = self.make_way.during(|| upkeep::truncate(&self.connection, TIMEOUT.1));
            // A failure shows in the next write.
            if emptied.unwrap_or(false) {
                self.log_due.pause = TRUNCATE_PAUSES.0;
            } else {
                self.log_due.must_by = Instant::now() + self.log_due.pause;
                self.log_due.pause = TRUNCATE_PAUSES.1.min(self.log_due.pause * 2);
            }
        } else if log_bytes >= LOG && self.log_due.may_from <= time {
            // A checkpoint in progress may empty it, and would be waited for.
            let Ok(_idle) = self.checkpointing.try_lock() else { return };
            if !upkeep::truncate(&self.connection, TIMEOUT.0).unwrap_or(false) {
                self.log_due.may_from = Instant::now() + TRUNCATE_PAUSES.0;
            }
        }
    }

    fn group(&mut self, first: WriterJob) -> Option<DueAnswer<()>> {
        let mut writes = Vec::new();
        let mut rules = Vec::new();
        let mut adoptions = Vec::new();
        let mut moves = Vec::new();
        let mut close = None;
        let mut bytes = 0;
        let mut waiting_job = Some(first);
        while let Some(job) = waiting_job {
            self.waiting.remove(job.bytes());
            match job {
                WriterJob::Write(write) => {
                    match &write {
                        QueuedWrite::Put { records, .. } => {
                            self.upkeep.written(records);
                            bytes += records.iter().map(|record| record.value.len()).sum::<usize>();
                        }
                        QueuedWrite::Draft { drafts, .. } => self.since += drafts.len(),
                        QueuedWrite::Drop { .. } => {}
                    }
                    writes.push(write);
                }
                WriterJob::Adopt { instance, answer } => adoptions.push((instance, answer)),
                WriterJob::Expire { rule, answer } => rules.push((rule, answer)),
                WriterJob::Gathering { due } => {
                    self.move_due = Some(self.move_due.map_or(due, |earlier| earlier.min(due)));
                }
                WriterJob::Move { answer } => moves.push(answer),
                WriterJob::Close { answer } => close = Some(answer),
            }
            let is_full = writes.len() + rules.len() >= GROUP || bytes >= GROUP_BYTES;
            let is_over = close.is_some() || is_full;
            waiting_job = if is_over { None } else { self.queue.try_recv().ok() };
        }
        let only_gathers = writes.is_empty()
            && rules.is_empty()
            && adoptions.is_empty()
            && moves.is_empty()
            && close.is_none();
        if only_gathers {
            return None;
        }
        self.since += writes.len();
        let moved = self.write(writes);
        for answer in moves {
            drop(answer.send(moved.clone()));
        }
        // After the writes: a turn that waits in this group takes its draft away first.
        for (instance, answer) in adoptions {
            let connection = &self.connection;
            let adopted = in_transaction(connection, || drafts::adopt(connection, instance));
            drop(answer.send(adopted.map_err(failed)));
        }
        for (rule, answer) in rules {
            let expired = self.upkeep.expire(&self.connection, rule);
            self.upkeep_due.get_or_insert_with(Instant::now);
            // Nobody else asks whether upkeep works.
            let expired = match self.failure.take() {
                Some(trouble) => Err(trouble),
                None => expired.map_err(failed),
            };
            drop(answer.send(expired));
        }
        close
    }

    /// Moves the journal into the database, and does the writes, in one transaction.
    fn write(&mut self, writes: Vec<QueuedWrite>) -> Result<(), StoreError> {
        // If it fails, the journal stays, nothing else is stored, and all are refused.
        let deleted = writes.iter().filter_map(|write| match write {
            QueuedWrite::Drop { scope, .. } => Some(scope),
            QueuedWrite::Put { .. } | QueuedWrite::Draft { .. } => None,
        });
        let batch = self.journal.take(deleted);
        self.move_due = None;
        if writes.is_empty() && batch.entries.is_empty() {
            return Ok(());
        }
        let written = in_transaction(&self.connection, || self.apply(&batch, &writes));
        if writes.iter().any(|write| matches!(write, QueuedWrite::Drop { .. })) {
            self.upkeep.is_unclean();
            self.upkeep_due.get_or_insert_with(Instant::now);
        }
        self.is_full = written.as_ref().is_err_and(is_full_disk);
        self.journal.set_stuck(written.is_err());
        match written {
            Ok(outcomes) => {
                self.since += batch.entries.len();
                for entry in &batch.entries {
                    self.upkeep.written(&entry.records);
                }
                // Only now: until here the journal is the only copy on disk.
                self.journal.release(&batch);
                for (write, outcome) in writes.into_iter().zip(outcomes) {
                    write.answer(outcome);
                }
                Ok(())
            }
            Err(error) => {
                if !batch.entries.is_empty() {
                    // The entries stay in the journal, and are moved later.
                    self.move_due = Some(Instant::now() + AFTER_FAILURE);
                }
                // The missing space may be in the log.
                if self.is_full {
                    drop(upkeep::truncate(&self.connection, TIMEOUT.1));
                }
                let trouble = failed(error);
                for write in writes {
                    write.answer(Err(trouble.clone()));
                }
                Err(trouble)
            }
        }
    }

    fn apply(
        &self,
        batch: &JournalBatch,
        writes: &[QueuedWrite],
    ) -> rusqlite::Result<Vec<Result<CommitOutcome, StoreError>>> {
        let connection = &self.connection;
        // Without this, an empty write would succeed on a full disk.
        if self.is_full {
            connection.prepare_cached(PROBE)?.execute([])?;
        }
        let mut writer = FactWriter::new(connection)?;
        // They were acknowledged before these writes came, so they go first.
        for entry in &batch.entries {
            writer.put(&entry.scope, &entry.records)?;
        }
        drop(writer);
        if !batch.entries.is_empty() {
            batch.set_applied(connection)?;
        }
        writes.iter().map(|write| write.apply(connection, &self.journal)).collect()
    }

    fn step(&mut self) {
        let began = Instant::now();
        if self.upkeep.log_bytes() > LOG_MOST {
            // The step's writes would make the log even longer.
            self.upkeep_due = Some(began + PAUSE.1);
            return;
        }
        let pause = match self.upkeep.step(&self.connection) {
            Ok(false) => {
                self.upkeep_due = None;
                // The file only shrinks once the log is merged.
                if self.worked {
                    (self.worked, self.since) = (false, CHECKPOINT);
                }
                return;
            }
            Ok(true) => began.elapsed().clamp(PAUSE.0, PAUSE.1),
            Err(error) => {
                self.failure = Some(failed(error));
                AFTER_FAILURE
            }
        };
        self.worked = true;
        self.since += STEP_JOBS;
        self.upkeep_due = Some(Instant::now() + pause);
    }

    fn close(self, answer: DueAnswer<()>) {
        // The last connection to close removes the log, so the other thread ends first.
        let (due, checkpoint) = self.checkpoint;
        drop(due);
        drop(checkpoint.map(JoinHandle::join));
        // First, because closing merges the log only if nobody else reads.
        let emptied = upkeep::truncate(&self.connection, TIMEOUT.1);
        let closed = self.connection.close().map_err(|(_, error)| error);
        drop(answer.send(emptied.and(closed).map_err(failed)));
    }
}

/// Why a write is refused; `None` if its precondition holds.
fn refusal(journal: &Journal, scope: &Scope, only_if: &Precondition) -> Option<StoreError> {
    if only_if.since.is_some_and(|since| journal.is_deleted(scope, since)) {
        return Some(StoreError::Deleted);
    }
    match &only_if.token {
        Some(token) if !token.begin() => Some(StoreError::Cancelled),
        _ => None,
    }
}

impl QueuedWrite {
    /// Does it in an open transaction. The inner error is of a write whose precondition does not hold.
    fn apply(
        &self,
        connection: &Connection,
        journal: &Journal,
    ) -> rusqlite::Result<Result<CommitOutcome, StoreError>> {
        let mut outcome = CommitOutcome::default();
        match self {
            QueuedWrite::Put { scope, records, only_if, .. } => {
                if let Some(trouble) = refusal(journal, scope, only_if) {
                    return Ok(Err(trouble));
                }
                outcome.puts = facts::put(connection, scope, records)?;
            }
            QueuedWrite::Draft { instance, drafts, ended, .. } => {
                for draft in drafts {
                    // It must not bring back a session that was deleted after it began.
                    if !journal.is_deleted(&draft.scope, draft.since) {
                        drafts::put(connection, *instance, draft)?;
                    }
                }
                for key in ended {
                    facts::remove_draft(connection, *key)?;
                }
            }
            QueuedWrite::Drop { scope, .. } => {
                drafts::drop_scope(connection, scope)?;
                if let Some(id) = facts::scope_id(connection, scope)? {
                    outcome.dropped = facts::doom(connection, id, true)?;
                }
            }
        }
        Ok(Ok(outcome))
    }

    fn answer(self, outcome: Result<CommitOutcome, StoreError>) {
        match self {
            QueuedWrite::Put { answer, .. } => drop(answer.send(outcome.map(|it| it.puts))),
            QueuedWrite::Draft { answer, .. } => drop(answer.send(outcome.map(drop))),
            QueuedWrite::Drop { answer, .. } => drop(answer.send(outcome.map(|it| it.dropped))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::connection::{beside, connect, tune};
    use super::super::journal::{JournalEntry, applied};
    use super::super::retention::RetentionRule;
    use super::super::schema;
    use super::*;
    use crate::context::Millis;
    use crate::store::conformance::{self, scope, turn};
    use crate::store::{Record, RecordKind};

    const SMALL: usize = 10;

    /// The writer without its thread, so that a test runs one group at a time. It takes the size of its log from
    /// another file, which the test sets.
    struct WriterFixture {
        thread: WriterThread,
        jobs: SyncSender<WriterJob>,
        folder: tempfile::TempDir,
    }

    impl WriterFixture {
        fn new() -> Self {
            let folder = conformance::folder();
            let path = folder.path().join("p.db");
            let mut connection = connect(&path).unwrap();
            tune(&connection).unwrap();
            schema::prepare(&mut connection, &path).unwrap();
            let (jobs, queue) = sync_channel(QUEUE);
            let now = Instant::now();
            let thread = WriterThread {
                connection,
                queue,
                waiting: Arc::default(),
                upkeep: Upkeep::new(&folder.path().join("other")),
                upkeep_due: None,
                failure: None,
                journal: Arc::new(Journal::open(&path, 0).unwrap()),
                move_due: None,
                worked: false,
                since: 0,
                checkpoint: (sync_channel(1).0, None),
                checkpointing: Arc::default(),
                make_way: Arc::default(),
                is_full: false,
                log_due: CheckpointSchedule {
                    may_from: now,
                    must_by: now,
                    pause: TRUNCATE_PAUSES.0,
                },
            };
            Self { thread, jobs, folder }
        }

        fn send<T>(&self, job: impl FnOnce(DueAnswer<T>) -> WriterJob) -> DueResult<T> {
            let (answer, due) = oneshot::channel();
            let job = job(answer);
            assert!(self.thread.waiting.add(job.bytes()));
            self.jobs.try_send(job).unwrap();
            due
        }

        fn put(&self, records: Vec<Record>) -> DueResult<Vec<WriteOutcome>> {
            let (scope, only_if) = (scope("t", "s"), Precondition::default());
            self.send(|answer| {
                WriterJob::Write(QueuedWrite::Put { scope, records, only_if, answer })
            })
        }

        /// Runs one group of jobs. Returns whether the writer is told to close.
        fn group(&mut self) -> bool {
            let first = self.thread.queue.recv().unwrap();
            self.thread.group(first).is_some()
        }

        fn waiting(&self) -> usize {
            self.thread.waiting.jobs.load(Ordering::Relaxed)
        }

        /// Whether the log contains anything.
        fn is_logged(&self) -> bool {
            let log = std::fs::metadata(beside(&self.folder.path().join("p.db"), "-wal"));
            log.is_ok_and(|log| log.len() > 0)
        }

        fn say_log_is(&self, bytes: u64) {
            let log = std::fs::File::create(self.folder.path().join("other-wal")).unwrap();
            log.set_len(bytes).unwrap();
        }
    }

    type DueResult<T> = oneshot::Receiver<Result<T, StoreError>>;

    fn small(key: usize) -> Vec<Record> {
        vec![turn(key as u128, &"x".repeat(SMALL), 1)]
    }

    #[tokio::test]
    async fn refused_jobs_are_not_counted() {
        let (jobs, queue) = sync_channel(2);
        let folder = conformance::folder();
        let journal = Arc::new(Journal::open(&folder.path().join("p.db"), 0).unwrap());
        let writer = Writer { jobs, waiting: Arc::default(), restarts: Arc::default(), journal };
        let put = |key| {
            let (scope, records, only_if) = (scope("t", "s"), small(key), Precondition::default());
            writer.write(|answer| QueuedWrite::Put { scope, records, only_if, answer })
        };
        let _waiting = [put(1), put(2)];
        assert!(matches!(put(3).await, Err(StoreError::Closed)), "the queue is full");
        let each = SMALL + size_of::<Record>();
        assert_eq!(writer.waiting(), 2);
        assert_eq!(writer.waiting_bytes(), 2 * each);
        drop(queue);
        assert!(matches!(put(4).await, Err(StoreError::Closed)), "the thread is gone");
        assert_eq!(writer.waiting(), 2);
    }

    #[test]
    fn job_groups_are_limited() {
        let mut writer = WriterFixture::new();
        let puts: Vec<_> = (0..GROUP + 9).map(|key| writer.put(small(key))).collect();
        assert!(!writer.group());
        assert_eq!(writer.waiting(), 9);
        assert_eq!(writer.thread.since, GROUP);
        let answered = puts.into_iter().map_while(|mut due| due.try_recv().ok());
        assert_eq!(answered.map(Result::unwrap).count(), GROUP, "and these are answered");
        writer.group();
        // A sweep counts as a job, too.
        let rule = RetentionRule { before: 0, max_bytes: u64::MAX };
        let _puts: Vec<_> = (0..GROUP - 2).map(|key| writer.put(small(key))).collect();
        let sweep = |answer| WriterJob::Expire { rule, answer };
        let _sweeps: Vec<_> = (0..5).map(|_| writer.send(sweep)).collect();
        writer.group();
        assert_eq!(writer.waiting(), 3);
        writer.group();
        let large = |key| vec![turn(key, &"x".repeat(GROUP_BYTES / 4), 1)];
        let _puts: Vec<_> = (0..5).map(|key| writer.put(large(1000 + key))).collect();
        writer.group();
        assert_eq!(writer.waiting(), 1);
    }

    #[test]
    fn jobs_before_close_are_written() {
        let mut writer = WriterFixture::new();
        let mut before = writer.put(small(1));
        let _closed = writer.send(|answer| WriterJob::Close { answer });
        let mut after = writer.put(small(2));
        assert!(writer.group());
        assert_eq!(before.try_recv().unwrap().unwrap(), [WriteOutcome::Written]);
        drop(writer);
        assert_eq!(after.try_recv().unwrap_err(), oneshot::error::TryRecvError::Closed);
    }

    /// Only turns set the time: other records may have any time.
    #[test]
    fn turns_set_store_time() {
        const AHEAD: Millis = 365 * 24 * 3600 * 1000;
        let mut writer = WriterFixture::new();
        let cut = |key, at| vec![Record { kind: RecordKind::Cut, ..turn(key, "{}", at) }];
        let _puts = [writer.put(cut(1, 2 * AHEAD)), writer.put(vec![turn(1, "t", AHEAD)])];
        let _put = writer.put(cut(2, 3 * AHEAD));
        let rule = RetentionRule { before: 0, max_bytes: u64::MAX };
        let _swept = writer.send(|answer| WriterJob::Expire { rule, answer });
        writer.group();
        let used = |writer: &WriterFixture| {
            let used = "SELECT used FROM scopes WHERE session = 's'";
            writer.thread.connection.query_row(used, [], |row| row.get::<_, u64>(0)).unwrap()
        };
        assert_eq!(used(&writer), AHEAD, "what was used in the future counts as used now");
    }

    fn append(journal: &Journal, key: usize) {
        let entry = JournalEntry { scope: scope("t", "s"), records: small(key) };
        assert!(journal.join(entry, None).is_ok());
        journal.write_joining(|_| {});
    }

    /// Alone, the journal waits for more; with any other job, it goes first.
    #[test]
    fn journal_is_moved_together() {
        let mut writer = WriterFixture::new();
        let journal = writer.thread.journal.clone();
        let due = Instant::now() + GATHER;
        for key in [1, 2] {
            append(&journal, key);
            writer.jobs.try_send(WriterJob::Gathering { due: due + GATHER * key as u32 }).unwrap();
            assert!(writer.thread.waiting.add(0));
            writer.group();
            assert_eq!(writer.thread.move_due, Some(due + GATHER), "as the first needs it");
            assert!(journal.holds(|_| true));
        }
        let mut put = writer.put(small(2));
        writer.group();
        let there = WriteOutcome::Existed("x".repeat(SMALL).into());
        assert_eq!(put.try_recv().unwrap().unwrap(), [there], "the journal came first");
        assert!(!journal.holds(|_| true));
        assert_eq!(writer.thread.move_due, None);
        assert_eq!(writer.thread.since, 3);
    }

    /// A failure refuses the jobs, and keeps what was acknowledged.
    #[test]
    fn journal_outlives_failure() {
        let mut writer = WriterFixture::new();
        let journal = writer.thread.journal.clone();
        append(&journal, 1);
        writer.thread.connection.execute_batch("ALTER TABLE facts RENAME TO hidden").unwrap();
        let mut moved = writer.send(|answer| WriterJob::Move { answer });
        writer.group();
        moved.try_recv().unwrap().unwrap_err();
        assert!(writer.thread.move_due.is_some_and(|due| due > Instant::now()));
        assert!(journal.holds(|_| true));
        writer.thread.connection.execute_batch("ALTER TABLE hidden RENAME TO facts").unwrap();
        let mut moved = writer.send(|answer| WriterJob::Move { answer });
        writer.group();
        moved.try_recv().unwrap().unwrap();
        assert!(!journal.holds(|_| true));
        assert_eq!(applied(&writer.thread.connection).unwrap(), 1);
    }

    #[test]
    fn full_disk_is_reported() {
        let mut writer = WriterFixture::new();
        writer.thread.connection.pragma_update(None, "max_page_count", 1).unwrap();
        let large = turn(1, &"x".repeat(1 << 20), 1);
        let large = vec![Record { kind: RecordKind::Content, ..large }];
        let mut put = writer.put(large.clone());
        writer.group();
        assert!(matches!(put.try_recv().unwrap(), Err(StoreError::Full(_))));
        assert!(writer.thread.is_full);
        // To find out whether there is room again, the store writes a page that already exists.
        let mut ready = writer.put(Vec::new());
        writer.group();
        assert_eq!(ready.try_recv().unwrap().unwrap(), vec![]);
        assert!(!writer.thread.is_full);
        writer.thread.connection.execute_batch("ALTER TABLE facts RENAME TO hidden").unwrap();
        let mut put = writer.put(large);
        writer.group();
        assert!(matches!(put.try_recv().unwrap(), Err(StoreError::Failed(_))));
        assert!(!writer.thread.is_full, "it failed for another reason");
    }

    #[test]
    fn long_log_is_emptied() {
        let mut writer = WriterFixture::new();
        let put = |writer: &mut WriterFixture, key| {
            let _put = writer.put(small(key));
            writer.group();
        };
        put(&mut writer, 1);
        for short in [0, LOG - 1] {
            writer.say_log_is(short);
            writer.thread.bound_log();
            assert!(writer.is_logged(), "{short} bytes are not long");
        }
        writer.say_log_is(LOG);
        let (due, busy) = (writer.thread.log_due.may_from, writer.thread.checkpointing.clone());
        let checkpoint = busy.lock().unwrap();
        writer.thread.bound_log();
        assert!(writer.is_logged(), "a checkpoint is under way");
        drop(checkpoint);
        writer.thread.bound_log();
        assert!(!writer.is_logged());
        assert_eq!(writer.thread.log_due.may_from, due, "it need not rest");
        put(&mut writer, 2);
        let reader = Connection::open(writer.folder.path().join("p.db")).unwrap();
        reader.execute_batch("BEGIN; SELECT count(*) FROM facts").unwrap();
        writer.thread.bound_log();
        assert!(writer.is_logged());
        assert!(writer.thread.log_due.may_from > Instant::now());
        reader.execute_batch("COMMIT").unwrap();
        writer.thread.bound_log();
        assert!(writer.is_logged(), "not before its time");
        writer.thread.log_due.may_from = Instant::now();
        writer.thread.bound_log();
        assert!(!writer.is_logged());
    }

    #[test]
    fn log_waits_grow_past_maximum() {
        let mut writer = WriterFixture::new();
        let _put = writer.put(small(1));
        writer.group();
        let reader = Connection::open(writer.folder.path().join("p.db")).unwrap();
        reader.execute_batch("BEGIN; SELECT count(*) FROM facts").unwrap();
        writer.say_log_is(LOG_MOST);
        writer.thread.log_due.may_from = Instant::now() + IDLE;
        for pauses in [TRUNCATE_PAUSES.0, TRUNCATE_PAUSES.0 * 2] {
            assert_eq!(writer.thread.log_due.pause, pauses);
            writer.thread.log_due.must_by = Instant::now();
            let began = Instant::now();
            writer.thread.bound_log();
            assert!(began.elapsed() >= TIMEOUT.1);
            assert!(writer.is_logged());
            assert!(writer.thread.log_due.must_by >= began + TIMEOUT.1 + pauses);
        }
        writer.thread.log_due.pause = TRUNCATE_PAUSES.1;
        writer.thread.log_due.must_by = Instant::now();
        writer.thread.bound_log();
        assert_eq!(writer.thread.log_due.pause, TRUNCATE_PAUSES.1, "the longest");
        reader.execute_batch("COMMIT").unwrap();
        writer.thread.log_due.must_by = Instant::now() + IDLE;
        writer.thread.bound_log();
        assert!(writer.is_logged(), "not before its time");
        writer.thread.log_due.must_by = Instant::now();
        writer.thread.bound_log();
        assert!(!writer.is_logged());
        assert_eq!(writer.thread.log_due.pause, TRUNCATE_PAUSES.0);
    }

    #[test]
    fn upkeep_pauses_between_steps() {
        let mut writer = WriterFixture::new();
        let mut due = writer.put(small(1));
        let _dropped = writer
            .send(|answer| WriterJob::Write(QueuedWrite::Drop { scope: scope("t", "s"), answer }));
        writer.group();
        due.try_recv().unwrap().unwrap();
        assert!(writer.thread.upkeep_due.is_some_and(|due| due <= Instant::now()));
        let doomed = |writer: &WriterFixture| {
            let count = "SELECT count(*) FROM doomed";
            writer.thread.connection.query_row(count, [], |row| row.get::<_, u64>(0)).unwrap()
        };
        writer.say_log_is(LOG_MOST + 1);
        let (began, since) = (Instant::now(), writer.thread.since);
        writer.thread.step();
        assert!(writer.thread.upkeep_due.unwrap() > began);
        assert_eq!(writer.thread.since, since);
        writer.say_log_is(LOG_MOST);
        writer.thread.step();
        assert_eq!(writer.thread.since, since + STEP_JOBS, "at the limit it goes on");
        for _ in 0..99 {
            let before = Instant::now();
            writer.thread.step();
            let Some(next) = writer.thread.upkeep_due else { break };
            assert!(next >= before + PAUSE.0, "it pauses");
        }
        assert_eq!(writer.thread.upkeep_due, None);
        assert_eq!(doomed(&writer), 0);
        assert_eq!(writer.thread.since, CHECKPOINT, "the file only shrinks with a checkpoint");
    }

    /// Panics when the answer that it waits for arrives.
    struct PanickingWaker;

    impl std::task::Wake for PanickingWaker {
        fn wake(self: Arc<Self>) {
            panic!("a mistake");
        }
    }

    /// A panic loses what was being written, not the store: its transaction is undone.
    #[tokio::test]
    async fn writer_survives_panic() {
        let WriterFixture { thread, jobs, folder } = WriterFixture::new();
        thread.connection.execute_batch("BEGIN IMMEDIATE").unwrap();
        facts::put(&thread.connection, &scope("t", "s"), &small(1)).unwrap();
        let waiting = thread.waiting.clone();
        let journal = thread.journal.clone();
        let writer = Writer { jobs, waiting, restarts: Arc::default(), journal };
        let put = |key| {
            let (scope, records, only_if) = (scope("t", "s"), small(key), Precondition::default());
            writer.write(|answer| QueuedWrite::Put { scope, records, only_if, answer })
        };
        let mut panics = put(2);
        let waker = Arc::new(PanickingWaker).into();
        let mut context = std::task::Context::from_waker(&waker);
        assert!(panics.as_mut().poll(&mut context).is_pending());
        let restarts = writer.restarts.clone();
        let writing = std::thread::spawn(move || thread.guarded(&restarts));
        while writer.restarts() == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(put(3).await.unwrap(), [WriteOutcome::Written]);
        writer.submit(|answer| WriterJob::Close { answer }).await.unwrap();
        writing.join().unwrap();
        assert_eq!(writer.restarts(), 1);
        let connection = Connection::open(folder.path().join("p.db")).unwrap();
        let count = "SELECT count(*) FROM facts";
        let facts = connection.query_row(count, [], |row| row.get::<_, i64>(0));
        assert_eq!(facts.unwrap(), 1, "only what came after the panic");
    }

    #[test]
    fn failed_upkeep_is_retried() {
        let mut writer = WriterFixture::new();
        writer.thread.connection.execute_batch("ALTER TABLE doomed RENAME TO hidden").unwrap();
        let began = Instant::now();
        writer.thread.step();
        assert!(writer.thread.upkeep_due.is_some_and(|due| due >= began + AFTER_FAILURE));
        writer.thread.connection.execute_batch("ALTER TABLE hidden RENAME TO doomed").unwrap();
        let rule = RetentionRule { before: 0, max_bytes: u64::MAX };
        for fails in [true, false] {
            let mut swept = writer.send(|answer| WriterJob::Expire { rule, answer });
            writer.group();
            assert_eq!(swept.try_recv().unwrap().is_err(), fails);
        }
    }
}
