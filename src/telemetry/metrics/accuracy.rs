//! How wrong estimates were: by tokenizer family and method, and by the size of the context.
//!
//! Percentages are of the whole prompt and mislead if it is small, so they are labelled with its size. Beside
//! them are errors in tokens, and the share that lay within its range.

use prometheus::{Gauge, Histogram, IntCounter, IntGauge};
use strum::AsRefStr;

use super::family::{MetricFamily, ModelLabels, families, labels};
use crate::context::EstimateMethod;
use crate::context::budget::HiddenInput;
use crate::dialect::models::Family;
use crate::telemetry::event::Exchange;
use crate::tokens::learn::Expert;

/// Signed: below 0, the estimate was too low.
const ERROR_RATIO: &[f64] = &[-0.25, -0.05, -0.01, -0.001, 0.0, 0.001, 0.01, 0.05, 0.25];
/// The first bucket counts exact estimates.
const ERROR_TOKENS: &[f64] = &[0.0, 10.0, 100.0, 1e3, 1e4];

/// The size of a prompt, in reported tokens; a metric label.
#[derive(Clone, Copy, AsRefStr)]
enum PromptSize {
    #[strum(serialize = "under_10k")]
    Small,
    #[strum(serialize = "10k_to_100k")]
    Medium,
    #[strum(serialize = "over_100k")]
    Large,
}

impl PromptSize {
    fn from_tokens(tokens: u64) -> Self {
        match tokens {
            ..10_000 => Self::Small,
            10_000..100_000 => Self::Medium,
            _ => Self::Large,
        }
    }
}

labels! {
    MethodLabels { family: Family, method: EstimateMethod }
    SizeLabels { family: Family, context: PromptSize }
    ClassicLabels<'a> { rules: &'a str, family: Family }
    ExpertLabels { family: Family, expert: Expert }
    HiddenLabels { family: Family, hidden_input: HiddenInput }
}

families! {
    /// All metrics of the accuracy of estimates.
    pub(super) struct AccuracyMetrics {
        estimated: MetricFamily<MethodLabels, IntCounter> = "plimsoll_estimated_input_tokens_total",
            "Input tokens predicted for exchanges that could be compared.";
        actual: MetricFamily<MethodLabels, IntCounter> = "plimsoll_actual_input_tokens_total",
            "Input tokens reported for exchanges that could be compared.";
        comparable: MetricFamily<MethodLabels, IntCounter> = "plimsoll_estimates_comparable_total",
            "Exchanges with an estimate and an exact report.";
        exact: MetricFamily<MethodLabels, IntCounter> = "plimsoll_estimates_exact_total",
            "Exchanges whose estimate was right to the token.";
        within_band: MetricFamily<MethodLabels, IntCounter> = "plimsoll_estimates_within_band_total",
            "Exchanges whose reported input was within the band; nine in ten should be.";
        corrected: MetricFamily<ExpertLabels, IntCounter> = "plimsoll_estimates_corrected_total",
            "Compared exchanges by what corrected the estimate: nothing (`counted`), earlier results of the `tool`, a `regression` on kinds of text.";
        missed: MetricFamily<ModelLabels<'static>, IntCounter> = "plimsoll_estimate_missed_tokens_total",
            "Tokens by which estimates were wrong, |estimate - actual|.";
        compared: MetricFamily<ModelLabels<'static>, IntCounter> = "plimsoll_estimate_compared_tokens_total",
            "Input tokens of compared exchanges.";
        lessons: MetricFamily<ModelLabels<'static>, IntGauge> = "plimsoll_calibration_lessons",
            "Replies that the estimator learned from; falls when learning restarts.";
        band: MetricFamily<ModelLabels<'static>, Gauge> = "plimsoll_calibration_band",
            "How wide the band usually is, in multiples of the expected error.";
        error_ratio: MetricFamily<SizeLabels, Histogram> = "plimsoll_estimate_error_ratio" in ERROR_RATIO,
            "(estimate - actual) / actual, by the size of the context. The sum is signed, and missing in OpenMetrics.";
        error_tokens: MetricFamily<MethodLabels, Histogram> = "plimsoll_estimate_error_tokens" in ERROR_TOKENS,
            "|estimate - actual|.";
        classic_error: MetricFamily<ClassicLabels<'static>, Histogram> = "plimsoll_classic_error_ratio" in ERROR_RATIO,
            "Error of a known agent's count; only with a preset or estimate.classic.";
        hidden: MetricFamily<HiddenLabels, IntCounter> = "plimsoll_hidden_input_total",
            "Exchanges that are in no other metric of accuracy: tools ran at the provider (`hosted_tools`), it changed the context or called others (`provider_edit`), `other_model` answered, it holds the history (`continuation`).";
    }
}

impl AccuracyMetrics {
    /// Counts one exchange.
    pub(super) fn count(&self, exchange: &Exchange) {
        let Some(actual) = exchange.actual() else { return };
        let family = exchange.family.unwrap_or(Family::Other);
        if let Some(hidden_input) = exchange.hidden_input() {
            self.hidden.get(HiddenLabels { family, hidden_input }).inc();
            return;
        }
        if let (Some(classic), Some(error)) = (&exchange.classic, exchange.classic_error())
            && let Some(ratio) = error.ratio
        {
            // In the same buckets as ours, so that both can be compared.
            self.classic_error.get(ClassicLabels { rules: &classic.rules, family }).observe(ratio);
        }
        let (Some(estimate), Some(error)) = (&exchange.estimate, exchange.own_error()) else {
            return;
        };
        let method = estimate.method;
        let labels = MethodLabels { family, method };
        self.estimated.get(labels).inc_by(estimate.guess.tokens);
        self.actual.get(labels).inc_by(actual);
        self.comparable.get(labels).inc();
        self.corrected.get(ExpertLabels { family, expert: estimate.guess.expert }).inc();
        self.exact.get(labels).inc_by(u64::from(error.tokens == 0));
        self.error_tokens.get(labels).observe(error.tokens.unsigned_abs() as f64);
        let band = estimate.guess.low..=estimate.guess.high;
        self.within_band.get(labels).inc_by(u64::from(band.contains(&actual)));
        if let Some(ratio) = error.ratio {
            let context = PromptSize::from_tokens(actual);
            self.error_ratio.get(SizeLabels { family, context }).observe(ratio);
        }
    }

    /// Counts one exchange for its model.
    pub(super) fn count_model(&self, exchange: &Exchange, model: ModelLabels<'_>) {
        if exchange.hidden_input().is_some() {
            return;
        }
        if let (Some(actual), Some(error)) = (exchange.actual(), exchange.own_error()) {
            self.missed.get(model).inc_by(error.tokens.unsigned_abs());
            self.compared.get(model).inc_by(actual);
        }
    }

    /// Sets what was learned about a model.
    pub(super) fn learned(&self, model: ModelLabels<'_>, lessons: u64, band: f32) {
        self.lessons.get(model).set(i64::try_from(lessons).unwrap_or(i64::MAX));
        self.band.get(model).set(f64::from(band));
    }
}
