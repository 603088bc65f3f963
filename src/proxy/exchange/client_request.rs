//! The client's request, read, placed and planned before it is forwarded.
//!
//! A compressed body is read from a decompressed copy. Changes nothing itself. What cannot be understood is
//! left out and reported: the request is then sent as it is.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use http::header::{AUTHORIZATION, CONTENT_ENCODING, HeaderValue};
use http::{HeaderMap, Uri, request};

use super::count_estimate::CountFallback;
use super::outbound::BodyChanges;
use super::{latest_request, request_origin};
use crate::clock::now;
use crate::config::{Mode, Tenants, Upstream};
use crate::context::policy::{ReasoningRule, draw};
use crate::context::{SessionId, TenantId, Turn, reasoning};
use crate::dialect::credentials::{Tenant, gives_away};
use crate::dialect::door::Door;
use crate::dialect::identity::{self, ANONYMOUS, Identity};
use crate::dialect::lesson::Lesson;
use crate::dialect::model_list;
use crate::dialect::models::{Model, ReasoningBinding};
use crate::dialect::paths::{self, Transport};
use crate::dialect::repair::RepairCause;
use crate::dialect::request_id::provider_request_id;
use crate::dialect::{Conversation, Dialect, Note, Purpose, Role};
use crate::proxy::compaction::context::CompactionContext;
use crate::proxy::compaction::summarize::SummaryJob;
use crate::proxy::http::headers;
use crate::proxy::http::memory::MemoryBudget;
use crate::proxy::learning::model_lists::ListRequest;
use crate::proxy::plan::added_option::AddedOption;
use crate::proxy::plan::body_reader::{BodyReader, ParsedBody};
use crate::proxy::plan::planned_request::{self, PlanOutcome, PlannedRequest};
use crate::proxy::plan::prepared_request::{ModelFacts, PreparedRequest, RequestBasis};
use crate::proxy::response::model_list::{LearnList, ModelListTap};
use crate::proxy::state::calibration::RecalledState;
use crate::proxy::state::exchange_recorder::ExchangeRecorder;
use crate::proxy::state::{Proxy, lesson_source};
use crate::proxy::turn::late::LateReply;
use crate::proxy::turn::pending::PendingExchange;
use crate::store::Scope;
use crate::store::ledgers::{self, OpenedSession};
use crate::store::lessons::LessonSource;
use crate::store::recall::{ReadBudget, RecallOutcome};
use crate::telemetry::{FailOpen, MessageEvent, MessageStep, RefusalOutcome};

/// A request as the client sent it, without its body.
pub(super) struct ClientRequest {
    target: Uri,
    /// Kept only if the path is one with a conversation.
    headers: HeaderMap,
    /// The protocol, as the path shows it.
    pub(crate) dialect: Option<Dialect>,
    /// The purpose, as the path shows it.
    pub(crate) purpose: Option<Purpose>,
    transport: Transport,
    /// The id of the reply that it reads, which was made for an earlier request.
    stored: Option<Box<str>>,
    /// The response may be a list of models.
    lists_models: bool,
    /// Its tenant, once it was looked for.
    tenant: OnceLock<Result<TenantId, FailOpen>>,
}

/// How a request is sent, as planned, and what is done with its response.
#[derive(Default)]
pub(super) struct RequestPlan {
    /// Makes a turn from the reply.
    pub(crate) pending: Option<Box<PendingExchange>>,
    /// The summary to write after the response.
    pub(super) writer: Option<Box<SummaryJob>>,
    /// The changes of its body.
    pub(super) changes: BodyChanges,
    /// Answers a token count if the upstream does not.
    pub(super) count: Option<Box<CountFallback>>,
}

impl ClientRequest {
    /// Reads method and path. The headers are kept for later.
    pub(super) fn new(head: &request::Parts) -> Self {
        let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
        let endpoint = paths::endpoint(&head.method, target);
        let lists_models = model_list::is_list(&head.method, target);
        let is_read = endpoint.is_some() || lists_models;
        Self {
            target: head.uri.clone(),
            headers: if is_read { head.headers.clone() } else { HeaderMap::new() },
            dialect: endpoint.as_ref().map(|endpoint| endpoint.dialect),
            purpose: endpoint.as_ref().filter(|it| it.stored.is_none()).map(|it| it.purpose),
            transport: endpoint.as_ref().map_or(Transport::Http, |endpoint| endpoint.transport),
            stored: endpoint.and_then(|endpoint| endpoint.stored).map(Into::into),
            lists_models,
            tenant: OnceLock::new(),
        }
    }

    /// The dialect in which the body is read, if the request has one.
    pub(super) fn body_dialect(&self) -> Option<Dialect> {
        self.dialect.filter(|_| self.transport != Transport::WebSocket && self.stored.is_none())
    }

    /// Whether requests and replies are frames, once the upgrade is accepted.
    pub(super) fn is_over_websocket(&self) -> bool {
        self.transport == Transport::WebSocket
    }

    /// The dialect in which the response is read.
    pub(super) fn response_dialect(&self) -> Option<Dialect> {
        self.dialect.filter(|_| self.transport == Transport::Http)
    }

    /// The reply that it reads, if it was made for an earlier request of the same tenant.
    pub(super) fn late_reply(&self, upstream: &Upstream, proxy: &Arc<Proxy>) -> Option<LateReply> {
        Some(LateReply {
            proxy: proxy.clone(),
            tenant: self.tenant(proxy).ok()?,
            dialect: self.dialect?,
            upstream: upstream.name.clone(),
            response: self.stored.clone()?,
        })
    }

    /// Reads the body, and plans the request. A panic in here only costs the plan. `head`: the request's, as it
    /// is sent.
    pub(super) async fn plan(
        &self,
        upstream: &Arc<Upstream>,
        body: &Bytes,
        head: &request::Parts,
        recorder: &mut ExchangeRecorder,
    ) -> RequestPlan {
        let planning = AssertUnwindSafe(self.read_and_plan(upstream, body, head, recorder));
        match planning.catch_unwind().await {
            Ok(plan) => plan.unwrap_or_default(),
            Err(_) => {
                recorder.record_fail_open(FailOpen::Panicked);
                RequestPlan::default()
            }
        }
    }

    /// The same, without the catch. `None` if the body was not read.
    async fn read_and_plan(
        &self,
        upstream: &Arc<Upstream>,
        body: &Bytes,
        head: &request::Parts,
        recorder: &mut ExchangeRecorder,
    ) -> Option<RequestPlan> {
        let dialect = self.body_dialect()?;
        let parsed = match self
            .reader(dialect, &recorder.proxy, &recorder.proxy.memory)
            .read(&self.headers, body)
            .await
        {
            Ok(parsed) => parsed,
            Err(why) => {
                recorder.record_fail_open(why);
                return None;
            }
        };
        let notes = &parsed.conversation.notes;
        recorder.record_notes(notes.iter().copied());
        if notes.contains(&Note::NotJson) {
            recorder.record_fail_open(FailOpen::BodyUnread);
            return None;
        }
        Some(self.place_and_plan(upstream, parsed, Some(head), recorder).await)
    }

    /// The reader for its body.
    pub(super) fn reader(
        &self,
        dialect: Dialect,
        proxy: &Proxy,
        memory: &Arc<MemoryBudget>,
    ) -> BodyReader {
        BodyReader {
            dialect,
            target: self.target().into(),
            limit: proxy.config.limits.body_bytes,
            memory: memory.clone(),
            tenant: self.tenant(proxy).ok(),
        }
    }

    /// Finds the request's place among the turns of its session, and plans it. `head`: as it is sent, if the
    /// request can still be changed.
    pub(super) async fn place_and_plan(
        &self,
        upstream: &Arc<Upstream>,
        parsed: ParsedBody,
        head: Option<&request::Parts>,
        recorder: &mut ExchangeRecorder,
    ) -> RequestPlan {
        // 5. Open.
        let identity = identity::identify(&self.headers, &parsed.conversation, self.transport);
        let tenant = self.tenant(&recorder.proxy);
        recorder.event.tenant = tenant.as_ref().ok().cloned();
        let reads = self.read_budget(&parsed.conversation, head.is_some(), recorder);
        let known_tenant = tenant.as_ref().ok();
        let basis = self.basis(upstream, known_tenant, parsed, &identity, recorder, &reads).await;
        let tenant = match tenant {
            Ok(tenant) => tenant,
            // Boxed like the next one, because few requests get here and the futures are large.
            Err(why) => return Box::pin(self.without_tenant(basis, why, recorder)).await,
        };
        if basis.parsed.conversation.purpose == Purpose::Count {
            let placed = self.plan_count(basis, &tenant, &identity, recorder, &reads);
            let placed = Box::pin(placed).await;
            record_store_wait(&reads, recorder);
            return placed;
        }
        let proxy = recorder.proxy.clone();
        let head = head.filter(|_| !self.is_signed());
        let lookup = self.session_lookup(&basis, &tenant, &identity, recorder, &reads);
        let opened = proxy.ledgers.open(lookup, &basis.parsed.conversation).await;
        record_store_wait(&reads, recorder);
        let Some(mut opened) = opened else {
            // It is sent unchanged, and not stored as a turn; the next request will find the session.
            recorder.record_fail_open(FailOpen::SessionLate);
            Box::pin(estimate_alone(&Arc::new(basis.alone()), recorder)).await;
            return RequestPlan::default();
        };
        request_origin::set(&mut opened, &self.headers, &basis.parsed, &proxy);
        record_session(&opened, recorder);
        let held_out = is_held_out(&opened.scope.session, basis.mode, &proxy);
        let prepared = basis.in_session(&mut opened, held_out, |prepared, opened| match head {
            Some(_) => self.added_options(prepared, opened.placed.parent.as_deref(), &proxy),
            None => Vec::new(),
        });
        let (added, prepared) = (prepared.added.clone(), Arc::new(prepared));
        // 6. Plan. 7. Save.
        let (mut writer, mut summary_wait) = (None, None);
        let outcome = match head {
            Some(head) => {
                let mut outcome =
                    planned_request::plan(&proxy, prepared.clone(), &mut opened).await;
                let (proxy, prepared, opened) = (&proxy, &prepared, &mut opened);
                let planned = &mut outcome.planned;
                let mut compaction = CompactionContext::new(proxy, prepared, opened, planned, head);
                writer = compaction.compact_if_due().await.map(Box::new);
                summary_wait = compaction.waited;
                latest_request::keep(proxy, prepared, planned, opened, head);
                outcome
            }
            None => Box::pin(planned_request::planned_original(&prepared, &mut opened)).await,
        };
        record_plan(&outcome, recorder);
        announce_dequeued(&outcome.dequeued, &opened.scope, recorder);
        let PlanOutcome { planned, undelivered, .. } = outcome;
        let mut pending = Box::new(PendingExchange::begin(
            &proxy,
            opened,
            prepared,
            planned,
            undelivered,
            recorder.at,
        ));
        summary_wait.into_iter().for_each(|waited| pending.add_summary_wait(waited, recorder));
        recorder.event.estimate = pending.estimate().cloned();
        recorder.event.classic = pending.classic().cloned();
        let shown = pending.open_exchange(recorder.at);
        shown.into_iter().for_each(|it| proxy.telemetry.exchange_opened(it));
        let (rewrite, may_repair) = (pending.rewrite(), pending.may_repair());
        let changes = BodyChanges { rewrite, added, may_repair };
        RequestPlan { pending: Some(pending), writer, changes, count: None }
    }

    /// Handles a request whose tenant is unknown: it gets no place in a session, and its estimate uses no earlier
    /// turn.
    async fn without_tenant(
        &self,
        basis: RequestBasis,
        why: FailOpen,
        recorder: &mut ExchangeRecorder,
    ) -> RequestPlan {
        recorder.record_fail_open(why);
        let prepared = Arc::new(basis.alone());
        estimate_alone(&prepared, recorder).await;
        self.count_original(prepared)
    }

    /// The provider's id of the request, from the response's headers; `None` if it reveals a credential.
    pub(super) fn provider_request_id(
        &self,
        answered: &HeaderMap,
        proxy: &Proxy,
        upstream: &Upstream,
    ) -> Option<Box<str>> {
        // For other paths the headers are not kept, so a credential in the id could not be recognised.
        let id = self.dialect.and_then(|_| provider_request_id(answered))?;
        let own = upstream.credential.as_ref().map(|(_, secret)| secret.0.as_bytes());
        let is_exposed = own.is_some_and(|own| gives_away(id, own))
            || proxy.credentials.appear_in(id, &self.headers, self.target());
        (!is_exposed).then(|| id.into())
    }

    /// Whether the client signed the body (AWS), so that no byte of it may change (`docs/protocols.md` 1.1).
    pub(super) fn is_signed(&self) -> bool {
        let scheme = self.headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
        scheme.is_some_and(|scheme| scheme.starts_with(b"AWS4-"))
    }

    /// What is requested on the client's behalf, if the body is not compressed. `parent`: the turn that it
    /// continues.
    pub(super) fn added_options(
        &self,
        prepared: &PreparedRequest,
        parent: Option<&Turn>,
        proxy: &Proxy,
    ) -> Vec<AddedOption> {
        match self.headers.contains_key(CONTENT_ENCODING) {
            true => Vec::new(),
            false => AddedOption::choose(prepared, proxy, parent),
        }
    }

    /// A request with everything that is known about its model and upstream, but not yet about its session.
    async fn basis(
        &self,
        upstream: &Arc<Upstream>,
        tenant: Option<&TenantId>,
        mut parsed: ParsedBody,
        identity: &Identity,
        recorder: &mut ExchangeRecorder,
        reads: &ReadBudget,
    ) -> RequestBasis {
        let conversation = &mut parsed.conversation;
        conversation.purpose = identity.purpose.unwrap_or(conversation.purpose);
        conversation.hints.clone_from(&identity.hints);
        parsed.repeated_calls =
            parsed.repeated_calls.filter(|_| conversation.purpose == Purpose::Turn);
        let facts = self.model_facts(upstream, tenant, conversation, recorder, reads).await;
        recorder.event.model.clone_from(&conversation.model);
        recorder.event.family = Some(facts.model.family);
        recorder.event.window = Some(facts.model.window);
        recorder.event.purpose = Some(conversation.purpose);
        recorder.event.repeated_calls = parsed.repeated_calls;
        recorder.event.hints.clone_from(&identity.hints);
        recorder.event.session.clone_from(&identity.session);
        RequestBasis {
            exchange: recorder.id.clone(),
            tenant: tenant.cloned(),
            upstream: upstream.clone(),
            mode: self.mode(upstream, &recorder.proxy),
            signed: self.is_signed(),
            now: now(),
            parsed,
            facts,
        }
    }

    /// What is known about the request's model behind its upstream. A model whose window is unknown is logged once.
    async fn model_facts(
        &self,
        upstream: &Upstream,
        tenant: Option<&TenantId>,
        conversation: &Conversation,
        recorder: &mut ExchangeRecorder,
        reads: &ReadBudget,
    ) -> ModelFacts {
        let proxy = recorder.proxy.clone();
        let name = conversation.model.as_deref().unwrap_or_default();
        let mut model = self.model(name, upstream, &proxy);
        let lesson_model = conversation.model_and_backend();
        let source = lesson_source(tenant, upstream, &lesson_model, model.door);
        let lessons = proxy.ledgers.lessons();
        let taught = lessons.ready(reads, now()).await;
        // A list is believed before the catalogue; a refusal corrects both, and what is configured.
        let listed = lessons.listed_window(&LessonSource { model: name, ..source }, now());
        let listed = listed.filter(|_| !model.is_configured);
        model.known |= listed.is_some();
        model.window = listed.unwrap_or(model.window);
        let window = lessons.window(&source, model.window, now());
        model.known |= window != model.window;
        if !model.known && !name.is_empty() {
            proxy.telemetry.unknown_model(&upstream.name, name);
        }
        let max_output = lessons.max_output(&source, now());
        model.window = window;
        let reasoning_rule = self.reasoning_rule(&proxy, upstream, &source, name);
        if proxy.knows(&source, Lesson::ReasoningBound) {
            model.binding = ReasoningBinding::Prefix;
        }
        // Credentials that the upstream does not check could be made up, so each then has a state of its own.
        let for_tenant = tenant.filter(|_| !source.vouched);
        let (calibration, ledgers) = (&proxy.calibration, &proxy.ledgers);
        let recalling =
            calibration.recall(ledgers, &upstream.name, name, for_tenant, model.family, reads);
        let RecalledState { learned, outcome } = recalling.await;
        if taught != RecallOutcome::Known || outcome != RecallOutcome::Known {
            recorder.record_fail_open(FailOpen::Store);
        }
        ModelFacts {
            learned,
            reasoning_rule,
            compaction_refused: proxy.knows(&source, Lesson::CompactionRefused),
            policy: proxy.policy(upstream, name),
            client_compacts: request_origin::compacts(&self.headers, &proxy),
            max_output,
            reserve: model.reserve(proxy.config.output_reserve),
            lesson_model: lesson_model.into(),
            lessons_missed: taught != RecallOutcome::Known,
            model,
        }
    }

    /// The mode of the request.
    fn mode(&self, upstream: &Upstream, proxy: &Proxy) -> Mode {
        if paths::is_metered_only(self.path()) {
            return Mode::Observe;
        }
        let limit = upstream.mode.unwrap_or(proxy.config.mode);
        proxy.config.client_mode.mode(limit, headers::mode(&self.headers))
    }

    /// How long the request may wait for the store. If it continues an answered request, the cuts in its
    /// prefix may only be in the store. Without them the cache would break, so the wait is longer, whatever
    /// the mode is now. `can_change`: the request can still be changed.
    fn read_budget(
        &self,
        conversation: &Conversation,
        can_change: bool,
        recorder: &ExchangeRecorder,
    ) -> ReadBudget {
        let limits = &recorder.proxy.config.limits;
        let reads = ReadBudget::new(Duration::from_millis(limits.store_ms));
        let goes_on = conversation.held.is_some()
            || conversation.parts().any(|part| part.role == Role::Assistant);
        if !goes_on || !can_change || self.is_signed() {
            return reads;
        }
        let first = Duration::from_millis(limits.first_load_ms);
        reads.with_first_load(first, recorder.proxy.shutdown.subscribe())
    }

    /// The tenant of the request; an error if there is none. Then nothing of it is stored, and nothing stored
    /// is used for it.
    pub(super) fn tenant(&self, proxy: &Proxy) -> Result<TenantId, FailOpen> {
        self.tenant.get_or_init(|| self.find_tenant(proxy)).clone()
    }

    fn find_tenant(&self, proxy: &Proxy) -> Result<TenantId, FailOpen> {
        if proxy.config.tenants == Tenants::One {
            return Ok(ANONYMOUS.into());
        }
        match proxy.credentials.tenant(&proxy.tenant_key, &self.headers, self.target()) {
            Tenant::Known(tenant) => Ok(tenant),
            Tenant::Unknown => Err(FailOpen::UnknownCredential),
            Tenant::Everyone if proxy.client_access.is_open() => Err(FailOpen::NoCredential),
            Tenant::Everyone => Ok(ANONYMOUS.into()),
        }
    }

    /// The lookup of the request's session.
    pub(super) fn session_lookup<'a>(
        &self,
        basis: &'a RequestBasis,
        tenant: &'a TenantId,
        identity: &'a Identity,
        recorder: &'a ExchangeRecorder,
        reads: &'a ReadBudget,
    ) -> ledgers::SessionLookup<'a> {
        ledgers::SessionLookup {
            tenant,
            session: identity.session.as_ref(),
            client_thread: identity.thread.as_deref(),
            exchange: &basis.exchange,
            decisions: basis.mode.decisions(),
            timeout: Duration::from_millis(recorder.proxy.config.limits.store_ms),
            reads,
            source: request_origin::source(&self.headers, &recorder.connection),
        }
    }

    /// The upstream's rule for reasoning that is sent back: configured, else learned, else known.
    fn reasoning_rule(
        &self,
        proxy: &Proxy,
        upstream: &Upstream,
        source: &LessonSource<'_>,
        model: &str,
    ) -> ReasoningRule {
        if let Some(rule) = upstream.reasoning_echo {
            return rule;
        }
        if proxy.knows(source, Lesson::ReasoningRefused) {
            ReasoningRule::Unwanted
        } else if proxy.knows(source, Lesson::ReasoningDemanded) {
            ReasoningRule::Demanded
        } else {
            let dialect = self.dialect.unwrap_or(Dialect::OpenaiChat);
            reasoning::rule(dialect, upstream.base.host().unwrap_or_default(), model)
        }
    }

    /// What the catalogue and the configuration say about the model behind this upstream.
    fn model(&self, name: &str, upstream: &Upstream, proxy: &Proxy) -> Model {
        let betas = self.headers.get_all("anthropic-beta").iter();
        let betas: Vec<&str> = betas.filter_map(|line| line.to_str().ok()).collect();
        let model = proxy.catalogue.model(name, &betas.join(","));
        model.through(self.door(), name).behind(upstream.window, upstream.price)
    }

    fn door(&self) -> Door {
        Door::from_request(self.path(), &self.headers)
    }

    /// What learns from the response, if that may be a list of models and the tenant is known.
    pub(super) fn model_list_tap(
        &self,
        upstream: &Arc<Upstream>,
        answered: &HeaderMap,
        recorder: &ExchangeRecorder,
    ) -> Option<Box<ModelListTap>> {
        let proxy = recorder.proxy.clone();
        let tenant = self.lists_models.then(|| self.tenant(&proxy))?.ok()?;
        let (upstream, door) = (upstream.clone(), self.door());
        let asked = ListRequest { tenant, upstream, door, target: self.target().into() };
        let learn: LearnList = Box::new(move |body| Box::pin(proxy.learn_list(asked, body)));
        ModelListTap::new(answered, &recorder.proxy.memory, learn).map(Box::new)
    }

    /// Its path, without the query.
    pub(super) fn path(&self) -> &str {
        self.target.path()
    }

    pub(super) fn target(&self) -> &str {
        self.target.path_and_query().map_or("/", |target| target.as_str())
    }
}

/// Records the session that a request belongs to, and how reading it went.
fn record_session(opened: &OpenedSession, recorder: &mut ExchangeRecorder) {
    recorder.event.session = Some(opened.scope.session.clone());
    recorder.event.thread = Some(opened.placed.position.thread.clone());
    recorder.event.found_by = opened.origin.found_by;
    recorder.event.agent.clone_from(&opened.origin.agent);
    if opened.unread {
        recorder.record_fail_open(FailOpen::FactUnread);
    }
    if opened.store_missed {
        recorder.record_fail_open(FailOpen::Store);
    }
}

/// Records the estimate of a request by itself.
async fn estimate_alone(prepared: &Arc<PreparedRequest>, recorder: &mut ExchangeRecorder) {
    match PlannedRequest::alone(prepared).await {
        Ok(estimate) => recorder.event.estimate = Some(estimate),
        Err(why) => recorder.record_fail_open(why),
    }
}

/// Records what is done to a request.
fn record_plan(outcome: &PlanOutcome, recorder: &mut ExchangeRecorder) {
    outcome.fail_open.into_iter().for_each(|why| recorder.record_fail_open(why));
    recorder.event.done = outcome.planned.done.clone();
    if outcome.is_spared {
        recorder.report_refusal(&[RepairCause::MaxTokens], RefusalOutcome::Spared);
    }
}

/// Announces that queued messages are sent with the request.
fn announce_dequeued(dequeued: &[Box<str>], scope: &Scope, recorder: &ExchangeRecorder) {
    for id in dequeued {
        let Scope { tenant, session } = scope.clone();
        let (id, exchange, at) = (id.clone(), Some(recorder.id.clone()), now());
        let (step, position) = (MessageStep::Dequeued, None);
        let event = MessageEvent { id, step, tenant, session, exchange, position, at };
        recorder.proxy.telemetry.announce(event);
    }
}

/// Records how long the request waited for the store, if it did.
fn record_store_wait(reads: &ReadBudget, recorder: &mut ExchangeRecorder) {
    let waited = reads.spent();
    if waited.is_zero() {
        return;
    }
    recorder.proxy.telemetry.session_loaded(waited);
    let is_long = reads.is_overspent();
    recorder.event.session_load_us = is_long.then_some(waited.as_micros() as u64);
}

/// Whether a session is held out for comparison: a fixed share of all sessions, chosen by hash.
pub(super) fn is_held_out(session: &SessionId, mode: Mode, proxy: &Proxy) -> bool {
    mode == Mode::Active && draw(session.as_str()) < proxy.config.policy.prune.hold_out
}

#[cfg(test)]
mod tests;
