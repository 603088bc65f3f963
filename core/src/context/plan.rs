//! The plan: which recorded decisions apply to a request, and the edits they make of it
//! (`docs/architecture.md` "Life of a request").
//!
//! Edits come from facts alone (invariant 3): what is new is proposed as a fact (`prune`,
//! `reasoning`), saved, and then replayed like an old one, so that the same facts and request always
//! give the same bytes (invariant 4). Pure; must not know where facts are kept.

mod overlay;
mod recorded;
mod repairs;
mod replay;
mod request;

pub(crate) use super::records::NewTokens;
pub use super::records::{
    Change, ChangeCounts, Decision, DecisionReason, MOST_STORED_STEPS, PlanStep, RemovedTokens,
    RewriteSummary, waiting_savings,
};
pub use overlay::{ForwardedPrefix, Overlay};
pub(crate) use recorded::CutOfPart;
pub(crate) use recorded::ReturnedReply;
pub use recorded::{ForeignReasoning, RecordedDecisions};
pub(in crate::context) use recorded::{HistoryEnd, clearing_key};
pub use replay::{original_overlay, replay};
pub use request::PlanRequest;

use super::Fact;
use super::policy::SummaryAuthor;
use crate::dialect::{Chain, PartKey};
use crate::wire::splice::Edit;

/// The edits that the recorded decisions make in a request.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Edits of the client's body, sorted and disjoint.
    pub edits: Vec<Edit>,
    /// What is sent, where it differs from what the client sent.
    pub sent: Overlay,
    /// Each change, made or declined, with its reason.
    pub steps: Vec<PlanStep>,
    /// The edits contradicted each other, so none is made.
    pub conflict: bool,
    /// Who wrote the summary that is sent.
    pub summary: Option<SummaryAuthor>,
}

/// What `prune` and `reasoning` propose for a request. Nothing of it is saved yet, so nothing of it is sent.
#[derive(Clone, Debug, Default)]
pub struct Proposal {
    /// New decisions.
    pub facts: Vec<Fact>,
    /// What was decided against, each with its reason.
    pub declined: Vec<PlanStep>,
}

/// The key that a decision about a part is stored under.
fn about(key: PartKey, chain: Chain, has_own_id: bool) -> u128 {
    // It is the part key if the call's id is unique, else the chain up to the part: with counted ids or none
    // (Gemini, `call_0`), equal content does not mean the same place.
    if has_own_id { key.0 } else { chain.0 }
}

#[cfg(test)]
mod tests;
