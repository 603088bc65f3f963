//! Rows in the layout of the file's first version, while they are moved to the current one.
//!
//! A large file is usable at once, so rows are moved afterwards, a few at a time, the newest first, each
//! batch in one transaction. Readers meanwhile look in both layouts, and find each row in one of them.
//! Expired rows are left out; the others are keyed when they are moved ([`RekeyFact`]). This is unused once
//! the old tables are gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::columns::{blob, bytes_in, scope_in};
use crate::context::{SessionId, TenantId};
use crate::store::{Record, RecordKind, Scope};

/// Turns that were not moved yet, in the columns of [`super::views::TURNS`].
pub(super) const TURNS: &str = "
SELECT
    datetime(at / 1000, 'unixepoch'), session,
    value ->> '$.standing.thread', value ->> '$.request', value ->> '$.upstream',
    value ->> '$.model', value ->> '$.purpose', value ->> '$.outcome',
    value ->> '$.estimate.method', value ->> '$.estimate.tokens', value ->> '$.usage.input',
    (value ->> '$.estimate.tokens') - (value ->> '$.usage.input'),
    value ->> '$.usage.output', value ->> '$.usage.reasoning', value ->> '$.usage.cache_read',
    value ->> '$.usage.cache_write', value ->> '$.window', (value ->> '$.ended') - at, tenant, at
FROM old_records WHERE kind = 'turn'";

/// Gives a record its new key and value when it is moved.
pub(in crate::store) type RekeyFact = Box<dyn Fn(Record) -> Record + Send>;

/// Whether there may be rows in the old layout.
pub(super) struct LegacyFacts(Arc<AtomicBool>);

impl LegacyFacts {
    pub(super) fn of(connection: &Connection) -> rusqlite::Result<Self> {
        Ok(Self(Arc::new(AtomicBool::new(is_there(connection)?))))
    }

    /// As last checked; once `false`, it stays so.
    pub(super) fn flag(&self) -> Arc<AtomicBool> {
        self.0.clone()
    }

    /// Whether there are rows in the old layout, as this connection sees it.
    pub(super) fn has(&self, connection: &Connection) -> rusqlite::Result<bool> {
        if !self.0.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let there = is_there(connection)?;
        if !there {
            self.0.store(false, Ordering::Release);
        }
        Ok(there)
    }
}

pub(super) fn is_there(connection: &Connection) -> rusqlite::Result<bool> {
    let mut query =
        connection.prepare_cached("SELECT 1 FROM sqlite_schema WHERE name = 'old_records'")?;
    query.exists([])
}

pub(super) fn value_at(
    connection: &Connection,
    scope: &Scope,
    kind: RecordKind,
    key: u128,
) -> rusqlite::Result<Option<Bytes>> {
    let mut query = connection.prepare_cached(
        "SELECT value FROM old_records
         WHERE tenant = ?1 AND session = ?2 AND kind = ?3 AND key = ?4",
    )?;
    let values = params![scope.tenant.as_str(), scope.session.as_str(), kind.name(), blob(key)];
    query.query_row(values, |row| bytes_in(row, 0)).optional()
}

pub(super) fn size(
    connection: &Connection,
    scope: &Scope,
    kind: RecordKind,
) -> rusqlite::Result<u64> {
    let mut query = connection.prepare_cached(
        "SELECT coalesce(sum(octet_length(value)), 0) FROM old_records
         WHERE tenant = ?1 AND session = ?2 AND kind = ?3",
    )?;
    query.query_row(params![scope.tenant.as_str(), scope.session.as_str(), kind.name()], |row| {
        row.get(0)
    })
}

pub(super) fn session_by_fingerprint(
    connection: &Connection,
    tenant: &TenantId,
    fingerprint: u128,
) -> rusqlite::Result<Option<SessionId>> {
    // A fingerprint of a deleted session remains until it would be moved; it belongs to no session.
    let mut query = connection.prepare_cached(
        "SELECT session FROM old_signs AS sign WHERE tenant = ?1 AND key = ?2 AND (
             EXISTS (SELECT 1 FROM old_records WHERE tenant = ?1 AND session = sign.session)
             OR EXISTS (SELECT 1 FROM scopes JOIN tenants ON tenants.id = scopes.tenant
                        WHERE scopes.session = sign.session AND tenants.name = ?1))",
    )?;
    let session = |row: &Row<'_>| row.get::<_, String>(0).map(Into::into);
    query.query_row(params![tenant.as_str(), blob(fingerprint)], session).optional()
}

pub(super) fn holder(
    connection: &Connection,
    kind: RecordKind,
    key: u128,
) -> rusqlite::Result<Option<Scope>> {
    let mut query = connection.prepare_cached(
        "SELECT tenant, session FROM old_records WHERE kind = ?1 AND key = ?2 LIMIT 1",
    )?;
    query.query_row(params![kind.name(), blob(key)], scope_in).optional()
}

/// Which records are decisions ([`RecordKind::is_decision`]), by their names in the first version.
macro_rules! decides {
    () => {
        " kind IN ('cut', 'echo', 'aside', 'summary', 'compact', 'queued', 'said') "
    };
}

/// The remaining rows of a session, with their ids, which order rows of the same time.
pub(super) fn scan(
    connection: &Connection,
    scope: &Scope,
    newest: i64,
) -> rusqlite::Result<Vec<(i64, Record)>> {
    let mut others = connection.prepare_cached(concat!(
        "SELECT id, kind, key, value, at FROM old_records INDEXED BY records_by_scope
         WHERE tenant = ?1 AND session = ?2 AND kind <> 'words' AND NOT ",
        decides!(),
        "ORDER BY at DESC, id DESC LIMIT ?3"
    ))?;
    let mut decisions = connection.prepare_cached(concat!(
        "SELECT id, kind, key, value, at FROM old_records WHERE tenant = ?1 AND session = ?2 AND ",
        decides!()
    ))?;
    let others = others
        .query_map(params![scope.tenant.as_str(), scope.session.as_str(), newest], |row| {
            record_in(row, 0)
        })?;
    let decisions = decisions
        .query_map(params![scope.tenant.as_str(), scope.session.as_str()], |row| {
            record_in(row, 0)
        })?;
    others.chain(decisions).filter_map(Result::transpose).collect()
}

/// A row as its id and its record; `None` for kinds that this version does not know.
pub(super) fn record_in(row: &Row<'_>, first: usize) -> rusqlite::Result<Option<(i64, Record)>> {
    let Some(kind) = RecordKind::named(&row.get::<_, String>(first + 1)?) else {
        return Ok(None);
    };
    let key = u128::from_be_bytes(row.get(first + 2)?);
    let value = bytes_in(row, first + 3)?;
    Ok(Some((row.get(first)?, Record { kind, key, value, at: row.get(first + 4)? })))
}

/// The scopes of a session id that have rows here.
pub(super) fn named(connection: &Connection, session: &SessionId) -> rusqlite::Result<Vec<Scope>> {
    // Goes from tenant to tenant through the index, because there are few.
    let mut next = connection
        .prepare_cached("SELECT min(tenant) FROM old_records WHERE ?1 IS NULL OR tenant > ?1")?;
    let mut holds = connection.prepare_cached(
        "SELECT 1 FROM old_records WHERE tenant = ?1 AND session = ?2 AND kind <> 'learned' LIMIT 1",
    )?;
    let mut found = Vec::new();
    let mut last: Option<String> = None;
    while let Some(tenant) = next.query_row([&last], |row| row.get::<_, Option<String>>(0))? {
        if holds.exists(params![tenant, session.as_str()])? {
            found.push(Scope { tenant: tenant.as_str().into(), session: session.clone() });
        }
        last = Some(tenant);
    }
    Ok(found)
}

/// Deletes a session; returns how many records were deleted. Its fingerprints then belong to no session
/// ([`session_by_fingerprint`]): no index finds those of a session.
pub(super) fn drop_scope(connection: &Connection, scope: &Scope) -> rusqlite::Result<u64> {
    let mut delete =
        connection.prepare_cached("DELETE FROM old_records WHERE tenant = ?1 AND session = ?2")?;
    Ok(delete.execute(params![scope.tenant.as_str(), scope.session.as_str()])? as u64)
}
