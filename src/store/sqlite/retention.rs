//! How long sessions are kept, and how much of them.
//!
//! Given by the configuration; the sweep goes by it.

use crate::context::Millis;

/// What is forgotten: sessions last used before a time, then the ones used longest ago until the rest
/// takes no more than so many bytes.
#[derive(Clone, Copy)]
pub(super) struct RetentionRule {
    pub(super) before: Millis,
    pub(super) max_bytes: u64,
}
