//! A window that was not large enough: how it shows, and what was done about it (`docs/rewriting.md` "A
//! request that does not fit").
//!
//! A refusal shows it before anything was answered; what shows it later (a cut answer, none at all,
//! fewer tokens read than were sent) cannot be mended any more, only told. Pure.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::budget::{Anchor, grouped};
use super::{Estimate, EstimateMethod, SketchPart};
use crate::dialect::overflow::{ErrorResponse, Overflow, overflow};
use crate::dialect::{Conversation, PartKind, Purpose, Reply, StopReason, Usage};

/// How an overflow shows; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OverflowSign {
    /// The provider refused the request.
    Refused,
    /// An error came in place of a reply, or in the middle of it, after the provider had accepted.
    InReply,
    /// The reply ended because the window was full.
    WindowFull,
    /// The reply ended at its length before it began (`docs/protocols.md` 4.3, MiMo).
    Empty,
    /// The provider read far fewer tokens than were sent (`docs/protocols.md` 4.3, Ollama).
    Truncated,
}

/// An overflow, as it is told of an exchange and kept with its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverflowReport {
    /// How it showed.
    pub sign: OverflowSign,
    /// What the provider said of it.
    #[serde(flatten)]
    pub said: Overflow,
    /// Room was made, and the provider answered.
    pub saved: bool,
}

/// A report below this share of what was sent is far below it.
const FAR_BELOW: f64 = 0.7;
/// Two reports are of one cap where they differ by less than one part in so many, while what was sent
/// grew by more than one part in so many: by then no tokenizer of the same text reports the same.
const SAME: u64 = 32;
const GREW: u64 = 4;
/// Fewer tokens than this fit every window in use.
pub const ANY_HOLDS: u64 = 1_500;

/// A provider counts no more than so many times what we do, where all that is sent can be seen.
const WILD: u64 = 8;

/// Whether a message of the window contradicts an estimate of what was sent wildly. Of what the provider holds,
/// and of pictures and documents, nobody here knows the size.
pub fn contradicts(said: &Overflow, estimate: &Estimate, sent: &Conversation) -> bool {
    let unseen = [PartKind::Image, PartKind::Document, PartKind::Opaque];
    let is_seen = estimate.method != EstimateMethod::Held
        && sent.held.is_none()
        && sent.parts().all(|part| !unseen.contains(&part.kind));
    let output = sent.max_output.unwrap_or(0);
    let most = estimate.tokens.saturating_mul(WILD).saturating_add(output);
    is_seen && said.input.or(said.window).is_some_and(|tokens| tokens > most)
}

/// What is known of a request whose reply may show an overflow.
#[derive(Clone, Copy, Debug, Default)]
pub struct OverflowEvidence<'a> {
    /// What was predicted.
    pub estimate: Option<&'a Estimate>,
    /// What was sent, and before it.
    pub sums: PartSums,
    /// The window, where it is known, tokens.
    pub window: Option<u64>,
    /// The host that was asked.
    pub host: &'a str,
}

/// What was sent, summed part by part, and the same of the call that it grew from, tokens.
#[derive(Clone, Copy, Debug, Default)]
pub struct PartSums {
    sent: u64,
    before: Option<PreviousCall>,
}

/// The call before.
#[derive(Clone, Copy, Debug)]
struct PreviousCall {
    /// What was sent then.
    sent: u64,
    /// What was reported as read of it.
    input: u64,
}

impl PartSums {
    /// Of a request that was sent as `parts` say.
    pub fn of(parts: &[SketchPart], anchor: Option<Anchor<'_>>) -> Self {
        let sum = |parts: &[SketchPart]| parts.iter().map(|part| u64::from(part.tokens)).sum();
        let before = anchor.and_then(|anchor| {
            let input = measured(&anchor.turn.usage)?;
            Some(PreviousCall { sent: sum(anchor.sketch), input })
        });
        Self { sent: sum(parts), before }
    }
}

/// What a reply shows.
pub fn shown(
    reply: &Reply,
    purpose: Purpose,
    evidence: &OverflowEvidence<'_>,
) -> Option<OverflowReport> {
    let host = evidence.host;
    if purpose != Purpose::Turn && purpose != Purpose::Compaction {
        return None;
    }
    let showing = |sign, said| Some(OverflowReport { sign, said, saved: false });
    if let Some(error) = &reply.error {
        let words = error.words();
        let answered = ErrorResponse { status: 200, host, body: words.as_bytes() };
        // What is said in the middle of an accepted reply is said in the same words.
        let refused = ErrorResponse { status: 400, ..answered };
        let said = overflow(&answered).or_else(|| overflow(&refused))?;
        return showing(OverflowSign::InReply, said);
    }
    if reply.stop == Some(StopReason::WindowFull) {
        return showing(OverflowSign::WindowFull, Overflow::default());
    }
    let says = |kind| reply.parts.iter().any(|part| part.kind == kind);
    let nothing = !says(PartKind::Text) && !says(PartKind::ToolCall) && !says(PartKind::Reasoning);
    if reply.stop == Some(StopReason::MaxTokens) && nothing && reply.usage.output.unwrap_or(0) == 0
    {
        return showing(OverflowSign::Empty, Overflow::default());
    }
    let input = truncated(&reply.usage, evidence)?;
    showing(OverflowSign::Truncated, Overflow { window: None, input: Some(input) })
}

/// The input that was read, where that is far below what was sent and a limit explains it: a window that
/// is known and was too small, or the same input as the call before reported, though the thread grew.
/// Without either it is an error of the estimate, and nothing else.
fn truncated(usage: &Usage, evidence: &OverflowEvidence<'_>) -> Option<u64> {
    let estimate = evidence.estimate.filter(|estimate| estimate.method != EstimateMethod::Held)?;
    let input = measured(usage)?;
    let PartSums { sent: parts, before } = evidence.sums;
    let sent = parts.max(estimate.guess.tokens);
    let far = sent >= ANY_HOLDS && (input as f64) < FAR_BELOW * sent as f64;
    let is_small = evidence.window.is_some_and(|window| input <= window && window < sent);
    let is_capped = before.is_some_and(|before| {
        let same = before.input.abs_diff(input) <= input / SAME;
        same && parts > before.sent.saturating_add(input / GREW)
    });
    (far && (is_small || is_capped)).then_some(input)
}

/// The input of one call that was reported whole.
fn measured(usage: &Usage) -> Option<u64> {
    let whole = !usage.hosted_tools && usage.cleared.is_none() && usage.last_call.is_none();
    usage.input.filter(|input| whole && *input > 0)
}

impl OverflowSign {
    /// What happened, in words.
    pub fn words(self) -> &'static str {
        match self {
            OverflowSign::Refused => "the provider refused the request: it does not fit the window",
            OverflowSign::InReply => "the provider broke off: the request does not fit the window",
            OverflowSign::WindowFull => "the reply ended because the window was full",
            OverflowSign::Empty => {
                "the reply ended at its length before it began: the window is full"
            }
            OverflowSign::Truncated => {
                "the provider read far less than was sent: it cut the history"
            }
        }
    }
}

impl fmt::Display for OverflowReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.sign.words())?;
        match (self.said.input, self.said.window) {
            (Some(input), Some(window)) => {
                write!(f, " ({} tokens, window {})", grouped(input), grouped(window))?;
            }
            (Some(input), None) => write!(f, " ({} tokens)", grouped(input))?,
            (None, Some(window)) => write!(f, " (window {})", grouped(window))?,
            (None, None) => {}
        }
        let is_mendable = self.sign == OverflowSign::Refused;
        match self.saved {
            true => f.write_str("; room was made, and it was answered"),
            false if is_mendable => f.write_str("; no room could be made"),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
