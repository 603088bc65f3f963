//! Whether a summary is worth its cost: before it is written, by its assumed size, and once it is there.
//!
//! Pure.

use super::{CompactionNeed, CutPoint, is_worth_it, preview};
use crate::context::plan::{DecisionReason, PlanRequest, RecordedDecisions};
use crate::context::policy::SummaryAuthor;

/// Whether a summary at this place is worth writing: by its assumed size the request fits with it, and since the
/// summary in use enough was added (`lasting_share`). Another one is written only if somebody asks for it,
/// or if the provider says that the request does not fit.
pub fn is_worth_writing(
    request: &PlanRequest<'_>,
    known: &RecordedDecisions,
    choice: &CutPoint,
    tokens: u64,
    due: CompactionNeed,
) -> bool {
    let policy = &request.policy.compact;
    let fillable = request.fillable();
    let threshold = policy.threshold(fillable);
    let limit = if due == CompactionNeed::Must { fillable } else { threshold };
    let added = added_since_summary(request, known, tokens);
    preview(request, SummaryAuthor::Summary, choice, tokens).after <= limit
        && added.is_none_or(|added| added as f64 >= policy.lasting_share * threshold as f64)
}

/// Tokens that were added since the summary in use was first sent: none to the request that is the first to use it.
/// `None`: there is no summary, or the turn that sent it is no longer known.
fn added_since_summary(
    request: &PlanRequest<'_>,
    known: &RecordedDecisions,
    tokens: u64,
) -> Option<u64> {
    if known.compact().is_some_and(|(_, summary)| summary.exchange == *request.exchange) {
        return Some(0);
    }
    known.compacted_to.map(|before| tokens.saturating_sub(before))
}

/// What a summary saves of a request, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SummarySizes {
    /// The request as it is sent now.
    pub whole: u64,
    /// The history that the summary replaces.
    pub was: u64,
    /// The messages with the summary and its quotes.
    pub tokens: u64,
}

/// Whether a summary may replace a part of the history: it must shrink the context and leave it under the
/// threshold. If the request would not fit otherwise, it must fit the window; if somebody asked for it, any
/// size will do.
pub fn is_accepted(request: &PlanRequest<'_>, sizes: SummarySizes, why: DecisionReason) -> bool {
    let SummarySizes { whole, was, tokens } = sizes;
    let fillable = request.fillable();
    let limit = match why {
        DecisionReason::Window => fillable,
        DecisionReason::Requested => u64::MAX,
        _ => request.policy.compact.threshold(fillable),
    };
    is_worth_it(was, tokens) && whole.saturating_sub(was).saturating_add(tokens) <= limit
}
