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

pub(crate) use decision::RepairDecision;
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
    let may = request.policy.heal.causes.contains(&refusal.cause)
        && conversation.held.is_none()
        && conversation.purpose != Purpose::Count;
    if !may {
        return RepairProposal::default();
    }
    let plan = plan::replay(request, known);
    let sent = splice::applied(request.body, &plan.edits);
    let refused = RefusedRequest { request, known, refusal, sent: &sent, edits: &plan.edits };
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
    /// A rule for the whole request, which applies from now on.
    fn rule(&self, place: Option<&PathTarget>) -> Option<Fact> {
        let Self { request, refusal, .. } = self;
        let text = |text: &str| text.into();
        let repair = match refusal.cause {
            RepairCause::Empty => Repair::Empty { text: text(NO_CONTENT) },
            RepairCause::Unicode => Repair::Unicode,
            RepairCause::ToolPairs if refusal.detail == Some(RefusalDetail::Reference) => {
                Repair::ToolReferences
            }
            RepairCause::ToolPairs => Repair::ToolPairs { text: text(NO_RESULT) },
            RepairCause::ToolIds => {
                let length = refusal.limit.and_then(|length| u32::try_from(length).ok());
                Repair::ToolIds { length }
            }
            RepairCause::CacheMarks => {
                let most = u32::try_from(refusal.limit.unwrap_or(MARKS)).ok()?;
                Repair::CacheMarks { most }
            }
            RepairCause::Field => Repair::Field { place: self.field(place?)?.into() },
            RepairCause::Prefill => return self.prefill(),
            RepairCause::MaxTokens => return output::propose(request, refusal),
            RepairCause::Media | RepairCause::Reasoning => return None,
        };
        let dialect = request.conversation.dialect;
        // A fault of our own rewrite is not repaired: the rewrite is revoked.
        let is_clients = !repair.edits(dialect, request.body).is_empty();
        let helps = is_clients && !repair.edits(dialect, self.sent).is_empty();
        helps.then(|| decided(request, repair))
    }

    /// The place of the unknown member.
    fn field(&self, place: &PathTarget) -> Option<String> {
        let named = self.refusal.name.as_deref();
        let named =
            named.filter(|name| name.bytes().all(|it| it.is_ascii_alphanumeric() || it == b'_'));
        let pattern = match named.filter(|name| !place.pattern.ends_with(*name)) {
            Some(name) => format!("{}.{name}", place.pattern),
            None if place.is_whole => place.pattern.clone(),
            None => return None,
        };
        fields::may_go(&pattern).then_some(pattern)
    }

    /// Adds a user message after the model's last message.
    fn prefill(&self) -> Option<Fact> {
        let conversation = self.request.conversation;
        let last = conversation.messages.last().filter(|it| it.role == Role::Assistant)?;
        let part = last.parts.iter().rev().find_map(|part| part.key)?;
        Some(decided(self.request, Repair::Prefill { part, text: GO_ON.into() }))
    }
}

/// How many cache markers Anthropic accepts (`docs/protocols.md` 1.2).
const MARKS: u64 = 4;

/// The keys that these facts are stored under.
pub fn keys(facts: &[Fact]) -> Vec<PartKey> {
    let key = |fact: &Fact| match fact {
        Fact::Repair(repair) => Some(repair.about),
        Fact::ReasoningDecision(decision) => Some(decision.about),
        _ => None,
    };
    facts.iter().filter_map(key).collect()
}

/// Whether all of these are changes that the request already had when it was refused.
pub fn are_known(facts: &[Fact], known: &RecordedDecisions) -> bool {
    let is_known = |fact: &Fact| match fact {
        Fact::Repair(repair) => known.repairs.iter().any(|one| one.about == repair.about),
        _ => false,
    };
    facts.iter().all(is_known)
}

/// Whether a refusal says that the requested output does not fit the window beside the prompt.
pub fn is_of_window(refusal: &Refusal) -> bool {
    refusal.detail == Some(RefusalDetail::Window)
}

#[cfg(test)]
mod tests;
