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
use crate::dialect::request_id::provider_request_id;
use crate::dialect::{Conversation, Dialect, Note, Purpose, Role};
use crate::proxy::compaction::context::CompactionContext;
use crate::proxy::compaction::summarize::SummaryJob;
use crate::proxy::http::headers;
use crate::proxy::http::memory::MemoryBudget;
use crate::proxy::learning::model_lists::ListRequest;
use crate::proxy::plan::added_option::AddedOption;
use crate::proxy::plan::body_reader::{BodyReader, ParsedBody};
use crate::proxy::plan::planned_request::{self, PlannedRequest};
use crate::proxy::plan::prepared_request::PreparedRequest;
use crate::proxy::response::model_list::{LearnList, ModelListTap};
use crate::proxy::state::calibration::RecalledState;
use crate::proxy::state::exchange_recorder::ExchangeRecorder;
use crate::proxy::state::request_info::RequestInfo;
use crate::proxy::state::{Proxy, lesson_source};
use crate::proxy::turn::late::LateReply;
use crate::proxy::turn::pending::PendingExchange;
use crate::store::ledgers;
use crate::store::lessons::LessonSource;
use crate::store::recall::{ReadBudget, RecallOutcome};
use crate::telemetry::FailOpen;

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
    pub(super) fn new(head: &request::Parts) -> Self {
        let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
        let endpoint = paths::endpoint(&head.method, target);
        let lists_models = model_list::is_list(&head.method, target);
        let is_read = endpoint.is_some() || lists_models;
        Self {
            target: head.uri.clone(),
            headers: if is_read { head.headers.clone() } else { HeaderMap::new() },
            dialect: endpoint.as_ref().map(|endpoint| endpoint.dialect),
            purpose: match &endpoint {
                Some(endpoint) if endpoint.stored.is_none() => Some(endpoint.purpose),
                _ => None,
            },
            transport: endpoint.as_ref().map_or(Transport::Http, |endpoint| endpoint.transport),
            stored: endpoint.and_then(|endpoint| endpoint.stored).map(Into::into),
            lists_models,
            tenant: OnceLock::new(),
        }
    }

    pub(super) fn body_dialect(&self) -> Option<Dialect> {
        // A request that reads a stored reply has no body, and frames have their own.
        if self.transport == Transport::WebSocket || self.stored.is_some() {
            return None;
        }
        self.dialect
    }

    pub(super) fn is_over_websocket(&self) -> bool {
        self.transport == Transport::WebSocket
    }

    pub(super) fn response_dialect(&self) -> Option<Dialect> {
        if self.transport == Transport::Http { self.dialect } else { None }
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

    /// Reads the body, and plans the request. `head`: the request's, as it is sent.
    pub(super) async fn plan(
        &self,
        upstream: &Arc<Upstream>,
        body: &Bytes,
        head: &request::Parts,
        recorder: &mut ExchangeRecorder,
    ) -> RequestPlan {
        let planning = AssertUnwindSafe(self.read_and_plan(upstream, body, head, recorder));
        // A panic in here only costs the plan.
        match planning.catch_unwind().await {
            Ok(plan) => plan.unwrap_or_default(),
            Err(_) => {
                recorder.record_fail_open(FailOpen::Panicked);
                RequestPlan::default()
            }
        }
    }

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
        let reads = self.read_budget(&parsed.conversation, head.is_some(), recorder);
        let known_tenant = tenant.as_ref().ok();
        let mut prepared =
            self.prepare(upstream, known_tenant, parsed, &identity, recorder, &reads).await;
        let tenant = match tenant {
            Ok(tenant) => tenant,
            // Boxed like the next one, because few requests get here and the futures are large.
            Err(why) => return Box::pin(self.without_tenant(prepared, why, recorder)).await,
        };
        if prepared.info.purpose == Purpose::Count {
            let placed = self.plan_count(prepared, &tenant, &identity, recorder, &reads);
            let placed = Box::pin(placed).await;
            recorder.record_store_wait(&reads);
            return placed;
        }
        let proxy = recorder.proxy.clone();
        let head = if self.is_signed() { None } else { head };
        let lookup = self.session_lookup(&prepared, &tenant, &identity, recorder, &reads);
        let opened = proxy.ledgers.open(lookup, &prepared.conversation).await;
        recorder.record_store_wait(&reads);
        let Some(mut opened) = opened else {
            // It is sent unchanged, and not stored as a turn; the next request will find the session.
            recorder.record_fail_open(FailOpen::SessionLate);
            Box::pin(estimate_alone(&Arc::new(prepared), recorder)).await;
            return RequestPlan::default();
        };
        request_origin::set(&mut opened, &self.headers, &prepared, &proxy);
        recorder.record_place(&opened);
        let held_out = is_held_out(&opened.scope.session, prepared.mode, &proxy);
        prepared.place(&mut opened, held_out);
        if head.is_some() {
            prepared.added = self.added_options(&prepared, opened.placed.parent.as_deref(), &proxy);
        }
        let added = prepared.added.clone();
        let prepared = Arc::new(prepared);
        // 6. Plan. 7. Save.
        let mut writer = None;
        let mut summary_wait = None;
        let (planned, undelivered) = match head {
            Some(head) => {
                let (mut planned, undelivered) =
                    planned_request::plan(&prepared, &mut opened, recorder).await;
                let mut compaction =
                    CompactionContext::new(&proxy, &prepared, &mut opened, &mut planned, head);
                writer = compaction.compact_if_due().await.map(Box::new);
                summary_wait = compaction.waited;
                latest_request::keep(&proxy, &prepared, &planned, &opened, head);
                (planned, undelivered)
            }
            None => {
                let original = planned_request::planned_original(&prepared, &mut opened, recorder);
                (Box::pin(original).await, None)
            }
        };
        let at = recorder.at;
        let pending = PendingExchange::begin(&proxy, opened, prepared, planned, undelivered, at);
        let mut pending = Box::new(pending);
        if let Some(wait) = summary_wait {
            pending.add_summary_wait(wait, recorder);
        }
        pending.record_plan(recorder);
        if let Some(open_exchange) = pending.open_exchange(at) {
            proxy.telemetry.exchange_opened(open_exchange);
        }
        let may_repair = pending.may_repair();
        let changes = BodyChanges { rewrite: pending.rewrite(), added, may_repair };
        RequestPlan { pending: Some(pending), writer, changes, count: None }
    }

    async fn without_tenant(
        &self,
        prepared: PreparedRequest,
        why: FailOpen,
        recorder: &mut ExchangeRecorder,
    ) -> RequestPlan {
        // Without a tenant it gets no place in a session, and its estimate uses no earlier turn.
        recorder.record_fail_open(why);
        let prepared = Arc::new(prepared);
        estimate_alone(&prepared, recorder).await;
        self.count_original(prepared)
    }

    pub(super) fn provider_request_id(
        &self,
        answered: &HeaderMap,
        proxy: &Proxy,
        upstream: &Upstream,
    ) -> Option<Box<str>> {
        // For other paths the headers are not kept, so a credential in the id could not be recognised.
        let id = self.dialect.and_then(|_| provider_request_id(answered))?;
        // A gateway may make its id of the credential.
        if let Some((_, secret)) = &upstream.credential
            && gives_away(id, secret.0.as_bytes())
        {
            return None;
        }
        if proxy.credentials.appear_in(id, &self.headers, self.target()) {
            return None;
        }
        Some(id.into())
    }

    /// Whether the client signed the body (AWS), so that no byte of it may change (`docs/protocols.md` 1.1).
    pub(super) fn is_signed(&self) -> bool {
        let scheme = self.headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
        scheme.is_some_and(|scheme| scheme.starts_with(b"AWS4-"))
    }

    pub(super) fn added_options(
        &self,
        prepared: &PreparedRequest,
        parent: Option<&Turn>,
        proxy: &Proxy,
    ) -> Vec<AddedOption> {
        // Into a compressed body nothing can be inserted.
        match self.headers.contains_key(CONTENT_ENCODING) {
            true => Vec::new(),
            false => AddedOption::choose(prepared, proxy, parent),
        }
    }

    async fn prepare(
        &self,
        upstream: &Arc<Upstream>,
        tenant: Option<&TenantId>,
        mut parsed: ParsedBody,
        identity: &Identity,
        recorder: &mut ExchangeRecorder,
        reads: &ReadBudget,
    ) -> PreparedRequest {
        let conversation = &mut parsed.conversation;
        conversation.purpose = identity.purpose.unwrap_or(conversation.purpose);
        let info = self.request_info(upstream, tenant, &parsed, identity, recorder, reads).await;
        recorder.record_request(&info);
        recorder.record_session(identity.session.as_ref());
        let mode = self.mode(upstream, &recorder.proxy);
        PreparedRequest::new(info, parsed, mode, self.is_signed())
    }

    async fn request_info(
        &self,
        upstream: &Arc<Upstream>,
        tenant: Option<&TenantId>,
        parsed: &ParsedBody,
        identity: &Identity,
        recorder: &mut ExchangeRecorder,
        reads: &ReadBudget,
    ) -> RequestInfo {
        let proxy = recorder.proxy.clone();
        let conversation = &parsed.conversation;
        let name = conversation.model.as_deref().unwrap_or_default();
        let mut model = self.model(name, upstream, &proxy);
        let lesson_model = conversation.model_and_backend();
        let source = lesson_source(tenant, upstream, &lesson_model, model.door);
        let lessons = proxy.ledgers.lessons();
        let taught = lessons.ready(reads, now()).await;
        // A list is believed before the catalogue; a refusal corrects both, and what is configured.
        let listed = lessons.listed_window(&LessonSource { model: name, ..source }, now());
        if let Some(window) = listed
            && !model.is_configured
        {
            model.known = true;
            model.window = window;
        }
        let window = lessons.window(&source, model.window, now());
        model.known |= window != model.window;
        if !model.known && !name.is_empty() {
            proxy.telemetry.unknown_model(&upstream.name, name);
        }
        model.window = window;
        let reasoning_rule = self.reasoning_rule(&proxy, upstream, &source, name);
        if proxy.knows(&source, Lesson::ReasoningBound) {
            model.binding = ReasoningBinding::Prefix;
        }
        // Credentials that the upstream does not check could be made up, so each then has a state of its own.
        let own_tenant = if source.vouched { None } else { tenant };
        let ledgers = &proxy.ledgers;
        let RecalledState { learned, outcome } = proxy
            .calibration
            .recall(ledgers, &upstream.name, name, own_tenant, model.family, reads)
            .await;
        if taught != RecallOutcome::Known || outcome != RecallOutcome::Known {
            recorder.record_fail_open(FailOpen::Store);
        }
        RequestInfo {
            exchange: recorder.id.clone(),
            tenant: tenant.cloned(),
            upstream: upstream.clone(),
            requested_model: conversation.model.clone(),
            learned,
            reasoning_rule,
            compaction_refused: proxy.knows(&source, Lesson::CompactionRefused),
            learned_max_output: lessons.max_output(&source, now()),
            policy: proxy.policy(upstream, name),
            client_compacts: request_origin::compacts(&self.headers, &proxy),
            purpose: conversation.purpose,
            hints: identity.hints.clone(),
            max_output: conversation.max_output,
            reserve: model.reserve(proxy.config.output_reserve),
            is_held: conversation.held.is_some(),
            repeated_calls: match conversation.purpose {
                Purpose::Turn => parsed.repeated_calls,
                _ => None,
            },
            lessons_missed: taught != RecallOutcome::Known,
            lesson_model: lesson_model.into(),
            model,
        }
    }

    fn mode(&self, upstream: &Upstream, proxy: &Proxy) -> Mode {
        // Such a path is only metered, whatever is configured.
        if paths::is_metered_only(self.path()) {
            return Mode::Observe;
        }
        let limit = upstream.mode.unwrap_or(proxy.config.mode);
        proxy.config.client_mode.mode(limit, headers::mode(&self.headers))
    }

    /// How long the request may wait for the store. `can_change`: the request can still be changed.
    fn read_budget(
        &self,
        conversation: &Conversation,
        can_change: bool,
        recorder: &ExchangeRecorder,
    ) -> ReadBudget {
        let limits = &recorder.proxy.config.limits;
        let reads = ReadBudget::new(Duration::from_millis(limits.store_ms));
        let is_continued = conversation.held.is_some()
            || conversation.parts().any(|part| part.role == Role::Assistant);
        if !is_continued || !can_change || self.is_signed() {
            return reads;
        }
        // The cuts in its prefix may only be in the store. Without them the cache would break, so the wait is
        // longer, whatever the mode is now.
        let first_load = Duration::from_millis(limits.first_load_ms);
        reads.with_first_load(first_load, recorder.proxy.shutdown.subscribe())
    }

    pub(super) fn tenant(&self, proxy: &Proxy) -> Result<TenantId, FailOpen> {
        // An error: nothing of it is stored, and nothing stored is used for it.
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

    pub(super) fn session_lookup<'a>(
        &self,
        prepared: &'a PreparedRequest,
        tenant: &'a TenantId,
        identity: &'a Identity,
        recorder: &'a ExchangeRecorder,
        reads: &'a ReadBudget,
    ) -> ledgers::SessionLookup<'a> {
        ledgers::SessionLookup {
            tenant,
            session: identity.session.as_ref(),
            client_thread: identity.thread.as_deref(),
            exchange: &prepared.info.exchange,
            decisions: prepared.mode.decisions(),
            timeout: Duration::from_millis(recorder.proxy.config.limits.store_ms),
            reads,
            source: request_origin::source(&self.headers, &recorder.connection),
        }
    }

    fn reasoning_rule(
        &self,
        proxy: &Proxy,
        upstream: &Upstream,
        source: &LessonSource<'_>,
        model: &str,
    ) -> ReasoningRule {
        // What is configured counts most, then what was learned, then what is known of the host.
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
        if !self.lists_models {
            return None;
        }
        let request = ListRequest {
            tenant: self.tenant(&proxy).ok()?,
            upstream: upstream.clone(),
            door: self.door(),
            target: self.target().into(),
        };
        let learn: LearnList = Box::new(move |body| Box::pin(proxy.learn_list(request, body)));
        ModelListTap::new(answered, &recorder.proxy.memory, learn).map(Box::new)
    }

    pub(super) fn path(&self) -> &str {
        self.target.path()
    }

    pub(super) fn target(&self) -> &str {
        self.target.path_and_query().map_or("/", |target| target.as_str())
    }
}

async fn estimate_alone(prepared: &Arc<PreparedRequest>, recorder: &mut ExchangeRecorder) {
    match PlannedRequest::alone(prepared).await {
        Ok(estimate) => recorder.record_estimate(estimate),
        Err(why) => recorder.record_fail_open(why),
    }
}

pub(super) fn is_held_out(session: &SessionId, mode: Mode, proxy: &Proxy) -> bool {
    // A fixed share of all sessions, chosen by hash, for comparison.
    mode == Mode::Active && draw(session.as_str()) < proxy.config.policy.prune.hold_out
}

#[cfg(test)]
mod tests;
