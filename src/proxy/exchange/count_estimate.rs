//! A token count that its upstream does not make is answered with our estimate, in the provider's shape.
//!
//! Nothing is asked where the configuration or an earlier answer says that there is no such endpoint; else the
//! upstream is asked, and its answer passes unless it says so now. `x-plimsoll-estimated` carries the band, so
//! that nobody takes the number for the provider's.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderValue, Response, StatusCode, request};

use crate::config::{CountTokens, Mode};
use crate::context::plan::{Overlay, RecordedDecisions};
use crate::dialect::counting;
use crate::dialect::lesson::Lesson;
use crate::proxy::exchange_recorder::ExchangeRecorder;
use crate::proxy::http::body::{OutgoingBody, StartedResponse};
use crate::proxy::learning::lessons::{self, RefusalResponse};
use crate::proxy::plan::planned_request;
use crate::proxy::plan::prepared_request::PreparedRequest;
use crate::telemetry::CountEstimate;

/// The band of an estimate that stands in place of a provider's count: `low-high`, tokens.
const ESTIMATED: HeaderName = HeaderName::from_static("x-plimsoll-estimated");
/// Most bytes of an answer that says that there is no such endpoint.
const ANSWER_BYTES: usize = 16 * 1024;

/// A count that can be answered here.
pub(crate) struct CountFallback {
    subject: Arc<PreparedRequest>,
    /// What would be sent.
    sent: Overlay,
    known: Arc<RecordedDecisions>,
    /// Path and query, as the client asked.
    target: Box<str>,
    wanted: CountTokens,
    /// How far we may go.
    mode: Mode,
}

impl CountFallback {
    pub(crate) fn new(
        subject: Arc<PreparedRequest>,
        (sent, known): (Overlay, Arc<RecordedDecisions>),
        target: &str,
        (wanted, mode): (CountTokens, Mode),
    ) -> Self {
        Self { subject, sent, known, target: target.into(), wanted, mode }
    }

    /// The answer where the upstream need not be asked.
    pub(crate) async fn answer_unasked(
        &self,
        account: &mut ExchangeRecorder,
    ) -> Option<Response<Bytes>> {
        let is_learned = || account.proxy.knows(&self.subject.source(), Lesson::CountMissing);
        let why = match self.wanted {
            CountTokens::Estimate => CountEstimate::Configured,
            CountTokens::Auto if self.mode == Mode::Active && is_learned() => {
                CountEstimate::Learned
            }
            CountTokens::Auto | CountTokens::Provider => return None,
        };
        self.answer(why, account).await
    }

    /// The answer where the upstream has no such endpoint; else what it answered. `head`: the request's, as it
    /// went out.
    pub(crate) async fn answer_missing(
        &self,
        response: Response<OutgoingBody>,
        head: &request::Parts,
        account: &mut ExchangeRecorder,
    ) -> Result<Response<Bytes>, Response<OutgoingBody>> {
        let may_miss = matches!(
            response.status(),
            StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED
        );
        if !may_miss || self.wanted != CountTokens::Auto || self.mode != Mode::Active {
            return Err(response);
        }
        let begun = StartedResponse::read(response, ANSWER_BYTES, &account.memory).await;
        if !self.is_missing(&begun, head).await {
            return Err(begun.into_response());
        }
        account.proxy.counting.set_missing(&self.subject.source());
        self.answer(CountEstimate::Missing, account).await.ok_or_else(|| begun.into_response())
    }

    /// Whether an answer says that nothing counts there. A model that is not there is another fault, and its
    /// provider says so.
    async fn is_missing(&self, begun: &StartedResponse, head: &request::Parts) -> bool {
        let status = begun.head.status;
        let kind = begun.head.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        // No provider answers with a page; what stands before it does, where it knows no such path.
        if status != StatusCode::NOT_FOUND || kind.is_some_and(|kind| kind.starts_with("text/html"))
        {
            return true;
        }
        let error = RefusalResponse::Refused { status: status.as_u16(), body: &begun.start };
        let taught = lessons::taught(error, self.subject.quotable(), Some(head)).await;
        taught.holds(Lesson::CountMissing)
    }

    async fn answer(
        &self,
        why: CountEstimate,
        account: &mut ExchangeRecorder,
    ) -> Option<Response<Bytes>> {
        let estimate =
            planned_request::estimate(&self.subject, self.sent.clone(), &self.known).await?;
        let dialect = self.subject.conversation.dialect;
        let body = counting::estimated(dialect, &self.target, estimate.tokens)?;
        let (low, high) = estimate.band().unwrap_or((estimate.tokens, estimate.tokens));
        let mut response = Response::new(Bytes::from(body));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ESTIMATED, HeaderValue::from_str(&format!("{low}-{high}")).ok()?);
        account.event.estimate = Some(estimate);
        account.event.count_estimated = Some(why);
        Some(response)
    }
}
