//! Reasoning that is not sent back: whether it still counts as input of the next call.
//!
//! Some providers store it and count it, most do not, and one model may be served in both ways. The evidence
//! of a clear pair of calls is believed at once (`docs/estimates.md` 2). Pure; must not know what was sent.

use serde::{Deserialize, Serialize};

/// Whether an upstream counts reasoning that is not sent back: for whole responses, and for streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "StoredCounting")]
pub(super) struct UnsentCounting([bool; 2]);

/// Earlier versions stored one value for both.
#[derive(Deserialize)]
#[serde(untagged)]
enum StoredCounting {
    One(bool),
    Both([bool; 2]),
}

impl From<StoredCounting> for UnsentCounting {
    fn from(stored: StoredCounting) -> Self {
        match stored {
            StoredCounting::One(counts) => Self([counts; 2]),
            StoredCounting::Both(counts) => Self(counts),
        }
    }
}

impl UnsentCounting {
    pub(super) fn counts(self, streams: bool) -> bool {
        self.0[usize::from(streams)]
    }

    #[must_use]
    pub(super) fn after(mut self, streams: bool, counts: bool) -> Self {
        self.0[usize::from(streams)] = counts;
        self
    }
}

/// Reasoning of the last reply that the client does not send back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnsentReasoning {
    /// Reasoning tokens, as the reply reported them.
    pub tokens: u64,
    /// Whether it is believed to be input of this call.
    pub counted: bool,
}

/// Less reasoning than this is no evidence.
const LEAST: u64 = 100;

impl UnsentReasoning {
    pub(crate) fn input(self) -> u64 {
        if self.counted { self.tokens } else { 0 }
    }

    /// Whether the provider counts it, judged by a call that cost `actual` tokens and was estimated at
    /// `estimate`. `new` is the tokens of all other new content. `None` if the error of counting may be as
    /// large, or if neither explains the call.
    pub(super) fn judged(self, estimate: u64, actual: u64, new: u64) -> Option<bool> {
        if self.tokens < LEAST || new > self.tokens / 2 {
            return None;
        }
        let without = estimate.saturating_sub(self.input());
        let with = without.saturating_add(self.tokens);
        // A tenth of the reasoning, and what structure may cost.
        let tolerance = 30 + self.tokens / 10;
        match (actual.abs_diff(without) <= tolerance, actual.abs_diff(with) <= tolerance) {
            (true, false) => Some(false),
            (false, true) => Some(true),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_stored_value_is_read_for_streams_and_whole_responses() {
        let read = |stored: &str| serde_json::from_str::<UnsentCounting>(stored).unwrap();
        assert_eq!(read("true"), UnsentCounting([true; 2]));
        assert_eq!(read("false"), UnsentCounting::default());
        for counting in [UnsentCounting([true, false]), UnsentCounting([false, true])] {
            assert_eq!(read(&serde_json::to_string(&counting).unwrap()), counting);
        }
    }

    #[test]
    fn only_clear_pair_says_whether_unsent_reasoning_is_counted() {
        let judged = |tokens, counted, estimate, actual, new| {
            UnsentReasoning { tokens, counted }.judged(estimate, actual, new)
        };
        assert_eq!(judged(500, false, 1_000, 1_520, 20), Some(true));
        assert_eq!(judged(500, false, 1_000, 1_020, 20), Some(false));
        assert_eq!(judged(500, true, 1_500, 1_520, 20), Some(true));
        assert_eq!(judged(500, true, 1_500, 980, 20), Some(false));
        assert_eq!(judged(500, false, 1_000, 1_250, 20), None, "neither explains it");
        assert_eq!(judged(500, false, 1_000, 1_500, 251), None, "what is new may cost as much");
        assert_eq!(judged(99, false, 1_000, 1_099, 0), None, "too little to tell");
        assert_eq!(judged(0, true, 1_000, 1_000, 0), None);
    }
}
