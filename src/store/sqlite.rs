//! The embedded store: one SQLite file that anyone can query with `sqlite3`.
//!
//! One thread writes, in groups: whatever is waiting goes into one transaction, and all are answered
//! when it is committed. Write-ahead log with `synchronous = NORMAL`: a committed turn survives
//! `kill -9`; a power cut can take the last moments, never the file. Reads and checkpoints have
//! connections of their own. The queue is bounded; past it writes are refused at once.

/// Which records are decisions ([`RecordKind::is_decision`]), in SQL.
macro_rules! decides {
    () => {
        " kind IN ('cut', 'echo', 'aside', 'summary', 'compact', 'queued', 'said') "
    };
}

mod rekey;
mod schema;
mod writer;

pub use rekey::{Keying, Rekeying};

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, OptionalExtension, Row, ToSql, params};

use super::folder;
use super::{Answer, Put, Record, RecordKind, Scope, ScopeLine, Store, Trouble};
use crate::context::Millis;
use writer::{Job, Writer};

/// Facts in a file.
pub struct Sqlite {
    writer: Writer,
    reader: Arc<Mutex<Connection>>,
    path: PathBuf,
}

impl Sqlite {
    /// Opens the store at `path`, making it and its folder where they are missing. An older version
    /// of it is brought up to date in place; a newer one is refused and left as it is.
    ///
    /// # Errors
    /// [`Trouble::Unusable`], saying what is wrong with the file and what to do.
    pub fn open(path: &Path) -> Result<Self, Trouble> {
        if let Some(folder) = path.parent() {
            folder::make(folder)
                .map_err(|error| unusable(path, &format!("its folder cannot be made: {error}")))?;
        }
        // SQLite would make it as the umask has it, and gives the files beside it the same mode.
        // Where it cannot be opened, SQLite says why.
        let _ = folder::append(path);
        let mut connection = connect(path)?;
        schema::prepare(&mut connection, path)?;
        tune(&connection).map_err(|error| unusable(path, &because(&error)))?;
        let reader = connect(path)?;
        let writer = Writer::start(connection, connect(path)?);
        Ok(Self { writer, reader: Arc::new(Mutex::new(reader)), path: path.into() })
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs a query on the reading connection, off the async threads.
    fn read<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Answer<'_, T> {
        let reader = self.reader.clone();
        Box::pin(async move {
            let query = move || query(&reader.lock().unwrap_or_else(PoisonError::into_inner));
            let answer = tokio::task::spawn_blocking(query).await;
            answer.map_err(|error| Trouble::Failed(error.to_string()))?.map_err(failed)
        })
    }
}

impl Store for Sqlite {
    fn put_if_absent(&self, scope: Scope, records: Vec<Record>) -> Answer<'_, Vec<Put>> {
        self.writer.ask(|answer| Job::Put { scope, records, answer })
    }

    fn get(&self, scope: Scope, kind: RecordKind, key: u128) -> Answer<'_, Option<Bytes>> {
        self.read(move |connection| value_at(connection, &scope, kind, key))
    }

    fn size(&self, scope: Scope, kind: RecordKind) -> Answer<'_, u64> {
        self.read(move |connection| {
            // The length stands before the value: no value is read.
            let mut query = connection.prepare_cached(
                "SELECT coalesce(sum(octet_length(value)), 0) FROM records
                 WHERE tenant = ?1 AND session = ?2 AND kind = ?3",
            )?;
            query.query_row(params![scope.tenant, scope.session, kind.name()], |row| row.get(0))
        })
    }

    fn signed(&self, tenant: Box<str>, signs: Vec<u128>) -> Answer<'_, Option<Box<str>>> {
        self.read(move |connection| {
            let mut query = connection
                .prepare_cached("SELECT session FROM signs WHERE tenant = ?1 AND key = ?2")?;
            let mut signed = |sign: u128| {
                let session = |row: &Row<'_>| row.get::<_, String>(0).map(Into::into);
                query.query_row(params![tenant, blob(sign)], session).optional()
            };
            signs.into_iter().find_map(|sign| signed(sign).transpose()).transpose()
        })
    }

    fn holder(&self, kind: RecordKind, key: u128) -> Answer<'_, Option<Scope>> {
        self.read(move |connection| {
            // Through the index of all keys, from end to end: no value is read.
            let mut query = connection.prepare_cached(
                "SELECT tenant, session FROM records WHERE kind = ?1 AND key = ?2 LIMIT 1",
            )?;
            query.query_row(params![kind.name(), blob(key)], scope_in).optional()
        })
    }

    fn scan(&self, scope: Scope, newest: usize) -> Answer<'_, Vec<Record>> {
        self.read(move |connection| {
            let mut query = connection.prepare_cached(concat!(
                "SELECT kind, key, value, at FROM (
                         SELECT * FROM (
                             SELECT id, kind, key, value, at FROM records
                             WHERE tenant = ?1 AND session = ?2 AND kind <> 'words' AND NOT ",
                decides!(),
                "        ORDER BY at DESC, id DESC LIMIT ?3)
                         UNION ALL
                         SELECT id, kind, key, value, at FROM records
                         WHERE tenant = ?1 AND session = ?2 AND ",
                decides!(),
                ") ORDER BY at DESC, id DESC"
            ))?;
            let asked =
                params![scope.tenant, scope.session, i64::try_from(newest).unwrap_or(i64::MAX)];
            let rows = query.query_map(asked, record_in)?;
            let records = rows.collect::<rusqlite::Result<Vec<_>>>()?;
            Ok(records.into_iter().rev().flatten().collect())
        })
    }

    fn scopes(&self, skip: usize, count: usize) -> Answer<'_, Vec<ScopeLine>> {
        self.read(move |connection| {
            let mut query = connection.prepare_cached(
                "SELECT tenant, session, max(CASE kind WHEN 'turn' THEN at END) AS newest, count(*)
                 FROM records GROUP BY tenant, session HAVING newest IS NOT NULL
                 ORDER BY newest DESC, tenant, session LIMIT ?1 OFFSET ?2",
            )?;
            let rows = query.query_map(params![count as i64, skip as i64], |row| {
                let scope = scope_in(row)?;
                Ok(ScopeLine { scope, newest: row.get(2)?, records: row.get(3)? })
            })?;
            rows.collect()
        })
    }

    fn drop_scope(&self, scope: Scope) -> Answer<'_, u64> {
        self.writer.ask(|answer| Job::Drop { scope, answer })
    }

    fn expire(&self, before: Millis, max_bytes: u64) -> Answer<'_, u64> {
        self.writer.ask(|answer| Job::Expire { before, max_bytes, answer })
    }

    fn ready(&self) -> Answer<'_, ()> {
        // A write that changes nothing: the disk and the queue both have to answer.
        let scope = Scope { tenant: Box::default(), session: Box::default() };
        Box::pin(async move { self.put_if_absent(scope, Vec::new()).await.map(drop) })
    }

    fn tenant_key(&self) -> Answer<'_, [u8; 32]> {
        self.read(|connection| {
            let query = "SELECT value FROM secrets WHERE name = 'tenant_key'";
            connection.query_row(query, [], |row| row.get(0))
        })
    }
}

fn connect(path: &Path) -> Result<Connection, Trouble> {
    let open = || -> rusqlite::Result<Connection> {
        let connection = Connection::open(path)?;
        connection.busy_timeout(std::time::Duration::from_secs(5))?;
        connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "NORMAL")?;
        Ok(connection)
    };
    open().map_err(|error| unusable(path, &because(&error)))
}

/// What the writing connection alone needs: memory for the pages that new turns go to, and no
/// checkpoint while somebody waits for a commit, unless the one beside it left much. Only here does
/// the log begin anew, because only the writer finds it all in the file: that bounds its length.
fn tune(writer: &Connection) -> rusqlite::Result<()> {
    writer.pragma_update(None, "cache_size", -8192)?;
    // What is forgotten is overwritten: words may have been among it.
    writer.pragma_update(None, "secure_delete", "ON")?;
    writer.pragma_update(None, "wal_autocheckpoint", 8_000)
}

/// What is wrong with the file, and what to do.
fn because(error: &rusqlite::Error) -> String {
    use rusqlite::ErrorCode as Code;
    match error.sqlite_error_code() {
        Some(Code::NotADatabase | Code::DatabaseCorrupt) => {
            format!("it is not a database, or it is damaged ({error}); move it away to begin anew")
        }
        Some(Code::CannotOpen | Code::ReadOnly | Code::PermissionDenied) => {
            format!("it cannot be written ({error}); check the owner and the mode of its folder")
        }
        Some(Code::DatabaseBusy | Code::DatabaseLocked) => {
            format!("another program holds it ({error}); end that program")
        }
        Some(Code::DiskFull) => format!("the disk is full ({error}); make room"),
        _ => error.to_string(),
    }
}

fn unusable(path: &Path, reason: &str) -> Trouble {
    let path = path.display();
    Trouble::Unusable(format!(
        "the store {path} cannot be used: {reason}, or choose another folder with --data"
    ))
}

fn failed(error: rusqlite::Error) -> Trouble {
    Trouble::Failed(because(&error))
}

fn value_at(
    connection: &Connection,
    scope: &Scope,
    kind: RecordKind,
    key: u128,
) -> rusqlite::Result<Option<Bytes>> {
    let mut query = connection.prepare_cached(
        "SELECT value FROM records WHERE tenant = ?1 AND session = ?2 AND kind = ?3 AND key = ?4",
    )?;
    let asked = params![scope.tenant, scope.session, kind.name(), blob(key)];
    query.query_row(asked, |row| bytes_in(row, 0)).optional()
}

/// Tenant and session, the first two columns of a row.
fn scope_in(row: &Row<'_>) -> rusqlite::Result<Scope> {
    let word = |column| row.get::<_, String>(column).map(Into::into);
    Ok(Scope { tenant: word(0)?, session: word(1)? })
}

/// A row as a record; `None` for kinds that a newer version wrote.
fn record_in(row: &Row<'_>) -> rusqlite::Result<Option<Record>> {
    let Some(kind) = RecordKind::named(&row.get::<_, String>(0)?) else { return Ok(None) };
    let key = u128::from_be_bytes(row.get(1)?);
    Ok(Some(Record { kind, key, value: bytes_in(row, 2)?, at: row.get(3)? }))
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

/// Text where it is text, so that the views can read the JSON in it.
struct Content<'a>(&'a [u8]);

impl ToSql for Content<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match std::str::from_utf8(self.0) {
            Ok(_) => ValueRef::Text(self.0),
            Err(_) => ValueRef::Blob(self.0),
        }))
    }
}

#[cfg(test)]
mod tests;
