//! Floor 0, bytes: JSON by ranges, edits by splicing, event streams and WebSockets by framing.
//!
//! Knows nothing of providers. Pure: no sockets, no clock; does not panic on any input.

#[cfg(any(test, fuzzing))]
#[path = "testing/cuts.rs"]
pub(crate) mod cuts;
pub mod encoding;
pub mod json;
pub(crate) mod member;
pub mod memory;
pub mod splice;
pub mod sse;
pub(crate) mod steps;
pub mod websocket;
