//! Tokens of a context by kind of content, and the counts at which pruning, compacting and refusing begin, as a turn stores
//! them.
//!
//! Numbers and the names of tools; `budget` fills them in.

use serde::{Deserialize, Serialize};

use super::is_default;

/// Tokens of messages, by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub struct MessageTokens {
    /// The user's text, including what clients add to it.
    pub user: u64,
    /// The model's text.
    pub assistant: u64,
    /// Names and arguments of tool calls.
    pub tool_calls: u64,
    /// Results of tools, by tool, the largest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_results: Vec<ToolTokens>,
    /// Reasoning that is sent back and read.
    pub reasoning: u64,
    /// Images, documents, audio and video.
    pub media: u64,
    /// Summaries that replace older messages.
    pub summaries: u64,
    /// Parts that are not understood.
    pub other: u64,
    /// Tools that are offered but not loaded: they cost nothing until the model looks for them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deferred: Vec<ToolTokens>,
    /// How many more deferred tools there are.
    #[serde(skip_serializing_if = "is_default")]
    pub deferred_more: u64,
}

/// Tokens of one tool: of its results, or of its definition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ToolTokens {
    /// The tool's name, at most 64 characters.
    pub tool: Box<str>,
    /// The sum over all of its parts, estimated.
    pub tokens: u64,
}

impl MessageTokens {
    pub(crate) fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// Tokens of the recognised sections, estimated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[derive(Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub struct SectionTokens {
    /// The share of `tools` that comes from MCP servers (`mcp__*`).
    #[serde(skip_serializing_if = "is_default")]
    pub mcp_tools: u64,
    /// The share of `messages` that is memory files (CLAUDE.md).
    #[serde(skip_serializing_if = "is_default")]
    pub memory: u64,
    /// The share of `messages` that lists skills.
    #[serde(skip_serializing_if = "is_default")]
    pub skills: u64,
    /// The share of `messages` that lists agents.
    #[serde(skip_serializing_if = "is_default")]
    pub agents: u64,
}

/// The token counts at which something begins for a request, under the current policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[derive(Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub struct WindowLimits {
    /// Tokens that may be filled before the history must be compacted (`PlanRequest::fillable`).
    #[serde(rename = "usable")]
    pub fillable: u64,
    /// Above it, old tool results are cut. 0: with every request. `None`: the size of the context causes no
    /// cut, for example because the window is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pruning: Option<u64>,
    /// From it on, a summary is written in the background. `None`: not before it is needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preparing: Option<u64>,
    /// From it on, a summary replaces the beginning of the history. `None`: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compacting: Option<u64>,
    /// Above it, the provider refuses: the window. `None` if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusing: Option<u64>,
    /// Shown as a category of its own, and not counted as free.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub buffer: Option<u64>,
}
