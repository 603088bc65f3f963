//! The sketch of a request: which parts were sent, where they stand in the prompt, and what each one costs.
//!
//! Keys and numbers only, no text. It is stored with the request's turn.

use serde::{Deserialize, Serialize};
use strum::{AsRefStr, EnumIter};

use crate::context::ExchangeId;
use crate::dialect::PartKey;

/// Where a part stands in the prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[derive(AsRefStr, EnumIter, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum PromptSection {
    /// The system prompt.
    System,
    /// A tool definition.
    Tools,
    /// A part of the system prompt that was sent as an item of the history (`Part::in_history`).
    SystemItem,
    /// A tool definition that was sent as an item of the history.
    ToolsItem,
    /// The history.
    History,
    /// Reasoning in the history, after the user's last text.
    Reasoning,
    /// Reasoning in the open turn, before text of the user that was sent along with tool results.
    SteeredReasoning,
    /// Reasoning of earlier turns: whether it is read depends on the model.
    OldReasoning,
}

/// One part of what was sent: its key, and its estimated cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SketchPart {
    /// The part key; for parts without one, a hash of their bytes.
    pub key: PartKey,
    /// Tokens, with the part's share of the JSON structure.
    pub tokens: u32,
    /// Its section of the prompt.
    pub place: PromptSection,
    /// Whether the tokens follow from the length of the text, because no vocabulary was there: a later request
    /// that sends the part counts it again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_length: bool,
}

/// The parts of a request, stored as the difference from another turn's sketch: histories grow at the end, so
/// each turn stores only its own parts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sketch {
    /// The exchange whose sketch it differs from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<ExchangeId>,
    /// How many parts are taken from that sketch, from the front.
    pub kept: u32,
    /// The parts after those.
    pub added: Vec<SketchPart>,
}
