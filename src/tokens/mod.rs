//! Floor 2, counting: parts and a tokenizer family in, tokens out.
//!
//! Pure: no clock, no store. Learning is a step `(state, observation) → state`.

pub mod bpe;
pub mod estimate;
mod media;
mod split;

pub use estimate::{Counter, Counting, Tokenizer};
