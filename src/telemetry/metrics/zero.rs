//! Series that exist before their first event: an alerting rule on an increase needs a series that begins at
//! 0.
//!
//! For Prometheus, a counter that first appears at 1 has not increased, so its first event would alert
//! nobody. Only series that are bounded by enums and configured upstreams begin so; with a model as a label,
//! the rules handle new series themselves.

use strum::IntoEnumIterator as _;

use super::compacting::CompactionMetrics;
use super::rewriting::RewriteMetrics;
use super::{MetricFamilies, Metrics, variant_name};
use crate::context::plan::DecisionReason;
use crate::context::policy::SummaryAuthor;
use crate::dialect::refusal::RefusalCause;
use crate::telemetry::{
    ClientTimeout, CountEstimate, CountOutcome, FailOpen, RejectedConnection, StoreOperation,
    SummaryOutcome,
};

/// The reasons for which summaries are requested.
const TRIGGERS: [DecisionReason; 3] =
    [DecisionReason::Threshold, DecisionReason::Window, DecisionReason::Requested];

impl Metrics {
    /// Creates the series of this upstream.
    pub(in crate::telemetry) fn begin_at_zero(&self, upstream: &str) {
        for outcome in CountOutcome::iter() {
            self.families.counts.with_label_values(&[upstream, &variant_name(outcome)]);
        }
        for why in CountEstimate::iter() {
            self.families.counts_estimated.with_label_values(&[upstream, &variant_name(why)]);
        }
        self.families.silent.with_label_values(&[upstream]);
        self.rewriting.begin_at_zero(upstream);
        self.compacting.begin_at_zero(upstream);
    }
}

impl MetricFamilies {
    /// Creates the series without an upstream.
    pub(super) fn begin_at_zero(&self) {
        for why in FailOpen::iter() {
            self.fail_open.with_label_values(&[&variant_name(why)]);
        }
        for operation in StoreOperation::iter() {
            self.store_failures.with_label_values(&[&variant_name(operation)]);
        }
        for kind in ClientTimeout::iter() {
            self.client_timeouts.with_label_values(&[&variant_name(kind)]);
        }
        for got in RejectedConnection::iter() {
            self.turned.with_label_values(&[&variant_name(got)]);
        }
    }
}

impl RewriteMetrics {
    fn begin_at_zero(&self, upstream: &str) {
        for cause in RefusalCause::iter() {
            self.refused.with_label_values(&[upstream, &variant_name(cause)]);
        }
        self.set_aside.with_label_values(&[upstream]);
    }
}

impl CompactionMetrics {
    fn begin_at_zero(&self, upstream: &str) {
        for engine in SummaryAuthor::iter().map(variant_name) {
            for why in TRIGGERS.map(variant_name) {
                for outcome in SummaryOutcome::iter().map(variant_name) {
                    self.written.with_label_values(&[upstream, &engine, &why, &outcome]);
                }
            }
        }
    }
}
