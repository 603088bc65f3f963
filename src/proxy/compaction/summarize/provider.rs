//! A summary by the provider itself: the request, the check of its response, and what a refusal teaches.
//!
//! The provider reads the forwarded history before the cut unchanged, because reasoning after the cut stays
//! bound to it (`docs/protocols.md` 1.5.7).

use bytes::Bytes;
use http::{StatusCode, Uri};
use http_body_util::{BodyExt as _, Limited};

use super::{FRAMING, OUTPUT, SummaryError, SummaryJob, SummarySpending, head_tokens};
use crate::context::CompactionRecord;
use crate::context::compact::{self, CutPoint, HistoryChunk, SummaryMessage};
use crate::context::policy::SummaryAuthor;
use crate::dialect::lesson::Lesson;
use crate::dialect::overflow::{ErrorResponse, overflow};
use crate::dialect::refusal::{self, RefusalCause};
use crate::dialect::repair::SummaryOutput;
use crate::dialect::summary::{SummaryRejection, provider};
use crate::proxy::learning::lessons;
use crate::proxy::offload::{OFF_THREAD, off_thread};
use crate::wire::splice::splice;

impl SummaryJob {
    /// Asks the provider to compact everything before the cut.
    pub(super) async fn by_provider(
        &self,
        point: &CutPoint,
        spent: &mut SummarySpending,
    ) -> Result<CompactionRecord, SummaryError> {
        let window = self.prepared.info.model.window;
        let output = OUTPUT.min(window / 6);
        // The chunk's share of the request's total, which is more exact than the sum of parts.
        let all: u64 = self.parts.iter().map(|part| u64::from(part.tokens)).sum();
        let piece = HistoryChunk { from: 0, through: point.cut };
        let history =
            compact::weigh(&self.prepared.plan_request(), &self.known, &self.parts, piece);
        let reads = head_tokens(&self.parts).saturating_add(history);
        let reads = self.tokens as f64 * reads as f64 / all.max(1) as f64;
        let reads = reads as u64;
        if reads.saturating_add(output) > window {
            return Err(SummaryError::TooLarge);
        }
        let output = self.output(output, reads);
        let body = self.body_before(point, output).await.ok_or(SummaryError::Rejected)?;
        let answer = self.send_to_provider(body).await?;
        let dialect = self.prepared.conversation.dialect;
        let written = match provider::read(dialect, &answer) {
            Ok(written) => written,
            Err(SummaryRejection::Unrelated) => return Err(self.learn_not_offered().await),
            Err(_) => return Err(SummaryError::Rejected),
        };
        spent.add(&written.usage, self.dollars(SummaryAuthor::Provider, &written.usage));
        if written.raw.len() as u64
            > self.prepared.info.policy.compact.max_bytes.saturating_mul(ENVELOPE)
        {
            return Err(SummaryError::Rejected);
        }
        // A sealed summary cannot be counted, so it is taken to cost its output tokens.
        let mut tokens = self.count(&written.text);
        if written.is_encrypted {
            tokens = tokens.saturating_add(written.usage.output.unwrap_or(0));
        }
        let written = SummaryMessage { raw: written.raw, by: SummaryAuthor::Provider };
        self.accept(point, written, tokens, Some(self.known.carried(point.cut)))
    }

    /// The body of the request, with only the history before the cut, as it is forwarded.
    async fn body_before(&self, point: &CutPoint, output: SummaryOutput) -> Option<Bytes> {
        let piece = HistoryChunk { from: 0, through: point.cut };
        let edits = self.edits_of(piece, None, None)?;
        let prepared = self.prepared.clone();
        // The provider's own instructions are better than ours, unless there is something to focus on.
        let has_focus = self.focuses().next().is_some();
        let instruction = if has_focus { Some(self.instruction()) } else { None };
        let size = prepared.body.len().max(OFF_THREAD + 1);
        let made = off_thread(size, self.prepared.info.tenant.as_ref(), move || {
            let slices = splice(&prepared.body, edits).ok()?;
            let body = Bytes::from(slices.concat());
            provider::ask(prepared.conversation.dialect, &body, instruction.as_deref(), output)
        });
        made.await.ok().flatten()
    }

    async fn send_to_provider(&self, body: Bytes) -> Result<Bytes, SummaryError> {
        let dialect = self.prepared.conversation.dialect;
        let target = provider::target(dialect, &self.target());
        let mut parts = self.head.uri.clone().into_parts();
        parts.path_and_query = Some(target.parse().map_err(|_| SummaryError::Rejected)?);
        let uri = Uri::from_parts(parts).map_err(|_| SummaryError::Rejected)?;
        let response = self.send(SummaryAuthor::Provider, None, uri, body).await?;
        let status = response.status();
        let max_bytes =
            usize::try_from(self.prepared.info.policy.compact.max_bytes).unwrap_or(usize::MAX);
        let body = Limited::new(response.into_body(), max_bytes.saturating_mul(FRAMING));
        let read = body.collect().await.map_err(|_| SummaryError::Upstream)?.to_bytes();
        match status {
            StatusCode::OK => Ok(read),
            status => Err(self.refusal(status, &read).await),
        }
    }

    /// What a refusal means.
    async fn refusal(&self, status: StatusCode, body: &[u8]) -> SummaryError {
        // It teaches a lesson if it says that there is no such feature.
        let host = self.head.uri.host().unwrap_or_default();
        if overflow(&ErrorResponse { status: status.as_u16(), host, body }).is_some() {
            return SummaryError::TooLarge;
        }
        // The provider's own error codes are about this request, or this moment.
        let is_about_this = memchr::memmem::find(body, b"\"compaction_").is_some();
        let names_it = refusal::cause(body) == RefusalCause::Compaction && !is_about_this;
        match status.as_u16() {
            // There is no such endpoint.
            404 | 405 | 501 => {}
            400 | 422 if names_it => {}
            400 | 422 => return SummaryError::Rejected,
            _ => return SummaryError::Upstream,
        }
        // The lesson is only remembered if the message is the provider's own; otherwise it applies to this
        // request.
        let error = lessons::RefusalResponse::Refused { status: status.as_u16(), body };
        let taught = self.taught(error).await;
        self.proxy.count_quoted(&self.prepared.info.upstream.name, &taught);
        match taught.holds(Lesson::CompactionRefused) {
            true => self.learn_not_offered().await,
            false => SummaryError::NotOffered,
        }
    }

    /// Remembers that this upstream does not compact this model's context.
    async fn learn_not_offered(&self) -> SummaryError {
        self.proxy
            .learn(&self.prepared.info.lesson_source(), Lesson::CompactionRefused, None)
            .await;
        SummaryError::NotOffered
    }
}

/// A sealed summary has at most this many times the bytes of its text.
const ENVELOPE: u64 = 4;
