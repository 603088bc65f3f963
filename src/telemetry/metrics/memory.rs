//! The memory that is in use, and its limits.
//!
//! Memory of traffic is updated when it changes; memory of caches is updated now and then.

use prometheus::{Gauge, GaugeVec, IntGauge};

use super::make::MetricRegistrar;
use crate::telemetry::labels::{CacheKind, MemoryKind};
use crate::telemetry::log::variant_name;

/// Gauges of memory.
pub(in crate::telemetry) struct MemoryMetrics {
    /// Indexed in the order of [`MemoryKind::ALL`].
    held: [Gauge; MemoryKind::ALL.len()],
    limit: IntGauge,
    /// By kind of cached data.
    kept: GaugeVec,
    kept_limit: GaugeVec,
}

impl MemoryMetrics {
    pub(super) fn new(make: &mut MetricRegistrar) -> Result<Self, prometheus::Error> {
        let held = make.gauges("plimsoll_memory_held_bytes", &["kind"],
            "Memory that traffic uses, by kind: request bodies, parsed requests (analysis), responses, WebSocket messages, connections and their buffers.")?;
        let held = MemoryKind::ALL.map(|kind| held.with_label_values(&[&variant_name(kind)]));
        let limit = make.gauge(
            "plimsoll_memory_limit_bytes",
            "Most memory that traffic may use (3/16 of limits.process_bytes); past it bytes pass unread.",
        )?;
        let kept = make.gauges("plimsoll_kept_bytes", &["what"],
            "Memory for what is kept after its exchange: sessions, the newest request of each, the write queue. session_decisions is that of the session that has most.")?;
        let kept_limit = make.gauges(
            "plimsoll_kept_limit_bytes",
            &["what"],
            "Limit of each kind in plimsoll_kept_bytes. Past it the oldest entries are evicted; new writes are dropped; nothing new is decided for the session.",
        )?;
        Ok(Self { held, limit, kept, kept_limit })
    }

    pub(in crate::telemetry) fn limit(&self, bytes: u64) {
        self.limit.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    pub(in crate::telemetry) fn held(&self, kind: MemoryKind, more: i64) {
        self.held[kind as usize].add(more as f64);
    }

    pub(in crate::telemetry) fn set_cached(&self, what: CacheKind, bytes: usize) {
        self.kept.with_label_values(&[&variant_name(what)]).set(bytes as f64);
    }

    pub(in crate::telemetry) fn set_cache_limit(&self, what: CacheKind, bytes: usize) {
        self.kept_limit.with_label_values(&[&variant_name(what)]).set(bytes as f64);
    }
}
