//! Pending compactions are requested, and claimed by the requests that carry them out.
//!
//! One that was claimed but not carried out waits again ([`super::pending_compactions`]).

use std::sync::Arc;

use super::Ledgers;
use super::lock::lock;
use super::opened_session::SessionHandle;
use super::pending_compactions::PendingCompaction;
use super::session_note::SessionNote;
use crate::store::{Scope, StoreError};

/// A claimed pending compaction. If it is dropped before it was carried out, it waits again.
pub(crate) struct ClaimedCompaction {
    ledgers: Arc<Ledgers>,
    handle: SessionHandle,
    pending: Option<PendingCompaction>,
}

impl ClaimedCompaction {
    /// What the summary should focus on.
    pub(crate) fn focus(&self) -> Option<&str> {
        self.pending.as_ref()?.focus.as_deref()
    }

    /// Called when it was carried out, or cannot be.
    pub(crate) fn close(&mut self) {
        if let Some(pending) = self.pending.take() {
            self.ledgers.close_compaction(self.handle.scope.clone(), pending);
        }
    }
}

impl Drop for ClaimedCompaction {
    fn drop(&mut self) {
        let Some(pending) = self.pending.take() else { return };
        let Self { ledgers, handle, .. } = self;
        handle.cache.unless_forgotten(|| {
            let is_new =
                lock(&ledgers.pending_compactions).give_back(&handle.scope, pending.clone());
            if is_new
                && ledgers.is_shared()
                && let Ok(runtime) = tokio::runtime::Handle::try_current()
            {
                let (ledgers, handle) = (ledgers.clone(), handle.clone());
                let note = SessionNote::Compaction(pending);
                runtime.spawn(async move { ledgers.put_note(&handle, &note).await });
            }
        });
    }
}

impl Ledgers {
    /// Requests that the next request of a session's main line compacts it, with a focus, whichever process gets it;
    /// `false` if too many are pending.
    ///
    /// # Errors
    /// The store's [`StoreError`], if other processes use it: then nothing is requested.
    pub async fn request_compaction(
        &self,
        scope: Scope,
        focus: Option<Box<str>>,
    ) -> Result<bool, StoreError> {
        self.expire_compactions().await;
        let pending = PendingCompaction::new(focus);
        let has_room = lock(&self.pending_compactions).has_room(&scope);
        if has_room && self.is_shared() {
            let note = SessionNote::Compaction(pending.clone());
            self.put_note(&self.handle(&scope), &note).await?;
        }
        Ok(lock(&self.pending_compactions).add(scope, pending))
    }

    /// Gives up those whose time is over, and logs them: of several processes, one does.
    pub(super) async fn expire_compactions(&self) {
        let expired = lock(&self.pending_compactions).expire();
        for (scope, pending) in expired {
            let note = SessionNote::Compaction(pending);
            // Another process may have carried it out.
            if !self.is_shared() || self.remove_note(&scope, &note).await.unwrap_or(true) {
                tracing::warn!(
                    "session {} was not compacted as requested: no request of its main thread could start it \
                     within an hour; ask again",
                    scope.session
                );
            }
        }
    }

    /// Ends a compaction that was carried out, or cannot be.
    fn close_compaction(self: &Arc<Self>, scope: Scope, pending: PendingCompaction) {
        if !self.is_shared() {
            lock(&self.pending_compactions).close(&scope, &pending);
            return;
        }
        let ledgers = self.clone();
        // It stays claimed until its note is gone: requests meanwhile would learn it again.
        tokio::spawn(async move {
            let _ = ledgers.remove_note(&scope, &SessionNote::Compaction(pending.clone())).await;
            lock(&ledgers.pending_compactions).close(&scope, &pending);
        });
    }

    /// Whether a compaction of a session is pending.
    pub fn has_pending_compaction(&self, scope: &Scope) -> bool {
        lock(&self.pending_compactions).get(scope).is_some()
    }

    /// Whether the pending compaction has a focus.
    pub(crate) fn has_focus(&self, scope: &Scope) -> bool {
        lock(&self.pending_compactions).get(scope).is_some_and(|pending| pending.focus.is_some())
    }

    /// Claims a pending compaction for a request.
    pub(crate) fn claim_compaction(
        self: &Arc<Self>,
        handle: SessionHandle,
    ) -> Option<ClaimedCompaction> {
        let pending = Some(lock(&self.pending_compactions).claim(&handle.scope)?);
        Some(ClaimedCompaction { ledgers: self.clone(), handle, pending })
    }

    /// A compaction that is claimed as soon as it is requested.
    pub(crate) fn claim_new_compaction(
        self: &Arc<Self>,
        handle: SessionHandle,
        focus: Option<Box<str>>,
    ) -> ClaimedCompaction {
        let pending = Some(PendingCompaction::new(focus));
        ClaimedCompaction { ledgers: self.clone(), handle, pending }
    }
}
