//! The metrics of an upstream's and of a model's exchanges.
//!
//! Handles that are looked up once, so that an exchange need not look them up again.

use prometheus::{Gauge, Histogram, IntCounter};

use crate::context::Outcome;
use crate::dialect::Dialect;

/// Dialect, outcome, and class of the status.
pub(super) type TrafficKey = (Option<Dialect>, Outcome, Option<u16>);

/// Handles for one upstream, dialect, outcome, and class of the status.
pub(super) struct TrafficHandles {
    pub(super) requests: IntCounter,
    pub(super) first_byte: Histogram,
    pub(super) duration: Histogram,
    pub(super) request_bytes: IntCounter,
    pub(super) response_bytes: IntCounter,
    pub(super) overhead: Histogram,
}

/// Usage handles for one upstream and model.
pub(super) struct UsageHandles {
    pub(super) input: IntCounter,
    pub(super) output: IntCounter,
    pub(super) reasoning: IntCounter,
    pub(super) cache_read: IntCounter,
    pub(super) cache_write: IntCounter,
    pub(super) cache_reported: IntCounter,
    pub(super) cache_hits: IntCounter,
    pub(super) fill: Histogram,
}

/// Accuracy handles for one upstream and model.
pub(super) struct ComparisonHandles {
    pub(super) missed: IntCounter,
    pub(super) over: IntCounter,
    pub(super) compared: IntCounter,
}

/// Learning handles for one upstream and model.
pub(super) struct LearningHandles {
    pub(super) lessons: Gauge,
    pub(super) band: Gauge,
}

/// Cache handles for one upstream and model, and one way of editing.
pub(super) struct CacheHandles {
    pub(super) input: IntCounter,
    pub(super) read: IntCounter,
}
