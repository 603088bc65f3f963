//! The one thread that writes: waiting jobs go into one transaction and are answered together.
//!
//! A job is answered only after its transaction is committed; one that fails refuses its whole
//! group, and nothing of it is kept. What was written ahead is brought into the file by a thread
//! beside it, because that waits for the disk. Knows nothing of facts.

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use bytes::Bytes;
use rusqlite::{Connection, params};
use tokio::sync::oneshot;

use super::{Content, blob, failed, value_at};
use crate::context::Millis;
use crate::store::{Answer, Put, Record, RecordKind, Scope, Trouble};

/// Jobs that may wait. A disk that is this far behind is not going to catch up with a client's wait.
const QUEUE: usize = 4096;
/// Most jobs in one transaction, so that the first of them is not kept waiting for long.
const GROUP: usize = 256;
/// Jobs after which what was written ahead is brought into the file.
const CHECKPOINT: usize = 1024;

/// An answer that is due.
type Due<T> = oneshot::Sender<Result<T, Trouble>>;

/// What can be asked of the writer.
pub(super) enum Job {
    Put { scope: Scope, records: Vec<Record>, answer: Due<Vec<Put>> },
    Drop { scope: Scope, answer: Due<u64> },
    Expire { before: Millis, max_bytes: u64, answer: Due<u64> },
}

/// A job's answer once its transaction is committed.
enum Done {
    Put(Due<Vec<Put>>, Vec<Put>),
    Count(Due<u64>, u64),
}

pub(super) struct Writer {
    jobs: SyncSender<Job>,
}

impl Writer {
    /// Starts the threads, with a connection for each. They end when the writer is dropped and its
    /// queue is empty.
    pub(super) fn start(connection: Connection, beside: Connection) -> Self {
        let (jobs, queue) = sync_channel(QUEUE);
        let (due, checkpoints) = sync_channel(1);
        let thread = |name: &str| std::thread::Builder::new().name(name.into());
        // Without a thread every job is refused as closed: the proxy goes on without a store. Without
        // the other, checkpoints come later ([`super::tune`]).
        drop(thread("store").spawn(move || run(connection, &queue, &due)));
        drop(thread("checkpoint").spawn(move || checkpoint(&beside, &checkpoints)));
        Self { jobs }
    }

    /// Queues a job and waits for its answer.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        job: impl FnOnce(Due<T>) -> Job,
    ) -> Answer<'static, T> {
        let (answer, due) = oneshot::channel();
        let queued = self.jobs.try_send(job(answer));
        Box::pin(async move {
            match queued {
                Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => Err(Trouble::Closed),
                Ok(()) => due.await.unwrap_or(Err(Trouble::Closed)),
            }
        })
    }
}

/// Brings what was written ahead into the file whenever that is due.
fn checkpoint(connection: &Connection, due: &Receiver<()>) {
    while due.recv().is_ok() {
        // What cannot be done now is done next time.
        drop(connection.execute_batch("PRAGMA wal_checkpoint(PASSIVE)"));
    }
}

fn run(connection: Connection, queue: &Receiver<Job>, checkpoint: &SyncSender<()>) {
    let mut since = 0;
    while let Ok(first) = queue.recv() {
        let mut group = vec![first];
        while group.len() < GROUP
            && let Ok(job) = queue.try_recv()
        {
            group.push(job);
        }
        since += group.len();
        let tidy = group.iter().any(|job| matches!(job, Job::Expire { .. }));
        match write(&connection, &mut group) {
            Ok(done) => done.into_iter().for_each(Done::answer),
            Err(error) => {
                let trouble = failed(error);
                group.into_iter().for_each(|job| job.refuse(&trouble));
            }
        }
        // Nobody waits for what follows, and failing to do it is no reason to fail.
        if tidy {
            // Freed pages go back to the disk.
            let give_back = "PRAGMA incremental_vacuum; PRAGMA wal_checkpoint(TRUNCATE)";
            drop(connection.execute_batch(give_back));
        } else if since >= CHECKPOINT {
            since = 0;
            // One that is still at it does this one's work too.
            let _ = checkpoint.try_send(());
        }
    }
}

/// One transaction; on failure nothing of it is kept and the jobs stay in `group`, to be refused.
fn write(connection: &Connection, group: &mut Vec<Job>) -> rusqlite::Result<Vec<Done>> {
    let step = |words| connection.prepare_cached(words)?.execute([]);
    step("BEGIN IMMEDIATE")?;
    let written = apply(connection, group).and_then(|results| step("COMMIT").map(|_| results));
    let results = written.inspect_err(|_| drop(step("ROLLBACK")))?;
    Ok(group.drain(..).zip(results).filter_map(|(job, result)| job.done(result)).collect())
}

fn apply(connection: &Connection, group: &[Job]) -> rusqlite::Result<Vec<Outcome>> {
    let mut results = Vec::with_capacity(group.len());
    for job in group {
        results.push(match job {
            Job::Put { scope, records, .. } => Outcome::Puts(put(connection, scope, records)?),
            Job::Drop { scope, .. } => Outcome::Count(drop_scope(connection, scope)?),
            Job::Expire { before, max_bytes, .. } => {
                Outcome::Count(expire(connection, *before, *max_bytes)?)
            }
        });
    }
    Ok(results)
}

enum Outcome {
    Puts(Vec<Put>),
    Count(u64),
}

impl Job {
    fn done(self, outcome: Outcome) -> Option<Done> {
        match (self, outcome) {
            (Job::Put { answer, .. }, Outcome::Puts(puts)) => Some(Done::Put(answer, puts)),
            (Job::Drop { answer, .. } | Job::Expire { answer, .. }, Outcome::Count(count)) => {
                Some(Done::Count(answer, count))
            }
            _ => None,
        }
    }

    fn refuse(self, trouble: &Trouble) {
        match self {
            Job::Put { answer, .. } => drop(answer.send(Err(trouble.clone()))),
            Job::Drop { answer, .. } | Job::Expire { answer, .. } => {
                drop(answer.send(Err(trouble.clone())));
            }
        }
    }
}

impl Done {
    fn answer(self) {
        match self {
            Done::Put(answer, puts) => drop(answer.send(Ok(puts))),
            Done::Count(answer, count) => drop(answer.send(Ok(count))),
        }
    }
}

fn put(connection: &Connection, scope: &Scope, records: &[Record]) -> rusqlite::Result<Vec<Put>> {
    let mut insert = connection.prepare_cached(
        "INSERT INTO records (tenant, session, kind, key, at, value) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
         ON CONFLICT DO NOTHING",
    )?;
    let mut puts = Vec::with_capacity(records.len());
    for record in records {
        let Record { kind, key, value, at } = record;
        let (tenant, session) = (&scope.tenant, &scope.session);
        if *kind == RecordKind::Sign {
            puts.push(sign(connection, scope, record)?);
            continue;
        }
        let row = params![tenant, session, kind.name(), blob(*key), *at as i64, Content(value)];
        puts.push(if insert.execute(row)? == 1 {
            Put::Written
        } else {
            Put::Existed(value_at(connection, scope, *kind, *key)?.unwrap_or_default())
        });
    }
    Ok(puts)
}

/// Signs have a table of their own: one small tree, where records are in three.
fn sign(connection: &Connection, scope: &Scope, record: &Record) -> rusqlite::Result<Put> {
    let mut insert = connection.prepare_cached(
        "INSERT INTO signs (tenant, key, session, at) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT DO NOTHING",
    )?;
    let row = params![scope.tenant, blob(record.key), scope.session, record.at as i64];
    Ok(if insert.execute(row)? == 1 { Put::Written } else { Put::Existed(Bytes::new()) })
}

fn drop_scope(connection: &Connection, scope: &Scope) -> rusqlite::Result<u64> {
    let drop = |table: &str| {
        let query = format!("DELETE FROM {table} WHERE tenant = ?1 AND session = ?2");
        connection.execute(&query, params![scope.tenant, scope.session])
    };
    Ok((drop("records")? + drop("signs")?) as u64)
}

/// First what is too old, then the oldest tenth at a time until the rest fits.
fn expire(connection: &Connection, before: Millis, max_bytes: u64) -> rusqlite::Result<u64> {
    let old =
        concat!("DELETE FROM records WHERE at < ?1 AND kind <> 'learned' AND NOT ", decides!());
    let mut gone = connection.execute(old, [before as i64])?;
    gone += connection.execute(OUTLIVED, [before as i64])?;
    gone += connection.execute("DELETE FROM signs WHERE at < ?1", [before as i64])?;
    while used_bytes(connection)? > max_bytes {
        let oldest = concat!(
            "DELETE FROM records WHERE id IN (
                SELECT id FROM records WHERE kind <> 'learned' AND NOT ",
            decides!(),
            "ORDER BY at, id LIMIT (SELECT max(1, count(*) / 10) FROM records))"
        );
        match connection.execute(oldest, [])? + connection.execute(OUTLIVED, [i64::MAX])? {
            0 => break,
            count => gone += count,
        }
        let ownerless = "DELETE FROM signs WHERE at < (SELECT min(at) FROM records)";
        gone += connection.execute(ownerless, [])?;
    }
    Ok(gone as u64)
}

/// Decisions up to a time, of sessions of which no turn is left.
const OUTLIVED: &str = concat!(
    "DELETE FROM records WHERE at < ?1 AND ",
    decides!(),
    "AND NOT EXISTS (
        SELECT 1 FROM records AS of
        WHERE of.tenant = records.tenant AND of.session = records.session AND of.kind = 'turn')"
);

fn used_bytes(connection: &Connection) -> rusqlite::Result<u64> {
    let pragma = |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, u64>(0));
    Ok((pragma("page_count")? - pragma("freelist_count")?) * pragma("page_size")?)
}
