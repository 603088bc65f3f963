//! The metrics: which exist, and how an exchange counts.
//!
//! Follows Prometheus' conventions: base units, `_total`, help texts. Label values come from enums,
//! configured upstreams and a bounded list of models, so nothing a client sends can grow them without end.
//! `docs/metrics.md` is the same list; a test compares them.

mod accuracy;
mod compacting;
mod exemplars;
mod family;
mod memory;
mod openmetrics;
mod rewriting;
mod store;
mod traffic;
mod upstreams;

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use prometheus::{IntCounter, IntGauge, Registry, TextEncoder};
use strum::IntoEnumIterator as _;

use self::accuracy::AccuracyMetrics;
use self::compacting::{CompactionMetrics, SummaryLabels};
use self::exemplars::{ExemplarFamily, Exemplars};
#[cfg(test)]
pub(super) use self::family::MetricRow;
use self::family::{
    FamilyTable, MetricFamily, ModelLabels, NONE, UpstreamLabels, families, labels, seconds,
};
use self::memory::MemoryMetrics;
use self::rewriting::{RefusedLabels, RewriteMetrics};
use self::store::{OperationLabels, StoreMetrics};
use self::traffic::{FailOpenLabels, LessonLabels, QuestionLabels, TrafficMetrics};
use self::upstreams::UpstreamConnections;
pub(crate) use self::upstreams::UpstreamMetrics;
use super::event::{Compaction, Exchange};
use super::labels::{
    AdminRefusal, ClientTimeout, CountOutcome, FailOpen, LessonOutcome, OtelOutcome,
    RejectedConnection, StoreOperation, SummaryOutcome, WarehouseOutcome,
};
use crate::config::OtelSignal;
use crate::dialect::model_list::is_dated;
use crate::dialect::refusal::RefusalCause;

/// The number of model names that become labels; all others are `other`.
pub(super) const MODELS: usize = 50;
/// The longest model name that becomes a label; a longer one is `other`.
const LONGEST: usize = 80;
/// How many values of a tag are labels; any further are `other`.
const TAG_VALUES: usize = 50;

/// A text format of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetricsFormat {
    /// Prometheus' own.
    Prometheus,
    /// OpenMetrics 1.0, which has exemplars.
    OpenMetrics,
}

labels! {
    RejectionLabels { end: RejectedConnection }
    TimeoutLabels { kind: ClientTimeout }
    AdminRefusalLabels { reason: AdminRefusal }
    BuildLabels<'a> { version: &'a str }
    PresetLabels<'a> { preset: &'a str }
    OtelLabels { signal: OtelSignal, outcome: OtelOutcome }
    WarehouseLabels { outcome: WarehouseOutcome }
}

families! {
    /// The metrics of the process and its clients' connections.
    struct ProcessMetrics {
        connections: IntGauge = "plimsoll_connections",
            "Client connections that are open.";
        streams: IntGauge = "plimsoll_active_streams",
            "Responses in flight to clients; on WebSockets, requests without a reply.";
        rejected: MetricFamily<RejectionLabels, IntCounter> = "plimsoll_connections_turned_total",
            "Client connections past `limits.connections`: `answered` with 503, or `closed`.";
        timeouts: MetricFamily<TimeoutLabels, IntCounter> = "plimsoll_client_timeouts_total",
            "Clients too slow with a first request (`silent`), the next one (`idle`) or more of a `body`.";
        log_dropped: IntCounter = "plimsoll_log_lines_dropped_total",
            "Log lines dropped because their reader was too slow.";
        admin_refusals: MetricFamily<AdminRefusalLabels, IntCounter> = "plimsoll_admin_refusals_total",
            "Requests that the admin listener refused.";
        blocking_threads: IntGauge = "plimsoll_blocking_threads",
            "Threads for long work; at most 16.";
        build_info: MetricFamily<BuildLabels<'static>, IntGauge> = "plimsoll_build_info",
            "Always 1; which build this is.";
        preset: MetricFamily<PresetLabels<'static>, IntGauge> = "plimsoll_preset_info",
            "Always 1; which preset is configured, or `none`.";
        otel: MetricFamily<OtelLabels, IntCounter> = "plimsoll_otel_items_total",
            "Spans, log records and exports of metrics, `sent` to an OpenTelemetry collector or `dropped`.";
        warehouse: MetricFamily<WarehouseLabels, IntCounter> = "plimsoll_warehouse_turns_total",
            "Turns `written` to the warehouse or `dropped`.";
    }
}

/// All metrics of the process.
pub(super) struct Metrics {
    registry: Registry,
    #[cfg(test)]
    table: Vec<MetricRow>,
    process: ProcessMetrics,
    pub(super) traffic: TrafficMetrics,
    rewriting: RewriteMetrics,
    compacting: CompactionMetrics,
    accuracy: AccuracyMetrics,
    pub(super) memory: MemoryMetrics,
    pub(super) store: StoreMetrics,
    pub(super) upstream_connections: UpstreamConnections,
    exemplars: Exemplars,
    models: Mutex<HashSet<Box<str>>>,
    /// The tags that are labels, and their values so far.
    tags: Mutex<HashMap<Box<str>, HashSet<Box<str>>>>,
}

impl Metrics {
    pub(super) fn new() -> Result<Self, prometheus::Error> {
        let mut table = FamilyTable::default();
        let metrics = Self {
            process: ProcessMetrics::new(&mut table)?,
            traffic: TrafficMetrics::new(&mut table)?,
            rewriting: RewriteMetrics::new(&mut table)?,
            compacting: CompactionMetrics::new(&mut table)?,
            accuracy: AccuracyMetrics::new(&mut table)?,
            memory: MemoryMetrics::new(&mut table)?,
            store: StoreMetrics::new(&mut table)?,
            upstream_connections: UpstreamConnections::new(&mut table)?,
            exemplars: Exemplars::default(),
            models: Mutex::default(),
            tags: Mutex::default(),
            #[cfg(test)]
            table: table.rows,
            registry: table.registry,
        };
        #[cfg(target_os = "linux")]
        metrics
            .registry
            .register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
        metrics.process.build_info.get(BuildLabels { version: env!("CARGO_PKG_VERSION") }).set(1);
        metrics.begin_at_zero();
        Ok(metrics)
    }

    /// Creates the series whose increase an alerting rule looks at (deploy/prometheus/rules.yml). Those with a model as
    /// a label are not among them: the rules handle new series themselves.
    fn begin_at_zero(&self) {
        let Self { process, traffic, store, .. } = self;
        process
            .rejected
            .begin_at_zero(RejectedConnection::iter().map(|end| RejectionLabels { end }));
        traffic.fail_open.begin_at_zero(FailOpen::iter().map(|reason| FailOpenLabels { reason }));
        store
            .failures
            .begin_at_zero(StoreOperation::iter().map(|operation| OperationLabels { operation }));
    }

    /// Names the configured preset.
    pub(super) fn name_preset(&self, preset: &str) {
        self.process.preset.get(PresetLabels { preset }).set(1);
    }

    /// Creates those of an upstream.
    pub(super) fn begin_upstream_at_zero(&self, upstream: &str) {
        self.rewriting
            .refused
            .begin_at_zero(RefusalCause::iter().map(|cause| RefusedLabels { upstream, cause }));
        self.rewriting.set_aside.begin_at_zero([UpstreamLabels { upstream }].into_iter());
        let summaries = SummaryOutcome::iter().map(|outcome| SummaryLabels { upstream, outcome });
        self.compacting.written.begin_at_zero(summaries);
    }

    #[cfg(test)]
    pub(super) fn table(&self) -> &[MetricRow] {
        &self.table
    }

    /// All metrics.
    pub(super) fn render(&self, log_dropped: u64, format: MetricsFormat) -> String {
        let counted = self.process.log_dropped.get();
        self.process.log_dropped.inc_by(log_dropped.saturating_sub(counted));
        let families = self.registry.gather();
        match format {
            MetricsFormat::Prometheus => {
                let mut page = String::new();
                // Writing to memory cannot fail, and what comes before a broken family stays.
                let _ = TextEncoder::new().encode_utf8(&families, &mut page);
                page
            }
            MetricsFormat::OpenMetrics => openmetrics::encode(&families, &self.exemplars),
        }
    }

    /// The number of open client connections.
    pub(super) fn connections(&self) -> IntGauge {
        self.process.connections.clone()
    }

    /// The number of responses in flight.
    pub(super) fn streams(&self) -> IntGauge {
        self.process.streams.clone()
    }

    pub(super) fn blocking_threads(&self, threads: usize) {
        self.process.blocking_threads.set(threads as i64);
    }

    #[cfg_attr(not(feature = "otel"), allow(dead_code))]
    pub(super) fn count_otel(&self, signal: OtelSignal, outcome: OtelOutcome, items: usize) {
        self.process.otel.get(OtelLabels { signal, outcome }).inc_by(items as u64);
    }

    pub(super) fn count_warehouse(&self, outcome: WarehouseOutcome, turns: usize) {
        self.process.warehouse.get(WarehouseLabels { outcome }).inc_by(turns as u64);
    }

    pub(super) fn counted_by_provider(&self, upstream: &str, outcome: CountOutcome) {
        self.traffic.questions.get(QuestionLabels { upstream, outcome }).inc();
    }

    pub(super) fn admin_refused(&self, reason: AdminRefusal) {
        self.process.admin_refusals.get(AdminRefusalLabels { reason }).inc();
    }

    pub(super) fn lesson(&self, upstream: &str, outcome: LessonOutcome) {
        self.traffic.lessons.get(LessonLabels { upstream, outcome }).inc();
    }

    pub(super) fn connection_refused(&self, end: RejectedConnection) {
        self.process.rejected.get(RejectionLabels { end }).inc();
    }

    pub(super) fn client_timed_out(&self, kind: ClientTimeout) {
        self.process.timeouts.get(TimeoutLabels { kind }).inc();
    }

    pub(super) fn learned(&self, upstream: &str, model: &str, lessons: u64, band: f32) {
        let model = self.model_label(model);
        self.accuracy.learned(ModelLabels { upstream, model }, lessons, band);
    }

    /// Counts by the values of these tags.
    pub(super) fn label_tags(&self, names: &[String]) {
        let mut tags = self.tags.lock().unwrap_or_else(PoisonError::into_inner);
        *tags = names.iter().map(|name| (name.as_str().into(), HashSet::new())).collect();
    }

    fn count_tags(&self, exchange: &Exchange) {
        let mut tags = self.tags.lock().unwrap_or_else(PoisonError::into_inner);
        for (tag, value) in exchange.tags.iter().filter_map(|tag| tag.split_once('=')) {
            let Some(values) = tags.get_mut(tag) else { continue };
            if values.len() < TAG_VALUES && !values.contains(value) {
                values.insert(value.into());
            }
            let value = if values.contains(value) { value } else { "other" };
            self.traffic.count_tag(exchange, tag, value);
        }
    }

    /// Counts one exchange.
    pub(super) fn count(&self, exchange: &Exchange) {
        let upstream = exchange.upstream.as_deref().unwrap_or(NONE);
        let model = exchange.model.as_deref().map_or(NONE, |model| self.model_label(model));
        let model = ModelLabels { upstream, model };
        self.traffic.count(exchange, model);
        if let Some(trace) = &exchange.trace {
            let duration = Some(exchange.timing.duration_us);
            for (family, us) in [
                (ExemplarFamily::FirstByte, exchange.timing.first_byte_us),
                (ExemplarFamily::Duration, duration),
            ] {
                if let Some(us) = us {
                    self.exemplars.record(family, model, trace, seconds(us), exchange.at);
                }
            }
        }
        self.compacting.count_wait(exchange);
        self.accuracy.count(exchange);
        if !exchange.tags.is_empty() {
            self.count_tags(exchange);
        }
        let Some(requested) = exchange.model.as_deref() else { return };
        self.rewriting.count(exchange, model);
        self.accuracy.count_model(exchange, model);
        self.traffic.count_model(exchange, model);
        self.traffic.count_unpriced(exchange, model);
        self.traffic.count_stated(exchange, model);
        // The dated name of an alias is the same model.
        let served = exchange.served.as_deref().filter(|served| !is_dated(served, requested));
        if let Some(served) = served {
            self.traffic.count_served(model, self.model_label(served));
        }
        for (billed, parts) in &exchange.costs {
            self.traffic
                .count_cost(parts, ModelLabels { upstream, model: self.model_label(billed) });
        }
        // The tokens of each call count under its model.
        for (billed, usage) in exchange.usage.billed() {
            let model = self.model_label(billed.unwrap_or(requested));
            self.traffic.count_tokens(usage, ModelLabels { upstream, model });
        }
    }

    /// Counts a summary that was written, or failed.
    pub(super) fn count_compaction(&self, compaction: &Compaction) {
        self.compacting.count(compaction, self.model_label(&compaction.model));
    }

    fn model_label<'m>(&self, model: &'m str) -> &'m str {
        // The model's name, or `other` if there are too many or it is unsuitable.
        let mut models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        if models.contains(model) {
            return model;
        }
        if models.len() >= MODELS || model.len() > LONGEST || !model.bytes().all(is_label_byte) {
            return "other";
        }
        models.insert(model.into());
        model
    }
}

/// Whether a label can hold the byte without an escape.
fn is_label_byte(byte: u8) -> bool {
    byte.is_ascii_graphic() && byte != b'"' && byte != b'\\'
}
