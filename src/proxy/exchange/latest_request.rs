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
use crate::proxy::compaction::compact::begin_summary;
use crate::proxy::compaction::summarize::{SummaryChoice, SummaryJob};
use crate::proxy::plan::placed_request::PlacedRequest;
use crate::proxy::plan::prepared_request::PreparedRequest;
use crate::proxy::state::Proxy;
use crate::proxy::turn::counting::{self, CountRequest};
use crate::store::Scope;
use crate::store::ledgers::{LatestRequest, ProviderRecount, RecountError};
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
    count_head: Arc<Mutex<Option<Arc<request::Parts>>>>,
    /// The task that drops the client's credential.
    credential_timer: Option<AbortHandle>,
}

/// How long a client's credential is held after its request.
const CREDENTIAL_LIFE: Duration = Duration::from_secs(600);

impl Drop for KeptRequest {
    fn drop(&mut self) {
        if let Some(timer) = &self.credential_timer {
            timer.abort();
        }
    }
}

pub(super) fn keep(request: &PlacedRequest, client_head: &Arc<request::Parts>) {
    let PlacedRequest { proxy, prepared, opened, planned, .. } = request;
    // Only the main line is kept: that is what a summary would be of.
    let Some(measured) = &planned.measured else { return };
    if !compact::is_compactable(&prepared.plan_request()) || !opened.is_main_line() {
        return;
    }
    let may_begin = has_summariser(proxy, prepared) && prepared.mode == Mode::Active;
    let has_own = prepared.info.upstream.credential.is_some();
    // Without a counting endpoint in its protocol, no head is held.
    let count_head = match prepared.conversation.dialect {
        Dialect::OpenaiChat => None,
        _ if has_own => Some(Arc::new(without_credentials(proxy, client_head))),
        _ => Some(client_head.clone()),
    };
    let holds_credential = count_head.is_some() && !has_own;
    let count_head = Arc::new(Mutex::new(count_head));
    let edits: Arc<[Edit]> = planned.plan.edits.as_slice().into();
    let request = Arc::new(KeptRequest {
        proxy: Arc::downgrade(proxy),
        prepared: prepared.clone(),
        scope: opened.scope.clone(),
        thread: opened.placed.position.thread.clone(),
        known: planned.known.clone(),
        parts: measured.parts.clone(),
        tokens: measured.estimate.tokens,
        sent: match planned.done.resent {
            Some(_) => Arc::default(),
            None => edits.clone(),
        },
        edits,
        head: match may_begin {
            true => Some(without_credentials(proxy, client_head)),
            false => None,
        },
        credential_timer: match holds_credential {
            true => Some(drop_credential_later(&count_head, CREDENTIAL_LIFE)),
            false => None,
        },
        count_head,
    });
    let sketch_bytes = size_of_val(&*measured.parts);
    let edit_bytes: usize = planned.plan.edits.iter().map(|edit| edit.with.len()).sum();
    let mut latest = LatestRequest {
        exchange: prepared.info.exchange.clone(),
        bytes: prepared.bytes() + sketch_bytes + edit_bytes,
        begin: None,
        count: {
            let request = request.clone();
            Box::new(move || Box::pin(request.clone().count()))
        },
        preview: {
            let request = request.clone();
            Box::new(move || request.preview())
        },
    };
    if may_begin {
        latest.begin = Some(Box::new(move |focus| request.begin(focus)));
    }
    proxy.ledgers.keep_latest_request(opened, latest);
}

fn without_credentials(proxy: &Proxy, head: &request::Parts) -> request::Parts {
    let mut head = head.clone();
    let headers = std::mem::take(&mut head.headers);
    head.headers = crate::proxy::http::headers::without(headers, |name| {
        *name == COOKIE || proxy.credentials.is_header(name)
    });
    head
}

fn drop_credential_later(
    head: &Arc<Mutex<Option<Arc<request::Parts>>>>,
    life: Duration,
) -> AbortHandle {
    // One task per session, which ends when the request is replaced.
    let head = Arc::downgrade(head);
    let task = tokio::spawn(async move {
        tokio::time::sleep(life).await;
        if let Some(head) = head.upgrade() {
            head.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
    });
    task.abort_handle()
}

fn has_summariser(proxy: &Proxy, prepared: &PreparedRequest) -> bool {
    // Only with a credential of its own can it be called without a client.
    let summariser = proxy.summariser(&prepared.info.policy.compact, prepared.conversation.dialect);
    summariser.is_some_and(|upstream| upstream.credential.is_some())
}

impl KeptRequest {
    fn choice(&self, writers: &[SummaryAuthor]) -> Option<SummaryChoice> {
        let request = self.prepared.plan_request();
        writers.iter().find_map(|by| {
            let point = compact::choose(&request, &self.known, &self.parts, self.tokens, *by)?;
            Some(SummaryChoice { by: *by, point })
        })
    }

    fn preview(&self) -> Option<CompactionPreview> {
        // The provider may have refused since, when it was asked for the summary that this request prepared.
        let source = self.prepared.info.lesson_source();
        let proxy = self.proxy.upgrade();
        let compaction_refused =
            proxy.is_some_and(|proxy| proxy.knows(&source, Lesson::CompactionRefused));
        let request = PlanRequest { compaction_refused, ..self.prepared.plan_request() };
        let choice = self.choice(compact::writers(&request, SummaryFocus::OfPolicy))?;
        Some(compact::preview(&request, choice.by, &choice.point, self.tokens))
    }

    async fn count(self: Arc<Self>) -> Result<ProviderRecount, RecountError> {
        if self.prepared.conversation.dialect == Dialect::OpenaiChat {
            return Err(RecountError::NoEndpoint);
        }
        let head = self.count_head.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (proxy, head) = self.proxy.upgrade().zip(head).ok_or(RecountError::NoCredential)?;
        // In the form in which it was sent.
        let slices = splice::splice(&self.prepared.body, self.sent.to_vec());
        let prompt = slices.map_err(|_| RecountError::Failed)?.concat().into();
        let request = CountRequest::new(&proxy, &self.prepared, &head, prompt);
        let tokens = counting::count_now(request).await.map_err(|outcome| match outcome {
            CountOutcome::Missing => RecountError::NoEndpoint,
            CountOutcome::Busy | CountOutcome::Paused => RecountError::Busy,
            CountOutcome::Refused => RecountError::Refused,
            CountOutcome::Failed | CountOutcome::Answered | CountOutcome::Cached => {
                RecountError::Failed
            }
        })?;
        Ok(ProviderRecount {
            exchange: self.prepared.info.exchange.clone(),
            tokens,
            estimated: self.tokens,
        })
    }

    fn begin(&self, focus: Option<Box<str>>) -> bool {
        let (Some(proxy), Some(head)) = (self.proxy.upgrade(), &self.head) else { return false };
        let Some(choice) = self.choice(&[SummaryAuthor::Summary]) else { return false };
        let key = (self.scope.clone(), self.thread.clone());
        // One summary of a thread is written at a time.
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
    async fn held_client_credential_is_dropped_after_its_lifetime() {
        let (head, ()) =
            http::Request::get("/").header("x-api-key", "k").body(()).unwrap().into_parts();
        let held = Arc::new(Mutex::new(Some(Arc::new(head))));
        drop_credential_later(&held, Duration::from_millis(1));
        while held.lock().unwrap().is_some() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(CREDENTIAL_LIFE.as_secs(), 600);
    }
}
