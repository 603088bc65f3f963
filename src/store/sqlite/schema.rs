//! The file's shape, by version, and the views that a person queries.
//!
//! `user_version` counts the steps below. An older file takes the steps it lacks in one transaction;
//! a newer one is refused, because writing to what one does not understand loses facts.

use std::path::Path;

use rusqlite::Connection;

use super::{because, unusable};
use crate::store::Trouble;
use crate::store::memory::random;

/// One step a version; a step that has been released never changes.
const STEPS: [&str; 1] = ["
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
"];

/// Brings a file up to date.
pub(super) fn prepare(connection: &mut Connection, path: &Path) -> Result<(), Trouble> {
    let trouble = |error: rusqlite::Error| unusable(path, &because(&error));
    let version: usize =
        connection.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(trouble)?;
    if version > STEPS.len() {
        return Err(unusable(
            path,
            &format!(
                "a newer Plimsoll wrote it (version {version}, this one knows {}); use that one",
                STEPS.len()
            ),
        ));
    }
    let key = random()?;
    let mut upgrade = || -> rusqlite::Result<()> {
        let change = connection.transaction()?;
        STEPS[version..].iter().try_for_each(|step| change.execute_batch(step))?;
        change.execute("INSERT OR IGNORE INTO secrets VALUES ('tenant_key', ?1)", [key])?;
        change.pragma_update(None, "user_version", STEPS.len() as u32)?;
        change.commit()
    };
    upgrade().map_err(trouble)
}
