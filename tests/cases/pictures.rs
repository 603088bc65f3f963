//! What a picture costs, by model.
//!
//! The inputs are in `tests/data/cases`.
