//! What responses teach: lessons. And the headers of the requests that Plimsoll makes to learn more.
//!
//! Delays a client's request only after a refusal, by `limits.store_ms` for each thing stored. If that is late or fails,
//! only the knowledge is lost.

pub(super) mod lessons;
pub(super) mod model_lists;
pub(super) mod questions;
