//! Finished turns in one PostgreSQL database, with the views of the SQLite file: for questions about a whole fleet.
//!
//! Turns wait in a bounded queue, and one task writes them. What finds no room is dropped and counted: nothing on the way
//! of a request waits for this task, or fails with it. A turn is written by its id, so that one that is sent again changes
//! nothing. Knows the columns of a turn, and nothing of traffic.

mod database;
mod queue;
mod rows;
mod tls;

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use self::database::{WarehouseDatabase, WarehouseLink, WriteError};
use self::queue::{Batch, QueuedTurn, WriteQueue};
use crate::config::Config;
use crate::store::{Record, RecordKind, Scope};
use crate::telemetry::{Telemetry, WarehouseOutcome};

/// How long turns are collected before they are written.
const DELAY: Duration = Duration::from_millis(500);
/// The pause after a failure; it doubles with each further one, up to the longest.
const PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How long the last turns may take when the process ends.
const LAST: Duration = Duration::from_secs(3);

/// The task that writes.
pub struct Warehouse {
    sink: TurnSink,
    task: JoinHandle<()>,
}

/// Where turns are handed over.
#[derive(Clone)]
pub struct TurnSink {
    queue: Arc<WriteQueue>,
    telemetry: Arc<Telemetry>,
}

impl Warehouse {
    /// Starts it, if the configuration names a database. If it cannot be started, that is told: traffic does not need it.
    pub fn start(config: &Config, telemetry: &Arc<Telemetry>) -> Option<Self> {
        let database = WarehouseDatabase::configured(config)?;
        let database = database.inspect_err(|reason| tracing::warn!("{reason}")).ok()?;
        let sink = TurnSink { queue: Arc::default(), telemetry: telemetry.clone() };
        let writer =
            TurnWriter { sink: sink.clone(), link: WarehouseLink::new(database), is_away: false };
        Some(Self { sink, task: tokio::spawn(writer.run()) })
    }

    /// Where turns are handed over.
    pub fn sink(&self) -> TurnSink {
        self.sink.clone()
    }

    /// Writes what waits, for a few seconds at most.
    pub async fn finish(self) {
        self.sink.queue.close();
        let abort = self.task.abort_handle();
        if tokio::time::timeout(LAST, self.task).await.is_err() {
            abort.abort();
            tracing::warn!("the warehouse was too slow for the last turns, which are not in it");
        }
    }
}

/// Looks whether the configured database can be used; where it is, without credentials.
///
/// # Errors
/// Why it cannot be used, and what to do.
pub(crate) async fn examine(config: &Config) -> Option<(String, Result<(), String>)> {
    match WarehouseDatabase::configured(config)? {
        Ok(database) => Some((database.shown(), database.examine().await)),
        Err(reason) => Some((String::new(), Err(reason))),
    }
}

impl TurnSink {
    /// The turns among records of a scope, as they will be written.
    pub fn turns(&self, scope: &Scope, records: &[Record]) -> Vec<QueuedTurn> {
        let turns = records.iter().filter(|record| record.kind == RecordKind::Turn);
        turns.map(|turn| QueuedTurn::new(scope, turn)).collect()
    }

    /// Writes them soon, if there is room.
    pub fn write(&self, turns: Vec<QueuedTurn>) {
        for turn in turns {
            if !self.queue.add(turn) {
                self.telemetry.count_warehouse(WarehouseOutcome::Dropped, 1);
            }
        }
    }

    /// Deletes a session soon.
    pub fn delete(&self, scope: &Scope) {
        self.queue.delete(scope);
    }
}

struct TurnWriter {
    sink: TurnSink,
    link: WarehouseLink,
    /// Whether that was told.
    is_away: bool,
}

impl TurnWriter {
    async fn run(mut self) {
        // What is wrong with it is told at the start, and not with the first turn.
        let opened = self.link.open().await;
        self.note(opened.err());
        while let Some(batch) = self.sink.queue.next().await {
            self.deliver(&batch).await;
            if !self.sink.queue.is_long() {
                self.sink.queue.closed_within(DELAY).await;
            }
        }
    }

    /// Writes a batch, however long that takes.
    async fn deliver(&mut self, batch: &Batch) {
        let mut pause = PAUSE;
        loop {
            match self.link.write(batch).await {
                Ok(()) => {
                    self.note(None);
                    return self.count(WarehouseOutcome::Written, batch);
                }
                Err(WriteError::Refused(reason)) => {
                    tracing::warn!("the warehouse does not take some turns: {reason}");
                    return self.count(WarehouseOutcome::Dropped, batch);
                }
                Err(WriteError::Unavailable(reason)) => self.note(Some(reason)),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn count(&self, outcome: WarehouseOutcome, batch: &Batch) {
        self.sink.telemetry.count_warehouse(outcome, batch.turns());
    }

    /// Tells once that it is away, and once that it is back.
    fn note(&mut self, trouble: Option<String>) {
        let was_away = std::mem::replace(&mut self.is_away, trouble.is_some());
        match trouble {
            Some(reason) if !was_away => {
                tracing::warn!("turns wait for the warehouse, traffic continues: {reason}");
            }
            None if was_away => tracing::warn!("turns are written to the warehouse again"),
            _ => {}
        }
    }
}
