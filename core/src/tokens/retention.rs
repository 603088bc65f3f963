//! What becomes of reasoning that is sent back: as it is known of a model beforehand, and as its upstream shows.
//!
//! One model may be served in more than one way: a gateway may leave out what it is sent. What clear calls show of
//! that outweighs the table soon (`docs/estimates.md` 2). What a session shows on the way is `learn`'s.

use serde::{Deserialize, Serialize};

use crate::dialect::models::{Family, Model};

/// What becomes of reasoning that is sent back (`docs/estimates.md` 2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReasoningRetention {
    /// It is read for good.
    Keeps,
    /// It is read until the person speaks again after an answer: not when words come with results.
    #[default]
    Loops,
    /// It is read until the person says anything.
    Turns,
    /// It is not read.
    Drops,
}

impl ReasoningRetention {
    /// All of them, as [`ByRetention`] has them.
    pub const ALL: [Self; HABITS] = [Self::Keeps, Self::Loops, Self::Turns, Self::Drops];

    pub(super) fn reads(self) -> bool {
        self != Self::Drops
    }

    /// What is known of a model beforehand: how much each is to be believed, in doublings of error.
    /// `streams`: whether the request asks for a stream; `began_cached`: see
    /// [`Observation::began_cached`](super::learn::Observation::began_cached).
    pub fn of(model: &Model, streams: bool, began_cached: Option<bool>) -> ByRetention<f32> {
        match (model.reads_reasoning, model.keeps_reasoning) {
            (true, true) => [4.0, 0.0, 0.0, 0.0],
            // As often as not, and the same for a whole session. Gemini 2.5 reads what its signatures stand
            // for where it streams (15 of 15 recorded pairs), and not where it does not (59 of 63).
            (reads, false) if model.family == Family::Gemini && (reads || streams) => {
                match began_cached {
                    // More than one session that was otherwise can show.
                    Some(true) => [-2.0, 0.6, 0.5, 2.0],
                    Some(false) => [-2.0, 2.0, 0.5, 0.6],
                    None => [-2.0, 1.0, 0.5, 0.8],
                }
            }
            // Where words came with results, 32 dropped and 27 kept: whichever it was last, and before
            // that what recorded calls of the model say.
            (true, false) if model.drops_steered => [0.0, 3.8, 4.0, 0.0],
            (true, false) => [0.0, 4.0, 3.8, 0.0],
            (false, _) => [0.0, 0.0, 0.0, 4.0],
        }
    }
}

/// One value for each of [`ReasoningRetention::ALL`].
pub type ByRetention<T> = [T; HABITS];

pub(super) const HABITS: usize = 4;

/// Whether an upstream has the model read reasoning that is sent back, as clear calls showed: above 0 that it
/// does, below 0 that it does not, in doublings of error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct ReadingEvidence(f32);

/// No single call shows more, in doublings of error.
pub(super) const CONVINCES: f32 = 4.0;
/// How much of what earlier calls showed counts beside a new one.
const PAST: f32 = 0.7;
/// Reasoning of so many times what counting is expected to miss is told from that.
const CLEARLY: f64 = 4.0;
/// A call that is clear counts for more than what is believed beforehand.
const CLEAR: f32 = 1.3;
/// What is known beforehand is of the model where it is believed so much; else it goes by the session.
const FIRM: f32 = 3.0;

impl ReadingEvidence {
    /// With a call that cost `actual` tokens, and was estimated so for each habit. It shows nothing where errors of
    /// counting, `expected` to be so large, may be as large, and where neither explains the call.
    #[must_use]
    pub(super) fn after(self, by_habit: &ByRetention<u64>, actual: u64, expected: f64) -> Self {
        let off = |tokens: u64| tokens.abs_diff(actual);
        let [reads @ .., drops] = *by_habit;
        let reads = reads.into_iter().min_by_key(|tokens| off(*tokens)).unwrap_or(drops);
        let reasoning = reads.abs_diff(drops);
        let is_explained = off(reads).min(off(drops)) <= 30 + reasoning / 10;
        if (reasoning as f64) < CLEARLY * expected || !is_explained {
            return self;
        }
        let shows = doublings(off(drops)) - doublings(off(reads));
        Self(self.0 * PAST + shows.clamp(-CONVINCES, CONVINCES) * CLEAR)
    }

    /// What it adds to what was believed `beforehand`.
    pub(super) fn belief(self, beforehand: &ByRetention<f32>) -> ByRetention<f32> {
        let [reads @ .., drops] = *beforehand;
        let reads = reads.into_iter().fold(f32::MIN, f32::max);
        if (reads - drops).abs() < FIRM {
            return ByRetention::default();
        }
        ReasoningRetention::ALL.map(|habit| if habit.reads() { self.0 } else { -self.0 }.max(0.0))
    }

    /// Whether it can be what this program wrote.
    pub(super) fn is_whole(self) -> bool {
        self.0.is_finite() && self.0.abs() < 1e3
    }
}

/// An error in doublings: a few tokens are errors of counting, whatever the habit.
pub(super) fn doublings(error: u64) -> f32 {
    (8.0 + error as f32).log2()
}
