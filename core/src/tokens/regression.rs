//! A robust linear regression that learns from one observation at a time.
//!
//! Recursive least squares in Bayesian form: weights begin at 0, with a spread that limits how far they go;
//! outliers weigh little (Student's t), and what was learned fades. Knows only numbers.

use serde::{Deserialize, Serialize};

use super::features::ROUGH;
use crate::dialect::models::Family;

/// The number of features of an observation.
pub(super) const FEATURES: usize = TEXT + 5;
/// The number of features, from the first on, that grow with the text; the first one is its size.
const TEXT: usize = 1 + ROUGH;

/// The weights, and how certain they are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Regression {
    weights: Vec<f64>,
    /// Stored row by row.
    covariance: Vec<f64>,
    /// The initial spreads; the covariance never exceeds them.
    spreads: Vec<f64>,
    /// The largest text that it learned from lately, in thousands of tokens; 0 if an earlier version stored
    /// the state, until the next observation.
    #[serde(default)]
    largest: f64,
}

/// Degrees of freedom of the error distribution: few, so that an occasional large error teaches little.
const FREEDOM: f64 = 4.0;
/// The share of what was learned that remains after each observation.
const STAYS: f64 = 0.998;

impl Regression {
    /// A regression without observations. The spreads are one standard deviation of the weights: tokens per
    /// thousand tokens of text (all text, one kind of text, images), and tokens per piece of structure.
    pub(super) fn new(family: Family, exact: bool) -> Self {
        let (text, kind, media, piece) = match family {
            _ if exact => (5.0, 0.0, 100.0, 2.0),
            Family::Other => (300.0, 300.0, 300.0, 15.0),
            _ => (20.0, 40.0, 100.0, 3.0),
        };
        let mut spreads = vec![text];
        spreads.extend([kind; ROUGH]);
        spreads.extend([media, piece, piece, piece, piece]);
        let mut covariance = vec![0.0; FEATURES * FEATURES];
        for (at, spread) in spreads.iter().enumerate() {
            covariance[at * FEATURES + at] = spread * spread;
        }
        Self { weights: vec![0.0; FEATURES], covariance, spreads, largest: 0.0 }
    }

    /// The predicted error of an observation; its text counts as at most `reach` times as large as the
    /// largest that was learned from.
    pub(super) fn predict(&self, features: &[f64; FEATURES], reach: f64) -> f64 {
        let text = features[0].max(f64::EPSILON);
        // Beyond what it has seen, a larger text is corrected no more than the largest that is within reach.
        let text_share = (reach * self.largest / text).min(1.0);
        let mut error = 0.0;
        for (at, (weight, feature)) in self.weights.iter().zip(features).enumerate() {
            error += weight * feature * if at < TEXT { text_share } else { 1.0 };
        }
        error
    }

    /// Learns that `features` came with the error `truth`; `noise` is one standard deviation of what cannot
    /// be explained.
    pub(super) fn learn(&mut self, features: &[f64; FEATURES], truth: f64, noise: f64) {
        if !self.is_whole() {
            return;
        }
        let rows = self.covariance.chunks_exact(FEATURES);
        let gain: Vec<f64> = rows.map(|row| dot(row, features)).collect();
        let unsure = dot(&gain, features);
        let error = truth - dot(&self.weights, features);
        let expected = noise * noise + unsure;
        // Student's t: the farther an error is from the expected one, the less it teaches.
        let trust = (FREEDOM + 1.0) / (FREEDOM + error * error / expected);
        let scale = 1.0 / (unsure + noise * noise / trust);
        if !scale.is_finite() || !error.is_finite() {
            return;
        }
        for at in 0..FEATURES {
            // Weights that no observation confirms fall back to 0.
            self.weights[at] = (self.weights[at] + gain[at] * error * scale) * STAYS_OF_WEIGHT;
            for other in 0..FEATURES {
                self.covariance[at * FEATURES + other] -= gain[at] * gain[other] * scale;
            }
        }
        self.largest = features[0].max(self.largest * STAYS);
        self.fade(1.0 - STAYS);
    }

    pub(super) fn doubt(&mut self) {
        if self.is_whole() {
            self.fade(0.5);
        }
    }

    pub(super) fn startled(&mut self) {
        if self.is_whole() {
            self.fade(1.0);
            // The cost of text may now be anything.
            self.covariance[0] += STARTLED * STARTLED;
        }
    }

    fn fade(&mut self, share: f64) {
        for (at, spread) in self.spreads.iter().enumerate() {
            // Up to the initial spread: a fit never knows less than at first.
            let variance = spread * spread;
            let entry = &mut self.covariance[at * FEATURES + at];
            // It may be above the initial one after a change; then it stays as it is.
            *entry = (*entry + share * variance).min(variance.max(*entry));
        }
    }

    pub(super) fn is_whole(&self) -> bool {
        self.weights.len() == FEATURES
            && self.spreads.len() == FEATURES
            && self.covariance.len() == FEATURES * FEATURES
            && self
                .weights
                .iter()
                .chain(&self.covariance)
                .chain([&self.largest])
                .all(|number| number.is_finite())
    }
}

fn dot(left: &[f64], right: &[f64]) -> f64 {
    left.iter().zip(right).map(|(left, right)| left * right).sum()
}

/// How far the cost of a thousand tokens of text may have changed.
const STARTLED: f64 = 500.0;
/// The factor by which weights fall towards 0 with each observation.
const STAYS_OF_WEIGHT: f64 = 0.9995;

#[cfg(test)]
mod tests {
    use super::*;

    /// An observation of this many thousand tokens of text and this many pieces of structure.
    fn seen(text: f64, pieces: f64) -> [f64; FEATURES] {
        let mut features = [0.0; FEATURES];
        (features[0], features[TEXT + 1]) = (text, pieces);
        features
    }

    /// The true difference: 20 tokens for each thousand, and 2 for each piece.
    fn truth(text: f64, pieces: f64) -> f64 {
        20.0 * text + 2.0 * pieces
    }

    fn learned(times: u32) -> Regression {
        let mut regression = Regression::new(Family::Claude, false);
        for n in 0..times {
            let (text, pieces) = (f64::from(n % 7 + 1), f64::from(n % 5));
            regression.learn(&seen(text, pieces), truth(text, pieces), 3.0);
        }
        regression
    }

    fn check(says: f64, wanted: f64, most: f64) {
        assert!((says - wanted).abs() <= most, "{says}, not {wanted}");
    }

    #[test]
    fn regression_learns_costs_of_text_and_structure() {
        let nothing = Regression::new(Family::Claude, false);
        check(nothing.predict(&seen(5.0, 2.0), 9.0), 0.0, 0.0);
        let says = learned(60);
        check(says.predict(&seen(5.0, 0.0), 9.0), 100.0, 3.0);
        check(says.predict(&seen(0.0, 4.0), 9.0), 8.0, 1.5);
        check(says.predict(&seen(3.0, 1.0), 9.0), 62.0, 3.0);
        assert!(says.is_whole());
    }

    /// A prediction for text is limited to a multiple of the largest text seen recently.
    #[test]
    fn predicted_text_cost_is_limited_by_largest_text_seen() {
        let says = learned(60);
        check(says.largest, 7.0, 0.1);
        let (at, past) = (says.predict(&seen(14.0, 0.0), 2.0), says.predict(&seen(99.0, 0.0), 2.0));
        check(past, at, 3.0);
        check(says.predict(&seen(99.0, 0.0), 99.0), 1_980.0, 40.0);
        // Structure has no such limit.
        check(says.predict(&seen(0.0, 40.0), 2.0), 80.0, 15.0);
        // A large text is forgotten after a while.
        let mut small = learned(60);
        (0..700).for_each(|_| small.learn(&seen(0.5, 0.0), truth(0.5, 0.0), 3.0));
        assert!(small.largest < 2.5, "{}", small.largest);
    }

    /// A single large error teaches little. An error that is believed is learned at once.
    #[test]
    fn outlier_teaches_little_unless_it_is_believed() {
        let of = |prepare: fn(&mut Regression)| {
            let mut says = learned(60);
            prepare(&mut says);
            says.learn(&seen(5.0, 0.0), 1_100.0, 3.0);
            says.predict(&seen(5.0, 0.0), 9.0)
        };
        check(of(|_| {}), 100.0, 15.0);
        let doubted = of(Regression::doubt);
        let startled = of(Regression::startled);
        assert!(doubted > of(|_| {}) + 1.0, "{doubted}");
        assert!(startled > 900.0, "{startled}");
    }

    /// What was learned long ago can be replaced. Uncertainty is never higher than at the start.
    #[test]
    fn learned_costs_fade() {
        let mut says = learned(400);
        for n in 0..200 {
            let text = f64::from(n % 7 + 1);
            says.learn(&seen(text, 0.0), 40.0 * text, 3.0);
        }
        check(says.predict(&seen(5.0, 0.0), 9.0), 200.0, 10.0);
        let spread = |regression: &Regression, at: usize| regression.covariance[at * FEATURES + at];
        let first = Regression::new(Family::Claude, false);
        for at in 0..FEATURES {
            assert!(spread(&says, at) <= spread(&first, at) + 1e-6, "{at}");
        }
        assert!(spread(&says, 0) < spread(&first, 0) / 2.0);
        let mut doubted = says.clone();
        doubted.doubt();
        assert!(spread(&doubted, 0) >= spread(&first, 0) / 2.0);
        says.startled();
        check(spread(&says, 0), spread(&first, 0) + STARTLED * STARTLED, 1.0);
        check(spread(&says, 1), spread(&first, 1), 1e-6);
    }

    #[test]
    fn invalid_numbers_teach_nothing() {
        let says = learned(60);
        for (text, truth, noise) in
            [(f64::NAN, 1.0, 3.0), (1.0, f64::INFINITY, 3.0), (0.0, 1.0, 0.0), (1.0, f64::NAN, 3.0)]
        {
            let mut other = says.clone();
            other.learn(&seen(text, 0.0), truth, noise);
            assert_eq!(other, says, "{text}, {truth}, {noise}");
        }
        let broken = Regression { weights: vec![0.0; FEATURES - 1], ..says.clone() };
        assert!(!broken.is_whole());
        let mut other = broken.clone();
        other.learn(&seen(1.0, 0.0), 1.0, 3.0);
        other.doubt();
        other.startled();
        assert_eq!(other, broken);
        assert!(!Regression { largest: f64::NAN, ..says }.is_whole());
    }
}
