//! Lowers the output limit, before any history is cut.
//!
//! A model's maximum output is the same for every request. The room in the window depends on the prompt, so
//! that limit is computed for each request from the prompt's estimate.

use super::refused::decided;
use crate::context::Fact;
use crate::context::plan::{Plan, PlanRequest, RecordedDecisions};
use crate::dialect::Purpose;
use crate::dialect::overflow::Overflow;
use crate::dialect::repair::{OutputLimit, Refusal, RefusalDetail, Repair, RepairCause};
use crate::wire::json::Document;
use crate::wire::splice;

/// Numbers outside this range are not taken as limits, tokens.
const BELIEVED: std::ops::RangeInclusive<u64> = 128..=10_000_000;
/// The margin beside an estimate: 1/50 of it, and at least 64 tokens.
const MARGIN: (u64, u64) = (50, 64);

/// The change that answers a refusal of the output limit.
pub(super) fn propose(request: &PlanRequest<'_>, refusal: &Refusal) -> Option<Fact> {
    let limit = refusal.limit.filter(|limit| BELIEVED.contains(limit))?;
    let document = Document::read(request.body).ok()?;
    let OutputLimit(requested) =
        OutputLimit::from_request(request.conversation.dialect, document.root(request.body)?)?;
    let repair = match refusal.detail? {
        RefusalDetail::ModelLimit => Repair::MaxTokens { most: limit },
        RefusalDetail::ModelLimitExclusive => Repair::MaxTokens { most: limit - 1 },
        RefusalDetail::Window => Repair::OutputFits { window: limit },
        _ => return None,
    };
    let lowers = match repair {
        Repair::MaxTokens { most } => requested > most,
        _ => requested > request.policy.heal.min_output,
    };
    lowers.then(|| decided(request, repair))
}

/// An overflow as a refusal of the output limit, if the prompt fits with less of it. If the message does not say so,
/// the estimate and the known window do.
pub fn refused_output(
    request: &PlanRequest<'_>,
    stated: &Overflow,
    estimate: u64,
) -> Option<Refusal> {
    let known = Some(request.model.window).filter(|_| request.model.known);
    let window = stated.window.or(known)?;
    let input = stated.input.unwrap_or_else(|| with_margin(estimate));
    let requested = request.conversation.max_output?;
    let is_of_output = input < window
        && input.saturating_add(requested) >= window
        && requested > request.policy.heal.min_output;
    is_of_output.then_some(Refusal {
        cause: RepairCause::MaxTokens,
        detail: Some(RefusalDetail::Window),
        place: None,
        limit: Some(window),
        count: stated.input,
        name: None,
    })
}

/// The most tokens that a prompt with this estimate may have.
fn with_margin(estimate: u64) -> u64 {
    estimate.saturating_add((estimate / MARGIN.0).max(MARGIN.1))
}

/// The change that prevents a refusal: another request's refusal said that the model can write `most` tokens.
pub fn spare(request: &PlanRequest<'_>, known: &RecordedDecisions, most: u64) -> Option<Fact> {
    let heal = &request.policy.heal;
    let conversation = request.conversation;
    let may = heal.causes.contains(&RepairCause::MaxTokens)
        && conversation.held.is_none()
        && conversation.purpose != Purpose::Count
        && BELIEVED.contains(&most)
        && conversation.max_output.is_none_or(|requested| requested > most);
    let is_lowered =
        |repair: &Repair| matches!(repair, Repair::MaxTokens { most: other } if *other <= most);
    if !may || known.repairs_of(request).any(|one| is_lowered(&one.repair)) {
        return None;
    }
    let document = Document::read(request.body).ok()?;
    let OutputLimit(requested) =
        OutputLimit::from_request(conversation.dialect, document.root(request.body)?)?;
    let fact = decided(request, Repair::MaxTokens { most });
    (requested > most && known.may_decide(&fact)).then_some(fact)
}

/// Lowers the output limit in a plan to the room that the window has beside `input` tokens, if a request was
/// refused for that before. `is_counted`: `input` is the provider's own number.
pub fn fit_output(
    request: &PlanRequest<'_>,
    known: &RecordedDecisions,
    plan: &mut Plan,
    input: u64,
    is_counted: bool,
) {
    let Some(window) = window(request, known) else { return };
    // SGLang refuses a request that fills the window to the last token.
    let input = if is_counted { input.saturating_add(1) } else { with_margin(input) };
    let room = window.saturating_sub(input);
    let most = room.max(request.policy.heal.min_output);
    let sent = splice::applied(request.body, &plan.edits);
    let edits = Repair::MaxTokens { most }.edits(request.conversation.dialect, &sent);
    if let Some(edits) = splice::compose(&plan.edits, &sent, edits) {
        plan.edits = edits;
    }
}

/// The output limit after prompt and output were refused together: the least that policy allows.
pub(crate) fn lowered_output(request: &PlanRequest<'_>, known: &RecordedDecisions) -> Option<u64> {
    let requested = request.conversation.max_output;
    let least = request.policy.heal.min_output;
    window(request, known).map(|_| requested.map_or(least, |requested| requested.min(least)))
}

/// The window that a refusal of prompt and output together named.
fn window(request: &PlanRequest<'_>, known: &RecordedDecisions) -> Option<u64> {
    let of = |repair: &Repair| match repair {
        Repair::OutputFits { window } => Some(*window),
        _ => None,
    };
    known.repairs_of(request).filter_map(|one| of(&one.repair)).min()
}

#[cfg(test)]
mod tests;
