//! How replies end, and usage that the client did not ask for.
//!
//! The inputs are in `tests/data/cases`.
