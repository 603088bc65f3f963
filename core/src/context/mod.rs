//! Floor 3: what is remembered of a conversation, and what is decided from it.
//!
//! Everything that is stored is a [`Fact`] about a part of a conversation: its key is a hash of content, and
//! it is written once. The records are in `records`, which imports nothing of what uses them. Pure: no sockets,
//! no clock, no store; `now` and policy are arguments.

pub mod attempt;
pub mod budget;
pub mod cache;
pub mod caps;
pub mod compact;
pub mod compare;
pub mod content;
pub mod cost;
mod decisions;
pub mod edited;
pub mod editing;
mod footprint;
pub mod inject;
pub mod ledger;
pub mod lineage;
mod names;
pub mod overflow;
pub mod plan;
pub mod policy;
pub mod prune;
pub mod reasoning;
mod records;
pub mod repair;
pub mod repeats;
pub mod savings;
mod signature;
pub mod trim;
mod turn_start;
mod user_turns;

pub use self::names::{MainLine, SessionNames, thread_label};
pub use self::records::{
    Breakdown, CompactionRecord, Cut, DecisionEpoch, Estimate, EstimateMethod, Fact,
    ForwardedHistory, InjectedMessage, InjectionState, Outcome, Position, PromptSection,
    ProviderCount, QueuedMessage, ReasoningDecision, ReasoningRecord, Renewal, Replacement,
    ReplyForm, Revocation, SessionWitness, Signature, Sketch, SketchPart, Suspension, Turn,
    TurnOrigin,
};
pub(crate) use self::records::{InjectionPlace, ReasoningAction, ReasoningBlock};
pub use self::user_turns::UserTurns;
pub use crate::dialect::ids::{ExchangeId, SessionId, TenantId, ThreadId};
pub use crate::tokens::{Band, CountingMethod, learn::CostPrediction};

/// Milliseconds since 1970, UTC. Passed in: this package has no clock.
pub type Millis = u64;

#[cfg(test)]
#[path = "testing/scene.rs"]
mod scene;
