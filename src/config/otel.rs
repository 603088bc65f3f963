//! What is sent to an OpenTelemetry collector, and how: resolved from `[otel]` and the standard `OTEL_*` variables.
//!
//! Values only; [`super::resolve`] makes them.

use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderName, Uri};

use super::choices::OtelProtocol;
use super::secret::Secret;

/// What is sent to a collector, and how.
#[derive(Clone, Debug)]
pub struct OtelSettings {
    /// Where spans go; `None`: nowhere.
    pub traces: Option<OtelTarget>,
    /// Where metrics go; `None`: nowhere.
    pub metrics: Option<OtelTarget>,
    /// Where the log goes, besides where it is written; `None`: nowhere.
    pub logs: Option<OtelTarget>,
    /// Which exchanges get spans.
    pub sampler: TraceSampler,
    /// Whether the upstream gets our `traceparent`.
    pub propagate: bool,
    /// The attributes of this process, `service.name` among them.
    pub resource: Vec<(Box<str>, Box<str>)>,
    /// How long spans and records of the log are gathered.
    pub span_delay: Duration,
    /// How often metrics are sent.
    pub metric_interval: Duration,
}

/// Where one signal goes.
#[derive(Clone, Debug)]
pub struct OtelTarget {
    /// The whole URL, with the signal's path.
    pub url: Uri,
    /// How it is spoken to.
    pub protocol: OtelProtocol,
    /// Headers of each request.
    pub headers: Vec<(HeaderName, Secret)>,
    /// How long a request may take.
    pub timeout: Duration,
    /// Whether requests are compressed, with gzip.
    pub gzip: bool,
    /// PEM file with more authorities to trust.
    pub certificate: Option<PathBuf>,
}

/// Which exchanges are sampled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TraceSampler {
    /// Share of traces, 0 to 1.
    pub ratio: f64,
    /// Whether a client that continues a trace decides instead.
    pub follows_client: bool,
}

impl Default for TraceSampler {
    fn default() -> Self {
        Self { ratio: 1.0, follows_client: true }
    }
}

impl TraceSampler {
    /// Whether a trace is sampled. `client`: what its client decided, if it has one.
    pub(crate) fn samples(self, trace: &[u8; 16], client: Option<bool>) -> bool {
        if let (true, Some(decided)) = (self.follows_client, client) {
            return decided;
        }
        // The lower half of a trace's id is random, so that all processes decide alike.
        let [.., a, b, c, d, e, f, g, h] = *trace;
        let random = u64::from_be_bytes([a, b, c, d, e, f, g, h]) >> 1;
        self.ratio >= 1.0 || (random as f64) < self.ratio * (1u64 << 63) as f64
    }
}
