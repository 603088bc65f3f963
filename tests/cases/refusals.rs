//! Refusals because of size and structure, in the words of many servers.
//!
//! The inputs are in `tests/data/cases`.
