//! The thread that writes: all waiting jobs go into one transaction, and are answered together.
//!
//! A job is answered only after its transaction is committed. A failing job fails its whole group, of which
//! nothing is stored. Between groups the thread does a step of upkeep ([`super::upkeep`]). Another thread
//! makes checkpoints, because they wait for the disk.

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
use super::legacy::{self, LegacyFacts, RekeyFact};
use super::readers::ReaderGate;
use super::retention::RetentionRule;
use super::upkeep::{self, Upkeep, in_transaction};
use super::{drafts, facts, tombstones};
use crate::store::drafts::{Draft, HeartbeatWatch};
use crate::store::precondition::{Precondition, WriteToken};
use crate::store::{Record, RecordKind, Scope, StoreError, StoreFuture, SweepStep, WriteOutcome};

/// Jobs that may wait. A disk that is slower than this will not catch up while a client waits.
const QUEUE: usize = 4096;
/// Bytes of the jobs that may wait.
pub const QUEUE_BYTES: usize = 16 << 20;
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
/// How long until emptying the log is tried again if it is still being read. Past [`LOG_MOST`], the wait
/// doubles each time, because another program's reader cannot be ended.
const LOG_AGAIN: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));
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
/// How long the writer sleeps if there is nothing to do.
const IDLE: Duration = Duration::from_secs(3600);

/// The sender for a job's answer.
type DueAnswer<T> = oneshot::Sender<Result<T, StoreError>>;

/// The jobs of the writer.
pub(super) enum WriterJob {
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
    Adopt {
        instance: u64,
        lease: Duration,
        answer: DueAnswer<Vec<Scope>>,
    },
    Drop {
        scope: Scope,
        answer: DueAnswer<u64>,
    },
    Expire {
        rule: RetentionRule,
        answer: DueAnswer<SweepStep>,
    },
    Close {
        answer: DueAnswer<()>,
    },
}

impl WriterJob {
    /// Its memory while it waits, bytes.
    fn bytes(&self) -> usize {
        let of_record = |record: &Record| record.value.len() + size_of::<Record>();
        match self {
            WriterJob::Put { records, .. } => records.iter().map(of_record).sum(),
            WriterJob::Draft { drafts, ended, .. } => {
                let drafts =
                    drafts.iter().map(|draft| of_record(&draft.record) + size_of::<Scope>());
                drafts.sum::<usize>() + size_of_val(&**ended)
            }
            // Jobs that take almost no memory are always accepted.
            WriterJob::Adopt { .. }
            | WriterJob::Drop { .. }
            | WriterJob::Expire { .. }
            | WriterJob::Close { .. } => 0,
        }
    }
}

/// The jobs that wait for the writer.
#[derive(Default)]
struct WriterQueue {
    jobs: AtomicUsize,
    bytes: AtomicUsize,
}

impl WriterQueue {
    /// Counts a job with this many bytes; `false` if there is no room. A single job always has room.
    fn add(&self, bytes: usize) -> bool {
        let add = |held: usize| {
            let sum = held.saturating_add(bytes);
            (held == 0 || bytes == 0 || sum <= QUEUE_BYTES).then_some(sum)
        };
        let has_room = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok();
        if has_room {
            self.jobs.fetch_add(1, Ordering::Relaxed);
        }
        has_room
    }

    fn remove(&self, bytes: usize) {
        self.jobs.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

pub(super) struct Writer {
    jobs: SyncSender<WriterJob>,
    waiting: Arc<WriterQueue>,
    restarts: Arc<AtomicUsize>,
}

impl Writer {
    /// Starts the threads, with a connection for each. They end when the writer is dropped and its queue is
    /// empty.
    pub(super) fn start(
        path: &Path,
        connection: Connection,
        beside: Connection,
        moving: Arc<LegacyFacts>,
        rekey: RekeyFact,
        made: Vec<Scope>,
        make_way: Arc<ReaderGate>,
    ) -> Self {
        let (jobs, queue) = sync_channel(QUEUE);
        let (due, checkpoints) = sync_channel(1);
        let thread = |name: &str| std::thread::Builder::new().name(name.into());
        // Without the writer thread, every job is refused as closed, and the proxy runs without a store.
        // Without the other, the writer makes all checkpoints itself ([`WriterThread::bound_log`]).
        let checkpointing = Arc::<Mutex<()>>::default();
        let busy = checkpointing.clone();
        let checkpoint = thread("checkpoint");
        let checkpoint =
            checkpoint.spawn(move || run_checkpoints(&beside, &checkpoints, &busy)).ok();
        let waiting = Arc::<WriterQueue>::default();
        let writing = WriterThread {
            connection,
            queue,
            waiting: waiting.clone(),
            moving,
            upkeep: Upkeep::new(path, rekey),
            upkeep_due: Some(Instant::now() + AT_START),
            failure: None,
            watch: HeartbeatWatch::default(),
            made,
            worked: false,
            since: 0,
            checkpoint: (due, checkpoint),
            checkpointing,
            make_way,
            is_full: false,
            log_due: CheckpointSchedule {
                may_from: Instant::now(),
                must_by: Instant::now(),
                pause: LOG_AGAIN.0,
            },
        };
        let restarts = Arc::<AtomicUsize>::default();
        let counted = restarts.clone();
        drop(thread("store").spawn(move || writing.guarded(&counted)));
        Self { jobs, waiting, restarts }
    }

    /// Queues a job, and waits for its answer.
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

    /// How often the thread was restarted after a panic.
    pub(super) fn restarts(&self) -> usize {
        self.restarts.load(Ordering::Relaxed)
    }

    /// Jobs that wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.jobs.load(Ordering::Relaxed)
    }

    /// Bytes of the jobs that wait.
    pub(super) fn waiting_bytes(&self) -> usize {
        self.waiting.bytes.load(Ordering::Relaxed)
    }
}

/// Makes a checkpoint whenever one is due.
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
    moving: Arc<LegacyFacts>,
    upkeep: Upkeep,
    /// When the next step of upkeep is due; `None` if there is nothing to do.
    upkeep_due: Option<Instant>,
    /// Why the last step failed, until one succeeds or the failure is reported.
    failure: Option<StoreError>,
    /// The heartbeats of other processes on the file.
    watch: HeartbeatWatch,
    /// Scopes with turns made from drafts, until they are asked for.
    made: Vec<Scope>,
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

/// A write, and the sender for its answer.
enum QueuedWrite {
    Put(Scope, Vec<Record>, Precondition, DueAnswer<Vec<WriteOutcome>>),
    Draft(u64, Vec<Draft>, Vec<u128>, DueAnswer<()>),
    Drop(Scope, DueAnswer<u64>),
}

/// Why the thread ends.
enum WriterEnd {
    /// It was closed.
    Closed(DueAnswer<()>),
    /// All senders are gone.
    Abandoned,
}

enum CommitOutcome {
    Puts(Vec<WriteOutcome>),
    /// Its precondition does not hold.
    Refused(StoreError),
    Drafted,
    Count(u64),
}

impl WriterThread {
    /// Runs until the end. A panic loses the jobs of its group and delays upkeep, but does not end the
    /// thread.
    fn guarded(mut self, restarts: &AtomicUsize) {
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
            let until = self.upkeep_due.map(|due| due.saturating_duration_since(Instant::now()));
            match self.queue.recv_timeout(until.unwrap_or(IDLE)) {
                Ok(first) => {
                    if let Some(answer) = self.group(first) {
                        return WriterEnd::Closed(answer);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return WriterEnd::Abandoned,
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

    /// Empties the log if it is long. While others read from it, and while the checkpoint thread is behind,
    /// it can only grow. Past [`LOG_MOST`], writes wait for both, and admin queries are interrupted and have
    /// to be repeated. A reader in another process cannot be ended, so the log grows until it is gone.
    fn bound_log(&mut self) {
        let log = self.upkeep.log_bytes();
        let now = Instant::now();
        if log >= LOG_MOST && self.log_due.must_by <= now {
            let _idle = self.checkpointing.lock().unwrap_or_else(PoisonError::into_inner);
            let emptied = self.make_way.during(|| upkeep::truncate(&self.connection, TIMEOUT.1));
            // A failure shows in the next write.
            if emptied.unwrap_or(false) {
                self.log_due.pause = LOG_AGAIN.0;
            } else {
                self.log_due.must_by = Instant::now() + self.log_due.pause;
                self.log_due.pause = LOG_AGAIN.1.min(self.log_due.pause * 2);
            }
        } else if log >= LOG && self.log_due.may_from <= now {
            let Ok(_idle) = self.checkpointing.try_lock() else { return };
            if !upkeep::truncate(&self.connection, TIMEOUT.0).unwrap_or(false) {
                self.log_due.may_from = Instant::now() + LOG_AGAIN.0;
            }
        }
    }

    /// Does the waiting jobs; returns the sender of a request to close.
    fn group(&mut self, first: WriterJob) -> Option<DueAnswer<()>> {
        let (mut writes, mut rules, mut close) = (Vec::new(), Vec::new(), None);
        let mut adoptions = Vec::new();
        let mut bytes = 0;
        let mut next = Some(first);
        while let Some(job) = next {
            self.waiting.remove(job.bytes());
            match job {
                WriterJob::Put { scope, records, only_if, answer } => {
                    let turns = records.iter().filter(|record| record.kind == RecordKind::Turn);
                    turns.for_each(|turn| self.upkeep.turn_at(turn.at));
                    bytes += records.iter().map(|record| record.value.len()).sum::<usize>();
                    writes.push(QueuedWrite::Put(scope, records, only_if, answer));
                }
                WriterJob::Draft { instance, drafts, ended, answer } => {
                    self.since += drafts.len();
                    writes.push(QueuedWrite::Draft(instance, drafts, ended, answer));
                }
                WriterJob::Adopt { instance, lease, answer } => {
                    adoptions.push((instance, lease, answer));
                }
                WriterJob::Drop { scope, answer } => writes.push(QueuedWrite::Drop(scope, answer)),
                WriterJob::Expire { rule, answer } => rules.push((rule, answer)),
                WriterJob::Close { answer } => close = Some(answer),
            }
            let is_full = writes.len() + rules.len() >= GROUP || bytes >= GROUP_BYTES;
            let is_over = close.is_some() || is_full;
            next = if is_over { None } else { self.queue.try_recv().ok() };
        }
        self.since += writes.len();
        self.write(writes);
        for (instance, lease, answer) in adoptions {
            drop(answer.send(self.adopt(instance, lease).map_err(failed)));
        }
        for (rule, answer) in rules {
            let expired = self.upkeep.expire(&self.connection, rule, &self.moving);
            self.upkeep_due.get_or_insert_with(Instant::now);
            let expired = match self.failure.take() {
                Some(trouble) => Err(trouble),
                None => expired.map_err(failed),
            };
            drop(answer.send(expired));
        }
        close
    }

    /// Makes turns from the drafts of dead processes; returns the scopes since the last call.
    fn adopt(&mut self, instance: u64, lease: Duration) -> rusqlite::Result<Vec<Scope>> {
        let connection = &self.connection;
        let mut others = drafts::beats(connection)?;
        others.retain(|(other, _)| *other != instance);
        let gone = self.watch.gone(&others, lease);
        let moving = &self.moving;
        for other in gone {
            let made = in_transaction(connection, || {
                drafts::adopt(connection, moving.has(connection)?, other)
            })?;
            self.made.extend(made);
        }
        Ok(std::mem::take(&mut self.made))
    }

    /// Does the writes in one transaction; if it fails, nothing is stored and all are refused.
    fn write(&mut self, writes: Vec<QueuedWrite>) {
        if writes.is_empty() {
            return;
        }
        let connection = &self.connection;
        let moving = &self.moving;
        let is_full = self.is_full;
        let written = in_transaction(connection, || {
            if is_full {
                connection.prepare_cached(PROBE)?.execute([])?;
            }
            let is_moving = moving.has(connection)?;
            let outcomes = writes.iter().map(|write| write.apply(connection, is_moving));
            outcomes.collect::<rusqlite::Result<Vec<_>>>()
        });
        if writes.iter().any(|write| matches!(write, QueuedWrite::Drop(..))) {
            self.upkeep.is_unclean();
            self.upkeep_due.get_or_insert_with(Instant::now);
        }
        self.is_full = written.as_ref().is_err_and(is_full_disk);
        match written {
            Ok(outcomes) => {
                writes.into_iter().zip(outcomes).for_each(|(write, outcome)| write.answer(outcome));
            }
            Err(error) => {
                // The missing space may be in the log.
                if self.is_full {
                    drop(upkeep::truncate(connection, TIMEOUT.1));
                }
                let trouble = failed(error);
                writes.into_iter().for_each(|write| write.refuse(&trouble));
            }
        }
    }

    /// Does a step of upkeep, and schedules the next.
    fn step(&mut self) {
        let began = Instant::now();
        if self.upkeep.log_bytes() > LOG_MOST {
            // The step's writes would make the log even longer.
            self.upkeep_due = Some(began + PAUSE.1);
            return;
        }
        let pause = match self.upkeep.step(&self.connection, &self.moving) {
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

    /// Merges everything into one file: the last connection to close removes the log.
    fn close(self, answer: DueAnswer<()>) {
        let (due, checkpoint) = self.checkpoint;
        drop(due);
        drop(checkpoint.map(JoinHandle::join));
        let emptied = upkeep::truncate(&self.connection, TIMEOUT.1);
        let closed = self.connection.close().map_err(|(_, error)| error);
        drop(answer.send(emptied.and(closed).map_err(failed)));
    }
}

/// Why a write is refused; `None` if its precondition holds.
fn refusal(
    connection: &Connection,
    scope: &Scope,
    only_if: &Precondition,
) -> rusqlite::Result<Option<StoreError>> {
    let is_deleted = match only_if.since {
        Some(since) => tombstones::is_deleted(connection, scope, since)?,
        None => false,
    };
    if is_deleted {
        return Ok(Some(StoreError::Deleted));
    }
    let begins = only_if.token.as_ref().is_none_or(WriteToken::begin);
    Ok((!begins).then_some(StoreError::Cancelled))
}

impl QueuedWrite {
    fn apply(&self, connection: &Connection, is_moving: bool) -> rusqlite::Result<CommitOutcome> {
        match self {
            QueuedWrite::Put(scope, records, only_if, _) => {
                match refusal(connection, scope, only_if)? {
                    Some(trouble) => Ok(CommitOutcome::Refused(trouble)),
                    None => {
                        facts::put(connection, is_moving, scope, records).map(CommitOutcome::Puts)
                    }
                }
            }
            QueuedWrite::Draft(instance, drafts, ended, _) => {
                drafts::put(connection, *instance, drafts, ended).map(|()| CommitOutcome::Drafted)
            }
            QueuedWrite::Drop(scope, _) => {
                drafts::drop_scope(connection, scope)?;
                tombstones::add(connection, scope)?;
                let mut gone = match facts::scope_id(connection, scope)? {
                    Some(id) => tombstones::doom(connection, id, true)?,
                    None => 0,
                };
                if is_moving {
                    gone += legacy::drop_scope(connection, scope)?;
                }
                Ok(CommitOutcome::Count(gone))
            }
        }
    }

    fn answer(self, outcome: CommitOutcome) {
        match (self, outcome) {
            (QueuedWrite::Put(.., answer), CommitOutcome::Puts(puts)) => {
                drop(answer.send(Ok(puts)));
            }
            (QueuedWrite::Put(.., answer), CommitOutcome::Refused(trouble)) => {
                drop(answer.send(Err(trouble)));
            }
            (QueuedWrite::Draft(.., answer), CommitOutcome::Drafted) => drop(answer.send(Ok(()))),
            (QueuedWrite::Drop(_, answer), CommitOutcome::Count(count)) => {
                drop(answer.send(Ok(count)));
            }
            // A sender that is dropped is reported as closed; such pairs do not occur.
            (QueuedWrite::Put(..) | QueuedWrite::Draft(..) | QueuedWrite::Drop(..), _) => {}
        }
    }

    fn refuse(self, trouble: &StoreError) {
        match self {
            QueuedWrite::Put(.., answer) => drop(answer.send(Err(trouble.clone()))),
            QueuedWrite::Draft(.., answer) => drop(answer.send(Err(trouble.clone()))),
            QueuedWrite::Drop(_, answer) => drop(answer.send(Err(trouble.clone()))),
        }
    }
}
