//! One exchange's recorder: what will be told of it, when it ends.
//!
//! Guards invariant 6: a recorder tells when it is dropped, and only then, so whoever holds it last
//! (the exchange, the tap, a tunnel) cannot end without telling, nor tell twice. Where its turn is
//! still being kept then, it tells once that is done: who hears of it finds it. A drain waits for every
//! open recorder.

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

/// The response header that says what was changed of a request that the provider had refused.
const HEALED: HeaderName = HeaderName::from_static("x-plimsoll-healed");
/// The response header that names the exchange.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-plimsoll-request-id");

/// No exchange is told later than this after its end, kept or not.
const TOLD_WITHIN: Duration = Duration::from_secs(5);

/// What an exchange takes by itself: its tasks, and what is known of it.
const EXCHANGE: usize = 32 * 1024;
/// How often headers are held: as they came, and as they go out.
const HEADERS: usize = 2;

/// What is known so far of an exchange; told on drop.
pub(crate) struct ExchangeRecorder {
    pub(crate) proxy: Arc<Proxy>,
    /// When the request arrived.
    pub(crate) began: Instant,
    /// As it will be told.
    pub(crate) event: Box<Exchange>,
    /// Held while a response streams.
    pub(crate) stream: Option<GaugeGuard>,
    /// Time spent on the response's frames, ns; a single frame takes less than a µs.
    pub(crate) response_side_ns: u64,
    /// A request body that streams through.
    through: Option<Arc<UploadProgress>>,
    /// Its turn, where nobody waits for that to be kept.
    pub(crate) keeping: Option<JoinHandle<TurnOutcome>>,
    /// Its connection's part of the budget of memory.
    pub(crate) memory: Arc<MemoryShare>,
    /// What it takes of that by itself.
    pub(crate) taken: HeldMemory,
    /// What a drain says; it ends when nobody listens any more.
    pub(crate) phase: watch::Receiver<ServingPhase>,
}

impl ExchangeRecorder {
    /// An exchange begins.
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

    /// Takes the memory for a request with headers of so many bytes; `false` where there is none.
    pub(crate) fn take(&mut self, headers: usize) -> bool {
        self.taken.hold(EXCHANGE + HEADERS * headers)
    }

    /// Says on its response what was changed after a refusal, and puts the exchange's id there, where the
    /// configuration wants that.
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

    /// What became of a refusal; the last word counts.
    pub(crate) fn report_refusal(&mut self, causes: &[RepairCause], outcome: RefusalOutcome) {
        let mut causes = causes.to_vec();
        causes.dedup();
        self.event.refusal = Some(RefusalReport { causes, outcome });
    }

    /// It was refused all the same, or sent as it came.
    pub(crate) fn was_not_spared(&mut self) {
        let refusal = &mut self.event.refusal;
        refusal.take_if(|it| it.outcome == RefusalOutcome::Spared);
    }

    /// µs since the request arrived.
    pub(crate) fn elapsed_us(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }

    /// The tenant and upstream that this exchange teaches about.
    pub(crate) fn about(&self) -> LearningSubject {
        let event = &self.event;
        LearningSubject {
            tenant: event.tenant.clone(),
            vouched: self.proxy.knows_apart(event.upstream.as_deref()),
            upstream: event.upstream.clone().unwrap_or_default(),
            model: event.model.clone().unwrap_or_default(),
        }
    }

    /// The host that is asked.
    pub(crate) fn upstream_host(&self) -> Option<Box<str>> {
        self.proxy.host_of(self.event.upstream.as_deref())
    }

    /// Counts a request body that is not collected, and gives it up where it stalls.
    pub(crate) fn counting(&mut self, body: OutgoingBody) -> OutgoingBody {
        let timeout = Duration::from_secs(self.proxy.config.limits.body_s);
        body.upload(self.through.get_or_insert_default(), timeout)
    }

    /// Whether the request's body brought nothing for too long, and was given up.
    pub(crate) fn body_timed_out(&self) -> bool {
        self.through.as_ref().is_some_and(|through| through.has_timed_out())
    }

    /// We stood aside; each reason is told once.
    pub(crate) fn stood_aside(&mut self, why: FailOpen) {
        add_once(&mut self.event.fail_open, why);
    }

    /// What was strange; each thing is told once.
    pub(crate) fn noted(&mut self, notes: impl IntoIterator<Item = Note>) {
        notes.into_iter().for_each(|note| add_once(&mut self.event.notes, note));
    }
}

/// What became of keeping a turn.
#[derive(Default)]
pub(crate) struct TurnOutcome {
    /// Why it was not kept.
    pub(crate) why: Option<FailOpen>,
    /// The reply ended before its terminal event, as was found when it was read.
    pub(crate) is_cut: bool,
    /// The exchange with what its reply said, where that was read after its end.
    pub(crate) read: Option<Box<Exchange>>,
}

impl TurnOutcome {
    /// Tells of it. What passed of the body meanwhile is known to `event` alone.
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

/// Adds what is not there yet.
pub(crate) fn add_once<T: PartialEq>(all: &mut Vec<T>, one: T) {
    if !all.contains(&one) {
        all.push(one);
    }
}

/// Whom something learned of an exchange is about.
pub(crate) struct LearningSubject {
    pub(crate) tenant: Option<TenantId>,
    /// See [`LessonSource::vouched`].
    pub(crate) vouched: bool,
    pub(crate) upstream: Box<str>,
    pub(crate) model: Box<str>,
}

impl LearningSubject {
    /// Where a lesson comes from.
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
        // Made here, so that a pointer and not an exchange moves from here on.
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
                // That it was not kept in time is told already.
                Err(_) => {}
            }
            tell(event);
            drop(phase);
        });
    }
}
