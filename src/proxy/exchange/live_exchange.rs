//! An exchange in flight, in one of its phases: received, planned, sent.
//!
//! Each step takes the exchange and returns it in its next phase, or else the response that ends it. What was known before
//! is kept, never copied. In whatever phase it is dropped, its recorder reports it as an
//! [`Exchange`](crate::telemetry::Exchange).

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Response, StatusCode, request};

use super::client_request::ClientRequest;
use super::original_request::OriginalRequest;
use super::outbound::OutboundRequest;
use super::planning::RequestPlan;
use crate::config::{ServerLimits, Upstream};
use crate::context::Outcome;
use crate::dialect::Dialect;
use crate::proxy::http::answer::ProxyError;
use crate::proxy::http::arriving::ClientBody;
use crate::proxy::http::body::{self, CollectOutcome, OutgoingBody};
use crate::proxy::http::upstream::error::UpstreamError;
use crate::proxy::plan::added_option::AddedOptionKind;
use crate::proxy::response::response_body::ResponseBody;
use crate::proxy::response::usage_rewrite::UsageAddition;
use crate::proxy::state::exchange_recorder::ExchangeRecorder;
use crate::proxy::turn::open::OpenTurn;
use crate::telemetry::{ClientTimeout, FailOpen};

/// An exchange that has not ended.
pub(super) struct LiveExchange<Phase> {
    pub(super) recorder: ExchangeRecorder,
    pub(super) client: Arc<ClientRequest>,
    pub(super) upstream: Arc<Upstream>,
    pub(super) phase: Phase,
}

/// Its request is routed; nothing of its body was read.
pub(super) struct Received;

/// Its body was read and planned, or streams through unread.
pub(super) struct Planned {
    outbound: OutboundRequest,
    plan: RequestPlan,
    body_complete_at: Instant,
}

/// Its response has begun.
pub(super) struct Sent {
    pub(super) response: Response<OutgoingBody>,
    /// How long the upstream took for the head, once the request was sent.
    pub(super) upstream_time: Duration,
    /// Makes a turn from the reply.
    pub(super) turn: Option<Box<OpenTurn>>,
    /// It asked for several replies.
    pub(super) several: bool,
    /// It asked for usage on the client's behalf.
    pub(super) added_usage: bool,
    /// Tokens that are added to the usage.
    pub(super) usage_addition: Option<UsageAddition>,
}

/// The response that ends an exchange before its upstream's could.
pub(super) type OwnResponse = Box<Response<ResponseBody>>;

impl<Phase> LiveExchange<Phase> {
    fn split(self) -> (LiveExchange<()>, Phase) {
        let Self { recorder, client, upstream, phase } = self;
        (LiveExchange { recorder, client, upstream, phase: () }, phase)
    }

    fn into_phase<Next>(self, phase: Next) -> LiveExchange<Next> {
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

impl LiveExchange<Received> {
    /// Makes the request ready to be sent. `head`: as it is sent.
    ///
    /// # Errors
    /// The response to a client whose body did not arrive.
    pub(super) async fn plan(
        mut self,
        head: request::Parts,
        body: ClientBody,
    ) -> Result<LiveExchange<Planned>, OwnResponse> {
        // 3. Body.
        let body = permitted(body, &self.upstream);
        let collected = match self.client.body_dialect() {
            Some(_) => {
                let proxy = &self.recorder.proxy;
                let ServerLimits { body_bytes, body_s, .. } = proxy.config.limits;
                let timeout = Duration::from_secs(body_s);
                body::collect(body, body_bytes, timeout, &proxy.memory).await
            }
            None => CollectOutcome::Unread(OutgoingBody::request(body)),
        };
        let body_complete_at = Instant::now();
        let mut plan = RequestPlan::default();
        let recorder = &mut self.recorder;
        let outbound = match collected {
            CollectOutcome::Broken => return Err(self.refuse(&ProxyError::RequestBroken)),
            CollectOutcome::TimedOut => return Err(self.refuse(&ProxyError::BodyTooSlow)),
            CollectOutcome::Unread(body) => {
                OutboundRequest::plain(head, recorder.count_upload(body))
            }
            CollectOutcome::TooLarge(body) => {
                recorder.record_fail_open(FailOpen::BodyTooLarge);
                OutboundRequest::plain(head, recorder.count_upload(body))
            }
            CollectOutcome::NoMemory(body) => {
                recorder.record_fail_open(FailOpen::MemoryBudget);
                OutboundRequest::plain(head, recorder.count_upload(body))
            }
            CollectOutcome::Whole { bytes, trailers } => {
                recorder.meter.request_bytes = bytes.len() as u64;
                // 4. Read. 5. Open the ledger. 6. Plan. 7. Save.
                plan = self.read_and_plan(&bytes, &head).await;
                // 8. Splice.
                let original = OriginalRequest { head, bytes, trailers, added: plan.added() };
                OutboundRequest::edited(original, plan.rewrite(), plan.may_repair())
            }
        };
        Ok(self.into_phase(Planned { outbound, plan, body_complete_at }))
    }
}

impl LiveExchange<Planned> {
    /// Sends the request, again if need be, until there is a response to forward.
    ///
    /// # Errors
    /// Our own response, if there is none, or if it counts tokens where the upstream does not.
    pub(super) async fn send(self) -> Result<LiveExchange<Sent>, OwnResponse> {
        let (mut exchange, Planned { outbound, plan, body_complete_at }) = self.split();
        let RequestPlan { mut pending, writer, count } = plan;
        let recorder = &mut exchange.recorder;
        let proxy = recorder.proxy.clone();
        // The wait for a summary is reported separately.
        let summary_wait =
            pending.as_ref().map(|pending| pending.summary_wait()).unwrap_or_default();
        recorder.meter.request_side = body_complete_at.elapsed().saturating_sub(summary_wait);
        if let Some(pending) = &mut pending {
            let (head, body) = outbound.parts();
            pending.count_if_wanted(&proxy, head, body);
        }
        if let Some(count) = &count
            && let Some(counted) = Box::pin(count.answer_at_once(recorder)).await
        {
            return Err(answer(counted, Outcome::Complete, exchange.recorder));
        }
        // Sending consumes the head, and the response to a count is judged by it.
        let head = count.as_ref().map(|_| outbound.parts().0.clone());
        let counted = count.as_ref().map(|count| &*count.prepared);
        // 9. Forward.
        let (mut response, added) =
            match outbound.send(pending.as_deref_mut(), counted, recorder).await {
                Ok(sent) => sent,
                Err(error) => {
                    if let Some(pending) = &mut pending {
                        pending.requeue_messages(&proxy).await;
                    }
                    return Err(exchange.fail(error));
                }
            };
        let upstream_time = recorder.sent.elapsed();
        let id =
            exchange.client.provider_request_id(response.headers(), &proxy, &exchange.upstream);
        recorder.record_provider_request_id(id.as_deref());
        if let (Some(count), Some(head)) = (count, head) {
            let answered = count.answer_missing(response, &head, recorder);
            response = match Box::pin(answered).await {
                Ok(counted) => return Err(answer(counted, Outcome::Complete, exchange.recorder)),
                Err(response) => response,
            };
        }
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let why = "it switched to a protocol that was not requested".to_owned();
            let fault = proxy_error(&exchange.upstream, UpstreamError::Failed(why));
            return Err(exchange.refuse(&fault));
        }
        if response.status().is_success()
            && let Some(writer) = writer
        {
            writer.begin();
        }
        let hides_diagnosis =
            added.iter().any(|kind| matches!(kind, AddedOptionKind::Diagnosis { .. }));
        let usage_addition =
            pending.as_ref().and_then(|pending| pending.usage_addition(hides_diagnosis));
        let several = pending.as_ref().is_some_and(|pending| pending.prepared.conversation.several);
        let turn = pending.map(|pending| pending.open(&proxy, response.status(), id));
        recorder.meter.headers = Some(recorder.began.elapsed());
        Ok(exchange.into_phase(Sent {
            response,
            upstream_time,
            turn,
            several,
            added_usage: added.contains(&AddedOptionKind::Usage),
            usage_addition,
        }))
    }
}

/// An error response of ours, which ends the exchange.
pub(super) fn refuse(
    fault: &ProxyError,
    dialect: Option<Dialect>,
    recorder: ExchangeRecorder,
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
    mut recorder: ExchangeRecorder,
) -> OwnResponse {
    recorder.answer(&mut response, outcome);
    Box::new(response.map(|body| ResponseBody::Ours(Some(body))))
}

fn proxy_error(upstream: &Upstream, error: UpstreamError) -> ProxyError {
    let upstream = upstream.name.clone();
    match error {
        UpstreamError::RequestBroken => ProxyError::RequestBroken,
        UpstreamError::TooSlow(reason) => ProxyError::UpstreamTooSlow { upstream, reason },
        UpstreamError::Failed(reason) => ProxyError::UpstreamFailed { upstream, reason },
        UpstreamError::ResponseLost => ProxyError::ResponseLost,
    }
}

/// Beside the operator's credential, a client's trailers could say what its headers may not.
pub(super) fn permitted(body: ClientBody, upstream: &Upstream) -> ClientBody {
    if upstream.credential.is_some() { body.without_trailers() } else { body }
}
