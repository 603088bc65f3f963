//! Sends the request for a summary: its address and headers, and how the response is read.
//!
//! Limited in size: a response or refusal is not read past its limit. The text of a refusal is only used for
//! lessons.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_LENGTH, HeaderValue};
use http::{Request, Response, StatusCode, Uri};
use http_body::Body;
use http_body_util::{BodyExt as _, Limited};

use super::{FRAMING, SummaryError, SummaryJob, SummaryResponse, SummaryTarget};
use crate::config::Upstream;
use crate::context::compact::CompactionNeed;
use crate::context::policy::SummaryAuthor;
use crate::dialect::Dialect;
use crate::dialect::lesson::{Lesson, LessonMatch};
use crate::dialect::reading::BodyEnd;
use crate::dialect::refusal::{self, RefusalCause};
use crate::dialect::summary::{self, SummaryRejection};
use crate::proxy::http::body::OutgoingBody;
use crate::proxy::http::headers;
use crate::proxy::http::upstream::route::{self, Route};
use crate::proxy::learning::lessons;
use crate::proxy::learning::questions;
use crate::proxy::plan::prepared_request::PreparedRequest;
use crate::proxy::response::observe::ResponseObserver;

/// Most bytes of a refusal that are read for its cause.
const REFUSAL_BYTES: usize = 64 * 1024;

impl SummaryJob {
    /// Sends the body, and reads the whole response.
    pub(super) async fn call(&self, body: Bytes) -> Result<SummaryResponse, SummaryError> {
        let SummaryTarget { other, .. } = self.target_of(SummaryAuthor::Summary);
        let uri = self.address(other).ok_or(SummaryError::Upstream)?;
        let response = self.send(SummaryAuthor::Summary, other, uri, body).await?;
        let status = response.status();
        if status != StatusCode::OK {
            return Err(self.why_refused(response).await);
        }
        let dialect: Dialect = self.prepared.conversation.dialect;
        let max_bytes =
            usize::try_from(self.prepared.info.policy.compact.max_bytes).unwrap_or(usize::MAX);
        let limit = max_bytes.saturating_mul(FRAMING);
        let memory = &self.proxy.memory;
        let mut reading =
            ResponseObserver::new(dialect, status.as_u16(), response.headers(), limit, memory);
        let mut body = response.into_body();
        let mut read_bytes = 0usize;
        loop {
            let frame = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await;
            let Some(frame) = frame else { break };
            let data = frame.map_err(|_| SummaryError::Upstream)?.into_data().unwrap_or_default();
            read_bytes = read_bytes.saturating_add(data.len());
            if read_bytes > limit {
                return Err(SummaryError::Rejected);
            }
            // The reply has ended; what may follow is of no use.
            if reading.observe(&data) {
                break;
            }
        }
        let reply = reading.finish(BodyEnd::Whole).reply.ok_or(SummaryError::Rejected)?;
        // If the request would not fit otherwise, even an incomplete summary is accepted.
        match summary::summary_text(&reply, self.due == CompactionNeed::Must) {
            Ok(text) if text.len() <= max_bytes => Ok(SummaryResponse { text, usage: reply.usage }),
            Err(SummaryRejection::Refused) => Err(SummaryError::Upstream),
            Ok(_) | Err(_) => Err(SummaryError::Rejected),
        }
    }

    /// Why a request was refused, as far as that matters.
    async fn why_refused(&self, response: Response<OutgoingBody>) -> SummaryError {
        // The text itself is dropped.
        let status = response.status().as_u16();
        let body = Limited::new(response.into_body(), REFUSAL_BYTES).collect().await;
        let body = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        if refusal::cause(&body) != RefusalCause::Bound {
            return SummaryError::Upstream;
        }
        let error = lessons::RefusalResponse::Refused { status, body: &body };
        let taught = self.taught(error).await;
        SummaryError::Bound { is_taught: taught.holds(Lesson::ReasoningBound) }
    }

    /// The lessons of a refusal that are not quoted from the request.
    pub(super) async fn taught(&self, error: lessons::RefusalResponse<'_>) -> LessonMatch {
        let PreparedRequest { info, body, .. } = &*self.prepared;
        lessons::taught(error, info, body, Some(&self.head)).await
    }

    /// Sends a request with those of the client's headers that its host may see.
    pub(super) async fn send(
        &self,
        by: SummaryAuthor,
        other: Option<&Arc<Upstream>>,
        uri: Uri,
        body: Bytes,
    ) -> Result<Response<OutgoingBody>, SummaryError> {
        let mut head = self.head.clone();
        head.uri = uri;
        let from = &self.prepared.info.upstream;
        let to = other.unwrap_or(from);
        head.headers = questions::headers(&head.headers, from, to, &self.proxy.credentials);
        let in_use = self.known.compact();
        let holds_block = in_use.is_some_and(|(_, compact)| compact.by == SummaryAuthor::Provider);
        let is_anthropic = self.prepared.conversation.dialect == Dialect::Anthropic;
        // The provider's own block needs its beta wherever it is sent.
        if is_anthropic && (holds_block || by == SummaryAuthor::Provider) {
            headers::list_beta(&mut head.headers, summary::provider::BETA);
        }
        head.headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        head.headers
            .insert(ACCEPT, HeaderValue::from_static("text/event-stream, application/json"));
        head.headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
        let request = Request::from_parts(head, OutgoingBody::slices(vec![body], None));
        self.proxy.pool.send(request).await.map_err(|_| SummaryError::Upstream)
    }

    /// The address: that of the client's request, or the matching path at the configured upstream.
    fn address(&self, other: Option<&Arc<Upstream>>) -> Option<Uri> {
        let dialect = self.prepared.conversation.dialect;
        let SummaryTarget { model, .. } = self.target_of(SummaryAuthor::Summary);
        let path = match (other, dialect) {
            (None, _) => self.target(),
            (Some(_), Dialect::Anthropic) => "/v1/messages".to_owned(),
            (Some(_), Dialect::OpenaiChat) => "/v1/chat/completions".to_owned(),
            (Some(_), Dialect::OpenaiResponses) => "/v1/responses".to_owned(),
            (Some(_), Dialect::Gemini) => format!("/v1beta/models/{model}:generateContent"),
        };
        let target = summary::target(dialect, &path, Some(model).filter(|model| !model.is_empty()));
        match other {
            Some(upstream) => {
                let route = Route { upstream, path: &target };
                route::address(&route, None, &self.proxy.credentials)
            }
            None => {
                let mut parts = self.head.uri.clone().into_parts();
                parts.path_and_query = Some(target.parse().ok()?);
                Uri::from_parts(parts).ok()
            }
        }
    }
}
