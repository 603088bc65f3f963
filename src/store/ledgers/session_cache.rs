//! Sessions in memory: one cache per session, loaded once from the store, bounded in number and bytes.
//!
//! What exchanges teach is in the cache at once. The store's data is merged when it arrives, even if those
//! who wanted it have continued without. A cache in use is never dropped, so a session has only one cache.
//! Must not know what facts mean.

use std::cmp::Reverse;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use foldhash::HashMap;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::lock::lock;
use super::parsers;
use super::session_note::SessionNote;
use crate::context::ledger::Ledger;
use crate::context::{ExchangeId, Fact, SessionId, TenantId};
use crate::dialect::{Chain, Conversation};
use crate::store::notes::StoredNote;
use crate::store::precondition::Precondition;
use crate::store::recall::{ReadBudget, Recall, RecallOutcome};
use crate::store::{LogPlace, Record, Scope, SessionGain, Store, StoreError, StoreFuture};

/// Most sessions in memory; past it, those of the tenant that has most of them are dropped, the least recently used
/// first, and loaded again when needed.
pub(super) const SESSIONS: usize = 512;
/// Most bytes of sessions in memory; past it, the same.
pub(super) const BYTES: usize = 32 << 20;
/// Bytes of decisions past which nothing new is decided for a session: decisions are repeated for ever, and
/// are all in memory.
pub(super) const DECISIONS: usize = 8 << 20;
/// Most bytes of decisions with which images are still made smaller, so that other decisions have room.
pub(super) const PICTURES: usize = 6 << 20;
/// Most facts of a session that are loaded, the newest.
pub(super) const FACTS: usize = 8192;

/// The caches of all sessions.
#[derive(Default)]
pub(super) struct SessionCaches {
    /// Each cache, with the value of `uses` at its last use.
    by_scope: HashMap<Scope, (Arc<SessionCache>, u64)>,
    uses: u64,
    /// Bytes of all caches.
    bytes: Arc<AtomicUsize>,
}

impl SessionCaches {
    pub(super) fn cache(&mut self, scope: &Scope) -> Arc<SessionCache> {
        self.uses += 1;
        if let Some((cache, used)) = self.by_scope.get_mut(scope) {
            *used = self.uses;
            return cache.clone();
        }
        if self.by_scope.len() >= SESSIONS || self.bytes.load(Ordering::Relaxed) > BYTES {
            self.make_room();
        }
        let cache = Arc::new(SessionCache::new(self.bytes.clone()));
        self.by_scope.insert(scope.clone(), (cache.clone(), self.uses));
        cache
    }

    fn make_room(&mut self) {
        // Until an eighth of the room is free: doing this for each new session would cost too much.
        let mut shares = self.shares();
        while !self.has_room() {
            let largest = shares.iter_mut().filter(|share| !share.unused.is_empty());
            let Some(largest) = largest.max_by_key(|share| share.size) else { return };
            if let Some(UnusedCache { scope, size, .. }) = largest.unused.pop() {
                largest.size -= size;
                self.by_scope.remove(&scope);
            }
        }
    }

    fn shares(&self) -> Vec<TenantShare> {
        let mut shares: HashMap<&TenantId, TenantShare> = HashMap::default();
        for (scope, (cache, used)) in &self.by_scope {
            let share = shares.entry(&scope.tenant).or_default();
            let size = cache.bytes().max(LEAST);
            share.size += size;
            if !is_used(cache) {
                share.unused.push(UnusedCache { used: *used, scope: scope.clone(), size });
            }
        }
        let mut shares: Vec<TenantShare> = shares.into_values().collect();
        for share in &mut shares {
            share.unused.sort_unstable_by_key(|cache| Reverse(cache.used));
        }
        shares
    }

    fn has_room(&self) -> bool {
        self.by_scope.len() <= SESSIONS - SESSIONS / 8
            && self.bytes.load(Ordering::Relaxed) <= BYTES - BYTES / 8
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Bytes of the decisions of the session that has most of them.
    pub(super) fn most_decisions(&self) -> usize {
        let caches = self.by_scope.values().map(|(cache, _)| cache);
        caches.map(|cache| cache.look(Ledger::decision_bytes)).max().unwrap_or_default()
    }

    pub(super) fn held(&self, scope: &Scope) -> Option<Arc<SessionCache>> {
        self.by_scope.get(scope).map(|(cache, _)| cache.clone())
    }

    pub(super) fn remove(&mut self, scope: &Scope) -> Option<Arc<SessionCache>> {
        self.by_scope.remove(scope).map(|(cache, _)| cache)
    }

    pub(super) fn release(&mut self, scopes: &[Scope]) {
        // Those in use stay, so that a session never has two.
        for scope in scopes {
            if self.by_scope.get(scope).is_some_and(|(cache, _)| !is_used(cache)) {
                self.by_scope.remove(scope);
            }
        }
    }

    /// The sessions of this name in memory that have turns or exchanges in flight.
    pub(super) fn named(&self, session: &SessionId) -> Vec<Scope> {
        let named = self.by_scope.iter().filter(|(scope, _)| scope.session == *session);
        let used = named.filter(|(_, (cache, _))| !cache.is_blank());
        used.map(|(scope, _)| scope.clone()).collect()
    }

    /// Removes this cache, if it still is the session's.
    pub(super) fn remove_cache(&mut self, scope: &Scope, cache: &Arc<SessionCache>) {
        if self.by_scope.get(scope).is_some_and(|(held, _)| Arc::ptr_eq(held, cache)) {
            self.by_scope.remove(scope);
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_scope.len()
    }
}

/// What one tenant has in memory.
#[derive(Default)]
struct TenantShare {
    /// Bytes, at least [`LEAST`] for each session.
    size: usize,
    /// The sessions that may be dropped, the least recently used last.
    unused: Vec<UnusedCache>,
}

struct UnusedCache {
    used: u64,
    scope: Scope,
    size: usize,
}

/// What a small session counts as, bytes: as many of them are in memory as of bytes.
const LEAST: usize = BYTES / SESSIONS;

fn is_used(cache: &Arc<SessionCache>) -> bool {
    // Only the caches hand it out, so more than one holder is a user.
    Arc::strong_count(cache) > 1
}

/// A session as far as it is known now.
pub(super) struct KnownSession {
    pub(super) cache: Arc<SessionCache>,
    /// The store did not answer, so its data is missing or old.
    pub(super) store_missed: bool,
}

/// One session's place in memory.
pub(super) struct SessionCache {
    state: Mutex<SessionCacheState>,
    /// When it was created: nothing in it was known before.
    born: std::time::Instant,
    /// Exchanges in flight whose turns are not known yet, with the chain at the end of each.
    open: Mutex<HashMap<ExchangeId, Chain>>,
    /// Notified when an exchange settles.
    changed: Notify,
    /// Whether the store's data has been loaded.
    recall: Recall,
    bytes: Arc<AtomicUsize>,
}

#[derive(Default)]
struct SessionCacheState {
    ledger: Ledger,
    /// The ledger's bytes, as last counted.
    bytes: usize,
    /// A record was unreadable, which is not reported yet.
    has_unread: bool,
    /// The session was deleted: what arrives for it now is not stored.
    forgotten: bool,
    /// How far a store that others write to was read.
    place: LogPlace,
    /// The notes that were read there.
    notes: Vec<SessionNote>,
}

impl SessionCache {
    fn new(bytes: Arc<AtomicUsize>) -> Self {
        Self {
            state: Mutex::default(),
            born: std::time::Instant::now(),
            open: Mutex::default(),
            changed: Notify::new(),
            recall: Recall::default(),
            bytes,
        }
    }

    pub(super) fn precondition(&self) -> Precondition {
        // What was known before a deletion must not be written after it.
        Precondition::since(self.born)
    }

    pub(super) fn born(&self) -> std::time::Instant {
        self.born
    }

    /// Whether it has neither turns nor exchanges in flight.
    fn is_blank(&self) -> bool {
        lock(&self.open).is_empty() && self.look(Ledger::is_empty)
    }

    pub(super) fn unless_forgotten(&self, act: impl FnOnce()) {
        // The state stays locked meanwhile, so that it cannot be deleted between the two.
        let state = lock(&self.state);
        if !state.forgotten {
            act();
        }
    }

    pub(super) fn set_new(&self) {
        // The store has no data about a new session, so it is not read.
        self.recall.set_known();
    }

    pub(super) async fn load(
        self: &Arc<Self>,
        store: &Arc<dyn Store>,
        scope: &Scope,
        budget: &ReadBudget,
    ) -> Result<(), StoreError> {
        let loaded =
            self.recall.wait(budget, || load(self.clone(), store.clone(), scope.clone())).await;
        match loaded {
            RecallOutcome::Known => Ok(()),
            RecallOutcome::Late => Err(StoreError::Failed("no answer in time".to_owned())),
            RecallOutcome::Failed => {
                Err(StoreError::Failed("the session could not be read".to_owned()))
            }
        }
    }

    pub(super) fn loaded(&self, loaded: LoadedLedger, place: LogPlace) {
        // What arrived meanwhile is newer than what the store had.
        let LoadedLedger { mut ledger, has_unread } = loaded;
        let mut state = lock(&self.state);
        if !state.forgotten {
            state.has_unread |= has_unread;
            ledger.merge(&state.ledger);
            state.ledger = ledger;
            state.place = place;
            self.weigh(&mut state);
        }
    }

    /// Takes the notes of a session as they are on the store now.
    pub(super) fn set_notes(&self, notes: &[StoredNote]) {
        let mut state = lock(&self.state);
        if !state.forgotten {
            state.notes = notes.iter().filter_map(SessionNote::read).collect();
        }
    }

    pub(super) fn find_note<T>(&self, find: impl FnMut(&SessionNote) -> Option<T>) -> Option<T> {
        lock(&self.state).notes.iter().find_map(find)
    }

    pub(super) fn add_note(&self, note: SessionNote) {
        lock(&self.state).notes.push(note);
    }

    pub(super) fn forget_note(&self, is_meant: impl Fn(&SessionNote) -> bool) {
        lock(&self.state).notes.retain(|note| !is_meant(note));
    }

    /// How far a store that others write to was read.
    pub(super) fn place(&self) -> LogPlace {
        lock(&self.state).place
    }

    /// Adds what others wrote up to a place.
    pub(super) fn gain(&self, gained: &Ledger, place: LogPlace) {
        let mut state = lock(&self.state);
        if !state.forgotten {
            state.ledger.merge(gained);
            state.place = place;
            self.weigh(&mut state);
        }
    }

    #[cfg(test)]
    pub(super) fn recall(&self) -> &Recall {
        &self.recall
    }

    pub(super) fn is_loaded(&self) -> bool {
        self.recall.is_known()
    }

    pub(super) fn look<T>(&self, look: impl FnOnce(&Ledger) -> T) -> T {
        look(&lock(&self.state).ledger)
    }

    /// Whether a record was unreadable; returns true only once.
    pub(super) fn take_unread(&self) -> bool {
        std::mem::take(&mut lock(&self.state).has_unread)
    }

    /// Adds facts, and writes them to the store with `keep`; `None` if the session was deleted meanwhile.
    pub(super) fn add<'a, T>(
        &self,
        facts: Vec<Fact>,
        keep: impl FnOnce() -> StoreFuture<'a, T>,
    ) -> Option<StoreFuture<'a, T>> {
        let mut state = lock(&self.state);
        if state.forgotten {
            return None;
        }
        for fact in facts {
            state.ledger.add(fact);
        }
        self.weigh(&mut state);
        // Under the lock, so that a deletion comes before or after both.
        Some(keep())
    }

    /// Adds the facts that `find` makes of what is known, and writes them to the store with `keep`, in one step;
    /// `None` if there are none, or if the session was deleted.
    pub(super) fn add_found<'a, T>(
        &self,
        find: impl FnOnce(&Ledger) -> Option<Vec<Fact>>,
        keep: impl FnOnce(&[Fact]) -> StoreFuture<'a, T>,
    ) -> Option<StoreFuture<'a, T>> {
        let mut state = lock(&self.state);
        if state.forgotten {
            return None;
        }
        let facts = find(&state.ledger)?;
        // While the state is locked, so that a deletion comes before or after both.
        let write = keep(&facts);
        for fact in facts {
            state.ledger.add(fact);
        }
        self.weigh(&mut state);
        Some(write)
    }

    /// Adds facts that the store already has; `false` if the session was deleted.
    pub(super) fn add_stored(&self, facts: Vec<Fact>) -> bool {
        let mut state = lock(&self.state);
        if state.forgotten {
            return false;
        }
        for fact in facts {
            state.ledger.add(fact);
        }
        self.weigh(&mut state);
        true
    }

    pub(super) fn join(&self, other: &Ledger) {
        let mut state = lock(&self.state);
        if !state.forgotten {
            state.ledger.merge(other);
            self.weigh(&mut state);
        }
    }

    /// Forgets everything, also what still arrives, and deletes it from the store with `forget`.
    pub(super) fn forget<'a, T>(
        &self,
        forget: impl FnOnce() -> StoreFuture<'a, T>,
    ) -> StoreFuture<'a, T> {
        let mut state = lock(&self.state);
        *state = SessionCacheState {
            forgotten: true,
            // Until it is weighed below: the sum of all sessions contains them.
            bytes: state.bytes,
            ..SessionCacheState::default()
        };
        self.recall.set_known();
        self.weigh(&mut state);
        forget()
    }

    /// The ledger's bytes, as last counted.
    fn bytes(&self) -> usize {
        lock(&self.state).bytes
    }

    fn weigh(&self, state: &mut SessionCacheState) {
        let bytes = state.ledger.bytes();
        // First added, so that the sum never falls below zero.
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.bytes.fetch_sub(std::mem::replace(&mut state.bytes, bytes), Ordering::Relaxed);
    }

    pub(super) fn begin(&self, exchange: ExchangeId, chain: Chain) {
        lock(&self.open).insert(exchange, chain);
    }

    pub(super) fn settle(&self, exchange: &ExchangeId) {
        lock(&self.open).remove(exchange);
        self.changed.notify_waiters();
    }

    /// Waits while an exchange that this request continues is in flight, but not longer than `until`.
    pub(super) async fn wait_for_parent(&self, conversation: &Conversation, until: Instant) {
        if lock(&self.open).is_empty() {
            return;
        }
        // Only a shorter history: an equal request in flight is no parent.
        let Some((_, before)) = conversation.chains().split_last() else { return };
        let settle = async {
            loop {
                let changed = self.changed.notified();
                tokio::pin!(changed);
                // Before the look: what settles in between would not wake it.
                changed.as_mut().enable();
                if !lock(&self.open).values().any(|chain| before.contains(chain)) {
                    return;
                }
                changed.await;
            }
        };
        let _ = tokio::time::timeout_at(until, settle).await;
    }
}

impl Drop for SessionCache {
    fn drop(&mut self) {
        self.bytes.fetch_sub(lock(&self.state).bytes, Ordering::Relaxed);
    }
}

/// Loads a session from the store into the cache, in front of what arrived meanwhile.
async fn load(
    cache: Arc<SessionCache>,
    store: Arc<dyn Store>,
    scope: Scope,
) -> Result<(), StoreError> {
    let SessionGain { place, records, notes, .. } = if store.is_shared() {
        // From here on, it is read on.
        store.scan_since(scope, cache.born(), LogPlace::default()).await?
    } else {
        SessionGain { records: store.scan(scope, FACTS).await?, ..SessionGain::default() }
    };
    let loaded = parsers::parse(move || ledger(&records)).await?;
    cache.loaded(loaded, place);
    cache.set_notes(&notes);
    Ok(())
}

/// A ledger made from the store's records.
pub(super) struct LoadedLedger {
    pub(super) ledger: Ledger,
    /// A record was unreadable and left out: a newer version wrote it, or somebody changed it.
    pub(super) has_unread: bool,
}

pub(super) fn ledger(records: &[Record]) -> LoadedLedger {
    let mut loaded = LoadedLedger { ledger: Ledger::default(), has_unread: false };
    for record in records {
        match serde_json::from_slice(&record.value) {
            Ok(fact) => loaded.ledger.add(fact),
            Err(_) => loaded.has_unread = true,
        }
    }
    loaded
}
