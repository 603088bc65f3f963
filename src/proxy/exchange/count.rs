//! Requests for a token count: planned, and answered with our estimate if the upstream has no such endpoint.
//!
//! Such a request has no place in a session, because no turn continues it; but it is sent in the form in which the counted
//! request would be sent, so that the number is that of the next turn. The upstream is not asked if the configuration or an
//! earlier response says that it cannot count. Otherwise its response is forwarded unless it says so now.
//! `x-plimsoll-estimated` has the estimate's range, so that nobody takes the number for the provider's.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderValue, Response, StatusCode, request};

use super::live_exchange::{LiveExchange, Planned, Received};
use super::planning::is_held_out;
use crate::config::{CountTokens, Mode, ProviderCounting};
use crate::context::plan::RecordedDecisions;
use crate::context::{Band, TenantId};
use crate::dialect::identity::Identity;
use crate::dialect::lesson::Lesson;
use crate::dialect::{Purpose, counting};
use crate::proxy::http::body::{OutgoingBody, StartedResponse};
use crate::proxy::learning::lessons::{self, RefusalResponse};
use crate::proxy::plan::planned_request::{self, PlannedRequest};
use crate::proxy::plan::prepared_request::PreparedRequest;
use crate::proxy::state::exchange_recorder::ExchangeRecorder;
use crate::store::ledgers::SessionPeek;
use crate::store::recall::{LookupOutcome, ReadBudget};
use crate::telemetry::{CountEstimate, FailOpen};

/// The range of an estimate that replaces a provider's count: `low-high`, tokens.
const ESTIMATED: HeaderName = HeaderName::from_static("x-plimsoll-estimated");
/// Most bytes that are read of a response saying that there is no such endpoint.
const ANSWER_BYTES: usize = 16 * 1024;

/// A request for a count that can be answered here.
pub(super) struct CountFallback {
    pub(super) prepared: Arc<PreparedRequest>,
    /// What would be sent.
    pub(super) planned: PlannedRequest,
    /// Path and query of the client's request.
    pub(super) target: Box<str>,
}

impl LiveExchange<Received> {
    pub(super) async fn plan_count(
        &mut self,
        mut prepared: PreparedRequest,
        tenant: &TenantId,
        identity: &Identity,
        reads: &ReadBudget,
    ) -> Planned {
        let proxy = self.recorder.proxy.clone();
        if proxy.config.count == ProviderCounting::Raw || self.client.is_signed() {
            return self.count_original(Arc::new(prepared));
        }
        let is_shadow = prepared.mode == Mode::Shadow;
        // Shadow mode would decide. If the thread was rewritten before, its decisions are repeated, as in its turns.
        prepared.mode = if is_shadow { Mode::Observe } else { prepared.mode };
        let lookup = self.session_lookup(&prepared, tenant, identity, reads);
        let mut peeked = proxy.ledgers.peek(lookup, &prepared.conversation).await;
        let is_undecided =
            matches!(&peeked, LookupOutcome::Found(peek) if peek.known.decides_nothing());
        if is_shadow && is_undecided {
            prepared.mode = Mode::Shadow;
            let lookup = self.session_lookup(&prepared, tenant, identity, reads);
            peeked = proxy.ledgers.peek(lookup, &prepared.conversation).await;
        }
        let (known, held_out) = match peeked {
            LookupOutcome::Found(SessionPeek { session, known, store_missed }) => {
                if store_missed {
                    self.recorder.record_fail_open(FailOpen::Store);
                }
                let held_out = is_held_out(&session, prepared.mode, &proxy);
                self.recorder.record_session(Some(&session));
                (known, held_out)
            }
            LookupOutcome::None => (RecordedDecisions::default(), false),
            LookupOutcome::Late => {
                self.recorder.record_fail_open(FailOpen::SessionLate);
                return self.count_original(Arc::new(prepared));
            }
        };
        // It takes no place in its session, so nothing of that can be late.
        prepared.held_out = held_out;
        prepared.added = self.client.added_options(&prepared, None, &proxy);
        let prepared = Arc::new(prepared);
        let decisions = Arc::new(known);
        let planned =
            planned_request::replay_recorded(&prepared, decisions, &mut self.recorder).await;
        self.recorder.record_plan(&planned.done, None);
        Planned { count: self.count_fallback(prepared, planned), ..Planned::default() }
    }

    pub(super) fn count_original(&self, prepared: Arc<PreparedRequest>) -> Planned {
        let planned = PlannedRequest::original(&prepared);
        Planned { count: self.count_fallback(prepared, planned), ..Planned::default() }
    }

    fn count_fallback(
        &self,
        prepared: Arc<PreparedRequest>,
        planned: PlannedRequest,
    ) -> Option<Box<CountFallback>> {
        if prepared.conversation.purpose != Purpose::Count {
            return None;
        }
        let target = self.client.target().into();
        Some(Box::new(CountFallback { prepared, planned, target }))
    }
}

impl CountFallback {
    pub(super) async fn answer_at_once(
        &self,
        recorder: &mut ExchangeRecorder,
    ) -> Option<Response<Bytes>> {
        let why = match self.prepared.info.upstream.count_tokens {
            CountTokens::Estimate => CountEstimate::Configured,
            CountTokens::Provider => return None,
            CountTokens::Auto => {
                let source = self.prepared.info.lesson_source();
                if !self.may_learn() || !recorder.proxy.knows(&source, Lesson::CountMissing) {
                    return None;
                }
                CountEstimate::Learned
            }
        };
        self.answer(why, recorder).await
    }

    pub(super) async fn answer_missing(
        &self,
        response: Response<OutgoingBody>,
        head: &request::Parts,
        recorder: &mut ExchangeRecorder,
    ) -> Result<Response<Bytes>, Response<OutgoingBody>> {
        // The upstream's own answer counts, unless it says that it has no such endpoint.
        let may_miss = matches!(
            response.status(),
            StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED
        );
        let is_wanted = self.prepared.info.upstream.count_tokens == CountTokens::Auto;
        if !may_miss || !is_wanted || !self.may_learn() {
            return Err(response);
        }
        let begun = StartedResponse::read(response, ANSWER_BYTES, &recorder.proxy.memory).await;
        if !self.is_missing(&begun, head).await {
            return Err(begun.into_response());
        }
        // It becomes a lesson once a turn of this model is answered: the model itself may be what is missing.
        recorder.proxy.counting.set_missing(&self.prepared.info.lesson_source());
        self.answer(CountEstimate::Missing, recorder).await.ok_or_else(|| begun.into_response())
    }

    fn may_learn(&self) -> bool {
        // In the other modes nothing that was learned may change what is answered.
        self.prepared.mode == Mode::Active
    }

    async fn is_missing(&self, begun: &StartedResponse, head: &request::Parts) -> bool {
        let status = begun.head.status;
        let kind = begun.head.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        // No provider responds with a web page; a gateway before it does, for an unknown path.
        if status != StatusCode::NOT_FOUND || kind.is_some_and(|kind| kind.starts_with("text/html"))
        {
            return true;
        }
        // A missing model is another fault, and is reported by the provider itself.
        let error = RefusalResponse::Refused { status: status.as_u16(), body: &begun.start };
        let PreparedRequest { info, body, .. } = &*self.prepared;
        lessons::taught(error, info, body, Some(head)).await.holds(Lesson::CountMissing)
    }

    async fn answer(
        &self,
        why: CountEstimate,
        recorder: &mut ExchangeRecorder,
    ) -> Option<Response<Bytes>> {
        let PlannedRequest { sent, known, .. } = &self.planned;
        let estimate = planned_request::estimate(&self.prepared, sent.clone(), known).await;
        let estimate = estimate.map_err(|why| recorder.record_fail_open(why)).ok()?;
        let dialect = self.prepared.conversation.dialect;
        let body = counting::estimated(dialect, &self.target, estimate.tokens)?;
        // An exact count has no band.
        let exact = Band { low: estimate.tokens, high: estimate.tokens };
        let Band { low, high } = estimate.band().unwrap_or(exact);
        let mut response = Response::new(Bytes::from(body));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ESTIMATED, HeaderValue::from_str(&format!("{low}-{high}")).ok()?);
        recorder.record_count_estimate(estimate, why);
        Some(response)
    }
}
