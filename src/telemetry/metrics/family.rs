//! Families of metrics with typed labels, and the registry that they are in.
//!
//! The labels of a family are the fields of a struct ([`labels!`]), so that none can be forgotten or swapped. Name and
//! help of a family stand beside its field ([`families!`]); its row in docs/metrics.md comes from there.

use std::marker::PhantomData;

use prometheus::core::Collector;
use prometheus::{
    Counter, CounterVec, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter,
    IntCounterVec, IntGauge, IntGaugeVec, Registry,
};

/// The label value of something unknown.
pub(super) const NONE: &str = "none";

/// From 0.1 s to 5 min: the time that providers take.
pub(super) const SECONDS: &[f64] = &[0.1, 0.25, 0.5, 1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 300.0];
/// From 1 s to 2 min: the time that a summary takes, or a silence that somebody notices.
pub(super) const LONG_SECONDS: &[f64] = &[1.0, 10.0, 30.0, 60.0, 120.0];

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

/// All families so far.
#[derive(Default)]
pub(super) struct FamilyTable {
    pub(super) registry: Registry,
    pub(super) rows: Vec<MetricRow>,
}

impl FamilyTable {
    /// Registers a family; only histograms have `buckets`.
    pub(super) fn add<F: Registered>(
        &mut self,
        name: &'static str,
        help: &'static str,
        buckets: &[f64],
    ) -> Result<F, prometheus::Error> {
        let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        let series = F::Metric::series(options, F::LABELS)?;
        self.registry.register(Box::new(series.clone()))?;
        let kind = F::Metric::KIND;
        self.rows.push(MetricRow { name, kind, labels: F::LABELS, help });
        Ok(F::from_series(series))
    }
}

/// A set of labels.
pub(super) trait LabelSet: Copy {
    /// Their names.
    const NAMES: &'static [&'static str];

    /// Their values, in the order of their names.
    fn values(&self) -> impl AsRef<[&str]>;
}

/// A metric with one series for each set of labels.
#[derive(Clone)]
pub(super) struct MetricFamily<L, M: Metric> {
    series: M::Series,
    labels: PhantomData<L>,
}

impl<L: LabelSet, M: Metric> MetricFamily<L, M> {
    /// The series of these labels; it begins at 0.
    pub(super) fn get(&self, labels: L) -> M {
        M::get(&self.series, labels.values().as_ref())
    }

    /// Creates the series of `all` these labels.
    pub(super) fn begin_at_zero(&self, all: impl Iterator<Item = L>) {
        // For Prometheus, a counter that first appears at 1 has not increased, so an alerting rule on an
        // increase needs series that exist before their first event.
        for labels in all {
            self.get(labels);
        }
    }
}

/// A kind of metric.
pub(super) trait Metric: Clone {
    /// As Prometheus has it.
    const KIND: &'static str;
    /// All series of one name.
    type Series: Collector + Clone + 'static;

    fn series(options: HistogramOpts, labels: &[&str]) -> Result<Self::Series, prometheus::Error>;

    fn get(series: &Self::Series, values: &[&str]) -> Self;
}

macro_rules! metric {
    ($metric:ty, $series:ty, $kind:literal, $options:ident => $own:expr) => {
        impl Metric for $metric {
            const KIND: &'static str = $kind;
            type Series = $series;

            fn series(
                $options: HistogramOpts,
                labels: &[&str],
            ) -> Result<Self::Series, prometheus::Error> {
                <$series>::new($own, labels)
            }

            fn get(series: &Self::Series, values: &[&str]) -> Self {
                series.with_label_values(values)
            }
        }
    };
}

metric!(IntCounter, IntCounterVec, "counter", options => options.common_opts);
metric!(Counter, CounterVec, "counter", options => options.common_opts);
metric!(IntGauge, IntGaugeVec, "gauge", options => options.common_opts);
metric!(Gauge, GaugeVec, "gauge", options => options.common_opts);
metric!(Histogram, HistogramVec, "histogram", options => options);

/// What a field of [`families!`] can be: a family, or a metric without labels, whose only series exists from the start.
pub(super) trait Registered {
    type Metric: Metric;
    const LABELS: &'static [&'static str];

    fn from_series(series: <Self::Metric as Metric>::Series) -> Self;
}

impl<L: LabelSet, M: Metric> Registered for MetricFamily<L, M> {
    type Metric = M;
    const LABELS: &'static [&'static str] = L::NAMES;

    fn from_series(series: M::Series) -> Self {
        Self { series, labels: PhantomData }
    }
}

impl<M: Metric> Registered for M {
    type Metric = M;
    const LABELS: &'static [&'static str] = &[];

    fn from_series(series: M::Series) -> Self {
        M::get(&series, &[])
    }
}

/// A label's value that may be unknown: then it is [`NONE`].
#[derive(Clone, Copy)]
pub(super) struct OrNone<T>(pub(super) Option<T>);

impl<T: AsRef<str>> AsRef<str> for OrNone<T> {
    fn as_ref(&self) -> &str {
        self.0.as_ref().map_or(NONE, AsRef::as_ref)
    }
}

/// Declares sets of labels: structs with a field for each label.
macro_rules! labels {
    ($($visible:vis $name:ident $(<$life:lifetime>)? { $($label:ident: $value:ty),+ $(,)? })+) => {$(
        #[derive(Clone, Copy)]
        $visible struct $name $(<$life>)? {
            $($visible $label: $value),+
        }

        impl $(<$life>)? $crate::telemetry::metrics::family::LabelSet for $name $(<$life>)? {
            const NAMES: &'static [&'static str] = &[$(stringify!($label)),+];

            fn values(&self) -> impl AsRef<[&str]> {
                [$(AsRef::<str>::as_ref(&self.$label)),+]
            }
        }
    )+};
}

/// Declares a struct of families: of each its field, its type, its name, for histograms the buckets, and its help.
macro_rules! families {
    (@buckets) => { &[] };
    (@buckets $buckets:expr) => { $buckets };
    (
        $(#[$about:meta])*
        $visible:vis struct $name:ident {
            $($seen:vis $field:ident: $family:ty = $metric:literal $(in $buckets:expr)?, $help:literal;)+
        }
    ) => {
        $(#[$about])*
        $visible struct $name {
            $($seen $field: $family),+
        }

        impl $name {
            pub(super) fn new(
                table: &mut $crate::telemetry::metrics::family::FamilyTable,
            ) -> Result<Self, prometheus::Error> {
                Ok(Self {
                    $($field: table.add($metric, $help, families!(@buckets $($buckets)?))?),+
                })
            }
        }
    };
}

pub(super) use {families, labels};

labels! {
    pub(super) UpstreamLabels<'a> { upstream: &'a str }
    pub(super) ModelLabels<'a> { upstream: &'a str, model: &'a str }
}

/// Seconds of microseconds.
pub(super) fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}
