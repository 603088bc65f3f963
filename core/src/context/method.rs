//! How an estimate was made.
//!
//! Told with each, and the key by which its error is learned and shown.

use serde::{Deserialize, Serialize};

/// How an estimate was made; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EstimateMethod {
    /// From the provider's own count of an earlier turn, plus what is new.
    Anchored,
    /// The same, where a summary has just taken the place of what that turn still sent.
    Compacted,
    /// Nothing to grow from: the sum over all parts.
    Estimated,
    /// The provider holds part of the history: it cannot be known.
    Held,
}
