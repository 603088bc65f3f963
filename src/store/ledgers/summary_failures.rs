//! Failures of summaries that processes on one store share, so that none of them asks for what another one got in vain.
//!
//! They are notes of the session. Without such a store, the process that failed remembers it.

use std::sync::Arc;

use super::Ledgers;
use super::opened_session::SessionHandle;
use super::session_cache::SessionCache;
use super::session_note::SessionNote;
use crate::context::ThreadId;
use crate::context::compact::schedule::SummaryFailures;

impl Ledgers {
    /// The failures of a thread's summaries at all processes; `None` if only this one knows of any.
    pub(crate) fn summary_failures(
        &self,
        handle: &SessionHandle,
        thread: &ThreadId,
    ) -> Option<SummaryFailures> {
        if !self.is_shared() {
            return None;
        }
        Some(noted_failures(&handle.cache, thread).unwrap_or_default())
    }

    /// Lets all processes know that a summary of a thread failed.
    pub(crate) async fn note_failures(
        &self,
        handle: &SessionHandle,
        thread: &ThreadId,
        failures: SummaryFailures,
    ) {
        if !self.is_shared() {
            return;
        }
        let note = SessionNote::Failures { thread: thread.clone(), failures };
        // If the store does not take it, it counts here until the session is read again.
        let _ = self.put_note(handle, &note).await;
        handle.cache.forget_note(|other| other.is_failure_of(thread));
        handle.cache.add_note(note);
    }

    /// Forgets the failures of a thread's summaries at all processes: one was written, or its history is small.
    pub(crate) fn forget_failures(self: &Arc<Self>, handle: &SessionHandle, thread: &ThreadId) {
        let Some(failures) = noted_failures(&handle.cache, thread) else { return };
        handle.cache.forget_note(|note| note.is_failure_of(thread));
        let note = SessionNote::Failures { thread: thread.clone(), failures };
        let (ledgers, scope) = (self.clone(), handle.scope.clone());
        // Nobody waits for it.
        tokio::spawn(async move { ledgers.remove_note(&scope, &note).await });
    }
}

fn noted_failures(cache: &SessionCache, of: &ThreadId) -> Option<SummaryFailures> {
    cache.find_note(|note| match note {
        SessionNote::Failures { thread, failures } if thread == of => Some(*failures),
        _ => None,
    })
}
