//! Changes that answer refusals: what a provider refused is changed, and stays changed (`docs/healing.md`).
//!
//! A refusal that an edit can fix is answered by the smallest such edit, stored as a fact. The fact is
//! replayed, so the session is not refused for the same again. Pure; proposes facts, which `plan` replays.

mod decision;
mod output;
mod pictures;
mod refused;
mod smaller;
mod thoughts;

pub(crate) use super::records::RepairDecision;
pub(crate) use output::lowered_output;
pub use output::{fit_output, refused_output, spare};
pub use smaller::{may_be_smaller, smaller};

use super::Fact;
use super::plan::{self, PlanRequest, RecordedDecisions};
use crate::dialect::repair::path::PathTarget;
use crate::dialect::repair::{
    GO_ON, NO_CONTENT, NO_RESULT, Refusal, RefusalDetail, Repair, RepairCause, fields,
};
use crate::dialect::{PartKey, Purpose, Role};
use crate::wire::splice;
use refused::{RefusedRequest, decided};

/// The changes that were found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RepairProposal {
    /// New decisions, one for each edit; empty if there is no repair.
    pub facts: Vec<Fact>,
    /// The refusal names a place that does not exist in the request.
    pub is_misplaced: bool,
}

/// The smallest change that answers a refusal of the request with the decisions `known`. Empty if policy
/// forbids it, if the refused part is not the client's, or if the change was tried and refused.
pub fn propose(
    request: &PlanRequest<'_>,
    known: &RecordedDecisions,
    refusal: &Refusal,
) -> RepairProposal {
    let conversation = request.conversation;
    // A count is refused by another endpoint, and history at the provider cannot be edited.
    if !request.policy.heal.causes.contains(&refusal.cause)
        || conversation.held.is_some()
        || conversation.purpose == Purpose::Count
    {
        return RepairProposal::default();
    }
    let plan = plan::replay(request, known);
    let body = splice::applied(request.body, &plan.edits);
    let refused = RefusedRequest { request, known, refusal, sent: &body, edits: &plan.edits };
    let place = match refused.place() {
        Ok(place) => place,
        Err(()) => return RepairProposal { is_misplaced: true, ..RepairProposal::default() },
    };
    let facts = match refusal.cause {
        RepairCause::Media => pictures::propose(&refused, place.as_ref()),
        RepairCause::Reasoning => thoughts::propose(&refused, place.as_ref()),
        _ => refused.rule(place.as_ref()).into_iter().collect(),
    };
    let facts = facts.into_iter().filter(|fact| known.may_decide(fact)).collect();
    RepairProposal { facts, is_misplaced: false }
}

impl RefusedRequest<'_> {
    fn rule(&self, place: Option<&PathTarget>) -> Option<Fact> {
        let Self { request, refusal, .. } = self;
        let repair = match refusal.cause {
            RepairCause::Empty => Repair::Empty { text: NO_CONTENT.into() },
            RepairCause::Unicode => Repair::Unicode,
            RepairCause::ToolPairs if refusal.detail == Some(RefusalDetail::Reference) => {
                Repair::ToolReferences
            }
            RepairCause::ToolPairs => Repair::ToolPairs { text: NO_RESULT.into() },
            RepairCause::ToolIds => {
                let length = refusal.limit.and_then(|length| u32::try_from(length).ok());
                Repair::ToolIds { length }
            }
            RepairCause::CacheMarks => {
                let limit = u32::try_from(refusal.limit.unwrap_or(MARKS)).ok()?;
                Repair::CacheMarks { most: limit }
            }
            RepairCause::Field => Repair::Field { place: self.field(place?)?.into() },
            RepairCause::Prefill => return self.prefill(),
            RepairCause::MaxTokens => return output::propose(request, refusal),
            RepairCause::Media | RepairCause::Reasoning => return None,
        };
        let dialect = request.conversation.dialect;
        // A fault of our own rewrite is not repaired: the rewrite is revoked.
        if repair.edits(dialect, request.body).is_empty()
            || repair.edits(dialect, self.sent).is_empty()
        {
            return None;
        }
        Some(decided(request, repair))
    }

    fn field(&self, place: &PathTarget) -> Option<String> {
        let mut pattern = place.pattern.clone();
        match self.refusal.name.as_deref() {
            // Some providers name the object and its member apart.
            Some(name) if is_identifier(name) && !pattern.ends_with(name) => {
                pattern = format!("{pattern}.{name}");
            }
            _ if place.is_whole => {}
            _ => return None,
        }
        if fields::may_go(&pattern) { Some(pattern) } else { None }
    }

    fn prefill(&self) -> Option<Fact> {
        let conversation = self.request.conversation;
        let message = conversation.messages.last()?;
        if message.role != Role::Assistant {
            return None;
        }
        let part = message.parts.iter().rev().find_map(|part| part.key)?;
        Some(decided(self.request, Repair::Prefill { part, text: GO_ON.into() }))
    }
}

fn is_identifier(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// How many cache markers Anthropic accepts (`docs/protocols.md` 1.2).
const MARKS: u64 = 4;

/// The keys that these facts are stored under.
pub fn keys(facts: &[Fact]) -> Vec<PartKey> {
    let mut keys = Vec::new();
    for fact in facts {
        match fact {
            Fact::Repair(repair) => keys.push(repair.about),
            Fact::ReasoningDecision(decision) => keys.push(decision.about),
            _ => {}
        }
    }
    keys
}

/// Whether all of these are changes that the request already had when it was refused.
pub fn are_known(facts: &[Fact], known: &RecordedDecisions) -> bool {
    facts.iter().all(|fact| match fact {
        Fact::Repair(repair) => known.repairs.iter().any(|one| one.about == repair.about),
        _ => false,
    })
}

/// Whether a refusal says that the requested output does not fit the window beside the prompt.
pub fn is_of_window(refusal: &Refusal) -> bool {
    refusal.detail == Some(RefusalDetail::Window)
}

#[cfg(test)]
mod tests;
