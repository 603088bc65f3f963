//! The events of exchanges, compactions, requests in flight and the store.
//!
//! Plain values: created once, then counted, logged and listed. Nothing reads them back to make decisions.

use std::time::Duration;

use serde::Serialize;

use super::chunks::ChunkTimes;
use super::labels::{CountEstimate, FailOpen, SummaryOutcome};
use super::refusal::RefusalReport;
use super::trace::ExchangeTrace;
use crate::context::budget::{ClassicEstimate, ContextView, HiddenInput};
use crate::context::cost::CostParts;
use crate::context::plan::RewriteSummary;
use crate::context::policy::SummaryAuthor;
use crate::context::savings::ExchangeSavings;
use crate::context::{
    Estimate, ExchangeId, Millis, Outcome, Position, SessionId, SessionWitness, TenantId, ThreadId,
};
use crate::dialect::agent::Agent;
use crate::dialect::error_kind::ErrorKind;
use crate::dialect::hints::ClientHints;
use crate::dialect::models::Family;
use crate::dialect::refusal::RefusalCause;
use crate::dialect::{Dialect, EstimateError, Note, Purpose, StopReason, Usage};

/// How busy a store is, and how much space it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoreState {
    /// Writes that wait.
    pub writes: usize,
    /// Reads for traffic that wait.
    pub traffic: usize,
    /// Reads for the admin API that wait.
    pub admin: usize,
    /// How often the writing thread was restarted after a panic.
    pub restarts: usize,
    /// Bytes on disk.
    pub bytes: u64,
    /// Whether nothing can be stored although it is open.
    pub is_failing: bool,
}

/// The report of writing one summary.
#[derive(Clone, Debug)]
pub struct Compaction {
    /// The upstream that was called.
    pub upstream: Box<str>,
    /// The model that was called.
    pub model: Box<str>,
    /// Who writes the summary.
    pub engine: SummaryAuthor,
    /// How it ended.
    pub outcome: SummaryOutcome,
    /// Tokens of the history that it replaces.
    pub before: u64,
    /// Tokens of the summary, if it was written.
    pub after: Option<u64>,
    /// How many seconds it took.
    pub seconds: f64,
    /// The usage that the provider reported for it.
    pub usage: Usage,
}

/// The report of one exchange, at its end.
#[derive(Clone, Debug, Default, Serialize, schemars::JsonSchema)]
pub struct Exchange {
    /// Its unique id.
    pub id: ExchangeId,
    /// When the request arrived.
    pub at: Millis,
    /// The configured upstream, if the route found one.
    pub upstream: Option<Box<str>>,
    /// The wire protocol, if the path identifies it.
    pub dialect: Option<Dialect>,
    /// What the request was for.
    pub purpose: Option<Purpose>,
    /// HTTP method.
    pub method: Box<str>,
    /// The path without its query, which may contain keys.
    pub path: Box<str>,
    /// The model name that the client sent.
    pub model: Option<Box<str>>,
    /// The model's tokenizer family.
    pub family: Option<Family>,
    /// Keyed hash of the credential.
    pub tenant: Option<TenantId>,
    /// The session; `None` if the request was not placed in one.
    pub session: Option<SessionId>,
    /// The thread that it continues, or that begins with it.
    pub thread: Option<ThreadId>,
    /// What decided which session it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found_by: Option<SessionWitness>,
    /// The agent that sent it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<Agent>,
    /// The tags of its request, `name=value`.
    #[serde(skip)]
    pub tags: Vec<Box<str>>,
    /// What its input costs if the provider's cache of its session has gone, US dollars: by the estimate, so that it is
    /// known before the reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cold_input: Option<f64>,
    /// The provider's request id, from the response header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider_request_id: Option<Box<str>>,
    /// The status that the client received; `None` if it received none.
    pub status: Option<u16>,
    /// How it ended.
    pub outcome: Outcome,
    /// Why the reply ended.
    pub stop: Option<StopReason>,
    /// The kind of error that the provider reported, by its status or inside a success.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_kind: Option<ErrorKind>,
    /// The estimate of its tokens.
    pub estimate: Option<Estimate>,
    /// Why a token count was answered with that estimate, if it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count_estimated: Option<CountEstimate>,
    /// The context after it is shown without messages, because system prompt and tools were estimated larger than
    /// what was reported.
    #[serde(skip)]
    pub shown_capped: bool,
    /// What a known agent would have estimated, if its rules are configured.
    pub classic: Option<ClassicEstimate>,
    /// In how many of the model's last ten turns the newest call had the same result; given from four on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repeated_calls: Option<u32>,
    /// What the client said of the request in headers (`docs/protocols.md` 8.1).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hints: Option<Box<ClientHints>>,
    /// What was changed in the request.
    pub done: RewriteSummary,
    /// The usage that was reported.
    pub usage: Usage,
    /// The model that the reply names, if it is not called as it was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub served: Option<Box<str>>,
    /// What it cost, US dollars; `None` if a price of it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dollars: Option<f64>,
    /// The same by the model that was billed, and by what it was for.
    #[serde(skip)]
    pub costs: Vec<(Box<str>, CostParts)>,
    /// What it costs at our prices, US dollars, if the provider says its price, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dollars_beside_stated: Option<f64>,
    /// What rewriting saved or cost; only for exchanges that became turns.
    pub saved: Option<ExchangeSavings>,
    /// The window that was assumed, in tokens.
    pub window: Option<u64>,
    /// Whether the response was a stream.
    pub streamed: bool,
    /// What was measured of it.
    #[serde(flatten)]
    pub timing: ExchangeTiming,
    /// The outcome of a refusal that blames the request's content.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<RefusalReport>,
    /// What the provider's refusal of our rewrite named, if the original was sent again.
    pub refused: Option<RefusalCause>,
    /// Why the exchange was forwarded without some of our functions.
    pub fail_open: Vec<FailOpen>,
    /// Observations about the exchange.
    pub notes: Vec<Note>,
    /// Its place in a trace and its steps, if it is sampled.
    #[serde(skip)]
    pub trace: Option<Box<ExchangeTrace>>,
}

/// What is measured of an exchange: bytes, and times in µs.
#[derive(Clone, Debug, Default, Serialize, schemars::JsonSchema)]
pub struct ExchangeTiming {
    /// How long it waited for a summary, in µs; only if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compaction_wait_us: Option<u64>,
    /// How long it waited for the provider's count of its pictures and documents, in µs; only if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count_wait_us: Option<u64>,
    /// How long it waited for the stored data of its session, in µs; only if that was longer than
    /// `limits.store_ms`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_load_us: Option<u64>,
    /// Bytes of the request body.
    pub request_bytes: u64,
    /// Bytes of the response body.
    pub response_bytes: u64,
    /// Frames of the response body.
    pub frames: u64,
    /// Our own time before the request was forwarded, in µs, without the wait for a summary.
    pub request_side_us: u64,
    /// Our own time for all frames of the response, in µs.
    pub response_side_us: u64,
    /// From the request to when it was forwarded, in µs.
    #[serde(skip)]
    pub forwarded_us: Option<u64>,
    /// From the request to the response headers, in µs.
    pub headers_us: Option<u64>,
    /// From the request to the first byte of the response body, in µs.
    pub first_byte_us: Option<u64>,
    /// The longest time that the upstream sent nothing in a stream, in µs; before its first event, counted from
    /// when the last byte of the request was sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub longest_gap_us: Option<u64>,
    /// How long its chunks took; only of a stream, and if they are exported.
    #[serde(skip)]
    pub chunks: Option<Box<ChunkTimes>>,
    /// Whether the stream was broken off because the upstream sent nothing for `limits.silent_stream_s`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub silent_stream: bool,
    /// From the request to the end, in µs.
    pub duration_us: u64,
}

/// Whole microseconds.
pub(crate) fn micros(duration: Duration) -> u64 {
    duration.as_micros() as u64
}

impl Exchange {
    /// Whether its context, before or after it, is shown without messages.
    pub(super) fn is_capped(&self) -> bool {
        let estimate = self.estimate.as_ref();
        self.shown_capped || estimate.is_some_and(|estimate| estimate.breakdown.capped)
    }

    /// An exchange of which only the beginning and the request line are known. Until more is known, its
    /// outcome is that the client left.
    pub fn begun(id: ExchangeId, at: Millis, method: &str, path: &str) -> Self {
        Self {
            id,
            at,
            method: method.into(),
            path: path.into(),
            outcome: Outcome::ClientLeft,
            ..Self::default()
        }
    }

    /// Whether its branch is suspended from now on: the rewritten request was refused, and the original was
    /// not. A refusal that names a parameter outside the conversation says nothing about the rewrite, and a
    /// token count belongs to no thread.
    pub fn suspends_branch(&self) -> bool {
        let refused = self.refused.filter(|cause| !cause.is_beside());
        let is_count = self.purpose == Some(Purpose::Count);
        refused.is_some() && self.done.resent.is_some() && !is_count
    }

    /// The reported input tokens, which the estimate predicted. Still valid if the reply broke off later.
    pub fn actual(&self) -> Option<u64> {
        self.usage.input
    }

    /// Why its input could not be known beforehand, if it was reported: then the difference is not an error
    /// of counting.
    pub fn hidden_input(&self) -> Option<HiddenInput> {
        self.actual()?;
        HiddenInput::from_usage(&self.usage, self.estimate.as_ref()?)
    }

    /// `estimate − actual`, tokens.
    pub fn error(&self) -> Option<i64> {
        Some(self.estimate_error()?.tokens)
    }

    pub(super) fn estimate_error(&self) -> Option<EstimateError> {
        self.usage.error_of(self.estimate.as_ref()?.tokens)
    }

    /// Like [`Exchange::estimate_error`], for Plimsoll's own estimate, whichever count decides.
    pub(super) fn own_error(&self) -> Option<EstimateError> {
        self.usage.error_of(self.estimate.as_ref()?.guess.tokens)
    }

    /// Like [`Exchange::estimate_error`], for the classic count.
    pub fn classic_error(&self) -> Option<EstimateError> {
        self.usage.error_of(self.classic.as_ref()?.tokens)
    }
}

/// A request in flight, which the admin API shows before its exchange ends.
#[derive(Clone, Debug)]
pub struct OpenExchange {
    /// The id of its exchange.
    pub id: ExchangeId,
    /// Keyed hash of the credential.
    pub tenant: TenantId,
    /// The session that it was placed in.
    pub session: SessionId,
    /// The thread that it continues, or that begins with it, and its place there.
    pub position: Position,
    /// What the client said of it in headers.
    pub hints: Option<Box<ClientHints>>,
    /// When the request arrived.
    pub at: Millis,
    /// What the request is for.
    pub purpose: Purpose,
    /// The context that it will send.
    pub view: ContextView,
}
