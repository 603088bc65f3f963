//! Series that are there before anything happened: what a rule asks the increase of begins at 0.
//!
//! A counter that first appears at 1 has not increased for Prometheus, and its first event would alert
//! nobody. Only what is bounded by enums and configured upstreams begins so; where a model is a label,
//! the rules cope with series that are new.

use strum::IntoEnumIterator as _;

use super::compacting::CompactionMetrics;
use super::rewriting::RewriteMetrics;
use super::{MetricFamilies, Metrics, word};
use crate::context::plan::DecisionReason;
use crate::context::policy::SummaryAuthor;
use crate::dialect::refusal::RefusalCause;
use crate::telemetry::{
    ClientTimeout, CountEstimate, CountOutcome, FailOpen, RejectedConnection, StoreOperation,
    SummaryOutcome,
};

/// Why summaries are asked for.
const TRIGGERS: [DecisionReason; 3] =
    [DecisionReason::Threshold, DecisionReason::Window, DecisionReason::Asked];

impl Metrics {
    /// What is counted for this upstream.
    pub(in crate::telemetry) fn begin_at_zero(&self, upstream: &str) {
        for outcome in CountOutcome::iter() {
            self.families.counts.with_label_values(&[upstream, &word(outcome)]);
        }
        for why in CountEstimate::iter() {
            self.families.counts_estimated.with_label_values(&[upstream, &word(why)]);
        }
        self.families.silent.with_label_values(&[upstream]);
        self.rewriting.begin_at_zero(upstream);
        self.compacting.begin_at_zero(upstream);
    }
}

impl MetricFamilies {
    /// What is counted for no upstream.
    pub(super) fn begin_at_zero(&self) {
        for why in FailOpen::iter() {
            self.fail_open.with_label_values(&[&word(why)]);
        }
        for operation in StoreOperation::iter() {
            self.store_failures.with_label_values(&[&word(operation)]);
        }
        for kind in ClientTimeout::iter() {
            self.client_timeouts.with_label_values(&[&word(kind)]);
        }
        for got in RejectedConnection::iter() {
            self.turned.with_label_values(&[&word(got)]);
        }
    }
}

impl RewriteMetrics {
    fn begin_at_zero(&self, upstream: &str) {
        for cause in RefusalCause::iter() {
            self.refused.with_label_values(&[upstream, &word(cause)]);
        }
        self.set_aside.with_label_values(&[upstream]);
    }
}

impl CompactionMetrics {
    fn begin_at_zero(&self, upstream: &str) {
        for engine in SummaryAuthor::iter().map(word) {
            for why in TRIGGERS.map(word) {
                for outcome in SummaryOutcome::iter().map(word) {
                    self.written.with_label_values(&[upstream, &engine, &why, &outcome]);
                }
            }
        }
    }
}
