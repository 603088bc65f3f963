//! The window of a model depends on the door through which it is reached.
//!
//! The inputs are in `tests/data/cases`.
