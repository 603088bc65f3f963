//! The token counts at which pruning, preparing a summary, compacting and refusing begin, as a turn stores them.
//!
//! Numbers only; `budget` makes them of policy and window.

use serde::{Deserialize, Serialize};

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
