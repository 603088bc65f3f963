//! Responses in the background: polled, resumed, and counted once.
//!
//! The inputs are in `tests/data/cases`.
