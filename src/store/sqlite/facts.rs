//! Records as rows: writing, finding and reading them; and a summary row for each session.
//!
//! The session's row is updated in the transaction that writes records, so that lists, sums and expiry only
//! read that row. Every query here uses an index in its order: the database sorts nothing, which would need
//! memory or disk space.

use bytes::Bytes;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{CachedStatement, Connection, OptionalExtension, Row, ToSql, params};

use super::columns::{blob, bytes_in, scope_in};
use crate::context::{Millis, SessionId, TenantId};
use crate::store::drafts::{COMPLETE, INTERRUPTED};
use crate::store::packing::{Packing, pack, unpack};
use crate::store::turn_columns::{TurnColumns, before_sketch};
use crate::store::{
    Cursor, Record, RecordKind, SERIES_NAMES, Scope, ScopeLine, ScopePage, WriteOutcome,
};

/// Most records of a series that are kept ([`Scope::is_series`]).
const SERIES: i64 = 8;
/// Most series; past it, the least recently used are deleted. Clients choose the names of models.
pub(super) const MOST_SERIES: usize = 1024;
/// When a new series begins, series that were unused for this long are deleted: models change within that
/// time.
pub(super) const SERIES_AGE: Millis = 90 * 24 * 3_600_000;
/// The size of a row beside its value, bytes: its columns and two indexes, roughly.
const ROW: u64 = 160;
/// The size of a fingerprint, bytes, roughly.
const FINGERPRINT: u64 = 90;

pub(super) fn code(kind: RecordKind) -> i64 {
    kind.layout().code
}

/// What a write adds to its session's row.
#[derive(Default)]
struct SessionDelta {
    records: u64,
    bytes: u64,
    turns: u64,
    input: u64,
    output: u64,
    cache_read: u64,
    learned: bool,
    /// The oldest and the newest time.
    span: Option<(Millis, Millis)>,
    newest_turn: Option<Millis>,
}

impl SessionDelta {
    fn add(&mut self, record: &Record, bytes: u64) {
        self.records += 1;
        self.bytes += bytes;
        self.learned |= record.kind == RecordKind::Learned;
        let (first, last) = self.span.unwrap_or((record.at, record.at));
        self.span = Some((first.min(record.at), last.max(record.at)));
    }

    fn add_turn(&mut self, at: Millis, turn: &TurnColumns<'_>) {
        self.turns += 1;
        for (_, usage) in turn.usage.iter().flat_map(|usage| usage.billed()) {
            self.input = self.input.saturating_add(usage.input.unwrap_or(0));
            self.output = self.output.saturating_add(usage.output.unwrap_or(0));
            self.cache_read = self.cache_read.saturating_add(usage.cache_read.unwrap_or(0));
        }
        self.newest_turn = self.newest_turn.max(Some(at));
    }

    /// Adds it to a session's row.
    fn add_to(self, update: &mut CachedStatement<'_>, id: i64) -> rusqlite::Result<()> {
        let Some((first, last)) = self.span else { return Ok(()) };
        update.execute(params![
            id,
            capped(first),
            capped(last),
            self.newest_turn.map(capped),
            capped(self.records),
            capped(self.bytes),
            capped(self.turns),
            capped(self.input),
            capped(self.output),
            capped(self.cache_read),
            self.learned,
            i64::MAX, // past it, the sum would be no integer any more
        ])?;
        Ok(())
    }
}

/// The id of a session, if it has a row.
pub(super) fn scope_id(connection: &Connection, scope: &Scope) -> rusqlite::Result<Option<i64>> {
    let found = FoundIds::find(&mut connection.prepare_cached(FIND)?, scope)?;
    Ok(found.and_then(|ids| ids.scope))
}

/// The id of a known tenant, and that of its session, if it has a row.
struct FoundIds {
    tenant: i64,
    scope: Option<i64>,
}

impl FoundIds {
    fn find(query: &mut CachedStatement<'_>, scope: &Scope) -> rusqlite::Result<Option<Self>> {
        let values = params![scope.session.as_str(), scope.tenant.as_str()];
        query
            .query_row(values, |row| Ok(Self { tenant: row.get(0)?, scope: row.get(1)? }))
            .optional()
    }
}

/// The ids of a session and its tenant.
#[derive(Clone, Copy)]
struct ScopeIds {
    scope: i64,
    tenant: i64,
}

impl ScopeIds {
    /// A row for a new session, known since `at`, and one for its tenant if that is new, too.
    fn begin(
        connection: &Connection,
        scope: &Scope,
        tenant: Option<i64>,
        at: Millis,
    ) -> rusqlite::Result<Self> {
        let tenant = match tenant {
            Some(tenant) => tenant,
            None => connection
                .prepare_cached("INSERT INTO tenants (name) VALUES (?1)")?
                .insert([scope.tenant.as_str()])?,
        };
        let mut insert = connection.prepare_cached(
            "INSERT INTO scopes (tenant, session, began, used) VALUES (?1, ?2, ?3, ?3)",
        )?;
        let scope = insert.insert(params![tenant, scope.session.as_str(), capped(at)])?;
        Ok(Self { scope, tenant })
    }
}

/// The statements of [`put`]: for many writes in one transaction, they are looked up once.
pub(super) struct FactWriter<'c> {
    connection: &'c Connection,
    find: CachedStatement<'c>,
    insert: CachedStatement<'c>,
    sign: CachedStatement<'c>,
    remove_draft: CachedStatement<'c>,
    add: CachedStatement<'c>,
}

pub(super) fn put(
    connection: &Connection,
    scope: &Scope,
    records: &[Record],
) -> rusqlite::Result<Vec<WriteOutcome>> {
    FactWriter::new(connection)?.put(scope, records)
}

impl<'c> FactWriter<'c> {
    pub(super) fn new(connection: &'c Connection) -> rusqlite::Result<Self> {
        Ok(Self {
            connection,
            find: connection.prepare_cached(FIND)?,
            insert: connection.prepare_cached(INSERT)?,
            sign: connection.prepare_cached(SIGN)?,
            remove_draft: connection.prepare_cached(REMOVE_DRAFT)?,
            add: connection.prepare_cached(ADD)?,
        })
    }

    pub(super) fn put(
        &mut self,
        scope: &Scope,
        records: &[Record],
    ) -> rusqlite::Result<Vec<WriteOutcome>> {
        let connection = self.connection;
        let Some(first) = records.first() else { return Ok(Vec::new()) };
        let found = FoundIds::find(&mut self.find, scope)?;
        let tenant = found.as_ref().map(|ids| ids.tenant);
        let existing = found.and_then(|ids| ids.scope);
        let ids = match (tenant, existing) {
            (Some(tenant), Some(scope)) => ScopeIds { scope, tenant },
            _ => ScopeIds::begin(connection, scope, tenant, first.at)?,
        };
        let id = ids.scope;
        let mut tally = SessionDelta::default();
        let mut puts = Vec::with_capacity(records.len());
        for record in records {
            if record.kind == RecordKind::Fingerprint {
                puts.push(if fingerprint(&mut self.sign, ids, record, &mut tally)? {
                    WriteOutcome::Written
                } else {
                    WriteOutcome::Existed(Bytes::new())
                });
                continue;
            }
            let insert = &mut self.insert;
            puts.push(
                if insert_into(insert, id, record, &mut tally)?
                    || replace(connection, insert, id, record, &mut tally)?
                {
                    WriteOutcome::Written
                } else {
                    let value = value(connection, id, record.kind, record.key)?;
                    WriteOutcome::Existed(value.unwrap_or_default())
                },
            );
            if record.kind == RecordKind::Turn {
                // The turn stands in its place.
                self.remove_draft.execute([blob(record.key)])?;
            }
        }
        tally.add_to(&mut self.add, id)?;
        if scope.is_series() {
            trim_series(connection, id)?;
            // Only then their number grows.
            if existing.is_none() {
                let now = records.iter().map(|record| record.at).max().unwrap_or_default();
                forget_series(connection, now)?;
            }
        }
        Ok(puts)
    }
}

const FIND: &str = "SELECT tenants.id, scopes.id FROM tenants
     LEFT JOIN scopes ON scopes.session = ?1 AND scopes.tenant = tenants.id
     WHERE tenants.name = ?2";

const ADD: &str = "UPDATE scopes SET
         began = min(began, ?2), used = max(used, ?3),
         newest = CASE WHEN ?4 IS NULL THEN newest ELSE max(coalesce(newest, 0), ?4) END,
         records = records + ?5, bytes = bytes + ?6, turns = turns + ?7,
         input = min(input + ?8, ?12), output = min(output + ?9, ?12),
         cache_read = min(cache_read + ?10, ?12),
         learned = max(learned, ?11)
     WHERE id = ?1";

const INSERT: &str =
    "INSERT INTO facts (scope, kind, key, at, packed, value, thread, request, upstream, model,
         purpose, outcome, method, estimated, input, lower_bound, output, reasoning, cache_read,
         cache_write, window, ended, dollars)
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18,
         ?19, ?20, ?21, ?22, ?23)
     ON CONFLICT (scope, kind, key) DO NOTHING";

/// Writes one record; `false` if it exists.
fn insert_into(
    insert: &mut CachedStatement<'_>,
    scope: i64,
    record: &Record,
    tally: &mut SessionDelta,
) -> rusqlite::Result<bool> {
    let is_turn = record.kind == RecordKind::Turn;
    // Only turns have columns, and are many enough to be packed.
    let head;
    let turn = match &record.turn {
        Some(turn) => Some(TurnColumns::from(&**turn)),
        // Another process made it, or this one before it ended.
        None if is_turn => {
            head = before_sketch(&record.value);
            Some(TurnColumns::read(&head))
        }
        None => None,
    };
    let packed = if is_turn { pack(&record.value) } else { None };
    let (packing, value) = match &packed {
        Some(packed) => (Packing::Turn, KeptValue::Packed(packed)),
        None => (Packing::Plain, KeptValue::Plain(&record.value)),
    };
    let columns = turn.as_ref();
    let position = columns.and_then(|turn| turn.position.as_ref());
    let estimate = columns.and_then(|turn| turn.estimate.as_ref());
    let usage = columns.and_then(|turn| turn.usage.as_ref());
    let written = insert.execute(params![
        scope,
        code(record.kind),
        blob(record.key),
        capped(record.at),
        packing as i64,
        value,
        position.and_then(|position| position.thread.as_deref()),
        columns.and_then(|turn| turn.exchange.as_deref()),
        columns.and_then(|turn| turn.upstream.as_deref()),
        columns.and_then(|turn| turn.model.as_deref()),
        columns.and_then(|turn| turn.purpose.as_deref()),
        columns.and_then(|turn| turn.outcome.as_deref()),
        estimate.and_then(|estimate| estimate.method.as_deref()),
        estimate.and_then(|estimate| number(estimate.tokens)),
        usage.and_then(|usage| number(usage.input)),
        usage.map(|usage| usage.lower_bound).filter(|is_cut| *is_cut),
        usage.and_then(|usage| number(usage.output)),
        usage.and_then(|usage| number(usage.reasoning)),
        usage.and_then(|usage| number(usage.cache_read)),
        usage.and_then(|usage| number(usage.cache_write)),
        columns.and_then(|turn| number(turn.window)),
        columns.and_then(|turn| number(turn.ended)),
        columns.and_then(|turn| turn.dollars),
    ])?;
    if written == 1 {
        tally.add(record, packed.as_ref().map_or(record.value.len(), Vec::len) as u64 + ROW);
        if let Some(turn) = &turn {
            tally.add_turn(record.at, turn);
        }
    }
    Ok(written == 1)
}

fn replace(
    connection: &Connection,
    insert: &mut CachedStatement<'_>,
    scope: i64,
    record: &Record,
    tally: &mut SessionDelta,
) -> rusqlite::Result<bool> {
    // The reply or its usage may come after all: read by its id, from a stream that broke.
    let turn = TurnColumns::read(&record.value);
    if record.kind != RecordKind::Turn || turn.outcome.as_deref() == Some(INTERRUPTED) {
        return Ok(false);
    }
    let mut delete = connection.prepare_cached(
        "DELETE FROM facts WHERE scope = ?1 AND kind = ?2 AND key = ?3
             AND (outcome = ?4 OR ?5 AND (outcome <> ?6 OR ?7 AND input IS NULL))
         RETURNING octet_length(value), packed, value",
    )?;
    let is_whole = turn.outcome.as_deref() == Some(COMPLETE);
    let kind = code(record.kind);
    let key = blob(record.key);
    let is_counted = turn.usage.as_ref().is_some_and(|usage| number(usage.input).is_some());
    let values = params![scope, kind, key, INTERRUPTED, is_whole, COMPLETE, is_counted];
    let deleted = delete.query_row(values, |row| Ok((row.get::<_, i64>(0)?, value_in(row, 1)?)));
    let Some((bytes, value)) = deleted.optional()? else { return Ok(false) };
    // What it added to the sums goes away with it.
    let mut counted = SessionDelta::default();
    counted.add_turn(record.at, &TurnColumns::read(&value));
    let mut line = connection.prepare_cached(
        "UPDATE scopes SET
             records = max(0, records - 1), turns = max(0, turns - 1), bytes = max(0, bytes - ?2),
             input = max(0, input - ?3), output = max(0, output - ?4),
             cache_read = max(0, cache_read - ?5)
         WHERE id = ?1",
    )?;
    line.execute(params![
        scope,
        bytes + ROW as i64,
        capped(counted.input),
        capped(counted.output),
        capped(counted.cache_read)
    ])?;
    insert_into(insert, scope, record, tally)
}

/// Deletes a session: from now on it cannot be found. Returns how many records it had.
pub(super) fn doom(connection: &Connection, id: i64, urgent: bool) -> rusqlite::Result<u64> {
    let mut delete =
        connection.prepare_cached("DELETE FROM scopes WHERE id = ?1 RETURNING records, bytes")?;
    let row = delete.query_row([id], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)));
    let Some((records, bytes)) = row.optional()? else { return Ok(0) };
    let mut insert = connection.prepare_cached("INSERT INTO doomed VALUES (?1, ?2, ?3)")?;
    insert.execute(params![id, bytes, urgent])?;
    Ok(u64::try_from(records).unwrap_or(0))
}

const REMOVE_DRAFT: &str = "DELETE FROM drafts WHERE key = ?1";

pub(super) fn remove_draft(connection: &Connection, key: u128) -> rusqlite::Result<()> {
    let mut delete = connection.prepare_cached(REMOVE_DRAFT)?;
    delete.execute([blob(key)]).map(drop)
}

fn capped(number: u64) -> i64 {
    // The number, or the largest that the file can store.
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn number(number: Option<u64>) -> Option<i64> {
    // A number as the file can store it; a larger one is left out.
    number.and_then(|number| i64::try_from(number).ok())
}

/// Writes a fingerprint. Of several sessions, it leads to the one that left it last. Fingerprints have a table of their
/// own, with two small B-trees.
const SIGN: &str = "INSERT INTO signs (tenant, key, scope) VALUES (?1, ?2, ?3)
     ON CONFLICT DO UPDATE SET scope = excluded.scope WHERE signs.scope <> excluded.scope";

fn fingerprint(
    signs: &mut CachedStatement<'_>,
    ids: ScopeIds,
    record: &Record,
    tally: &mut SessionDelta,
) -> rusqlite::Result<bool> {
    let written = signs.execute(params![ids.tenant, blob(record.key), ids.scope])? == 1;
    if written {
        tally.add(record, FINGERPRINT);
    }
    Ok(written)
}

pub(super) fn trim_series(connection: &Connection, scope: i64) -> rusqlite::Result<()> {
    // Only the newest counts. A few more are kept, in case it cannot be read.
    let mut delete = connection.prepare_cached(
        "DELETE FROM facts WHERE id IN (
             SELECT id FROM facts INDEXED BY facts_by_time WHERE scope = ?1
             ORDER BY at DESC, id DESC LIMIT -1 OFFSET ?2)",
    )?;
    let deleted_rows = delete.execute([scope, SERIES])?;
    if deleted_rows > 0 {
        let mut line = connection
            .prepare_cached("UPDATE scopes SET records = max(0, records - ?2) WHERE id = ?1")?;
        line.execute([scope, capped(deleted_rows as u64)])?;
    }
    Ok(())
}

fn forget_series(connection: &Connection, now: Millis) -> rusqlite::Result<()> {
    // Clients choose the names of models, so their number has no other limit.
    let (first, past) = SERIES_NAMES;
    let mut series = {
        let mut query = connection.prepare_cached(
            "SELECT used, id FROM scopes WHERE session >= ?1 AND session < ?2 AND learned = 1",
        )?;
        let series = query.query_map([first, past], |row| Ok((row.get(0)?, row.get(1)?)))?;
        series.collect::<rusqlite::Result<Vec<(i64, i64)>>>()?
    };
    series.sort_unstable();
    // The oldest come first, so both limits end at a number of them.
    let oldest_time = capped(now.saturating_sub(SERIES_AGE));
    let too_many = series.len().saturating_sub(MOST_SERIES);
    let too_old = series.partition_point(|(used, _)| *used < oldest_time);
    for (_, id) in series.iter().take(too_many.max(too_old)) {
        doom(connection, *id, false)?;
    }
    Ok(())
}

pub(super) fn value(
    connection: &Connection,
    scope: i64,
    kind: RecordKind,
    key: u128,
) -> rusqlite::Result<Option<Bytes>> {
    let mut query = connection.prepare_cached(
        "SELECT packed, value FROM facts WHERE scope = ?1 AND kind = ?2 AND key = ?3",
    )?;
    query.query_row(params![scope, code(kind), blob(key)], |row| value_in(row, 0)).optional()
}

pub(super) fn size(connection: &Connection, scope: i64, kind: RecordKind) -> rusqlite::Result<u64> {
    // The length is stored before the value, so no value is read.
    let mut query = connection.prepare_cached(
        "SELECT coalesce(sum(octet_length(value)), 0) FROM facts WHERE scope = ?1 AND kind = ?2",
    )?;
    query.query_row(params![scope, code(kind)], |row| row.get(0))
}

pub(super) fn session_by_fingerprint(
    connection: &Connection,
    tenant: &TenantId,
    fingerprint: u128,
) -> rusqlite::Result<Option<SessionId>> {
    let mut query = connection.prepare_cached(
        "SELECT scopes.session FROM tenants
         JOIN signs ON signs.tenant = tenants.id AND signs.key = ?2
         JOIN scopes ON scopes.id = signs.scope
         WHERE tenants.name = ?1",
    )?;
    let values = params![tenant.as_str(), blob(fingerprint)];
    query.query_row(values, |row| row.get::<_, String>(0).map(Into::into)).optional()
}

pub(super) fn holder(
    connection: &Connection,
    kind: RecordKind,
    key: u128,
) -> rusqlite::Result<Option<Scope>> {
    // No index begins with the key: all keys are scanned.
    let mut query = connection.prepare_cached(
        "SELECT tenants.name, scopes.session FROM facts
         CROSS JOIN scopes ON scopes.id = facts.scope
         CROSS JOIN tenants ON tenants.id = scopes.tenant
         WHERE facts.kind = ?1 AND facts.key = ?2 LIMIT 1",
    )?;
    query.query_row(params![code(kind), blob(key)], scope_in).optional()
}

pub(super) fn scopes(connection: &Connection, page: ScopePage) -> rusqlite::Result<Vec<ScopeLine>> {
    let (used, id) = match page.after {
        Some(cursor) => (capped(cursor.used), capped(cursor.id)),
        None => (i64::MAX, i64::MAX),
    };
    let mut query = connection.prepare_cached(
        "SELECT tenants.name, scopes.session, scopes.id, began, used, newest, records, turns,
             input, output, cache_read
         FROM scopes INDEXED BY scopes_by_use CROSS JOIN tenants ON tenants.id = scopes.tenant
         WHERE learned = 0 AND turns > 0 AND (used, scopes.id) < (?1, ?2)
         ORDER BY used DESC, scopes.id DESC LIMIT ?3 OFFSET ?4",
    )?;
    let rows = query.query_map(
        params![used, id, capped(page.count as u64), capped(page.skip as u64)],
        |row| {
            Ok(ScopeLine {
                scope: scope_in(row)?,
                cursor: Cursor { used: row.get(4)?, id: row.get(2)? },
                began: row.get(3)?,
                newest: row.get::<_, Option<u64>>(5)?.unwrap_or_default(),
                records: row.get(6)?,
                turns: row.get(7)?,
                input: row.get(8)?,
                output: row.get(9)?,
                cache_read: row.get(10)?,
            })
        },
    )?;
    rows.collect()
}

/// The scopes of a session id, including those with only drafts, in order.
pub(super) fn named(connection: &Connection, session: &SessionId) -> rusqlite::Result<Vec<Scope>> {
    let mut query = connection.prepare_cached(
        "SELECT tenants.name, scopes.session FROM scopes
         JOIN tenants ON tenants.id = scopes.tenant
         WHERE scopes.session = ?1 AND learned = 0
         UNION ALL SELECT tenant, session FROM drafts WHERE session = ?1",
    )?;
    let rows = query.query_map([session.as_str()], scope_in)?;
    let mut scopes = rows.collect::<rusqlite::Result<Vec<_>>>()?;
    scopes.sort();
    scopes.dedup();
    Ok(scopes)
}

/// A value from its two columns, from `first` on.
fn value_in(row: &Row<'_>, first: usize) -> rusqlite::Result<Bytes> {
    let is_packed = row.get::<_, i64>(first)? == Packing::Turn as i64;
    let value = bytes_in(row, first + 1)?;
    if !is_packed {
        return Ok(value);
    }
    // A value that cannot be unpacked is treated as an unreadable fact.
    Ok(unpack(&value).unwrap_or_default())
}

/// The records of a session: the `newest` and all decisions, oldest first.
pub(super) fn scan(
    connection: &Connection,
    scope: i64,
    newest: usize,
) -> rusqlite::Result<Vec<Record>> {
    let mut others = connection.prepare_cached(
        "SELECT id, kind, key, at, packed, value FROM facts INDEXED BY facts_by_time
         WHERE scope = ?1 AND kind < 16 AND kind <> 4 ORDER BY at DESC, id DESC LIMIT ?2",
    )?;
    let mut decisions = connection.prepare_cached(
        "SELECT id, kind, key, at, packed, value FROM facts
         WHERE scope = ?1 AND kind BETWEEN 16 AND 31",
    )?;
    let newest = i64::try_from(newest).unwrap_or(i64::MAX);
    let others = others.query_map([scope, newest], record_in)?;
    let decisions = decisions.query_map([scope], record_in)?;
    let rows = others.chain(decisions).filter_map(Result::transpose);
    let mut rows = rows.collect::<rusqlite::Result<Vec<(i64, Record)>>>()?;
    // Records of the same time are in the order of their rows.
    rows.sort_unstable_by_key(|(id, record)| (record.at, *id));
    Ok(rows.into_iter().map(|(_, record)| record).collect())
}

/// A row as its id and its record; `None` for kinds of a newer version.
fn record_in(row: &Row<'_>) -> rusqlite::Result<Option<(i64, Record)>> {
    let Some(kind) = RecordKind::coded(row.get(1)?) else { return Ok(None) };
    let key = u128::from_be_bytes(row.get(2)?);
    Ok(Some((
        row.get(0)?,
        Record { kind, key, value: value_in(row, 4)?, at: row.get(3)?, turn: None },
    )))
}

/// A value as it is stored: as text if it is text, so that people can read it.
pub(super) enum KeptValue<'a> {
    Plain(&'a [u8]),
    Packed(&'a [u8]),
}

impl ToSql for KeptValue<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            KeptValue::Plain(bytes) if std::str::from_utf8(bytes).is_ok() => ValueRef::Text(bytes),
            KeptValue::Plain(bytes) | KeptValue::Packed(bytes) => ValueRef::Blob(bytes),
        }))
    }
}
