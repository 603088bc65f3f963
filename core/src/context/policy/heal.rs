//! What may be changed of a request after its provider refused it. Also the keys of `[heal]`: doc comments here are
//! what a person reads in `config/default.toml`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::IntoEnumIterator;

use crate::dialect::repair::RepairCause;

/// What is changed where the provider refused a request for it: the smallest change, sent once more, and repeated from
/// then on. In mode `active` only; the others count what could have been changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RepairPolicy {
    /// The causes of refusals that are healed; refusals for other causes are passed on. Empty: none.
    pub causes: Vec<RepairCause>,
    /// If prompt and `max_tokens` together are too large, `max_tokens` is lowered before any history is cut,
    /// but not below this number of tokens.
    pub min_output: u64,
}

impl Default for RepairPolicy {
    fn default() -> Self {
        Self { causes: RepairCause::iter().collect(), min_output: 4096 }
    }
}
