//! Families of tokenizers.
//!
//! What a family's tokens cost is in `tokens`.

use serde::{Deserialize, Serialize};
use strum::{AsRefStr, EnumIter};

/// Which tokenizer a model uses: what was measured of one family says nothing of another (`docs/estimates.md` 1.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[derive(AsRefStr, EnumIter, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
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
