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
/// After a refusal that does not count the prompt, it is taken as larger than its estimate by 1/4: another refusal would
/// cost history.
const LOW: u64 = 4;

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
    let bound = match repair {
        Repair::MaxTokens { most } => most,
        // The room depends on the prompt: the limit can be lowered as far as policy allows.
        _ => request.policy.heal.min_output,
    };
    if requested > bound { Some(decided(request, repair)) } else { None }
}

/// An overflow as a refusal of the output limit, if prompt and requested output together are too many while the prompt
/// alone fits, by the provider's count or else by the estimate. History is cut only if the next refusal says so, too.
pub fn refused_output(
    request: &PlanRequest<'_>,
    stated: &Overflow,
    estimate: u64,
) -> Option<Refusal> {
    let least = request.policy.heal.min_output;
    let requested = request.conversation.max_output.filter(|requested| *requested > least)?;
    let window = match stated.window {
        Some(window) => window,
        None if !request.model.known => return None,
        // The known window would hold both, so that the upstream's is smaller: only the least output is left.
        None if at_most(estimate).saturating_add(requested) < request.model.window => {
            with_margin(estimate).saturating_add(least)
        }
        None => request.model.window,
    };
    let prompt = match stated.input {
        // Nearer to prompt and output together than to the prompt: it is the count of both.
        Some(total)
            if !stated.counts_output
                && total >= window
                && window > estimate
                && total > estimate.saturating_add(requested / 2) =>
        {
            Some(total.saturating_sub(requested))
        }
        count => count,
    };
    let is_of_output = match prompt {
        Some(count) => count < window && count.saturating_add(requested) >= window,
        None => estimate < window,
    };
    // The refusal proves that the prompt has more tokens than the window leaves beside the requested output.
    let floor = estimate.max(window.saturating_sub(requested));
    if !is_of_output {
        return None;
    }
    Some(Refusal {
        cause: RepairCause::MaxTokens,
        detail: Some(RefusalDetail::Window),
        place: None,
        limit: Some(window),
        count: Some(prompt.unwrap_or(at_most(floor))),
        name: None,
    })
}

/// The tokens of a prompt with this estimate, which is too low at times.
fn at_most(estimate: u64) -> u64 {
    estimate.saturating_add(estimate / LOW)
}

fn with_margin(estimate: u64) -> u64 {
    // An estimate that is a little low would be refused again.
    estimate.saturating_add((estimate / MARGIN.0).max(MARGIN.1))
}

/// The change that prevents a refusal: another request's refusal said that the model can write `most` tokens.
pub fn spare(request: &PlanRequest<'_>, known: &RecordedDecisions, most: u64) -> Option<Fact> {
    let heal = &request.policy.heal;
    let conversation = request.conversation;
    if !heal.causes.contains(&RepairCause::MaxTokens)
        || conversation.held.is_some()
        || conversation.purpose == Purpose::Count
        || !BELIEVED.contains(&most)
        || conversation.max_output.is_some_and(|requested| requested <= most)
    {
        return None;
    }
    let mut repairs = known.repairs_of(request);
    if repairs.any(|one| matches!(one.repair, Repair::MaxTokens { most: other } if other <= most)) {
        return None;
    }
    let document = Document::read(request.body).ok()?;
    let OutputLimit(requested) =
        OutputLimit::from_request(conversation.dialect, document.root(request.body)?)?;
    let fact = decided(request, Repair::MaxTokens { most });
    if requested > most && known.may_decide(&fact) { Some(fact) } else { None }
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
    let limit = room.max(request.policy.heal.min_output);
    let body = splice::applied(request.body, &plan.edits);
    let edits = Repair::MaxTokens { most: limit }.edits(request.conversation.dialect, &body);
    if let Some(edits) = splice::compose(&plan.edits, &body, edits) {
        plan.edits = edits;
    }
}

/// The output limit after prompt and output were refused together: the least that policy allows.
pub(crate) fn lowered_output(request: &PlanRequest<'_>, known: &RecordedDecisions) -> Option<u64> {
    let requested = request.conversation.max_output;
    let least = request.policy.heal.min_output;
    window(request, known).map(|_| requested.map_or(least, |requested| requested.min(least)))
}

fn window(request: &PlanRequest<'_>, known: &RecordedDecisions) -> Option<u64> {
    let windows = known.repairs_of(request).filter_map(|one| match one.repair {
        Repair::OutputFits { window } => Some(window),
        _ => None,
    });
    // Of several upstream limits, the smallest holds for all.
    windows.min()
}

#[cfg(test)]
mod tests;
