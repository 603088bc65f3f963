//! What the page knows of all sessions: read from the store once, and again when a session changed.
//!
//! A list in another order than the newest first, a search and the history need every session. Each refresh walks the
//! store's list from its top, where changes are, and ends where everything is known, or after a second: then the answer says
//! how far back it is complete, and the next one goes on from there. It takes at most a sixteenth of the process's memory, as so many sessions and calls; past either,
//! the oldest are left out.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, MutexGuard};

use super::calls::{self, Call};
use super::view::SessionDetails;
use crate::clock::wall;
use crate::config::PriceList;
use crate::context::Millis;
use crate::store::ledgers::Ledgers;
use crate::store::{Cursor, Scope, ScopeLine, ScopePage, StoreError};

/// Most sessions, and what one takes, bytes.
const MOST_SESSIONS: usize = 100_000;
const SESSION: u64 = 700;
/// Most calls of all sessions, and what one takes, bytes.
const MOST_CALLS: usize = 120_000;
const CALL: u64 = 200;
/// The longest range of the history, with a day to spare.
const LONGEST: Millis = 31 * 24 * 3_600_000;
/// How long a refresh reads sessions.
const BUDGET: Duration = Duration::from_secs(1);
/// An index that was refreshed within this time is used as it is.
const FRESH: Duration = Duration::from_millis(400);
/// How often sessions that were deleted or have expired are looked for.
const SWEEP: Duration = Duration::from_secs(60);
/// Lines of the store's list that are read at once.
const PAGE: usize = 500;

/// The index; its users take turns.
#[derive(Default)]
pub(super) struct SessionIndex(Mutex<IndexState>);

/// How many there may be, and how long a refresh reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct IndexLimits {
    sessions: usize,
    calls: usize,
    budget: Duration,
}

/// Everything that is known.
#[derive(Default)]
pub(super) struct IndexState {
    pub sessions: HashMap<Scope, IndexedSession>,
    limits: IndexLimits,
    /// Where the last walk ended before the end of the list: sessions that were last used before may be unknown.
    reached: Option<Cursor>,
    /// Whether it ended where another one would.
    is_settled: bool,
    /// Calls before it were left out.
    floor: Millis,
    calls: usize,
    round: u64,
    refreshed: Option<Instant>,
    swept: Option<Instant>,
}

/// One session.
pub(super) struct IndexedSession {
    pub line: ScopeLine,
    pub details: SessionDetails,
    /// Oldest first.
    pub calls: Vec<Call>,
    /// The last walk that saw it.
    round: u64,
}

impl Default for IndexLimits {
    fn default() -> Self {
        Self { sessions: MOST_SESSIONS, calls: MOST_CALLS, budget: BUDGET }
    }
}

impl IndexLimits {
    /// A sixteenth of the process's memory, three quarters of it for sessions.
    fn within(process_bytes: u64) -> Self {
        let most = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        Self {
            sessions: most(process_bytes / 64 * 3 / SESSION).min(MOST_SESSIONS),
            calls: most(process_bytes / 64 / CALL).min(MOST_CALLS),
            budget: BUDGET,
        }
    }
}

impl SessionIndex {
    /// An empty index for a process with this much memory; `None`: with enough.
    pub(super) fn within(process_bytes: Option<u64>) -> Self {
        let limits = process_bytes.map(IndexLimits::within).unwrap_or_default();
        Self(Mutex::new(IndexState { limits, ..IndexState::default() }))
    }

    /// The index, as new as a second allows.
    ///
    /// # Errors
    /// The store's [`StoreError`].
    pub(super) async fn refreshed(
        &self,
        ledgers: &Ledgers,
        prices: &Arc<PriceList>,
    ) -> Result<MutexGuard<'_, IndexState>, StoreError> {
        let mut state = self.0.lock().await;
        if state.refreshed.is_none_or(|at| at.elapsed() >= FRESH) {
            state.refresh(ledgers, prices).await?;
        }
        Ok(state)
    }

    /// How many sessions there are, if all are known and nobody is reading.
    pub(super) fn count(&self) -> Option<usize> {
        let state = self.0.try_lock().ok()?;
        if state.is_whole() { Some(state.sessions.len()) } else { None }
    }

    /// Forgets a session that was deleted.
    pub(super) async fn forget(&self, scope: &Scope) {
        let mut state = self.0.lock().await;
        if let Some(session) = state.sessions.remove(scope) {
            state.calls -= session.calls.len();
        }
    }
}

impl IndexState {
    /// Since when all calls are known, ms since 1970.
    pub(super) fn complete_since(&self) -> Millis {
        self.floor.max(self.reached.map_or(0, |cursor| cursor.used))
    }

    /// Whether all sessions are known.
    pub(super) fn is_whole(&self) -> bool {
        self.is_settled && self.reached.is_none()
    }

    /// Whether the next walk has more to read.
    pub(super) fn is_reading(&self) -> bool {
        !self.is_settled
    }

    async fn refresh(
        &mut self,
        ledgers: &Ledgers,
        prices: &Arc<PriceList>,
    ) -> Result<(), StoreError> {
        let began = Instant::now();
        let is_sweep = self.swept.is_none_or(|at| at.elapsed() >= SWEEP);
        let mut page = ScopePage::first(PAGE);
        // A walk that goes on is still the same one.
        if self.is_settled {
            self.round += 1;
        }
        let mut has_read = false;
        loop {
            let lines = ledgers.sessions(page).await?;
            let is_last = lines.len() < PAGE;
            let mut has_changes = false;
            for line in lines {
                let cursor = line.cursor;
                if !self.is_known(&line) {
                    // A walk that takes too long is ended before this session, and continued by the next one. Each reads
                    // one at least.
                    if has_read && began.elapsed() >= self.limits.budget {
                        self.end_walk(page.after, false);
                        return Ok(());
                    }
                    if !self.make_room(&line) {
                        self.end_walk(Some(cursor), true);
                        return Ok(());
                    }
                    has_changes = true;
                    has_read = true;
                    self.read(line, ledgers, prices).await?;
                }
                page.after = Some(cursor);
            }
            if is_last {
                self.end_walk(None, true);
                return Ok(());
            }
            // What changes moves to the top: below an unchanged page, nothing did.
            if self.is_settled && !has_changes && !is_sweep {
                self.refreshed = Some(Instant::now());
                return Ok(());
            }
            // A walk goes on where it ended: reading the list from its top each time may take all the time that there is.
            if !self.is_settled
                && !has_changes
                && let Some(reached) = self.reached
            {
                page.after = page.after.min(Some(reached));
            }
        }
    }

    /// Ends a walk that saw every session down to `reached`; `None`: every session. It is settled if the next one has nothing
    /// to add below.
    fn end_walk(&mut self, reached: Option<Cursor>, is_settled: bool) {
        let now = Instant::now();
        self.reached = reached;
        self.is_settled = is_settled;
        self.refreshed = Some(now);
        if is_settled {
            // What it did not see was deleted, or has expired.
            let round = self.round;
            self.sessions.retain(|_, session| session.round == round);
            self.calls = self.sessions.values().map(|session| session.calls.len()).sum();
            self.swept = Some(now);
        }
    }

    /// Whether there is room for a session: if there is none, that of the least recently used makes way for a newer one.
    fn make_room(&mut self, line: &ScopeLine) -> bool {
        if self.sessions.len() < self.limits.sessions || self.sessions.contains_key(&line.scope) {
            return true;
        }
        let oldest = self.sessions.values().map(|session| &session.line);
        let Some(oldest) = oldest.min_by_key(|line| line.cursor) else { return false };
        if oldest.cursor > line.cursor {
            return false;
        }
        let scope = oldest.scope.clone();
        if let Some(session) = self.sessions.remove(&scope) {
            self.calls -= session.calls.len();
        }
        true
    }

    /// Whether a session is as it was when it was read.
    fn is_known(&mut self, line: &ScopeLine) -> bool {
        let Some(session) = self.sessions.get_mut(&line.scope) else { return false };
        session.round = self.round;
        session.line == *line
    }

    async fn read(
        &mut self,
        line: ScopeLine,
        ledgers: &Ledgers,
        prices: &Arc<PriceList>,
    ) -> Result<(), StoreError> {
        let since = self.floor.max(wall().saturating_sub(LONGEST));
        let prices = prices.clone();
        let looking = ledgers.look_at_one_of_many(&line.scope, move |ledger| {
            let details = SessionDetails::from_ledger(ledger, &prices, wall());
            (details, calls::from_ledger(ledger, since, &prices))
        });
        let (details, calls) = looking.await?;
        self.calls += calls.len();
        let scope = line.scope.clone();
        let session = IndexedSession { line, details, calls, round: self.round };
        if let Some(earlier) = self.sessions.insert(scope, session) {
            self.calls -= earlier.calls.len();
        }
        if self.calls > self.limits.calls {
            self.drop_oldest_calls();
        }
        Ok(())
    }

    /// Leaves the oldest quarter of the calls out.
    fn drop_oldest_calls(&mut self) {
        let mut times: Vec<Millis> =
            self.sessions.values().flat_map(|session| &session.calls).map(|call| call.at).collect();
        let quarter = times.len() / 4;
        let (_, newest_dropped, _) = times.select_nth_unstable(quarter);
        // Nothing older is counted from now on, so that no sum is of a part of its time.
        self.floor = *newest_dropped + 1;
        self.calls = 0;
        for session in self.sessions.values_mut() {
            session.calls.retain(|call| call.at >= self.floor);
            session.calls.shrink_to_fit();
            self.calls += session.calls.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::context::{ExchangeId, Fact, Turn};
    use crate::dialect::Dialect;
    use crate::dialect::models::Family;
    use crate::store::memory::MemoryStore;
    use crate::store::wrapper::StoreWrapper;
    use crate::store::{Record, RecordKind, Store, StoreFuture};

    /// Counts how often the list is read.
    #[derive(Default)]
    struct CountedLists {
        inner: MemoryStore,
        lists: AtomicUsize,
    }

    impl StoreWrapper for CountedLists {
        fn inner(&self) -> Result<&dyn Store, StoreError> {
            Ok(&self.inner)
        }

        fn scopes(&self, page: ScopePage) -> StoreFuture<'_, Vec<ScopeLine>> {
            self.lists.fetch_add(1, Ordering::Relaxed);
            self.inner.scopes(page)
        }
    }

    async fn store_of(count: u64) -> Arc<CountedLists> {
        let store = Arc::new(CountedLists::default());
        for number in 1..=count {
            let exchange = ExchangeId::from(number.to_string());
            let turn =
                Turn { exchange, at: number, ..Turn::empty(Dialect::Anthropic, Family::Claude) };
            let value = serde_json::to_vec(&Fact::Turn(Arc::new(turn))).unwrap().into();
            let record = Record { kind: RecordKind::Turn, key: 1, value, at: number, turn: None };
            let scope = Scope { tenant: "t".into(), session: number.to_string().into() };
            store.put_if_absent(scope, vec![record]).await.unwrap();
        }
        store
    }

    #[tokio::test]
    async fn short_walks_see_all_sessions() {
        let count = PAGE as u64 + 9;
        let ledgers = Ledgers::new(store_of(count).await);
        let limits = IndexLimits { budget: Duration::ZERO, ..IndexLimits::default() };
        let mut state = IndexState { limits, ..IndexState::default() };
        let mut walks = 0;
        while !state.is_whole() {
            state.refresh(&ledgers, &Arc::default()).await.unwrap();
            walks += 1;
        }
        assert_eq!(state.sessions.len() as u64, count);
        assert_eq!(walks, count, "each reads one");
    }

    /// A walk that took too long goes on below what is known, without listing that again.
    #[tokio::test]
    async fn late_walk_goes_on_where_it_ended() {
        let count = 4 * PAGE as u64;
        let store = store_of(count).await;
        let ledgers = Ledgers::new(store.clone());
        let prices = Arc::default();
        let mut state = IndexState::default();
        while !state.is_whole() {
            state.refresh(&ledgers, &prices).await.unwrap();
        }
        assert_eq!(state.sessions.len() as u64, count);
        // As if it had ended before the last few.
        let line = state.sessions.values().find(|session| session.line.cursor.used == 9).unwrap();
        state.reached = Some(line.line.cursor);
        state.is_settled = false;
        state.sessions.retain(|_, session| session.line.cursor.used >= 9);
        store.lists.store(0, Ordering::Relaxed);
        state.refresh(&ledgers, &prices).await.unwrap();
        assert!(state.is_whole());
        assert_eq!(state.sessions.len() as u64, count);
        assert_eq!(store.lists.load(Ordering::Relaxed), 2, "its top, and what was left");
    }

    #[test]
    fn index_is_share_of_memory() {
        let limits = IndexLimits::within(256 << 20);
        assert_eq!(limits, IndexLimits { sessions: 17_975, calls: 20_971, budget: BUDGET });
        let bytes = limits.sessions as u64 * SESSION + limits.calls as u64 * CALL;
        assert!(bytes <= 16 << 20, "{bytes}");
        assert_eq!(IndexLimits::within(4 << 30), IndexLimits::default());
    }
}
