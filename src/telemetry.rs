//! Events in, metrics and log lines out: the only file that counts.
//!
//! Logic tells what happened, once per exchange; nothing is emitted per chunk. Labels come from
//! enums and configured names, so cardinality is bounded by types; unknown model names fold into
//! `other` past a limit. No prompt, reply or credential reaches an event (invariant 9).

pub mod clock;
pub mod event;
mod gaps;
mod labels;
mod live;
pub mod log;
pub mod metrics;
mod open;
mod refusal;
pub mod terminal;

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use foldhash::HashMap;
use tokio::sync::broadcast;

pub use self::event::{Compaction, Exchange, OpenExchange, StoreState};
pub use self::gaps::StreamGaps;
pub use self::labels::{
    AdminRefusal, ClientTimeout, CountEstimate, CountOutcome, FailOpen, KeptKind, LessonOutcome,
    MemoryKind, RefusalOutcome, RejectedConnection, RepeatCause, StoreOperation, SummaryOutcome,
};
pub use self::live::{ContextReduction, MessageEvent, MessageStep};
use self::log::{Log, LogFormat};
use self::metrics::Metrics;
pub use self::metrics::UpstreamMetrics;
pub use self::open::GaugeGuard;
pub use self::refusal::RefusalReport;
use crate::context::ExchangeId;

/// How many of the last exchanges can be asked for by id; older ones are only in the log.
pub const RECENT: usize = 512;
/// How many exchanges a slow listener may be behind; past it, it misses some and is told how many.
const BEHIND: usize = 256;
/// How many unknown models are named in the log.
const NAMED: usize = 200;

/// Where everything that happens is told.
pub struct Telemetry {
    metrics: Metrics,
    log: Log,
    recent: Mutex<VecDeque<Arc<Exchange>>>,
    live: broadcast::Sender<Arc<Exchange>>,
    news: broadcast::Sender<MessageEvent>,
    shrunk: broadcast::Sender<ContextReduction>,
    /// Requests that are on their way, by their exchange; each goes when its exchange is told.
    open_exchanges: Mutex<HashMap<ExchangeId, OpenExchange>>,
    unknown: Mutex<HashSet<Box<str>>>,
}

impl Telemetry {
    /// Counts into a registry of its own and logs as `log` says.
    ///
    /// # Errors
    /// Where two metrics were given the same name: a mistake of ours, which a test would meet.
    pub fn new(log: Log) -> Result<Arc<Self>, prometheus::Error> {
        Ok(Arc::new(Self {
            metrics: Metrics::new()?,
            log,
            recent: Mutex::new(VecDeque::with_capacity(RECENT)),
            live: broadcast::channel(BEHIND).0,
            news: broadcast::channel(BEHIND).0,
            shrunk: broadcast::channel(BEHIND).0,
            open_exchanges: Mutex::default(),
            unknown: Mutex::default(),
        }))
    }

    /// Counts, but logs nothing.
    ///
    /// # Errors
    /// As [`Telemetry::new`].
    pub fn silent() -> Result<Arc<Self>, prometheus::Error> {
        Self::new(Log::none())
    }

    /// Most bytes that traffic may make us hold.
    pub fn memory_limit(&self, bytes: u64) {
        self.metrics.memory.limit(bytes);
    }

    /// So many bytes more, or fewer, are held for traffic.
    pub fn memory_held(&self, kind: MemoryKind, more: i64) {
        self.metrics.memory.held(kind, more);
    }

    /// A request is on its way, until its exchange is told.
    pub fn exchange_opened(&self, open_exchange: OpenExchange) {
        for shrunk in ContextReduction::of(&open_exchange) {
            // Nobody listens: that is fine.
            let _ = self.shrunk.send(shrunk);
        }
        let mut open_exchanges = self.open_exchanges.lock().unwrap_or_else(PoisonError::into_inner);
        open_exchanges.insert(open_exchange.id.clone(), open_exchange);
    }

    /// How many exchanges are on their way: begun, read, and not told yet.
    pub fn in_flight(&self) -> usize {
        self.open_exchanges.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Requests on their way of which `fits` is true, the one that came last first.
    pub fn open_exchanges(&self, fits: impl Fn(&OpenExchange) -> bool) -> Vec<OpenExchange> {
        let open_exchanges = self.open_exchanges.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found: Vec<OpenExchange> =
            open_exchanges.values().filter(|it| fits(it)).cloned().collect();
        drop(open_exchanges);
        found.sort_by(|a, b| (b.at, &b.id).cmp(&(a.at, &a.id)));
        found
    }

    /// Tells of one exchange, at its end.
    pub fn tell(&self, exchange: impl Into<Arc<Exchange>>) {
        let exchange = exchange.into();
        self.open_exchanges.lock().unwrap_or_else(PoisonError::into_inner).remove(&exchange.id);
        self.metrics.count(&exchange);
        self.log.exchange(&exchange);
        if exchange.estimate.as_ref().is_some_and(|estimate| estimate.breakdown.capped) {
            tracing::warn!(
                "request {}: system prompt and tools are estimated larger than the whole, so that \
                 messages are shown as 0",
                exchange.id
            );
        }
        if exchange.fail_open.contains(&FailOpen::CommitLate) {
            tracing::warn!(
                "request {}: its turn was not kept within limits.commit_ms; the reply ended without waiting longer",
                exchange.id
            );
        }
        // Nobody listens: that is fine.
        let _ = self.live.send(exchange.clone());
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if recent.len() == RECENT {
            recent.pop_front();
        }
        recent.push_back(exchange);
    }

    /// Every exchange from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<Exchange>> {
        self.live.subscribe()
    }

    /// These upstreams are configured: what is counted for each of them begins at 0, so that the first event
    /// shows as an increase.
    pub fn begin_at_zero<'u>(&self, upstreams: impl IntoIterator<Item = &'u str>) {
        upstreams.into_iter().for_each(|upstream| self.metrics.begin_at_zero(upstream));
    }

    /// A connection past `limits.connections` is gone.
    pub fn turned_away(&self, got: RejectedConnection) {
        self.metrics.turned_away(got);
    }

    /// A request waited for what the store knows of its session.
    pub fn session_loaded(&self, waited: Duration) {
        self.metrics.session_loaded(waited);
    }

    /// Whether what is learned cannot be kept or read, though the store was opened.
    pub fn store_fails(&self, fails: bool) {
        self.metrics.store_fails(fails);
    }

    /// A client took too long.
    pub fn client_timed_out(&self, kind: ClientTimeout) {
        self.metrics.client_timed_out(kind);
    }

    /// What is past its time could not be forgotten.
    pub fn retention_failed(&self) {
        self.metrics.retention_failures.inc();
    }

    /// So many exchanges were on their way when a process ended without a stop.
    pub fn found_interrupted(&self, count: u64) {
        self.metrics.interrupted.inc_by(count);
    }

    /// Something happened to queued words.
    pub fn announce(&self, news: MessageEvent) {
        // Nobody listens: that is fine.
        let _ = self.news.send(news);
    }

    /// What happens to queued words from now on.
    pub fn news(&self) -> broadcast::Receiver<MessageEvent> {
        self.news.subscribe()
    }

    /// Contexts that are made smaller from now on.
    pub fn shrunk(&self) -> broadcast::Receiver<ContextReduction> {
        self.shrunk.subscribe()
    }

    /// One of the last [`RECENT`] exchanges.
    pub fn recent(&self, id: &ExchangeId) -> Option<Arc<Exchange>> {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.iter().rev().find(|exchange| exchange.id == *id).cloned()
    }

    /// The last exchange of which `fits` is true.
    pub fn last(&self, fits: impl Fn(&Exchange) -> bool) -> Option<Arc<Exchange>> {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.iter().rev().find(|exchange| fits(exchange)).cloned()
    }

    /// The metrics, in Prometheus' text format.
    pub fn render(&self) -> String {
        self.metrics.render(self.log.dropped())
    }

    /// A client connection is open while this is held.
    pub fn connection(&self) -> GaugeGuard {
        GaugeGuard::of(self.metrics.connections.clone())
    }

    /// A response streams while this is held.
    pub fn stream(&self) -> GaugeGuard {
        GaugeGuard::of(self.metrics.streams.clone())
    }

    /// A request on a WebSocket is under way while this is held.
    pub fn websocket_request(&self) -> GaugeGuard {
        GaugeGuard::of(self.metrics.websocket_requests.clone())
    }

    /// A session is being exported while this is held.
    pub fn export(&self) -> GaugeGuard {
        GaugeGuard::of(self.metrics.exports.clone())
    }

    /// What is counted of the connections to an upstream.
    pub fn upstream(&self, name: &str) -> UpstreamMetrics {
        self.metrics.upstream_connections.of(name)
    }

    /// A summary was written, or was not.
    pub fn compacted(&self, compaction: &Compaction) {
        self.metrics.count_compaction(compaction);
        let Compaction { upstream, outcome, before, after, seconds, .. } = compaction;
        let outcome = log::word(outcome);
        match after {
            Some(after) => tracing::info!(
                "{upstream}: history compacted from {before} to {after} tokens, in {seconds:.1} s"
            ),
            None => tracing::warn!(
                "{upstream}: no summary after {seconds:.1} s ({outcome}); the history stays as it is"
            ),
        }
    }

    /// A counting endpoint was asked, or was not.
    pub fn asked_to_count(&self, upstream: &str, outcome: CountOutcome) {
        self.metrics.asked_to_count(upstream, outcome);
    }

    /// A refusal could teach, and did or did not.
    pub fn lesson(&self, upstream: &str, outcome: LessonOutcome) {
        self.metrics.lesson(upstream, outcome);
    }

    /// What answers have taught of a model so far: how many did, and how wide its band is, in multiples of
    /// what counting is expected to miss.
    pub fn learned(&self, upstream: &str, model: &str, state: (u64, f32)) {
        self.metrics.learned(upstream, model, state);
    }

    /// The store took this long to answer, or to fail.
    pub fn store_took(&self, operation: StoreOperation, took: Duration, succeeded: bool) {
        self.metrics.store_took(operation, took, succeeded);
    }

    /// Something that is kept in memory has a bound of so many bytes.
    pub fn kept_limit(&self, what: KeptKind, bytes: usize) {
        self.metrics.memory.kept_limit(what, bytes);
    }

    /// So many bytes of it are kept now.
    pub fn kept(&self, what: KeptKind, bytes: usize) {
        self.metrics.memory.kept(what, bytes);
    }

    /// How the store is; `None` where it cannot be used.
    pub fn store_is(&self, state: Option<&StoreState>) {
        self.metrics.store_is(state);
    }

    /// So many threads do what would hold up others.
    pub fn blocking_threads(&self, threads: usize) {
        self.metrics.blocking_threads(threads);
    }

    /// So many sessions were forgotten, because their time or room was up.
    pub fn store_forgot(&self, sessions: u64) {
        self.metrics.store_forgot(sessions);
    }

    /// The admin listener refused a request.
    pub fn admin_refused(&self, why: AdminRefusal) {
        self.metrics.admin_refused(why);
    }

    /// A model that is not in the catalogue was asked for: it is named once in the log.
    pub fn unknown_model(&self, upstream: &str, model: &str) {
        let mut unknown = self.unknown.lock().unwrap_or_else(PoisonError::into_inner);
        if unknown.len() >= NAMED || unknown.contains(model) {
            return;
        }
        unknown.insert(model.into());
        tracing::warn!(
            "{upstream}: model {:?} is not in the catalogue: a safe default is used as \
             its window; set window_tokens under [model.NAME] in the configuration",
            log::clean(model)
        );
    }

    /// Waits until every log line so far is written.
    pub fn flush(&self) {
        self.log.flush();
    }

    /// The log, for diagnostics beside the exchanges.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Text or JSON.
    pub fn form(&self) -> LogFormat {
        self.log.form()
    }

    /// Name, kind, labels and help of every metric of ours.
    pub fn table(&self) -> &[metrics::MetricRow] {
        self.metrics.table()
    }
}

#[cfg(test)]
mod tests;
