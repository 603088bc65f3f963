//! Reads, places and plans the request of an exchange before it is forwarded.
//!
//! A compressed body is read from a decompressed copy. Changes nothing itself. What cannot be understood is
//! left out and reported: the request is then sent as it is.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt;
use http::request;

use super::client_request::ClientRequest;
use super::live_exchange::{LiveExchange, OwnResponse, Planned, Received};
use super::{latest_request, request_origin};
use crate::clock::now;
use crate::config::{Mode, ServerLimits, Upstream};
use crate::context::caps::{Spender, WARNING};
use crate::context::policy::draw;
use crate::context::{SessionId, TenantId};
use crate::dialect::identity::{self, Identity};
use crate::dialect::lesson::Lesson;
use crate::dialect::models::ReasoningBinding;
use crate::dialect::{Conversation, Note, Purpose, Role};
use crate::proxy::http::answer::ProxyError;
use crate::proxy::http::arriving::ClientBody;
use crate::proxy::http::body::{self, CollectOutcome, OutgoingBody};
use crate::proxy::http::headers;
use crate::proxy::plan::parsed_body::ParsedBody;
use crate::proxy::plan::placed_request::PlacedRequest;
use crate::proxy::plan::planned_request::PlannedRequest;
use crate::proxy::plan::prepared_request::PreparedRequest;
use crate::proxy::state::calibration::RecalledState;
use crate::proxy::state::exchange_recorder::ExchangeRecorder;
use crate::proxy::state::request_info::RequestInfo;
use crate::proxy::state::{Proxy, lesson_source};
use crate::proxy::turn::counting;
use crate::store::ledgers::{self, OpenedSession};
use crate::store::lessons::LessonSource;
use crate::store::recall::{ReadBudget, RecallOutcome};
use crate::telemetry::{FailOpen, StepKind, micros};

impl LiveExchange<Received> {
    /// Makes the request ready to be sent. `head`: as it is sent.
    ///
    /// # Errors
    /// The response to a client whose body did not arrive.
    pub(super) async fn plan(
        mut self,
        head: request::Parts,
        body: ClientBody,
    ) -> Result<(LiveExchange<Planned>, request::Parts, OutgoingBody), OwnResponse> {
        // 3. Body.
        let body = permitted(body, &self.upstream);
        let collected = match self.client.body_dialect() {
            Some(_) => {
                let proxy = &self.recorder.proxy;
                let ServerLimits { body_bytes, body_s, .. } = proxy.config.limits;
                let timeout = Duration::from_secs(body_s);
                body::collect(body, body_bytes, timeout, &proxy.memory).await
            }
            // What is not understood streams through, whatever its size.
            None => CollectOutcome::Unread(OutgoingBody::request(body)),
        };
        let body_complete_at = Instant::now();
        let mut planned = Planned::default();
        let recorder = &mut self.recorder;
        recorder.record_step(StepKind::Read, recorder.began);
        let (head, body) = match collected {
            CollectOutcome::Broken => return Err(self.refuse(&ProxyError::RequestBroken)),
            CollectOutcome::TimedOut => return Err(self.refuse(&ProxyError::BodyTooSlow)),
            CollectOutcome::Unread(body) => (head, recorder.count_upload(body)),
            CollectOutcome::TooLarge(body) => {
                recorder.event.add_fail_open(FailOpen::BodyTooLarge);
                (head, recorder.count_upload(body))
            }
            CollectOutcome::NoMemory(body) => {
                recorder.event.add_fail_open(FailOpen::MemoryBudget);
                (head, recorder.count_upload(body))
            }
            CollectOutcome::Whole { bytes, trailers } => {
                recorder.event.timing.request_bytes = bytes.len() as u64;
                let head = Arc::new(head);
                // 4. Read. 5. Open the ledger. 6. Plan. 7. Save.
                planned = match self.read_and_plan(&bytes, &head).await {
                    Ok(planned) => planned,
                    Err(fault) => return Err(self.refuse(&fault)),
                };
                // 8. Splice.
                planned.outbound(head, bytes, trailers)
            }
        };
        self.recorder.record_request_side(body_complete_at);
        self.recorder.record_step(StepKind::Plan, body_complete_at);
        Ok((self.into_phase(planned), head, body))
    }

    /// Reads the body, and plans the request. `head`: the request's, as it is sent.
    async fn read_and_plan(
        &mut self,
        body: &Bytes,
        head: &Arc<request::Parts>,
    ) -> Result<Planned, ProxyError> {
        // Boxed, because it is large, and the futures around it are moved several times.
        let planning = AssertUnwindSafe(Box::pin(self.plan_body(body, head)));
        // A panic in here only costs the plan.
        match planning.catch_unwind().await {
            Ok(planned) => planned,
            Err(_) => {
                self.recorder.event.add_fail_open(FailOpen::Panicked);
                Ok(Planned::default())
            }
        }
    }

    async fn plan_body(
        &mut self,
        body: &Bytes,
        head: &Arc<request::Parts>,
    ) -> Result<Planned, ProxyError> {
        let Some(dialect) = self.client.body_dialect() else { return Ok(Planned::default()) };
        let proxy = &self.recorder.proxy;
        let ClientRequest { headers, .. } = &*self.client;
        let tenant = self.client.tenant(proxy).ok();
        let target = self.client.target();
        let parsed = match ParsedBody::read(proxy, dialect, target, tenant, headers, body).await {
            Ok(parsed) => parsed,
            Err(why) => {
                self.recorder.event.add_fail_open(why);
                return Ok(Planned::default());
            }
        };
        let notes = &parsed.conversation.notes;
        self.recorder.event.add_notes(notes.iter().copied());
        if headers::leaves_out_tags(&self.client.headers) {
            self.recorder.event.add_notes([Note::IgnoredTag]);
        }
        if notes.contains(&Note::NotJson) {
            self.recorder.event.add_fail_open(FailOpen::BodyUnread);
            return Ok(Planned::default());
        }
        self.place_and_plan(parsed, Some(head)).await
    }

    /// Finds the request's place among the turns of its session, and plans it. `head`: as it is sent, if the
    /// request can still be changed.
    ///
    /// # Errors
    /// Why it is not sent.
    pub(super) async fn place_and_plan(
        &mut self,
        parsed: ParsedBody,
        head: Option<&Arc<request::Parts>>,
    ) -> Result<Planned, ProxyError> {
        // 5. Open.
        let identity =
            identity::identify(&self.client.headers, &parsed.conversation, self.client.transport);
        let tenant = self.client.tenant(&self.recorder.proxy);
        let reads = self.read_budget(&parsed.conversation, head.is_some());
        let known_tenant = tenant.as_ref().ok();
        let prepared = self.prepare(known_tenant, parsed, &identity, &reads).await;
        let tenant = match tenant {
            Ok(tenant) => tenant,
            // Boxed like the next one, because few requests get here and the futures are large.
            Err(why) => return Ok(Box::pin(self.without_tenant(prepared, why)).await),
        };
        if prepared.info.purpose == Purpose::Count {
            let placed = self.plan_count(prepared, &tenant, &identity, &reads);
            let placed = Box::pin(placed).await;
            self.recorder.record_store_wait(&reads);
            return Ok(placed);
        }
        let proxy = self.recorder.proxy.clone();
        // A message on a WebSocket was forwarded before it was read.
        let can_refuse = head.is_some();
        // No byte of a signed body may change, so it is planned like one that was sent already.
        let head = if self.client.is_signed() { None } else { head };
        let lookup = self.session_lookup(&prepared, &tenant, &identity, &reads);
        let opened = proxy.ledgers.open(lookup, &prepared.conversation).await;
        let Some(opened) = opened else {
            self.recorder.record_store_wait(&reads);
            // It is sent unchanged, and not stored as a turn; the next request will find the session.
            self.recorder.event.add_fail_open(FailOpen::SessionLate);
            Box::pin(estimate_alone(&Arc::new(prepared), &mut self.recorder)).await;
            return Ok(Planned::default());
        };
        let mut request = Box::new(PlacedRequest::new(proxy, prepared, opened));
        request_origin::set(&mut request, &self.client.headers);
        self.recorder.record_place(&request.opened);
        let within_cap = self.check_cap(&request.opened, &reads, can_refuse).await;
        // That was its last read.
        self.recorder.record_store_wait(&reads);
        within_cap?;
        let PlacedRequest { proxy, planned, opened, .. } = &mut *request;
        let prepared = Arc::make_mut(&mut planned.prepared);
        let held_out = is_held_out(&opened.scope.session, prepared.mode, proxy);
        prepared.place(opened, held_out);
        // 6. Plan. 7. Save.
        let mut writer = None;
        match head {
            Some(head) => {
                let parent = opened.placed.parent.as_deref();
                prepared.added = self.client.added_options(prepared, parent, proxy);
                let counting = counting::count_media(&mut request, head);
                self.recorder.event.timing.count_wait_us = Box::pin(counting).await.map(micros);
                request.plan(&mut self.recorder).await;
                writer = request.compact_if_due(head).await.map(Box::new);
                latest_request::keep(&request, head);
            }
            None => Box::pin(request.plan_original(&mut self.recorder)).await,
        }
        let at = self.recorder.event.at;
        self.recorder.event.cold_input = request.cold_input(at);
        request.begin_draft(at);
        request.record_summary_wait(Duration::ZERO, &mut self.recorder);
        request.record_plan(&mut self.recorder);
        if let Some(open_exchange) = request.open_exchange(at) {
            self.recorder.proxy.telemetry.exchange_opened(open_exchange);
        }
        Ok(Planned { placed: Some(request), writer, ..Planned::default() })
    }

    /// Notes the fullest cap of its spender, once that is to be told.
    ///
    /// # Errors
    /// Why it is not sent, if it can be refused.
    async fn check_cap(
        &mut self,
        opened: &OpenedSession,
        reads: &ReadBudget,
        can_refuse: bool,
    ) -> Result<(), ProxyError> {
        let ledgers = self.recorder.proxy.ledgers.clone();
        if !ledgers.caps().has_caps() {
            return Ok(());
        }
        let spender = opened.spender(&self.upstream.name);
        let fullest = ledgers.fullest_cap(&spender, opened.fresh_sums(), reads).await;
        self.recorder.cap = fullest.filter(|cap| cap.used >= WARNING);
        match &self.recorder.cap {
            Some(cap) if can_refuse && cap.used >= 1.0 => Err(ProxyError::from_cap(cap)),
            _ => Ok(()),
        }
    }

    async fn without_tenant(&mut self, prepared: PreparedRequest, why: FailOpen) -> Planned {
        // Without a tenant it gets no place in a session, and its estimate uses no earlier turn.
        self.recorder.event.add_fail_open(why);
        let prepared = Arc::new(prepared);
        estimate_alone(&prepared, &mut self.recorder).await;
        Planned::original_count(prepared)
    }

    async fn prepare(
        &mut self,
        tenant: Option<&TenantId>,
        mut parsed: ParsedBody,
        identity: &Identity,
        reads: &ReadBudget,
    ) -> PreparedRequest {
        let conversation = &mut parsed.conversation;
        conversation.purpose = identity.purpose.unwrap_or(conversation.purpose);
        let info = self.request_info(tenant, &parsed, identity, reads).await;
        self.recorder.record_request(&info);
        self.recorder.event.session.clone_from(&identity.session);
        let mode = self.client.mode(&self.upstream, &self.recorder.proxy);
        PreparedRequest::new(info, parsed, mode, self.client.is_signed())
    }

    async fn request_info(
        &mut self,
        tenant: Option<&TenantId>,
        parsed: &ParsedBody,
        identity: &Identity,
        reads: &ReadBudget,
    ) -> RequestInfo {
        let proxy = self.recorder.proxy.clone();
        let client = &self.client;
        let upstream = &self.upstream;
        let conversation = &parsed.conversation;
        let name = conversation.model.as_deref().unwrap_or_default();
        let mut model = client.model(name, upstream, &proxy);
        let lesson_model = conversation.model_and_backend();
        let source = lesson_source(tenant, upstream, &lesson_model, model.door);
        let lessons = proxy.ledgers.lessons();
        let now = now();
        let taught = lessons.ready(reads, now).await;
        // A list is believed before the catalogue; a refusal corrects both, and what is configured.
        let listed = lessons.listed_window(&LessonSource { model: name, ..source }, now);
        if let Some(window) = listed
            && !model.is_configured
        {
            model.known = true;
            model.window = window;
        }
        let window = lessons.window(&source, model.window, now);
        model.known |= window != model.window;
        if !model.known && !name.is_empty() {
            proxy.telemetry.unknown_model(&upstream.name, name);
        }
        if let Some(day) = model.retires_soon(now) {
            proxy.telemetry.retiring_model(&upstream.name, name, day);
        }
        model.window = window;
        let reasoning_rule =
            client.reasoning_rule(upstream, name, |lesson| lessons.holds(&source, lesson, now));
        if lessons.holds(&source, Lesson::ReasoningBound, now) {
            model.binding = ReasoningBinding::Prefix;
        }
        // Credentials that the upstream does not check could be made up, so each then has a state of its own.
        let own_tenant = if source.vouched { None } else { tenant };
        let ledgers = &proxy.ledgers;
        let RecalledState { learned, recall } = proxy
            .calibration
            .recall(ledgers, &upstream.name, name, own_tenant, model.family, reads)
            .await;
        if taught != RecallOutcome::Known || !recall.is_known() {
            self.recorder.event.add_fail_open(FailOpen::Store);
        }
        RequestInfo {
            exchange: self.recorder.event.id.clone(),
            tenant: tenant.cloned(),
            upstream: upstream.clone(),
            requested_model: conversation.model.clone(),
            learned,
            reasoning_rule,
            compaction_refused: lessons.holds(&source, Lesson::CompactionRefused, now),
            learned_max_output: lessons.max_output(&source, now),
            policy: proxy.policy(upstream, name),
            client_compacts: request_origin::compacts(&client.headers, &proxy),
            purpose: conversation.purpose,
            hints: identity.hints.clone(),
            max_output: conversation.max_output,
            long_cache: conversation.long_cache,
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

    /// How long the request may wait for the store. `can_change`: the request can still be changed.
    fn read_budget(&self, conversation: &Conversation, can_change: bool) -> ReadBudget {
        let limits = &self.recorder.proxy.config.limits;
        let reads = ReadBudget::new(Duration::from_millis(limits.store_ms));
        let is_continued = conversation.held.is_some()
            || conversation.parts().any(|part| part.role == Role::Assistant);
        if !is_continued || !can_change || self.client.is_signed() {
            return reads;
        }
        // The cuts in its prefix may only be in the store. Without them the cache would break, so the wait is
        // longer, whatever the mode is now.
        let first_load = Duration::from_millis(limits.first_load_ms);
        reads.with_first_load(first_load, self.recorder.proxy.shutdown.subscribe())
    }

    pub(super) fn session_lookup<'a>(
        &self,
        prepared: &'a PreparedRequest,
        tenant: &'a TenantId,
        identity: &'a Identity,
        reads: &'a ReadBudget,
    ) -> ledgers::SessionLookup<'a> {
        let has_caps = self.recorder.proxy.ledgers.caps().has_caps();
        ledgers::SessionLookup {
            tenant,
            session: identity.session.as_ref(),
            client_thread: identity.thread.as_deref(),
            exchange: &prepared.info.exchange,
            decisions: prepared.mode.decisions(),
            timeout: Duration::from_millis(self.recorder.proxy.config.limits.store_ms),
            reads,
            source: request_origin::source(&self.client.headers, &self.recorder.connection),
            body: &prepared.body,
            spender: has_caps.then(|| Spender {
                tags: headers::tags(&self.client.headers),
                upstream: self.upstream.name.clone(),
                ..Spender::default()
            }),
        }
    }
}

/// Beside the operator's credential, a client's trailers could say what its headers may not.
pub(super) fn permitted(body: ClientBody, upstream: &Upstream) -> ClientBody {
    if upstream.credential.is_some() { body.without_trailers() } else { body }
}

async fn estimate_alone(prepared: &Arc<PreparedRequest>, recorder: &mut ExchangeRecorder) {
    match PlannedRequest::alone(prepared).await {
        Ok(estimate) => recorder.event.estimate = Some(estimate),
        Err(why) => recorder.event.add_fail_open(why),
    }
}

pub(super) fn is_held_out(session: &SessionId, mode: Mode, proxy: &Proxy) -> bool {
    // A fixed share of all sessions, chosen by hash, for comparison.
    mode == Mode::Active && draw(session.as_str()) < proxy.config.policy.prune.hold_out
}

#[cfg(test)]
mod tests;
