//! What may be changed in a request after its provider refused it. Also the keys of `[heal]`: doc comments
//! here are the text in `config/default.toml`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::IntoEnumIterator;

use crate::dialect::repair::RepairCause;

/// What replaces a picture that is refused for its size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ImageRepair {
    /// Text that describes it.
    #[default]
    Text,
    /// A smaller picture of the same type, or text if it cannot be made smaller.
    Shrink,
}

/// What is changed where the provider refused a request for it: the smallest change, sent once more, and repeated from
/// then on. In mode `active` only; the others count what could have been changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RepairPolicy {
    /// The causes of refusals that are healed; refusals for other causes are passed on. Empty: none.
    pub causes: Vec<RepairCause>,
    /// If prompt and `max_tokens` together are too large, `max_tokens` is lowered before any history is cut,
    /// but not below this number of tokens.
    #[serde(skip)]
    pub min_output: u64,
    /// What replaces a picture that has too many bytes or pixels: `text` that describes it, or `shrink`: a smaller
    /// picture of the same type, which Plimsoll decodes and encodes again.
    pub images: ImageRepair,
}

impl Default for RepairPolicy {
    fn default() -> Self {
        let causes = RepairCause::iter().collect();
        Self { causes, min_output: 4096, images: ImageRepair::Text }
    }
}
