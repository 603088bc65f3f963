//! The memory that is in use, and its limits.
//!
//! Memory of traffic is updated when it changes; memory of caches is updated now and then.

use prometheus::IntGauge;
use strum::IntoEnumIterator as _;

use super::family::{FamilyTable, MetricFamily, families, labels};
use crate::telemetry::labels::{CacheKind, MemoryKind};

labels! {
    HeldLabels { kind: MemoryKind }
    KeptLabels { what: CacheKind }
}

families! {
    struct MemoryFamilies {
        held: MetricFamily<HeldLabels, IntGauge> = "plimsoll_memory_held_bytes",
            "Memory that traffic uses.";
        limit: IntGauge = "plimsoll_memory_limit_bytes",
            "Most that traffic may use (5/32 of limits.process_bytes); past it bytes pass unread.";
        kept: MetricFamily<KeptLabels, IntGauge> = "plimsoll_kept_bytes",
            "Memory that stays after an exchange; session_decisions: of the largest session.";
        kept_limit: MetricFamily<KeptLabels, IntGauge> = "plimsoll_kept_limit_bytes",
            "Limit of each kind in plimsoll_kept_bytes.";
    }
}

/// Gauges of memory.
pub(in crate::telemetry) struct MemoryMetrics {
    families: MemoryFamilies,
    /// By kind, in the order of declaration: they change with each chunk of a body.
    held: Vec<IntGauge>,
}

impl MemoryMetrics {
    pub(super) fn new(table: &mut FamilyTable) -> Result<Self, prometheus::Error> {
        let families = MemoryFamilies::new(table)?;
        let held = MemoryKind::iter().map(|kind| families.held.get(HeldLabels { kind })).collect();
        Ok(Self { families, held })
    }

    pub(in crate::telemetry) fn limit(&self, bytes: u64) {
        self.families.limit.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    pub(in crate::telemetry) fn held(&self, kind: MemoryKind, more: i64) {
        self.held[kind as usize].add(more);
    }

    pub(in crate::telemetry) fn set_cached(&self, what: CacheKind, bytes: usize) {
        self.families.kept.get(KeptLabels { what }).set(bytes as i64);
    }

    pub(in crate::telemetry) fn set_cache_limit(&self, what: CacheKind, bytes: usize) {
        self.families.kept_limit.get(KeptLabels { what }).set(bytes as i64);
    }
}
