//! The decision to change what a provider refused, as it is stored: which change, and for which model and
//! upstream.

use serde::{Deserialize, Serialize};

use super::DecisionEpoch;
use crate::context::{ExchangeId, Millis};
use crate::dialect::PartKey;
use crate::dialect::repair::Repair;

/// A change of a request that answers a refusal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RepairDecision {
    /// The key that it is stored under.
    pub about: PartKey,
    /// When it was decided.
    pub at: Millis,
    /// The exchange that decided it.
    pub exchange: ExchangeId,
    /// The model that refused, as the client named it.
    pub model: Box<str>,
    /// The configured name of the upstream that refused.
    pub upstream: Box<str>,
    /// The edit, repeated from then on.
    #[serde(flatten)]
    pub repair: Repair,
    /// Decided again after this refusal, as in [`Cut`](super::Cut).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<DecisionEpoch>,
}
