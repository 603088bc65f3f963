//! From a request and its reply to a turn: what an exchange taught, and storing it.
//!
//! Measured before the request is sent; built and stored after the end. What is unknown stays absent. If the
//! store fails, the turn is lost at the next restart; the client gets its response anyway.

mod build;
pub(super) mod counting;
pub(super) mod drafts;
pub(super) mod late;
pub(super) mod open;
pub(super) mod pending;
