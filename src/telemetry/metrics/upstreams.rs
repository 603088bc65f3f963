//! How connections to upstreams count: how many are open, their streams, how long requests waited for one,
//! and which requests were sent again.
//!
//! The labels are configured upstreams.

use std::time::Duration;

use prometheus::{Histogram, IntCounter, IntGauge};

use super::family::{MetricFamily, UpstreamLabels, families, labels};
use crate::telemetry::labels::RepeatCause;
use crate::telemetry::open::GaugeGuard;

/// From 0.1 to 10 s: the time of a handshake, and of a queue.
const WAIT: &[f64] = &[0.1, 1.0, 10.0];

labels! {
    RepeatLabels<'a> { upstream: &'a str, cause: RepeatCause }
}

families! {
    /// All metrics of connections to upstreams.
    pub(in crate::telemetry) struct UpstreamConnections {
        connections: MetricFamily<UpstreamLabels<'static>, IntGauge> = "plimsoll_upstream_connections",
            "Open connections, idle ones included.";
        idle: MetricFamily<UpstreamLabels<'static>, IntGauge> = "plimsoll_upstream_idle_connections",
            "Idle connections, kept for the next request.";
        streams: MetricFamily<UpstreamLabels<'static>, IntGauge> = "plimsoll_upstream_streams",
            "Open HTTP/2 streams.";
        waits: MetricFamily<UpstreamLabels<'static>, Histogram> = "plimsoll_upstream_wait_seconds" in WAIT,
            "How long requests that waited did so for a connection or stream.";
        repeats: MetricFamily<RepeatLabels<'static>, IntCounter> = "plimsoll_upstream_repeats_total",
            "Requests repeated on another connection. The upstream had certainly not processed them (closed_while_idle, went_silent: almost certainly).";
    }
}

impl UpstreamConnections {
    /// The metrics of one upstream.
    pub(in crate::telemetry) fn upstream(&self, upstream: &str) -> UpstreamMetrics {
        let labels = UpstreamLabels { upstream };
        UpstreamMetrics {
            connections: self.connections.get(labels),
            idle: self.idle.get(labels),
            streams: self.streams.get(labels),
            waits: self.waits.get(labels),
            upstream: upstream.into(),
            repeats: self.repeats.clone(),
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
    upstream: Box<str>,
    repeats: MetricFamily<RepeatLabels<'static>, IntCounter>,
}

impl UpstreamMetrics {
    /// Counts a connection as open while the guard is held.
    pub(crate) fn connection(&self) -> GaugeGuard {
        GaugeGuard::new(self.connections.clone())
    }

    /// Counts a connection as idle while the guard is held.
    pub(crate) fn idle_connection(&self) -> GaugeGuard {
        GaugeGuard::new(self.idle.clone())
    }

    /// `more` more connections are idle, or fewer if negative.
    pub(crate) fn idle_connections(&self, more: i64) {
        self.idle.add(more);
    }

    /// Counts a stream as open while the guard is held.
    pub(crate) fn stream(&self) -> GaugeGuard {
        GaugeGuard::new(self.streams.clone())
    }

    /// A request waited this long for a connection or stream.
    pub(crate) fn waited(&self, time: Duration) {
        self.waits.observe(time.as_secs_f64());
    }

    /// A request is sent again.
    pub(crate) fn repeats(&self, cause: RepeatCause) {
        self.repeats.get(RepeatLabels { upstream: &self.upstream, cause }).inc();
    }
}
