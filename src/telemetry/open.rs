//! What is open: a gauge that counts how many of something are held.
//!
//! Knows nothing of what they are.

/// Something that is open while this is held; counted in a gauge.
pub(crate) struct GaugeGuard(prometheus::IntGauge);

impl GaugeGuard {
    pub(super) fn of(gauge: prometheus::IntGauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}
