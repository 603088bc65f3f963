//! What a session's exchanges used in total, as reported.
//!
//! A sum of the turns that are in memory. Must not know where usage comes from.

use crate::dialect::Usage;

/// Token totals of a session: sums of reported usage, of all models.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Totals {
    /// Prompts, including what was read from caches or written to them.
    pub input: u64,
    /// Output, reasoning included.
    pub output: u64,
    /// The share of `output` that was reasoning.
    pub reasoning: u64,
    /// Read from caches.
    pub cache_read: u64,
    /// Written to caches.
    pub cache_write: u64,
    /// Input and output.
    pub total: u64,
}

impl Totals {
    /// Adds what is billed of one exchange. The sums saturate.
    pub(super) fn add(&mut self, usage: &Usage) {
        let add = |sum: &mut u64, reported: Option<u64>| {
            *sum = sum.saturating_add(reported.unwrap_or(0));
        };
        for (_, usage) in usage.billed() {
            add(&mut self.input, usage.input);
            add(&mut self.output, usage.output);
            add(&mut self.reasoning, usage.reasoning);
            add(&mut self.cache_read, usage.cache_read);
            add(&mut self.cache_write, usage.cache_write);
            add(&mut self.total, usage.input);
            add(&mut self.total, usage.output);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::Attempt;

    #[test]
    fn totals_saturate_instead_of_overflowing() {
        let mut totals = Totals::default();
        for input in [u64::MAX, u64::MAX, 1] {
            totals.add(&Usage { input: Some(input), output: Some(2), ..Usage::default() });
        }
        assert_eq!((totals.input, totals.output, totals.total), (u64::MAX, 6, u64::MAX));
    }

    #[test]
    fn totals_are_what_is_billed() {
        let one = |input| Usage { input: Some(input), output: Some(1), ..Usage::default() };
        let attempts = vec![Attempt { usage: one(20), ..Attempt::default() }];
        let mut totals = Totals::default();
        totals.add(&Usage { attempts, ..one(3) });
        totals.add(&Usage { unbilled: true, ..one(400) });
        assert_eq!((totals.input, totals.output, totals.total), (23, 2, 25));
    }
}
