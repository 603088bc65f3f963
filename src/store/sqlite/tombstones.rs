//! Tombstones: deleted sessions are remembered, so that data in flight does not bring them back.
//!
//! Checked in the transaction that writes. A row has a hash instead of the session's name, and the time of
//! the deletion. Rows are dropped after a while, and the oldest past a number. A clock that is set back does
//! no harm: a deletion in the future is treated as one of now.

use std::time::Instant;

use rusqlite::{Connection, OptionalExtension as _, params};

use crate::clock::{micros, wall_micros};
use crate::store::Scope;
use crate::store::precondition::{TOMBSTONE_LIFE, TOMBSTONES};

/// Remembers that a session is deleted now.
pub(super) fn add(connection: &Connection, scope: &Scope) -> rusqlite::Result<()> {
    let mut add = connection.prepare_cached(
        "INSERT INTO tombstones (key, at) VALUES (?1, ?2)
         ON CONFLICT (key) DO UPDATE SET at = excluded.at",
    )?;
    add.execute(params![key(scope), wall_micros()])?;
    prune(connection)
}

/// Whether a session was deleted after a time.
pub(super) fn is_deleted(
    connection: &Connection,
    scope: &Scope,
    since: Instant,
) -> rusqlite::Result<bool> {
    let mut query = connection.prepare_cached("SELECT at FROM tombstones WHERE key = ?1")?;
    let at = query.query_row([key(scope)], |row| row.get::<_, i64>(0)).optional()?;
    let Some(at) = at else { return Ok(false) };
    let now = wall_micros();
    if at > now {
        let mut put_right =
            connection.prepare_cached("UPDATE tombstones SET at = ?2 WHERE key = ?1")?;
        put_right.execute(params![key(scope), now])?;
    }
    Ok(now.saturating_sub(micros(since.elapsed())) <= at.min(now))
}

/// Drops expired rows, and the oldest if there are too many.
pub(super) fn prune(connection: &Connection) -> rusqlite::Result<()> {
    let mut old = connection.prepare_cached("DELETE FROM tombstones WHERE at < ?1")?;
    old.execute([wall_micros().saturating_sub(micros(TOMBSTONE_LIFE))])?;
    let mut many = connection.prepare_cached(
        "DELETE FROM tombstones WHERE key IN (
             SELECT key FROM tombstones INDEXED BY tombstones_by_time
             ORDER BY at DESC LIMIT -1 OFFSET ?1)",
    )?;
    many.execute([i64::try_from(TOMBSTONES).unwrap_or(i64::MAX)]).map(drop)
}

/// A hash, so that no name of a deleted session remains.
fn key(scope: &Scope) -> [u8; 16] {
    let name = format!("{}\0{}", scope.tenant, scope.session);
    let mut key = [0; 16];
    key.copy_from_slice(&blake3::hash(name.as_bytes()).as_bytes()[..16]);
    key
}

/// Deletes a session: from now on it cannot be found. Returns how many records it had.
pub(super) fn doom(connection: &Connection, id: i64, urgent: bool) -> rusqlite::Result<u64> {
    let mut delete =
        connection.prepare_cached("DELETE FROM scopes WHERE id = ?1 RETURNING records, bytes")?;
    let gone = delete.query_row([id], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)));
    let Some((records, bytes)) = gone.optional()? else { return Ok(0) };
    let mut insert = connection.prepare_cached("INSERT INTO doomed VALUES (?1, ?2, ?3)")?;
    insert.execute(params![id, bytes, urgent])?;
    Ok(u64::try_from(records).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::store::conformance::scope;
    use crate::store::sqlite::schema;

    fn opened() -> Connection {
        let mut connection = Connection::open_in_memory().unwrap();
        schema::prepare(&mut connection, Path::new("in memory")).unwrap();
        connection
    }

    fn count(connection: &Connection) -> i64 {
        let count = "SELECT count(*) FROM tombstones";
        connection.query_row(count, [], |row| row.get(0)).unwrap()
    }

    #[test]
    fn tombstones_are_limited_in_time_and_number() {
        let connection = opened();
        let add = |number: usize, at: i64| {
            let key = (number as u128).to_be_bytes();
            connection.execute("INSERT INTO tombstones VALUES (?1, ?2)", params![key, at]).unwrap();
        };
        add(0, wall_micros() - micros(TOMBSTONE_LIFE) - 1);
        add(1, wall_micros() - micros(TOMBSTONE_LIFE) + 60_000_000);
        prune(&connection).unwrap();
        assert_eq!(count(&connection), 1);
        connection.execute_batch("BEGIN").unwrap();
        (2..=TOMBSTONES + 9).for_each(|number| add(number, wall_micros()));
        connection.execute_batch("COMMIT").unwrap();
        let before = Instant::now();
        super::add(&connection, &scope("t", "s")).unwrap();
        assert_eq!(count(&connection), TOMBSTONES as i64);
        assert!(is_deleted(&connection, &scope("t", "s"), before).unwrap());
    }

    #[test]
    fn a_tombstone_in_the_future_does_not_block_a_new_session() {
        let connection = opened();
        let before = Instant::now();
        add(&connection, &scope("t", "s")).unwrap();
        connection.execute("UPDATE tombstones SET at = at + 3600000000", []).unwrap();
        assert!(is_deleted(&connection, &scope("t", "s"), before).unwrap());
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert!(!is_deleted(&connection, &scope("t", "s"), Instant::now()).unwrap());
    }

    #[test]
    fn a_tombstone_does_not_contain_the_session_name() {
        let connection = opened();
        add(&connection, &scope("t", "the secret project")).unwrap();
        let key = "SELECT hex(key) FROM tombstones";
        let key: String = connection.query_row(key, [], |row| row.get(0)).unwrap();
        assert_eq!(key.len(), 32);
        assert_ne!(super::key(&scope("t", "s")), super::key(&scope("ts", "")));
    }
}
