//! What only a store needs that several processes share: reading what others wrote, and forgetting what they deleted.
//!
//! With a store of one process, nothing is read again: memory knows all that was written.

use std::sync::Arc;

use super::lock::lock;
use super::session_cache::SessionCache;
use super::{Ledgers, parsers, session_cache};
use crate::store::{Scope, StoreError};

impl Ledgers {
    /// Whether other processes may use the store.
    pub(crate) fn is_shared(&self) -> bool {
        self.store.is_shared()
    }

    /// Reads what other processes saved for a session since it was loaded.
    ///
    /// # Errors
    /// The store's [`StoreError`]; what was known stays.
    pub(crate) async fn refresh(&self, scope: &Scope) -> Result<(), StoreError> {
        if !self.is_shared() {
            return Ok(());
        }
        self.reload(scope).await
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
