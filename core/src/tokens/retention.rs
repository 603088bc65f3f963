//! What becomes of reasoning that is sent back, as far as it is known of a model beforehand.
//!
//! A table: what a session or a model shows on the way is `learn`'s.

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
                    Some(true) => [-4.0, 0.6, 0.5, 2.0],
                    Some(false) => [-4.0, 2.0, 0.5, 0.6],
                    None => [-4.0, 1.0, 0.5, 0.8],
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
