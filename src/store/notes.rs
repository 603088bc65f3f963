//! Notes of a session: what processes that share a store tell each other about it beside its facts.
//!
//! A fact stays as it is; of a note the newest counts. They are read with what the session gained. A store that one process
//! uses has none: what they say is in its memory.

use bytes::Bytes;

/// A note.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredNote {
    /// What it is about.
    pub key: u128,
    /// What it says, as JSON.
    pub text: Bytes,
}
