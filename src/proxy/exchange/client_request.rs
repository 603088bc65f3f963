//! What a client asked for: its request read, placed and measured, before it is forwarded.
//!
//! Works on a copy where the body is compressed; changes nothing. Whatever cannot be understood is
//! left out and told: the request goes on as it is.

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
use crate::context::reasoning;
use crate::dialect::credentials::{Tenant, gives_away};
use crate::dialect::identity::{self, ANONYMOUS, Identity};
use crate::dialect::lesson::Lesson;
use crate::dialect::models::{Binding, Model};
use crate::dialect::paths::{self, Transport};
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
use crate::store::recall::{Lookup, ReadBudget, Recalled};
use crate::telemetry::clock::now;
use crate::telemetry::{FailOpen, MessageEvent, MessageStep};
use crate::wire::splice::Edit;

/// A request as the client sent it, without its body.
pub(crate) struct ClientRequest {
    target: Uri,
    /// Kept only where a conversation is held.
    headers: HeaderMap,
    /// The protocol that the path tells.
    pub(crate) dialect: Option<Dialect>,
    /// What the path says it is for.
    pub(crate) purpose: Option<Purpose>,
    transport: Transport,
}

/// What was understood of a request.
#[derive(Default)]
pub(crate) struct AnalyzedRequest {
    /// Makes a turn of the reply.
    pub(crate) measure: Option<PendingExchange>,
    /// Writes a summary once the request is answered.
    pub(crate) writer: Option<SummaryJob>,
    /// What is changed in its body.
    pub(crate) changes: BodyChanges,
    /// Answers it where it counts tokens and nobody else does.
    pub(crate) count: Option<CountFallback>,
}

/// A request that knows its place.
#[derive(Default)]
pub(crate) struct PlacedRequest {
    /// Makes a turn of the reply.
    pub(crate) measure: Option<PendingExchange>,
    writer: Option<SummaryJob>,
    edits: Vec<Edit>,
    /// What the head has to list for them.
    beta: Option<&'static str>,
    added: Option<AddedOption>,
    count: Option<CountFallback>,
}

impl ClientRequest {
    /// Reads method and path; the headers are kept for later.
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

    /// The dialect whose request is read, if it is one that has a body.
    pub(crate) fn read_as(&self) -> Option<Dialect> {
        self.dialect.filter(|_| self.transport != Transport::WebSocket)
    }

    /// Whether requests and replies are frames, once the upgrade is granted.
    pub(crate) fn is_over_websocket(&self) -> bool {
        self.transport == Transport::WebSocket
    }

    /// The dialect whose response is read.
    pub(crate) fn answered_in(&self) -> Option<Dialect> {
        self.dialect.filter(|_| self.transport == Transport::Http)
    }

    /// Reads the body and opens the ledger. A panic in here costs us what would have been known,
    /// nothing else.
    /// `head`: the request's, as it goes out.
    pub(crate) async fn understand(
        &self,
        body: &Bytes,
        head: &request::Parts,
        account: &mut ExchangeRecorder,
    ) -> AnalyzedRequest {
        let understanding = AssertUnwindSafe(self.understood(body, head, account));
        match understanding.catch_unwind().await {
            Ok(understood) => understood.unwrap_or_default(),
            Err(_) => {
                account.stood_aside(FailOpen::Panicked);
                AnalyzedRequest::default()
            }
        }
    }

    async fn understood(
        &self,
        body: &Bytes,
        head: &request::Parts,
        account: &mut ExchangeRecorder,
    ) -> Option<AnalyzedRequest> {
        let dialect = self.read_as()?;
        let analysis = match self
            .reader(dialect, &account.proxy, &account.memory)
            .read(&self.headers, body)
            .await
        {
            Ok(analysis) => analysis,
            Err(why) => {
                account.stood_aside(why);
                return None;
            }
        };
        let notes = &analysis.conversation.notes;
        account.noted(notes.iter().copied());
        if notes.contains(&Note::NotJson) {
            account.stood_aside(FailOpen::BodyUnread);
            return None;
        }
        let plain = analysis.plain.clone();
        let placed = self.placed(analysis, Some(head), account).await;
        let PlacedRequest { measure, writer, edits, beta, added, count } = placed;
        let rewrite = (!edits.is_empty()).then_some(PlannedRewrite { plain, edits, beta });
        let may_repair = measure.as_ref().is_some_and(PendingExchange::may_repair);
        let changes = BodyChanges { rewrite, added, may_repair };
        Some(AnalyzedRequest { measure, writer, changes, count })
    }

    /// How its body is read.
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

    /// Finds the request's place among the turns of its session, and what it will cost. `head`: as it goes
    /// out, where the request can still be changed.
    pub(crate) async fn placed(
        &self,
        analysis: RequestAnalysis,
        head: Option<&request::Parts>,
        account: &mut ExchangeRecorder,
    ) -> PlacedRequest {
        let who = identity::identify(&self.headers, &analysis.conversation, self.transport);
        let tenant = self.tenant(&account.proxy);
        account.event.tenant = tenant.as_ref().ok().cloned();
        let reads = self.read_budget(&analysis.conversation, head.is_some(), account);
        let mut subject = self.subject(analysis, &who, (account, &reads)).await;
        if let Err(why) = tenant {
            account.stood_aside(why);
            let subject = Arc::new(subject);
            account.event.estimate = PlannedRequest::alone(&subject).await;
            return self.counted_alone(subject, account);
        }
        if subject.conversation.purpose == Purpose::Count {
            let counted = self.counted(subject, &who, (account, &reads)).await;
            waited(&reads, account);
            return counted;
        }
        let proxy = account.proxy.clone();
        let head = head.filter(|_| !self.is_signed());
        let asked = asked(&subject, &who, (account, &reads));
        let opened = proxy.ledgers.open(asked, &subject.conversation).await;
        waited(&reads, account);
        let Some(mut opened) = opened else {
            // It goes as it came, and is no turn: the next request finds the session.
            account.stood_aside(FailOpen::SessionLate);
            account.event.estimate = PlannedRequest::alone(&Arc::new(subject)).await;
            return PlacedRequest::default();
        };
        let event = &mut account.event;
        event.session = Some(opened.scope.session.clone());
        event.thread = Some(opened.placed.standing.thread.clone());
        if opened.unread {
            account.stood_aside(FailOpen::FactUnread);
        }
        if opened.store_missed {
            account.stood_aside(FailOpen::Store);
        }
        subject.held_out = is_held_out(&opened.scope.session, subject.mode, &proxy);
        subject.is_opened(&mut opened);
        if head.is_some() {
            subject.added = self.added(&subject, account);
        }
        let added = subject.added.clone();
        let subject = Arc::new(subject);
        let mut writer = None;
        let (planned, unheard) = match head {
            Some(head) => {
                let (mut planned, unheard) =
                    planned_request::plan(&proxy, subject.clone(), &mut opened).await;
                let (proxy, subject, opened) = (&proxy, &subject, &mut opened);
                let mut attended =
                    CompactionContext::new(proxy, subject, opened, &mut planned, head);
                writer = attended.attend().await;
                let waited = attended.waited.map(|waited| waited.as_micros() as u64);
                account.event.compaction_wait_us = waited;
                latest_request::keep(proxy, (subject, &planned), opened, head);
                (planned, unheard)
            }
            None => (PlannedRequest::as_it_came(&subject, &mut opened).await, None),
        };
        planned.stood_aside.into_iter().for_each(|why| account.stood_aside(why));
        account.event.done = planned.done.clone();
        announce_taken(&planned.taken, &opened.scope, account);
        let subject = (subject, planned, unheard);
        let mut measure = PendingExchange::begin(&proxy, opened, subject, account.event.at);
        account.event.estimate = measure.estimate().cloned();
        account.event.classic = measure.classic().cloned();
        let flight = measure.flight(account.event.at);
        flight.into_iter().for_each(|flight| proxy.telemetry.takes_off(flight));
        if account.event.estimate.is_none() {
            account.stood_aside(FailOpen::Panicked);
        }
        let beta = measure.beta();
        let edits = measure.edits();
        PlacedRequest { edits, beta, measure: Some(measure), writer, added, count: None }
    }

    /// A call that counts tokens belongs to no thread, because nothing grows from it. It is asked for
    /// what would be sent.
    async fn counted(
        &self,
        mut subject: PreparedRequest,
        who: &Identity,
        (account, reads): (&mut ExchangeRecorder, &ReadBudget),
    ) -> PlacedRequest {
        let proxy = account.proxy.clone();
        if proxy.config.count == ProviderCounting::Raw || self.is_signed() {
            return self.counted_alone(Arc::new(subject), account);
        }
        let is_shadow = subject.mode == Mode::Shadow;
        // A thread that was rewritten before is repeated, as its turns would be.
        subject.mode = if is_shadow { Mode::Observe } else { subject.mode };
        let asks = asked(&subject, who, (account, reads));
        let mut peeked = proxy.ledgers.peek(asks, &subject.conversation).await;
        let is_plain = matches!(&peeked, Lookup::Found(it) if it.known.decides_nothing());
        if is_shadow && is_plain {
            subject.mode = Mode::Shadow;
            let asks = asked(&subject, who, (account, reads));
            peeked = proxy.ledgers.peek(asks, &subject.conversation).await;
        }
        let known = match peeked {
            Lookup::Found(SessionPeek { session, known, store_missed }) => {
                if store_missed {
                    account.stood_aside(FailOpen::Store);
                }
                subject.held_out = is_held_out(&session, subject.mode, &proxy);
                account.event.session = Some(session);
                known
            }
            Lookup::None => RecordedDecisions::default(),
            Lookup::Late => {
                account.stood_aside(FailOpen::SessionLate);
                return self.counted_alone(Arc::new(subject), account);
            }
        };
        subject.added = self.added(&subject, account);
        let added = subject.added.clone();
        let subject = Arc::new(subject);
        let planned = PlannedRequest::replayed(&subject, Arc::new(known)).await;
        let beta = planned.beta(&subject);
        planned.stood_aside.into_iter().for_each(|why| account.stood_aside(why));
        account.event.done = planned.done;
        let count = self.count_fallback(subject, (planned.sent, planned.known), account);
        PlacedRequest { edits: planned.edits, beta, added, count, ..PlacedRequest::default() }
    }

    /// A request that goes as it came, and that nothing is kept of.
    fn counted_alone(
        &self,
        subject: Arc<PreparedRequest>,
        account: &ExchangeRecorder,
    ) -> PlacedRequest {
        let sent = plan::as_it_came(&subject.request());
        let count = self.count_fallback(subject, (sent, Arc::default()), account);
        PlacedRequest { count, ..PlacedRequest::default() }
    }

    /// What answers the request where it counts tokens and its upstream does not.
    fn count_fallback(
        &self,
        subject: Arc<PreparedRequest>,
        sent: (Overlay, Arc<RecordedDecisions>),
        account: &ExchangeRecorder,
    ) -> Option<CountFallback> {
        let wanted = account.proxy.upstream(account.event.upstream.as_deref())?.count_tokens;
        let is_count = subject.conversation.purpose == Purpose::Count;
        let how = (wanted, self.mode(account));
        is_count.then(|| CountFallback::new(subject, sent, self.target(), how))
    }

    /// The provider's id of the request, from its answer's headers; one that gives a credential away is none.
    pub(crate) fn provider_request_id(
        &self,
        answered: &HeaderMap,
        (proxy, upstream): (&Proxy, &Upstream),
    ) -> Option<Box<str>> {
        // Of other paths the headers are not kept, and nobody could tell a credential in it.
        let id = self.dialect.and_then(|_| provider_request_id(answered))?;
        let own = upstream.credential.as_ref().map(|(_, secret)| secret.0.as_bytes());
        let is_told = own.is_some_and(|own| gives_away(id, own))
            || proxy.credentials.are_told_by(id, &self.headers, self.target());
        (!is_told).then(|| id.into())
    }

    /// Whether the client signed the body (AWS): not a byte of it can change (`docs/protocols.md` 1.1).
    fn is_signed(&self) -> bool {
        let scheme = self.headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
        scheme.is_some_and(|scheme| scheme.starts_with(b"AWS4-"))
    }

    /// What is asked on our behalf, where the body can be changed as it is.
    fn added(&self, subject: &PreparedRequest, account: &ExchangeRecorder) -> Option<AddedOption> {
        let upstream = account.proxy.upstream(account.event.upstream.as_deref())?;
        let plainly = !self.headers.contains_key(CONTENT_ENCODING);
        if plainly { AddedOption::to(subject, &account.proxy, upstream) } else { None }
    }

    /// A request with all that is known of model and upstream; its session is not known yet.
    async fn subject(
        &self,
        analysis: RequestAnalysis,
        who: &Identity,
        (account, reads): (&mut ExchangeRecorder, &ReadBudget),
    ) -> PreparedRequest {
        let RequestAnalysis { plain: body, mut conversation, repeated_calls, memory } = analysis;
        let proxy = account.proxy.clone();
        conversation.purpose = who.purpose.unwrap_or(conversation.purpose);
        let tenant = account.event.tenant.clone();
        let mut model = self.model(&conversation, account);
        let name = conversation.model.as_deref().unwrap_or_default();
        let behind = account.event.upstream.clone().unwrap_or_default();
        let vouched = proxy.knows_apart(Some(&behind));
        let source =
            LessonSource { tenant: tenant.as_deref(), upstream: &behind, model: name, vouched };
        let lessons = proxy.ledgers.lessons();
        let taught = lessons.ready(reads, now()).await;
        let window = lessons.window(&source, model.window, now());
        model.known |= window != model.window;
        model.window = window;
        let event = &mut account.event;
        event.model.clone_from(&conversation.model);
        event.family = Some(model.family);
        event.window = Some(model.window);
        event.purpose = Some(conversation.purpose);
        event.repeated_calls = repeated_calls.filter(|_| conversation.purpose == Purpose::Turn);
        event.session.clone_from(&who.session);
        let mode = self.mode(account);
        let upstream = proxy.upstream(account.event.upstream.as_deref());
        let echo = upstream.map_or(EchoRule::Unwanted, |it| self.echo(&proxy, it, &source));
        if proxy.knows(&source, Lesson::ReasoningBound) {
            model.binding = Binding::Prefix;
        }
        let pupil = tenant.as_deref().filter(|_| !vouched);
        let counted = (&*behind, name, pupil);
        let learned = proxy.calibration.of(&proxy.ledgers, counted, model.family, reads);
        let (learned, counting) = learned.await;
        let id = account.event.id.clone();
        if taught != Recalled::Known || counting != Recalled::Known {
            account.stood_aside(FailOpen::Store);
        }
        PreparedRequest {
            id,
            tenant,
            vouched,
            upstream: behind,
            reserve: model.reserve(proxy.config.output_reserve),
            held_out: false,
            unknown: taught != Recalled::Known,
            signed: self.is_signed(),
            added: None,
            counted_input: None,
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

    /// What may be done to the request.
    fn mode(&self, account: &ExchangeRecorder) -> Mode {
        let proxy = &account.proxy;
        let upstream = proxy.upstream(account.event.upstream.as_deref());
        let limit = upstream.and_then(|upstream| upstream.mode).unwrap_or(proxy.config.mode);
        proxy.config.client_mode.mode(limit, headers::mode(&self.headers))
    }

    /// How long the request may wait for the store. Where it was answered before, the cuts that its prefix was
    /// sent with may be in the store alone: these are waited for longer than they would be missed, whatever the
    /// mode is by now. `open`: it can still be changed.
    fn read_budget(
        &self,
        conversation: &Conversation,
        open: bool,
        account: &ExchangeRecorder,
    ) -> ReadBudget {
        let limits = &account.proxy.config.limits;
        let reads = ReadBudget::new(Duration::from_millis(limits.load_ms));
        let goes_on = conversation.held.is_some()
            || conversation.parts().any(|part| part.role == Role::Assistant);
        if !goes_on || !open || self.is_signed() {
            return reads;
        }
        let first = Duration::from_millis(limits.first_load_ms);
        reads.with_first_load(first, account.proxy.shutdown.subscribe())
    }

    /// Whose memory the request may use, or why it has none: then nothing of it is kept, and nothing that was
    /// kept is used for it.
    fn tenant(&self, proxy: &Proxy) -> Result<Box<str>, FailOpen> {
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

    /// What the upstream does with reasoning that is sent back: as configured, as learned, as known.
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

    /// What is known about the model; one that is not known is named once in the log.
    fn model(&self, conversation: &Conversation, account: &ExchangeRecorder) -> Model {
        let proxy = &account.proxy;
        let name = conversation.model.as_deref().unwrap_or_default();
        let betas = self.headers.get_all("anthropic-beta").iter();
        let betas: Vec<&str> = betas.filter_map(|line| line.to_str().ok()).collect();
        let model = proxy.catalogue.model(name, &betas.join(","));
        if !model.known && !name.is_empty() {
            let behind = account.event.upstream.as_deref().unwrap_or_default();
            proxy.telemetry.unknown_model(behind, name);
        }
        match proxy.upstream(account.event.upstream.as_deref()) {
            Some(upstream) => model.behind(upstream.window, upstream.price),
            None => model,
        }
    }

    fn target(&self) -> &str {
        self.target.path_and_query().map_or("/", |target| target.as_str())
    }
}

/// Tells that words that waited are said with the request.
fn announce_taken(taken: &[Box<str>], scope: &Scope, account: &ExchangeRecorder) {
    for id in taken {
        let Scope { tenant, session } = scope.clone();
        let (id, request, at) = (id.clone(), Some(account.event.id.clone()), now());
        let news = MessageEvent {
            id,
            step: MessageStep::Taken,
            tenant,
            session,
            request,
            position: None,
            at,
        };
        account.proxy.telemetry.announce(news);
    }
}

/// Tells how long the request waited for the store, if at all.
fn waited(reads: &ReadBudget, account: &mut ExchangeRecorder) {
    let waited = reads.spent();
    if waited.is_zero() {
        return;
    }
    account.proxy.telemetry.session_loaded(waited);
    let is_long = reads.is_overspent();
    account.event.session_load_us = is_long.then_some(waited.as_micros() as u64);
}

/// By what a request is placed.
fn asked<'a>(
    subject: &'a PreparedRequest,
    who: &'a Identity,
    (account, reads): (&'a ExchangeRecorder, &'a ReadBudget),
) -> ledgers::SessionLookup<'a> {
    ledgers::SessionLookup {
        tenant: account.event.tenant.as_deref().unwrap_or(ANONYMOUS),
        session: who.session.as_deref(),
        lane: who.thread.as_deref(),
        request: &subject.id,
        shadow: subject.mode == Mode::Shadow,
        patience: Duration::from_millis(account.proxy.config.limits.settle_ms),
        reads,
    }
}

/// Whether a session is left untouched for comparison: a share of all, the same ones for ever.
fn is_held_out(session: &str, mode: Mode, proxy: &Proxy) -> bool {
    let drawn = (xxh3_64(session.as_bytes()) >> 11) as f64 / (1u64 << 53) as f64;
    mode == Mode::Active && drawn < proxy.config.policy.prune.hold_out
}
