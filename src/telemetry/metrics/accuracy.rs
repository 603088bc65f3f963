//! How wrong estimates were: by tokenizer family and method, and by the size of the context.
//!
//! Percentages are of the whole prompt and mislead if it is small, so they are labelled with its size. Beside
//! them are errors in tokens, errors of the new part alone, and the share that lay within its range.

use std::sync::Mutex;

use prometheus::{GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec};
use serde::Serialize;

use super::handles::{HandleMap, ModelHandles, handles};
use super::make::MetricRegistrar;
use super::traffic::{ComparisonHandles, LearningHandles};
use crate::context::EstimateMethod;
use crate::dialect::models::Family;
use crate::telemetry::event::Exchange;
use crate::telemetry::log::variant_name;
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
enum PromptSize {
    #[serde(rename = "under_10k")]
    Small,
    #[serde(rename = "10k_to_100k")]
    Medium,
    #[serde(rename = "over_100k")]
    Large,
}

impl PromptSize {
    fn of(tokens: u64) -> Self {
        match tokens {
            ..10_000 => Self::Small,
            10_000..100_000 => Self::Medium,
            _ => Self::Large,
        }
    }
}

type AccuracyLabels = (Family, EstimateMethod, PromptSize, Expert);

/// All metrics of the accuracy of estimates.
pub(super) struct AccuracyMetrics {
    estimated: IntCounterVec,
    actual: IntCounterVec,
    comparable: IntCounterVec,
    exact: IntCounterVec,
    within_band: IntCounterVec,
    corrected: IntCounterVec,
    missed: IntCounterVec,
    over: IntCounterVec,
    capped: IntCounterVec,
    compared: IntCounterVec,
    lessons: GaugeVec,
    band: GaugeVec,
    error_ratio: HistogramVec,
    error_tokens: HistogramVec,
    new_error_ratio: HistogramVec,
    classic_error: HistogramVec,
    hidden_error: HistogramVec,
    known: HandleMap<AccuracyLabels, AccuracyHandles>,
}

/// Handles for one tokenizer family, method and size.
struct AccuracyHandles {
    estimated: IntCounter,
    actual: IntCounter,
    comparable: IntCounter,
    exact: IntCounter,
    within_band: IntCounter,
    corrected: IntCounter,
    error_ratio: Histogram,
    error_tokens: Histogram,
    new_error_ratio: Histogram,
}

impl AccuracyMetrics {
    #[rustfmt::skip] // A table: one metric a line or two.
    pub(super) fn new(make: &mut MetricRegistrar) -> Result<Self, prometheus::Error> {
        let by = &["family", "method"];
        Ok(Self {
            estimated: make.counters("plimsoll_estimated_input_tokens_total", by,
                "Input tokens predicted before sending, for the exchanges that could be compared.")?,
            actual: make.counters("plimsoll_actual_input_tokens_total", by,
                "Input tokens that the provider reported for the same exchanges.")?,
            comparable: make.counters("plimsoll_estimates_comparable_total", by,
                "Exchanges with an estimate and an exact report.")?,
            exact: make.counters("plimsoll_estimates_exact_total", by,
                "Exchanges whose estimate was right to the token.")?,
            within_band: make.counters("plimsoll_estimates_within_band_total", by,
                "Exchanges whose reported input was within the band of the estimate; nine in ten should be.")?,
            corrected: make.counters("plimsoll_estimates_corrected_total", &["family", "expert"],
                "The same exchanges by what corrected the estimate: nothing (`counted`), earlier results of the same tool (`tool`), or a regression on the kinds of text (`regression`).")?,
            missed: make.counters("plimsoll_estimate_missed_tokens_total", &["upstream", "model"],
                "Tokens by which estimates were wrong, |estimate - actual|, by the model of the request.")?,
            over: make.counters("plimsoll_estimate_over_tokens_total", &["upstream", "model"],
                "The share of plimsoll_estimate_missed_tokens_total by which estimates were too high; the rest is by how much they were too low.")?,
            capped: make.counters("plimsoll_breakdowns_capped_total", &["family"],
                "Requests whose system prompt and tools were estimated larger than the whole request, so that messages are shown as 0; a warning in the log names the first of each model and hour.")?,
            compared: make.counters("plimsoll_estimate_compared_tokens_total", &["upstream", "model"],
                "Input tokens that the provider reported for the same exchanges; plimsoll_estimate_missed_tokens_total divided by this is the error.")?,
            lessons: make.gauges("plimsoll_calibration_lessons", &["upstream", "model"],
                "Replies that the estimator has learned from; it falls when learning restarts.")?,
            band: make.gauges("plimsoll_calibration_band", &["upstream", "model"],
                "How wide the band of estimates usually is, in multiples of the expected error; it follows the last errors.")?,
            error_ratio: make.histograms("plimsoll_estimate_error_ratio", &["family", "method", "context"], ERROR_RATIO,
                "(estimate - actual) / actual, by how large the context was. Below 0 the estimate was too low; the sum is signed and may fall.")?,
            error_tokens: make.histograms("plimsoll_estimate_error_tokens", by, ERROR_TOKENS,
                "|estimate - actual|. The first bucket holds the exact ones.")?,
            new_error_ratio: make.histograms("plimsoll_estimate_new_error_ratio", by, ERROR_RATIO,
                "The same error relative to what was new since the last call, if that was more than 100 tokens; only for method `anchored`.")?,
            classic_error: make.histograms("plimsoll_classic_error_ratio", &["rules", "family", "method", "context"], ERROR_RATIO,
                "The same error of the classic count: what a known agent would have predicted. Only if a preset or estimate.classic turns it on.")?,
            hidden_error: make.histograms("plimsoll_hidden_input_error_tokens", &["family", "hidden_input"], ERROR_TOKENS,
                "|estimate - actual| of exchanges whose input could not be known in advance. No other metric of accuracy counts them: tools ran at the provider (`hosted_tools`), the provider summarised or cleared the history or called other models for the reply (`provider_edit`), another model than the requested one answered (`other_model`), or the provider stores a history that did not pass through Plimsoll (`continuation`).")?,
            known: Mutex::default(),
        })
    }

    /// Counts one exchange.
    pub(super) fn count(&self, exchange: &Exchange) {
        if exchange.is_capped() {
            let family = exchange.family.unwrap_or(Family::Other);
            self.capped.with_label_values(&[&*variant_name(family)]).inc();
        }
        let Some(actual) = exchange.actual() else { return };
        if let (Some(hidden), Some(error)) = (exchange.hidden_input(), exchange.own_error()) {
            let by =
                [&*variant_name(exchange.family.unwrap_or(Family::Other)), &variant_name(hidden)];
            return self.hidden_error.with_label_values(&by).observe(error.unsigned_abs() as f64);
        }
        let (family, size) = (exchange.family.unwrap_or(Family::Other), PromptSize::of(actual));
        if let (Some(classic), Some(ratio)) = (&exchange.classic, exchange.classic_error_ratio()) {
            let by = [
                &*classic.rules,
                &variant_name(family),
                &variant_name(classic.method),
                &variant_name(size),
            ];
            // In the same buckets as ours, so that both can be compared.
            self.classic_error.with_label_values(&by).observe(ratio);
        }
        let (Some(estimate), Some(error)) = (&exchange.estimate, exchange.own_error()) else {
            return;
        };
        let key = (family, estimate.method, size, estimate.guess.expert);
        let known = handles(&self.known, &key, || self.known(key));
        known.estimated.inc_by(estimate.guess.tokens);
        known.actual.inc_by(actual);
        known.comparable.inc();
        known.corrected.inc();
        known.exact.inc_by(u64::from(error == 0));
        known.error_tokens.observe(error.unsigned_abs() as f64);
        let band = estimate.guess.low..=estimate.guess.high;
        known.within_band.inc_by(u64::from(band.contains(&actual)));
        if let Some(ratio) = exchange.own_error_ratio() {
            known.error_ratio.observe(ratio);
        }
        let new = i64::try_from(estimate.new).unwrap_or(i64::MAX).saturating_sub(error);
        // By an agent's rules, what is new was counted by them.
        let is_own = estimate.guess.tokens == estimate.tokens;
        if is_own && estimate.method == EstimateMethod::Anchored && new > SMALL {
            known.new_error_ratio.observe(error as f64 / new as f64);
        }
    }

    /// Counts one exchange for its model.
    pub(super) fn count_model(&self, exchange: &Exchange, upstream: &str, model: &ModelHandles) {
        if exchange.hidden_input().is_some() {
            return;
        }
        if let (Some(actual), Some(error)) = (exchange.actual(), exchange.own_error()) {
            let counted = model.compared.get_or_init(|| {
                let of = &[upstream, &model.label];
                ComparisonHandles {
                    missed: self.missed.with_label_values(of),
                    over: self.over.with_label_values(of),
                    compared: self.compared.with_label_values(of),
                }
            });
            counted.missed.inc_by(error.unsigned_abs());
            counted.over.inc_by(u64::try_from(error).unwrap_or(0));
            counted.compared.inc_by(actual);
        }
    }

    /// Sets what was learned about a model.
    pub(super) fn learned(&self, upstream: &str, model: &ModelHandles, lessons: u64, band: f32) {
        let taught = model.taught.get_or_init(|| {
            let of = &[upstream, &model.label];
            let lessons = self.lessons.with_label_values(of);
            LearningHandles { lessons, band: self.band.with_label_values(of) }
        });
        taught.lessons.set(lessons as f64);
        taught.band.set(f64::from(band));
    }

    fn known(&self, (family, method, size, expert): AccuracyLabels) -> AccuracyHandles {
        let (family, method, size) =
            (variant_name(family), variant_name(method), variant_name(size));
        let corrected = [family.as_str(), &variant_name(expert)];
        let by = &[family.as_str(), method.as_str()];
        AccuracyHandles {
            estimated: self.estimated.with_label_values(by),
            actual: self.actual.with_label_values(by),
            comparable: self.comparable.with_label_values(by),
            exact: self.exact.with_label_values(by),
            within_band: self.within_band.with_label_values(by),
            corrected: self.corrected.with_label_values(&corrected),
            error_ratio: self.error_ratio.with_label_values(&[&family, &method, &size]),
            error_tokens: self.error_tokens.with_label_values(by),
            new_error_ratio: self.new_error_ratio.with_label_values(by),
        }
    }
}
