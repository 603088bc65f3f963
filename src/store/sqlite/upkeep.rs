//! What the writer does between writes, in steps of a few milliseconds: deletes what is forgotten, moves
//! what an older version wrote, gives room back to the disk, and empties the log of what was deleted.
//!
//! A session is forgotten as a whole: its line goes at once, so that nobody finds it any more, and its
//! facts follow step by step, after a restart too. A step that fails is told with the next
//! [`Store::expire`](crate::store::Store::expire) and tried again.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::{CachedStatement, Connection, OptionalExtension, params};

use super::legacy::{LegacyFacts, RekeyFact};
use super::retention::RetentionRule;
use super::{beside, migration, scope_in, tombstones};
use crate::context::Millis;
use crate::store::{Scope, SweepStep};

/// How long a transaction waits for another program that writes to the file: for longer than the end of a reply
/// waits by default (`limits.commit_ms`), so that a turn that is late is kept all the same.
pub(super) const LOCKED: Duration = Duration::from_secs(30);
/// How long a step should take; the next one does more or less accordingly.
const STEP: Duration = Duration::from_millis(2);
/// Fewest and most rows or pages of a step.
const COUNT: (usize, usize) = (4, 2048);
/// Bytes of values after which a step has done enough, however few rows that were.
const STEP_BYTES: u64 = 256 << 10;
/// Sessions that are forgotten at a time.
const SESSIONS: i64 = 64;
/// Free pages that stay in the file for what comes next: 2 MiB.
const FREE_PAGES: u64 = 512;
/// How far ahead of the newest turn a session's last use may be.
const AHEAD: Millis = 2 * 24 * 3600 * 1000;
/// How long a step waits for those who read what is in the log.
const TIMEOUT: Duration = Duration::from_millis(20);

/// Work between writes, and how far it is.
pub(super) struct Upkeep {
    log: PathBuf,
    /// What an earlier version wrote passes through this as it is moved.
    seal: RekeyFact,
    rule: RetentionRule,
    /// The time of the turn that was written last; 0 where none was.
    now: Millis,
    /// Rows or pages of the next step.
    count: usize,
    /// What the moved sessions take; `None` where nobody counted yet.
    moved: Option<u64>,
    /// How far the values of a forgotten session are overwritten.
    cleared: Option<ClearedSession>,
    /// Whether the log may hold what was deleted.
    unclean: bool,
}

/// A forgotten session, and the fact up to which its values are overwritten.
#[derive(Clone, Copy)]
struct ClearedSession {
    session: i64,
    kind: i64,
    key: [u8; 16],
    whole: bool,
}

impl Upkeep {
    pub(super) fn new(file: &Path, seal: RekeyFact) -> Self {
        let rule = RetentionRule { before: 0, max_bytes: u64::MAX };
        // A log that another process left may hold what it deleted.
        Self {
            log: beside(file, "-wal"),
            seal,
            rule,
            now: 0,
            count: 64,
            moved: None,
            cleared: None,
            unclean: true,
        }
    }

    /// Does one step; `false` where nothing is left to do.
    pub(super) fn step(
        &mut self,
        connection: &Connection,
        moving: &LegacyFacts,
    ) -> rusqlite::Result<bool> {
        let began = Instant::now();
        let worked = match next_doomed(connection)? {
            Some(doomed) => {
                self.unclean |= doomed.urgent;
                self.delete(connection, &doomed)?;
                true
            }
            None if moving.has(connection)? => {
                let is_full = self.moved(connection)? >= self.rule.max_bytes;
                let (rule, count, seal) = (self.rule, self.count, &self.seal);
                let moved = in_transaction(connection, || {
                    migration::step(connection, rule, is_full, count, seal)
                })?;
                // The log has it as it was.
                self.unclean = true;
                self.moved = self.moved.map(|before| before + moved);
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

    /// Forgets the next sessions that are past their time or room.
    pub(super) fn expire(
        &mut self,
        connection: &Connection,
        rule: RetentionRule,
        moving: &LegacyFacts,
    ) -> rusqlite::Result<SweepStep> {
        self.rule = rule;
        let is_moving = moving.has(connection)?;
        in_transaction(connection, || {
            tombstones::prune(connection)?;
            // A few at a time: what is being deleted is measured again before more goes.
            if next_doomed(connection)?.is_some() {
                return Ok(SweepStep { more: true, ..SweepStep::default() });
            }
            if self.now > 0 {
                put_right(connection, self.now)?;
            }
            let mut expired = too_old(connection, rule.before)?;
            // What was not moved yet is older than what was.
            if expired.scopes.is_empty() && !is_moving {
                let used = used_bytes(connection)?;
                let too_much = used.saturating_sub(rule.max_bytes);
                if too_much > 0 {
                    expired.join(unused_longest(connection, too_much)?);
                }
            }
            expired.more |= is_moving || !expired.scopes.is_empty();
            Ok(expired)
        })
    }

    /// Overwrites some of a session's values, or, where that is done, deletes some of its facts. First all
    /// are overwritten in their place: deleting a row moves others to another page, and may leave a copy
    /// of them in the unused bytes of their old one.
    fn delete(&mut self, connection: &Connection, doomed: &DoomedSession) -> rusqlite::Result<()> {
        // Turns are hashes and numbers, and are many: they are overwritten on request alone.
        let kind = if doomed.urgent { 0 } else { 1 };
        let begin = ClearedSession { session: doomed.id, kind, key: [0xff; 16], whole: false };
        let cleared = self.cleared.filter(|it| it.session == doomed.id).unwrap_or(begin);
        let count = self.count;
        if cleared.whole {
            return in_transaction(connection, || delete(connection, doomed, count));
        }
        self.cleared = Some(in_transaction(connection, || clear(connection, cleared, count))?);
        Ok(())
    }

    /// A turn of this time was written.
    pub(super) fn turn_at(&mut self, at: Millis) {
        self.now = at;
    }

    /// Whether the log holds what was deleted on request.
    pub(super) fn is_unclean(&mut self) {
        self.unclean = true;
    }

    /// What the moved sessions take, counted once.
    fn moved(&mut self, connection: &Connection) -> rusqlite::Result<u64> {
        if let Some(moved) = self.moved {
            return Ok(moved);
        }
        let sum = "SELECT coalesce(sum(bytes), 0) FROM scopes";
        let moved = connection.query_row(sum, [], |row| row.get(0))?;
        self.moved = Some(moved);
        Ok(moved)
    }

    pub(super) fn log_bytes(&self) -> u64 {
        std::fs::metadata(&self.log).map_or(0, |file| file.len())
    }
}

/// As much for the next step as would have taken [`STEP`], changing by half at most.
fn next_count(count: usize, took: Duration) -> usize {
    let next = if took > STEP * 3 / 2 {
        count / 2
    } else if took < STEP / 2 {
        count * 2
    } else {
        count
    };
    next.clamp(COUNT.0, COUNT.1)
}

/// All of it or nothing.
pub(super) fn in_transaction<T>(
    connection: &Connection,
    work: impl FnOnce() -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    let step = |words| connection.prepare_cached(words)?.execute([]);
    step("BEGIN IMMEDIATE")?;
    let done = work().and_then(|done| step("COMMIT").map(|_| done));
    done.inspect_err(|_| drop(step("ROLLBACK")))
}

/// A session whose facts are being deleted.
struct DoomedSession {
    id: i64,
    /// A person asked for it.
    urgent: bool,
}

fn next_doomed(connection: &Connection) -> rusqlite::Result<Option<DoomedSession>> {
    let mut urgent = connection
        .prepare_cached("SELECT id, urgent FROM doomed WHERE urgent ORDER BY id LIMIT 1")?;
    let mut any = connection.prepare_cached("SELECT id, urgent FROM doomed ORDER BY id LIMIT 1")?;
    let one = |query: &mut CachedStatement<'_>| {
        let row =
            query.query_row([], |row| Ok(DoomedSession { id: row.get(0)?, urgent: row.get(1)? }));
        row.optional()
    };
    // The table is small: a few sessions at a time.
    Ok(one(&mut urgent)?.or(one(&mut any)?))
}

/// Overwrites the next values of a session with zeros.
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
        let asked = params![from.session, from.kind, from.key, count as i64];
        let rows = query.query_map(asked, |row| {
            let at = ClearedSession { kind: row.get(1)?, key: row.get(2)?, ..from };
            Ok((row.get::<_, i64>(0)?, at, row.get::<_, u64>(3)?))
        })?;
        rows.collect::<rusqlite::Result<Vec<_>>>()?
    };
    let mut overwrite = connection
        .prepare_cached("UPDATE facts SET value = zeroblob(octet_length(value)) WHERE id = ?1")?;
    let (mut at, mut bytes) = (ClearedSession { whole: rows.is_empty(), ..from }, 0);
    for (id, next, length) in rows {
        overwrite.execute([id])?;
        at = next;
        bytes += length;
        if bytes > STEP_BYTES {
            break;
        }
    }
    Ok(at)
}

/// Deletes some of a session's facts, then of its signs; at last it is over.
fn delete(connection: &Connection, doomed: &DoomedSession, count: usize) -> rusqlite::Result<()> {
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
    let signs = {
        let mut query =
            connection.prepare_cached("SELECT tenant, key FROM signs WHERE scope = ?1 LIMIT ?2")?;
        let rows = query.query_map(params![doomed.id, count as i64], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, [u8; 16]>(1)?))
        })?;
        rows.collect::<rusqlite::Result<Vec<_>>>()?
    };
    let mut delete =
        connection.prepare_cached("DELETE FROM signs WHERE tenant = ?1 AND key = ?2")?;
    for (tenant, key) in &signs {
        delete.execute(params![tenant, key])?;
    }
    if signs.is_empty() {
        connection.prepare_cached("DELETE FROM doomed WHERE id = ?1")?.execute([doomed.id])?;
    }
    Ok(())
}

/// Sessions that may be forgotten, the one used longest ago first. The one used last always stays.
const UNUSED: &str = "
SELECT tenants.name, scopes.session, scopes.id, scopes.bytes, scopes.used FROM scopes
JOIN tenants ON tenants.id = scopes.tenant
WHERE learned = 0 AND scopes.id <> (
    SELECT id FROM scopes WHERE learned = 0 ORDER BY used DESC, id DESC LIMIT 1)
ORDER BY used, scopes.id LIMIT ?1";

/// Forgets the sessions that `is_next` names, of those unused longest, until it names none.
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
        expired.records += tombstones::doom(connection, id, false)?;
        expired.scopes.push(scope);
    }
    Ok(expired)
}

/// Sessions of a clock that was far ahead were last used now: else they would be forgotten last, and those
/// in use before them.
fn put_right(connection: &Connection, now: Millis) -> rusqlite::Result<()> {
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
    let mut gone = 0;
    forget_while(connection, |_, bytes| {
        let is_next = gone < too_much;
        gone += bytes;
        is_next
    })
}

/// Gives free pages at the end of the file back to the disk, where there are many; `false` where
/// there are not.
fn give_back(connection: &Connection, count: usize) -> rusqlite::Result<bool> {
    let pages = pragma(connection, "page_count")?;
    let free = pragma(connection, "freelist_count")?;
    if free <= FREE_PAGES.max(pages / 16) {
        return Ok(false);
    }
    // A row for each page: the statement has to be stepped to its end.
    let mut vacuum = connection.prepare(&format!("PRAGMA incremental_vacuum({count})"))?;
    let mut rows = vacuum.query([])?;
    while rows.next()?.is_some() {}
    // A file that was not made for it keeps its pages, and uses them again.
    Ok(pragma(connection, "freelist_count")? < free)
}

/// Brings the log into the file and empties it; `false` where somebody still reads from it after
/// `timeout`, for which writes wait.
pub(super) fn truncate(connection: &Connection, timeout: Duration) -> rusqlite::Result<bool> {
    connection.busy_timeout(timeout)?;
    let busy = connection
        .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, i64>(0))
        .map(|busy| busy != 0);
    connection.busy_timeout(LOCKED)?;
    Ok(!busy?)
}

/// What the file's pages in use take.
fn used_bytes(connection: &Connection) -> rusqlite::Result<u64> {
    let pages = pragma(connection, "page_count")?;
    let free = pragma(connection, "freelist_count")?;
    Ok(pages.saturating_sub(free) * pragma(connection, "page_size")?)
}

fn pragma(connection: &Connection, name: &str) -> rusqlite::Result<u64> {
    connection.pragma_query_value(None, name, |row| row.get(0))
}
