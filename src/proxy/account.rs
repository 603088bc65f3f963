//! One exchange's account: what will be told of it, when it ends.
//!
//! Guards invariant 6: an account tells when it is dropped, and only then, so whoever holds it last
//! (the exchange, the tap, a tunnel) cannot end without telling, nor tell twice. Where its turn is
//! still being kept then, it tells once that is done: who hears of it finds it. A drain waits for every
//! open account.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use http::{HeaderMap, HeaderName, HeaderValue, Request};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::body::Outgoing;
use super::memory::{HeldMemory, MemoryShare};
use super::progress::Underway;
use super::{Phase, Proxy, now};
use crate::dialect::Note;
use crate::dialect::credentials::redact;
use crate::store::lessons::Source;
use crate::telemetry::{Exchange, FailOpen, MemoryKind, Open};
use crate::wire::memory::Memory as _;

/// The response header that names the exchange.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-plimsoll-request-id");

/// No exchange is told later than this after its end, kept or not.
const TOLD_WITHIN: Duration = Duration::from_secs(5);

/// What an exchange takes by itself: its tasks, and what is known of it.
const EXCHANGE: usize = 32 * 1024;
/// How often headers are held: as they came, and as they go out.
const HEADERS: usize = 2;

/// What is known so far of an exchange; told on drop.
pub(crate) struct Account {
    pub(crate) proxy: Arc<Proxy>,
    /// When the request arrived.
    pub(crate) began: Instant,
    /// As it will be told.
    pub(crate) event: Box<Exchange>,
    /// Held while a response streams.
    pub(crate) stream: Option<Open>,
    /// Time spent on the response's frames, ns; a single frame takes less than a µs.
    pub(crate) response_side_ns: u64,
    /// Bytes of a request body that streams through.
    through: Option<Arc<AtomicU64>>,
    /// Its turn, where nobody waits for that to be kept.
    pub(crate) keeping: Option<JoinHandle<()>>,
    /// Its connection's part of the budget of memory.
    pub(crate) memory: Arc<MemoryShare>,
    /// What it takes of that by itself.
    pub(crate) taken: HeldMemory,
    /// What a drain says; it ends when nobody listens any more.
    pub(crate) phase: watch::Receiver<Phase>,
}

impl Account {
    /// An exchange begins.
    pub(crate) fn open<B>(
        proxy: &Arc<Proxy>,
        request: &Request<B>,
        memory: &Arc<MemoryShare>,
        phase: watch::Receiver<Phase>,
    ) -> Self {
        proxy.exchanges.fetch_add(1, Ordering::Relaxed);
        memory.progress().begin(Underway::Exchange);
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

    /// Puts the exchange's id on its response, where the configuration wants that.
    pub(crate) fn stamp(&self, headers: &mut HeaderMap) {
        if self.proxy.config.request_id_header
            && let Ok(id) = HeaderValue::from_str(&self.event.id)
        {
            headers.insert(REQUEST_ID, id);
        }
    }

    /// µs since the request arrived.
    pub(crate) fn elapsed_us(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }

    /// Whom what is learned of it is about.
    pub(crate) fn about(&self) -> About {
        let event = &self.event;
        About {
            tenant: event.tenant.clone(),
            vouched: self.proxy.knows_apart(event.upstream.as_deref()),
            upstream: event.upstream.clone().unwrap_or_default(),
            model: event.model.clone().unwrap_or_default(),
        }
    }

    /// The host that is asked.
    pub(crate) fn upstream_host(&self) -> Option<Box<str>> {
        let upstream = self.proxy.upstream(self.event.upstream.as_deref())?;
        upstream.base.host().map(Into::into)
    }

    /// Counts a request body that is not collected.
    pub(crate) fn counting(&mut self, body: Outgoing) -> Outgoing {
        body.counted(self.through.get_or_insert_default())
    }

    /// We stood aside; each reason is told once.
    pub(crate) fn stood_aside(&mut self, why: FailOpen) {
        if !self.event.fail_open.contains(&why) {
            self.event.fail_open.push(why);
        }
    }

    /// What was strange; each thing is told once.
    pub(crate) fn noted(&mut self, notes: impl IntoIterator<Item = Note>) {
        for note in notes {
            if !self.event.notes.contains(&note) {
                self.event.notes.push(note);
            }
        }
    }
}

/// Whom something learned of an exchange is about.
pub(crate) struct About {
    pub(crate) tenant: Option<Box<str>>,
    /// See [`Source::vouched`].
    pub(crate) vouched: bool,
    pub(crate) upstream: Box<str>,
    pub(crate) model: Box<str>,
}

impl About {
    /// Where a lesson comes from.
    pub(crate) fn source(&self) -> Source<'_> {
        let Self { tenant, upstream, model, vouched, .. } = self;
        Source { tenant: tenant.as_deref(), upstream, model, vouched: *vouched }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.memory.progress().end(Underway::Exchange);
        let empty = Exchange::begun("".into(), 0, "", "");
        let mut event = std::mem::replace(&mut *self.event, empty);
        event.duration_us = self.elapsed_us();
        event.response_side_us = self.response_side_ns / 1000;
        if let Some(through) = &self.through {
            event.request_bytes = through.load(Ordering::Relaxed);
        }
        // Made here, so that a pointer and not an exchange moves from here on.
        let event = Arc::new(event);
        let proxy = self.proxy.clone();
        let tell = move || {
            proxy.exchanges.fetch_sub(1, Ordering::Relaxed);
            proxy.telemetry.tell(event);
        };
        let keeping = self.keeping.take().filter(|keeping| !keeping.is_finished());
        let (Some(keeping), Ok(runtime)) = (keeping, Handle::try_current()) else { return tell() };
        let phase = self.phase.clone();
        runtime.spawn(async move {
            // Whether and why it was not kept in time is told already.
            let _ = timeout(TOLD_WITHIN, keeping).await;
            tell();
            drop(phase);
        });
    }
}
