//! How compaction counts: summaries that were written or failed, their time, effect and cost, and who waited
//! for them.
//!
//! The cost of writing is overhead: it is in no exchange's tokens. Tokens before and after count when a
//! summary is written; how often it is used is among the edits.

use prometheus::{HistogramVec, IntCounterVec};

use super::make::{MetricRegistrar, SECONDS};
use crate::telemetry::event::{Compaction, Exchange};
use crate::telemetry::log::variant_name;

/// All metrics of compaction.
pub(super) struct CompactionMetrics {
    pub(super) written: IntCounterVec,
    before: IntCounterVec,
    after: IntCounterVec,
    seconds: HistogramVec,
    overhead: IntCounterVec,
    waited: HistogramVec,
}

impl CompactionMetrics {
    #[rustfmt::skip] // A table: one metric a line or two.
    pub(super) fn new(make: &mut MetricRegistrar) -> Result<Self, prometheus::Error> {
        let of = &["upstream", "model", "engine"];
        Ok(Self {
            written: make.counters("plimsoll_compactions_total", &["upstream", "engine", "trigger", "outcome"],
                "Summaries that were requested, by who writes them, why, and outcome: `written`, or why there is none. When a summary is first used, `plimsoll_edits_total{kind=\"compacted\"}` counts it.")?,
            before: make.counters("plimsoll_compacted_before_tokens_total", of,
                "Tokens of history that written summaries replace, estimated.")?,
            after: make.counters("plimsoll_compacted_after_tokens_total", of,
                "Tokens of these summaries, estimated.")?,
            seconds: make.histograms("plimsoll_compaction_seconds", &["upstream", "engine"], SECONDS,
                "How long a summary took to be written, or to fail.")?,
            overhead: make.counters("plimsoll_compaction_tokens_total", &["upstream", "model", "kind"],
                "Tokens that writing summaries cost, as reported; they are in no other count.")?,
            waited: make.histograms("plimsoll_compaction_wait_seconds", &["upstream"], SECONDS,
                "How long requests waited for a summary; only requests that waited.")?,
        })
    }

    /// Counts a summary that was written, or failed; `model` is the label.
    pub(super) fn count(&self, one: &Compaction, model: &str) {
        let (upstream, engine) = (&*one.upstream, &*variant_name(one.engine));
        let labels = [upstream, engine, &variant_name(one.why), &variant_name(one.outcome)];
        self.written.with_label_values(&labels).inc();
        self.seconds.with_label_values(&[upstream, engine]).observe(one.seconds);
        if let Some(after) = one.after {
            self.before.with_label_values(&[upstream, model, engine]).inc_by(one.before);
            self.after.with_label_values(&[upstream, model, engine]).inc_by(after);
        }
        for (kind, tokens) in [
            ("input", one.usage.input),
            ("output", one.usage.output),
            ("reasoning", one.usage.reasoning),
            ("cache_read", one.usage.cache_read),
            ("cache_write", one.usage.cache_write),
        ] {
            if let Some(tokens) = tokens {
                self.overhead.with_label_values(&[upstream, model, kind]).inc_by(tokens);
            }
        }
    }

    /// Counts an exchange that waited for a summary.
    pub(super) fn count_wait(&self, exchange: &Exchange) {
        if let (Some(us), Some(upstream)) = (exchange.compaction_wait_us, &exchange.upstream) {
            self.waited.with_label_values(&[upstream]).observe(us as f64 / 1e6);
        }
    }
}
