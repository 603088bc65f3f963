//! The records: every type that is stored, and nothing that decides.
//!
//! All other modules of `context` import these, and these import none that makes, finds or replays them. Their methods
//! only read them. A field that is added here has a default, so that what was stored before it can be read.

mod epoch;
mod fact;
mod message;
mod origin;
mod rewrite_summary;
mod sketch;
mod step;
mod tokens;
mod turn;

pub use self::epoch::DecisionEpoch;
pub use self::fact::{
    CompactionRecord, Cut, Fact, ForwardedHistory, ReasoningDecision, ReasoningRecord, Renewal,
    Replacement, Revocation, Signature, Suspension,
};
pub(crate) use self::fact::{ReasoningAction, ReasoningBlock, RepairDecision};
pub(crate) use self::message::InjectionPlace;
pub use self::message::{InjectedMessage, InjectionState, QueuedMessage};
pub use self::origin::{SessionWitness, TurnOrigin};
pub(crate) use self::rewrite_summary::NewTokens;
pub use self::rewrite_summary::{
    ChangeCounts, MOST_STORED_STEPS, OverflowReport, OverflowSign, RemovedTokens, RewriteSummary,
};
pub use self::sketch::{PromptSection, Sketch, SketchPart};
pub use self::step::{Change, Decision, DecisionReason, PlanStep, waiting_savings};
pub(crate) use self::tokens::SectionTokens;
pub use self::tokens::{MessageTokens, ToolTokens, WindowLimits};
pub(in crate::context) use self::turn::CarryOver;
pub use self::turn::{
    Breakdown, Estimate, EstimateMethod, Outcome, Position, ProviderCount, ReplyForm, Turn,
};

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
