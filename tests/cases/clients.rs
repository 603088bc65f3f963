//! Who speaks: clients that name no session, edit replies, or say what a request is for.
//!
//! The inputs are in `tests/data/cases`.
