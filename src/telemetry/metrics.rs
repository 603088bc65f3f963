//! The metrics: which exist, and how an exchange counts.
//!
//! Follows Prometheus' conventions: base units, `_total`, help texts. Label values come from enums,
//! configured upstreams and a bounded list of models, so nothing a client sends can grow them without end.
//! `docs/metrics.md` is the same table; a test compares them.

mod accuracy;
mod clients;
mod compacting;
mod memory;

mod handles;
mod make;
mod rewriting;
mod store;
mod traffic;
mod upstreams;
mod zero;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus::{
    Counter, Encoder, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
    Registry, TextEncoder,
};

use self::accuracy::AccuracyMetrics;
use self::clients::ClientMetrics;
use self::compacting::CompactionMetrics;
use self::handles::{HandleMap, ModelHandles, UpstreamHandles, handles, known};

#[cfg(test)]
pub(super) use self::make::MetricRow;
use self::make::{MetricRegistrar, NONE, SECONDS};
use self::memory::MemoryMetrics;
use self::rewriting::RewriteMetrics;
use self::traffic::{TrafficHandles, TrafficKey, UsageHandles};
use self::upstreams::UpstreamConnections;
pub(crate) use self::upstreams::UpstreamMetrics;
use super::event::{Compaction, Exchange};
use super::gaps::BOUNDS;
use super::labels::{AdminRefusal, ClientTimeout, CountOutcome, LessonOutcome, RejectedConnection};
use super::log::variant_name;

/// The number of model names that become labels; all others are `other`.
pub(super) const MODELS: usize = 50;
/// The longest model name that becomes a label; a longer one is `other`.
const LONGEST: usize = 80;

/// From 10 µs to 1 s: our own time.
const FAST: &[f64] =
    &[1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 0.1, 0.25, 1.0];
/// From 0.25 ms to 10 s: the time that a request waits for its session.
const FIRST_LOAD: &[f64] =
    &[2.5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.15, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0];
/// From 0.1 µs to 1 ms: our own time per event.
const EVENT: &[f64] = &[1e-7, 5e-7, 1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 1e-3];
/// Shares of the window.
const FILL: &[f64] = &[0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0];

/// All metrics of the process.
pub(super) struct Metrics {
    registry: Registry,
    #[cfg(test)]
    table: Vec<MetricRow>,
    pub(super) connections: IntGauge,
    pub(super) streams: IntGauge,
    pub(super) websocket_requests: IntGauge,
    pub(super) exports: IntGauge,
    pub(super) retention_failures: IntCounter,
    pub(super) interrupted: IntCounter,
    pub(super) memory: MemoryMetrics,
    families: MetricFamilies,
    rewriting: RewriteMetrics,
    compacting: CompactionMetrics,
    clients: ClientMetrics,
    pub(super) upstream_connections: UpstreamConnections,
    accuracy: AccuracyMetrics,
    /// By upstream name.
    upstreams: HandleMap<String, UpstreamHandles>,
    models: Mutex<HashSet<Box<str>>>,
}

/// The metrics with labels.
struct MetricFamilies {
    requests: IntCounterVec,
    first_byte: HistogramVec,
    duration: HistogramVec,
    request_bytes: IntCounterVec,
    response_bytes: IntCounterVec,
    overhead: HistogramVec,
    event: Histogram,
    events: IntCounter,
    response_side: Counter,
    tokens: IntCounterVec,
    cache_reported: IntCounterVec,
    cache_hits: IntCounterVec,
    fill: HistogramVec,
    repeated_calls: IntCounterVec,
    gaps: HistogramVec,
    silent: IntCounterVec,
    fail_open: IntCounterVec,
    errors: IntCounterVec,
    notes: IntCounterVec,
    counts: IntCounterVec,
    counts_estimated: IntCounterVec,
    lessons: IntCounterVec,
    session_load: Histogram,
    store: HistogramVec,
    store_failures: IntCounterVec,
    store_unusable: IntGauge,
    store_failing: IntGauge,
    store_bytes: IntGauge,
    store_threads: IntGauge,
    blocking_threads: IntGauge,
    store_restarts: IntGauge,
    store_waiting: IntGaugeVec,
    store_forgotten: IntCounter,
    turned: IntCounterVec,
    client_timeouts: IntCounterVec,
    log_dropped: IntCounter,
    admin_refusals: IntCounterVec,
}

impl Metrics {
    pub(super) fn new() -> Result<Self, prometheus::Error> {
        let mut make = MetricRegistrar { registry: Registry::new(), table: Vec::new() };
        let families = MetricFamilies::new(&mut make)?;
        let rewriting = RewriteMetrics::new(&mut make)?;
        let compacting = CompactionMetrics::new(&mut make)?;
        let clients = ClientMetrics::new(&mut make)?;
        let upstream_connections = UpstreamConnections::new(&mut make)?;
        let accuracy = AccuracyMetrics::new(&mut make)?;
        let connections =
            make.gauge("plimsoll_connections", "Client connections that are open.")?;
        let streams = make.gauge("plimsoll_active_streams", "Responses in flight to clients.")?;
        let websocket_requests = make.gauge(
            "plimsoll_websocket_requests",
            "Requests on WebSockets that wait for their replies.",
        )?;
        let exports = make.gauge("plimsoll_exports", "Sessions that are being exported.")?;
        let retention_failures = make.counter(
            "plimsoll_retention_failures_total",
            "Times that old sessions could not be deleted.",
        )?;
        let interrupted = make.counter(
            "plimsoll_interrupted_exchanges_total",
            "Exchanges that were in flight when a process was killed; they were found at a later start and stored as interrupted.",
        )?;
        let memory = MemoryMetrics::new(&mut make)?;
        make.build_info()?;
        #[cfg(target_os = "linux")]
        make.registry
            .register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
        families.begin_at_zero();
        Ok(Self {
            registry: make.registry,
            #[cfg(test)]
            table: make.table,
            connections,
            streams,
            websocket_requests,
            exports,
            retention_failures,
            interrupted,
            memory,
            families,
            rewriting,
            compacting,
            clients,
            upstream_connections,
            accuracy,
            upstreams: Mutex::default(),
            models: Mutex::default(),
        })
    }

    #[cfg(test)]
    pub(super) fn table(&self) -> &[MetricRow] {
        &self.table
    }

    /// All metrics, in Prometheus' text format.
    pub(super) fn render(&self, log_dropped: u64) -> String {
        let counted = self.families.log_dropped.get();
        self.families.log_dropped.inc_by(log_dropped.saturating_sub(counted));
        let mut out = Vec::new();
        // Writing to memory cannot fail, and a broken family does not affect the others.
        let _ = TextEncoder::new().encode(&self.registry.gather(), &mut out);
        String::from_utf8_lossy(&out).into_owned()
    }

    pub(super) fn counted_by_provider(&self, upstream: &str, outcome: CountOutcome) {
        self.families.counts.with_label_values(&[upstream, &variant_name(outcome)]).inc();
    }

    pub(super) fn admin_refused(&self, why: AdminRefusal) {
        self.families.admin_refusals.with_label_values(&[&variant_name(why)]).inc();
    }

    pub(super) fn lesson(&self, upstream: &str, outcome: LessonOutcome) {
        self.families.lessons.with_label_values(&[upstream, &variant_name(outcome)]).inc();
    }

    pub(super) fn connection_refused(&self, got: RejectedConnection) {
        self.families.turned.with_label_values(&[&variant_name(got)]).inc();
    }

    pub(super) fn client_timed_out(&self, kind: ClientTimeout) {
        self.families.client_timeouts.with_label_values(&[&variant_name(kind)]).inc();
    }

    pub(super) fn learned(&self, upstream: &str, model: &str, lessons: u64, band: f32) {
        let model = self.of_model(&self.of_upstream(upstream), model);
        self.accuracy.learned(upstream, &model, lessons, band);
    }

    /// Counts one exchange.
    pub(super) fn count(&self, exchange: &Exchange) {
        let upstream = exchange.upstream.as_deref().unwrap_or(NONE);
        let of_upstream = self.of_upstream(upstream);
        self.count_traffic(exchange, upstream, &of_upstream);
        if let Some(model) = exchange.model.as_deref() {
            let model = self.of_model(&of_upstream, model);
            self.rewriting.count(exchange, upstream, &model);
            self.accuracy.count_model(exchange, upstream, &model);
            self.count_spent(exchange, upstream, &model);
            self.count_billed(exchange, upstream, &of_upstream);
            self.count_gaps(exchange, &[upstream, &model.label]);
            if exchange.repeated_calls.is_some() {
                self.families.repeated_calls.with_label_values(&[upstream, &model.label]).inc();
            }
        }
        if let Some(hints) = &exchange.hints {
            self.clients.count(hints, upstream);
        }
        if exchange.silent_stream {
            self.families.silent.with_label_values(&[upstream]).inc();
        }
        self.compacting.count_wait(exchange);
        self.accuracy.count(exchange);
        for why in &exchange.fail_open {
            self.families.fail_open.with_label_values(&[&variant_name(why)]).inc();
        }
        if let Some(why) = exchange.count_estimated {
            self.families.counts_estimated.with_label_values(&[upstream, &variant_name(why)]).inc();
        }
        if let Some(kind) = exchange.error_kind {
            self.families.errors.with_label_values(&[upstream, &variant_name(kind)]).inc();
        }
        for note in &exchange.notes {
            self.families.notes.with_label_values(&[&variant_name(note)]).inc();
        }
    }

    /// Counts a summary that was written, or failed.
    pub(super) fn count_compaction(&self, one: &Compaction) {
        self.compacting.count(one, &self.model_label(&one.model));
    }

    fn count_traffic(&self, exchange: &Exchange, upstream: &str, of_upstream: &UpstreamHandles) {
        let class = exchange.status.map(|status| status / 100);
        let key = (exchange.dialect, exchange.outcome, class);
        let traffic = handles(&of_upstream.traffic, &key, || self.families.traffic(upstream, key));
        traffic.requests.inc();
        traffic.request_bytes.inc_by(exchange.request_bytes);
        traffic.response_bytes.inc_by(exchange.response_bytes);
        traffic.duration.observe(seconds(exchange.duration_us));
        if let Some(us) = exchange.first_byte_us {
            traffic.first_byte.observe(seconds(us));
        }
        // An exchange that was never forwarded has no request side.
        if exchange.request_side_us > 0 {
            traffic.overhead.observe(seconds(exchange.request_side_us));
        }
        if exchange.frames > 0 {
            let each = seconds(exchange.response_side_us) / exchange.frames as f64;
            self.families.event.observe(each);
            self.families.events.inc_by(exchange.frames);
            self.families.response_side.inc_by(seconds(exchange.response_side_us));
        }
    }

    fn count_gaps(&self, exchange: &Exchange, of: &[&str]) {
        let Some(gaps) = &exchange.gaps else { return };
        let local = self.families.gaps.with_label_values(of).local();
        for (count, mean) in gaps.means() {
            (0..count).for_each(|_| local.observe(mean));
        }
        local.flush();
    }

    fn count_spent(&self, exchange: &Exchange, upstream: &str, model: &ModelHandles) {
        let spent = model.spent.get_or_init(|| self.families.spent(upstream, &model.label));
        if let Some(read) = exchange.usage.cache_read {
            spent.cache_reported.inc();
            spent.cache_hits.inc_by(u64::from(read > 0));
        }
        let filled = exchange.actual().or(exchange.estimate.as_ref().map(|it| it.tokens));
        if let (Some(filled), Some(window)) = (filled, exchange.window.filter(|it| *it > 0)) {
            spent.fill.observe(filled as f64 / window as f64);
        }
    }

    /// Counts tokens, those of each call under its model.
    fn count_billed(&self, exchange: &Exchange, upstream: &str, of_upstream: &UpstreamHandles) {
        let requested = exchange.model.as_deref().unwrap_or_default();
        for (model, usage) in exchange.usage.billed() {
            let model = self.of_model(of_upstream, model.unwrap_or(requested));
            let spent = model.spent.get_or_init(|| self.families.spent(upstream, &model.label));
            for (counter, tokens) in [
                (&spent.input, usage.input),
                (&spent.output, usage.output),
                (&spent.reasoning, usage.reasoning),
                (&spent.cache_read, usage.cache_read),
                (&spent.cache_write, usage.cache_write),
            ] {
                counter.inc_by(tokens.unwrap_or(0));
            }
        }
    }

    fn of_upstream(&self, upstream: &str) -> Arc<UpstreamHandles> {
        handles(&self.upstreams, upstream, UpstreamHandles::default)
    }

    fn of_model(&self, upstream: &UpstreamHandles, model: &str) -> Arc<ModelHandles> {
        known(&upstream.models, model).unwrap_or_else(|| {
            let label = self.model_label(model);
            handles(&upstream.models, &*label, || ModelHandles::new(label.clone()))
        })
    }

    /// The model's name, or `other` if there are too many or it is unsuitable.
    fn model_label(&self, model: &str) -> Box<str> {
        let mut models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        if models.contains(model) {
            return model.into();
        }
        let plain = |byte: u8| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\';
        if models.len() >= MODELS || model.len() > LONGEST || !model.bytes().all(plain) {
            return "other".into();
        }
        models.insert(model.into());
        model.into()
    }
}

fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

impl MetricFamilies {
    #[rustfmt::skip] // A table: one metric a line or two.
    fn new(make: &mut MetricRegistrar) -> Result<Self, prometheus::Error> {
        let to = &["upstream", "dialect"];
        let of = &["upstream", "model"];
        Ok(Self {
            requests: make.counters("plimsoll_requests_total", &["upstream", "dialect", "outcome", "status"],
                "Exchanges that ended, by how they ended and the class of the status the client saw.")?,
            first_byte: make.histograms("plimsoll_first_byte_seconds", to, SECONDS,
                "From the request's arrival to the first byte of the response body.")?,
            duration: make.histograms("plimsoll_request_duration_seconds", to, SECONDS,
                "From the request's arrival to the end of the exchange.")?,
            request_bytes: make.counters("plimsoll_request_bytes_total", to,
                "Bytes of request bodies.")?,
            response_bytes: make.counters("plimsoll_response_bytes_total", to,
                "Bytes of response bodies.")?,
            overhead: make.histograms("plimsoll_overhead_request_seconds", &["upstream"], FAST,
                "Time that Plimsoll added before it forwarded a request: reading, estimating, waiting for the turn before it. It does not include the wait for a summary, which is `plimsoll_compaction_wait_seconds`.")?,
            event: make.histogram("plimsoll_overhead_event_seconds", EVENT,
                "Time that Plimsoll spent on one frame of a response body: the mean of each exchange.")?,
            events: make.counter("plimsoll_response_frames_total",
                "Frames of response bodies that were forwarded.")?,
            response_side: make.seconds("plimsoll_overhead_response_seconds_total",
                "Time that Plimsoll spent on the frames of response bodies.")?,
            tokens: make.counters("plimsoll_tokens_total", &["upstream", "model", "kind"],
                "Tokens as the provider reported them, under the model that it bills. `input` is the whole prompt and includes `cache_read` and `cache_write`; `output` includes `reasoning`. Calls that the provider made by itself (compaction, advisor, a fallback) are included; a refusal that is not billed is not.")?,
            cache_reported: make.counters("plimsoll_cache_reported_total", of,
                "Exchanges for which the provider reported how much of the prompt came from its cache.")?,
            cache_hits: make.counters("plimsoll_cache_hits_total", of,
                "Exchanges in which some of the prompt came from the provider's cache.")?,
            fill: make.histograms("plimsoll_context_fill_ratio", of, FILL,
                "How full the context window was: input tokens (reported, or else estimated) divided by the window.")?,
            gaps: make.histograms("plimsoll_stream_gap_seconds", of, &BOUNDS,
                "Time between two chunks of a streamed reply from the upstream; for the first chunk, the time since the last byte of the request was sent.")?,
            silent: make.counters("plimsoll_silent_streams_total", &["upstream"],
                "Streams that were ended because their upstream sent nothing for `limits.silent_stream_s`.")?,
            repeated_calls: make.counters("plimsoll_repeated_calls_total", of,
                "Requests of an agent that seems to be in a loop: its newest tool call, with the same arguments, had the same result in four or more of its last ten turns.")?,
            fail_open: make.counters("plimsoll_fail_open_total", &["reason"],
                "Exchanges in which Plimsoll failed open, by reason: the client got what it would have got without Plimsoll. `unknown_credential` (a header may be a credential that Plimsoll does not know: see `tenant_headers`) and `no_credential` (on a listener that others can reach) were measured, but nothing about them was stored.")?,
            errors: make.counters("plimsoll_provider_errors_total", &["upstream", "kind"],
                "Errors that providers reported, by a status or inside a success, by kind.")?,
            notes: make.counters("plimsoll_notes_total", &["note"],
                "Unexpected things found while reading requests and replies, by kind.")?,
            counts: make.counters("plimsoll_estimate_questions_total", &["upstream", "outcome"],
                "Requests to counting endpoints that the configuration asks for (`estimate.count`), by outcome.")?,
            counts_estimated: make.counters("plimsoll_token_estimates_total", &["upstream", "reason"],
                "Token counting requests of clients that Plimsoll answered with its estimate: because the configuration says so (`configured`), because the upstream answered that it has no such endpoint (`missing`), or because it had answered so before (`learned`).")?,
            lessons: make.counters("plimsoll_lessons_total", &["upstream", "outcome"],
                "Lessons that refusals could teach: `learned` by a tenant, or not learned because the request contains the same text (`quoted`), the window contradicts what was sent (`implausible`), the text is no known message (`unknown`) or the list is full (`full`).")?,
            session_load: make.histogram("plimsoll_session_load_seconds", FIRST_LOAD,
                "How long requests waited for their session and its model to be loaded from the store; only requests that had to load. After a restart the first request of a session waits up to 2 s.")?,
            store: make.histograms("plimsoll_store_operation_seconds", &["operation"], FAST,
                "How long operations of the store took.")?,
            store_failures: make.counters("plimsoll_store_failures_total", &["operation"],
                "Times the store failed.")?,
            store_unusable: make.gauge("plimsoll_store_unusable",
                "1 while the store could not be opened: traffic continues, and nothing is stored.")?,
            store_failing: make.gauge("plimsoll_store_failing",
                "1 while the store was opened but does not work: its file is gone, or the last write or read failed.")?,
            store_bytes: make.gauge("plimsoll_store_bytes",
                "Size of the store on disk, with its WAL.")?,
            store_threads: make.gauge("plimsoll_store_threads",
                "Threads of the store.")?,
            blocking_threads: make.gauge("plimsoll_blocking_threads",
                "Threads for long work, beside the async workers: large bodies, loading sessions, DNS look-ups. At most 16.")?,
            store_restarts: make.gauge("plimsoll_store_restarts",
                "How often the thread that writes to the store restarted after a panic.")?,
            store_waiting: make.counted("plimsoll_store_waiting", &["queue"],
                "Operations that wait for the store: writes (`write`), reads for traffic (`traffic`) and reads for the admin API (`look`).")?,
            store_forgotten: make.counter("plimsoll_store_forgotten_sessions_total",
                "Sessions that were deleted by retention.days or retention.bytes.")?,
            turned: make.counters("plimsoll_connections_turned_total", &["end"],
                "Client connections past `limits.connections`: `answered` with 503, or `closed`.")?,
            client_timeouts: make.counters("plimsoll_client_timeouts_total", &["kind"],
                "Clients that took too long to send a first request on a connection (`silent`), the next request (`idle`, `limits.header_s`) or more of a request's body (`body`, `limits.body_s`).")?,
            log_dropped: make.counter("plimsoll_log_lines_dropped_total",
                "Log lines dropped because the reader of the log was too slow.")?,
            admin_refusals: make.counters("plimsoll_admin_refusals_total", &["reason"],
                "Requests that the admin listener refused, by reason.")?,
        })
    }

    fn traffic(&self, upstream: &str, (dialect, outcome, class): TrafficKey) -> TrafficHandles {
        let dialect = dialect.map_or_else(|| NONE.to_owned(), variant_name);
        let status = class.map_or_else(|| NONE.to_owned(), |class| format!("{class}xx"));
        let to = &[upstream, &dialect];
        TrafficHandles {
            requests: self.requests.with_label_values(&[
                upstream,
                &dialect,
                &variant_name(outcome),
                &status,
            ]),
            first_byte: self.first_byte.with_label_values(to),
            duration: self.duration.with_label_values(to),
            request_bytes: self.request_bytes.with_label_values(to),
            response_bytes: self.response_bytes.with_label_values(to),
            overhead: self.overhead.with_label_values(&[upstream]),
        }
    }

    fn spent(&self, upstream: &str, model: &str) -> UsageHandles {
        let of = &[upstream, model];
        let tokens = |kind| self.tokens.with_label_values(&[upstream, model, kind]);
        UsageHandles {
            input: tokens("input"),
            output: tokens("output"),
            reasoning: tokens("reasoning"),
            cache_read: tokens("cache_read"),
            cache_write: tokens("cache_write"),
            cache_reported: self.cache_reported.with_label_values(of),
            cache_hits: self.cache_hits.with_label_values(of),
            fill: self.fill.with_label_values(of),
        }
    }
}
