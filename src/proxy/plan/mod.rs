//! From a body to what is sent in its place: read, prepared, planned.
//!
//! Nothing is on the wire that is not saved. Nobody is asked in here but the store.

pub(super) mod added_option;
pub(super) mod body_reader;
pub(super) mod choose_option;
pub(super) mod planned_request;
pub(super) mod prepared_request;
pub(super) mod undelivered;
