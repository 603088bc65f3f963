//! Floor 3: what is remembered of a conversation, and what is decided from it.
//!
//! Everything that is stored is a [`Fact`] about a part of a conversation: its key is a hash of content, and
//! it is written once. The records are in `facts.rs`, `turn.rs` and `sketch.rs`, and what uses them imports from
//! there. Pure: no sockets, no clock, no store; `now` and policy are arguments.

pub mod attempt;
pub mod budget;
pub mod cache;
pub mod compact;
pub mod content;
mod decisions;
pub mod editing;
mod epoch;
mod facts;
mod footprint;
pub mod inject;
pub mod ledger;
pub mod lineage;
mod method;
mod names;
mod origin;
pub mod overflow;
pub mod plan;
pub mod policy;
pub mod prune;
pub mod reasoning;
pub mod repair;
pub mod repeats;
pub mod savings;
mod signature;
mod sketch;
pub mod trim;
mod turn;
mod turn_start;

pub use self::epoch::DecisionEpoch;
pub(crate) use self::facts::ReasoningAction;
pub(crate) use self::facts::ReasoningBlock;
pub use self::facts::{
    CompactionRecord, Cut, Fact, ForwardedHistory, ReasoningDecision, ReasoningRecord, Replacement,
    Revocation, RevocationRetry, Signature, Suspension,
};
pub(crate) use self::inject::InjectionPlace;
pub use self::inject::{InjectedMessage, InjectionState, QueuedMessage};
pub use self::method::EstimateMethod;
pub use self::names::SessionNames;
pub use self::origin::{SessionWitness, TurnOrigin};
pub use self::sketch::{PromptSection, Sketch, SketchPart};
pub use self::turn::{Breakdown, Estimate, Outcome, Position, ProviderCount, ReplyForm, Turn};
pub use crate::dialect::ids::{ExchangeId, SessionId, TenantId, ThreadId};
pub use crate::tokens::{Band, CountingMethod, learn::CostPrediction};

/// Milliseconds since 1970, UTC. Passed in: this package has no clock.
pub type Millis = u64;

#[cfg(test)]
mod scene;
