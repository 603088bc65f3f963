//! Reasoning retention: what becomes of reasoning that is sent back, as known of a model beforehand and as
//! its upstream shows.
//!
//! A model may be served in more than one way: a gateway may drop reasoning that it receives. The evidence of
//! clear calls soon outweighs the table (`docs/estimates.md` 2). The evidence of a session is in `learn`.

use serde::{Deserialize, Serialize};

use crate::dialect::models::{Family, Model};

/// What becomes of reasoning that is sent back (`docs/estimates.md` 2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[derive(Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReasoningRetention {
    /// It is read in all later requests.
    Keeps,
    /// It is read until the user writes a message after a final answer; a message sent together with tool
    /// results does not count.
    #[default]
    Loops,
    /// It is read until the user writes any message.
    Turns,
    /// It is never read.
    Drops,
}

impl ReasoningRetention {
    /// All of them, in the order of [`ByRetention`].
    pub(crate) const ALL: [Self; RETENTIONS] = [Self::Keeps, Self::Loops, Self::Turns, Self::Drops];

    pub(super) fn reads(self) -> bool {
        self != Self::Drops
    }

    /// What is known of a model beforehand: how likely each retention is, in doublings of error. `streams`
    /// says whether the request asks for a stream.
    pub(crate) fn prior(
        model: &Model,
        streams: bool,
        cache: Option<CacheBlocks>,
    ) -> ByRetention<f32> {
        match (model.reads_reasoning, model.keeps_reasoning) {
            (true, true) => [4.0, 0.0, 0.0, 0.0],
            // Gemini 2.5 reads the reasoning behind its signatures if it streams (15 of 15 recorded pairs), and
            // does not otherwise (59 of 63).
            (reads, false) if model.family == Family::Gemini && (reads || streams) => match cache {
                Some(CacheBlocks::Split) => [-2.0, 0.0, 0.0, 2.5],
                Some(CacheBlocks::Whole) if reads => [-2.0, 2.5, 0.5, 0.0],
                _ => [-2.0, 1.0, 0.5, 0.8],
            },
            // If a user message came with tool results, 50 dropped it and 34 kept it. Assume what the thread
            // showed last, and before that what recorded calls of the model say.
            (true, false) if model.drops_steered => [0.0, 3.8, 4.0, 0.0],
            (true, false) => [0.0, 4.0, 3.8, 0.0],
            (false, _) => [0.0, 0.0, 0.0, 4.0],
        }
    }
}

/// What a call of Gemini read from its cache: there are two ways of serving, and only one of them reads
/// reasoning that is sent back. Which one served a call shows in the size of what it read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheBlocks {
    /// Nothing, or whole blocks: reasoning was read after 118 of 133 recorded calls of Gemini 3.
    Whole,
    /// Something else: reasoning was not read after 245 of 252.
    Split,
}

/// Tokens of a cache block, and how many fewer are reported for some blocks.
const BLOCK: u64 = 4_096;
const SHORT_OF_BLOCKS: u64 = 200;

impl CacheBlocks {
    pub(crate) fn from_cache_read(cache_read: u64) -> Self {
        let short = (BLOCK - cache_read % BLOCK) % BLOCK;
        if short < SHORT_OF_BLOCKS { Self::Whole } else { Self::Split }
    }
}

/// One value for each of [`ReasoningRetention::ALL`].
pub type ByRetention<T> = [T; RETENTIONS];

pub(super) const RETENTIONS: usize = 4;

/// Whether an upstream lets the model read reasoning that is sent back, as clear calls showed: above 0 that
/// it does, below 0 that it does not, in doublings of error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct ReadingEvidence(f32);

/// The most that a single call shows, in doublings of error.
pub(super) const CONVINCES: f32 = 4.0;
/// The weight of what earlier calls showed, compared with a new one.
const PAST: f32 = 0.7;
/// Reasoning of this many times the expected error of counting can be distinguished from that error.
const CLEARLY: f64 = 4.0;
/// A clear call weighs more than what is known beforehand.
const CLEAR: f32 = 1.3;
/// From this difference on, what is known beforehand applies to the model; below it, retention depends on the
/// session.
const FIRM: f32 = 3.0;

impl ReadingEvidence {
    /// The evidence with one more call, which cost `actual` tokens and was estimated for each retention. The
    /// call shows nothing if the `expected` error of counting may be as large as the difference, or if no
    /// retention explains the call.
    #[must_use]
    pub(super) fn after(self, by_retention: &ByRetention<u64>, actual: u64, expected: f64) -> Self {
        let [reads @ .., drops] = *by_retention;
        // Which of the retentions that read it applies is another question: the nearest speaks for all.
        let nearest = reads.into_iter().min_by_key(|tokens| tokens.abs_diff(actual));
        let reads = nearest.unwrap_or(drops);
        let reasoning = reads.abs_diff(drops);
        let reads_error = reads.abs_diff(actual);
        let drops_error = drops.abs_diff(actual);
        let is_explained = is_explained(reasoning, reads_error.min(drops_error));
        // Nothing is shown if the error of counting may be as large, or if no retention explains the call.
        if (reasoning as f64) < CLEARLY * expected || !is_explained {
            return self;
        }
        let shows = doublings(drops_error) - doublings(reads_error);
        Self(self.0 * PAST + shows.clamp(-CONVINCES, CONVINCES) * CLEAR)
    }

    pub(super) fn belief(self, beforehand: &ByRetention<f32>) -> ByRetention<f32> {
        let [reads @ .., drops] = *beforehand;
        let reads = reads.into_iter().fold(f32::MIN, f32::max);
        if (reads - drops).abs() < FIRM {
            return ByRetention::default();
        }
        ReasoningRetention::ALL
            .map(|retention| if retention.reads() { self.0 } else { -self.0 }.max(0.0))
    }

    pub(super) fn is_whole(self) -> bool {
        self.0.is_finite() && self.0.abs() < 1e3
    }
}

/// Whether an error of so many tokens is small enough for the assumption about this reasoning to be right.
pub(super) fn is_explained(reasoning: u64, error: u64) -> bool {
    error <= 30 + reasoning / 10
}

pub(super) fn doublings(error: u64) -> f32 {
    // A few tokens are an error of counting, whatever the retention.
    (8.0 + error as f32).log2()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::models::Catalogue;

    fn best(belief: &ByRetention<f32>) -> ReasoningRetention {
        let most = belief.iter().copied().fold(f32::MIN, f32::max);
        ReasoningRetention::ALL[belief.iter().position(|it| it.total_cmp(&most).is_eq()).unwrap()]
    }

    /// As recorded (`docs/estimates.md` 2).
    #[test]
    fn expected_reasoning_retention_follows_catalogue() {
        use ReasoningRetention::{Drops, Keeps, Loops, Turns};
        let model =
            |family| Model { family, ..Catalogue::default().model("claude-sonnet-4-5", "") };
        let of = |keeps_reasoning, reads_reasoning, drops_steered| {
            let claude = model(Family::Claude);
            let model = Model { keeps_reasoning, reads_reasoning, drops_steered, ..claude };
            best(&ReasoningRetention::prior(&model, false, None))
        };
        assert_eq!(of(true, true, false), Keeps);
        assert_eq!(of(true, true, true), Keeps);
        assert_eq!(of(false, true, false), Loops);
        assert_eq!(of(false, true, true), Turns);
        assert_eq!(of(false, false, false), Drops);
        assert_eq!(of(true, false, true), Drops);
        let gemini = |reads_reasoning, streams, cache| {
            let gemini = model(Family::Gemini);
            let model = Model { keeps_reasoning: false, reads_reasoning, ..gemini };
            ReasoningRetention::prior(&model, streams, cache)
        };
        // A Gemini that reads reasoning at all depends on the session: no retention is certain, and none keeps it for
        // good.
        let [split, whole] = [CacheBlocks::Split, CacheBlocks::Whole].map(Some);
        for (reads, streams) in [(true, false), (true, true), (false, true)] {
            for (began, retention) in [(None, Loops), (whole, Loops), (split, Drops)] {
                let belief = gemini(reads, streams, began);
                assert_eq!(best(&belief), retention, "{began:?}");
                assert!(belief[Keeps as usize] < 0.0);
                assert_eq!(ReadingEvidence(9.0).belief(&belief), [0.0; RETENTIONS]);
            }
        }
        assert_eq!(best(&gemini(false, false, whole)), Drops);
    }

    /// A call that costs 1,400 tokens if reasoning is read, 1,000 if it is not.
    fn after(evidence: ReadingEvidence, actual: u64, expected: f64) -> ReadingEvidence {
        evidence.after(&[1_400, 1_400, 1_400, 1_000], actual, expected)
    }

    #[test]
    fn call_is_evidence_only_if_one_retention_alone_explains_it() {
        let new = ReadingEvidence::default();
        assert!(after(new, 1_400, 50.0).0 > 0.0);
        assert!(after(new, 1_000, 50.0).0 < 0.0);
        assert_eq!(after(new, 1_200, 50.0), new, "neither");
        // A cost is explained within 30 tokens and a tenth of the reasoning.
        assert!(after(new, 1_070, 50.0).0 < 0.0);
        assert!(after(new, 1_330, 50.0).0 > 0.0);
        assert_eq!(after(new, 1_071, 50.0), new);
        assert_eq!(after(new, 1_329, 50.0), new);
        // The reasoning must be four times the expected counting error.
        assert!(after(new, 1_400, 100.0).0 > 0.0);
        assert_eq!(after(new, 1_400, 100.1), new);
        // Among the retentions that read reasoning, the nearest one counts.
        let near = new.after(&[1_400, 1_390, 9_000, 1_000], 1_390, 50.0);
        assert!(near.0 > 0.0);
    }

    /// A clear call outweighs the table. After many calls, two contrary ones are needed, and only a few calls count.
    #[test]
    fn newest_calls_outweigh() {
        let table = [4.0, 0.0, 0.0, 0.0];
        let believed = |evidence: ReadingEvidence| {
            let more = evidence.belief(&table);
            best(&std::array::from_fn(|at| table[at] + more[at]))
        };
        let new = ReadingEvidence::default();
        assert_eq!(believed(new), ReasoningRetention::Keeps);
        assert_eq!(believed(after(new, 1_000, 50.0)), ReasoningRetention::Drops);
        let many = (0..50).fold(new, |evidence, _| after(evidence, 1_400, 50.0));
        let once = after(new, 1_400, 50.0);
        assert!(many.0 > 3.0 * once.0, "{many:?}");
        assert!(many.0 < 4.0 * once.0, "{many:?}");
        let against = after(many, 1_000, 50.0);
        assert!(against.0 > 0.0);
        assert!(after(against, 1_000, 50.0).0 < 0.0);
        // Large reasoning is no stronger evidence than small reasoning.
        let large = new.after(&[90_000, 90_000, 90_000, 1_000], 90_000, 50.0);
        assert_eq!(large, once);
    }

    /// If the table is unsure about a model, the session decides, so the evidence is not added.
    #[test]
    fn evidence_counts_in_firm_table() {
        let of = |table| ReadingEvidence(2.0).belief(&table);
        assert_eq!(of([0.0, 3.0, 1.0, 0.0]), [2.0, 2.0, 2.0, 0.0]);
        assert_eq!(of([0.0, 2.9, 1.0, 0.0]), [0.0; RETENTIONS]);
        assert_eq!(ReadingEvidence(-2.0).belief(&[0.0, 0.0, 0.0, 4.0]), [0.0, 0.0, 0.0, 2.0]);
        assert!(ReadingEvidence(-999.0).is_whole());
        assert!(!ReadingEvidence(1e3).is_whole());
        assert!(!ReadingEvidence(f32::NAN).is_whole());
    }
}
