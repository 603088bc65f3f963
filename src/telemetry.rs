//! Events in, metrics and log lines out: no other file counts.
//!
//! The product reports each exchange once; nothing is emitted per chunk. Labels come from enums and
//! configured names, so their number is bounded by types; past a limit unknown model names become `other`. No
//! prompt, reply or credential is in an event (invariant 9).

mod chunks;
mod diagnostics;
mod event;
mod failures;
mod labels;
mod live;
pub mod log;
mod metrics;
mod open;
mod quotas;
mod refusal;
pub(crate) mod terminal;
mod trace;

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use foldhash::HashMap;
use jiff::civil::Date;
use tokio::sync::{broadcast, mpsc};

#[cfg_attr(not(feature = "otel"), allow(unused_imports))]
pub(crate) use self::chunks::CHUNK_SECONDS;
pub use self::chunks::ChunkTimes;
#[cfg_attr(not(feature = "otel"), allow(unused_imports))]
pub(crate) use self::diagnostics::Diagnostic;
pub use self::event::{Compaction, Exchange, ExchangeTiming, OpenExchange};
pub(crate) use self::event::{StoreState, micros};
pub(crate) use self::failures::FailedCall;
use self::failures::FailureBoard;
pub(crate) use self::labels::{
    AdminRefusal, CacheKind, ClientTimeout, CountOutcome, LessonOutcome, MemoryKind, OtelOutcome,
    RejectedConnection, RepeatCause, StoreOperation, WarehouseOutcome,
};
pub use self::labels::{CountEstimate, FailOpen, RefusalOutcome, SummaryOutcome};
pub use self::live::{ContextReduction, MessageEvent, MessageStep};
use self::log::Log;
use self::metrics::Metrics;
pub(crate) use self::metrics::{MetricsFormat, UpstreamMetrics};
pub(crate) use self::open::GaugeGuard;
use self::quotas::QuotaBoard;
pub use self::quotas::QuotaState;
pub use self::refusal::RefusalReport;
pub use self::trace::{ExchangeTrace, StepKind, TraceStep};
pub(crate) use self::trace::{TRACEPARENT, TRACESTATE};
use crate::clock::wall;
use crate::config::OtelSignal;
use crate::context::{ExchangeId, Millis, TenantId};
use crate::dialect::Note;
use crate::dialect::quota::Quota;

/// How many of the last exchanges can be looked up by id; older ones are only in the log.
pub const RECENT: usize = 512;
/// How many exchanges a slow subscriber may lag behind; past it, it misses some and learns how many.
const BEHIND: usize = 256;
/// An hour, ms.
const HOUR_MS: u64 = 3_600_000;
/// How many unknown or retiring models are named in the log.
const NAMED: usize = 200;

/// Receives all events.
pub struct Telemetry {
    metrics: Metrics,
    log: Log,
    recent: Mutex<VecDeque<Arc<Exchange>>>,
    live: broadcast::Sender<Arc<Exchange>>,
    messages: broadcast::Sender<MessageEvent>,
    shrunk: broadcast::Sender<ContextReduction>,
    quotas: QuotaBoard,
    failures: FailureBoard,
    /// Requests in flight, by exchange id; each is removed when its exchange is reported.
    open_exchanges: Mutex<HashMap<ExchangeId, OpenExchange>>,
    /// Unknown and retiring models that the log has named.
    named: Mutex<HashSet<Box<str>>>,
    /// Upstream and model of which an impossible count was named.
    impossible: Mutex<HashSet<String>>,
    /// The hour, and the upstreams and models of which it was told in it that parts are estimated larger than the whole.
    capped: Mutex<(u64, HashSet<String>)>,
}

impl Telemetry {
    /// Counts in a registry of its own, and logs to `log`.
    ///
    /// # Errors
    /// If two metrics have the same name: a mistake of ours, which a test would find.
    pub fn new(log: Log) -> Result<Arc<Self>, prometheus::Error> {
        Ok(Arc::new(Self {
            metrics: Metrics::new()?,
            log,
            recent: Mutex::new(VecDeque::with_capacity(RECENT)),
            live: broadcast::channel(BEHIND).0,
            messages: broadcast::channel(BEHIND).0,
            shrunk: broadcast::channel(BEHIND).0,
            quotas: QuotaBoard::default(),
            failures: FailureBoard::new(wall()),
            open_exchanges: Mutex::default(),
            named: Mutex::default(),
            impossible: Mutex::default(),
            capped: Mutex::default(),
        }))
    }

    /// Counts, but logs nothing.
    ///
    /// # Errors
    /// As [`Telemetry::new`].
    pub fn silent() -> Result<Arc<Self>, prometheus::Error> {
        Self::new(Log::none())
    }

    /// Counts cost and tokens by the values of these tags, too.
    pub(crate) fn label_tags(&self, names: &[String]) {
        self.metrics.label_tags(names);
    }

    /// Sets the limit of memory for traffic, in bytes.
    pub(crate) fn memory_limit(&self, bytes: u64) {
        self.metrics.memory.limit(bytes);
    }

    /// Traffic holds `more` bytes more, or fewer if negative.
    pub(crate) fn memory_held(&self, kind: MemoryKind, more: i64) {
        self.metrics.memory.held(kind, more);
    }

    /// A response told of limits.
    pub(crate) fn quotas_told(
        &self,
        upstream: &str,
        tenant: Option<&TenantId>,
        quotas: Vec<Quota>,
        at: Millis,
    ) {
        if !quotas.is_empty() {
            self.quotas.told(upstream, tenant, quotas, at);
        }
    }

    /// The limits that responses told of, the most used one first.
    pub(crate) fn quotas(&self, now: Millis) -> Vec<QuotaState> {
        self.quotas.list(now)
    }

    /// The calls since a time that failed and became no turn, oldest first.
    pub(crate) fn failures(&self, since: Millis) -> Vec<FailedCall> {
        self.failures.since(since)
    }

    /// Since when all of them are known.
    pub(crate) fn failures_complete_since(&self) -> Millis {
        self.failures.complete_since()
    }

    /// A request is in flight from now until its exchange is reported.
    pub fn exchange_opened(&self, open_exchange: OpenExchange) {
        for shrunk in ContextReduction::from_open(&open_exchange) {
            // It is fine if nobody subscribes.
            let _ = self.shrunk.send(shrunk);
        }
        let mut open_exchanges = self.open_exchanges.lock().unwrap_or_else(PoisonError::into_inner);
        open_exchanges.insert(open_exchange.id.clone(), open_exchange);
    }

    /// The number of exchanges in flight: begun, read, and not yet reported.
    pub(crate) fn in_flight(&self) -> usize {
        self.open_exchanges.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Requests in flight for which `fits` is true, newest first.
    pub(crate) fn open_exchanges(&self, fits: impl Fn(&OpenExchange) -> bool) -> Vec<OpenExchange> {
        let open_exchanges = self.open_exchanges.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found: Vec<OpenExchange> =
            open_exchanges.values().filter(|exchange| fits(exchange)).cloned().collect();
        drop(open_exchanges);
        found.sort_by(|a, b| (b.at, &b.id).cmp(&(a.at, &a.id)));
        found
    }

    /// Reports an exchange at its end.
    pub fn report(&self, exchange: impl Into<Arc<Exchange>>) {
        let mut exchange = exchange.into();
        if exchange.notes.contains(&Note::ImpossibleCount) && !self.tells_impossible(&exchange) {
            Arc::make_mut(&mut exchange).notes.retain(|note| *note != Note::ImpossibleCount);
        }
        self.open_exchanges.lock().unwrap_or_else(PoisonError::into_inner).remove(&exchange.id);
        self.metrics.count(&exchange);
        self.log.exchange(&exchange);
        self.failures.add(&exchange);
        if exchange.is_capped() && self.is_capped_first(&exchange) {
            tracing::warn!(
                "{}: model {:?}: system prompt and tools are estimated larger than the whole, so that messages \
                 are shown as 0 (request {}; others of this model are not named for an hour)",
                exchange.upstream.as_deref().unwrap_or_default(),
                log::clean(exchange.model.as_deref().unwrap_or_default()),
                exchange.id
            );
        }
        if exchange.fail_open.contains(&FailOpen::CommitLate) {
            tracing::warn!(
                "request {}: its turn was not stored in time; the reply ended without waiting longer",
                exchange.id
            );
        }
        // It is fine if nobody subscribes.
        let _ = self.live.send(exchange.clone());
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if recent.len() == RECENT {
            recent.pop_front();
        }
        recent.push_back(exchange);
    }

    /// Subscribes to all exchanges from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<Exchange>> {
        self.live.subscribe()
    }

    /// Creates the series of the configured upstreams with 0, so that the first event shows as an increase.
    pub(crate) fn begin_at_zero<'u>(&self, upstreams: impl IntoIterator<Item = &'u str>) {
        for upstream in upstreams {
            self.metrics.begin_upstream_at_zero(upstream);
        }
    }

    /// Names the configured preset, so that the metrics of several processes can be compared by it.
    pub(crate) fn name_preset(&self, preset: &str) {
        self.metrics.name_preset(preset);
    }

    /// A connection past `limits.connections` was rejected.
    pub(crate) fn connection_refused(&self, got: RejectedConnection) {
        self.metrics.connection_refused(got);
    }

    /// A request waited for the stored data of its session.
    pub(crate) fn session_loaded(&self, waited: Duration) {
        self.metrics.store.session_loaded(waited);
    }

    /// A client took too long.
    pub(crate) fn client_timed_out(&self, kind: ClientTimeout) {
        self.metrics.client_timed_out(kind);
    }

    /// Expired data could not be deleted.
    pub(crate) fn retention_failed(&self) {
        self.metrics.store.retention_failures.inc();
    }

    /// `count` exchanges were in flight when an earlier process ended without a shutdown.
    pub(crate) fn found_interrupted(&self, count: u64) {
        self.metrics.store.interrupted.inc_by(count);
    }

    /// Something happened to a queued message.
    pub fn announce(&self, message: MessageEvent) {
        // It is fine if nobody subscribes.
        let _ = self.messages.send(message);
    }

    /// Subscribes to events of queued messages from now on.
    pub fn messages(&self) -> broadcast::Receiver<MessageEvent> {
        self.messages.subscribe()
    }

    /// Subscribes to reductions of contexts from now on.
    pub fn shrunk(&self) -> broadcast::Receiver<ContextReduction> {
        self.shrunk.subscribe()
    }

    /// The exchange with this id, if it is one of the last [`RECENT`].
    pub fn recent(&self, id: &ExchangeId) -> Option<Arc<Exchange>> {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.iter().rev().find(|exchange| exchange.id == *id).cloned()
    }

    /// Shows how much of a spending cap is spent.
    pub(crate) fn show_cap(&self, cap: &str, used: f64) {
        self.metrics.traffic.show_cap(cap, used);
    }

    /// The metrics, in Prometheus' text format.
    pub fn render(&self) -> String {
        self.render_as(MetricsFormat::Prometheus)
    }

    /// The metrics, in this format.
    pub(crate) fn render_as(&self, format: MetricsFormat) -> String {
        for ((upstream, kind), used) in self.quotas.largest(wall()) {
            self.metrics.traffic.show_quota(&upstream, kind, used);
        }
        self.metrics.render(self.log.dropped(), format)
    }

    /// Counts a client connection as open while the guard is held.
    pub(crate) fn connection(&self) -> GaugeGuard {
        GaugeGuard::new(self.metrics.connections())
    }

    /// Counts a response, or a request on a WebSocket, as in flight while the guard is held.
    pub(crate) fn stream(&self) -> GaugeGuard {
        GaugeGuard::new(self.metrics.streams())
    }

    /// The metrics of the connections to an upstream.
    pub(crate) fn upstream(&self, name: &str) -> UpstreamMetrics {
        self.metrics.upstream_connections.upstream(name)
    }

    /// A summary was written, or failed.
    pub(crate) fn compacted(&self, compaction: &Compaction) {
        self.metrics.count_compaction(compaction);
        let Compaction { upstream, outcome, before, after, seconds, .. } = compaction;
        let outcome = outcome.as_ref();
        match after {
            Some(after) => tracing::info!(
                "{upstream}: a summary was written in {seconds:.1} s: {after} tokens in place of {before}; a later \
                 request uses it"
            ),
            None => tracing::warn!(
                "{upstream}: no summary after {seconds:.1} s ({outcome}); the history stays as it is"
            ),
        }
    }

    /// A counting endpoint was called, or deliberately was not.
    pub(crate) fn counted_by_provider(&self, upstream: &str, outcome: CountOutcome) {
        self.metrics.counted_by_provider(upstream, outcome);
    }

    /// A refusal could teach a lesson, and did or did not.
    pub(crate) fn lesson(&self, upstream: &str, outcome: LessonOutcome) {
        self.metrics.lesson(upstream, outcome);
    }

    /// What responses have taught about a model so far: how many did, and the width of its range in multiples
    /// of the expected error.
    pub(crate) fn learned(&self, upstream: &str, model: &str, lessons: u64, band: f32) {
        self.metrics.learned(upstream, model, lessons, band);
    }

    /// The store took this long to answer or to fail.
    pub(crate) fn store_took(&self, operation: StoreOperation, took: Duration, succeeded: bool) {
        self.metrics.store.took(operation, took, succeeded);
    }

    /// Sets the limit of a kind of cached data, bytes.
    pub(crate) fn set_cache_limit(&self, what: CacheKind, bytes: usize) {
        self.metrics.memory.set_cache_limit(what, bytes);
    }

    /// Sets the size of a kind of cached data, bytes.
    pub(crate) fn set_cached(&self, what: CacheKind, bytes: usize) {
        self.metrics.memory.set_cached(what, bytes);
    }

    /// Sets the state of the store; `None` if it cannot be used.
    pub(crate) fn set_store_state(&self, state: Option<&StoreState>) {
        self.metrics.store.set_state(state);
    }

    /// The number of threads that run blocking work.
    pub(crate) fn blocking_threads(&self, threads: usize) {
        self.metrics.blocking_threads(threads);
    }

    /// This many sessions were deleted, because they expired or the store was full.
    pub(crate) fn sessions_expired(&self, sessions: u64) {
        self.metrics.store.forgotten.inc_by(sessions);
    }

    /// The admin listener refused a request.
    pub(crate) fn admin_refused(&self, why: AdminRefusal) {
        self.metrics.admin_refused(why);
    }

    /// A model was requested that its maker soon no longer offers: it is named once in the log.
    pub(crate) fn retiring_model(&self, upstream: &str, model: &str, day: Date) {
        if self.is_named_first(model) {
            tracing::warn!(
                "{upstream}: model {:?} is no longer offered by its maker from {day} on; `plimsoll models NAME` shows the day of \
                 another",
                log::clean(model)
            );
        }
    }

    fn is_named_first(&self, model: &str) -> bool {
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        named.len() < NAMED && named.insert(model.into())
    }

    /// A model whose window is unknown was requested: it is named once in the log.
    pub(crate) fn unknown_model(&self, upstream: &str, model: &str) {
        if !self.is_named_first(model) {
            return;
        }
        tracing::warn!(
            "{upstream}: model {:?} is not in the catalogue, so its window is a guess: histories are compacted only \
             on request or after the provider refuses one, and nothing is cut because the window fills. Set \
             window_tokens under [model.NAME] or [upstream.NAME]",
            log::clean(model)
        );
    }

    /// Whether an exchange is the first of its upstream and model with a count that cannot be: only that one tells
    /// of it, because such a provider sends it each time.
    fn tells_impossible(&self, exchange: &Exchange) -> bool {
        let upstream = exchange.upstream.as_deref().unwrap_or_default();
        let model = exchange.model.as_deref().unwrap_or_default();
        let mut named = self.impossible.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = named.len() < NAMED && named.insert(format!("{upstream}\n{model}"));
        if is_new {
            tracing::warn!(
                "{upstream}: model {:?} reported a count of tokens that cannot be: negative, not whole, or more than \
                 it can read or write. Such counts are unknown: they are in no sum, and nothing is decided by them \
                 (request {})",
                log::clean(model),
                exchange.id
            );
        }
        is_new
    }

    /// Whether an exchange is the first of its upstream, model and hour whose parts are estimated larger than the whole: a
    /// provider that counts with another tokenizer than the model's causes it on nearly every request.
    fn is_capped_first(&self, exchange: &Exchange) -> bool {
        let upstream = exchange.upstream.as_deref().unwrap_or_default();
        let model = exchange.model.as_deref().unwrap_or_default();
        let hour = exchange.at / HOUR_MS;
        let mut named = self.capped.lock().unwrap_or_else(PoisonError::into_inner);
        if named.0 != hour {
            *named = (hour, HashSet::new());
        }
        named.1.len() < NAMED && named.1.insert(format!("{upstream}\n{model}"))
    }

    /// The process's diagnostics since its start, once. If what is returned is dropped, none is kept any more.
    #[cfg_attr(not(feature = "otel"), allow(dead_code))]
    pub(crate) fn diagnostics(&self) -> Option<mpsc::Receiver<Diagnostic>> {
        self.log.feed.take()
    }

    /// How many of them were lost since this was asked, because they were not taken in time.
    #[cfg_attr(not(feature = "otel"), allow(dead_code))]
    pub(crate) fn lost_diagnostics(&self) -> usize {
        self.log.feed.take_lost()
    }

    /// Spans or metrics were sent to a collector, or dropped.
    #[cfg_attr(not(feature = "otel"), allow(dead_code))]
    pub(crate) fn count_otel(&self, signal: OtelSignal, outcome: OtelOutcome, items: usize) {
        self.metrics.count_otel(signal, outcome, items);
    }

    /// Turns were written to the warehouse, or dropped.
    pub(crate) fn count_warehouse(&self, outcome: WarehouseOutcome, turns: usize) {
        self.metrics.count_warehouse(outcome, turns);
    }

    /// Waits until every log line so far is written.
    pub(crate) fn flush(&self) {
        self.log.flush();
    }

    /// Name, kind, labels and help of all our metrics.
    #[cfg(test)]
    fn table(&self) -> &[metrics::MetricRow] {
        self.metrics.table()
    }
}

#[cfg(test)]
mod series_tests;
#[cfg(test)]
mod tests;
