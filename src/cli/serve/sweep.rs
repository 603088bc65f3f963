//! Deletes expired data step by step, and reports the state of the store.
//!
//! Asks the store to delete what exceeds its age or size limit, as often as there is something to do. A
//! failure is reported at once and then now and then, until it is over. Knows the clock, and does not believe
//! it when it jumps: a year that passes in a second deletes nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::threads;
use crate::clock::{since_boot, wall};
use crate::config::Retention;
use crate::context::Millis;
use crate::store::ledgers::{CacheBytes, Ledgers};
use crate::store::served::ServedStore;
use crate::store::sqlite::{QUEUE_BYTES, StoreLoad};
use crate::store::{ScopePage, StoreError};
use crate::telemetry::{CacheKind, StoreState, Telemetry};

/// How often to ask the store if there is nothing to do.
const QUIET: Duration = Duration::from_secs(1);
/// The pause between two steps.
const BUSY: Duration = Duration::from_millis(5);
/// How often to delete expired lessons.
const LESSONS: Duration = Duration::from_secs(3600);
/// How often a continuing failure is reported, and how often the number of deleted sessions.
const REPORTED_EVERY: Duration = Duration::from_secs(60);
/// The farthest that the clock may move between two checks, beyond the time that has passed.
const JUMP: Millis = DAY * 2;
/// How long nothing is deleted for its age if, at the start, everything appears to be expired.
const GRACE: Duration = Duration::from_secs(3600);
const DAY: Millis = 24 * 3600 * 1000;

/// Deletes until it is dropped.
pub(super) async fn run(
    ledgers: Arc<Ledgers>,
    store: Arc<ServedStore>,
    telemetry: Arc<Telemetry>,
    retention: Retention,
) {
    let began = Instant::now();
    let age = retention.days.saturating_mul(DAY);
    let mut clock = RetentionClock { now: wall(), distrusted: false };
    let mut checked_at = since_boot();
    let mut notices = SweepNotices::default();
    let mut lessons_due = Instant::now();
    // As much may wait in the journal.
    report_cached(CacheBytes::LIMIT, 2 * QUEUE_BYTES, |what, bytes| {
        telemetry.set_cache_limit(what, bytes);
    });
    let mut is_paused = is_all_too_old(&ledgers, clock.now.saturating_sub(age)).await;
    if is_paused {
        tracing::warn!(
            "by this machine's clock everything stored is older than retention.days ({}); nothing is deleted for \
             an hour, so that a wrong clock can be corrected",
            retention.days
        );
    }
    loop {
        // A machine that sleeps for days has no clock that jumps.
        let previous_check = std::mem::replace(&mut checked_at, since_boot());
        let passed = checked_at.saturating_sub(previous_check);
        clock.advance(wall(), passed.as_millis() as Millis);
        is_paused &= began.elapsed() < GRACE;
        let limit = if is_paused { 0 } else { clock.now.saturating_sub(age) };
        let expired = ledgers.expire(limit, retention.bytes).await;
        let failure = store.failure();
        let load = store.load();
        let state = load.as_ref().map(|load| state(load, failure.is_some()));
        telemetry.set_store_state(state.as_ref());
        let queue = load.map_or(0, |load| load.write_bytes);
        report_cached(ledgers.cached(), queue, |what, bytes| telemetry.set_cached(what, bytes));
        telemetry.blocking_threads(threads::blocking());
        notices.report_store(failure.as_ref());
        let pause = match expired {
            Ok(deleted) => {
                telemetry.sessions_expired(deleted.scopes.len() as u64);
                notices.report_deleted(deleted.scopes.len());
                if deleted.more { BUSY } else { QUIET }
            }
            // It is reported already.
            Err(_) if failure.is_some() => QUIET,
            Err(trouble) => {
                notices.report_deletion_failure(&trouble);
                // A store that cannot be used at all has a metric of its own.
                if !is_unusable(&trouble) {
                    telemetry.retention_failed();
                }
                QUIET
            }
        };
        if lessons_due <= Instant::now() {
            lessons_due = Instant::now() + LESSONS;
            if let Err(trouble) = ledgers.lessons().expire(clock.now).await {
                tracing::warn!("expired lessons could not be deleted: {trouble}");
            }
        }
        tokio::time::sleep(pause).await;
    }
}

fn report_cached(of_sessions: CacheBytes, queue: usize, report: impl Fn(CacheKind, usize)) {
    report(CacheKind::Sessions, of_sessions.sessions);
    report(CacheKind::SessionDecisions, of_sessions.decisions);
    report(CacheKind::LatestRequests, of_sessions.latest_requests);
    report(CacheKind::StoreQueue, queue);
}

fn state(load: &StoreLoad, is_failing: bool) -> StoreState {
    let &StoreLoad { writes, traffic, admin, restarts, bytes, .. } = load;
    StoreState { writes, traffic, admin, restarts, bytes, is_failing }
}

async fn is_all_too_old(ledgers: &Ledgers, before: Millis) -> bool {
    // The newest session says it of all others.
    let newest = ledgers.sessions(ScopePage::first(1)).await.ok().and_then(|mut lines| lines.pop());
    newest.is_some_and(|line| line.cursor.used < before)
}

/// The time that retention uses.
#[derive(Debug, PartialEq, Eq)]
struct RetentionClock {
    now: Millis,
    /// Whether the machine's clock jumped ahead, which was reported.
    distrusted: bool,
}

impl RetentionClock {
    /// Takes over the machine's time, `passed` ms after the last check.
    fn advance(&mut self, wall: Millis, passed: Millis) {
        // A clock that jumped ahead is not believed: time continues from where it was. A clock that was set
        // back is believed, because that only keeps more.
        let expected = self.now.saturating_add(passed);
        let jumped = wall > expected.saturating_add(JUMP);
        if jumped && !self.distrusted {
            let days = (wall - expected) / DAY;
            tracing::warn!(
                "this machine's clock jumped {days} days ahead; no session is deleted because of \
                 that. If it is right now, restart Plimsoll"
            );
        }
        self.distrusted = jumped;
        self.now = if jumped { expected } else { wall };
    }
}

/// What was reported, and when.
#[derive(Default)]
struct SweepNotices {
    /// When a failure to delete was last reported.
    deletion_failure: Option<Instant>,
    /// When a failure of the store was last reported; `None` once it is over.
    store_failure: Option<Instant>,
    /// Sessions that were deleted since that was last reported.
    deleted: usize,
    deleted_reported: Option<Instant>,
}

/// Whether the store is not open.
fn is_unusable(trouble: &StoreError) -> bool {
    matches!(trouble, StoreError::Unusable(_) | StoreError::InUse(_) | StoreError::Damaged(_))
}

impl SweepNotices {
    fn report_deletion_failure(&mut self, trouble: &StoreError) {
        // A store that cannot be used at all is reported where it is opened.
        if !is_unusable(trouble)
            && self.deletion_failure.is_none_or(|at| at.elapsed() >= REPORTED_EVERY)
        {
            self.deletion_failure = Some(Instant::now());
            tracing::warn!("old sessions could not be deleted: {trouble}");
        }
    }

    fn report_store(&mut self, failure: Option<&StoreError>) {
        match failure {
            Some(failure) if self.store_failure.is_none_or(|at| at.elapsed() >= REPORTED_EVERY) => {
                self.store_failure = Some(Instant::now());
                tracing::warn!("nothing is stored for now, traffic continues: {failure}");
            }
            None if self.store_failure.take().is_some() => {
                tracing::warn!("turns are stored again");
            }
            _ => {}
        }
    }

    fn report_deleted(&mut self, sessions: usize) {
        self.deletion_failure = None;
        self.deleted += sessions;
        if self.deleted > 0 && self.deleted_reported.is_none_or(|at| at.elapsed() >= REPORTED_EVERY)
        {
            self.deleted_reported = Some(Instant::now());
            let sessions = std::mem::take(&mut self.deleted);
            tracing::info!("{sessions} sessions were deleted by retention.days or retention.bytes");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const YEAR: Millis = 365 * DAY;

    #[test]
    fn clock_jumps_expire_nothing() {
        let began = 10 * YEAR;
        // The machine's clock, how much time passed, and our time then.
        let looks = [
            (began + 1000, 1000, began + 1000),
            // The machine was suspended for a day.
            (began + DAY, 1000, began + DAY),
            // The clock jumps a year ahead: our time goes on from where it was.
            (began + YEAR, 1000, began + DAY + 1000),
            (began + YEAR + 5000, 5000, began + DAY + 6000),
            // The clock is set right again.
            (began + DAY + 9000, 3000, began + DAY + 9000),
            // The clock is set a year back: that is believed, and our time goes on from there.
            (began - YEAR, 1000, began - YEAR),
            (began - YEAR + 5000, 5000, began - YEAR + 5000),
        ];
        let mut clock = RetentionClock { now: began, distrusted: false };
        for (wall, passed, now) in looks {
            clock.advance(wall, passed);
            assert_eq!(clock.now, now, "{wall}");
        }
        assert!(!clock.distrusted);
    }
}
