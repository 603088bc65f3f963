//! Drafts as rows, and whether another process uses the file.
//!
//! They have a table of their own, which is small because it only holds exchanges in flight. Everything here
//! runs in a transaction of the writer. A draft is found by its turn's key alone, without a row for its
//! session: a session with only its first exchange in flight is in no list.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, params};

use super::columns::{blob, bytes_in, scope_in};
use super::{facts, tombstones};
use crate::store::claims;
use crate::store::drafts::Draft;
use crate::store::{Record, RecordKind, Scope, WriteOutcome};

/// How long a starting process waits for another starting one.
const STARTING: Duration = Duration::from_secs(5);
/// How often it checks.
const LOOK: Duration = Duration::from_millis(10);

/// The lock on the data folder that all processes on it share while they run. The system releases it however
/// a process ends: if a process gets it exclusively, all others have ended. It is on the folder itself.
pub(super) struct FolderLock {
    _folder: Option<File>,
}

impl FolderLock {
    /// Takes the lock on the folder of `path`. If no other process has it, `alone` runs before others may
    /// take it. Without such locks in the file system, other processes are assumed to be there: leases decide
    /// which are dead.
    pub(super) fn take(path: &Path, alone: impl FnOnce()) -> Self {
        let Some(folder) = path.parent().and_then(|folder| File::open(folder).ok()) else {
            return Self { _folder: None };
        };
        if folder.try_lock().is_ok() {
            alone();
            drop(folder.unlock());
        }
        let mut waited = Duration::ZERO;
        while matches!(folder.try_lock_shared(), Err(TryLockError::WouldBlock)) && waited < STARTING
        {
            std::thread::sleep(LOOK);
            waited += LOOK;
        }
        Self { _folder: Some(folder) }
    }
}

/// Writes drafts of an instance, and removes those of ended exchanges. It is the instance's heartbeat. An
/// exchange may end while its draft is being written: if its turn is already stored, no draft is written.
pub(super) fn put(
    connection: &Connection,
    instance: u64,
    drafts: &[Draft],
    ended: &[u128],
) -> rusqlite::Result<()> {
    let mut keep = connection.prepare_cached(
        "INSERT INTO drafts (key, instance, tenant, session, at, value)
         SELECT ?1, ?2, ?3, ?4, ?5, ?6 WHERE NOT EXISTS (
             SELECT 1 FROM tenants
             JOIN scopes ON scopes.tenant = tenants.id AND scopes.session = ?4
             JOIN facts ON facts.scope = scopes.id AND facts.kind = ?7 AND facts.key = ?1
             WHERE tenants.name = ?3)
         ON CONFLICT (key) DO UPDATE SET instance = excluded.instance, value = excluded.value",
    )?;
    for Draft { scope, record, since } in drafts {
        if tombstones::is_deleted(connection, scope, *since)? {
            continue;
        }
        keep.execute(params![
            blob(record.key),
            instance.cast_signed(),
            scope.tenant.as_str(),
            scope.session.as_str(),
            i64::try_from(record.at).unwrap_or(i64::MAX),
            facts::KeptValue::Plain(&record.value),
            facts::code(record.kind),
        ])?;
    }
    ended.iter().try_for_each(|key| facts::remove_draft(connection, *key))?;
    let mut beat = connection.prepare_cached(
        "INSERT INTO instances VALUES (?1, 1) ON CONFLICT (id) DO UPDATE SET beat = beat + 1",
    )?;
    beat.execute([instance.cast_signed()])?;
    Ok(())
}

/// Removes the drafts of a session.
pub(super) fn drop_scope(connection: &Connection, scope: &Scope) -> rusqlite::Result<()> {
    let mut delete =
        connection.prepare_cached("DELETE FROM drafts WHERE tenant = ?1 AND session = ?2")?;
    delete.execute(params![scope.tenant.as_str(), scope.session.as_str()]).map(drop)
}

/// The instances that may have drafts, each with its heartbeat.
pub(super) fn beats(connection: &Connection) -> rusqlite::Result<Vec<(u64, u64)>> {
    let mut query = connection.prepare_cached("SELECT id, beat FROM instances")?;
    let rows = query.query_map([], |row| {
        Ok((row.get::<_, i64>(0)?.cast_unsigned(), row.get::<_, i64>(1)?.cast_unsigned()))
    })?;
    rows.collect()
}

/// Makes turns from an instance's drafts, and removes the instance; returns the scopes.
pub(super) fn adopt(
    connection: &Connection,
    instance: u64,
) -> rusqlite::Result<Vec<Scope>> {
    let drafts = {
        let mut query = connection.prepare_cached(
            "SELECT tenant, session, key, at, value FROM drafts WHERE instance = ?1",
        )?;
        let rows = query.query_map([instance.cast_signed()], |row| {
            let key = u128::from_be_bytes(row.get(2)?);
            let (at, value) = (row.get(3)?, bytes_in(row, 4)?);
            let record = Record { kind: RecordKind::Turn, key, value, at };
            Ok((scope_in(row)?, record))
        })?;
        rows.collect::<rusqlite::Result<Vec<_>>>()?
    };
    let mut made = Vec::new();
    for (scope, record) in drafts {
        // Removes the draft, whether the turn is written now or existed.
        let puts = facts::put(connection, &scope, &[record])?;
        if puts.contains(&WriteOutcome::Written) {
            made.push(scope);
        }
    }
    let mut forget = connection.prepare_cached("DELETE FROM instances WHERE id = ?1")?;
    forget.execute([instance.cast_signed()])?;
    Ok(made)
}

/// Makes turns from all drafts, and drops all claims, because no other process uses the file.
pub(super) fn adopt_all(connection: &Connection) -> rusqlite::Result<Vec<Scope>> {
    let mut claims = connection.prepare_cached("SELECT id FROM scopes WHERE session = ?1")?;
    let claims = claims
        .query_map([claims::SESSION], |row| row.get(0))?
        .collect::<rusqlite::Result<Vec<i64>>>()?;
    for id in claims {
        tombstones::doom(connection, id, false)?;
    }
    let mut made = Vec::new();
    for (instance, _) in beats(connection)? {
        made.extend(adopt(connection, instance)?);
    }
    Ok(made)
}
