//! What is held in memory, and the bounds that it has.
//!
//! What traffic takes is told as it changes; what is kept beyond the exchange that it came with, now and then.

use prometheus::{Gauge, GaugeVec, IntGauge};

use super::make::MetricRegistrar;
use crate::telemetry::labels::{KeptKind, MemoryKind};
use crate::telemetry::log::word;

/// Gauges of memory.
pub(in crate::telemetry) struct MemoryMetrics {
    /// In the order of [`MemoryKind::ALL`].
    held: [Gauge; MemoryKind::ALL.len()],
    limit: IntGauge,
    /// By kind.
    kept: GaugeVec,
    kept_limit: GaugeVec,
}

impl MemoryMetrics {
    pub(super) fn new(make: &mut MetricRegistrar) -> Result<Self, prometheus::Error> {
        let held = make.gauges("plimsoll_memory_held_bytes", &["kind"],
            "Memory that traffic makes us hold: request bodies, what is read of them (analysis), of responses and of WebSocket messages; connections and their buffers.")?;
        let held = MemoryKind::ALL.map(|kind| held.with_label_values(&[&word(kind)]));
        let limit = make.gauge(
            "plimsoll_memory_limit_bytes",
            "Most memory that traffic may make us hold (limits.memory_bytes), beside connections (limits.connection_bytes); past it bytes pass unread.",
        )?;
        let kept = make.gauges("plimsoll_kept_bytes", &["what"],
            "Memory for what is kept beyond the exchange that it came with: sessions, the newest request of each, what waits to be written. Of session_decisions: those of the session that has most.")?;
        let kept_limit = make.gauges(
            "plimsoll_kept_limit_bytes",
            &["what"],
            "Most memory that each of these may take. Past it the oldest go; what waits to be written is refused; nothing new is decided for a session.",
        )?;
        Ok(Self { held, limit, kept, kept_limit })
    }

    pub(in crate::telemetry) fn limit(&self, bytes: u64) {
        self.limit.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    pub(in crate::telemetry) fn held(&self, kind: MemoryKind, more: i64) {
        self.held[kind as usize].add(more as f64);
    }

    pub(in crate::telemetry) fn kept(&self, what: KeptKind, bytes: usize) {
        self.kept.with_label_values(&[&word(what)]).set(bytes as f64);
    }

    pub(in crate::telemetry) fn kept_limit(&self, what: KeptKind, bytes: usize) {
        self.kept_limit.with_label_values(&[&word(what)]).set(bytes as f64);
    }
}
