//! The record of one exchange: its parts, added as they become known, and reported as one event when it ends.
//!
//! Guards invariant 6: a recorder emits its event when it is dropped, and only then. So its last owner (the
//! exchange, the tap, a tunnel) cannot end without an event, nor emit two. If the turn is still being stored,
//! the event is emitted after that, so that whoever receives it finds the turn. A drain waits for every open
//! recorder. The event is private: what others need again, they hold themselves.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::clock::now;
use crate::config::Upstream;
use crate::context::budget::MeasuredEstimate;
use crate::context::caps::CapState;
use crate::context::cost::CostParts;
use crate::context::overflow::OverflowReport;
use crate::context::plan::RewriteSummary;
use crate::context::savings::ExchangeSavings;
use crate::context::{Estimate, ExchangeId, Millis, Outcome, SessionId, Turn};
use crate::dialect::credentials::redact;
use crate::dialect::error_kind::ErrorKind;
use crate::dialect::models::Price;
use crate::dialect::quota::ExhaustedQuota;
use crate::dialect::refusal::RefusalCause;
use crate::dialect::repair::RepairCause;
use crate::dialect::{Dialect, Note, Purpose, Reply, StopReason, Usage};
use crate::proxy::http::answer::{self, ProxyError};
use crate::proxy::http::body::OutgoingBody;
use crate::proxy::http::connection::ClientConnection;
use crate::proxy::http::headers;
use crate::proxy::http::upload::{SentTime, UploadProgress};
use crate::proxy::state::request_info::RequestInfo;
use crate::proxy::state::{Proxy, ServingPhase};
use crate::store::ledgers::OpenedSession;
use crate::store::recall::ReadBudget;
use crate::telemetry::{
    CountEstimate, Exchange, ExchangeTrace, FailOpen, GaugeGuard, RefusalOutcome, RefusalReport,
    StepKind, TraceStep,
};

/// The response header that says what was repaired after a refusal.
const HEALED: HeaderName = HeaderName::from_static("x-plimsoll-healed");
/// The response header that says which cap is nearly spent, and the share: `daily=0.83`.
const CAP: HeaderName = HeaderName::from_static("x-plimsoll-cap");
/// The response header with the price of the input, US dollars, if the session's cache at the provider has gone.
const COLD_INPUT: HeaderName = HeaderName::from_static("x-plimsoll-cold-input");
/// The response header with the exchange's id.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-plimsoll-request-id");

/// The event is emitted at most this long after the exchange's end, even if its turn is not stored yet.
const REPORTED_WITHIN: Duration = Duration::from_secs(5);

/// What is known about an exchange so far; emitted when it is dropped.
pub(crate) struct ExchangeRecorder {
    pub(crate) proxy: Arc<Proxy>,
    pub(crate) id: ExchangeId,
    /// When the request arrived, by the clock and for measuring.
    pub(crate) at: Millis,
    pub(crate) began: Instant,
    /// Whether the request is HEAD: its response has no body.
    is_head: bool,
    /// The event that will be emitted.
    event: Box<Exchange>,
    /// What a retry, or a repair before the first attempt, found out about a refusal.
    refusal: Option<RefusalReport>,
    /// The fullest cap of its spender, once that is to be told.
    pub(crate) cap: Option<CapState>,
    /// Held while a response streams.
    pub(crate) stream: Option<GaugeGuard>,
    /// What was measured.
    pub(crate) meter: ExchangeMeter,
    /// When its request was sent.
    pub(crate) sent: Arc<SentTime>,
    /// The progress of a request body that streams through.
    upload: Option<Arc<UploadProgress>>,
    /// The task that stores its turn, if no frame waits for that.
    pub(crate) storing: Option<JoinHandle<TurnOutcome>>,
    /// The connection of its client.
    pub(crate) connection: Arc<ClientConnection>,
    /// The phase of a drain. The drain ends when no receiver is left.
    pub(crate) phase: watch::Receiver<ServingPhase>,
}

impl ExchangeRecorder {
    pub(crate) fn open<B>(
        proxy: &Arc<Proxy>,
        request: &Request<B>,
        connection: &Arc<ClientConnection>,
        phase: watch::Receiver<ServingPhase>,
    ) -> Box<Self> {
        proxy.exchanges.fetch_add(1, Ordering::Relaxed);
        let method = request.method().as_str();
        // A path may contain a credential.
        let path = redact(request.uri().path());
        let id = proxy.next_id();
        let at = now();
        let mut event = Box::new(Exchange::begun(id.clone(), at, method, &path));
        event.tags = headers::tags(request.headers());
        let traces = proxy.config.otel.as_ref().filter(|otel| otel.traces.is_some());
        event.trace = traces.and_then(|otel| ExchangeTrace::begin(request.headers(), otel.sampler));
        // Boxed, because it goes through all phases of an exchange.
        Box::new(Self {
            began: Instant::now(),
            is_head: *request.method() == Method::HEAD,
            event,
            id,
            at,
            proxy: proxy.clone(),
            refusal: None,
            cap: None,
            stream: None,
            meter: ExchangeMeter::default(),
            sent: Arc::default(),
            upload: None,
            storing: None,
            connection: connection.clone(),
            phase,
        })
    }

    /// What its path says.
    pub(crate) fn record_endpoint(&mut self, dialect: Option<Dialect>, purpose: Option<Purpose>) {
        self.event.dialect = dialect;
        self.event.purpose = purpose;
    }

    /// Notes a step that ends now, if the exchange is sampled.
    pub(crate) fn record_step(&mut self, kind: StepKind, began: Instant) {
        if let Some(trace) = &mut self.event.trace {
            let from = began.saturating_duration_since(self.began);
            trace.steps.push(TraceStep { kind, from, to: self.began.elapsed() });
        }
    }

    /// Notes a step that lasted this long and ends now, if the exchange is sampled.
    pub(crate) fn record_wait(&mut self, kind: StepKind, waited: Duration) {
        if let Some(began) = Instant::now().checked_sub(waited) {
            self.record_step(kind, began);
        }
    }

    /// Notes that the request is forwarded now.
    pub(crate) fn record_forwarded(&mut self) {
        self.meter.forwarded = Some(self.began.elapsed());
    }

    /// Notes that the response has ended, if the exchange is sampled; the first time counts.
    pub(crate) fn record_last_byte(&mut self) {
        if let (Some(trace), Some(from)) = (&mut self.event.trace, self.meter.forwarded) {
            let kind = StepKind::Upstream;
            if !trace.steps.iter().any(|step| step.kind == kind) {
                trace.steps.push(TraceStep { kind, from, to: self.began.elapsed() });
            }
        }
    }

    /// Notes that the turn is stored now, if the exchange is sampled.
    pub(crate) fn record_stored(&mut self) {
        if let Some(trace) = &mut self.event.trace
            && let Some(upstream) = trace.steps.iter().find(|step| step.kind == StepKind::Upstream)
        {
            let from = upstream.to;
            let to = self.began.elapsed();
            trace.steps.push(TraceStep { kind: StepKind::StoreWrite, from, to });
        }
    }

    /// The header that continues the trace at the upstream, if the exchange is sampled.
    pub(crate) fn traceparent(&self) -> Option<HeaderValue> {
        self.event.trace.as_ref()?.traceparent()
    }

    pub(crate) fn record_upstream(&mut self, upstream: &Upstream) {
        self.event.upstream = Some(upstream.name.clone());
    }

    pub(crate) fn record_request(&mut self, info: &RequestInfo) {
        let event = &mut *self.event;
        event.tenant.clone_from(&info.tenant);
        event.model.clone_from(&info.requested_model);
        event.family = Some(info.model.family);
        event.window = Some(info.model.window);
        event.purpose = Some(info.purpose);
        event.repeated_calls = info.repeated_calls;
        event.hints.clone_from(&info.hints);
    }

    /// The session of a request that takes no place in it, or not yet.
    pub(crate) fn record_session(&mut self, session: Option<&SessionId>) {
        self.event.session = session.cloned();
    }

    pub(crate) fn record_place(&mut self, opened: &OpenedSession) {
        self.event.session = Some(opened.scope.session.clone());
        self.event.thread = Some(opened.placed.position.thread.clone());
        self.event.found_by = opened.origin.found_by;
        self.event.tags.clone_from(&opened.origin.tags);
        self.event.agent.clone_from(&opened.origin.agent);
        if opened.unread {
            self.record_fail_open(FailOpen::FactUnread);
        }
        if opened.store_missed {
            self.record_fail_open(FailOpen::Store);
        }
    }

    /// The form in which the request is sent, as far as it is known.
    pub(crate) fn record_plan(
        &mut self,
        done: &RewriteSummary,
        measured: Option<&MeasuredEstimate>,
    ) {
        self.event.done = done.clone();
        self.event.estimate = measured.map(|measured| measured.estimate.clone());
        self.event.classic = measured.and_then(|measured| measured.classic.clone());
    }

    /// What its input costs, US dollars, if its session's cache has gone.
    pub(crate) fn record_cold_input(&mut self, dollars: Option<f64>) {
        self.event.cold_input = dollars;
    }

    pub(crate) fn record_estimate(&mut self, estimate: Estimate) {
        self.event.estimate = Some(estimate);
    }

    pub(crate) fn record_count_estimate(&mut self, estimate: Estimate, why: CountEstimate) {
        self.event.estimate = Some(estimate);
        self.event.count_estimated = Some(why);
    }

    /// The original was sent instead: `cause` is why, if it had been rewritten.
    pub(crate) fn record_resent(&mut self, cause: Option<RefusalCause>) {
        self.event.done.resent = cause;
        self.clear_spared();
    }

    /// The rewrite was refused, and another form was not.
    pub(crate) fn record_refused(&mut self, cause: RefusalCause) {
        self.event.refused = Some(cause);
    }

    pub(crate) fn record_provider_request_id(&mut self, id: Option<&str>) {
        self.event.provider_request_id = id.map(Into::into);
    }

    pub(crate) fn record_status(&mut self, status: StatusCode) {
        self.event.status = Some(status.as_u16());
    }

    pub(crate) fn record_streamed(&mut self) {
        self.event.streamed = true;
    }

    pub(crate) fn record_outcome(&mut self, outcome: Outcome) {
        self.event.outcome = outcome;
    }

    pub(crate) fn stamp(&self, headers: &mut HeaderMap) {
        if let Some(refusal) = &self.refusal
            && let Some(healed) = refusal.healed()
            && let Ok(healed) = HeaderValue::try_from(healed)
        {
            headers.insert(HEALED, healed);
        }
        if let Some(cap) = &self.cap
            && let Ok(used) = HeaderValue::try_from(format!("{}={:.2}", cap.cap, cap.used))
        {
            headers.insert(CAP, used);
        }
        if let Some(dollars) = self.event.cold_input
            && let Ok(dollars) = HeaderValue::try_from(format!("{dollars:.4}"))
        {
            headers.insert(COLD_INPUT, dollars);
        }
        add_request_id(headers, &self.id, &self.proxy);
    }

    pub(crate) fn answer(&mut self, response: &mut Response<Bytes>, outcome: Outcome) {
        self.stamp(response.headers_mut());
        self.event.status = Some(response.status().as_u16());
        self.event.outcome = outcome;
        if !self.is_head {
            self.meter.response_bytes = response.body().len() as u64;
        }
    }

    pub(crate) fn report_refusal(&mut self, causes: &[RepairCause], outcome: RefusalOutcome) {
        let mut causes = causes.to_vec();
        causes.dedup();
        // A later refusal replaces it.
        self.refusal = Some(RefusalReport { causes, outcome });
    }

    pub(crate) fn clear_spared(&mut self) {
        // There was a refusal all the same, or the original was sent.
        self.refusal.take_if(|refusal| refusal.outcome == RefusalOutcome::Spared);
    }

    /// Counts a request body that streams through, and aborts it if it stalls.
    pub(crate) fn count_upload(&mut self, body: OutgoingBody) -> OutgoingBody {
        let timeout = Duration::from_secs(self.proxy.config.limits.body_s);
        body.upload(self.upload.get_or_insert_default(), timeout)
    }

    pub(crate) fn upload_fault(&self) -> Option<ProxyError> {
        self.upload.as_ref()?.fault()
    }

    /// Records why the exchange is forwarded without some of our functions; each reason once.
    pub(crate) fn record_fail_open(&mut self, why: FailOpen) {
        add_once(&mut self.event.fail_open, why);
    }

    pub(crate) fn record_notes(&mut self, notes: impl IntoIterator<Item = Note>) {
        for note in notes {
            add_once(&mut self.event.notes, note);
        }
    }

    /// Records how long the request waited for the store, if it did.
    pub(crate) fn record_store_wait(&mut self, reads: &ReadBudget) {
        let waited = reads.spent();
        if waited.is_zero() {
            return;
        }
        self.proxy.telemetry.session_loaded(waited);
        self.record_wait(StepKind::StoreRead, waited);
        if reads.is_overspent() {
            self.meter.session_load = Some(waited);
        }
    }

    pub(crate) fn record_reply(&mut self, mut reply: ReplyRecord) {
        if let Some(upstream) = &self.event.upstream
            && !reply.exhausted.is_empty()
        {
            let at = now();
            let quotas = reply.exhausted.drain(..).map(|quota| quota.at(at)).collect();
            self.proxy.telemetry.quotas_told(upstream, self.event.tenant.as_ref(), quotas, at);
        }
        reply.write(&mut self.event);
    }

    pub(crate) fn record_turn(&mut self, turn: TurnOutcome) {
        turn.write(&mut self.event);
    }
}

fn add_request_id(headers: &mut HeaderMap, id: &ExchangeId, proxy: &Proxy) {
    if proxy.config.request_id_header
        && let Ok(id) = HeaderValue::from_str(id.as_str())
    {
        headers.insert(REQUEST_ID, id);
    }
}

/// The response to data that is not an HTTP request, as HTTP/1.1 text. The exchange is recorded.
pub(crate) fn non_http_response(proxy: &Proxy, fault: &ProxyError) -> Bytes {
    let (id, response) = own_response(proxy, fault);
    let mut event = Exchange::begun(id, now(), "none", "");
    event.status = Some(fault.status().as_u16());
    event.outcome = fault.outcome();
    event.response_bytes = response.body().len() as u64;
    proxy.telemetry.report(event);
    answer::http1_text(&response)
}

pub(crate) fn unread_response(proxy: &Proxy, fault: &ProxyError) -> Bytes {
    // It is no exchange: so many would push out of the lists what people look for there.
    answer::http1_text(&own_response(proxy, fault).1)
}

fn own_response(proxy: &Proxy, fault: &ProxyError) -> (ExchangeId, Response<Bytes>) {
    let id = proxy.next_id();
    let mut response = fault.answer(None);
    add_request_id(response.headers_mut(), &id, proxy);
    (id, response)
}

/// What is measured of an exchange.
#[derive(Default)]
pub(crate) struct ExchangeMeter {
    /// Bytes of the request body, without what streams through.
    pub(crate) request_bytes: u64,
    /// Our own time before the request was forwarded.
    pub(crate) request_side: Duration,
    /// How long it waited for the stored data of its session; only if that was long.
    pub(crate) session_load: Option<Duration>,
    pub(crate) summary_wait: Option<Duration>,
    /// How long it waited for the provider's count of its pictures and documents.
    pub(crate) count_wait: Option<Duration>,
    /// From the request to when it was forwarded.
    pub(crate) forwarded: Option<Duration>,
    /// From the request to the response's head.
    pub(crate) headers: Option<Duration>,
    /// From the request to the first data of the response.
    pub(crate) first_byte: Option<Duration>,
    pub(crate) frames: u64,
    pub(crate) response_bytes: u64,
    /// Time spent on its frames; a single frame takes less than 1 µs.
    pub(crate) response_side: Duration,
    pub(crate) longest_gap: Option<Duration>,
    /// It was broken off because the upstream sent nothing.
    pub(crate) silent_stream: bool,
}

impl ExchangeMeter {
    fn write(self, event: &mut Exchange) {
        event.request_bytes = self.request_bytes;
        event.request_side_us = micros(self.request_side);
        event.session_load_us = self.session_load.map(micros);
        event.compaction_wait_us = self.summary_wait.map(micros);
        event.count_wait_us = self.count_wait.map(micros);
        event.forwarded_us = self.forwarded.map(micros);
        event.headers_us = self.headers.map(micros);
        event.first_byte_us = self.first_byte.map(micros);
        event.frames = self.frames;
        event.response_bytes = self.response_bytes;
        event.response_side_us = micros(self.response_side);
        event.longest_gap_us = self.longest_gap.map(micros);
        event.silent_stream = self.silent_stream;
    }
}

fn micros(duration: Duration) -> u64 {
    duration.as_micros() as u64
}

/// A reply as the record has it, and what came of it: gathered while it is settled, written to the event
/// once.
#[derive(Default)]
pub(crate) struct ReplyRecord {
    pub(crate) outcome: Outcome,
    /// Some of the response's body came.
    pub(crate) has_body: bool,
    pub(crate) streamed: bool,
    pub(crate) stop: Option<StopReason>,
    pub(crate) error_kind: Option<ErrorKind>,
    pub(crate) exhausted: Vec<ExhaustedQuota>,
    pub(crate) usage: Usage,
    pub(crate) notes: Vec<Note>,
    pub(crate) fail_open: Vec<FailOpen>,
    /// What could have been repaired in the refused request.
    pub(crate) refusal: Option<RefusalReport>,
    /// The overflow that the reply shows.
    pub(crate) overflow: Option<OverflowReport>,
    /// The measured share of the tokens that were said to be removed.
    pub(crate) measured: Option<f64>,
    pub(crate) saved: Option<ExchangeSavings>,
    /// The model that the reply names, if it is not called as it was requested.
    pub(crate) served: Option<Box<str>>,
    /// What it cost, US dollars.
    pub(crate) dollars: Option<f64>,
    /// The same by model and kind.
    pub(crate) costs: Vec<(Box<str>, CostParts)>,
    /// What it costs at our prices, if the provider says its price, too.
    pub(crate) dollars_beside_stated: Option<f64>,
    /// The view after it shows no messages, because system prompt and tools were estimated larger than the whole.
    pub(crate) shown_capped: bool,
    /// The window that the reply names.
    pub(crate) window: Option<u64>,
    /// The turn of an earlier exchange that the reply completed.
    pub(crate) completed: Option<Arc<Turn>>,
}

impl ReplyRecord {
    pub(crate) fn new(outcome: Outcome, has_body: bool) -> Self {
        Self { outcome, has_body, ..Self::default() }
    }

    pub(crate) fn set_cost(&mut self, turn: &Turn, price: impl Fn(&str) -> Option<Price>) {
        self.dollars = turn.dollars;
        if turn.dollars.is_some() {
            for cost in turn.costs_by_model(&price) {
                self.costs.extend(cost.parts.map(|parts| (cost.model.into(), parts)));
            }
            self.dollars_beside_stated = turn.cost_beside_stated(price);
        }
    }

    pub(crate) fn take(&mut self, reply: &Reply) {
        self.error_kind = ErrorKind::in_reply(reply);
        self.exhausted =
            reply.error.as_ref().map(|error| error.exhausted.clone()).unwrap_or_default();
        // A status 200 with an error in the body is not a success.
        if self.outcome == Outcome::Complete && self.error_kind.is_some() {
            self.outcome = Outcome::UpstreamFailed;
        }
        self.notes.extend(reply.notes.iter().copied());
        self.usage = reply.usage.clone();
        self.stop = reply.stop;
    }

    fn write(self, event: &mut Exchange) {
        if let Some(turn) = self.completed {
            event.model = Some(turn.model.clone());
            event.family = Some(turn.family);
            event.thread = Some(turn.position.thread.clone());
        }
        event.outcome = self.outcome;
        event.streamed = self.streamed;
        event.stop = self.stop;
        event.served = self.served;
        event.dollars = self.dollars;
        event.costs = self.costs;
        event.dollars_beside_stated = self.dollars_beside_stated;
        event.error_kind = self.error_kind;
        event.usage = self.usage;
        for why in self.fail_open {
            add_once(&mut event.fail_open, why);
        }
        for note in self.notes {
            add_once(&mut event.notes, note);
        }
        event.refusal = self.refusal;
        event.done.overflow = self.overflow.or(event.done.overflow);
        event.done.measured = self.measured.or(event.done.measured);
        event.saved = self.saved.or(event.saved);
        event.shown_capped = self.shown_capped;
        event.window = self.window.or(event.window);
    }
}

/// The result of storing a turn.
#[derive(Default)]
pub(crate) struct TurnOutcome {
    /// Why it was not stored.
    pub(crate) why: Option<FailOpen>,
    /// The record of its reply, if that was read after the end.
    pub(crate) reply: Option<Box<ReplyRecord>>,
}

impl TurnOutcome {
    fn write(self, event: &mut Exchange) {
        if let Some(reply) = self.reply {
            reply.write(event);
        }
        if let Some(why) = self.why {
            add_once(&mut event.fail_open, why);
        }
    }
}

fn add_once<T: PartialEq>(all: &mut Vec<T>, one: T) {
    if !all.contains(&one) {
        all.push(one);
    }
}

impl Drop for ExchangeRecorder {
    fn drop(&mut self) {
        let empty = Exchange::begun("".into(), 0, "", "");
        let mut event = std::mem::replace(&mut *self.event, empty);
        event.duration_us = self.began.elapsed().as_micros() as u64;
        std::mem::take(&mut self.meter).write(&mut event);
        if let Some(upload) = &self.upload {
            event.request_bytes += upload.bytes();
        }
        // Boxed here, so that only a pointer is moved afterwards.
        let mut event = Box::new(event);
        let refusal = self.refusal.take();
        let (Some(storing), Ok(runtime)) = (self.storing.take(), Handle::try_current()) else {
            return report(&self.proxy, event, refusal);
        };
        let proxy = self.proxy.clone();
        let phase = self.phase.clone();
        runtime.spawn(async move {
            match timeout(REPORTED_WITHIN, storing).await {
                Ok(Ok(turn)) => turn.write(&mut event),
                Ok(Err(_)) => add_once(&mut event.fail_open, FailOpen::Panicked),
                // Only if a frame waited for it, that is already recorded.
                Err(_) => add_once(&mut event.fail_open, FailOpen::CommitLate),
            }
            report(&proxy, event, refusal);
            // A drain waits for this.
            drop(phase);
        });
    }
}

fn report(proxy: &Proxy, mut event: Box<Exchange>, refusal: Option<RefusalReport>) {
    // What a retry found out comes before what a reply says.
    event.refusal = refusal.or(event.refusal.take());
    proxy.exchanges.fetch_sub(1, Ordering::Relaxed);
    proxy.telemetry.report(Arc::from(event));
}
