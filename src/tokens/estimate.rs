//! A part in, tokens out: text by tokenizer family, structure by dialect, pictures by patches.

use super::bpe::{self, Encoding};
use crate::dialect::models::Family;

/// Most bytes of text that are tokenised for one request, at some 30 MB/s; past it the length
/// model speaks.
pub const EXACT_BYTES: usize = 2 << 20;

/// How text is counted for one family of models.
#[derive(Clone, Copy, Debug)]
pub struct Tokenizer {
    /// Whose tokens.
    pub family: Family,
    /// The vocabulary, where it is loaded.
    pub encoding: Option<&'static Encoding>,
    /// Most bytes that are tokenised for one request.
    pub limit: usize,
}

impl Tokenizer {
    /// For `family`, with the vocabulary if it is loaded; starts loading it, and does not wait.
    pub fn now(family: Family) -> Self {
        Self { family, encoding: bpe::loaded(family), limit: EXACT_BYTES }
    }

    /// The same, waiting until the vocabulary is loaded: for tests, and at the start.
    pub fn whole(family: Family) -> Self {
        Self { family, encoding: bpe::load(family), limit: EXACT_BYTES }
    }
}
