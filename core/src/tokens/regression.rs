//! A robust linear regression that learns from one observation at a time.
//!
//! Recursive least squares in its Bayesian form: weights begin at 0, with a spread that says how far
//! they may go; what is far from expected weighs little (Student's t), and what was learned fades.
//! Knows numbers only.

use serde::{Deserialize, Serialize};

use super::features::ROUGH;
use crate::dialect::models::Family;

/// Numbers that an observation is told by.
pub(super) const FEATURES: usize = TEXT + 5;
/// Of those, the first ones that grow with the text; the very first is its size.
const TEXT: usize = 1 + ROUGH;

/// Weights, and how sure they are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Regression {
    weights: Vec<f64>,
    /// Row by row.
    covariance: Vec<f64>,
    /// Where the covariance began: it never exceeds that.
    spreads: Vec<f64>,
    /// The largest text that it learned from lately, thousands of tokens; 0 where an earlier version kept it, which is
    /// learned with the next observation.
    #[serde(default)]
    largest: f64,
}

/// Degrees of freedom of the errors: few, so that the odd large one teaches little.
const FREEDOM: f64 = 4.0;
/// How much is left of what was learned after each observation.
const STAYS: f64 = 0.998;

impl Regression {
    /// How far weights may go, one standard deviation: tokens for each thousand tokens of text (of all
    /// text; of a kind; of pictures), and tokens for each piece of structure.
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

    /// What it says of an observation; of its text no more than of one `reach` times as large as the largest that it
    /// learned from.
    pub(super) fn predict(&self, features: &[f64; FEATURES], reach: f64) -> f64 {
        let text = features[0].max(f64::EPSILON);
        let within = (reach * self.largest / text).min(1.0);
        let share = |at| if at < TEXT { within } else { 1.0 };
        let answers = self.weights.iter().zip(features).enumerate();
        answers.map(|(at, (weight, feature))| weight * feature * share(at)).sum()
    }

    /// What it says of an observation, whatever its size.
    fn linear(&self, features: &[f64; FEATURES]) -> f64 {
        self.weights.iter().zip(features).map(|(weight, feature)| weight * feature).sum()
    }

    /// Learns that `features` came with `truth`; `noise`: one standard deviation of what cannot be
    /// explained.
    pub(super) fn learn(&mut self, features: &[f64; FEATURES], truth: f64, noise: f64) {
        if !self.is_whole() {
            return;
        }
        let row = |covariance: &[f64], at: usize| -> f64 {
            let row = &covariance[at * FEATURES..(at + 1) * FEATURES];
            row.iter().zip(features).map(|(known, feature)| known * feature).sum()
        };
        let gain: Vec<f64> = (0..FEATURES).map(|at| row(&self.covariance, at)).collect();
        let unsure: f64 = gain.iter().zip(features).map(|(gain, feature)| gain * feature).sum();
        let error = truth - self.linear(features);
        let expected = noise * noise + unsure;
        let trust = (FREEDOM + 1.0) / (FREEDOM + error * error / expected);
        let scale = 1.0 / (unsure + noise * noise / trust);
        if !scale.is_finite() || !error.is_finite() {
            return;
        }
        for at in 0..FEATURES {
            self.weights[at] = (self.weights[at] + gain[at] * error * scale) * STAYS_OF_WEIGHT;
            for other in 0..FEATURES {
                self.covariance[at * FEATURES + other] -= gain[at] * gain[other] * scale;
            }
        }
        self.largest = features[0].max(self.largest * STAYS);
        self.fade(1.0 - STAYS);
    }

    /// What was learned is doubted: it can be learned anew soon.
    pub(super) fn doubt(&mut self) {
        if self.is_whole() {
            self.fade(0.5);
        }
    }

    /// What is known no longer holds: the cost of text may be anything.
    pub(super) fn startled(&mut self) {
        if self.is_whole() {
            self.fade(1.0);
            self.covariance[0] += STARTLED * STARTLED;
        }
    }

    /// Adds a share of the first spread, up to all of it.
    fn fade(&mut self, share: f64) {
        for (at, spread) in self.spreads.iter().enumerate() {
            let most = spread * spread;
            let known = &mut self.covariance[at * FEATURES + at];
            *known = (*known + share * most).min(most.max(*known));
        }
    }

    /// Whether it is what this program wrote: a store may hold anything.
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

/// How far the cost of a thousand tokens of text may be from what it was.
const STARTLED: f64 = 500.0;
/// Weights fall towards 0 where nothing holds them.
const STAYS_OF_WEIGHT: f64 = 0.9995;
