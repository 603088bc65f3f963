//! How long sessions are kept, and how many bytes of them.
//!
//! Set by the configuration, and applied by the sweep.

use crate::context::Millis;

/// What is deleted: sessions last used before a time, then the least recently used, until the rest has at
/// most this many bytes.
#[derive(Clone, Copy)]
pub(super) struct RetentionRule {
    pub(super) before: Millis,
    pub(super) max_bytes: u64,
}
