//! Histories are compacted as policy says: before they overflow, once, and for good.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../support/mod.rs"]
mod support;

mod at_once;
mod explained;
mod failing;
mod killed;
mod micro_compact;
mod play;
mod presets;
mod provider;
mod replicas;
mod requested;
mod room;
mod swapping;
mod thinking;
