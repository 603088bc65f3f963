//! Rows of earlier versions, whose hashes stand in the clear: turned in place, some at a time.
//!
//! Each batch is one transaction with the place that it reached, so that whatever ends the process, nothing is lost and
//! nothing is turned twice. A record says by its value whether it is turned; signs have no value, so those of
//! before are listed once, when it begins.

use rusqlite::{Connection, OptionalExtension, params};

use super::{Sqlite, blob, bytes_in, connect, failed};
use crate::store::keyed::Cipher;
use crate::store::{RecordKind, Trouble};

/// Rows in one transaction.
const BATCH: i64 = 256;
/// Whose secret the file was written with.
const WITH: &str = "keyed_with";
/// The last record that was looked at; once none is left, [`DONE`].
const THROUGH: &str = "keyed_through";
const DONE: i64 = i64::MAX;

/// How the hashes of a file stand.
pub struct Keying {
    /// They were keyed with another secret.
    pub is_other: bool,
    /// What is still to be turned.
    pub rest: Option<Rekeying>,
}

/// Rows that are still to be turned.
pub struct Rekeying {
    connection: Connection,
}

impl Sqlite {
    /// How the hashes stand, for a secret with this fingerprint.
    ///
    /// # Errors
    /// The file's [`Trouble`].
    pub fn keying(&self, fingerprint: &[u8; 32]) -> Result<Keying, Trouble> {
        let mut connection = connect(self.path())?;
        let mut look = || -> rusqlite::Result<(bool, bool)> {
            // What is overwritten is gone.
            connection.pragma_update(None, "secure_delete", "ON")?;
            if through(&connection)? == Some(DONE) && with(&connection)? == Some(*fingerprint) {
                return Ok((false, true));
            }
            let change =
                connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
            let before = with(&change)?;
            let keep = "INSERT OR REPLACE INTO secrets VALUES (?1, ?2)";
            change.execute(keep, params![WITH, fingerprint])?;
            if through(&change)?.is_none() {
                let has_rows =
                    "SELECT EXISTS (SELECT 1 FROM records) OR EXISTS (SELECT 1 FROM signs)";
                let has_rows: bool = change.query_row(has_rows, [], |row| row.get(0))?;
                let begins = if has_rows { 0 } else { DONE };
                change.execute(keep, params![THROUGH, begins.to_be_bytes()])?;
                if has_rows {
                    let list = "CREATE TABLE signs_to_key AS SELECT tenant, key FROM signs";
                    change.execute_batch(list)?;
                }
            }
            let is_done = through(&change)? == Some(DONE);
            change.commit()?;
            Ok((before.is_some_and(|before| before != *fingerprint), is_done))
        };
        let (is_other, is_done) = look().map_err(failed)?;
        Ok(Keying { is_other, rest: (!is_done).then_some(Rekeying { connection }) })
    }
}

impl Rekeying {
    /// Turns some rows; `false` once none is left.
    ///
    /// # Errors
    /// The file's [`Trouble`]: nothing of this batch was done.
    pub fn step(&mut self, cipher: &Cipher) -> Result<bool, Trouble> {
        let has_more = self.batch(cipher).map_err(failed)?;
        if !has_more {
            // What was written ahead has the rows as they were.
            drop(self.connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)"));
        }
        Ok(has_more)
    }

    fn batch(&mut self, cipher: &Cipher) -> rusqlite::Result<bool> {
        let behavior = rusqlite::TransactionBehavior::Immediate;
        let change = self.connection.transaction_with_behavior(behavior)?;
        let at = through(&change)?.unwrap_or(0);
        if at == DONE {
            return Ok(false);
        }
        let (signs, reached) = (signs(&change, cipher)?, records(&change, cipher, at)?);
        let next = reached.unwrap_or(if signs == 0 { DONE } else { at });
        if next == DONE {
            change.execute_batch("DROP TABLE IF EXISTS signs_to_key")?;
        }
        change.execute(
            "INSERT OR REPLACE INTO secrets VALUES (?1, ?2)",
            params![THROUGH, next.to_be_bytes()],
        )?;
        change.commit()?;
        Ok(next != DONE)
    }
}

/// Turns some signs; answers how many.
fn signs(change: &Connection, cipher: &Cipher) -> rusqlite::Result<usize> {
    let mut query = change
        .prepare_cached("SELECT rowid, tenant, key FROM signs_to_key ORDER BY rowid LIMIT ?1")?;
    let rows = query.query_map([BATCH], |row| {
        Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?, row.get::<_, [u8; 16]>(2)?))
    })?;
    let rows = rows.collect::<rusqlite::Result<Vec<_>>>()?;
    // The sign of before was first.
    let mut turn = change
        .prepare_cached("UPDATE OR REPLACE signs SET key = ?3 WHERE tenant = ?1 AND key = ?2")?;
    let mut done = change.prepare_cached("DELETE FROM signs_to_key WHERE rowid = ?1")?;
    for (row, tenant, key) in &rows {
        let keyed = cipher.seal(u128::from_be_bytes(*key));
        turn.execute(params![tenant, key, blob(keyed)])?;
        done.execute([row])?;
    }
    Ok(rows.len())
}

/// Turns some records after `at`; the last that was looked at, `None` where there is none.
fn records(change: &Connection, cipher: &Cipher, at: i64) -> rusqlite::Result<Option<i64>> {
    let mut query = change.prepare_cached(
        "SELECT id, kind, key, value FROM records WHERE id > ?1 ORDER BY id LIMIT ?2",
    )?;
    let mut turn = change
        .prepare_cached("UPDATE OR REPLACE records SET key = ?2, value = ?3 WHERE id = ?1")?;
    let mut rows = query.query(params![at, BATCH])?;
    let mut due = Vec::new();
    let mut last = None;
    while let Some(row) = rows.next()? {
        let id: i64 = row.get(0)?;
        last = Some(id);
        let Some(kind) = RecordKind::named(&row.get::<_, String>(1)?) else { continue };
        let key = u128::from_be_bytes(row.get(2)?);
        due.extend(cipher.seal_row(kind, key, &bytes_in(row, 3)?).map(|row| (id, row)));
    }
    for (id, (key, value)) in due {
        turn.execute(params![id, blob(key), super::Content(&value)])?;
    }
    Ok(last)
}

fn through(connection: &Connection) -> rusqlite::Result<Option<i64>> {
    let query = "SELECT value FROM secrets WHERE name = ?1";
    let value = connection.query_row(query, [THROUGH], |row| row.get::<_, [u8; 8]>(0));
    Ok(value.optional()?.map(i64::from_be_bytes))
}

fn with(connection: &Connection) -> rusqlite::Result<Option<[u8; 32]>> {
    let query = "SELECT value FROM secrets WHERE name = ?1";
    connection.query_row(query, [WITH], |row| row.get(0)).optional()
}
