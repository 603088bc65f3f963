//! What is told of an exchange, a compaction, a request on its way, and the store.
//!
//! Values alone: made once, then counted, logged and listed. Nothing reads them back while it works.

use serde::Serialize;

use super::gaps::StreamGaps;
use super::labels::{CountEstimate, FailOpen, SummaryOutcome};
use super::refusal::RefusalReport;
use crate::context::budget::{ClassicEstimate, ContextView, HiddenInput};
use crate::context::plan::{DecisionReason, RewriteSummary};
use crate::context::policy::SummaryAuthor;
use crate::context::savings::ExchangeSavings;
use crate::context::{Estimate, ExchangeId, Millis, Outcome, SessionId, TenantId, ThreadId};
use crate::dialect::error_kind::ErrorKind;
use crate::dialect::models::Family;
use crate::dialect::refusal::RefusalCause;
use crate::dialect::{Dialect, Note, Purpose, StopReason, Usage};

/// How busy a store is, and what it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreState {
    /// Writes that wait.
    pub writes: usize,
    /// Bytes of them.
    pub write_bytes: usize,
    /// Reads of traffic that wait.
    pub traffic: usize,
    /// Reads of those who look in that wait.
    pub lookers: usize,
    /// Threads.
    pub threads: usize,
    /// How often the thread that writes began anew after a panic.
    pub restarts: usize,
    /// Bytes on disk.
    pub bytes: u64,
}

/// Everything that is told of writing one summary.
#[derive(Clone, Debug, Serialize)]
pub struct Compaction {
    /// The upstream that was asked.
    pub upstream: Box<str>,
    /// The model that was asked.
    pub model: Box<str>,
    /// Who writes.
    pub engine: SummaryAuthor,
    /// Why.
    pub why: DecisionReason,
    /// How it ended.
    pub outcome: SummaryOutcome,
    /// Tokens that it stands for.
    pub before: u64,
    /// Tokens of it, where it is written.
    pub after: Option<u64>,
    /// How long it took.
    pub seconds: f64,
    /// What it cost, as reported.
    pub usage: Usage,
}

/// Everything that is told of one exchange, at its end.
#[derive(Clone, Debug, Serialize)]
pub struct Exchange {
    /// Its id, unique.
    pub id: ExchangeId,
    /// When the request arrived.
    pub at: Millis,
    /// The configured upstream, if the route found one.
    pub upstream: Option<Box<str>>,
    /// The wire protocol, where the path told one.
    pub dialect: Option<Dialect>,
    /// What it was for.
    pub purpose: Option<Purpose>,
    /// HTTP method.
    pub method: Box<str>,
    /// The path without its query (keys can stand there).
    pub path: Box<str>,
    /// The model, as the client named it.
    pub model: Option<Box<str>>,
    /// Its tokenizer.
    pub family: Option<Family>,
    /// Keyed hash of the credential.
    pub tenant: Option<TenantId>,
    /// The session.
    pub session: Option<SessionId>,
    /// The thread.
    pub thread: Option<ThreadId>,
    /// The provider's id of the request, from the header of its answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider_request_id: Option<Box<str>>,
    /// The status the client saw; `None` where it saw none.
    pub status: Option<u16>,
    /// How it ended.
    pub outcome: Outcome,
    /// Why the reply ended.
    pub stop: Option<StopReason>,
    /// What kind of error the provider told of, by its status or inside a success.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_kind: Option<ErrorKind>,
    /// What was predicted.
    pub estimate: Option<Estimate>,
    /// A token count was answered with that estimate: why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count_estimated: Option<CountEstimate>,
    /// What a known agent would have predicted, where its rules are asked.
    pub classic: Option<ClassicEstimate>,
    /// In how many of the model's last ten turns the newest call had the same result, from four on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repeated_calls: Option<u32>,
    /// What was done to the request.
    pub done: RewriteSummary,
    /// What was reported.
    pub usage: Usage,
    /// What rewriting did for it; only of exchanges that became turns.
    pub saved: Option<ExchangeSavings>,
    /// How long it waited for a summary, µs; only where it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compaction_wait_us: Option<u64>,
    /// How long it waited for what the store knows of its session, µs; only where that was longer than
    /// `limits.load_ms`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_load_us: Option<u64>,
    /// The window that was believed, tokens.
    pub window: Option<u64>,
    /// Whether a stream was answered.
    pub streamed: bool,
    /// Bytes of the request body.
    pub request_bytes: u64,
    /// Bytes of the response body.
    pub response_bytes: u64,
    /// Frames of the response body.
    pub frames: u64,
    /// Own time before the request was forwarded, µs: without the wait for a summary.
    pub request_side_us: u64,
    /// Time spent here on the response's frames, all together, µs.
    pub response_side_us: u64,
    /// From request to response headers, µs.
    pub headers_us: Option<u64>,
    /// From request to first body byte, µs.
    pub first_byte_us: Option<u64>,
    /// The longest time that the upstream said nothing in a stream, before its first event too, µs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub longest_gap_us: Option<u64>,
    /// All such times of a stream.
    #[serde(skip)]
    pub gaps: Option<Box<StreamGaps>>,
    /// The stream was broken, because the upstream said nothing for `limits.silent_stream_s`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub silent_stream: bool,
    /// From request to the end, µs.
    pub duration_us: u64,
    /// What became of a refusal that blames what was sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<RefusalReport>,
    /// What the provider's refusal of our rewrite named, where the original was sent again.
    pub refused: Option<RefusalCause>,
    /// Where we stood aside.
    pub fail_open: Vec<FailOpen>,
    /// What was strange.
    pub notes: Vec<Note>,
}

impl Exchange {
    /// An exchange of which nothing is known but when it began and what was asked for. Until
    /// something else is known, its client left.
    pub fn begun(id: ExchangeId, at: Millis, method: &str, path: &str) -> Self {
        Self {
            id,
            at,
            upstream: None,
            dialect: None,
            purpose: None,
            method: method.into(),
            path: path.into(),
            model: None,
            family: None,
            tenant: None,
            session: None,
            thread: None,
            provider_request_id: None,
            status: None,
            outcome: Outcome::ClientLeft,
            stop: None,
            error_kind: None,
            estimate: None,
            count_estimated: None,
            classic: None,
            repeated_calls: None,
            done: RewriteSummary::default(),
            usage: Usage::default(),
            saved: None,
            compaction_wait_us: None,
            session_load_us: None,
            window: None,
            streamed: false,
            request_bytes: 0,
            response_bytes: 0,
            frames: 0,
            request_side_us: 0,
            response_side_us: 0,
            headers_us: None,
            first_byte_us: None,
            longest_gap_us: None,
            gaps: None,
            silent_stream: false,
            duration_us: 0,
            refusal: None,
            refused: None,
            fail_open: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Whether its thread is left alone from now on: the rewrite was refused, and the original was
    /// not. A refusal that names what is asked beside it says nothing of the rewrite, and a count is
    /// of no thread.
    pub fn sets_aside(&self) -> bool {
        let refused = self.refused.filter(|cause| !cause.is_beside());
        let is_count = self.purpose == Some(Purpose::Count);
        refused.is_some() && self.done.resent.is_some() && !is_count
    }

    /// The input that the estimate predicted, where it was reported. A reply that broke off later takes
    /// nothing from it.
    pub fn actual(&self) -> Option<u64> {
        self.usage.input
    }

    /// Why its input could not be known beforehand, where it was reported: its error is none of counting.
    pub fn hidden_input(&self) -> Option<HiddenInput> {
        self.actual()?;
        HiddenInput::of(&self.usage, self.estimate.as_ref()?)
    }

    /// `estimate − actual`, tokens.
    pub fn error(&self) -> Option<i64> {
        self.away(self.estimate.as_ref()?.tokens)
    }

    /// `error / actual`; `None` where the actual is 0.
    pub fn error_ratio(&self) -> Option<f64> {
        self.share(self.error()?)
    }

    /// As [`Exchange::error`], of the classic count.
    pub fn classic_error(&self) -> Option<i64> {
        self.away(self.classic.as_ref()?.tokens)
    }

    /// As [`Exchange::error_ratio`], of the classic count.
    pub fn classic_error_ratio(&self) -> Option<f64> {
        self.share(self.classic_error()?)
    }

    fn away(&self, tokens: u64) -> Option<i64> {
        Some(tokens as i64 - self.actual()? as i64)
    }

    fn share(&self, error: i64) -> Option<f64> {
        let actual = self.actual().filter(|actual| *actual > 0)?;
        Some(error as f64 / actual as f64)
    }
}

/// A request that is on its way, for whoever looks in before it has ended.
#[derive(Clone, Debug)]
pub struct OpenExchange {
    /// Its exchange.
    pub id: ExchangeId,
    /// Keyed hash of the credential.
    pub tenant: TenantId,
    /// The session.
    pub session: SessionId,
    /// The thread.
    pub thread: ThreadId,
    /// When the request arrived.
    pub at: Millis,
    /// What it is for.
    pub purpose: Purpose,
    /// What it will make of its context.
    pub view: ContextView,
}
