//! Floor 2, counting: parts and a tokenizer family in, tokens out.
//!
//! Pure: no clock and no store. Only the vocabularies outlive a request: they are loaded once per process. Knows no
//! sessions.

mod band;
pub mod bpe;
pub mod classic;
mod cold;
pub mod costs;
mod errors;
pub mod estimate;
pub(crate) mod features;
mod fitted;
pub mod learn;
pub(crate) mod media;
mod observation;
mod own_tools;
mod regression;
pub mod retention;
mod sentencepiece;
mod split;
mod structure;
mod token_costs;
mod tool_results;
pub mod unsent;

pub use band::Band;
pub(crate) use estimate::TokenCounter;
pub use estimate::{CountingMethod, Tokenizer};
