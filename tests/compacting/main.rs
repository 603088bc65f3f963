//! Histories are compacted as policy says: before they overflow, once, and for good.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../support/mod.rs"]
mod support;

mod at_once;
mod claims;
mod explained;
mod failing;
mod killed;
mod play;
mod provider;
mod replicas;
mod swapping;
mod thinking;
mod wishes;
