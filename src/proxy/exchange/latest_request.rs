//! The latest request of a session, kept in memory for a while. Operators can preview its compaction, start
//! it at once if the summariser has a credential of its own, or have the request counted.
//!
//! Nothing is written to the store. A client's credential is held only for the counting endpoint, for ten
//! minutes, and only if the upstream has none of its own.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use http::header::COOKIE;
use http::request;
use tokio::task::AbortHandle;

use crate::config::Mode;
use crate::context::compact::{self, CompactionNeed, CompactionPreview, SummaryFocus};
use crate::context::plan::{PlanRequest, RecordedDecisions};
use crate::context::policy::SummaryAuthor;
use crate::context::{SketchPart, ThreadId};
use crate::dialect::Dialect;
use crate::dialect::lesson::Lesson;
use crate::proxy::compaction::context::begin_summary;
use crate::proxy::compaction::summarize::{SummaryChoice, SummaryJob};
use crate::proxy::plan::planned_request::PlannedRequest;
use crate::proxy::plan::prepared_request::PreparedRequest;
use crate::proxy::state::Proxy;
use crate::proxy::turn::counting::{self, CountRequest};
use crate::store::Scope;
use crate::store::ledgers::{LatestRequest, OpenedSession, ProviderRecount, RecountError};
use crate::telemetry::CountOutcome;
use crate::wire::splice::{self, Edit};

/// A request, with everything that summarising it needs.
struct KeptRequest {
    proxy: Weak<Proxy>,
    prepared: Arc<PreparedRequest>,
    scope: Scope,
    thread: ThreadId,
    known: Arc<RecordedDecisions>,
    parts: Vec<SketchPart>,
    tokens: u64,
    edits: Arc<[Edit]>,
    /// The edits of what was sent: none if that was the original.
    sent: Arc<[Edit]>,
    /// Without its credentials; only if a summary can be started with it.
    head: Option<request::Parts>,
    /// The head for the counting endpoint. If the upstream has no credential of its own, it has the client's,
    /// and is dropped after [`CREDENTIAL_LIFE`].
    count_head: Arc<Mutex<Option<request::Parts>>>,
    /// The task that drops the client's credential.
    credential_timer: Option<AbortHandle>,
}

/// How long a client's credential is held after its request.
const CREDENTIAL_LIFE: Duration = Duration::from_secs(600);

impl Drop for KeptRequest {
    fn drop(&mut self) {
        self.credential_timer.iter().for_each(AbortHandle::abort);
    }
}

/// Keeps the request, if it is on the session's main line: as planned before it is sent, and again if another form was
/// sent in the end.
pub(super) fn keep(
    proxy: &Arc<Proxy>,
    prepared: &Arc<PreparedRequest>,
    planned: &PlannedRequest,
    opened: &OpenedSession,
    client_head: &request::Parts,
) {
    let Some(measured) = &planned.measured else { return };
    if !compact::is_compactable(&prepared.plan_request()) || !opened.is_main_line() {
        return;
    }
    let may_begin = has_summariser(proxy, prepared) && prepared.mode == Mode::Active;
    let head = may_begin.then(|| without_credentials(proxy, client_head));
    let has_own = prepared.upstream.credential.is_some();
    // Without a counting endpoint in its protocol, no head is held.
    let has_endpoint = prepared.conversation.dialect != Dialect::OpenaiChat;
    let count_head = has_endpoint.then(|| match has_own {
        true => without_credentials(proxy, client_head),
        false => client_head.clone(),
    });
    let count_head = Arc::new(Mutex::new(count_head));
    let kept = Arc::new(KeptRequest {
        proxy: Arc::downgrade(proxy),
        prepared: prepared.clone(),
        scope: opened.scope.clone(),
        thread: opened.placed.position.thread.clone(),
        known: planned.known.clone(),
        parts: measured.parts.clone(),
        tokens: measured.estimate.tokens,
        edits: planned.edits.clone(),
        sent: match planned.done.resent {
            Some(_) => Arc::default(),
            None => planned.edits.clone(),
        },
        head,
        credential_timer: (has_endpoint && !has_own)
            .then(|| drop_credential_later(&count_head, CREDENTIAL_LIFE)),
        count_head,
    });
    let begin = may_begin.then(|| {
        let kept = kept.clone();
        Box::new(move |focus| kept.begin(focus)) as _
    });
    let sketched = size_of_val(&*measured.parts);
    let edits: usize = planned.edits.iter().map(|edit| edit.with.len()).sum();
    let bytes = prepared.bytes() + sketched + edits;
    let counts = kept.clone();
    let count = Box::new(move || Box::pin(counts.clone().count()) as _);
    let latest = LatestRequest { bytes, preview: Box::new(move || kept.preview()), begin, count };
    proxy.ledgers.keep_latest_request(opened, latest);
}

/// A client's head without what must not be held for long.
fn without_credentials(proxy: &Proxy, head: &request::Parts) -> request::Parts {
    let mut head = head.clone();
    let headers = std::mem::take(&mut head.headers);
    head.headers = crate::proxy::http::headers::without(headers, |name| {
        *name == COOKIE || proxy.credentials.is_header(name)
    });
    head
}

/// Drops a client's credential after its time. One task per session, which ends when the request is replaced.
fn drop_credential_later(head: &Arc<Mutex<Option<request::Parts>>>, life: Duration) -> AbortHandle {
    let held = Arc::downgrade(head);
    let task = tokio::spawn(async move {
        tokio::time::sleep(life).await;
        if let Some(head) = held.upgrade() {
            head.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
    });
    task.abort_handle()
}

/// Whether another upstream writes summaries, with its own credential.
fn has_summariser(proxy: &Proxy, prepared: &PreparedRequest) -> bool {
    let summariser = proxy.summariser(&prepared.policy.compact, prepared.conversation.dialect);
    summariser.is_some_and(|upstream| upstream.credential.is_some())
}

impl KeptRequest {
    /// Who would write a summary, and where it would cut.
    fn choice(&self, writers: &[SummaryAuthor]) -> Option<SummaryChoice> {
        let request = self.prepared.plan_request();
        writers.iter().find_map(|by| {
            let point = compact::choose(&request, &self.known, &self.parts, self.tokens, *by)?;
            Some(SummaryChoice { by: *by, point })
        })
    }

    fn preview(&self) -> Option<CompactionPreview> {
        // The provider may have refused since, when it was asked for the summary that this request prepared.
        let source = self.prepared.lesson_source();
        let refuses = |proxy: Arc<Proxy>| proxy.knows(&source, Lesson::CompactionRefused);
        let compaction_refused = self.proxy.upgrade().is_some_and(refuses);
        let request = PlanRequest { compaction_refused, ..self.prepared.plan_request() };
        let choice = self.choice(compact::writers(&request, SummaryFocus::OfPolicy))?;
        Some(compact::preview(&request, choice.by, &choice.point, self.tokens))
    }

    /// Asks the provider for the request's token count, in the form in which it was sent.
    async fn count(self: Arc<Self>) -> Result<ProviderRecount, RecountError> {
        if self.prepared.conversation.dialect == Dialect::OpenaiChat {
            return Err(RecountError::NoEndpoint);
        }
        let head = self.count_head.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (proxy, head) = self.proxy.upgrade().zip(head).ok_or(RecountError::NoCredential)?;
        let sent = splice::splice(&self.prepared.body, self.sent.to_vec());
        let prompt = sent.map_err(|_| RecountError::Failed)?.concat().into();
        let request = CountRequest::of(&proxy, &self.prepared, &head, prompt);
        let tokens = counting::count_now(request).await.map_err(|outcome| match outcome {
            CountOutcome::Missing => RecountError::NoEndpoint,
            CountOutcome::Busy | CountOutcome::Paused => RecountError::Busy,
            CountOutcome::Refused => RecountError::Refused,
            CountOutcome::Failed | CountOutcome::Answered | CountOutcome::Cached => {
                RecountError::Failed
            }
        })?;
        Ok(ProviderRecount {
            exchange: self.prepared.exchange.clone(),
            tokens,
            estimated: self.tokens,
        })
    }

    /// Begins a summary by the configured upstream; `false` if one is being written, or nothing can be cut.
    fn begin(&self, focus: Option<Box<str>>) -> bool {
        let (Some(proxy), Some(head)) = (self.proxy.upgrade(), &self.head) else { return false };
        let Some(choice) = self.choice(&[SummaryAuthor::Summary]) else { return false };
        let key = (self.scope.clone(), self.thread.clone());
        let Some(writing) = begin_summary(&proxy, &key) else { return false };
        let handle = proxy.ledgers.handle(&self.scope);
        let writer = SummaryJob {
            claim: Some(proxy.ledgers.claim_new_compaction(handle.clone(), focus)),
            prepared: self.prepared.clone(),
            handle,
            known: self.known.clone(),
            parts: self.parts.clone(),
            tokens: self.tokens,
            edits: self.edits.clone(),
            head: head.clone(),
            choices: vec![choice],
            due: CompactionNeed::Prepare,
            writing,
            proxy,
        };
        writer.begin();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_held_client_credential_is_dropped_after_its_lifetime() {
        let (head, ()) =
            http::Request::get("/").header("x-api-key", "k").body(()).unwrap().into_parts();
        let held = Arc::new(Mutex::new(Some(head)));
        drop_credential_later(&held, Duration::from_millis(1));
        while held.lock().unwrap().is_some() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(CREDENTIAL_LIFE.as_secs(), 600);
    }
}
