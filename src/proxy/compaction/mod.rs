//! Histories that grow too long: when a summary is due, who writes it, and who waits for it.
//!
//! `docs/rewriting.md` "Compaction" has the rules.

pub(super) mod context;
pub(super) mod scheduler;
pub(super) mod summarize;
