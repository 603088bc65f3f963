//! What may be changed of a request after its provider refused it. Also the keys of `[heal]`: doc comments here are
//! what a person reads in `config/default.toml`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::IntoEnumIterator;

use crate::dialect::repair::RepairCause;

/// What becomes of a picture that is refused for its size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ImageRepair {
    /// Words take its place.
    #[default]
    Text,
    /// A smaller picture of the same type takes its place; words, where it cannot be made smaller.
    Shrink,
}

/// What is changed where the provider refused a request for it: the smallest change, sent once more, and repeated from
/// then on. In mode `active` only; the others count what could have been changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RepairPolicy {
    /// The causes for which it is done; leave one out to have its refusals passed on. Empty: none.
    pub causes: Vec<RepairCause>,
    /// Where prompt and `max_tokens` together are too large, `max_tokens` is lowered before any history is cut, but
    /// not below so many tokens.
    pub min_output: u64,
    /// What becomes of a picture that has too many bytes or pixels: `text`, words that say what stood there; or
    /// `shrink`, a smaller one of the same type, for which it is decoded here.
    pub images: ImageRepair,
}

impl Default for RepairPolicy {
    fn default() -> Self {
        let causes = RepairCause::iter().collect();
        Self { causes, min_output: 4096, images: ImageRepair::Text }
    }
}
