//! Overflow: the window was too small. How that shows, and what was done about it (`docs/rewriting.md` "A
//! request that does not fit").
//!
//! A refusal shows it before there is a response. What shows it later (a truncated reply, an empty one, fewer
//! tokens read than were sent) can only be reported. Pure.

mod report;

pub use super::records::{OverflowReport, OverflowSign};

use super::budget::Anchor;
use super::{Estimate, EstimateMethod, SketchPart};
use crate::dialect::models::PictureRule;
use crate::dialect::overflow::{Overflow, overflow_in_reply};
use crate::dialect::{Audience, Conversation, Part, PartKind, Purpose, Reply, StopReason, Usage};
use crate::tokens::media::largest_picture;

/// A reported input below this share of what was sent is much too low.
const FAR_BELOW: f64 = 0.7;
/// Two reported inputs show the same cap if they differ by less than 1/`SAME`, while what was sent grew by
/// more than 1/`GREW`: without a cap, the reported input would have grown.
const SAME: u64 = 32;
const GREW: u64 = 4;
/// Fewer tokens than this fit every window in use.
pub const ANY_HOLDS: u64 = 1_500;

/// A provider's count is at most this many times ours, if everything that is sent is visible.
const WILD: u64 = 8;
/// If nothing but numbers says that a request does not fit, they are within this many times ours, either way.
const NEAR: u64 = 4;
/// Even at this many times our count, a request of fewer than [`ANY_HOLDS`] tokens fits any window.
const FAR_BELOW_ANY: u64 = 2;

/// Whether a message about the window contradicts the estimate so much that it cannot be true: its numbers are
/// far above what was sent, or it has none and the request would fit any window. Not if the provider holds
/// history, or if there are documents or opaque parts: their size is unknown here.
///
/// If nothing but its numbers says that the request does not fit, they have to be near the estimate.
pub fn contradicts(
    stated: &Overflow,
    estimate: &Estimate,
    sent: &Conversation,
    rule: &PictureRule,
) -> bool {
    if stated.is_inferred && !is_near(stated, estimate.tokens, sent.max_output) {
        return true;
    }
    // The size of documents and opaque parts is unknown here, and so is that of history at the provider.
    if estimate.method == EstimateMethod::Held || sent.held.is_some() || sent.parts().any(is_unseen)
    {
        return false;
    }
    let pictures = sent.parts().filter(|part| part.kind == PartKind::Image).count() as u64;
    let sent_at_most = estimate.tokens.saturating_add(pictures * u64::from(largest_picture(rule)));
    let bound = sent_at_most.saturating_mul(WILD).saturating_add(sent.max_output.unwrap_or(0));
    match stated.input.or(stated.window) {
        Some(tokens) => tokens > bound,
        // Whatever output was asked for: it is no reason to cut the prompt.
        None => sent_at_most.saturating_mul(FAR_BELOW_ANY) < ANY_HOLDS,
    }
}

fn is_unseen(part: &Part) -> bool {
    // The definitions that a reference loads are in the request.
    matches!(part.kind, PartKind::Document | PartKind::Opaque)
        && part.loads.is_empty()
        && part.audience == Audience::Model
}

/// Whether numbers in a message may be those of a request of so many tokens: the count is near the estimate, and
/// with the requested output it is more than the window.
pub fn is_near(stated: &Overflow, estimate: u64, max_output: Option<u64>) -> bool {
    let input = stated.input.unwrap_or(estimate);
    let is_like = input <= estimate.saturating_mul(NEAR) && input >= estimate / NEAR;
    // "About" so many are no count: ours decides, which may be a little less than theirs.
    let slack = if stated.input.is_none() { input / NEAR } else { 0 };
    let bound = input.saturating_add(slack).saturating_add(max_output.unwrap_or(0));
    is_like && stated.window.is_some_and(|window| window < bound)
}

/// What is known about a request whose reply may show an overflow.
#[derive(Clone, Copy, Debug, Default)]
pub struct OverflowEvidence<'a> {
    /// The predicted cost.
    pub estimate: Option<&'a Estimate>,
    /// The tokens that were sent, and those of the call before.
    pub sums: PartSums,
    /// The window, if known, tokens.
    pub window: Option<u64>,
    /// The requested output limit, tokens.
    pub max_output: Option<u64>,
    /// The host that the request was sent to.
    pub host: &'a str,
}

/// The estimated tokens of a request, summed over its parts, and the same for its anchor.
#[derive(Clone, Copy, Debug, Default)]
pub struct PartSums {
    sent: u64,
    previous: Option<PreviousCall>,
}

/// The call of the anchor, which reported its input.
#[derive(Clone, Copy, Debug)]
struct PreviousCall {
    /// Its estimated tokens.
    sent: u64,
    /// Input tokens, as reported.
    input: u64,
}

impl PartSums {
    /// The sums for a request with these parts.
    pub fn new(parts: &[SketchPart], anchor: Option<Anchor<'_>>) -> Self {
        let previous = anchor.and_then(|anchor| {
            let input = measured(&anchor.turn.usage)?;
            Some(PreviousCall { sent: sum(anchor.sketch), input })
        });
        Self { sent: sum(parts), previous }
    }
}

fn sum(parts: &[SketchPart]) -> u64 {
    parts.iter().map(|part| u64::from(part.tokens)).sum()
}

/// The overflow that a reply shows, if any.
pub fn detected(
    reply: &Reply,
    purpose: Purpose,
    evidence: &OverflowEvidence<'_>,
) -> Option<OverflowReport> {
    if purpose != Purpose::Turn && purpose != Purpose::Compaction {
        return None;
    }
    if let Some(error) = &reply.error {
        let stated = overflow_in_reply(error, evidence.host)?;
        // If nothing but the numbers says that the request does not fit, they have to be near ours.
        if let Some(estimate) = evidence.estimate
            && stated.is_inferred
            && !is_near(&stated, estimate.tokens, evidence.max_output)
        {
            return None;
        }
        return Some(OverflowReport::unsaved(OverflowSign::InReply, stated));
    }
    if reply.stop == Some(StopReason::WindowFull) {
        return Some(OverflowReport::unsaved(OverflowSign::WindowFull, Overflow::default()));
    }
    let has_content = reply
        .parts
        .iter()
        .any(|part| matches!(part.kind, PartKind::Text | PartKind::ToolCall | PartKind::Reasoning));
    // Output that is counted but not shown may be hidden reasoning, which the limit ended.
    if reply.stop == Some(StopReason::MaxTokens)
        && !has_content
        && reply.usage.output.unwrap_or(0) == 0
    {
        return Some(OverflowReport::unsaved(OverflowSign::Empty, Overflow::default()));
    }
    let input = truncated(&reply.usage, evidence)?;
    let reported = Overflow { input: Some(input), ..Overflow::default() };
    Some(OverflowReport::unsaved(OverflowSign::Truncated, reported))
}

/// The reported input, if it is much lower than what was sent and a limit explains that: the known window is
/// too small, or the call before reported the same input although the thread has grown since.
fn truncated(usage: &Usage, evidence: &OverflowEvidence<'_>) -> Option<u64> {
    let estimate = evidence.estimate.filter(|estimate| estimate.method != EstimateMethod::Held)?;
    let input = measured(usage)?;
    let PartSums { sent: parts, previous } = evidence.sums;
    let tokens = parts.max(estimate.guess.tokens);
    if tokens < ANY_HOLDS || input as f64 >= FAR_BELOW * tokens as f64 {
        return None;
    }
    // Without a limit that explains it, it is an error of the estimate.
    let is_small = evidence.window.is_some_and(|window| input <= window && window < tokens);
    let is_capped = previous.is_some_and(|previous| {
        let is_same = previous.input.abs_diff(input) <= input / SAME;
        is_same && parts > previous.sent.saturating_add(input / GREW)
    });
    if is_small || is_capped { Some(input) } else { None }
}

fn measured(usage: &Usage) -> Option<u64> {
    // With hosted tools, usage is a sum over calls; what was cleared was not read.
    let is_single = !usage.hosted_tools && usage.cleared.is_none() && usage.last_call.is_none();
    usage.input.filter(|input| is_single && *input > 0)
}

#[cfg(test)]
mod tests;
