//! A request before its response, as the estimate and the learning see it: what it adds, and how that was counted.
//!
//! Says what error is expected of such a count, and describes it for the regression. Knows nothing that was learned.

use super::CountingMethod;
use super::band::GuessedTokens;
use super::errors::CallKind;
use super::features::ClassCounts;
use super::regression::FEATURES;
use super::retention::{ByRetention, CacheBlocks, ReasoningRetention};
use super::unsent::UnsentReasoning;
use crate::dialect::models::Family;

/// What is new in a request, described by its features.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NewContent {
    /// Token classes of its text, if that is not counted exactly.
    pub tally: ClassCounts,
    /// Tokens of its parts, as counted.
    pub tokens: u64,
    /// Of those, the tokens of text alone.
    pub text_tokens: u64,
    /// The number of tool results.
    pub results: u32,
    /// The number of text parts.
    pub texts: u32,
    /// The number of tool calls that were not in the last reply.
    pub calls: u32,
    /// Tokens of images and documents.
    pub media: u32,
    /// How far its guessed parts may be off.
    pub guessed: GuessedTokens,
    /// A hash of the tool's name, if a single result of it is all that is new.
    pub tool: Option<u64>,
    /// A digest of system prompt and tools, if the request does not continue an earlier one.
    pub head: Option<u128>,
    /// The counted tokens of system prompt and tools.
    pub headed: u64,
}

/// A request before its response: the estimate is made from this, and the model learns from it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observation {
    /// Input tokens as counted, for each reasoning retention.
    pub counted: ByRetention<u64>,
    /// How likely each reasoning retention is for this model and thread.
    pub belief: ByRetention<f32>,
    /// What the request adds to the anchor's.
    pub new_content: NewContent,
    /// How it was counted.
    pub counting: CountingMethod,
    /// Whether a stream is requested: Gemini's retention differs then.
    pub streams: bool,
    /// In a thread's second call: what the first call read from its cache, on which Gemini's retention depends.
    /// `None` for later calls and other models.
    pub cache: Option<CacheBlocks>,
    /// Whether the history changed in another way than by growing: then the call teaches only how large such
    /// errors are.
    pub is_changed: bool,
    /// Reasoning that is not sent back; `counted` includes it if it is believed to be input.
    pub unsent: UnsentReasoning,
}

impl Observation {
    pub(super) fn way(&self) -> usize {
        let cache = match self.cache {
            None => 0,
            Some(CacheBlocks::Whole) => 1,
            Some(CacheBlocks::Split) => 2,
        };
        2 * cache + usize::from(self.streams)
    }

    pub(super) fn kind(&self) -> CallKind {
        if self.is_changed {
            return CallKind::CHANGED;
        }
        let NewContent { tokens, results, texts, media, .. } = self.new_content;
        CallKind::new(tokens, results > 0 && texts == 0 && media == 0)
    }
}

/// The number of ways of serving that are distinguished.
pub(super) const WAYS: usize = 6;

/// The expected error of an estimate, in tokens: a few for structure, and a share of the new text that
/// depends on how it was counted.
pub(super) fn expected(family: Family, seen: &Observation) -> f64 {
    2.0 + spread(family, seen)
}

fn spread(family: Family, seen: &Observation) -> f64 {
    let share = match (seen.counting, family) {
        (CountingMethod::Exact, _) => 0.0005,
        (CountingMethod::Ratio, Family::Other) => 0.1,
        (CountingMethod::Ratio, _) => 0.02,
        (CountingMethod::Length, _) => 0.15,
    };
    1.0 + share * seen.new_content.tokens as f64
}

pub(super) fn noise(family: Family, seen: &Observation) -> f64 {
    match (seen.counting, family) {
        // About two in a hundred, whichever the tokenizer is.
        (CountingMethod::Ratio, Family::Other) => 1.0 + 0.02 * seen.new_content.tokens as f64,
        _ => spread(family, seen),
    }
}

/// The input of the regression: text in thousands of tokens, structure by the piece.
pub(super) fn features(seen: &Observation, retention: ReasoningRetention) -> [f64; FEATURES] {
    let content = &seen.new_content;
    let text_tokens = content.tokens.saturating_sub(u64::from(content.media));
    let reads = f64::from(u8::from(retention.reads()));
    let results = f64::from(content.results);
    let mut features = [0.0; FEATURES];
    let text = std::iter::once(text_tokens as f64).chain(content.tally.rough());
    // Several results in one request share what is added once; reading reasoning may change it (Gemini).
    let pieces = [results, results.min(1.0), f64::from(content.texts), reads * results.min(1.0)];
    let counted = text.chain([f64::from(content.media)]).map(|tokens| tokens / 1000.0);
    for (feature, value) in features.iter_mut().zip(counted.chain(pieces)) {
        *feature = value;
    }
    features
}
