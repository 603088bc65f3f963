//! How wide the range around an estimate must be: as wide as the last errors of calls of its kind.
//!
//! The range is the second largest of the last 24 errors: if calls of a kind go on as they did, it contains
//! the next one 23 times in 25, however the errors are distributed. Bounded; must not know what was sent.

use serde::{Deserialize, Serialize};

/// The kinds of calls whose errors are kept apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallKind(u8);

/// Sizes of new content, times whether all of it is tool results, and one more for a changed history.
const KINDS: u8 = 2 * SIZES + 1;
const SIZES: u8 = 4;

impl CallKind {
    /// The kind of a call whose history changed in another way than by growing.
    pub(super) const CHANGED: Self = Self(KINDS - 1);

    /// The kind of a call that adds so many tokens: the error does not grow in proportion to the text. `is_results`: it
    /// adds nothing but tool results; what a user writes moves reasoning, too.
    pub(super) fn new(tokens: u64, is_results: bool) -> Self {
        let size = match tokens {
            ..100 => 0,
            100..500 => 1,
            500..3_000 => 2,
            _ => 3,
        };
        Self(size + if is_results { 0 } else { SIZES })
    }

    fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// The last errors by kind of call, newest last: tenths of the expected error.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct RecentErrors([Vec<u16>; KINDS as usize]);

/// Errors of a kind that are kept, and which of them, from the largest, is the width of the range.
const KEPT: usize = 24;
const RANK: usize = 2;

impl RecentErrors {
    /// The width of the range for a call of this kind, in multiples of the expected error. Errors that are
    /// not known yet count as `at_first`.
    pub(super) fn width(&self, kind: CallKind, at_first: f32) -> f32 {
        let errors = self.0[kind.index()].iter().map(|tenths| f32::from(*tenths) / 10.0);
        // Until enough is known, the rest is as wide as at first.
        let missing = KEPT.saturating_sub(errors.len());
        let mut errors: Vec<f32> = errors.chain(std::iter::repeat_n(at_first, missing)).collect();
        errors.sort_by(|a, b| b.total_cmp(a));
        errors.get(RANK - 1).copied().unwrap_or(at_first)
    }

    pub(super) fn usual(&self, at_first: f32) -> f32 {
        let kinds = (0..KINDS).map(CallKind).filter(|kind| !self.0[kind.index()].is_empty());
        let mut widths: Vec<f32> = kinds.map(|kind| self.width(kind, at_first)).collect();
        widths.sort_by(f32::total_cmp);
        widths.get(widths.len() / 2).copied().unwrap_or(at_first)
    }

    pub(super) fn keep(&mut self, kind: CallKind, times: f64) {
        let errors = &mut self.0[kind.index()];
        errors.push((times * 10.0).ceil() as u16);
        if errors.len() > KEPT {
            errors.remove(0);
        }
    }

    pub(super) fn doubt(&mut self) {
        for errors in &mut self.0 {
            // The older half: what was shown lately is still the best guess.
            errors.drain(..errors.len().saturating_sub(KEPT / 2));
        }
    }

    pub(super) fn is_whole(&self) -> bool {
        self.0.iter().all(|errors| errors.len() <= KEPT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn width_is_second_largest_of_last_errors_of_kind() {
        let small = CallKind::new(99, true);
        let mut errors = RecentErrors::default();
        assert_eq!(errors.width(small, 3.0), 3.0);
        assert_eq!(errors.usual(3.0), 3.0);
        errors.keep(small, 70.0);
        assert_eq!(errors.width(small, 3.0), 3.0, "once is no habit");
        errors.keep(small, 8.06);
        assert_eq!(errors.width(small, 3.0), 8.1);
        for _ in 0..KEPT - 2 {
            errors.keep(small, 0.2);
        }
        assert_eq!(errors.width(small, 3.0), 8.1);
        errors.keep(small, 0.2);
        assert_eq!(errors.width(small, 3.0), 0.2, "70 is forgotten");
        assert_eq!(errors.usual(3.0), 0.2, "70 is forgotten");
        let mut doubted = errors.clone();
        doubted.doubt();
        assert_eq!(doubted.width(small, 3.0), 3.0);
        assert!(errors.is_whole());
        errors.0[0].push(1);
        assert!(!errors.is_whole());
    }

    #[test]
    fn calls_are_told_apart_by_size_and_by_what_they_add() {
        let sizes =
            [0, 99, 100, 499, 500, 2_999, 3_000].map(|tokens| CallKind::new(tokens, true).0);
        assert_eq!(sizes, [0, 0, 1, 1, 2, 2, 3]);
        assert_eq!(CallKind::new(9, false).0, 4);
        assert!(CallKind::new(9_999, false).0 < CallKind::CHANGED.0);
    }
}
