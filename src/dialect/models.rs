//! The model catalogue: windows, limits, tokenizer families, prices and cache rules.
//!
//! From `config/models.toml`, made from public data by a script (source and date inside), then the
//! user's overrides. A model that is not known gets [`Model::unknown`], never an error.

use serde::{Deserialize, Serialize};

/// Which tokenizer a model uses: calibration is never shared between families (`estimator.md` §1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Family {
    /// GPT-4o and later: public, exact.
    O200k,
    /// GPT-4 and 3.5: public, exact.
    Cl100k,
    /// Gemini 2.5 and later.
    Gemini,
    /// Claude up to 4.6.
    Claude,
    /// Claude from Opus 4.7: about 30 % more tokens on the same text.
    ClaudeNew,
    /// Any other.
    Other,
}

/// Whether reasoning is bound to the prefix it was made from (design §6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Binding {
    /// Old parts may change.
    Free,
    /// A changed prefix invalidates the reasoning after it.
    Prefix,
}

/// What is known about a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Model {
    /// Context window, tokens.
    pub window: u64,
    /// Largest output, tokens.
    pub max_output: u64,
    /// Its tokenizer.
    pub family: Family,
    /// Whether its reasoning is bound to the prefix.
    pub binding: Binding,
    /// Whether reasoning of earlier turns stays in the context (Claude Opus 4.5+, Sonnet 4.6+).
    pub keeps_reasoning: bool,
    /// Prices, US dollars per million tokens; `None` where not known.
    pub price: Option<Price>,
    /// Smallest prefix that is cached, tokens.
    pub cache_min: u64,
    /// How long a cached prefix lives unused, seconds.
    pub cache_ttl_s: u64,
}

/// US dollars per million tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Price {
    /// Uncached input.
    pub input: f64,
    /// Output.
    pub output: f64,
    /// Input read from the cache.
    pub cache_read: f64,
    /// Input written to the cache.
    pub cache_write: f64,
}

impl Model {
    /// Safe defaults for a model that is not in the catalogue: a window most models have today, and
    /// reasoning treated as bound, so that nothing is cut which might be.
    pub fn unknown() -> Self {
        Self {
            window: 128_000,
            max_output: 16_384,
            family: Family::Other,
            binding: Binding::Prefix,
            keeps_reasoning: true,
            price: None,
            cache_min: 1024,
            cache_ttl_s: 300,
        }
    }
}
