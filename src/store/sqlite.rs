//! The embedded store: one SQLite file that anyone can query with `sqlite3`.
//!
//! One thread writes, in groups: whatever is waiting goes into one transaction, and all are answered
//! when it is committed. Write-ahead log with `synchronous = NORMAL`: a committed turn survives
//! `kill -9`; a power cut can take the last moments, never the file. Traffic, whoever looks in, and
//! checkpoints have connections of their own. The data folder is all that is written to.

mod drafts;
mod facts;
mod legacy;
mod migration;
mod packing;
mod readers;
mod retention;
mod schema;
mod tombstones;
mod upkeep;
mod views;
mod writer;

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bytes::Bytes;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags, OptionalExtension as _, Row};
use tokio::sync::oneshot;

use super::drafts::Draft;
use super::precondition::Precondition;
use super::{
    Record, RecordKind, Scope, ScopeLine, ScopePage, Store, StoreError, StoreFuture, SweepStep,
    WriteOutcome, folder,
};
use crate::context::{Millis, SessionId, TenantId};
use drafts::FolderLock;
use legacy::LegacyFacts;

pub(super) use legacy::RekeyFact;
use readers::{ReaderGate, ReaderLimits, Readers};
use retention::RetentionRule;
use upkeep::LOCKED;
pub use writer::QUEUE_BYTES;
use writer::{Writer, WriterJob};

/// How long a connection waits for another process; the writer, once it is open, for [`LOCKED`].
const BUSY: Duration = Duration::from_secs(5);
/// What traffic reads: sessions and signs. Nothing of it takes long.
const TRAFFIC: ReaderLimits = ReaderLimits { name: "store-traffic", threads: 2, limit: None };
/// What people and programs read who look in; a question of theirs holds what is deleted in the log
/// while it lasts, so it may not last.
const LOOKERS: ReaderLimits =
    ReaderLimits { name: "store-lookers", threads: 2, limit: Some(Duration::from_secs(2)) };

/// Facts in a file. Clones share it.
#[derive(Clone)]
pub struct SqliteStore {
    file: Arc<Database>,
    side: StoreCaller,
}

/// Who asks.
#[derive(Clone, Copy)]
enum StoreCaller {
    Traffic,
    Looker,
}

struct Database {
    writer: Writer,
    traffic: Readers,
    lookers: Readers,
    moving: Arc<LegacyFacts>,
    path: PathBuf,
    /// Says to other processes that this one uses the file.
    _lock: FolderLock,
}

/// How busy a store is, and what it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreLoad {
    /// Writes that wait.
    pub writes: usize,
    /// Bytes of them.
    pub write_bytes: usize,
    /// Questions of traffic that wait.
    pub traffic: usize,
    /// Questions of those who look in that wait.
    pub lookers: usize,
    /// Threads.
    pub threads: usize,
    /// How often the thread that writes began anew after a panic.
    pub restarts: usize,
    /// Bytes on disk: the file and its log.
    pub bytes: u64,
}

impl SqliteStore {
    /// Opens the store at `path`, making it and its folder where they are missing. An older version
    /// of it is brought up to date in place; a newer one is refused and left as it is.
    ///
    /// # Errors
    /// [`StoreError::Unusable`], saying what is wrong with the file and what to do.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        Self::open_sealing(path, Box::new(|record| record))
    }

    /// The same; what an earlier version wrote passes through `seal` as it moves to its new place.
    pub(super) fn open_sealing(path: &Path, seal: RekeyFact) -> Result<Self, StoreError> {
        make_folder(path)?;
        is_database(path)?;
        // SQLite would make it as the umask has it, and gives the files beside it the same mode.
        // Where it cannot be opened, SQLite says why.
        let _ = folder::append(path);
        let mut connection = connect(path)?;
        let trouble = |error: rusqlite::Error| trouble_with(path, &error);
        // Before the tables change: pages that are used for something else are overwritten, too.
        tune(&connection).map_err(trouble)?;
        schema::prepare(&mut connection, path)?;
        let moving = Arc::new(LegacyFacts::of(&connection).map_err(trouble)?);
        let mut made = Vec::new();
        let lock = FolderLock::take(path, || {
            let adopting = upkeep::in_transaction(&connection, || {
                drafts::adopt_all(&connection, moving.has(&connection)?)
            });
            // On a full disk they stay as they are, until it is not.
            made = adopting.unwrap_or_default();
        });
        connection.busy_timeout(LOCKED).map_err(trouble)?;
        let make_way = Arc::<ReaderGate>::default();
        let connections = (connection, connect(path)?);
        let writer = Writer::start(path, connections, moving.clone(), seal, made, make_way.clone());
        let traffic = Readers::start(path, TRAFFIC, Arc::default())?;
        let lookers = Readers::start(path, LOOKERS, make_way)?;
        let file = Database { writer, traffic, lookers, moving, path: path.into(), _lock: lock };
        Ok(Self { file: Arc::new(file), side: StoreCaller::Traffic })
    }

    /// The same store for those who look in: their questions keep traffic's waiting in nothing, and end
    /// when they take too long.
    pub fn for_lookers(&self) -> Self {
        Self { side: StoreCaller::Looker, ..self.clone() }
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.file.path
    }

    /// Whether some of what an earlier version wrote may still be as and where it was.
    pub(super) fn moving(&self) -> Arc<AtomicBool> {
        self.file.moving.flag()
    }

    /// Writes down which secret the hashes are keyed with, by its fingerprint; answers whether it was
    /// another one before.
    pub(super) fn keyed_with(&self, fingerprint: &[u8; 32]) -> Result<bool, StoreError> {
        const NAME: &str = "keyed_with";
        let connection = connect(self.path())?;
        let look = || -> rusqlite::Result<bool> {
            let query = "SELECT value FROM secrets WHERE name = ?1";
            let before = connection.query_row(query, [NAME], |row| row.get::<_, [u8; 32]>(0));
            let before = before.optional()?;
            if before != Some(*fingerprint) {
                let keep = "INSERT OR REPLACE INTO secrets VALUES (?1, ?2)";
                connection.execute(keep, rusqlite::params![NAME, fingerprint])?;
            }
            Ok(before.is_some_and(|before| before != *fingerprint))
        };
        look().map_err(failed)
    }

    /// Answers what was asked, then leaves one whole file that needs nothing beside it.
    ///
    /// # Errors
    /// Where the log could not be brought into the file: both are there then, and are read as one.
    pub async fn close(&self) -> Result<(), StoreError> {
        let mut threads = self.file.traffic.close();
        threads.extend(self.file.lookers.close());
        // On a thread of its own: the runtime, and with it the process, must not wait for a read that hangs.
        let (told, ended) = oneshot::channel();
        let joining = std::thread::Builder::new().name("store-close".into()).spawn(move || {
            threads.into_iter().for_each(|thread| drop(thread.join()));
            let _ = told.send(());
        });
        drop(joining);
        drop(ended.await);
        self.file.writer.ask(|answer| WriterJob::Close { answer }).await
    }

    /// How busy it is, and what it takes.
    pub fn load(&self) -> StoreLoad {
        let Database { writer, traffic, lookers, path, .. } = &*self.file;
        let length = |path: &Path| std::fs::metadata(path).map_or(0, |file| file.len());
        let log = beside(path, "-wal");
        StoreLoad {
            writes: writer.waiting(),
            write_bytes: writer.waiting_bytes(),
            traffic: traffic.waiting(),
            lookers: lookers.waiting(),
            // One writes, one beside it brings the log into the file.
            threads: traffic.threads() + lookers.threads() + 2,
            restarts: writer.restarts(),
            bytes: length(path) + length(&log),
        }
    }

    /// Runs a query on a reading connection, as one look at the file: facts that move meanwhile are
    /// found once.
    fn read<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Connection, &LegacyFacts) -> rusqlite::Result<T> + Send + 'static,
    ) -> StoreFuture<'_, T> {
        let moving = self.file.moving.clone();
        let readers = match self.side {
            StoreCaller::Traffic => &self.file.traffic,
            StoreCaller::Looker => &self.file.lookers,
        };
        readers.ask(move |connection| {
            let look = connection.unchecked_transaction()?;
            query(&look, &moving)
        })
    }
}

/// Copies the store at `path` into a new file, in one look at it; those who use it do not wait. Answers
/// how long the copy is, bytes.
///
/// # Errors
/// [`StoreError::Unusable`], saying whose fault it is.
pub fn backup(path: &Path, copy: &Path) -> Result<u64, StoreError> {
    use std::os::unix::fs::OpenOptionsExt as _;
    examine(path)?;
    let here = |error: std::io::Error| {
        StoreError::Unusable(format!("{} cannot be written: {error}", copy.display()))
    };
    // Nobody else may read it, as with the store; and what is there stays.
    let made = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(copy);
    let made = made.map_err(here)?;
    let copied = || -> rusqlite::Result<()> {
        let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        connection.busy_timeout(BUSY)?;
        connection.pragma_update(None, "temp_store", "MEMORY")?;
        connection.execute("VACUUM INTO ?1", [copy.to_string_lossy()])?;
        Ok(())
    };
    if let Err(error) = copied() {
        drop(std::fs::remove_file(copy));
        return Err(StoreError::Unusable(format!(
            "{} cannot be copied: {}",
            path.display(),
            because(&error)
        )));
    }
    made.sync_all().map_err(here)?;
    Ok(std::fs::metadata(copy).map_err(here)?.len())
}

/// Looks at a store without changing it: whether this version can use it. Answers what it takes, bytes.
///
/// # Errors
/// [`StoreError::Unusable`] or [`StoreError::Damaged`], saying what is wrong with the file and what to do.
pub fn examine(path: &Path) -> Result<u64, StoreError> {
    is_database(path)?;
    let look = || -> rusqlite::Result<usize> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)?;
        connection.busy_timeout(BUSY)?;
        schema::version(&connection)
    };
    let version = look().map_err(|error| trouble_with(path, &error))?;
    if version > schema::STEPS.len() {
        return Err(unusable(path, &schema::newer(version)));
    }
    let length = |path: &Path| std::fs::metadata(path).map_or(0, |file| file.len());
    Ok(length(path) + length(&beside(path, "-wal")))
}

impl Store for SqliteStore {
    fn put(
        &self,
        scope: Scope,
        records: Vec<Record>,
        only_if: Precondition,
    ) -> StoreFuture<'_, Vec<WriteOutcome>> {
        self.file.writer.ask(|answer| WriterJob::Put { scope, records, only_if, answer })
    }

    fn put_drafts(
        &self,
        instance: u64,
        drafts: Vec<Draft>,
        ended: Vec<u128>,
    ) -> StoreFuture<'_, ()> {
        self.file.writer.ask(|answer| WriterJob::Draft { instance, drafts, ended, answer })
    }

    fn adopt_drafts(&self, instance: u64, lease: Duration) -> StoreFuture<'_, Vec<Scope>> {
        self.file.writer.ask(|answer| WriterJob::Adopt { instance, lease, answer })
    }

    fn get(&self, scope: Scope, kind: RecordKind, key: u128) -> StoreFuture<'_, Option<Bytes>> {
        self.read(move |connection, moving| {
            let id = facts::scope_id(connection, &scope)?;
            let found = match id {
                Some(id) => facts::value(connection, id, kind, key)?,
                None => None,
            };
            match found {
                None if moving.has(connection)? => legacy::value_at(connection, &scope, kind, key),
                found => Ok(found),
            }
        })
    }

    fn size(&self, scope: Scope, kind: RecordKind) -> StoreFuture<'_, u64> {
        self.read(move |connection, moving| {
            let mut size = 0;
            if let Some(id) = facts::scope_id(connection, &scope)? {
                size += facts::size(connection, id, kind)?;
            }
            if moving.has(connection)? {
                size += legacy::size(connection, &scope, kind)?;
            }
            Ok(size)
        })
    }

    fn signed(&self, tenant: TenantId, signs: Vec<u128>) -> StoreFuture<'_, Option<SessionId>> {
        self.read(move |connection, moving| {
            let is_moving = moving.has(connection)?;
            for sign in signs {
                let mut session = facts::signed(connection, &tenant, sign)?;
                if session.is_none() && is_moving {
                    session = legacy::signed(connection, &tenant, sign)?;
                }
                if session.is_some() {
                    return Ok(session);
                }
            }
            Ok(None)
        })
    }

    fn holder(&self, kind: RecordKind, key: u128) -> StoreFuture<'_, Option<Scope>> {
        self.read(move |connection, moving| match facts::holder(connection, kind, key)? {
            None if moving.has(connection)? => legacy::holder(connection, kind, key),
            found => Ok(found),
        })
    }

    fn scan(&self, scope: Scope, newest: usize) -> StoreFuture<'_, Vec<Record>> {
        self.read(move |connection, moving| {
            let most = i64::try_from(newest).unwrap_or(i64::MAX);
            let mut found = match facts::scope_id(connection, &scope)? {
                Some(id) => facts::scan(connection, id, most)?,
                None => Vec::new(),
            };
            if moving.has(connection)? {
                found.extend(legacy::scan(connection, &scope, most)?);
            }
            found.sort_unstable_by_key(|(id, record)| (record.at, *id));
            let mut records: Vec<Record> = found.into_iter().map(|(_, record)| record).collect();
            // Facts that are being moved were taken from both places, each with its newest.
            let others = records.iter().filter(|record| !record.kind.is_decision()).count();
            let mut old = others.saturating_sub(newest);
            records.retain(|record| {
                let is_old = !record.kind.is_decision() && old > 0;
                old -= usize::from(is_old);
                !is_old
            });
            Ok(records)
        })
    }

    fn scopes(&self, page: ScopePage) -> StoreFuture<'_, Vec<ScopeLine>> {
        self.read(move |connection, _| facts::scopes(connection, page))
    }

    fn scopes_named(&self, session: SessionId) -> StoreFuture<'_, Vec<Scope>> {
        self.read(move |connection, moving| {
            let mut found = facts::named(connection, &session)?;
            if moving.has(connection)? {
                found.extend(legacy::named(connection, &session)?);
            }
            found.sort();
            found.dedup();
            Ok(found)
        })
    }

    fn drop_scope(&self, scope: Scope) -> StoreFuture<'_, u64> {
        self.file.writer.ask(|answer| WriterJob::Drop { scope, answer })
    }

    fn expire(&self, before: Millis, max_bytes: u64) -> StoreFuture<'_, SweepStep> {
        let rule = RetentionRule { before, max_bytes };
        self.file.writer.ask(|answer| WriterJob::Expire { rule, answer })
    }

    fn ready(&self) -> StoreFuture<'_, ()> {
        // A write that changes nothing: the disk and the queue both have to answer. While the last write
        // had no room, it changes a little.
        let scope = Scope { tenant: TenantId::default(), session: SessionId::default() };
        Box::pin(async move { self.put_if_absent(scope, Vec::new()).await.map(drop) })
    }

    fn tenant_key(&self) -> StoreFuture<'_, [u8; 32]> {
        self.read(|connection, _| {
            let query = "SELECT value FROM secrets WHERE name = 'tenant_key'";
            connection.query_row(query, [], |row| row.get(0))
        })
    }
}

/// Makes the folder of a store where it is missing.
pub(super) fn make_folder(path: &Path) -> Result<(), StoreError> {
    let Some(folder) = path.parent() else { return Ok(()) };
    folder::make(folder)
        .map_err(|error| unusable(path, &format!("its folder cannot be created: {error}")))
}

fn connect(path: &Path) -> Result<Connection, StoreError> {
    let open = || -> rusqlite::Result<Connection> {
        #[cfg_attr(not(test), expect(unused_mut, reason = "tests count its steps"))]
        let mut connection = Connection::open(path)?;
        connection.busy_timeout(BUSY)?;
        connection.set_prepared_statement_cache_capacity(STATEMENTS);
        // Before the first table: a file without it can never shrink.
        connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "NORMAL")?;
        // There may be no folder for temporary files, and none is needed: nothing is sorted.
        connection.pragma_update(None, "temp_store", "MEMORY")?;
        connection.pragma_update(None, "journal_size_limit", LOG_KEPT)?;
        #[cfg(test)]
        scale::count_steps(&mut connection, path)?;
        Ok(connection)
    };
    open().map_err(|error| trouble_with(path, &error))
}

/// Looks at a file's first bytes before SQLite does, which would throw away what stands beside one that
/// it does not know.
fn is_database(path: &Path) -> Result<(), StoreError> {
    const MAGIC: &[u8] = b"SQLite format 3\0";
    let mut first = Vec::new();
    let read = std::fs::File::open(path)
        .and_then(|file| file.take(MAGIC.len() as u64).read_to_end(&mut first));
    // A file that is not there, or empty, becomes one; one that cannot be read is told by SQLite.
    if read.is_err() || first.is_empty() || first == MAGIC {
        return Ok(());
    }
    let damaged = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_NOTADB);
    Err(trouble_with(path, &rusqlite::Error::SqliteFailure(damaged, None)))
}

/// The file that SQLite keeps beside another, by the end of its name.
fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}

/// Statements that a connection keeps prepared.
const STATEMENTS: usize = 64;
/// Bytes of the log that stay when it begins anew.
const LOG_KEPT: i64 = 8 << 20;

/// What the writing connection alone needs: memory for the pages that new turns go to, and no
/// checkpoint while somebody waits for a commit: the writer has its own time for that, and its own
/// measure.
fn tune(writer: &Connection) -> rusqlite::Result<()> {
    writer.pragma_update(None, "cache_size", -8192)?;
    // What is forgotten is overwritten: words may have been among it.
    writer.pragma_update(None, "secure_delete", "ON")?;
    writer.pragma_update(None, "wal_autocheckpoint", 0)
}

/// What is wrong with the file, and what to do.
fn because(error: &rusqlite::Error) -> String {
    use rusqlite::ErrorCode as Code;
    match error.sqlite_error_code() {
        Some(Code::NotADatabase | Code::DatabaseCorrupt) => {
            format!(
                "it is not a database, or it is damaged ({error}); move it away to start with a new one"
            )
        }
        Some(Code::CannotOpen | Code::ReadOnly | Code::PermissionDenied) => {
            format!("it cannot be written ({error}); check the owner and the mode of its folder")
        }
        Some(Code::DatabaseBusy | Code::DatabaseLocked) => {
            format!("another program has locked it ({error}); end that program")
        }
        Some(Code::DiskFull) => format!("the disk is full ({error}); make room"),
        Some(Code::OperationInterrupted) => {
            "the query took too long and was aborted; ask for less, or again".to_owned()
        }
        _ => error.to_string(),
    }
}

/// Why a file cannot be used.
fn trouble_with(path: &Path, error: &rusqlite::Error) -> StoreError {
    use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
    match (error.sqlite_error_code(), unusable(path, &because(error))) {
        (Some(NotADatabase | DatabaseCorrupt), StoreError::Unusable(what)) => {
            StoreError::Damaged(what)
        }
        (_, trouble) => trouble,
    }
}

fn unusable(path: &Path, reason: &str) -> StoreError {
    let path = path.display();
    StoreError::Unusable(format!(
        "the store {path} cannot be used: {reason}, or choose another folder with --data"
    ))
}

fn failed(error: rusqlite::Error) -> StoreError {
    match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::DiskFull) => StoreError::Full(because(&error)),
        _ => StoreError::Failed(because(&error)),
    }
}

/// Tenant and session, the first two columns of a row.
fn scope_in(row: &Row<'_>) -> rusqlite::Result<Scope> {
    let text = |column| row.get::<_, String>(column);
    Ok(Scope { tenant: text(0)?.into(), session: text(1)?.into() })
}

fn bytes_in(row: &Row<'_>, index: usize) -> rusqlite::Result<Bytes> {
    Ok(match row.get_ref(index)? {
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Bytes::copy_from_slice(bytes),
        _ => Bytes::new(),
    })
}

fn blob(key: u128) -> [u8; 16] {
    key.to_be_bytes()
}

#[cfg(test)]
mod bounds;
#[cfg(test)]
mod scale;
#[cfg(test)]
pub(super) mod tests;
