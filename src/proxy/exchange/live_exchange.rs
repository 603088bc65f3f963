//! An exchange in flight, in one of its phases: received, planned, sent.
//!
//! Each step takes the exchange and returns it in its next phase, or else the response that ends it. What was known before
//! is kept, never copied. In whatever phase it is dropped, its recorder reports it as an
//! [`Exchange`](crate::telemetry::Exchange).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Response;

use super::client_request::ClientRequest;
use super::original_request::OriginalRequest;
use crate::config::Upstream;
use crate::context::Outcome;
use crate::context::caps::{CapState, Spender};
use crate::dialect::{Dialect, Purpose};
use crate::proxy::compaction::summarize::SummaryJob;
use crate::proxy::http::answer::ProxyError;
use crate::proxy::http::body::OutgoingBody;
use crate::proxy::http::headers;
use crate::proxy::http::upstream::error::UpstreamError;
use crate::proxy::plan::placed_request::PlacedRequest;
use crate::proxy::plan::planned_request::PlannedRequest;
use crate::proxy::plan::prepared_request::PreparedRequest;
use crate::proxy::response::response_body::ResponseBody;
use crate::proxy::response::usage_rewrite::UsageAddition;
use crate::proxy::state::Proxy;
use crate::proxy::state::exchange_recorder::ExchangeRecorder;
use crate::proxy::turn::open::OpenTurn;
use crate::store::recall::ReadBudget;
use crate::telemetry::ClientTimeout;

/// An exchange that has not ended.
pub(super) struct LiveExchange<Phase> {
    pub(super) recorder: Box<ExchangeRecorder>,
    pub(super) client: Arc<ClientRequest>,
    pub(super) upstream: Arc<Upstream>,
    pub(super) phase: Phase,
}

/// Its request is routed; nothing of its body was read.
pub(super) struct Received;

/// Its body was read and planned, or streams through unread.
#[derive(Default)]
pub(super) struct Planned {
    /// Makes a turn from the reply.
    pub(super) placed: Option<Box<PlacedRequest>>,
    /// The summary to write after the response.
    pub(super) writer: Option<Box<SummaryJob>>,
    /// A request for a token count, which is answered here if the upstream does not.
    pub(super) count: Option<Box<PlannedRequest>>,
    /// The request as its client sent it, if it may have to be sent again.
    pub(super) original: Option<Box<OriginalRequest>>,
}

impl Planned {
    /// A request that is sent as it came, and is answered here if it counts tokens and the upstream does not.
    pub(super) fn original_count(prepared: Arc<PreparedRequest>) -> Self {
        let is_count = prepared.conversation.purpose == Purpose::Count;
        let count =
            if is_count { Some(Box::new(PlannedRequest::original(prepared))) } else { None };
        Self { count, ..Self::default() }
    }
}

/// Its response has begun.
pub(super) struct Sent {
    pub(super) response: Response<OutgoingBody>,
    /// How long the upstream took for the head, once the request was sent.
    pub(super) upstream_time: Duration,
    /// Makes a turn from the reply.
    pub(super) turn: Option<Box<OpenTurn>>,
    /// It asked for usage on the client's behalf.
    pub(super) added_usage: bool,
    /// Tokens that are added to the usage.
    pub(super) usage_addition: Option<UsageAddition>,
}

/// The response that ends an exchange before its upstream's could.
pub(super) type OwnResponse = Box<Response<ResponseBody>>;

impl LiveExchange<Received> {
    /// The client, by what is known before a request is read; `None` if its tenant is unknown.
    pub(super) fn spender(&self) -> Option<Spender> {
        Some(Spender {
            tenant: self.client.tenant(&self.recorder.proxy).ok()?,
            tags: headers::tags(&self.client.headers),
            upstream: self.upstream.name.clone(),
            ..Spender::default()
        })
    }
}

/// The cap that stops a spender.
pub(super) async fn reached_cap(proxy: &Proxy, spender: &Spender) -> Option<CapState> {
    let reads = ReadBudget::new(Duration::from_millis(proxy.config.limits.store_ms));
    proxy.ledgers.fullest_cap(spender, &[], &reads).await.filter(|cap| cap.used >= 1.0)
}

impl<Phase> LiveExchange<Phase> {
    pub(super) fn split(self) -> (LiveExchange<()>, Phase) {
        let Self { recorder, client, upstream, phase } = self;
        (LiveExchange { recorder, client, upstream, phase: () }, phase)
    }

    pub(super) fn into_phase<Next>(self, phase: Next) -> LiveExchange<Next> {
        let Self { recorder, client, upstream, .. } = self;
        LiveExchange { recorder, client, upstream, phase }
    }

    pub(super) fn refuse(self, fault: &ProxyError) -> OwnResponse {
        refuse(fault, self.client.dialect, self.recorder)
    }

    pub(super) fn fail(self, error: UpstreamError) -> OwnResponse {
        // If the client broke its request off, the upstream is not to blame.
        let fault = self.recorder.upload_fault();
        let fault = fault.unwrap_or_else(|| proxy_error(&self.upstream, error));
        self.refuse(&fault)
    }
}

/// An error response of ours, which ends the exchange.
pub(super) fn refuse(
    fault: &ProxyError,
    dialect: Option<Dialect>,
    recorder: Box<ExchangeRecorder>,
) -> OwnResponse {
    if *fault == ProxyError::BodyTooSlow {
        recorder.proxy.telemetry.client_timed_out(ClientTimeout::Body);
    }
    answer(fault.answer(dialect), fault.outcome(), recorder)
}

/// A response of ours, which ends the exchange.
pub(super) fn answer(
    mut response: Response<Bytes>,
    outcome: Outcome,
    mut recorder: Box<ExchangeRecorder>,
) -> OwnResponse {
    recorder.answer(&mut response, outcome);
    Box::new(response.map(|body| ResponseBody::Ours(Some(body))))
}

pub(super) fn proxy_error(upstream: &Upstream, error: UpstreamError) -> ProxyError {
    let upstream = upstream.name.clone();
    match error {
        UpstreamError::RequestBroken => ProxyError::RequestBroken,
        UpstreamError::TooSlow(reason) => ProxyError::UpstreamTooSlow { upstream, reason },
        UpstreamError::Failed(reason) => ProxyError::UpstreamFailed { upstream, reason },
        UpstreamError::ResponseLost => ProxyError::ResponseLost,
    }
}
