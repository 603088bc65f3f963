//! Moves rows from an earlier layout of the file, in the background.
//!
//! A few at a time, so that writes of traffic do not have to wait.

use std::collections::HashMap;

use bytes::Bytes;
use rusqlite::{Connection, params};

use super::columns::{blob, scope_in};
use super::facts::{self, SessionDelta};
use super::legacy::{RekeyFact, record_in};
use super::retention::RetentionRule;
use super::views::{TURNS, turns_view};
use crate::store::{Record, RecordKind};

/// Moves the newest `count` rows, or leaves out those of expired sessions and, if `is_full`, those without
/// room. Returns the bytes that were moved.
pub(super) fn step(
    connection: &Connection,
    rule: RetentionRule,
    is_full: bool,
    count: usize,
    rekey: &RekeyFact,
) -> rusqlite::Result<u64> {
    let rows = {
        let mut query = connection.prepare_cached(
            "SELECT tenant, session, id, kind, key, value, at FROM old_records
             ORDER BY id DESC LIMIT ?1",
        )?;
        let rows = query.query_map([count as i64], |row| {
            Ok((scope_in(row)?, row.get::<_, i64>(2)?, record_in(row, 2)?))
        })?;
        rows.collect::<rusqlite::Result<Vec<_>>>()?
    };
    if rows.is_empty() {
        return move_fingerprints(connection, count, rekey).map(|()| 0);
    }
    let mut delete = connection.prepare_cached("DELETE FROM old_records WHERE id = ?1")?;
    let mut tallies: HashMap<i64, SessionDelta> = HashMap::new();
    for (scope, id, record) in rows {
        delete.execute([id])?;
        let Some((_, record)) = record else { continue };
        let known = facts::scope_id(connection, &scope)?;
        let is_learned = record.kind == RecordKind::Learned;
        if known.is_none() && !is_learned && (is_full || record.at < rule.before) {
            continue;
        }
        let into = match known {
            Some(into) => into,
            None => facts::begin(connection, &scope, record.at)?,
        };
        let tally = tallies.entry(into).or_default();
        facts::insert(connection, into, &rekey(record), Some(id), tally)?;
        if scope.is_series() {
            facts::trim_series(connection, into)?;
        }
    }
    let moved = tallies.values().map(SessionDelta::bytes).sum();
    tallies.into_iter().try_for_each(|(id, tally)| tally.add_to(connection, id))?;
    Ok(moved)
}

fn move_fingerprints(
    connection: &Connection,
    count: usize,
    rekey: &RekeyFact,
) -> rusqlite::Result<()> {
    let rows = {
        let mut query =
            connection.prepare_cached("SELECT tenant, session, key, at FROM old_signs LIMIT ?1")?;
        let rows = query.query_map([count as i64], |row| {
            Ok((scope_in(row)?, u128::from_be_bytes(row.get(2)?), row.get(3)?))
        })?;
        rows.collect::<rusqlite::Result<Vec<_>>>()?
    };
    if rows.is_empty() {
        return finish(connection);
    }
    let mut delete =
        connection.prepare_cached("DELETE FROM old_signs WHERE tenant = ?1 AND key = ?2")?;
    for (scope, key, at) in rows {
        delete.execute(params![scope.tenant.as_str(), blob(key)])?;
        // The fingerprints of a deleted session are dropped.
        let Some(into) = facts::scope_id(connection, &scope)? else { continue };
        let fingerprint =
            rekey(Record { kind: RecordKind::Fingerprint, key, value: Bytes::new(), at });
        let mut tally = SessionDelta::default();
        facts::fingerprint(connection, &scope, into, &fingerprint, &mut tally)?;
        tally.add_to(connection, into)?;
    }
    Ok(())
}

/// Drops the old tables if they are empty.
pub(super) fn finish(connection: &Connection) -> rusqlite::Result<()> {
    let is_empty = |table: &str| {
        let mut query = connection.prepare(&format!("SELECT 1 FROM {table} LIMIT 1"))?;
        query.exists([]).map(|any| !any)
    };
    if is_empty("old_records")? && is_empty("old_signs")? {
        let view = turns_view(TURNS);
        connection.execute_batch(&format!(
            "DROP TABLE old_records; DROP TABLE old_signs; DROP VIEW turns; {view}"
        ))?;
    }
    Ok(())
}
