//! What the model does not read: results for programs, and tools that are not loaded.
//!
//! The inputs are in `tests/data/cases`.
