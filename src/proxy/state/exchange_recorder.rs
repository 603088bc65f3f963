//! The record of one exchange: its parts, added as they become known, and reported as one event when it ends.
//!
//! Guards invariant 6: a recorder emits its event when it is dropped, and only then. So its last owner (the
//! exchange, the tap, a tunnel) cannot end without an event, nor emit two. If the turn is still being stored,
//! the event is emitted after that, so that whoever receives it finds the turn. A drain waits for every open
//! recorder. Others only write into the event: what they need again, they hold themselves.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::clock::now;
use crate::context::budget::MeasuredEstimate;
use crate::context::caps::CapState;
use crate::context::plan::RewriteSummary;
use crate::context::{ExchangeId, Outcome, Turn};
use crate::dialect::credentials::redact;
use crate::dialect::error_kind::ErrorKind;
use crate::dialect::models::Price;
use crate::dialect::refusal::RefusalCause;
use crate::dialect::repair::RepairCause;
use crate::dialect::{Note, Reply};
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
    ChunkTimes, Exchange, ExchangeTrace, FailOpen, GaugeGuard, RefusalOutcome, RefusalReport,
    StepKind, Telemetry, TraceStep, micros,
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
    /// When the request arrived, for measuring.
    pub(crate) began: Instant,
    /// Whether the request is HEAD: its response has no body.
    is_head: bool,
    /// The event that will be emitted: each step adds what it finds out.
    pub(crate) event: Box<Exchange>,
    /// The fullest cap of its spender, once that is to be told.
    pub(crate) cap: Option<CapState>,
    /// Held while a response streams.
    pub(crate) stream: Option<GaugeGuard>,
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
        let mut event = Box::new(Exchange::begun(proxy.next_id(), now(), method, &path));
        event.tags = headers::tags(request.headers());
        let traces = proxy.config.otel.as_ref().filter(|otel| otel.traces.is_some());
        event.trace = traces.and_then(|otel| ExchangeTrace::begin(request.headers(), otel.sampler));
        // Boxed, because it goes through all phases of an exchange.
        Box::new(Self {
            began: Instant::now(),
            is_head: *request.method() == Method::HEAD,
            event,
            proxy: proxy.clone(),
            cap: None,
            stream: None,
            sent: Arc::default(),
            upload: None,
            storing: None,
            connection: connection.clone(),
            phase,
        })
    }

    /// For the times of a stream's chunks, if they are exported.
    pub(crate) fn chunk_times(&self) -> Option<Box<ChunkTimes>> {
        let exported = self.proxy.config.otel.as_ref()?.metrics.is_some();
        exported.then(Box::default)
    }

    /// Notes our own time before the request is forwarded: since its body was whole, without the waits that are reported
    /// separately.
    pub(crate) fn record_request_side(&mut self, body_complete_at: Instant) {
        let timing = &mut self.event.timing;
        let waits = timing.compaction_wait_us.unwrap_or(0) + timing.count_wait_us.unwrap_or(0);
        timing.request_side_us = micros(body_complete_at.elapsed()).saturating_sub(waits);
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
        self.event.timing.forwarded_us = Some(micros(self.began.elapsed()));
    }

    /// Notes that the head of the response is here.
    pub(crate) fn record_headers(&mut self) {
        self.event.timing.headers_us = Some(micros(self.began.elapsed()));
    }

    /// Notes that the response has ended, if the exchange is sampled; the first time counts.
    pub(crate) fn record_last_byte(&mut self) {
        let forwarded_us = self.event.timing.forwarded_us;
        if let (Some(trace), Some(forwarded_us)) = (&mut self.event.trace, forwarded_us) {
            let kind = StepKind::Upstream;
            if !trace.steps.iter().any(|step| step.kind == kind) {
                let from = Duration::from_micros(forwarded_us);
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

    pub(crate) fn record_place(&mut self, opened: &OpenedSession) {
        self.event.session = Some(opened.scope.session.clone());
        self.event.thread = Some(opened.placed.position.thread.clone());
        self.event.found_by = opened.origin.found_by;
        self.event.tags.clone_from(&opened.origin.tags);
        self.event.agent.clone_from(&opened.origin.agent);
        if opened.unread {
            self.event.add_fail_open(FailOpen::FactUnread);
        }
        if opened.store_missed {
            self.event.add_fail_open(FailOpen::Store);
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

    /// The original was sent instead: `cause` is why, if it had been rewritten.
    pub(crate) fn record_resent(&mut self, cause: Option<RefusalCause>) {
        self.event.done.resent = cause;
        self.clear_spared();
    }

    pub(crate) fn stamp(&self, headers: &mut HeaderMap) {
        if let Some(refusal) = &self.event.refusal
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
        add_request_id(headers, &self.event.id, &self.proxy);
    }

    pub(crate) fn answer(&mut self, response: &mut Response<Bytes>, outcome: Outcome) {
        self.stamp(response.headers_mut());
        self.event.status = Some(response.status().as_u16());
        self.event.outcome = outcome;
        if !self.is_head {
            self.event.timing.response_bytes = response.body().len() as u64;
        }
    }

    pub(crate) fn report_refusal(&mut self, causes: &[RepairCause], outcome: RefusalOutcome) {
        let mut causes = causes.to_vec();
        causes.dedup();
        // A later refusal replaces it.
        self.event.refusal = Some(RefusalReport { causes, outcome });
    }

    pub(crate) fn clear_spared(&mut self) {
        // There was a refusal all the same, or the original was sent.
        self.event.refusal.take_if(|refusal| refusal.outcome == RefusalOutcome::Spared);
    }

    /// Counts a request body that streams through, and aborts it if it stalls.
    pub(crate) fn count_upload(&mut self, body: OutgoingBody) -> OutgoingBody {
        let timeout = Duration::from_secs(self.proxy.config.limits.body_s);
        body.upload(self.upload.get_or_insert_default(), timeout)
    }

    pub(crate) fn upload_fault(&self) -> Option<ProxyError> {
        self.upload.as_ref()?.fault()
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
            self.event.timing.session_load_us = Some(micros(waited));
        }
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
    event.timing.response_bytes = response.body().len() as u64;
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

impl Exchange {
    /// Adds what its reply says.
    pub(crate) fn add_reply(&mut self, reply: &Reply, telemetry: &Telemetry) {
        self.error_kind = ErrorKind::in_reply(reply);
        // A status 200 with an error in the body is not a success.
        if self.outcome == Outcome::Complete && self.error_kind.is_some() {
            self.outcome = Outcome::UpstreamFailed;
        }
        self.add_notes(reply.notes.iter().copied());
        self.usage = reply.usage.clone();
        self.stop = reply.stop;
        if let (Some(upstream), Some(error)) = (&self.upstream, &reply.error)
            && !error.exhausted.is_empty()
        {
            let at = now();
            let quotas = error.exhausted.iter().map(|quota| quota.at(at)).collect();
            telemetry.quotas_told(upstream, self.tenant.as_ref(), quotas, at);
        }
    }

    /// Adds what its turn cost, US dollars, in all and by model and kind.
    pub(crate) fn add_cost(&mut self, turn: &Turn, price: impl Fn(&str) -> Option<Price>) {
        self.dollars = turn.dollars;
        if turn.dollars.is_some() {
            for cost in turn.costs_by_model(&price) {
                self.costs.extend(cost.parts.map(|parts| (cost.model.into(), parts)));
            }
            self.dollars_beside_stated = turn.cost_beside_stated(price);
        }
    }

    pub(crate) fn add_fail_open(&mut self, why: FailOpen) {
        add_once(&mut self.fail_open, why);
    }

    pub(crate) fn add_notes(&mut self, notes: impl IntoIterator<Item = Note>) {
        for note in notes {
            add_once(&mut self.notes, note);
        }
    }

    /// `read`: the same exchange, with the reply that was read after its end.
    fn replace_with(&mut self, mut read: Box<Self>) {
        read.timing = std::mem::take(&mut self.timing);
        read.trace = self.trace.take();
        for why in std::mem::take(&mut self.fail_open) {
            read.add_fail_open(why);
        }
        *self = *read;
    }
}

/// The result of storing a turn.
#[derive(Default)]
pub(crate) struct TurnOutcome {
    /// Why it was not stored.
    pub(crate) why: Option<FailOpen>,
    /// The exchange with its reply, if that was read after the end.
    pub(crate) event: Option<Box<Exchange>>,
}

impl TurnOutcome {
    /// `why` it was not stored, if it was not.
    pub(crate) fn new(why: Option<FailOpen>) -> Self {
        Self { why, event: None }
    }

    pub(crate) fn write(self, event: &mut Exchange) {
        if let Some(read) = self.event {
            event.replace_with(read);
        }
        if let Some(why) = self.why {
            event.add_fail_open(why);
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
        let mut event = std::mem::take(&mut *self.event);
        event.timing.duration_us = micros(self.began.elapsed());
        if let Some(upload) = &self.upload {
            event.timing.request_bytes += upload.bytes();
        }
        let (Some(storing), Ok(runtime)) = (self.storing.take(), Handle::try_current()) else {
            return report(&self.proxy, event);
        };
        let proxy = self.proxy.clone();
        let phase = self.phase.clone();
        runtime.spawn(async move {
            match timeout(REPORTED_WITHIN, storing).await {
                Ok(Ok(turn)) => turn.write(&mut event),
                Ok(Err(_)) => event.add_fail_open(FailOpen::Panicked),
                // Only if a frame waited for it, that is already recorded.
                Err(_) => event.add_fail_open(FailOpen::CommitLate),
            }
            report(&proxy, event);
            // A drain waits for this.
            drop(phase);
        });
    }
}

fn report(proxy: &Proxy, event: Exchange) {
    proxy.exchanges.fetch_sub(1, Ordering::Relaxed);
    proxy.telemetry.report(event);
}
