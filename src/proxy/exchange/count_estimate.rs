//! Answers a request for a token count with our estimate, in the provider's shape, if the upstream has no
//! such endpoint.
//!
//! The upstream is not asked if the configuration or an earlier response says that it has none. Otherwise it
//! is asked, and its response is forwarded unless it says so now. `x-plimsoll-estimated` has the estimate's
//! range, so that nobody takes the number for the provider's.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderValue, Response, StatusCode, request};

use crate::config::{CountTokens, Mode};
use crate::context::Band;
use crate::dialect::counting;
use crate::dialect::lesson::Lesson;
use crate::proxy::http::body::{OutgoingBody, StartedResponse};
use crate::proxy::learning::lessons::{self, RefusalResponse};
use crate::proxy::plan::planned_request::{self, PlannedRequest};
use crate::proxy::plan::prepared_request::PreparedRequest;
use crate::proxy::state::exchange_recorder::ExchangeRecorder;
use crate::telemetry::CountEstimate;

/// The range of an estimate that replaces a provider's count: `low-high`, tokens.
const ESTIMATED: HeaderName = HeaderName::from_static("x-plimsoll-estimated");
/// Most bytes that are read of a response saying that there is no such endpoint.
const ANSWER_BYTES: usize = 16 * 1024;

impl PlannedRequest {
    /// `target`: path and query of the client's request.
    pub(super) async fn count_at_once(
        &self,
        target: &str,
        recorder: &mut ExchangeRecorder,
    ) -> Option<Response<Bytes>> {
        let why = match self.prepared.info.upstream.count_tokens {
            CountTokens::Estimate => CountEstimate::Configured,
            CountTokens::Provider => return None,
            CountTokens::Auto => {
                let source = self.prepared.info.lesson_source();
                if !self.may_use_lessons() || !recorder.proxy.knows(&source, Lesson::CountMissing) {
                    return None;
                }
                CountEstimate::Learned
            }
        };
        self.count(why, target, recorder).await
    }

    pub(super) async fn count_if_missing(
        &self,
        response: Response<OutgoingBody>,
        target: &str,
        head: &request::Parts,
        recorder: &mut ExchangeRecorder,
    ) -> Result<Response<Bytes>, Response<OutgoingBody>> {
        // The upstream's own answer counts, unless it says that it has no such endpoint.
        let may_miss = matches!(
            response.status(),
            StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED
        );
        let is_wanted = self.prepared.info.upstream.count_tokens == CountTokens::Auto;
        if !may_miss || !is_wanted || !self.may_use_lessons() {
            return Err(response);
        }
        let begun = StartedResponse::read(response, ANSWER_BYTES, &recorder.proxy.memory).await;
        if !self.lacks_endpoint(&begun, head).await {
            return Err(begun.into_response());
        }
        // It becomes a lesson once a turn of this model is answered: the model itself may be what is missing.
        recorder.proxy.counting.set_missing(&self.prepared.info.lesson_source());
        let counted = self.count(CountEstimate::Missing, target, recorder).await;
        counted.ok_or_else(|| begun.into_response())
    }

    fn may_use_lessons(&self) -> bool {
        // In the other modes nothing that was learned may change what is answered.
        self.prepared.mode == Mode::Active
    }

    async fn lacks_endpoint(&self, begun: &StartedResponse, head: &request::Parts) -> bool {
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

    async fn count(
        &self,
        why: CountEstimate,
        target: &str,
        recorder: &mut ExchangeRecorder,
    ) -> Option<Response<Bytes>> {
        let sent = self.plan.sent.clone();
        let estimate = planned_request::estimate(&self.prepared, sent, &self.known).await;
        let estimate = estimate.map_err(|why| recorder.event.add_fail_open(why)).ok()?;
        let dialect = self.prepared.conversation.dialect;
        let body = counting::estimated(dialect, target, estimate.tokens)?;
        // An exact count has no band.
        let exact = Band { low: estimate.tokens, high: estimate.tokens };
        let Band { low, high } = estimate.band().unwrap_or(exact);
        let mut response = Response::new(Bytes::from(body));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ESTIMATED, HeaderValue::from_str(&format!("{low}-{high}")).ok()?);
        recorder.event.estimate = Some(estimate);
        recorder.event.count_estimated = Some(why);
        Some(response)
    }
}
