//! Sessions in memory: one cache a session, loaded once from the store, bounded in number and bytes.
//!
//! What exchanges teach is on the cache at once; what the store knows joins it when it arrives, even
//! after those who wanted it have gone on without. A cache in use is never taken away, so that a
//! session has one cache. Must not know what facts mean.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use foldhash::HashMap;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{lock, parsers};
use crate::context::ledger::Ledger;
use crate::context::{ExchangeId, Fact, SessionId};
use crate::dialect::{Chain, Conversation};
use crate::store::precondition::Precondition;
use crate::store::recall::{ReadBudget, Recall, RecallOutcome};
use crate::store::{Record, Scope, Store, StoreError, StoreFuture};

/// Most sessions kept in memory; past it the ones unused longest are loaded again when asked for.
pub(super) const SESSIONS: usize = 512;
/// Most bytes that sessions in memory may take. Past it as above.
pub(super) const BYTES: usize = 32 << 20;
/// Bytes of its decisions past which nothing new is decided for a session: what was decided is repeated for
/// ever, and is in memory whole.
pub(super) const DECISIONS: usize = 8 << 20;
/// Most bytes of decisions with which a picture is still made smaller: the rest is room for other decisions.
pub(super) const PICTURES: usize = 6 << 20;
/// Most facts of a session that are loaded, the newest.
pub(super) const FACTS: usize = 8192;

/// All caches.
#[derive(Default)]
pub(super) struct SessionCaches {
    by_scope: HashMap<Scope, (Arc<SessionCache>, u64)>,
    /// Counts uses; the smaller a cache's last, the longer ago it was.
    uses: u64,
    /// Bytes on all caches.
    bytes: Arc<AtomicUsize>,
}

impl SessionCaches {
    /// The cache of a session.
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

    /// Lets go of what was unused longest, until an eighth of the room is free: to look at all of them
    /// for each new session would cost more than what else is done for it.
    fn make_room(&mut self) {
        while !self.has_room() {
            let unused = self.by_scope.iter().filter(|(_, (cache, _))| !is_used(cache));
            let mut unused: Vec<(u64, &Scope)> =
                unused.map(|(scope, (_, used))| (*used, scope)).collect();
            unused.sort_unstable_by_key(|(used, _)| *used);
            let oldest = unused.into_iter().take(SESSIONS / 8).map(|(_, scope)| scope.clone());
            let oldest: Vec<Scope> = oldest.collect();
            if oldest.is_empty() {
                return;
            }
            for scope in oldest {
                if self.has_room() {
                    return;
                }
                self.by_scope.remove(&scope);
            }
        }
    }

    fn has_room(&self) -> bool {
        self.by_scope.len() <= SESSIONS - SESSIONS / 8
            && self.bytes.load(Ordering::Relaxed) <= BYTES - BYTES / 8
    }

    /// Bytes on all caches.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Bytes of the decisions of the session that has most of them.
    pub(super) fn most_decisions(&self) -> usize {
        let caches = self.by_scope.values().map(|(cache, _)| cache);
        caches.map(|cache| cache.look(Ledger::decision_bytes)).max().unwrap_or_default()
    }

    /// The cache of a session, if it is in memory.
    pub(super) fn held(&self, scope: &Scope) -> Option<Arc<SessionCache>> {
        self.by_scope.get(scope).map(|(cache, _)| cache.clone())
    }

    /// Takes a session's cache away, used or not.
    pub(super) fn remove(&mut self, scope: &Scope) -> Option<Arc<SessionCache>> {
        self.by_scope.remove(scope).map(|(cache, _)| cache)
    }

    /// Takes these caches away where nobody uses them: they are loaded again when asked for.
    pub(super) fn release(&mut self, scopes: &[Scope]) {
        for scope in scopes {
            if self.by_scope.get(scope).is_some_and(|(cache, _)| !is_used(cache)) {
                self.by_scope.remove(scope);
            }
        }
    }

    /// The sessions of that name that are in memory and of which anything is known, or on its way.
    pub(super) fn named(&self, session: &SessionId) -> Vec<Scope> {
        let named = self.by_scope.iter().filter(|(scope, _)| scope.session == *session);
        let used = named.filter(|(_, (cache, _))| !cache.is_blank());
        used.map(|(scope, _)| scope.clone()).collect()
    }

    /// Takes this cache away, where it still is its session's.
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

/// Whether anybody but the caches themselves holds it. Only they hand it out.
fn is_used(cache: &Arc<SessionCache>) -> bool {
    Arc::strong_count(cache) > 1
}

/// One session in memory.
pub(super) struct SessionCache {
    state: Mutex<SessionCacheState>,
    /// What is on it was not known before.
    born: std::time::Instant,
    /// Exchanges that have begun and whose turns are not known yet, with the chain each ends at.
    open: Mutex<HashMap<ExchangeId, Chain>>,
    /// Told when an exchange settles.
    changed: Notify,
    /// The store's part.
    recall: Recall,
    bytes: Arc<AtomicUsize>,
}

#[derive(Default)]
struct SessionCacheState {
    ledger: Ledger,
    /// Its bytes, as they were counted.
    bytes: usize,
    /// A record of it was not understood, and nobody has been told.
    unread: bool,
    /// It was forgotten on request: what still comes of it is not kept.
    forgotten: bool,
}

impl SessionCache {
    fn new(bytes: Arc<AtomicUsize>) -> Self {
        let (state, open, recall) = Default::default();
        let born = std::time::Instant::now();
        Self { state, born, open, changed: Notify::new(), recall, bytes }
    }

    /// What is written of it is kept where it was not deleted since it was first known here.
    pub(super) fn precondition(&self) -> Precondition {
        Precondition::since(self.born)
    }

    /// When it was first known here.
    pub(super) fn born(&self) -> std::time::Instant {
        self.born
    }

    /// Whether nothing is known of it, and nothing on its way.
    fn is_blank(&self) -> bool {
        lock(&self.open).is_empty() && self.look(Ledger::is_empty)
    }

    /// Does something for a session that was not forgotten, and cannot be meanwhile.
    pub(super) fn unless_forgotten(&self, act: impl FnOnce()) {
        let state = lock(&self.state);
        if !state.forgotten {
            act();
        }
    }

    /// Says that the store knows nothing of it.
    pub(super) fn is_new(&self) {
        self.recall.set_known();
    }

    /// Waits until what the store knows is there, within the budget.
    pub(super) async fn load(
        self: &Arc<Self>,
        store: &Arc<dyn Store>,
        scope: &Scope,
        budget: &ReadBudget,
    ) -> Result<(), StoreError> {
        let read = || load(self.clone(), store.clone(), scope.clone());
        match self.recall.wait(budget, read).await {
            RecallOutcome::Known => Ok(()),
            RecallOutcome::Late => Err(StoreError::Failed("no answer in time".to_owned())),
            RecallOutcome::Failed => {
                Err(StoreError::Failed("the session could not be read".to_owned()))
            }
        }
    }

    /// What the store knows has come: it stands before what came meanwhile.
    pub(super) fn loaded(&self, mut ledger: Ledger, unread: bool) {
        let mut state = lock(&self.state);
        if !state.forgotten {
            state.unread |= unread;
            ledger.take(&state.ledger);
            state.ledger = ledger;
            self.weigh(&mut state);
        }
    }

    #[cfg(test)]
    pub(super) fn recall(&self) -> &Recall {
        &self.recall
    }

    /// Whether what the store knows is there.
    pub(super) fn is_loaded(&self) -> bool {
        self.recall.is_known()
    }

    /// Looks into the ledger.
    pub(super) fn look<T>(&self, look: impl FnOnce(&Ledger) -> T) -> T {
        look(&lock(&self.state).ledger)
    }

    /// Whether a record was not understood; told once.
    pub(super) fn has_unread(&self) -> bool {
        std::mem::take(&mut lock(&self.state).unread)
    }

    /// Adds facts and hands them to the store with `keep`; `None` where the session was forgotten
    /// meanwhile.
    pub(super) fn add<'a, T>(
        &self,
        facts: Vec<Fact>,
        keep: impl FnOnce() -> StoreFuture<'a, T>,
    ) -> Option<StoreFuture<'a, T>> {
        let mut state = lock(&self.state);
        if state.forgotten {
            return None;
        }
        facts.into_iter().for_each(|fact| state.ledger.add(fact));
        self.weigh(&mut state);
        Some(keep())
    }

    /// Adds facts that the store holds already; `false` where the session was forgotten.
    pub(super) fn hold(&self, facts: Vec<Fact>) -> bool {
        let mut state = lock(&self.state);
        if state.forgotten {
            return false;
        }
        facts.into_iter().for_each(|fact| state.ledger.add(fact));
        self.weigh(&mut state);
        true
    }

    /// Takes over what another ledger of the session knows.
    pub(super) fn join(&self, other: &Ledger) {
        let mut state = lock(&self.state);
        if !state.forgotten {
            state.ledger.take(other);
            self.weigh(&mut state);
        }
    }

    /// Forgets everything, and what still comes, and asks the store to forget with `forget`.
    pub(super) fn forget<'a, T>(
        &self,
        forget: impl FnOnce() -> StoreFuture<'a, T>,
    ) -> StoreFuture<'a, T> {
        let mut state = lock(&self.state);
        *state = SessionCacheState {
            forgotten: true,
            bytes: state.bytes,
            ..SessionCacheState::default()
        };
        self.recall.set_known();
        self.weigh(&mut state);
        forget()
    }

    fn weigh(&self, state: &mut SessionCacheState) {
        let bytes = state.ledger.bytes();
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.bytes.fetch_sub(std::mem::replace(&mut state.bytes, bytes), Ordering::Relaxed);
    }

    /// An exchange begins that ends at `chain`.
    pub(super) fn begin(&self, exchange: ExchangeId, chain: Chain) {
        lock(&self.open).insert(exchange, chain);
    }

    /// An exchange's turn is known, or never will be.
    pub(super) fn settle(&self, exchange: &ExchangeId) {
        lock(&self.open).remove(exchange);
        self.changed.notify_waiters();
    }

    /// Waits while an exchange is open that this request grew from, but no longer than `until`.
    pub(super) async fn wait_for_parent(&self, conversation: &Conversation, until: Instant) {
        if lock(&self.open).is_empty() {
            return;
        }
        let chains: Vec<Chain> = conversation.chains().collect();
        let Some((_, before)) = chains.split_last() else { return };
        let settle = async {
            loop {
                let changed = self.changed.notified();
                tokio::pin!(changed);
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

/// Asks the store for a session and puts what it knows on the cache, before what came meanwhile.
async fn load(
    cache: Arc<SessionCache>,
    store: Arc<dyn Store>,
    scope: Scope,
) -> Result<(), StoreError> {
    let records = store.scan(scope, FACTS).await?;
    let (ledger, unread) = parsers::parse(move || ledger(&records)).await?;
    cache.loaded(ledger, unread);
    Ok(())
}

/// The ledger of these records, and whether one of them is not understood: a newer version wrote
/// it, or somebody changed it. It is left out.
pub(super) fn ledger(records: &[Record]) -> (Ledger, bool) {
    let mut ledger = Ledger::default();
    let mut unread = false;
    for record in records {
        match serde_json::from_slice(&record.value) {
            Ok(fact) => ledger.add(fact),
            Err(_) => unread = true,
        }
    }
    (ledger, unread)
}
