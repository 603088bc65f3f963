//! The recorder of one exchange: collects what is reported when the exchange ends.
//!
//! Guards invariant 6: a recorder emits its event when it is dropped, and only then. So its last owner (the
//! exchange, the tap, a tunnel) cannot end without an event, nor emit two. If the turn is still being stored,
//! the event is emitted after that, so that whoever receives it finds the turn. A drain waits for every open
//! recorder.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use http::{HeaderMap, HeaderName, HeaderValue, Request};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::context::TenantId;
use crate::dialect::Note;
use crate::dialect::credentials::redact;
use crate::dialect::repair::RepairCause;
use crate::proxy::http::body::{OutgoingBody, UploadProgress};
use crate::proxy::http::memory::{HeldMemory, MemoryShare};
use crate::proxy::http::progress::InFlightGuard;
use crate::proxy::state::{Proxy, ServingPhase};
use crate::store::lessons::LessonSource;
use crate::telemetry::clock::now;
use crate::telemetry::{Exchange, FailOpen, GaugeGuard, MemoryKind, RefusalOutcome, RefusalReport};
use crate::wire::memory::Memory as _;

/// The response header that says what was repaired after a refusal.
const HEALED: HeaderName = HeaderName::from_static("x-plimsoll-healed");
/// The response header with the exchange's id.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-plimsoll-request-id");

/// No event is emitted later than this after the exchange's end, even if its turn is not stored yet.
const TOLD_WITHIN: Duration = Duration::from_secs(5);

/// The memory of an exchange itself: its tasks and its record, bytes.
const EXCHANGE: usize = 32 * 1024;
/// How many copies of the headers are held: as received, and as sent.
const HEADERS: usize = 2;

/// What is known about an exchange so far; emitted when it is dropped.
pub(crate) struct ExchangeRecorder {
    pub(crate) proxy: Arc<Proxy>,
    /// When the request arrived.
    pub(crate) began: Instant,
    /// The event that will be emitted.
    pub(crate) event: Box<Exchange>,
    /// Held while a response streams.
    pub(crate) stream: Option<GaugeGuard>,
    /// Time spent on the response's frames, ns; a single frame takes less than 1 µs.
    pub(crate) response_side_ns: u64,
    /// A request body that streams through.
    through: Option<Arc<UploadProgress>>,
    /// The task that stores its turn, if nobody waits for that.
    pub(crate) keeping: Option<JoinHandle<TurnOutcome>>,
    /// Its connection's share of the memory budget.
    pub(crate) memory: Arc<MemoryShare>,
    /// The memory that the exchange itself holds.
    pub(crate) taken: HeldMemory,
    /// The phase of a drain. The drain ends when no receiver is left.
    pub(crate) phase: watch::Receiver<ServingPhase>,
}

impl ExchangeRecorder {
    /// Begins the record of an exchange.
    pub(crate) fn open<B>(
        proxy: &Arc<Proxy>,
        request: &Request<B>,
        memory: &Arc<MemoryShare>,
        phase: watch::Receiver<ServingPhase>,
    ) -> Self {
        proxy.exchanges.fetch_add(1, Ordering::Relaxed);
        memory.progress().begin(InFlightGuard::Exchange);
        let (method, path) = (request.method().as_str(), redact(request.uri().path()));
        Self {
            began: Instant::now(),
            event: Box::new(Exchange::begun(proxy.next_id(), now(), method, &path)),
            proxy: proxy.clone(),
            stream: None,
            response_side_ns: 0,
            through: None,
            keeping: None,
            memory: memory.clone(),
            taken: memory.guard(MemoryKind::Connection),
            phase,
        }
    }

    /// Reserves memory for a request with this many bytes of headers; `false` if there is none.
    pub(crate) fn take(&mut self, headers: usize) -> bool {
        self.taken.hold(EXCHANGE + HEADERS * headers)
    }

    /// Adds response headers: what was repaired after a refusal, and the exchange's id if configured.
    pub(crate) fn stamp(&self, headers: &mut HeaderMap) {
        let healed = self.event.refusal.as_ref().and_then(RefusalReport::healed);
        if let Some(healed) = healed.and_then(|healed| HeaderValue::try_from(healed).ok()) {
            headers.insert(HEALED, healed);
        }
        if self.proxy.config.request_id_header
            && let Ok(id) = HeaderValue::from_str(self.event.id.as_str())
        {
            headers.insert(REQUEST_ID, id);
        }
    }

    /// Records the result of a refusal; a later one replaces it.
    pub(crate) fn report_refusal(&mut self, causes: &[RepairCause], outcome: RefusalOutcome) {
        let mut causes = causes.to_vec();
        causes.dedup();
        self.event.refusal = Some(RefusalReport { causes, outcome });
    }

    /// Removes the record that a refusal was prevented, because there was one, or the original was sent.
    pub(crate) fn was_not_spared(&mut self) {
        let refusal = &mut self.event.refusal;
        refusal.take_if(|it| it.outcome == RefusalOutcome::Spared);
    }

    /// Time since the request arrived, µs.
    pub(crate) fn elapsed_us(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }

    /// The tenant, upstream and model that this exchange teaches about.
    pub(crate) fn about(&self) -> LearningSubject {
        let event = &self.event;
        LearningSubject {
            tenant: event.tenant.clone(),
            vouched: self.proxy.knows_apart(event.upstream.as_deref()),
            upstream: event.upstream.clone().unwrap_or_default(),
            model: event.model.clone().unwrap_or_default(),
        }
    }

    /// The host of the upstream.
    pub(crate) fn upstream_host(&self) -> Option<Box<str>> {
        self.proxy.host_of(self.event.upstream.as_deref())
    }

    /// Counts a request body that streams through, and aborts it if it stalls.
    pub(crate) fn counting(&mut self, body: OutgoingBody) -> OutgoingBody {
        let timeout = Duration::from_secs(self.proxy.config.limits.body_s);
        body.upload(self.through.get_or_insert_default(), timeout)
    }

    /// Whether the request's body stalled for too long and was aborted.
    pub(crate) fn body_timed_out(&self) -> bool {
        self.through.as_ref().is_some_and(|through| through.has_timed_out())
    }

    /// Records why Plimsoll did not act; each reason once.
    pub(crate) fn stood_aside(&mut self, why: FailOpen) {
        add_once(&mut self.event.fail_open, why);
    }

    /// Records notes; each kind once.
    pub(crate) fn noted(&mut self, notes: impl IntoIterator<Item = Note>) {
        notes.into_iter().for_each(|note| add_once(&mut self.event.notes, note));
    }
}

/// The result of storing a turn.
#[derive(Default)]
pub(crate) struct TurnOutcome {
    /// Why it was not stored.
    pub(crate) why: Option<FailOpen>,
    /// The reply ended before its terminal event, as was found when it was read.
    pub(crate) is_cut: bool,
    /// The exchange with the data of its reply, if that was read after the end.
    pub(crate) read: Option<Box<Exchange>>,
}

impl TurnOutcome {
    /// Merges it into the event. What passed of the body meanwhile is only in `event`.
    pub(crate) fn tell(self, event: &mut Exchange) {
        if let Some(read) = self.read {
            let Exchange {
                outcome,
                streamed,
                usage,
                stop,
                error_kind,
                done,
                saved,
                window,
                fail_open,
                notes,
                ..
            } = *read;
            (event.outcome, event.streamed, event.stop) = (outcome, streamed, stop);
            event.error_kind = error_kind;
            (event.usage, event.done, event.saved, event.window) = (usage, done, saved, window);
            fail_open.into_iter().for_each(|why| add_once(&mut event.fail_open, why));
            notes.into_iter().for_each(|note| add_once(&mut event.notes, note));
        }
        self.why.into_iter().for_each(|why| add_once(&mut event.fail_open, why));
    }
}

/// Adds an item, unless it is already there.
pub(crate) fn add_once<T: PartialEq>(all: &mut Vec<T>, one: T) {
    if !all.contains(&one) {
        all.push(one);
    }
}

/// What a lesson of an exchange is about.
pub(crate) struct LearningSubject {
    pub(crate) tenant: Option<TenantId>,
    /// See [`LessonSource::vouched`].
    pub(crate) vouched: bool,
    pub(crate) upstream: Box<str>,
    pub(crate) model: Box<str>,
}

impl LearningSubject {
    /// The source of a lesson.
    pub(crate) fn source(&self) -> LessonSource<'_> {
        let Self { tenant, upstream, model, vouched, .. } = self;
        LessonSource { tenant: tenant.as_ref(), upstream, model, vouched: *vouched }
    }
}

impl Drop for ExchangeRecorder {
    fn drop(&mut self) {
        self.memory.progress().end(InFlightGuard::Exchange);
        let empty = Exchange::begun("".into(), 0, "", "");
        let mut event = std::mem::replace(&mut *self.event, empty);
        event.duration_us = self.elapsed_us();
        event.response_side_us = self.response_side_ns / 1000;
        if let Some(through) = &self.through {
            event.request_bytes = through.bytes();
        }
        // Boxed here, so that only a pointer is moved afterwards.
        let mut event = Box::new(event);
        let proxy = self.proxy.clone();
        let tell = move |event: Box<Exchange>| {
            proxy.exchanges.fetch_sub(1, Ordering::Relaxed);
            proxy.telemetry.tell(Arc::from(event));
        };
        let (Some(keeping), Ok(runtime)) = (self.keeping.take(), Handle::try_current()) else {
            return tell(event);
        };
        let phase = self.phase.clone();
        runtime.spawn(async move {
            match timeout(TOLD_WITHIN, keeping).await {
                Ok(Ok(kept)) => kept.tell(&mut event),
                Ok(Err(_)) => add_once(&mut event.fail_open, FailOpen::Panicked),
                // That it was not stored in time is already recorded.
                Err(_) => {}
            }
            tell(event);
            drop(phase);
        });
    }
}
