//! Drafts as rows.
//!
//! They have a table of their own, which is small because it only holds exchanges in flight. Everything here
//! runs in a transaction of the writer. A draft is found by its turn's key alone, without a row for its
//! session: a session with only its first exchange in flight is in no list.

use rusqlite::{Connection, params};

use super::columns::{blob, bytes_in, scope_in};
use super::facts;
use crate::store::drafts::Draft;
use crate::store::{Record, RecordKind, Scope, WriteOutcome};

pub(super) fn put(connection: &Connection, instance: u64, draft: &Draft) -> rusqlite::Result<()> {
    // An exchange may end while its draft is being written: if its turn is already stored, no draft
    // is written.
    let mut keep = connection.prepare_cached(
        "INSERT INTO drafts (key, instance, tenant, session, at, value)
         SELECT ?1, ?2, ?3, ?4, ?5, ?6 WHERE NOT EXISTS (
             SELECT 1 FROM tenants
             JOIN scopes ON scopes.tenant = tenants.id AND scopes.session = ?4
             JOIN facts ON facts.scope = scopes.id AND facts.kind = ?7 AND facts.key = ?1
             WHERE tenants.name = ?3)
         ON CONFLICT (key) DO UPDATE SET instance = excluded.instance, value = excluded.value",
    )?;
    let Draft { scope, record, .. } = draft;
    keep.execute(params![
        blob(record.key),
        instance.cast_signed(),
        scope.tenant.as_str(),
        scope.session.as_str(),
        i64::try_from(record.at).unwrap_or(i64::MAX),
        facts::KeptValue::Plain(&record.value),
        facts::code(record.kind),
    ])?;
    Ok(())
}

pub(super) fn drop_scope(connection: &Connection, scope: &Scope) -> rusqlite::Result<()> {
    let mut delete =
        connection.prepare_cached("DELETE FROM drafts WHERE tenant = ?1 AND session = ?2")?;
    delete.execute(params![scope.tenant.as_str(), scope.session.as_str()]).map(drop)
}

/// Makes turns from the drafts of all other instances, which have ended; returns the scopes.
pub(super) fn adopt(connection: &Connection, instance: u64) -> rusqlite::Result<Vec<Scope>> {
    let drafts = {
        let mut query = connection.prepare_cached(
            "SELECT tenant, session, key, at, value FROM drafts WHERE instance <> ?1",
        )?;
        let rows = query.query_map([instance.cast_signed()], |row| {
            let key = u128::from_be_bytes(row.get(2)?);
            let value = bytes_in(row, 4)?;
            let record = Record { kind: RecordKind::Turn, key, value, at: row.get(3)?, turn: None };
            Ok((scope_in(row)?, record))
        })?;
        rows.collect::<rusqlite::Result<Vec<_>>>()?
    };
    let mut scopes = Vec::new();
    for (scope, record) in drafts {
        // Removes the draft, whether the turn is written now or existed.
        let outcomes = facts::put(connection, &scope, &[record])?;
        if outcomes.contains(&WriteOutcome::Written) {
            scopes.push(scope);
        }
    }
    Ok(scopes)
}
