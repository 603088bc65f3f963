//! The latest request of a session, kept in memory for a while. Operators can preview its compaction, start
//! it at once if the summariser has a credential of its own, or have the request counted.
//!
//! Nothing is written to the store. A client's credential is held only for the counting endpoint, for ten
//! minutes, and only if the upstream has none of its own.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use http::header::COOKIE;
use http::request;

use crate::config::Mode;
use crate::context::compact::{self, CompactionNeed, CompactionPreview, SummaryFocus};
use crate::context::plan::{PlanRequest, RecordedDecisions};
use crate::context::policy::SummaryAuthor;
use crate::context::{ExchangeId, SketchPart, ThreadId};
use crate::dialect::Dialect;
use crate::dialect::lesson::Lesson;
use crate::proxy::compaction::compact::begin_summary;
use crate::proxy::compaction::summarize::{SummaryChoice, SummaryJob};
use crate::proxy::plan::placed_request::PlacedRequest;
use crate::proxy::plan::prepared_request::PreparedRequest;
use crate::proxy::state::Proxy;
use crate::proxy::turn::counting::{self, CountRequest};
use crate::store::Scope;
use crate::store::ledgers::{
    LatestRequest, Ledgers, ProviderRecount, RecountError, TokenCountFuture,
};
use crate::telemetry::CountOutcome;
use crate::wire::splice::{self, Edit};

/// A request, with everything that summarising it needs.
struct KeptRequest {
    bytes: usize,
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
    /// Whether its upstream has a credential of its own.
    has_own_credential: bool,
    /// The head for the counting endpoint. If the upstream has no credential of its own, it has the client's, and is
    /// dropped after [`CREDENTIAL_LIFE`].
    count_head: Mutex<Option<Arc<request::Parts>>>,
}

/// How long a client's credential is held after its request, and at most [`CREDENTIAL_CHECK`] longer.
const CREDENTIAL_LIFE: Duration = Duration::from_secs(570);
/// How often credentials are looked through. A timer for each request would wake a thread for each.
const CREDENTIAL_CHECK: Duration = Duration::from_secs(30);

/// Drops the credentials of clients once they are held long enough.
pub(in crate::proxy) async fn drop_credentials(ledgers: &Ledgers) -> Infallible {
    loop {
        tokio::time::sleep(CREDENTIAL_CHECK).await;
        ledgers.drop_credentials(CREDENTIAL_LIFE);
    }
}

pub(super) fn keep(request: &PlacedRequest, client_head: &Arc<request::Parts>) {
    let PlacedRequest { proxy, opened, planned, .. } = request;
    let prepared = &planned.prepared;
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
    let edits: Arc<[Edit]> = planned.plan.edits.as_slice().into();
    let sketch_bytes = size_of_val(&*measured.parts);
    let edit_bytes: usize = planned.plan.edits.iter().map(|edit| edit.with.len()).sum();
    let request = KeptRequest {
        bytes: prepared.bytes() + sketch_bytes + edit_bytes,
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
        has_own_credential: has_own,
        count_head: Mutex::new(count_head),
    };
    proxy.ledgers.keep_latest_request(opened, Arc::new(request));
}

fn without_credentials(proxy: &Proxy, head: &request::Parts) -> request::Parts {
    let mut head = head.clone();
    let headers = std::mem::take(&mut head.headers);
    head.headers = crate::proxy::http::headers::without(headers, |name| {
        *name == COOKIE || proxy.credentials.is_header(name)
    });
    head
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

    async fn count_tokens(&self) -> Result<ProviderRecount, RecountError> {
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
}

impl LatestRequest for KeptRequest {
    fn exchange(&self) -> &ExchangeId {
        &self.prepared.info.exchange
    }

    fn bytes(&self) -> usize {
        self.bytes
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

    fn can_begin(&self) -> bool {
        self.head.is_some()
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

    fn count(self: Arc<Self>) -> TokenCountFuture {
        Box::pin(async move { self.count_tokens().await })
    }

    fn drop_credential(&self) {
        if !self.has_own_credential {
            self.count_head.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
    }
}
