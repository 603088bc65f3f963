//! What only a store needs that several processes share: reading what others wrote, and forgetting what they deleted.
//!
//! With a store of one process, nothing is read again: memory knows all that was written. On a shared one, each request
//! reads what its session gained before it is planned, so nothing is decided on stale knowledge (docs/fleets.md).

use std::sync::Arc;
use std::time::Duration;

use super::lock::lock;
use super::opened_session::SessionHandle;
use super::session_cache::{KnownSession, SessionCache};
use super::session_note::SessionNote;
use super::{Ledgers, parsers, session_cache};
use crate::store::recall::ReadBudget;
use crate::store::{Scope, SessionGain, StoreError};

impl Ledgers {
    /// Whether other processes may use the store.
    pub(crate) fn is_shared(&self) -> bool {
        self.store.is_shared()
    }

    /// Claims a piece of work for `holder`, unless another process has it ([`crate::store::Store::claim`]).
    ///
    /// # Errors
    /// The store's [`StoreError`]: it is unknown whether another process has it.
    pub(crate) async fn claim(
        &self,
        what: u128,
        holder: u64,
        lasts: Duration,
    ) -> Result<bool, StoreError> {
        self.store.claim(what, holder, lasts).await
    }

    /// Gives back what `holder` has claimed.
    ///
    /// # Errors
    /// The store's [`StoreError`]: it then ends by itself.
    pub(crate) async fn release(&self, what: u128, holder: u64) -> Result<(), StoreError> {
        self.store.release(what, holder).await
    }

    /// A session with what the store has of it: read once, and on a shared store with what others wrote since. `is_new`:
    /// its name was made up for this request.
    pub(super) async fn known_session(
        &self,
        scope: &Scope,
        is_new: bool,
        reads: &ReadBudget,
    ) -> KnownSession {
        let cache = lock(&self.caches).cache(scope);
        if is_new {
            cache.set_new();
        }
        let was_loaded = cache.is_loaded();
        let store_missed = cache.load(&self.store, scope, reads).await.is_err();
        if is_new || !self.is_shared() {
            return KnownSession { cache, store_missed };
        }
        if !was_loaded {
            self.learn_pending_compaction(scope, &cache);
            return KnownSession { cache, store_missed };
        }
        match reads.wait(self.catch_up(scope, &cache)).await {
            Some(Ok(())) => KnownSession { cache, store_missed },
            Some(Err(StoreError::Deleted)) => {
                // Another process deleted it: this is the first request of a new session.
                self.forget_deleted(scope, &cache);
                let cache = lock(&self.caches).cache(scope);
                let store_missed = cache.load(&self.store, scope, reads).await.is_err();
                KnownSession { cache, store_missed }
            }
            Some(Err(_)) | None => KnownSession { cache, store_missed: true },
        }
    }

    /// Reads what other processes saved for a session since it was last read.
    ///
    /// # Errors
    /// [`StoreError::Deleted`] if one of them deleted it, or why it cannot be read; what was known stays.
    async fn catch_up(&self, scope: &Scope, cache: &Arc<SessionCache>) -> Result<(), StoreError> {
        let gain = self.store.scan_since(scope.clone(), cache.born(), cache.place()).await?;
        gained(cache, gain).await?;
        self.learn_pending_compaction(scope, cache);
        Ok(())
    }

    /// Reads what other processes saved for a session since it was loaded.
    ///
    /// # Errors
    /// The store's [`StoreError`]; what was known stays.
    pub(crate) async fn refresh(&self, scope: &Scope) -> Result<(), StoreError> {
        if !self.is_shared() {
            return Ok(());
        }
        let cache = lock(&self.caches).cache(scope);
        self.catch_up(scope, &cache).await
    }

    pub(super) async fn put_note(
        &self,
        handle: &SessionHandle,
        note: &SessionNote,
    ) -> Result<(), StoreError> {
        let SessionHandle { scope, cache, .. } = handle;
        self.store.put_note(scope.clone(), note.stored()?, cache.born()).await
    }

    /// Removes a note that still says this; returns whether it did.
    pub(super) async fn remove_note(
        &self,
        scope: &Scope,
        note: &SessionNote,
    ) -> Result<bool, StoreError> {
        self.store.remove_note(scope.clone(), note.stored()?).await
    }

    /// Learns which compaction of a session is pending, from its notes.
    fn learn_pending_compaction(&self, scope: &Scope, cache: &SessionCache) {
        let pending = cache.find_note(|note| match note {
            SessionNote::Compaction(pending) => Some(pending.clone()),
            SessionNote::Failures { .. } => None,
        });
        lock(&self.pending_compactions).learn(scope, pending);
    }

    /// Adds what the store has of a session to what is known.
    pub(super) async fn reload(&self, scope: &Scope) -> Result<(), StoreError> {
        let cache = lock(&self.caches).cache(scope);
        let records = self.store.scan(scope.clone(), session_cache::FACTS).await?;
        let ledger = parsers::parse(move || session_cache::ledger(&records).ledger).await?;
        cache.join(&ledger);
        Ok(())
    }

    /// Removes what is known about a session here, because another process deleted it.
    pub(super) fn forget_deleted(&self, scope: &Scope, cache: &Arc<SessionCache>) {
        lock(&self.caches).remove_cache(scope, cache);
        drop(cache.forget(|| Box::pin(std::future::ready(Ok(())))));
        lock(&self.fingerprints).forget(std::slice::from_ref(scope));
        lock(&self.latest_requests).forget(scope);
        lock(&self.pending_compactions).forget(scope);
    }
}

/// Adds what a session gained to what is known of it.
async fn gained(cache: &Arc<SessionCache>, gain: SessionGain) -> Result<(), StoreError> {
    let SessionGain { is_deleted, place, records, notes } = gain;
    if is_deleted {
        return Err(StoreError::Deleted);
    }
    cache.set_notes(&notes);
    if place != cache.place() || !records.is_empty() {
        let ledger = parsers::parse(move || session_cache::ledger(&records).ledger).await?;
        cache.gain(&ledger, place);
    }
    Ok(())
}
