//! A gauge of open things: counts how many guards are held.
//!
//! Knows nothing about the things themselves.

/// Counts one open thing in a gauge while it is held.
pub(crate) struct GaugeGuard(prometheus::IntGauge);

impl GaugeGuard {
    pub(super) fn new(gauge: prometheus::IntGauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}
