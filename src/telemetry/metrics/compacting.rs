//! How compaction counts: summaries that were written or failed, their time, effect and cost, and who waited
//! for them.
//!
//! The cost of writing is overhead: it is in no exchange's tokens. Tokens before and after count when a
//! summary is written; how often it is used, and why, is among the edits.

use prometheus::{Histogram, IntCounter};

use super::family::{LONG_SECONDS, MetricFamily, UpstreamLabels, families, labels, seconds};
use super::traffic::TokenLabels;
use crate::context::policy::SummaryAuthor;
use crate::telemetry::event::{Compaction, Exchange};
use crate::telemetry::labels::{SummaryOutcome, tokens_by_kind};

labels! {
    pub(super) SummaryLabels<'a> { upstream: &'a str, outcome: SummaryOutcome }
    SummarySizeLabels<'a> { upstream: &'a str, model: &'a str, engine: SummaryAuthor }
}

families! {
    /// All metrics of compaction.
    pub(super) struct CompactionMetrics {
        pub(super) written: MetricFamily<SummaryLabels<'static>, IntCounter> = "plimsoll_compactions_total",
            "Requested summaries: `written`, or why there is none.";
        before: MetricFamily<SummarySizeLabels<'static>, IntCounter> = "plimsoll_compacted_before_tokens_total",
            "Tokens of history that written summaries replace, estimated.";
        after: MetricFamily<SummarySizeLabels<'static>, IntCounter> = "plimsoll_compacted_after_tokens_total",
            "Tokens of these summaries, estimated.";
        time: MetricFamily<UpstreamLabels<'static>, Histogram> = "plimsoll_compaction_seconds" in LONG_SECONDS,
            "How long a summary took to be written, or to fail.";
        cost: MetricFamily<TokenLabels<'static>, IntCounter> = "plimsoll_compaction_tokens_total",
            "Tokens that writing summaries cost; in no other count.";
        waits: MetricFamily<UpstreamLabels<'static>, Histogram> = "plimsoll_compaction_wait_seconds" in LONG_SECONDS,
            "How long requests that waited did so for a summary.";
    }
}

impl CompactionMetrics {
    /// Counts a summary that was written, or failed; `model` is the label.
    pub(super) fn count(&self, compaction: &Compaction, model: &str) {
        let (upstream, engine) = (&*compaction.upstream, compaction.engine);
        self.written.get(SummaryLabels { upstream, outcome: compaction.outcome }).inc();
        self.time.get(UpstreamLabels { upstream }).observe(compaction.seconds);
        if let Some(after) = compaction.after {
            let labels = SummarySizeLabels { upstream, model, engine };
            self.before.get(labels).inc_by(compaction.before);
            self.after.get(labels).inc_by(after);
        }
        for (kind, tokens) in tokens_by_kind(&compaction.usage) {
            if let Some(tokens) = tokens {
                self.cost.get(TokenLabels { upstream, model, kind }).inc_by(tokens);
            }
        }
    }

    /// Counts an exchange that waited for a summary.
    pub(super) fn count_wait(&self, exchange: &Exchange) {
        if let (Some(us), Some(upstream)) = (exchange.timing.compaction_wait_us, &exchange.upstream)
        {
            self.waits.get(UpstreamLabels { upstream }).observe(seconds(us));
        }
    }
}
