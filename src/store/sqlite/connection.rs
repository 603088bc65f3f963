//! A connection to the file, with the settings that all connections have, and those of the one that writes.
//!
//! Knows nothing of tables.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::Connection;
use rusqlite::config::DbConfig;

use super::errors::trouble_with;
use crate::store::StoreError;

/// How long a connection waits for another process; once open, the writer waits for [`super::upkeep::LOCKED`].
pub(super) const BUSY: Duration = Duration::from_secs(5);
/// Prepared statements per connection.
const STATEMENTS: usize = 64;
/// Bytes of the log file that are kept when it restarts.
const LOG_KEPT: i64 = 8 << 20;

pub(super) fn connect(path: &Path) -> Result<Connection, StoreError> {
    open(path).map_err(|error| trouble_with(path, &error))
}

fn open(path: &Path) -> rusqlite::Result<Connection> {
    #[cfg_attr(not(test), expect(unused_mut, reason = "tests count its steps"))]
    let mut connection = Connection::open(path)?;
    connection.busy_timeout(BUSY)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    // Plans do not depend on bound values: otherwise SQLite plans most statements anew each time they run.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    // Must be set before the first table: otherwise the file can never shrink.
    connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
    // A reader then never waits for the writer.
    connection.pragma_update(None, "journal_mode", "WAL")?;
    // The log is not flushed with each commit: `kill -9` loses nothing, a power failure the last moments.
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    // There may be no folder for temporary files, and none is needed: nothing is sorted.
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    connection.pragma_update(None, "journal_size_limit", LOG_KEPT)?;
    #[cfg(test)]
    super::tests::scale::count_steps(&mut connection, path)?;
    Ok(connection)
}

pub(super) fn tune(writer: &Connection) -> rusqlite::Result<()> {
    // Memory for the pages of new turns; and no automatic checkpoints, because a commit would wait
    // for them: the writer schedules them itself.
    writer.pragma_update(None, "cache_size", -8192)?;
    // Deleted data is overwritten, because it may contain text.
    writer.pragma_update(None, "secure_delete", "ON")?;
    writer.pragma_update(None, "wal_autocheckpoint", 0)
}

pub(super) fn is_database(path: &Path) -> Result<(), StoreError> {
    // SQLite would delete the log beside a file that it does not know.
    const MAGIC: &[u8] = b"SQLite format 3\0";
    let mut beginning = Vec::new();
    let read = std::fs::File::open(path)
        .and_then(|file| file.take(MAGIC.len() as u64).read_to_end(&mut beginning));
    // A missing or empty file becomes a database; an unreadable one is reported by SQLite.
    if read.is_err() || beginning.is_empty() || beginning == MAGIC {
        return Ok(());
    }
    let damaged = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_NOTADB);
    Err(trouble_with(path, &rusqlite::Error::SqliteFailure(damaged, None)))
}

pub(super) fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::conformance;
    use crate::store::sqlite::SqliteStore;

    #[test]
    fn writer_connection_is_tuned() {
        let folder = conformance::folder();
        let connection = connect(&folder.path().join("p.db")).unwrap();
        tune(&connection).unwrap();
        let set = |name: &str| {
            connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0)).unwrap()
        };
        assert_eq!(set("cache_size"), -8192, "KiB; a positive number would be pages");
        assert_eq!(set("secure_delete"), 1);
        assert_eq!(set("wal_autocheckpoint"), 0);
    }

    /// Planning a statement costs more than running it.
    #[test]
    fn statement_is_planned_once() {
        let folder = conformance::folder();
        let path = folder.path().join("p.db");
        drop(SqliteStore::open(&path).unwrap());
        let connection = connect(&path).unwrap();
        let mut query = connection
            .prepare("SELECT count(*) FROM scopes JOIN tenants ON tenants.id = scopes.tenant WHERE tenants.name = ?1")
            .unwrap();
        for name in ["one", "two", "three"] {
            query.query_row([name], |row| row.get::<_, i64>(0)).unwrap();
        }
        assert_eq!(query.get_status(rusqlite::StatementStatus::RePrepare), 0);
    }

    #[test]
    fn empty_file_becomes_store() {
        let folder = conformance::folder();
        let path = folder.path().join("p.db");
        std::fs::write(&path, "").unwrap();
        drop(SqliteStore::open(&path).unwrap());
        assert!(std::fs::read(&path).unwrap().starts_with(b"SQLite format 3"));
        let in_the_way = folder.path().join("folder.db");
        std::fs::create_dir(&in_the_way).unwrap();
        let trouble = SqliteStore::open(&in_the_way).err().unwrap().to_string();
        assert!(trouble.contains("cannot be written"), "{trouble}");
    }
}
