//! A window that was not large enough: how it shows, and what was done about it (design §4.9).
//!
//! A refusal shows it before anything was answered; what shows it later (a cut answer, none at all,
//! fewer tokens read than were sent) cannot be mended any more, only told. Pure.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::budget::grouped;
use super::{Estimate, Method};
use crate::dialect::overflow::{Answered, Overflow, overflow};
use crate::dialect::{PartKind, Purpose, Reply, Stop, Usage};

/// How an overflow shows; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sign {
    /// The provider refused the request.
    Refused,
    /// An error came in place of a reply, or in the middle of it, after the provider had accepted.
    InReply,
    /// The reply ended because the window was full.
    WindowFull,
    /// The reply ended at its length before it began (`providers.md` §4.3, MiMo).
    Empty,
    /// The provider read far fewer tokens than were sent (`providers.md` §4.3, Ollama).
    Truncated,
}

/// An overflow, as it is told of an exchange and kept with its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overflowed {
    /// How it showed.
    pub sign: Sign,
    /// What the provider said of it.
    #[serde(flatten)]
    pub said: Overflow,
    /// Room was made, and the provider answered.
    pub saved: bool,
}

/// Reports below this share of the estimate say that something was left out: of an estimate that
/// rests on the provider's own count, and of one that does not.
const FAR_BELOW: (f64, f64) = (0.7, 0.4);
/// Fewer tokens than this fit every window in use.
pub const ANY_HOLDS: u64 = 1_500;

/// What a reply shows. `host`: the one that was asked.
pub fn shown(
    reply: &Reply,
    estimate: Option<&Estimate>,
    purpose: Purpose,
    host: &str,
) -> Option<Overflowed> {
    if purpose != Purpose::Turn && purpose != Purpose::Compaction {
        return None;
    }
    let showing = |sign, said| Some(Overflowed { sign, said, saved: false });
    if let Some(error) = &reply.error {
        let words = error.words();
        let answered = Answered { status: 200, host, body: words.as_bytes() };
        // What is said in the middle of an accepted reply is said in the same words.
        let refused = Answered { status: 400, ..answered };
        let said = overflow(&answered).or_else(|| overflow(&refused))?;
        return showing(Sign::InReply, said);
    }
    if reply.stop == Some(Stop::WindowFull) {
        return showing(Sign::WindowFull, Overflow::default());
    }
    let says = |kind| reply.parts.iter().any(|part| part.kind == kind);
    let nothing = !says(PartKind::Text) && !says(PartKind::ToolCall) && !says(PartKind::Reasoning);
    if reply.stop == Some(Stop::MaxTokens) && nothing && reply.usage.output.unwrap_or(0) == 0 {
        return showing(Sign::Empty, Overflow::default());
    }
    let input = truncated(&reply.usage, estimate?)?;
    showing(Sign::Truncated, Overflow { window: None, input: Some(input) })
}

/// The input that was read, where that is far below what was sent.
fn truncated(usage: &Usage, estimate: &Estimate) -> Option<u64> {
    let measured = !usage.lower_bound && !usage.hosted_tools && usage.cleared.is_none();
    let input = usage.input.filter(|input| measured && *input > 0 && usage.last_call.is_none())?;
    let share = match estimate.method {
        Method::Anchored => FAR_BELOW.0,
        Method::Estimated | Method::Compacted => FAR_BELOW.1,
        Method::Held => return None,
    };
    let far = (input as f64) < share * estimate.tokens as f64;
    (far && estimate.tokens >= ANY_HOLDS).then_some(input)
}

impl Sign {
    /// What happened, in words.
    pub fn words(self) -> &'static str {
        match self {
            Sign::Refused => "the provider refused the request: it does not fit the window",
            Sign::InReply => "the provider broke off: the request does not fit the window",
            Sign::WindowFull => "the reply ended because the window was full",
            Sign::Empty => "the reply ended at its length before it began: the window is full",
            Sign::Truncated => "the provider read far less than was sent: it cut the history",
        }
    }
}

impl fmt::Display for Overflowed {
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
        let is_mendable = self.sign == Sign::Refused;
        match self.saved {
            true => f.write_str("; room was made, and it was answered"),
            false if is_mendable => f.write_str("; no room could be made"),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::Breakdown;
    use crate::dialect::{ProviderError, ReplyPart};

    fn estimate(tokens: u64, method: Method) -> Estimate {
        let breakdown = Breakdown { messages: tokens, ..Breakdown::default() };
        let (counting, guess) = Default::default();
        Estimate { tokens, method, counting, new: 0, gone: 0, breakdown, guess }
    }

    fn sign(reply: &Reply, estimate: &Estimate) -> Option<Sign> {
        Some(shown(reply, Some(estimate), Purpose::Turn, "h")?.sign)
    }

    #[test]
    fn what_a_reply_shows_is_seen() {
        let small = estimate(100, Method::Anchored);
        let error = |kind: &str, message: &str| Reply {
            error: Some(ProviderError { kind: Some(kind.into()), message: Some(message.into()) }),
            ..Reply::default()
        };
        let full = error("context_length_exceeded", "Your input exceeds the context window of it.");
        assert_eq!(sign(&full, &small), Some(Sign::InReply));
        let long = error("invalid_request_error", "prompt is too long: 210 tokens > 200 maximum");
        let said = Overflow { window: Some(200), input: Some(210) };
        let seen = shown(&long, None, Purpose::Turn, "h").unwrap();
        assert_eq!((seen.sign, seen.said), (Sign::InReply, said));
        assert_eq!(sign(&error("rate_limit_exceeded", "Rate limit reached"), &small), None);
        let stopped = |stop| Reply { stop: Some(stop), ..Reply::default() };
        assert_eq!(sign(&stopped(Stop::WindowFull), &small), Some(Sign::WindowFull));
        assert_eq!(sign(&stopped(Stop::MaxTokens), &small), Some(Sign::Empty));
        let mut thought = stopped(Stop::MaxTokens);
        thought.parts.push(ReplyPart::of(PartKind::Reasoning));
        assert_eq!(sign(&thought, &small), None, "thinking took it all");
        assert_eq!(shown(&stopped(Stop::WindowFull), None, Purpose::WarmUp, "h"), None);
    }

    #[test]
    fn fewer_tokens_than_were_sent_are_seen_where_they_are_far_fewer() {
        let read = |input| Reply {
            usage: Usage { input: Some(input), output: Some(9), ..Usage::default() },
            stop: Some(Stop::End),
            ..Reply::default()
        };
        let (anchored, guessed) = (Method::Anchored, Method::Estimated);
        assert_eq!(sign(&read(4096), &estimate(20_000, guessed)), Some(Sign::Truncated));
        assert_eq!(sign(&read(12_000), &estimate(20_000, guessed)), None);
        assert_eq!(sign(&read(12_000), &estimate(20_000, anchored)), Some(Sign::Truncated));
        assert_eq!(sign(&read(19_000), &estimate(20_000, anchored)), None);
        assert_eq!(sign(&read(100), &estimate(1_000, anchored)), None, "small");
        assert_eq!(sign(&read(4096), &estimate(20_000, Method::Held)), None);
        let mut cut = read(4096);
        cut.usage.lower_bound = true;
        assert_eq!(sign(&cut, &estimate(20_000, anchored)), None);
    }
}
