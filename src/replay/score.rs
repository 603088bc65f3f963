//! How wrong a set of estimates was: medians, tails, the share that was exact.
//!
//! Percents are of the whole prompt, and mislead where contexts are small; tokens and the error on
//! the new part alone stand beside them.

use serde::Serialize;

use crate::dialect::models::Family;
use crate::tokens::learn::Expert;
use crate::tokens::retention::{ByRetention, ReasoningRetention};

/// One estimate against what was reported, tokens.
#[derive(Clone, Debug, Serialize)]
pub struct EstimatePair {
    /// Where the session was found.
    pub source: String,
    /// The session.
    pub session: String,
    /// Which call of it, from 1.
    pub call: u64,
    /// The model, as the client named it.
    pub model: String,
    /// Its provider.
    pub provider: String,
    /// Whether all that was new stands in the recording as it was sent.
    pub visible: bool,
    /// What was predicted.
    pub tokens: u64,
    /// Nine times in ten no fewer were expected.
    pub low: u64,
    /// And no more.
    pub high: u64,
    /// What was believed to become of reasoning.
    #[serde(rename = "habit")]
    pub retention: ReasoningRetention,
    /// What the estimate would have been for each habit.
    #[serde(rename = "by_habit")]
    pub by_retention: ByRetention<u64>,
    /// Who corrected the counting.
    pub expert: Expert,
    /// The part of it that is new since the last call and its reply.
    pub new: u64,
    /// What was reported.
    pub actual: u64,
    /// What classic heuristics say, in the order in which they were asked for.
    pub classic: Vec<u64>,
    /// The tokenizer.
    pub family: Family,
    /// What was counted, uncorrected, for each habit.
    pub counted: ByRetention<u64>,
    /// Tokens of the new text, as counted.
    pub words: u64,
    /// What the new text looked like: number of each class of tokens that there are.
    pub tally: Vec<(usize, u32)>,
    /// New results, texts, calls, and tokens of pictures.
    pub structure: [u32; 4],
    /// Reasoning of the last reply, where it was reported.
    pub reasoning: Option<u64>,
}

/// New parts of fewer tokens are not measured in percent: a token would weigh too much.
const SMALL: i64 = 100;

impl EstimatePair {
    fn error(&self) -> i64 {
        self.tokens as i64 - self.actual as i64
    }

    /// What the new part cost: what was reported, less what stayed.
    fn new_actual(&self) -> i64 {
        self.actual as i64 - (self.tokens as i64 - self.new as i64)
    }
}

/// What is told of a set of pairs. Percents are 0–100, shares 0–1.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Scores {
    /// How many.
    pub pairs: usize,
    /// The median size of their prompts, tokens: small ones make percents large.
    pub median_context_tokens: u64,
    /// The median error with its sign, percent of the prompt.
    pub median_signed_pct: f64,
    /// Absolute errors, percent of the prompt.
    pub median_abs_pct: f64,
    /// The same, of a hundred the 90th.
    pub p90_abs_pct: f64,
    /// The 95th.
    pub p95_abs_pct: f64,
    /// The 99th.
    pub p99_abs_pct: f64,
    /// The median error with its sign, tokens.
    pub median_signed_tokens: f64,
    /// Absolute errors, tokens.
    pub median_abs_tokens: f64,
    /// The 90th of a hundred.
    pub p90_abs_tokens: f64,
    /// The 95th.
    pub p95_abs_tokens: f64,
    /// The 99th.
    pub p99_abs_tokens: f64,
    /// New parts of more than 100 tokens: how many.
    pub new_pairs: usize,
    /// Absolute errors of the new part, percent of it.
    pub new_median_abs_pct: f64,
    /// The 95th of a hundred.
    pub new_p95_abs_pct: f64,
    /// The share that lay within its band.
    pub band_coverage: f64,
    /// The median width of a band to either side, tokens.
    pub band_median_tokens: f64,
    /// The share that was right to the token.
    pub exact_share: f64,
}

impl Scores {
    /// Of a set of pairs.
    pub fn of<'p>(pairs: impl IntoIterator<Item = &'p EstimatePair>) -> Self {
        let pairs: Vec<&EstimatePair> = pairs.into_iter().collect();
        let sorted = |of: &dyn Fn(&EstimatePair) -> Option<f64>| {
            let mut all: Vec<f64> = pairs.iter().filter_map(|pair| of(pair)).collect();
            all.sort_by(f64::total_cmp);
            all
        };
        let signed = sorted(&|pair| Some(pair.error() as f64));
        let tokens = sorted(&|pair| Some(pair.error().unsigned_abs() as f64));
        let percent = |pair: &EstimatePair| pair.error() as f64 * 100.0 / pair.actual.max(1) as f64;
        let signed_percent = sorted(&|pair| Some(percent(pair)));
        let percents = sorted(&|pair| Some(percent(pair).abs()));
        let new = sorted(&|pair| {
            let size = pair.new_actual();
            (size > SMALL).then(|| pair.error().unsigned_abs() as f64 * 100.0 / size as f64)
        });
        let contexts = sorted(&|pair| Some(pair.actual as f64));
        let widths = sorted(&|pair| Some((pair.high - pair.low) as f64 / 2.0));
        let covered = pairs.iter().filter(|pair| (pair.low..=pair.high).contains(&pair.actual));
        let covered = covered.count();
        let exact = tokens.iter().filter(|tokens| **tokens == 0.0).count();
        Self {
            pairs: pairs.len(),
            median_context_tokens: at(&contexts, 0.5) as u64,
            median_signed_pct: at(&signed_percent, 0.5),
            median_abs_pct: at(&percents, 0.5),
            p90_abs_pct: at(&percents, 0.9),
            p95_abs_pct: at(&percents, 0.95),
            p99_abs_pct: at(&percents, 0.99),
            median_signed_tokens: at(&signed, 0.5),
            median_abs_tokens: at(&tokens, 0.5),
            p90_abs_tokens: at(&tokens, 0.9),
            p95_abs_tokens: at(&tokens, 0.95),
            p99_abs_tokens: at(&tokens, 0.99),
            new_pairs: new.len(),
            new_median_abs_pct: at(&new, 0.5),
            new_p95_abs_pct: at(&new, 0.95),
            band_coverage: covered as f64 / pairs.len().max(1) as f64,
            band_median_tokens: at(&widths, 0.5),
            exact_share: exact as f64 / pairs.len().max(1) as f64,
        }
    }
}

/// The value below which a share of them lies; 0 of none.
fn at(sorted: &[f64], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1) as f64;
    sorted.get((last * share).round() as usize).copied().unwrap_or(0.0)
}
