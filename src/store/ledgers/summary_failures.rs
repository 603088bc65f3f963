//! Failures of summaries that processes on one store share, so that none of them asks for what another one got in vain.
//!
//! They are notes of the session. Without such a store, the process that failed remembers it.

use std::sync::Arc;

use super::Ledgers;
use super::opened_session::SessionHandle;
use super::session_cache::SessionCache;
use super::session_note::SessionNote;
use crate::context::compact::schedule::{SummaryFailures, WritingEnd};
use crate::context::{Millis, ThreadId};

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

    /// Lets all processes know how a summary of a thread ended. `cools_until`: when the next one may begin if it failed.
    pub(crate) async fn note_summary_end(
        self: &Arc<Self>,
        handle: &SessionHandle,
        thread: &ThreadId,
        end: WritingEnd,
        cools_until: Millis,
    ) {
        let Some(failures) = self.summary_failures(handle, thread) else { return };
        match end {
            WritingEnd::Cancelled => {}
            WritingEnd::Written => self.forget_failures(handle, thread),
            WritingEnd::Failed => {
                let failures = failures.and_one(cools_until);
                let note = SessionNote::Failures { thread: thread.clone(), failures };
                // If the store does not take it, it counts here until the session is read again.
                let _ = self.put_note(handle, &note).await;
                handle.cache.forget_note(|other| other.is_failure_of(thread));
                handle.cache.add_note(note);
            }
        }
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
