//! How wrong a set of estimates was: medians, tails, and the share that was exact.
//!
//! Percentages are of the whole prompt, and mislead if contexts are small; so errors in tokens and of the new
//! part alone are given too.

use serde::Serialize;

use plimsoll_core::dialect::models::Family;
use plimsoll_core::tokens::learn::Expert;
use plimsoll_core::tokens::retention::{ByRetention, ReasoningRetention};

/// One estimate and the reported tokens.
#[derive(Clone, Debug, Serialize)]
pub struct EstimatePair {
    /// Where the session comes from.
    pub source: String,
    /// The session.
    pub session: String,
    /// The number of the call in its session, from 1.
    pub call: u64,
    /// The model name that the client sent.
    pub model: String,
    /// Its provider.
    pub provider: String,
    /// Whether everything new is in the recording as it was sent, as far as the recording tells.
    pub visible: bool,
    /// How many tokens more than an identical call of its session it cost, if they are many: so much of its
    /// input is not in the recording.
    pub excess: Option<u64>,
    /// The estimate.
    pub tokens: u64,
    /// The lower bound, expected to hold nine times in ten.
    pub low: u64,
    /// The upper bound, likewise.
    pub high: u64,
    /// The reasoning retention that was assumed.
    #[serde(rename = "habit")]
    pub retention: ReasoningRetention,
    /// What the estimate would have been for each reasoning retention.
    #[serde(rename = "by_habit")]
    pub by_retention: ByRetention<u64>,
    /// The expert that corrected the count.
    pub expert: Expert,
    /// The part of the estimate that is new since the previous call and its reply.
    pub new: u64,
    /// The reported tokens.
    pub actual: u64,
    /// The results of the classic rules, in the order in which they were given.
    pub classic: Vec<u64>,
    /// The tokenizer family.
    pub family: Family,
    /// The uncorrected count for each reasoning retention.
    pub counted: ByRetention<u64>,
    /// Tokens of the new text, as counted.
    #[serde(rename = "words")]
    pub text_tokens: u64,
    /// The classes of tokens in the new text: index and number of each class that occurs.
    pub tally: Vec<(usize, u32)>,
    /// How often each token of o200k occurs in the new text, by rank, if the tokens are estimated.
    pub ranks: Vec<(u32, u32)>,
    /// New results, texts and calls, and tokens of new images.
    pub structure: [u32; 4],
    /// Reasoning tokens of the last reply, if they were reported.
    pub reasoning: Option<u64>,
}

/// New parts of fewer tokens are not measured in percent: a single token would weigh too much.
const SMALL: i64 = 100;

impl EstimatePair {
    fn error(&self) -> i64 {
        self.tokens as i64 - self.actual as i64
    }

    /// Whether the reported tokens are in the range.
    fn is_held(&self) -> bool {
        (self.low..=self.high).contains(&self.actual)
    }

    /// The class of the new part's size, as an index into [`SIZES_BELOW`].
    fn size(&self) -> usize {
        SIZES_BELOW.iter().position(|below| self.new < *below).unwrap_or(SIZES_BELOW.len() - 1)
    }

    /// What the new part cost: the reported tokens less the part that was not new.
    fn new_actual(&self) -> i64 {
        self.actual as i64 - (self.tokens as i64 - self.new as i64)
    }
}

/// The scores of a set of pairs. Percentages are 0–100, shares 0–1.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Scores {
    /// The number of pairs.
    pub pairs: usize,
    /// The median size of their prompts, in tokens: small prompts make percentages large.
    pub median_context_tokens: u64,
    /// The median signed error, in percent of the prompt.
    pub median_signed_pct: f64,
    /// The median absolute error, in percent of the prompt.
    pub median_abs_pct: f64,
    /// The 90th percentile of it.
    pub p90_abs_pct: f64,
    /// The 95th percentile.
    pub p95_abs_pct: f64,
    /// The 99th percentile.
    pub p99_abs_pct: f64,
    /// The median signed error, in tokens.
    pub median_signed_tokens: f64,
    /// The median absolute error, in tokens.
    pub median_abs_tokens: f64,
    /// The 90th percentile of it.
    pub p90_abs_tokens: f64,
    /// The 95th percentile.
    pub p95_abs_tokens: f64,
    /// The 99th percentile.
    pub p99_abs_tokens: f64,
    /// The number of pairs whose new part has more than 100 tokens.
    pub new_pairs: usize,
    /// The median absolute error of the new part, in percent of it.
    pub new_median_abs_pct: f64,
    /// The 95th percentile of it.
    pub new_p95_abs_pct: f64,
    /// The share of pairs within their range.
    pub band_coverage: f64,
    /// The median width of a range to either side, in tokens.
    pub band_median_tokens: f64,
    /// The share that was exact to the token.
    pub exact_share: f64,
    /// The pairs within their range by the size of the new part, smallest first ([`SIZES_BELOW`]).
    pub bands_by_size: [BandScore; SIZES_BELOW.len()],
}

/// How many pairs were within their range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BandScore {
    /// All pairs.
    pub pairs: usize,
    /// Those within their range.
    pub held: usize,
}

/// The sizes of new parts that are told apart, tokens: each class is below its number.
pub const SIZES_BELOW: [u64; 4] = [100, 500, 3_000, u64::MAX];

impl BandScore {
    fn from_pairs<'p>(pairs: impl Iterator<Item = &'p EstimatePair>) -> Self {
        pairs.fold(Self::default(), |score, pair| Self {
            pairs: score.pairs + 1,
            held: score.held + usize::from(pair.is_held()),
        })
    }

    /// The share within their range, 0–1.
    pub fn share(&self) -> f64 {
        self.held as f64 / self.pairs.max(1) as f64
    }
}

impl Scores {
    /// The scores of these pairs.
    pub fn from_pairs<'p>(pairs: impl IntoIterator<Item = &'p EstimatePair>) -> Self {
        let pairs: Vec<&EstimatePair> = pairs.into_iter().collect();
        let signed_tokens = sorted(&pairs, |pair| pair.error() as f64);
        let tokens = sorted(&pairs, |pair| pair.error().unsigned_abs() as f64);
        let signed_percents = sorted(&pairs, percent);
        let percents = sorted(&pairs, |pair| percent(pair).abs());
        // A few tokens of a few are a large share, and say nothing.
        let large = pairs.iter().copied().filter(|pair| pair.new_actual() > SMALL);
        let large: Vec<&EstimatePair> = large.collect();
        let new_percents = sorted(&large, |pair| {
            pair.error().unsigned_abs() as f64 * 100.0 / pair.new_actual() as f64
        });
        let contexts = sorted(&pairs, |pair| pair.actual as f64);
        let widths = sorted(&pairs, |pair| (pair.high - pair.low) as f64 / 2.0);
        let band = BandScore::from_pairs(pairs.iter().copied());
        let exact = tokens.iter().filter(|tokens| **tokens == 0.0).count();
        Self {
            pairs: pairs.len(),
            median_context_tokens: at(&contexts, 0.5) as u64,
            median_signed_pct: at(&signed_percents, 0.5),
            median_abs_pct: at(&percents, 0.5),
            p90_abs_pct: at(&percents, 0.9),
            p95_abs_pct: at(&percents, 0.95),
            p99_abs_pct: at(&percents, 0.99),
            median_signed_tokens: at(&signed_tokens, 0.5),
            median_abs_tokens: at(&tokens, 0.5),
            p90_abs_tokens: at(&tokens, 0.9),
            p95_abs_tokens: at(&tokens, 0.95),
            p99_abs_tokens: at(&tokens, 0.99),
            new_pairs: new_percents.len(),
            new_median_abs_pct: at(&new_percents, 0.5),
            new_p95_abs_pct: at(&new_percents, 0.95),
            band_coverage: band.share(),
            band_median_tokens: at(&widths, 0.5),
            exact_share: exact as f64 / pairs.len().max(1) as f64,
            bands_by_size: std::array::from_fn(|size| {
                BandScore::from_pairs(pairs.iter().copied().filter(|pair| pair.size() == size))
            }),
        }
    }
}

fn percent(pair: &EstimatePair) -> f64 {
    pair.error() as f64 * 100.0 / pair.actual.max(1) as f64
}

fn sorted(pairs: &[&EstimatePair], value: impl Fn(&EstimatePair) -> f64) -> Vec<f64> {
    let mut values: Vec<f64> = pairs.iter().map(|pair| value(pair)).collect();
    values.sort_by(f64::total_cmp);
    values
}

/// The value below which this share of them lies; 0 if there are none.
fn at(sorted: &[f64], share: f64) -> f64 {
    let largest = sorted.len().saturating_sub(1) as f64;
    sorted.get((largest * share).round() as usize).copied().unwrap_or(0.0)
}
