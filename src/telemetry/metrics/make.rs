//! Creates the families of metrics and registers them.
//!
//! Each has a row in docs/metrics.md: its help and labels come only from here.

use prometheus::core::Collector;
use prometheus::{
    Counter, CounterVec, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter,
    IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};

/// The label value of something unknown.
pub(super) const NONE: &str = "none";
/// From 1 ms to 5 min: the time that providers take.
pub(super) const SECONDS: &[f64] =
    &[0.001, 0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0];

/// One line of the table of metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MetricRow {
    /// As Prometheus has it.
    pub name: &'static str,
    /// `counter`, `gauge` or `histogram`.
    pub kind: &'static str,
    /// Its labels.
    pub labels: &'static [&'static str],
    /// What it measures.
    pub help: &'static str,
}

/// Registers metrics and keeps the table of them.
pub(super) struct MetricRegistrar {
    pub(super) registry: Registry,
    pub(super) table: Vec<MetricRow>,
}

type LabelNames = &'static [&'static str];

impl MetricRegistrar {
    fn keep<C: Collector + Clone + 'static>(
        &mut self,
        row: MetricRow,
        made: C,
    ) -> Result<C, prometheus::Error> {
        self.registry.register(Box::new(made.clone()))?;
        self.table.push(row);
        Ok(made)
    }

    pub(super) fn counters(
        &mut self,
        name: &'static str,
        labels: LabelNames,
        help: &'static str,
    ) -> Result<IntCounterVec, prometheus::Error> {
        let made = IntCounterVec::new(Opts::new(name, help), labels)?;
        self.keep(MetricRow { name, kind: "counter", labels, help }, made)
    }

    pub(super) fn counter(
        &mut self,
        name: &'static str,
        help: &'static str,
    ) -> Result<IntCounter, prometheus::Error> {
        let made = IntCounter::with_opts(Opts::new(name, help))?;
        self.keep(MetricRow { name, kind: "counter", labels: &[], help }, made)
    }

    pub(super) fn seconds(
        &mut self,
        name: &'static str,
        help: &'static str,
    ) -> Result<Counter, prometheus::Error> {
        let made = Counter::with_opts(Opts::new(name, help))?;
        self.keep(MetricRow { name, kind: "counter", labels: &[], help }, made)
    }

    pub(super) fn gauge(
        &mut self,
        name: &'static str,
        help: &'static str,
    ) -> Result<IntGauge, prometheus::Error> {
        let made = IntGauge::with_opts(Opts::new(name, help))?;
        self.keep(MetricRow { name, kind: "gauge", labels: &[], help }, made)
    }

    pub(super) fn counted(
        &mut self,
        name: &'static str,
        labels: LabelNames,
        help: &'static str,
    ) -> Result<IntGaugeVec, prometheus::Error> {
        let made = IntGaugeVec::new(Opts::new(name, help), labels)?;
        self.keep(MetricRow { name, kind: "gauge", labels, help }, made)
    }

    pub(super) fn gauges(
        &mut self,
        name: &'static str,
        labels: LabelNames,
        help: &'static str,
    ) -> Result<GaugeVec, prometheus::Error> {
        let made = GaugeVec::new(Opts::new(name, help), labels)?;
        self.keep(MetricRow { name, kind: "gauge", labels, help }, made)
    }

    pub(super) fn histograms(
        &mut self,
        name: &'static str,
        labels: LabelNames,
        buckets: &[f64],
        help: &'static str,
    ) -> Result<HistogramVec, prometheus::Error> {
        let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        let made = HistogramVec::new(options, labels)?;
        self.keep(MetricRow { name, kind: "histogram", labels, help }, made)
    }

    pub(super) fn histogram(
        &mut self,
        name: &'static str,
        buckets: &[f64],
        help: &'static str,
    ) -> Result<Histogram, prometheus::Error> {
        let made = Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec()))?;
        self.keep(MetricRow { name, kind: "histogram", labels: &[], help }, made)
    }

    pub(super) fn dollars(
        &mut self,
        name: &'static str,
        labels: LabelNames,
        help: &'static str,
    ) -> Result<CounterVec, prometheus::Error> {
        let made = CounterVec::new(Opts::new(name, help), labels)?;
        self.keep(MetricRow { name, kind: "counter", labels, help }, made)
    }

    /// A gauge that is always 1, with the version as its label.
    pub(super) fn build_info(&mut self) -> Result<(), prometheus::Error> {
        let (name, help) = ("plimsoll_build_info", "Always 1; which build this is.");
        let made = IntGaugeVec::new(Opts::new(name, help), &["version"])?;
        made.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        self.keep(MetricRow { name, kind: "gauge", labels: &["version"], help }, made)?;
        Ok(())
    }
}
