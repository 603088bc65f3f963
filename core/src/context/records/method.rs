//! The methods of an estimate.
//!
//! Shown with each estimate, and the key under which its error is learned and shown.

use serde::{Deserialize, Serialize};
use strum::{AsRefStr, EnumIter};

/// The method of an estimate; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[derive(AsRefStr, EnumIter, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum EstimateMethod {
    /// The provider's own count of an earlier turn, plus what is new.
    Anchored,
    /// The same, but a summary has just replaced part of what that turn sent.
    Compacted,
    /// Without an anchor: the sum over all parts.
    Estimated,
    /// The provider holds part of the history, so the size is uncertain.
    Held,
}
