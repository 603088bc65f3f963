//! How wrong estimates were: by tokenizer family and method, and by the size of the context.
//!
//! Percentages are of the whole prompt and mislead if it is small, so they are labelled with its size. Beside
//! them are errors in tokens, errors of the new part alone, and the share that lay within its range.

use prometheus::{Gauge, Histogram, IntCounter, IntGauge};
use strum::AsRefStr;

use super::family::{MetricFamily, ModelLabels, families, labels};
use crate::context::EstimateMethod;
use crate::context::budget::HiddenInput;
use crate::dialect::models::Family;
use crate::telemetry::event::Exchange;
use crate::tokens::learn::Expert;

/// Signed: below 0, the estimate was too low.
const ERROR_RATIO: &[f64] = &[
    -0.5, -0.25, -0.1, -0.05, -0.02, -0.01, -0.005, -0.001, -0.0001, 0.0, 0.0001, 0.001, 0.005,
    0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0,
];
/// The first bucket counts exact estimates.
const ERROR_TOKENS: &[f64] =
    &[0.0, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1e3, 3e3, 1e4, 3e4, 1e5, 1e6];
/// New parts of fewer tokens are not measured in percent: a single token would weigh too much.
const SMALL: i64 = 100;

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
    SizeLabels { family: Family, method: EstimateMethod, context: PromptSize }
    ClassicLabels<'a> { rules: &'a str, family: Family, method: EstimateMethod, context: PromptSize }
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
        over: MetricFamily<ModelLabels<'static>, IntCounter> = "plimsoll_estimate_over_tokens_total",
            "The part of plimsoll_estimate_missed_tokens_total by which estimates were too high.";
        compared: MetricFamily<ModelLabels<'static>, IntCounter> = "plimsoll_estimate_compared_tokens_total",
            "Input tokens of compared exchanges; plimsoll_estimate_missed_tokens_total divided by this is the error.";
        lessons: MetricFamily<ModelLabels<'static>, IntGauge> = "plimsoll_calibration_lessons",
            "Replies that the estimator learned from; falls when learning restarts.";
        band: MetricFamily<ModelLabels<'static>, Gauge> = "plimsoll_calibration_band",
            "How wide the band usually is, in multiples of the expected error.";
        error_ratio: MetricFamily<SizeLabels, Histogram> = "plimsoll_estimate_error_ratio" in ERROR_RATIO,
            "(estimate - actual) / actual, by the size of the context. The sum is signed.";
        error_tokens: MetricFamily<MethodLabels, Histogram> = "plimsoll_estimate_error_tokens" in ERROR_TOKENS,
            "|estimate - actual|. The first bucket holds the exact ones.";
        new_error_ratio: MetricFamily<MethodLabels, Histogram> = "plimsoll_estimate_new_error_ratio" in ERROR_RATIO,
            "Error relative to what was new since the last call, if more than 100 tokens; only `anchored`.";
        classic_error: MetricFamily<ClassicLabels<'static>, Histogram> = "plimsoll_classic_error_ratio" in ERROR_RATIO,
            "Error of a known agent's count; only with a preset or estimate.classic.";
        hidden_error: MetricFamily<HiddenLabels, Histogram> = "plimsoll_hidden_input_error_tokens" in ERROR_TOKENS,
            "|estimate - actual| of exchanges that are in no other metric of accuracy: tools ran at the provider (`hosted_tools`), it changed the context or called other models (`provider_edit`), another model answered (`other_model`), it holds the history (`continuation`).";
    }
}

impl AccuracyMetrics {
    /// Counts one exchange.
    pub(super) fn count(&self, exchange: &Exchange) {
        let Some(actual) = exchange.actual() else { return };
        let family = exchange.family.unwrap_or(Family::Other);
        if let (Some(hidden_input), Some(error)) = (exchange.hidden_input(), exchange.own_error()) {
            let labels = HiddenLabels { family, hidden_input };
            self.hidden_error.get(labels).observe(error.unsigned_abs() as f64);
            return;
        }
        let context = PromptSize::from_tokens(actual);
        if let (Some(classic), Some(ratio)) = (&exchange.classic, exchange.classic_error_ratio()) {
            let (rules, method) = (&*classic.rules, classic.method);
            // In the same buckets as ours, so that both can be compared.
            self.classic_error.get(ClassicLabels { rules, family, method, context }).observe(ratio);
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
        self.exact.get(labels).inc_by(u64::from(error == 0));
        self.error_tokens.get(labels).observe(error.unsigned_abs() as f64);
        let band = estimate.guess.low..=estimate.guess.high;
        self.within_band.get(labels).inc_by(u64::from(band.contains(&actual)));
        if let Some(ratio) = exchange.own_error_ratio() {
            self.error_ratio.get(SizeLabels { family, method, context }).observe(ratio);
        }
        let new = i64::try_from(estimate.new).unwrap_or(i64::MAX).saturating_sub(error);
        // By an agent's rules, what is new was counted by them.
        let is_own = estimate.guess.tokens == estimate.tokens;
        if is_own && method == EstimateMethod::Anchored && new > SMALL {
            self.new_error_ratio.get(labels).observe(error as f64 / new as f64);
        }
    }

    /// Counts one exchange for its model.
    pub(super) fn count_model(&self, exchange: &Exchange, model: ModelLabels<'_>) {
        if exchange.hidden_input().is_some() {
            return;
        }
        if let (Some(actual), Some(error)) = (exchange.actual(), exchange.own_error()) {
            self.missed.get(model).inc_by(error.unsigned_abs());
            self.over.get(model).inc_by(u64::try_from(error).unwrap_or(0));
            self.compared.get(model).inc_by(actual);
        }
    }

    /// Sets what was learned about a model.
    pub(super) fn learned(&self, model: ModelLabels<'_>, lessons: u64, band: f32) {
        self.lessons.get(model).set(i64::try_from(lessons).unwrap_or(i64::MAX));
        self.band.get(model).set(f64::from(band));
    }
}
