//! Which parts of a reply come back: choices, final objects, hidden and repeated reasoning.
//!
//! The inputs are in `tests/data/cases`.
