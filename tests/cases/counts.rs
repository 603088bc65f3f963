//! Counts that fall, cannot be, or are of attempts inside a reply.
//!
//! The inputs are in `tests/data/cases`.
