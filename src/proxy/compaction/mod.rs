//! Compaction: when a summary is due, who writes it, and which requests wait for it.
//!
//! `docs/rewriting.md` "Compaction" has the rules.

pub(super) mod compact;
pub(super) mod summarize;
