//! The client's request, read, placed and planned before it is forwarded.
//!
//! A compressed body is read from a decompressed copy. Changes nothing itself. What cannot be understood is
//! left out and reported: the request is then sent as it is.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use http::header::{AUTHORIZATION, CONTENT_ENCODING, HeaderValue};
use http::{HeaderMap, Uri, request};
use xxhash_rust::xxh3::xxh3_64;

use super::count_estimate::CountFallback;
use super::latest_request;
use super::outbound::BodyChanges;
use crate::config::{Mode, ProviderCounting, Tenants, Upstream};
use crate::context::plan::{self, Overlay, RecordedDecisions};
use crate::context::policy::EchoRule;
use crate::context::{SessionId, TenantId, Turn, reasoning};
use crate::dialect::credentials::{Tenant, gives_away};
use crate::dialect::identity::{self, ANONYMOUS, Identity};
use crate::dialect::lesson::Lesson;
use crate::dialect::models::{Model, ReasoningBinding};
use crate::dialect::paths::{self, Transport};
use crate::dialect::repair::RepairCause;
use crate::dialect::request_id::provider_request_id;
use crate::dialect::{Conversation, Dialect, Note, Purpose, Role};
use crate::proxy::compaction::context::CompactionContext;
use crate::proxy::compaction::summarize::SummaryJob;
use crate::proxy::exchange_recorder::ExchangeRecorder;
use crate::proxy::http::headers;
use crate::proxy::http::memory::MemoryShare;
use crate::proxy::plan::added_option::AddedOption;
use crate::proxy::plan::body_reader::{BodyReader, RequestAnalysis};
use crate::proxy::plan::planned_request::{self, PlannedRequest, PlannedRewrite};
use crate::proxy::plan::prepared_request::PreparedRequest;
use crate::proxy::state::Proxy;
use crate::proxy::turn::pending::PendingExchange;
use crate::store::Scope;
use crate::store::ledgers::{self, SessionPeek};
use crate::store::lessons::LessonSource;
use crate::store::recall::{LookupOutcome, ReadBudget, RecallOutcome};
use crate::telemetry::clock::now;
use crate::telemetry::{FailOpen, MessageEvent, MessageStep, RefusalOutcome};

/// A request as the client sent it, without its body.
pub(crate) struct ClientRequest {
    target: Uri,
    /// Kept only if the path is one with a conversation.
    headers: HeaderMap,
    /// The protocol, as the path shows it.
    pub(crate) dialect: Option<Dialect>,
    /// The purpose, as the path shows it.
    pub(crate) purpose: Option<Purpose>,
    transport: Transport,
}

/// The result of reading a request.
#[derive(Default)]
pub(crate) struct AnalyzedRequest {
    /// Makes a turn from the reply.
    pub(crate) pending: Option<PendingExchange>,
    /// The summary to write after the response.
    pub(crate) writer: Option<SummaryJob>,
    /// The changes of its body.
    pub(crate) changes: BodyChanges,
    /// Answers a token count if the upstream does not.
    pub(crate) count: Option<CountFallback>,
}

/// A request with its place in a session.
#[derive(Default)]
pub(crate) struct PlacedRequest {
    /// Makes a turn from the reply.
    pub(crate) pending: Option<PendingExchange>,
    writer: Option<SummaryJob>,
    /// The changes of its body, as planned.
    rewrite: Option<PlannedRewrite>,
    added: Vec<AddedOption>,
    count: Option<CountFallback>,
}

impl ClientRequest {
    /// Reads method and path. The headers are kept for later.
    pub(crate) fn new(head: &request::Parts) -> Self {
        let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
        let endpoint = paths::endpoint(&head.method, target);
        Self {
            target: head.uri.clone(),
            headers: endpoint.as_ref().map(|_| head.headers.clone()).unwrap_or_default(),
            dialect: endpoint.as_ref().map(|endpoint| endpoint.dialect),
            purpose: endpoint.as_ref().map(|endpoint| endpoint.purpose),
            transport: endpoint.map_or(Transport::Http, |endpoint| endpoint.transport),
        }
    }

    /// The dialect in which the body is read, if the request has one.
    pub(crate) fn read_as(&self) -> Option<Dialect> {
        self.dialect.filter(|_| self.transport != Transport::WebSocket)
    }

    /// Whether requests and replies are frames, once the upgrade is accepted.
    pub(crate) fn is_over_websocket(&self) -> bool {
        self.transport == Transport::WebSocket
    }

    /// The dialect in which the response is read.
    pub(crate) fn answered_in(&self) -> Option<Dialect> {
        self.dialect.filter(|_| self.transport == Transport::Http)
    }

    /// Reads the body and opens the ledger. A panic in here only costs the plan. `head`: the request's, as it
    /// is sent.
    pub(crate) async fn understand(
        &self,
        body: &Bytes,
        head: &request::Parts,
        recorder: &mut ExchangeRecorder,
    ) -> AnalyzedRequest {
        let understanding = AssertUnwindSafe(self.understood(body, head, recorder));
        match understanding.catch_unwind().await {
            Ok(understood) => understood.unwrap_or_default(),
            Err(_) => {
                recorder.stood_aside(FailOpen::Panicked);
                AnalyzedRequest::default()
            }
        }
    }

    async fn understood(
        &self,
        body: &Bytes,
        head: &request::Parts,
        recorder: &mut ExchangeRecorder,
    ) -> Option<AnalyzedRequest> {
        let dialect = self.read_as()?;
        let analysis = match self
            .reader(dialect, &recorder.proxy, &recorder.memory)
            .read(&self.headers, body)
            .await
        {
            Ok(analysis) => analysis,
            Err(why) => {
                recorder.stood_aside(why);
                return None;
            }
        };
        let notes = &analysis.conversation.notes;
        recorder.noted(notes.iter().copied());
        if notes.contains(&Note::NotJson) {
            recorder.stood_aside(FailOpen::BodyUnread);
            return None;
        }
        let placed = self.placed(analysis, Some(head), recorder).await;
        let PlacedRequest { pending, writer, rewrite, added, count } = placed;
        let may_repair = pending.as_ref().is_some_and(PendingExchange::may_repair);
        let changes = BodyChanges { rewrite, added, may_repair };
        Some(AnalyzedRequest { pending, writer, changes, count })
    }

    /// The reader for its body.
    pub(crate) fn reader(
        &self,
        dialect: Dialect,
        proxy: &Proxy,
        memory: &Arc<MemoryShare>,
    ) -> BodyReader {
        BodyReader {
            dialect,
            target: self.target().into(),
            limit: proxy.config.limits.body_bytes,
            memory: memory.clone(),
        }
    }

    /// Finds the request's place among the turns of its session, and plans it. `head`: as it is sent, if the
    /// request can still be changed.
    pub(crate) async fn placed(
        &self,
        analysis: RequestAnalysis,
        head: Option<&request::Parts>,
        recorder: &mut ExchangeRecorder,
    ) -> PlacedRequest {
        let who = identity::identify(&self.headers, &analysis.conversation, self.transport);
        let tenant = self.tenant(&recorder.proxy);
        recorder.event.tenant = tenant.as_ref().ok().cloned();
        let reads = self.read_budget(&analysis.conversation, head.is_some(), recorder);
        let mut prepared = self.prepared(analysis, &who, recorder, &reads).await;
        let tenant = match tenant {
            Ok(tenant) => tenant,
            Err(why) => return self.of_nobody(prepared, why, recorder).await,
        };
        if prepared.conversation.purpose == Purpose::Count {
            let counted = self.counted(prepared, &tenant, &who, recorder, &reads).await;
            waited(&reads, recorder);
            return counted;
        }
        let proxy = recorder.proxy.clone();
        let head = head.filter(|_| !self.is_signed());
        let lookup = session_lookup(&prepared, &tenant, &who, recorder, &reads);
        let opened = proxy.ledgers.open(lookup, &prepared.conversation).await;
        waited(&reads, recorder);
        let Some(mut opened) = opened else {
            // It is sent as it came, and stored as no turn: the next request finds the session.
            recorder.stood_aside(FailOpen::SessionLate);
            recorder.event.estimate = PlannedRequest::alone(&Arc::new(prepared)).await;
            return PlacedRequest::default();
        };
        let event = &mut recorder.event;
        event.session = Some(opened.scope.session.clone());
        event.thread = Some(opened.placed.position.thread.clone());
        if opened.unread {
            recorder.stood_aside(FailOpen::FactUnread);
        }
        if opened.store_missed {
            recorder.stood_aside(FailOpen::Store);
        }
        prepared.held_out = is_held_out(&opened.scope.session, prepared.mode, &proxy);
        prepared.is_opened(&mut opened);
        if head.is_some() {
            prepared.added = self.added(&prepared, opened.placed.parent.as_deref(), recorder);
        }
        let added = prepared.added.clone();
        let prepared = Arc::new(prepared);
        let mut writer = None;
        let (planned, undelivered) = match head {
            Some(head) => {
                let (mut planned, undelivered) =
                    planned_request::plan(&proxy, prepared.clone(), &mut opened).await;
                let (proxy, prepared, opened) = (&proxy, &prepared, &mut opened);
                let mut attended =
                    CompactionContext::new(proxy, prepared, opened, &mut planned, head);
                writer = attended.attend().await;
                let waited = attended.waited.map(|waited| waited.as_micros() as u64);
                recorder.event.compaction_wait_us = waited;
                latest_request::keep(proxy, prepared, &planned, opened, head);
                (planned, undelivered)
            }
            None => (PlannedRequest::as_it_came(&prepared, &mut opened).await, None),
        };
        tell_plan(&planned, recorder);
        announce_taken(&planned.taken, &opened.scope, recorder);
        let at = recorder.event.at;
        let pending = PendingExchange::begin(&proxy, opened, prepared, planned, undelivered, at);
        recorder.event.estimate = pending.estimate().cloned();
        recorder.event.classic = pending.classic().cloned();
        let shown = pending.open_exchange(recorder.event.at);
        shown.into_iter().for_each(|it| proxy.telemetry.exchange_opened(it));
        if recorder.event.estimate.is_none() {
            recorder.stood_aside(FailOpen::Panicked);
        }
        let rewrite = pending.rewrite();
        PlacedRequest { rewrite, pending: Some(pending), writer, added, count: None }
    }

    /// It is not known whose the request is: it takes no place, and is estimated from itself alone.
    async fn of_nobody(
        &self,
        prepared: PreparedRequest,
        why: FailOpen,
        recorder: &mut ExchangeRecorder,
    ) -> PlacedRequest {
        recorder.stood_aside(why);
        let prepared = Arc::new(prepared);
        recorder.event.estimate = PlannedRequest::alone(&prepared).await;
        self.counted_alone(prepared, recorder)
    }

    /// A call that counts tokens is on no thread, because no turn continues it. It is sent in the form in
    /// which the counted request would be sent.
    async fn counted(
        &self,
        mut prepared: PreparedRequest,
        tenant: &TenantId,
        who: &Identity,
        recorder: &mut ExchangeRecorder,
        reads: &ReadBudget,
    ) -> PlacedRequest {
        let proxy = recorder.proxy.clone();
        if proxy.config.count == ProviderCounting::Raw || self.is_signed() {
            return self.counted_alone(Arc::new(prepared), recorder);
        }
        let is_shadow = prepared.mode == Mode::Shadow;
        // Shadow mode would decide; but a thread that was rewritten before is repeated, as its turns are.
        prepared.mode = if is_shadow { Mode::Observe } else { prepared.mode };
        let lookup = session_lookup(&prepared, tenant, who, recorder, reads);
        let mut peeked = proxy.ledgers.peek(lookup, &prepared.conversation).await;
        let is_plain = matches!(&peeked, LookupOutcome::Found(it) if it.known.decides_nothing());
        if is_shadow && is_plain {
            prepared.mode = Mode::Shadow;
            let lookup = session_lookup(&prepared, tenant, who, recorder, reads);
            peeked = proxy.ledgers.peek(lookup, &prepared.conversation).await;
        }
        let known = match peeked {
            LookupOutcome::Found(SessionPeek { session, known, store_missed }) => {
                if store_missed {
                    recorder.stood_aside(FailOpen::Store);
                }
                prepared.held_out = is_held_out(&session, prepared.mode, &proxy);
                recorder.event.session = Some(session);
                known
            }
            LookupOutcome::None => RecordedDecisions::default(),
            LookupOutcome::Late => {
                recorder.stood_aside(FailOpen::SessionLate);
                return self.counted_alone(Arc::new(prepared), recorder);
            }
        };
        prepared.added = self.added(&prepared, None, recorder);
        let added = prepared.added.clone();
        let prepared = Arc::new(prepared);
        let planned = PlannedRequest::replayed(&prepared, Arc::new(known)).await;
        let rewrite = planned.rewrite(&prepared);
        planned.stood_aside.into_iter().for_each(|why| recorder.stood_aside(why));
        recorder.event.done = planned.done;
        let count = self.count_fallback(prepared, planned.sent, planned.known, recorder);
        PlacedRequest { rewrite, added, count, ..PlacedRequest::default() }
    }

    /// A request that is sent as it came, and that is not stored.
    fn counted_alone(
        &self,
        prepared: Arc<PreparedRequest>,
        recorder: &ExchangeRecorder,
    ) -> PlacedRequest {
        let sent = plan::as_it_came(&prepared.request());
        let count = self.count_fallback(prepared, sent, Arc::default(), recorder);
        PlacedRequest { count, ..PlacedRequest::default() }
    }

    /// The fallback for a request that counts tokens, if its upstream does not.
    fn count_fallback(
        &self,
        prepared: Arc<PreparedRequest>,
        sent: Overlay,
        known: Arc<RecordedDecisions>,
        recorder: &ExchangeRecorder,
    ) -> Option<CountFallback> {
        let wanted = recorder.proxy.upstream(recorder.event.upstream.as_deref())?.count_tokens;
        let is_count = prepared.conversation.purpose == Purpose::Count;
        let (target, mode) = (self.target().into(), self.mode(recorder));
        is_count.then(|| CountFallback { prepared, sent, known, target, wanted, mode })
    }

    /// The provider's id of the request, from the response's headers; `None` if it reveals a credential.
    pub(crate) fn provider_request_id(
        &self,
        answered: &HeaderMap,
        proxy: &Proxy,
        upstream: &Upstream,
    ) -> Option<Box<str>> {
        // For other paths the headers are not kept, so a credential in the id could not be recognised.
        let id = self.dialect.and_then(|_| provider_request_id(answered))?;
        let own = upstream.credential.as_ref().map(|(_, secret)| secret.0.as_bytes());
        let is_told = own.is_some_and(|own| gives_away(id, own))
            || proxy.credentials.are_told_by(id, &self.headers, self.target());
        (!is_told).then(|| id.into())
    }

    /// Whether the client signed the body (AWS), so that no byte of it may change (`docs/protocols.md` 1.1).
    fn is_signed(&self) -> bool {
        let scheme = self.headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
        scheme.is_some_and(|scheme| scheme.starts_with(b"AWS4-"))
    }

    /// What is requested on the client's behalf, if the body is not compressed. `parent`: the turn that it
    /// continues.
    fn added(
        &self,
        prepared: &PreparedRequest,
        parent: Option<&Turn>,
        recorder: &ExchangeRecorder,
    ) -> Vec<AddedOption> {
        let upstream = recorder.proxy.upstream(recorder.event.upstream.as_deref());
        let plainly = !self.headers.contains_key(CONTENT_ENCODING);
        let upstream = upstream.filter(|_| plainly);
        upstream.map_or_else(Vec::new, |it| AddedOption::to(prepared, &recorder.proxy, it, parent))
    }

    /// A request with everything that is known about its model and upstream, but not yet about its session.
    async fn prepared(
        &self,
        analysis: RequestAnalysis,
        who: &Identity,
        recorder: &mut ExchangeRecorder,
        reads: &ReadBudget,
    ) -> PreparedRequest {
        let RequestAnalysis { plain: body, mut conversation, repeated_calls, memory } = analysis;
        let proxy = recorder.proxy.clone();
        conversation.purpose = who.purpose.unwrap_or(conversation.purpose);
        let tenant = recorder.event.tenant.clone();
        let mut model = self.model(&conversation, recorder);
        let name = conversation.model.as_deref().unwrap_or_default();
        let behind = recorder.event.upstream.clone().unwrap_or_default();
        let vouched = proxy.knows_apart(Some(&behind));
        let source =
            LessonSource { tenant: tenant.as_ref(), upstream: &behind, model: name, vouched };
        let lessons = proxy.ledgers.lessons();
        let taught = lessons.ready(reads, now()).await;
        let window = lessons.window(&source, model.window, now());
        model.known |= window != model.window;
        let max_output = lessons.max_output(&source, now());
        model.window = window;
        let event = &mut recorder.event;
        event.model.clone_from(&conversation.model);
        event.family = Some(model.family);
        event.window = Some(model.window);
        event.purpose = Some(conversation.purpose);
        event.repeated_calls = repeated_calls.filter(|_| conversation.purpose == Purpose::Turn);
        event.session.clone_from(&who.session);
        let mode = self.mode(recorder);
        let upstream = proxy.upstream(recorder.event.upstream.as_deref());
        let echo = upstream.map_or(EchoRule::Unwanted, |it| self.echo(&proxy, it, &source));
        if proxy.knows(&source, Lesson::ReasoningBound) {
            model.binding = ReasoningBinding::Prefix;
        }
        let pupil = tenant.as_ref().filter(|_| !vouched);
        let (calibration, ledgers) = (&proxy.calibration, &proxy.ledgers);
        let learned = calibration.of(ledgers, &behind, name, pupil, model.family, reads);
        let (learned, counting) = learned.await;
        let exchange = recorder.event.id.clone();
        if taught != RecallOutcome::Known || counting != RecallOutcome::Known {
            recorder.stood_aside(FailOpen::Store);
        }
        PreparedRequest {
            exchange,
            tenant,
            vouched,
            upstream: behind,
            reserve: model.reserve(proxy.config.output_reserve),
            held_out: false,
            unknown: taught != RecallOutcome::Known,
            signed: self.is_signed(),
            added: Vec::new(),
            counted_input: None,
            max_output,
            policy: proxy.policy(upstream, name),
            now: now(),
            conversation,
            body,
            memory: Arc::new(memory),
            learned,
            model,
            echo,
            mode,
        }
    }

    /// The mode of the request.
    fn mode(&self, recorder: &ExchangeRecorder) -> Mode {
        let proxy = &recorder.proxy;
        let upstream = proxy.upstream(recorder.event.upstream.as_deref());
        let limit = upstream.and_then(|upstream| upstream.mode).unwrap_or(proxy.config.mode);
        proxy.config.client_mode.mode(limit, headers::mode(&self.headers))
    }

    /// How long the request may wait for the store. If it continues an answered request, the cuts in its
    /// prefix may only be in the store. Without them the cache would break, so the wait is longer, whatever
    /// the mode is now. `open`: the request can still be changed.
    fn read_budget(
        &self,
        conversation: &Conversation,
        open: bool,
        recorder: &ExchangeRecorder,
    ) -> ReadBudget {
        let limits = &recorder.proxy.config.limits;
        let reads = ReadBudget::new(Duration::from_millis(limits.load_ms));
        let goes_on = conversation.held.is_some()
            || conversation.parts().any(|part| part.role == Role::Assistant);
        if !goes_on || !open || self.is_signed() {
            return reads;
        }
        let first = Duration::from_millis(limits.first_load_ms);
        reads.with_first_load(first, recorder.proxy.shutdown.subscribe())
    }

    /// The tenant of the request; an error if there is none. Then nothing of it is stored, and nothing stored
    /// is used for it.
    fn tenant(&self, proxy: &Proxy) -> Result<TenantId, FailOpen> {
        if proxy.config.tenants == Tenants::One {
            return Ok(ANONYMOUS.into());
        }
        match proxy.credentials.tenant(&proxy.tenant_key, &self.headers, self.target()) {
            Tenant::Known(tenant) => Ok(tenant),
            Tenant::Unknown => Err(FailOpen::UnknownCredential),
            Tenant::Everyone if proxy.gate.is_open() => Err(FailOpen::NoCredential),
            Tenant::Everyone => Ok(ANONYMOUS.into()),
        }
    }

    /// The upstream's rule for reasoning that is sent back: configured, else learned, else known.
    fn echo(&self, proxy: &Proxy, upstream: &Upstream, source: &LessonSource<'_>) -> EchoRule {
        if let Some(rule) = upstream.reasoning_echo {
            return rule;
        }
        if proxy.knows(source, Lesson::ReasoningRefused) {
            EchoRule::Unwanted
        } else if proxy.knows(source, Lesson::ReasoningDemanded) {
            EchoRule::Demanded
        } else {
            let dialect = self.dialect.unwrap_or(Dialect::OpenaiChat);
            reasoning::rule(dialect, upstream.base.host().unwrap_or_default(), source.model)
        }
    }

    /// What is known about the model. An unknown model is logged once.
    fn model(&self, conversation: &Conversation, recorder: &ExchangeRecorder) -> Model {
        let proxy = &recorder.proxy;
        let name = conversation.model.as_deref().unwrap_or_default();
        let betas = self.headers.get_all("anthropic-beta").iter();
        let betas: Vec<&str> = betas.filter_map(|line| line.to_str().ok()).collect();
        let model = proxy.catalogue.model(name, &betas.join(","));
        if !model.known && !name.is_empty() {
            let behind = recorder.event.upstream.as_deref().unwrap_or_default();
            proxy.telemetry.unknown_model(behind, name);
        }
        match proxy.upstream(recorder.event.upstream.as_deref()) {
            Some(upstream) => model.behind(upstream.window, upstream.price),
            None => model,
        }
    }

    fn target(&self) -> &str {
        self.target.path_and_query().map_or("/", |target| target.as_str())
    }
}

/// Records what is done to a request.
fn tell_plan(planned: &PlannedRequest, recorder: &mut ExchangeRecorder) {
    planned.stood_aside.into_iter().for_each(|why| recorder.stood_aside(why));
    recorder.event.done = planned.done.clone();
    if planned.is_spared {
        recorder.report_refusal(&[RepairCause::MaxTokens], RefusalOutcome::Spared);
    }
}

/// Announces that queued messages are sent with the request.
fn announce_taken(taken: &[Box<str>], scope: &Scope, recorder: &ExchangeRecorder) {
    for id in taken {
        let Scope { tenant, session } = scope.clone();
        let (id, exchange, at) = (id.clone(), Some(recorder.event.id.clone()), now());
        let news = MessageEvent {
            id,
            step: MessageStep::Taken,
            tenant,
            session,
            exchange,
            position: None,
            at,
        };
        recorder.proxy.telemetry.announce(news);
    }
}

/// Records how long the request waited for the store, if it did.
fn waited(reads: &ReadBudget, recorder: &mut ExchangeRecorder) {
    let waited = reads.spent();
    if waited.is_zero() {
        return;
    }
    recorder.proxy.telemetry.session_loaded(waited);
    let is_long = reads.is_overspent();
    recorder.event.session_load_us = is_long.then_some(waited.as_micros() as u64);
}

/// What a request is placed by.
fn session_lookup<'a>(
    prepared: &'a PreparedRequest,
    tenant: &'a TenantId,
    who: &'a Identity,
    recorder: &'a ExchangeRecorder,
    reads: &'a ReadBudget,
) -> ledgers::SessionLookup<'a> {
    ledgers::SessionLookup {
        tenant,
        session: who.session.as_ref(),
        client_thread: who.thread.as_deref(),
        exchange: &prepared.exchange,
        shadow: prepared.mode == Mode::Shadow,
        timeout: Duration::from_millis(recorder.proxy.config.limits.settle_ms),
        reads,
    }
}

/// Whether a session is held out for comparison: a fixed share of all sessions, chosen by hash.
fn is_held_out(session: &SessionId, mode: Mode, proxy: &Proxy) -> bool {
    let drawn = (xxh3_64(session.as_str().as_bytes()) >> 11) as f64 / (1u64 << 53) as f64;
    mode == Mode::Active && drawn < proxy.config.policy.prune.hold_out
}
