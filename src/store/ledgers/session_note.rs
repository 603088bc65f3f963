//! What a note of a session says: a compaction that an operator requested, or failures of summaries.
//!
//! So processes that share a store know what one of them was told, or tried in vain. Without such a store, both are in the
//! memory of the process.

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

use super::pending_compactions::PendingCompaction;
use crate::context::ThreadId;
use crate::context::compact::schedule::SummaryFailures;
use crate::store::StoreError;
use crate::store::notes::StoredNote;

/// A note of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum SessionNote {
    /// A compaction is requested.
    Compaction(PendingCompaction),
    /// Summaries of a thread failed.
    Failures { thread: ThreadId, failures: SummaryFailures },
}

impl SessionNote {
    /// `None` if a newer version wrote it.
    pub(super) fn read(note: &StoredNote) -> Option<Self> {
        serde_json::from_slice(&note.text).ok()
    }

    /// As it is stored.
    pub(super) fn stored(&self) -> Result<StoredNote, StoreError> {
        let key = match self {
            Self::Compaction(_) => xxh3_128(b"compaction"),
            Self::Failures { thread, .. } => xxh3_128(format!("failures {thread}").as_bytes()),
        };
        let text = serde_json::to_vec(self)
            .map_err(|_| StoreError::Failed("a note cannot be written".to_owned()))?;
        Ok(StoredNote { key, text: text.into() })
    }

    pub(super) fn is_failure_of(&self, of: &ThreadId) -> bool {
        matches!(self, Self::Failures { thread, .. } if thread == of)
    }
}
