//! The tables of the file, by version, and the views for people.
//!
//! `user_version` counts the steps below. An older file is upgraded in one transaction, which moves no rows,
//! so that a large file is usable at once ([`super::legacy`] moves them). A newer file is refused, because
//! writing to an unknown layout could lose facts.

use std::path::Path;

use rusqlite::{Connection, TransactionBehavior};

use super::errors::{trouble_with, unusable};
use super::views::{TURNS, turns_view};
use super::{legacy, migration};
use crate::store::StoreError;
use crate::store::random::random;

/// One step per version; a released step never changes.
pub(super) const STEPS: [&str; 6] = [
    "
CREATE TABLE records (
    id      INTEGER PRIMARY KEY,
    tenant  TEXT NOT NULL,
    session TEXT NOT NULL,
    kind    TEXT NOT NULL,
    key     BLOB NOT NULL,
    at      INTEGER NOT NULL,
    value   TEXT NOT NULL,
    UNIQUE (tenant, session, kind, key)
);
CREATE INDEX records_by_time ON records (at);
-- A session in the order of time, and the list of sessions without reading a value.
CREATE INDEX records_by_scope ON records (tenant, session, at, id, kind);
CREATE TABLE signs (
    tenant  TEXT NOT NULL,
    key     BLOB NOT NULL,
    session TEXT NOT NULL,
    at      INTEGER NOT NULL,
    PRIMARY KEY (tenant, key)
) WITHOUT ROWID;
CREATE TABLE secrets (name TEXT PRIMARY KEY, value BLOB NOT NULL);

CREATE VIEW turns AS SELECT
    datetime(at / 1000, 'unixepoch')           AS time,
    session,
    value ->> '$.standing.thread'              AS thread,
    value ->> '$.request'                      AS request,
    value ->> '$.upstream'                     AS upstream,
    value ->> '$.model'                        AS model,
    value ->> '$.purpose'                      AS purpose,
    value ->> '$.outcome'                      AS outcome,
    value ->> '$.estimate.method'              AS method,
    value ->> '$.estimate.tokens'              AS estimated,
    value ->> '$.usage.input'                  AS input,
    CASE WHEN value ->> '$.usage.lower_bound' THEN NULL
         ELSE (value ->> '$.estimate.tokens') - (value ->> '$.usage.input') END AS error,
    value ->> '$.usage.output'                 AS output,
    value ->> '$.usage.reasoning'              AS reasoning,
    value ->> '$.usage.cache_read'             AS cache_read,
    value ->> '$.usage.cache_write'            AS cache_write,
    value ->> '$.window'                       AS window,
    (value ->> '$.ended') - at                 AS milliseconds,
    tenant
FROM records WHERE kind = 'turn' ORDER BY at;

CREATE VIEW threads AS SELECT
    session, thread, min(time) AS began, max(time) AS latest, count(*) AS turns,
    sum(input) AS input, sum(output) AS output, sum(cache_read) AS cache_read, tenant
FROM turns GROUP BY tenant, session, thread;

CREATE VIEW sessions AS SELECT
    session, min(began) AS began, max(latest) AS latest, count(*) AS threads,
    sum(turns) AS turns, sum(input) AS input, sum(output) AS output,
    sum(cache_read) AS cache_read, tenant
FROM threads GROUP BY tenant, session;
",
    "
DROP VIEW sessions;
DROP VIEW threads;
DROP VIEW turns;
ALTER TABLE records RENAME TO old_records;
ALTER TABLE signs RENAME TO old_signs;

CREATE TABLE tenants (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
-- A line for each session, kept as its facts arrive. An id is never used again: what belongs to one
-- that is gone belongs to nobody.
CREATE TABLE scopes (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant     INTEGER NOT NULL,
    session    TEXT NOT NULL,
    began      INTEGER NOT NULL,
    used       INTEGER NOT NULL,
    newest     INTEGER,
    records    INTEGER NOT NULL DEFAULT 0,
    bytes      INTEGER NOT NULL DEFAULT 0,
    turns      INTEGER NOT NULL DEFAULT 0,
    input      INTEGER NOT NULL DEFAULT 0,
    output     INTEGER NOT NULL DEFAULT 0,
    cache_read INTEGER NOT NULL DEFAULT 0,
    learned    INTEGER NOT NULL DEFAULT 0,
    UNIQUE (session, tenant)
);
-- The list of sessions, and what is forgotten first.
CREATE INDEX scopes_by_use ON scopes (used, id) WHERE learned = 0;
-- Sessions that are forgotten, and whose facts are still to be deleted.
CREATE TABLE doomed (
    id     INTEGER PRIMARY KEY,
    bytes  INTEGER NOT NULL,
    urgent INTEGER NOT NULL
);
-- The columns of turns are what the views show; `value` has all of it, packed.
CREATE TABLE facts (
    id          INTEGER PRIMARY KEY,
    scope       INTEGER NOT NULL,
    kind        INTEGER NOT NULL,
    key         BLOB NOT NULL,
    at          INTEGER NOT NULL,
    thread      TEXT,
    request     TEXT,
    upstream    TEXT,
    model       TEXT,
    purpose     TEXT,
    outcome     TEXT,
    method      TEXT,
    estimated   INTEGER,
    input       INTEGER,
    lower_bound INTEGER,
    output      INTEGER,
    reasoning   INTEGER,
    cache_read  INTEGER,
    cache_write INTEGER,
    window      INTEGER,
    ended       INTEGER,
    packed      INTEGER NOT NULL,
    value       NOT NULL,
    UNIQUE (scope, kind, key)
);
-- A session in the order of time.
CREATE INDEX facts_by_time ON facts (scope, at);
CREATE TABLE signs (
    tenant INTEGER NOT NULL,
    key    BLOB NOT NULL,
    scope  INTEGER NOT NULL,
    PRIMARY KEY (tenant, key)
) WITHOUT ROWID;
CREATE INDEX signs_by_scope ON signs (scope);

-- New facts come after all that are moved, so that what was at the same time stays in order.
INSERT INTO tenants VALUES (1, '');
INSERT INTO scopes (id, tenant, session, began, used, learned) VALUES (1, 1, '~moved', 0, 0, 1);
INSERT INTO facts (id, scope, kind, key, at, packed, value)
    SELECT max(id) + 1, 1, 3, zeroblob(16), 0, 0, '' FROM old_records HAVING count(*) > 0;
",
    "
-- Exchanges on their way: the turn of each as it would be if nothing more came.
CREATE TABLE drafts (
    id       INTEGER PRIMARY KEY,
    key      BLOB NOT NULL UNIQUE,
    instance INTEGER NOT NULL,
    tenant   TEXT NOT NULL,
    session  TEXT NOT NULL,
    at       INTEGER NOT NULL,
    value    NOT NULL
);
-- The processes that they are of. A beat that goes on says that its process lives.
CREATE TABLE instances (id INTEGER PRIMARY KEY, beat INTEGER NOT NULL);
",
    "
-- Sessions that were deleted on request, each by a hash of its name: what was in flight then is not kept.
CREATE TABLE tombstones (key BLOB PRIMARY KEY, at INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX tombstones_by_time ON tombstones (at);
",
    "
-- The view that tells the error of a cut reply, too, is made below.
DROP VIEW IF EXISTS turns;
",
    "
-- The views with sums that cannot overflow are made below.
DROP VIEW IF EXISTS sessions;
DROP VIEW IF EXISTS threads;
",
];

/// The number of steps after which a file has its views and the current layout of rows.
const WITH_VIEWS: usize = 2;
/// The number of steps after which the view of turns is the current one.
const WITH_ERRORS: usize = 5;
/// The number of steps after which the views with sums are the current ones.
const WITH_SUMS: usize = 6;

/// `sum` fails past the largest integer; `total` does not.
const SUMS: &str = "
CREATE VIEW threads AS SELECT
    session, thread, min(time) AS began, max(time) AS latest, count(*) AS turns,
    CASE WHEN count(input) > 0 THEN CAST(total(input) AS INTEGER) END AS input,
    CASE WHEN count(output) > 0 THEN CAST(total(output) AS INTEGER) END AS output,
    CASE WHEN count(cache_read) > 0 THEN CAST(total(cache_read) AS INTEGER) END AS cache_read,
    tenant
FROM turns GROUP BY tenant, session, thread;

CREATE VIEW sessions AS SELECT
    session, min(began) AS began, max(latest) AS latest, count(*) AS threads,
    sum(turns) AS turns,
    CASE WHEN count(input) > 0 THEN CAST(total(input) AS INTEGER) END AS input,
    CASE WHEN count(output) > 0 THEN CAST(total(output) AS INTEGER) END AS output,
    CASE WHEN count(cache_read) > 0 THEN CAST(total(cache_read) AS INTEGER) END AS cache_read,
    tenant
FROM threads GROUP BY tenant, session;
";

/// Upgrades a file.
pub(super) fn prepare(connection: &mut Connection, path: &Path) -> Result<(), StoreError> {
    let trouble = |error: rusqlite::Error| trouble_with(path, &error);
    let known = version(connection).map_err(trouble)?;
    if known > STEPS.len() {
        return Err(unusable(path, &newer(known)));
    }
    if known == STEPS.len() {
        // Nothing is written, so a store on a full disk can still be read.
        return Ok(());
    }
    let key = random()?;
    let mut upgrade = || -> rusqlite::Result<()> {
        let change = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        // Another process may have upgraded it meanwhile.
        let known = version(&change)?;
        if known < STEPS.len() {
            STEPS[known..].iter().try_for_each(|step| change.execute_batch(step))?;
            if known < WITH_ERRORS {
                let turns = match legacy::is_there(&change)? {
                    true => &format!("{TURNS} UNION ALL {}", legacy::TURNS),
                    false => TURNS,
                };
                change.execute_batch(&turns_view(turns))?;
            }
            if known < WITH_SUMS {
                change.execute_batch(SUMS)?;
            }
            if known < WITH_VIEWS {
                migration::finish(&change)?;
            }
            change.execute("INSERT OR IGNORE INTO secrets VALUES ('tenant_key', ?1)", [key])?;
            change.pragma_update(None, "user_version", STEPS.len() as u32)?;
        }
        change.commit()
    };
    upgrade().map_err(trouble)
}

/// How many steps were applied to a file.
pub(super) fn version(connection: &Connection) -> rusqlite::Result<usize> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}

/// The error for a file of an unknown version.
pub(super) fn newer(version: usize) -> String {
    format!(
        "a newer Plimsoll wrote it (version {version}, this one knows {}); use that one",
        STEPS.len()
    )
}
