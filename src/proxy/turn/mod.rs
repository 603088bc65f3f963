//! From a request and its reply to a turn: what an exchange taught, and the keeping of it.
//!
//! Measured before the request leaves, built and kept once the ending is known. What is not known
//! stays absent; a store that fails costs the turn after a restart, never the client its answer.

pub(super) mod build;
pub(super) mod drafts;
pub(super) mod open;
pub(super) mod pending;
