//! The writer's work between writes, in steps of a few milliseconds: erases deleted sessions, returns
//! space to the disk, and empties the log of deleted data.
//!
//! A session is deleted as a whole: its row at once, so that it cannot be found any more, and its records
//! step by step, also after a restart. A failed step is reported by the next
//! [`Store::expire`](crate::store::Store::expire), and retried.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::{CachedStatement, Connection, OptionalExtension, params};

use super::columns::scope_in;
use super::connection::beside;
use super::facts::doom;
use super::retention::RetentionRule;
use crate::context::Millis;
use crate::store::{Record, RecordKind, Scope, SweepStep};

/// How long a transaction waits for another program that writes to the file: longer than the end of a reply
/// waits by default, so that a late turn is stored all the same.
pub(super) const LOCKED: Duration = Duration::from_secs(30);
/// How long a step should take; the size of the next one is adapted.
const STEP: Duration = Duration::from_millis(2);
/// Fewest and most rows or pages per step.
const COUNT: (usize, usize) = (4, 2048);
/// A step ends after this many bytes of values, however few rows that were.
const STEP_BYTES: u64 = 256 << 10;
/// Sessions that are deleted at a time.
const SESSIONS: i64 = 64;
/// Free pages that stay in the file for later data: 2 MiB.
const FREE_PAGES: u64 = 512;
/// How far ahead of the newest turn a session's last use may be.
const AHEAD: Millis = 2 * 24 * 3600 * 1000;
/// How long a step waits for readers of the log.
const TIMEOUT: Duration = Duration::from_millis(20);

/// The work between writes, and its progress.
pub(super) struct Upkeep {
    log: PathBuf,
    /// The time of the last turn that was written; 0 if none was.
    now: Millis,
    /// Rows or pages of the next step.
    count: usize,
    /// How many values of a deleted session are already overwritten.
    cleared: Option<ClearedSession>,
    /// Whether the log may contain deleted data.
    unclean: bool,
}

/// A deleted session, and the record up to which its values are overwritten.
#[derive(Clone, Copy)]
struct ClearedSession {
    session: i64,
    kind: i64,
    key: [u8; 16],
    whole: bool,
}

impl Upkeep {
    pub(super) fn new(file: &Path) -> Self {
        // A log that an earlier process left may contain data that it deleted.
        Self { log: beside(file, "-wal"), now: 0, count: 64, cleared: None, unclean: true }
    }

    /// Does one step; `false` if there is nothing to do.
    pub(super) fn step(&mut self, connection: &Connection) -> rusqlite::Result<bool> {
        let began = Instant::now();
        let worked = match next_doomed(connection)? {
            Some(doomed) => {
                self.unclean |= doomed.urgent;
                self.delete(connection, &doomed)?;
                true
            }
            None => give_back(connection, self.count)?,
        };
        if worked {
            self.count = next_count(self.count, began.elapsed());
            return Ok(true);
        }
        if self.unclean {
            self.unclean = !truncate(connection, TIMEOUT)?;
        }
        Ok(self.unclean)
    }

    pub(super) fn expire(
        &mut self,
        connection: &Connection,
        rule: RetentionRule,
    ) -> rusqlite::Result<SweepStep> {
        in_transaction(connection, || {
            // A few at a time: the size is measured again before more are deleted.
            if next_doomed(connection)?.is_some() {
                return Ok(SweepStep { more: true, ..SweepStep::default() });
            }
            if self.now > 0 {
                put_right(connection, self.now)?;
            }
            let mut expired = too_old(connection, rule.before)?;
            if expired.scopes.is_empty() {
                let used = used_bytes(connection)?;
                let too_much = used.saturating_sub(rule.max_bytes);
                if too_much > 0 {
                    expired.join(unused_longest(connection, too_much)?);
                }
            }
            expired.more |= !expired.scopes.is_empty();
            Ok(expired)
        })
    }

    fn delete(&mut self, connection: &Connection, doomed: &DoomedSession) -> rusqlite::Result<()> {
        // All values are overwritten in place first, because deleting a row can move others to
        // another page, and leave a copy of them in unused bytes.
        let kind = if doomed.urgent { 0 } else { 1 };
        let begin = ClearedSession { session: doomed.id, kind, key: [0xff; 16], whole: false };
        // Another session may have been deleted on request meanwhile, which comes first.
        let cleared = self.cleared.filter(|cleared| cleared.session == doomed.id).unwrap_or(begin);
        let count = self.count;
        if cleared.whole {
            return in_transaction(connection, || delete(connection, doomed, count));
        }
        self.cleared = Some(in_transaction(connection, || clear(connection, cleared, count))?);
        Ok(())
    }

    /// Notes the time that written turns tell; other records may have any.
    pub(super) fn written(&mut self, records: &[Record]) {
        for turn in records.iter().filter(|record| record.kind == RecordKind::Turn) {
            self.now = turn.at;
        }
    }

    /// Records that the log contains data that was deleted on request.
    pub(super) fn is_unclean(&mut self) {
        self.unclean = true;
    }

    pub(super) fn log_bytes(&self) -> u64 {
        std::fs::metadata(&self.log).map_or(0, |file| file.len())
    }
}

fn next_count(count: usize, took: Duration) -> usize {
    // Halved or doubled at most: one slow moment of the disk says little.
    let wanted = if took > STEP * 3 / 2 {
        count / 2
    } else if took < STEP / 2 {
        count * 2
    } else {
        count
    };
    wanted.clamp(COUNT.0, COUNT.1)
}

/// Runs `work` in a transaction: all of it or nothing.
pub(super) fn in_transaction<T>(
    connection: &Connection,
    work: impl FnOnce() -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    // IMMEDIATE takes the write lock now: taken later, it could fail in the middle.
    execute(connection, "BEGIN IMMEDIATE")?;
    let outcome = work().and_then(|value| execute(connection, "COMMIT").map(|()| value));
    if outcome.is_err() {
        // The error that counts is the first one.
        drop(execute(connection, "ROLLBACK"));
    }
    outcome
}

fn execute(connection: &Connection, sql: &str) -> rusqlite::Result<()> {
    connection.prepare_cached(sql)?.execute([]).map(drop)
}

/// A session whose records are being deleted.
struct DoomedSession {
    id: i64,
    /// The deletion was requested.
    urgent: bool,
}

fn next_doomed(connection: &Connection) -> rusqlite::Result<Option<DoomedSession>> {
    // What was deleted on request has to be gone within seconds.
    let mut urgent = connection
        .prepare_cached("SELECT id, urgent FROM doomed WHERE urgent ORDER BY id LIMIT 1")?;
    let mut any = connection.prepare_cached("SELECT id, urgent FROM doomed ORDER BY id LIMIT 1")?;
    // The table is small: a few sessions at a time.
    match doomed(&mut urgent)? {
        Some(session) => Ok(Some(session)),
        None => doomed(&mut any),
    }
}

fn doomed(query: &mut CachedStatement<'_>) -> rusqlite::Result<Option<DoomedSession>> {
    query.query_row([], |row| Ok(DoomedSession { id: row.get(0)?, urgent: row.get(1)? })).optional()
}

fn clear(
    connection: &Connection,
    from: ClearedSession,
    count: usize,
) -> rusqlite::Result<ClearedSession> {
    let rows = {
        let mut query = connection.prepare_cached(
            "SELECT id, kind, key, octet_length(value) FROM facts
             WHERE scope = ?1 AND (kind, key) > (?2, ?3)
             ORDER BY kind, key LIMIT ?4",
        )?;
        let values = params![from.session, from.kind, from.key, count as i64];
        let rows = query.query_map(values, |row| {
            let position = ClearedSession { kind: row.get(1)?, key: row.get(2)?, ..from };
            Ok((row.get::<_, i64>(0)?, position, row.get::<_, u64>(3)?))
        })?;
        rows.collect::<rusqlite::Result<Vec<_>>>()?
    };
    // Overwritten first, because a deleted row stays readable in a free page.
    let mut overwrite = connection
        .prepare_cached("UPDATE facts SET value = zeroblob(octet_length(value)) WHERE id = ?1")?;
    let mut cleared = ClearedSession { whole: rows.is_empty(), ..from };
    let mut bytes = 0;
    for (id, position, length) in rows {
        overwrite.execute([id])?;
        cleared = position;
        bytes += length;
        // Writes of traffic wait for this step.
        if bytes > STEP_BYTES {
            break;
        }
    }
    Ok(cleared)
}

fn delete(connection: &Connection, doomed: &DoomedSession, count: usize) -> rusqlite::Result<()> {
    // Its entry goes last, so that a restart in the middle goes on.
    let rows = {
        let mut query = connection.prepare_cached(
            "SELECT id, octet_length(value) FROM facts WHERE scope = ?1 LIMIT ?2",
        )?;
        let rows = query.query_map(params![doomed.id, count as i64], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, u64>(1)?))
        })?;
        rows.collect::<rusqlite::Result<Vec<_>>>()?
    };
    if !rows.is_empty() {
        let mut delete = connection.prepare_cached("DELETE FROM facts WHERE id = ?1")?;
        let mut bytes = 0;
        for (id, length) in rows {
            delete.execute([id])?;
            bytes += length;
            if bytes > STEP_BYTES {
                break;
            }
        }
        return Ok(());
    }
    let fingerprints = {
        let mut query =
            connection.prepare_cached("SELECT tenant, key FROM signs WHERE scope = ?1 LIMIT ?2")?;
        let rows = query.query_map(params![doomed.id, count as i64], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, [u8; 16]>(1)?))
        })?;
        rows.collect::<rusqlite::Result<Vec<_>>>()?
    };
    let mut delete =
        connection.prepare_cached("DELETE FROM signs WHERE tenant = ?1 AND key = ?2")?;
    for (tenant, key) in &fingerprints {
        delete.execute(params![tenant, key])?;
    }
    if fingerprints.is_empty() {
        connection.prepare_cached("DELETE FROM doomed WHERE id = ?1")?.execute([doomed.id])?;
    }
    Ok(())
}

/// Sessions that may be deleted, the least recently used first. The most recently used one always stays.
const UNUSED: &str = "
SELECT tenants.name, scopes.session, scopes.id, scopes.bytes, scopes.used FROM scopes
JOIN tenants ON tenants.id = scopes.tenant
WHERE learned = 0 AND scopes.id <> (
    SELECT id FROM scopes WHERE learned = 0 ORDER BY used DESC, id DESC LIMIT 1)
ORDER BY used, scopes.id LIMIT ?1";

/// Deletes the least recently used sessions as long as `is_next` accepts them.
fn forget_while(
    connection: &Connection,
    mut is_next: impl FnMut(Millis, u64) -> bool,
) -> rusqlite::Result<SweepStep> {
    let lines = {
        let mut query = connection.prepare_cached(UNUSED)?;
        let rows = query.query_map([SESSIONS], |row| {
            Ok((scope_in(row)?, row.get::<_, i64>(2)?, row.get::<_, u64>(3)?, row.get(4)?))
        })?;
        rows.collect::<rusqlite::Result<Vec<(Scope, i64, u64, Millis)>>>()?
    };
    let mut expired = SweepStep::default();
    for (scope, id, bytes, used) in lines {
        if !is_next(used, bytes) {
            break;
        }
        expired.records += doom(connection, id, false)?;
        expired.scopes.push(scope);
    }
    Ok(expired)
}

fn put_right(connection: &Connection, now: Millis) -> rusqlite::Result<()> {
    // A wrong clock would otherwise have them deleted last.
    let mut update = connection.prepare_cached(
        "UPDATE scopes SET used = ?2 WHERE id IN (
             SELECT id FROM scopes INDEXED BY scopes_by_use WHERE learned = 0 AND used > ?1
             LIMIT ?3)",
    )?;
    update.execute(params![now.saturating_add(AHEAD), now, SESSIONS]).map(drop)
}

fn too_old(connection: &Connection, before: Millis) -> rusqlite::Result<SweepStep> {
    forget_while(connection, |used, _| used < before)
}

fn unused_longest(connection: &Connection, too_much: u64) -> rusqlite::Result<SweepStep> {
    let mut freed_bytes = 0;
    forget_while(connection, |_, bytes| {
        let is_next = freed_bytes < too_much;
        freed_bytes += bytes;
        is_next
    })
}

fn give_back(connection: &Connection, count: usize) -> rusqlite::Result<bool> {
    // A few stay for later data: they would only be asked for again.
    let pages = pragma(connection, "page_count")?;
    let free = pragma(connection, "freelist_count")?;
    if free <= FREE_PAGES.max(pages / 16) {
        return Ok(false);
    }
    // The statement returns a row per page, and has to be stepped to its end.
    let mut vacuum = connection.prepare(&format!("PRAGMA incremental_vacuum({count})"))?;
    let mut rows = vacuum.query([])?;
    while rows.next()?.is_some() {}
    // A file that was made without auto-vacuum keeps its pages, and reuses them.
    Ok(pragma(connection, "freelist_count")? < free)
}

/// Merges the log into the file and empties it; `false` if somebody still reads from it after `timeout`.
pub(super) fn truncate(connection: &Connection, timeout: Duration) -> rusqlite::Result<bool> {
    // Writes wait meanwhile.
    // Only for this statement: a commit waits longer.
    connection.busy_timeout(timeout)?;
    let busy = connection
        .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, i64>(0))
        .map(|busy| busy != 0);
    connection.busy_timeout(LOCKED)?;
    Ok(!busy?)
}

fn used_bytes(connection: &Connection) -> rusqlite::Result<u64> {
    let pages = pragma(connection, "page_count")?;
    let free = pragma(connection, "freelist_count")?;
    Ok(pages.saturating_sub(free) * pragma(connection, "page_size")?)
}

fn pragma(connection: &Connection, name: &str) -> rusqlite::Result<u64> {
    connection.pragma_query_value(None, name, |row| row.get(0))
}

#[cfg(test)]
mod tests {
    use super::super::connection::{connect, tune};
    use super::super::{facts, schema};
    use super::*;
    use crate::store::conformance::{self, scope, turn};
    use crate::store::{Record, RecordKind};

    const NOW: Millis = 1_795_000_000_000;

    /// A file with its tables, and its upkeep.
    struct UpkeepFixture {
        connection: Connection,
        upkeep: Upkeep,
        _folder: tempfile::TempDir,
    }

    impl UpkeepFixture {
        fn new() -> Self {
            let folder = conformance::folder();
            let path = folder.path().join("p.db");
            let mut connection = connect(&path).unwrap();
            tune(&connection).unwrap();
            schema::prepare(&mut connection, &path).unwrap();
            Self { connection, upkeep: Upkeep::new(&path), _folder: folder }
        }

        fn put(&self, scope: &Scope, records: &[Record]) {
            let put = || facts::put(&self.connection, scope, records);
            in_transaction(&self.connection, put).unwrap();
        }

        fn step(&mut self) -> bool {
            self.upkeep.step(&self.connection).unwrap()
        }

        fn rests(&mut self) {
            for _ in 0..1000 {
                if !self.step() {
                    return;
                }
            }
            panic!("there is always more to do");
        }

        fn expire(&mut self, before: Millis, max_bytes: u64) -> SweepStep {
            let rule = RetentionRule { before, max_bytes };
            self.upkeep.expire(&self.connection, rule).unwrap()
        }

        fn number(&self, query: &str) -> u64 {
            self.connection.query_row(query, [], |row| row.get(0)).unwrap()
        }
    }

    fn content(key: u128, bytes: usize, at: Millis) -> Record {
        Record { kind: RecordKind::Content, ..turn(key, &"x".repeat(bytes), at) }
    }

    fn sessions(names: impl IntoIterator<Item = u64>) -> Vec<Scope> {
        names.into_iter().map(|n| scope("t", &format!("s{n}"))).collect()
    }

    #[test]
    fn upkeep_steps_adapt_their_size() {
        let next = |count, us| next_count(count, Duration::from_micros(us));
        assert_eq!([next(100, 3001), next(100, 3000)], [50, 100]);
        assert_eq!([next(100, 1000), next(100, 999)], [100, 200]);
        assert_eq!([next(COUNT.0, 9000), next(COUNT.1, 0)], [COUNT.0, COUNT.1], "the bounds");
    }

    /// A step that deletes large values does not delay requests: it ends after a number of bytes.
    #[test]
    fn deletion_steps_are_limited() {
        const VALUE: usize = 64 << 10;
        let file = UpkeepFixture::new();
        let all: Vec<Record> = (0..7).map(|key| content(key, VALUE, 1)).collect();
        file.put(&scope("t", "s"), &all);
        let session = file.number("SELECT id FROM scopes WHERE session = 's'") as i64;
        let begin = ClearedSession { session, kind: 0, key: [0xff; 16], whole: false };
        let overwritten = "SELECT count(*) FROM facts WHERE value = zeroblob(65536)";
        let at = clear(&file.connection, begin, 2048).unwrap();
        assert_eq!(file.number(overwritten), 5, "four are exactly as many");
        assert!(!at.whole, "four are exactly as many");
        let at = clear(&file.connection, at, 2048).unwrap();
        assert_eq!(file.number(overwritten), 7);
        assert!(!at.whole);
        assert!(clear(&file.connection, at, 2048).unwrap().whole);
        let doomed = DoomedSession { id: session, urgent: true };
        delete(&file.connection, &doomed, 2048).unwrap();
        assert_eq!(file.number("SELECT count(*) FROM facts"), 2);
        delete(&file.connection, &doomed, 1).unwrap();
        assert_eq!(file.number("SELECT count(*) FROM facts"), 1, "nor more rows than it may");
    }

    #[test]
    fn sessions_expire_in_groups() {
        let mut file = UpkeepFixture::new();
        for n in 0..70 {
            file.put(&scope("t", &format!("s{n}")), &[turn(1, "t", NOW + n)]);
        }
        // While no time is known yet, nothing is corrected.
        assert_eq!(file.expire(NOW, u64::MAX), SweepStep::default());
        let gone = file.expire(NOW + 69, u64::MAX);
        assert_eq!(gone.records, 64);
        assert!(gone.more);
        assert_eq!(gone.scopes, sessions(0..64), "the least recently used first");
        let waits = SweepStep { more: true, ..SweepStep::default() };
        assert_eq!(file.expire(NOW + 69, u64::MAX), waits);
        file.rests();
        assert_eq!(file.expire(NOW + 69, u64::MAX).scopes, sessions(64..69));
        file.rests();
        assert_eq!(file.expire(NOW + 69, u64::MAX), SweepStep::default());
    }

    #[test]
    fn sweeps_delete_only_excess() {
        let mut file = UpkeepFixture::new();
        for n in 0..6 {
            file.put(&scope("t", &format!("s{n}")), &[content(1, 20_000, NOW + n)]);
        }
        let used = used_bytes(&file.connection).unwrap();
        let one = file.number("SELECT bytes FROM scopes WHERE session = 's0'");
        assert_eq!(file.expire(0, used), SweepStep::default(), "exactly as much as there may be");
        // What is too old is deleted first. After that, the size is measured again.
        assert_eq!(file.expire(NOW + 1, used - one).scopes, sessions(0..1));
        file.rests();
        let used = used_bytes(&file.connection).unwrap();
        assert_eq!(file.expire(0, used - one).scopes, sessions(1..2));
        file.rests();
        let used = used_bytes(&file.connection).unwrap();
        assert_eq!(file.expire(0, used - one - 1).scopes, sessions(2..4));
    }

    /// What was deleted on request leaves the log as soon as nobody reads it any more. After other deletions the log
    /// stays, and is reused.
    #[test]
    fn requested_deletions_empty_log() {
        let mut file = UpkeepFixture::new();
        file.rests();
        assert_eq!(file.upkeep.log_bytes(), 0, "an earlier process may have left something in it");
        let there = |file: &UpkeepFixture| file.upkeep.log_bytes() > 0;
        let doom = |file: &UpkeepFixture, urgent| {
            file.put(&scope("t", "s"), &[turn(1, "t", 1)]);
            let id = file.number("SELECT id FROM scopes WHERE session = 's'") as i64;
            in_transaction(&file.connection, || doom(&file.connection, id, urgent)).unwrap();
        };
        doom(&file, false);
        file.rests();
        assert!(there(&file), "it expired");
        doom(&file, true);
        file.rests();
        assert!(!there(&file), "it was deleted");
        file.put(&scope("t", "other"), &[turn(1, "t", 1)]);
        file.rests();
        assert!(there(&file), "nothing was deleted");
        file.upkeep.is_unclean();
        file.rests();
        assert!(!there(&file));
    }

    #[test]
    fn log_is_emptied_after_readers() {
        let mut file = UpkeepFixture::new();
        file.rests();
        file.put(&scope("t", "s"), &[turn(1, "t", 1)]);
        let reader = Connection::open(file.connection.path().unwrap()).unwrap();
        reader.execute_batch("BEGIN; SELECT count(*) FROM facts").unwrap();
        file.put(&scope("t", "s"), &[turn(2, "t", 1)]);
        assert!(!truncate(&file.connection, TIMEOUT).unwrap());
        file.upkeep.is_unclean();
        assert!(file.step(), "it is tried again");
        reader.execute_batch("COMMIT").unwrap();
        assert!(truncate(&file.connection, TIMEOUT).unwrap());
        assert_eq!(file.upkeep.log_bytes(), 0);
    }

    /// Pages of 512 bytes, so that a file of a few megabytes has many.
    #[test]
    fn many_free_pages_are_returned() {
        for (vacuum, free, gives_back) in
            [("INCREMENTAL", 1_000, false), ("INCREMENTAL", 1_500, true), ("NONE", 1_500, false)]
        {
            let connection = Connection::open_in_memory().unwrap();
            connection
                .execute_batch(&format!(
                    "PRAGMA page_size = 512; PRAGMA auto_vacuum = {vacuum};
                     CREATE TABLE filler (id INTEGER PRIMARY KEY, value BLOB);
                     WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)
                     INSERT INTO filler SELECT i, zeroblob(5000) FROM n;
                     DELETE FROM filler WHERE id <= {free} / 10"
                ))
                .unwrap();
            let pages = pragma(&connection, "page_count").unwrap();
            let before = pragma(&connection, "freelist_count").unwrap();
            assert!(before > FREE_PAGES, "{before} of {pages}");
            assert!(pages / 16 > FREE_PAGES, "{before} of {pages}");
            assert_eq!(before > pages / 16, free == 1_500, "{before} of {pages}");
            assert_eq!(give_back(&connection, 30).unwrap(), gives_back, "{vacuum}");
            let after = pragma(&connection, "freelist_count").unwrap();
            assert_eq!(before - after, if gives_back { 30 } else { 0 });
        }
    }
}
