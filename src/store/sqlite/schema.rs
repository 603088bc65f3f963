//! The tables, indexes and views of the file.
//!
//! There is one layout. A file of another one is refused and left unchanged, because writing to an unknown layout
//! could lose facts.

use std::path::Path;

use rusqlite::{Connection, TransactionBehavior};

use super::errors::{trouble_with, unusable};
use crate::store::StoreError;
use crate::store::random::random;

/// The number of the layout, stored as `user_version`. It changes with every change of [`SCHEMA`]. Numbers up to 6
/// were those of development versions.
pub(super) const LAYOUT: i64 = 10;

/// The views are for people who read the file with their own tools; Plimsoll itself does not use them.
const SCHEMA: &str = "
CREATE TABLE secrets (name TEXT PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE tenants (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
-- A row for each session, updated as its facts arrive. An id is never used again: what belongs to one
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
    dollars     REAL,
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
-- Exchanges on their way: the turn of each as it would be if nothing more came. The instance is the process.
CREATE TABLE drafts (
    id       INTEGER PRIMARY KEY,
    key      BLOB NOT NULL UNIQUE,
    instance INTEGER NOT NULL,
    tenant   TEXT NOT NULL,
    session  TEXT NOT NULL,
    at       INTEGER NOT NULL,
    value    NOT NULL
);

CREATE VIEW turns AS SELECT
    datetime(facts.at / 1000, 'unixepoch') AS time,
    scopes.session AS session, thread, request, upstream, model, purpose, outcome, method,
    estimated, facts.input AS input, estimated - facts.input AS error,
    facts.output AS output, reasoning, facts.cache_read AS cache_read, cache_write, window,
    ended - facts.at AS milliseconds, dollars, tenants.name AS tenant
FROM facts JOIN scopes ON scopes.id = facts.scope JOIN tenants ON tenants.id = scopes.tenant
WHERE facts.kind = 1 ORDER BY facts.at;

-- `sum` fails past the largest integer; `total` does not.
CREATE VIEW threads AS SELECT
    session, thread, min(time) AS began, max(time) AS latest, count(*) AS turns,
    CASE WHEN count(input) > 0 THEN CAST(total(input) AS INTEGER) END AS input,
    CASE WHEN count(output) > 0 THEN CAST(total(output) AS INTEGER) END AS output,
    CASE WHEN count(cache_read) > 0 THEN CAST(total(cache_read) AS INTEGER) END AS cache_read,
    sum(dollars) AS dollars, tenant
FROM turns GROUP BY tenant, session, thread;

CREATE VIEW sessions AS SELECT
    session, min(began) AS began, max(latest) AS latest, count(*) AS threads,
    sum(turns) AS turns,
    CASE WHEN count(input) > 0 THEN CAST(total(input) AS INTEGER) END AS input,
    CASE WHEN count(output) > 0 THEN CAST(total(output) AS INTEGER) END AS output,
    CASE WHEN count(cache_read) > 0 THEN CAST(total(cache_read) AS INTEGER) END AS cache_read,
    sum(dollars) AS dollars, tenant
FROM threads GROUP BY tenant, session;
";

/// Refuses a file of another layout, or of another program.
///
/// # Errors
/// [`StoreError::Unusable`], saying what to do.
pub(super) fn check(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    let layout = layout(connection).map_err(|error| trouble_with(path, &error))?;
    if layout == LAYOUT {
        return Ok(());
    }
    if layout > LAYOUT {
        let reason = format!(
            "a newer Plimsoll wrote it (layout {layout}, this one knows {LAYOUT}); use that one"
        );
        return Err(unusable(path, &reason));
    }
    if layout != 0 {
        let reason = format!(
            "an earlier Plimsoll wrote it (layout {layout}, this one knows {LAYOUT}); move it away"
        );
        return Err(unusable(path, &reason));
    }
    // A new file has neither a layout nor tables.
    if has_tables(connection).map_err(|error| trouble_with(path, &error))? {
        return Err(unusable(path, "it is the database of another program; move it away"));
    }
    Ok(())
}

/// Makes the tables in an empty file.
pub(super) fn prepare(connection: &mut Connection, path: &Path) -> Result<(), StoreError> {
    // Others were checked before ([`check`]).
    // If there are tables, nothing is written: a store on a full disk can still be read.
    if layout(connection).map_err(|error| trouble_with(path, &error))? == LAYOUT {
        return Ok(());
    }
    create(connection, random()?).map_err(|error| trouble_with(path, &error))
}

fn layout(connection: &Connection) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}

fn has_tables(connection: &Connection) -> rusqlite::Result<bool> {
    connection.prepare("SELECT 1 FROM sqlite_schema LIMIT 1")?.exists([])
}

fn create(connection: &mut Connection, tenant_key: [u8; 32]) -> rusqlite::Result<()> {
    // All or nothing: a file without its tenant key would be of no use.
    let change = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    change.execute_batch(SCHEMA)?;
    change.execute("INSERT INTO secrets VALUES ('tenant_key', ?1)", [tenant_key])?;
    change.pragma_update(None, "user_version", LAYOUT)?;
    change.commit()
}
