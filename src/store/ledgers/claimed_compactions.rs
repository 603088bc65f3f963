//! Pending compactions are requested, and claimed by the requests that carry them out.
//!
//! One that was claimed but not carried out waits again ([`super::pending_compactions`]).

use std::sync::Arc;

use super::Ledgers;
use super::lock::lock;
use super::opened_session::SessionHandle;
use super::pending_compactions::PendingCompaction;
use crate::store::Scope;

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
        self.pending = None;
    }
}

impl Drop for ClaimedCompaction {
    fn drop(&mut self) {
        let Some(pending) = self.pending.take() else { return };
        let Self { ledgers, handle, .. } = self;
        handle.cache.unless_forgotten(|| {
            lock(&ledgers.pending_compactions).give_back(&handle.scope, pending);
        });
    }
}

impl Ledgers {
    /// Requests that the next request of a session's main line compacts it, with a focus; `false` if too many
    /// are pending.
    pub fn request_compaction(&self, scope: Scope, focus: Option<Box<str>>) -> bool {
        let mut pending_compactions = lock(&self.pending_compactions);
        pending_compactions.expire();
        pending_compactions.add(scope, PendingCompaction::new(focus))
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
