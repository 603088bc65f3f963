//! An overflow as it is stored with its turn: how it showed, and what was done about it.
//!
//! Contains numbers only, nothing that a provider wrote.

use serde::{Deserialize, Serialize};
use strum::{AsRefStr, EnumIter};

use crate::dialect::overflow::Overflow;

/// How an overflow shows; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[derive(AsRefStr, EnumIter, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum OverflowSign {
    /// The provider refused the request.
    Refused,
    /// An error instead of a reply or in the middle of it, after the provider had accepted the request.
    InReply,
    /// The reply ended because the window was full.
    WindowFull,
    /// The reply ended with its length limit before it had any content (`docs/protocols.md` 4.3, MiMo).
    Empty,
    /// The provider read far fewer tokens than were sent (`docs/protocols.md` 4.3, Ollama).
    Truncated,
}

/// An overflow, as it is reported and stored with its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct OverflowReport {
    /// How it showed.
    pub sign: OverflowSign,
    /// What the provider's message says about it.
    #[serde(flatten)]
    pub reported: Overflow,
    /// Room was made, and the provider accepted the request.
    pub saved: bool,
}
