//! The embedded store: one SQLite file, which can also be queried with `sqlite3`.
//!
//! One thread writes, in groups: all waiting jobs go into one transaction, and are answered when it is
//! committed. Turns are appended to a file beside it first, and move in together ([`journal`]). Write-ahead log
//! with `synchronous = NORMAL`: a committed turn survives `kill -9`; a power failure can lose the last moments,
//! but not the file. Traffic, the admin API and checkpoints have connections of their own. Only the data folder
//! is written to.

mod columns;
mod connection;
mod drafts;
mod errors;
mod facts;
mod journal;
mod queue;
mod readers;
mod retention;
mod schema;
mod upkeep;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rusqlite::{Connection, OpenFlags, OptionalExtension as _};
use tokio::sync::oneshot;

use super::drafts::Draft;
use super::precondition::Precondition;
use super::{
    Record, RecordKind, Scope, ScopeLine, ScopePage, Store, StoreError, StoreFuture, SweepStep,
    WriteOutcome, folder,
};
use crate::context::{Millis, SessionId, TenantId};
use connection::{BUSY, beside, connect, is_database, tune};
use errors::{because, failed, trouble_with, unusable};
use journal::{AppendOutcome, JoinedWrite, Journal, JournalEntry};
pub(crate) use queue::QUEUE_BYTES;
use queue::{QueuedWrite, WriterJob};
use readers::{ReaderGate, ReaderLimits, Readers};
use retention::RetentionRule;
use upkeep::LOCKED;
use writer::Writer;

/// Readers for traffic: sessions and fingerprints, which take little time.
const TRAFFIC: ReaderLimits = ReaderLimits { name: "store-traffic", threads: 2, limit: None };
/// Readers for the admin API. A query keeps deleted data in the log while it runs, so its time is limited.
const ADMIN: ReaderLimits =
    ReaderLimits { name: "store-lookers", threads: 2, limit: Some(Duration::from_secs(2)) };

/// How long a query of the admin API waits for what is not in the database yet.
const MOVE: Duration = Duration::from_secs(1);

/// How long a backup waits for a server to move its journal into the database.
const BACKUP_WAIT: Duration = Duration::from_secs(2);

/// Records in a file. Clones share it.
#[derive(Clone)]
pub struct SqliteStore {
    file: Arc<Database>,
    side: StoreCaller,
}

/// Whose queries these are.
#[derive(Clone, Copy)]
enum StoreCaller {
    Traffic,
    Admin,
}

struct Database {
    writer: Writer,
    traffic: Readers,
    admin: Readers,
    path: PathBuf,
}

/// The load of a store, and its size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoreLoad {
    /// Writes that wait.
    pub writes: usize,
    /// Bytes of the waiting writes.
    pub write_bytes: usize,
    /// Queries of traffic that wait.
    pub traffic: usize,
    /// Queries of the admin API that wait.
    pub admin: usize,
    /// How often the writer thread was restarted after a panic.
    pub restarts: usize,
    /// Bytes on disk: the file and its log.
    pub bytes: u64,
}

impl SqliteStore {
    /// Opens the store at `path`; makes it and its folder if they are missing. A store of another layout is refused and
    /// left unchanged.
    ///
    /// # Errors
    /// [`StoreError::Unusable`], saying what is wrong with the file and what to do.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        make_folder(path)?;
        // Before any setting of the file changes, so that one that is refused stays as it is. Open until
        // the store has its own connection: the last one to close merges the log, which takes time.
        let checked = if path.exists() { Some(open_checked(path)?) } else { None };
        // SQLite would make the file with the umask's mode, and its additional files with the same. If it
        // cannot be opened, SQLite reports why.
        let _ = folder::append(path);
        let mut connection = connect(path)?;
        // Before the tables change, so that freed pages are overwritten, too.
        tune(&connection).map_err(|error| trouble_with(path, &error))?;
        schema::prepare(&mut connection, path)?;
        drop(checked);
        connection.busy_timeout(LOCKED).map_err(|error| trouble_with(path, &error))?;
        let make_way = Arc::<ReaderGate>::default();
        let checkpointing = connect(path)?;
        let applied = journal::applied(&connection).map_err(|error| trouble_with(path, &error))?;
        let journal = Journal::open(path, applied)?;
        let writer = Writer::start(path, connection, checkpointing, make_way.clone(), journal);
        let traffic = Readers::start(path, TRAFFIC, Arc::default())?;
        let admin = Readers::start(path, ADMIN, make_way)?;
        let file = Database { writer, traffic, admin, path: path.into() };
        Ok(Self { file: Arc::new(file), side: StoreCaller::Traffic })
    }

    /// The same store with other readers: their queries never block those of traffic, and are ended if they
    /// take too long.
    pub fn for_admin(&self) -> Self {
        Self { side: StoreCaller::Admin, ..self.clone() }
    }

    pub(super) fn path(&self) -> &Path {
        &self.file.path
    }

    /// Stores the fingerprint of the secret that hashes are keyed with; returns whether there was another one
    /// before.
    pub(super) fn keyed_with(&self, fingerprint: &[u8; 32]) -> Result<bool, StoreError> {
        let connection = connect(self.path())?;
        replace_key_fingerprint(&connection, fingerprint).map_err(failed)
    }

    /// Answers waiting jobs, then merges everything into one file.
    ///
    /// # Errors
    /// If the log could not be merged: both files remain, and are read together.
    pub async fn close(&self) -> Result<(), StoreError> {
        let mut threads = self.file.traffic.close();
        threads.extend(self.file.admin.close());
        // In a thread of its own: neither the runtime nor the process's end may wait for a read that hangs.
        let (joined, ended) = oneshot::channel();
        let joining = std::thread::Builder::new().name("store-close".into()).spawn(move || {
            for thread in threads {
                // A reader that panicked has nothing left to answer.
                drop(thread.join());
            }
            let _ = joined.send(());
        });
        drop(joining);
        drop(ended.await);
        self.file.writer.submit(|answer| WriterJob::Close { answer }).await
    }

    pub(super) fn load(&self) -> StoreLoad {
        let Database { writer, traffic, admin, path, .. } = &*self.file;
        StoreLoad {
            writes: writer.waiting(),
            write_bytes: writer.waiting_bytes() + writer.journal.bytes(),
            traffic: traffic.waiting(),
            admin: admin.waiting(),
            restarts: writer.restarts(),
            bytes: bytes_on_disk(path),
        }
    }

    /// Runs a query on a reading connection, in one snapshot.
    fn read_after<T: Send + 'static>(
        &self,
        is_awaited: bool,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> StoreFuture<'_, T> {
        // If the journal `is_awaited`, because it may have what the query looks for, it is moved into the
        // database first.
        let readers = match self.side {
            StoreCaller::Traffic => &self.file.traffic,
            StoreCaller::Admin => &self.file.admin,
        };
        let query = |connection: &Connection| {
            let look = connection.unchecked_transaction()?;
            query(&look)
        };
        if !is_awaited {
            return readers.query(query);
        }
        let moved = self.file.writer.submit(|answer| WriterJob::Move { answer });
        Box::pin(async move {
            // If it cannot be moved, the query sees what the database has. Traffic has limits of its own.
            match self.side {
                StoreCaller::Traffic => drop(moved.await),
                StoreCaller::Admin => drop(tokio::time::timeout(MOVE, moved).await),
            }
            readers.query(query).await
        })
    }

    /// Runs a query about a scope; the default if it has no records.
    fn read_scope<T: Default + Send + 'static>(
        &self,
        scope: Scope,
        query: impl FnOnce(&Connection, i64) -> rusqlite::Result<T> + Send + 'static,
    ) -> StoreFuture<'_, T> {
        let is_awaited = self.file.writer.journal.holds(|entry| entry.scope == scope);
        self.read_after(is_awaited, move |connection| match facts::scope_id(connection, &scope)? {
            Some(id) => query(connection, id),
            None => Ok(T::default()),
        })
    }

    /// Runs a query about all scopes.
    fn read<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> StoreFuture<'_, T> {
        self.read_after(self.file.writer.journal.holds(|_| true), query)
    }
}

fn replace_key_fingerprint(
    connection: &Connection,
    fingerprint: &[u8; 32],
) -> rusqlite::Result<bool> {
    const NAME: &str = "keyed_with";
    let query = "SELECT value FROM secrets WHERE name = ?1";
    let stored: Option<[u8; 32]> =
        connection.query_row(query, [NAME], |row| row.get(0)).optional()?;
    if stored == Some(*fingerprint) {
        return Ok(false);
    }
    let replace = "INSERT OR REPLACE INTO secrets VALUES (?1, ?2)";
    connection.execute(replace, rusqlite::params![NAME, fingerprint])?;
    Ok(stored.is_some())
}

fn bytes_on_disk(path: &Path) -> u64 {
    // A missing file has none: there is no log after a clean stop.
    let paths = [path.to_owned(), beside(path, "-wal")];
    paths.iter().map(|path| std::fs::metadata(path).map_or(0, |file| file.len())).sum()
}

/// Copies the store at `path` into a new file, from one snapshot; its users do not wait. Returns the size of
/// the copy, bytes.
///
/// # Errors
/// [`StoreError::Unusable`], saying whose fault it is.
pub(crate) fn backup(path: &Path, copy: &Path) -> Result<u64, StoreError> {
    use std::os::unix::fs::OpenOptionsExt as _;
    examine(path)?;
    journal::wait_until_moved(path, BACKUP_WAIT);
    // Only its owner may read it, like the store; an existing file is not overwritten.
    let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(copy);
    let file = file.map_err(|error| not_writable(copy, &error))?;
    if let Err(error) = vacuum_into(path, copy) {
        // A part of a copy must not be taken for one.
        drop(std::fs::remove_file(copy));
        return Err(StoreError::Unusable(format!(
            "{} cannot be copied: {}",
            path.display(),
            because(&error)
        )));
    }
    file.sync_all().map_err(|error| not_writable(copy, &error))?;
    Ok(file.metadata().map_err(|error| not_writable(copy, &error))?.len())
}

fn vacuum_into(path: &Path, copy: &Path) -> rusqlite::Result<()> {
    let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    connection.busy_timeout(BUSY)?;
    // There may be no folder for temporary files.
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    connection.execute("VACUUM INTO ?1", [copy.to_string_lossy()])?;
    Ok(())
}

fn not_writable(path: &Path, error: &std::io::Error) -> StoreError {
    StoreError::Unusable(format!("{} cannot be written: {error}", path.display()))
}

/// Checks whether this version can use a store, without changing it. Returns its size, bytes.
///
/// # Errors
/// [`StoreError::Unusable`] or [`StoreError::Damaged`], saying what is wrong with the file and what to do.
pub(crate) fn examine(path: &Path) -> Result<u64, StoreError> {
    open_checked(path)?;
    Ok(bytes_on_disk(path))
}

fn open_checked(path: &Path) -> Result<Connection, StoreError> {
    is_database(path)?;
    let connection = open_existing(path).map_err(|error| trouble_with(path, &error))?;
    schema::check(&connection, path)?;
    Ok(connection)
}

fn open_existing(path: &Path) -> rusqlite::Result<Connection> {
    // Without the flag to create it, a missing file stays missing.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY)?;
    Ok(connection)
}

impl Store for SqliteStore {
    fn put(
        &self,
        scope: Scope,
        mut records: Vec<Record>,
        only_if: Precondition,
    ) -> StoreFuture<'_, Vec<WriteOutcome>> {
        // The queue's limit counts values, so nothing else may wait in it.
        for record in &mut records {
            record.turn = None;
        }
        self.file.writer.write(|answer| QueuedWrite::Put { scope, records, only_if, answer })
    }

    fn append(
        &self,
        scope: Scope,
        records: Vec<Record>,
        only_if: Precondition,
    ) -> StoreFuture<'_, ()> {
        let entry = JournalEntry { scope, records };
        Box::pin(async move {
            let refused = match self.file.writer.journal.join(entry, only_if.since) {
                Err(refused) => refused,
                Ok(JoinedWrite { is_first, outcome }) => {
                    if is_first {
                        // Off the async threads, because the disk may hang; at most one such thread does.
                        let file = self.file.clone();
                        drop(tokio::task::spawn_blocking(move || file.writer.write_joining()));
                    }
                    match outcome.await.map_err(|_| StoreError::Closed)? {
                        AppendOutcome::Appended => return Ok(()),
                        AppendOutcome::Deleted => return Err(StoreError::Deleted),
                        AppendOutcome::Refused(refused) => refused,
                    }
                }
            };
            let JournalEntry { scope, records } = refused;
            self.put(scope, records, only_if).await.map(drop)
        })
    }

    fn put_drafts(
        &self,
        instance: u64,
        drafts: Vec<Draft>,
        ended: Vec<u128>,
    ) -> StoreFuture<'_, ()> {
        self.file.writer.write(|answer| QueuedWrite::Draft { instance, drafts, ended, answer })
    }

    fn adopt_drafts(&self, instance: u64) -> StoreFuture<'_, Vec<Scope>> {
        self.file.writer.submit(|answer| WriterJob::Adopt { instance, answer })
    }

    fn is_shared(&self) -> bool {
        false
    }

    fn get(&self, scope: Scope, kind: RecordKind, key: u128) -> StoreFuture<'_, Option<Bytes>> {
        self.read_scope(scope, move |connection, id| facts::value(connection, id, kind, key))
    }

    fn size(&self, scope: Scope, kind: RecordKind) -> StoreFuture<'_, u64> {
        self.read_scope(scope, move |connection, id| facts::size(connection, id, kind))
    }

    fn session_by_fingerprint(
        &self,
        tenant: TenantId,
        fingerprints: Vec<u128>,
    ) -> StoreFuture<'_, Option<SessionId>> {
        let is_waiting = self.file.writer.journal.holds(|entry| {
            entry.scope.tenant == tenant && fingerprints.iter().any(|key| entry.shows(*key))
        });
        self.read_after(is_waiting, move |connection| {
            for fingerprint in fingerprints {
                let session = facts::session_by_fingerprint(connection, &tenant, fingerprint)?;
                if session.is_some() {
                    return Ok(session);
                }
            }
            Ok(None)
        })
    }

    fn holder(&self, kind: RecordKind, key: u128) -> StoreFuture<'_, Option<Scope>> {
        self.read(move |connection| facts::holder(connection, kind, key))
    }

    fn scan(&self, scope: Scope, newest: usize) -> StoreFuture<'_, Vec<Record>> {
        self.read_scope(scope, move |connection, id| facts::scan(connection, id, newest))
    }

    fn scopes(&self, page: ScopePage) -> StoreFuture<'_, Vec<ScopeLine>> {
        self.read(move |connection| facts::scopes(connection, page))
    }

    fn scopes_named(&self, session: SessionId) -> StoreFuture<'_, Vec<Scope>> {
        self.read(move |connection| facts::named(connection, &session))
    }

    fn drop_scope(&self, scope: Scope) -> StoreFuture<'_, u64> {
        self.file.writer.write(|answer| QueuedWrite::Drop { scope, answer })
    }

    fn expire(&self, before: Millis, max_bytes: u64) -> StoreFuture<'_, SweepStep> {
        let rule = RetentionRule { before, max_bytes };
        self.file.writer.submit(|answer| WriterJob::Expire { rule, answer })
    }

    fn ready(&self) -> StoreFuture<'_, ()> {
        // A write that changes nothing: it needs both the disk and the queue. If the last write found the
        // disk full, it changes a little.
        let scope = Scope { tenant: TenantId::default(), session: SessionId::default() };
        Box::pin(async move { self.put_if_absent(scope, Vec::new()).await.map(drop) })
    }

    fn tenant_key(&self) -> StoreFuture<'_, [u8; 32]> {
        self.read_after(false, |connection| {
            let query = "SELECT value FROM secrets WHERE name = 'tenant_key'";
            connection.query_row(query, [], |row| row.get(0))
        })
    }
}

pub(super) fn make_folder(path: &Path) -> Result<(), StoreError> {
    let Some(folder) = path.parent() else { return Ok(()) };
    folder::make(folder)
        .map_err(|error| unusable(path, &format!("its folder cannot be created: {error}")))
}

#[cfg(test)]
pub(super) mod tests;
