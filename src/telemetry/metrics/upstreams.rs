//! How connections to upstreams count: how many are open, their streams, how long requests waited for one,
//! and which requests were sent again.
//!
//! The labels are configured upstreams.

use std::time::Duration;

use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};
use strum::IntoEnumIterator as _;

use super::make::{MetricRegistrar, SECONDS};
use crate::telemetry::labels::RepeatCause;
use crate::telemetry::log::variant_name;
use crate::telemetry::open::GaugeGuard;

/// All metrics of connections to upstreams.
pub(in crate::telemetry) struct UpstreamConnections {
    connections: IntGaugeVec,
    idle: IntGaugeVec,
    streams: IntGaugeVec,
    waits: HistogramVec,
    repeats: IntCounterVec,
}

impl UpstreamConnections {
    #[rustfmt::skip] // A table: one metric a line or two.
    pub(super) fn new(make: &mut MetricRegistrar) -> Result<Self, prometheus::Error> {
        let of = &["upstream"];
        Ok(Self {
            connections: make.counted("plimsoll_upstream_connections", of,
                "Connections to an upstream that are open, idle ones included.")?,
            idle: make.counted("plimsoll_upstream_idle_connections", of,
                "Idle connections to an upstream, kept in the pool for the next request.")?,
            streams: make.counted("plimsoll_upstream_streams", of,
                "HTTP/2 streams to an upstream that are open.")?,
            waits: make.histograms("plimsoll_upstream_wait_seconds", of, SECONDS,
                "How long requests waited for a new HTTP/2 connection or for a free stream; only requests that waited.")?,
            repeats: make.counters("plimsoll_upstream_repeats_total", &["upstream", "cause"],
                "Requests that were retried on another connection, by cause. The upstream certainly had not processed them (`not_sent`, `refused_stream`, `went_away`), or almost certainly: an idle connection closed so soon after the request that it was hardly read (`closed_while_idle`).")?,
        })
    }

    /// The metrics of one upstream.
    pub(in crate::telemetry) fn of(&self, upstream: &str) -> UpstreamMetrics {
        UpstreamMetrics {
            connections: self.connections.with_label_values(&[upstream]),
            idle: self.idle.with_label_values(&[upstream]),
            streams: self.streams.with_label_values(&[upstream]),
            waits: self.waits.with_label_values(&[upstream]),
            repeats: RepeatCause::iter()
                .map(|cause| self.repeats.with_label_values(&[upstream, &variant_name(cause)]))
                .collect(),
        }
    }
}

/// The metrics of the connections to one upstream.
#[derive(Clone)]
pub(crate) struct UpstreamMetrics {
    connections: IntGauge,
    idle: IntGauge,
    streams: IntGauge,
    waits: Histogram,
    /// By cause, in the order of declaration.
    repeats: Vec<IntCounter>,
}

impl UpstreamMetrics {
    /// Counts a connection as open while the guard is held.
    pub(crate) fn connection(&self) -> GaugeGuard {
        GaugeGuard::of(self.connections.clone())
    }

    /// Counts a connection as idle while the guard is held.
    pub(crate) fn idle_connection(&self) -> GaugeGuard {
        GaugeGuard::of(self.idle.clone())
    }

    /// `more` more connections are idle, or fewer if negative.
    pub(crate) fn idle_connections(&self, more: i64) {
        self.idle.add(more);
    }

    /// Counts a stream as open while the guard is held.
    pub(crate) fn stream(&self) -> GaugeGuard {
        GaugeGuard::of(self.streams.clone())
    }

    /// A request waited this long for a connection or stream.
    pub(crate) fn waited(&self, time: Duration) {
        self.waits.observe(time.as_secs_f64());
    }

    /// A request is sent again.
    pub(crate) fn repeats(&self, cause: RepeatCause) {
        self.repeats[cause as usize].inc();
    }
}
