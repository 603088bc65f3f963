//! Exemplars: for each bucket of the histograms of time, the last sampled exchange in it, by its trace.
//!
//! A trace names one exchange, so it can be no label. Only OpenMetrics has a place for it; without traces there is none.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use strum::AsRefStr;

use super::family::{ModelLabels, SECONDS};
use crate::context::Millis;
use crate::telemetry::trace::ExchangeTrace;

/// The families that have them; all have the buckets of [`SECONDS`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, AsRefStr)]
pub(super) enum ExemplarFamily {
    #[strum(serialize = "plimsoll_first_byte_seconds")]
    FirstByte,
    #[strum(serialize = "plimsoll_request_duration_seconds")]
    Duration,
}

/// One exchange that a bucket counted.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Exemplar {
    pub(super) trace: [u8; 16],
    pub(super) span: [u8; 8],
    pub(super) value: f64,
    pub(super) at: Millis,
}

/// A series of a histogram: its family, upstream and model.
type SeriesKey = (ExemplarFamily, Box<str>, Box<str>);
/// By bucket, the last of which has no upper bound.
type OfBuckets = [Option<Exemplar>; SECONDS.len() + 1];

/// The exemplars of all series. There are as many series as the histograms have, whose labels are bounded.
#[derive(Default)]
pub(super) struct Exemplars(Mutex<HashMap<SeriesKey, OfBuckets>>);

impl Exemplars {
    /// Remembers a sampled exchange that was counted with `value`.
    pub(super) fn record(
        &self,
        family: ExemplarFamily,
        of: ModelLabels<'_>,
        trace: &ExchangeTrace,
        value: f64,
        at: Millis,
    ) {
        let bucket = SECONDS.partition_point(|bound| *bound < value);
        let exemplar = Exemplar { trace: trace.trace, span: trace.span, value, at };
        let mut series = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let buckets = series.entry((family, of.upstream.into(), of.model.into())).or_default();
        if let Some(place) = buckets.get_mut(bucket) {
            *place = Some(exemplar);
        }
    }

    /// Those of one series, by bucket; empty if it has none.
    pub(super) fn of_series(
        &self,
        family: &str,
        upstream: &str,
        model: &str,
    ) -> Vec<Option<Exemplar>> {
        let families = [ExemplarFamily::FirstByte, ExemplarFamily::Duration];
        let Some(family) = families.into_iter().find(|one| one.as_ref() == family) else {
            return Vec::new();
        };
        let series = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let buckets = series.get(&(family, upstream.into(), model.into()));
        buckets.map_or_else(Vec::new, |buckets| buckets.to_vec())
    }
}
