//! What `prune` and `reasoning` propose for a request: new decisions, and those that were decided against.
//!
//! Nothing of it is saved yet, so nothing of it is sent. Pure.

use crate::context::Fact;
use crate::context::records::PlanStep;

/// New decisions for a request, and those that were decided against.
#[derive(Clone, Debug, Default)]
pub struct Proposal {
    /// New decisions.
    pub facts: Vec<Fact>,
    /// What was decided against, each with its reason.
    pub declined: Vec<PlanStep>,
}
