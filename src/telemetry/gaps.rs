//! The times that we waited for an upstream between the pieces of a stream: counted while it passes, reported
//! once.
//!
//! A stream has thousands of pieces; each costs a comparison here, and no allocation.

use std::time::Duration;

/// Bounds from 10 ms to 5 min, in seconds.
pub(super) const BOUNDS: [f64; 14] =
    [0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0];

/// The gaps of one stream.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StreamGaps {
    /// The number of gaps and their sum in seconds, by the first of [`BOUNDS`] that they do not exceed.
    buckets: [(u32, f64); BOUNDS.len() + 1],
    longest: Duration,
}

impl StreamGaps {
    /// Adds the gap before one more piece.
    pub(crate) fn add(&mut self, gap: Duration) {
        let seconds = gap.as_secs_f64();
        let at = BOUNDS.iter().position(|bound| seconds <= *bound).unwrap_or(BOUNDS.len());
        let (count, sum) = &mut self.buckets[at];
        *count = count.saturating_add(1);
        *sum += seconds;
        self.longest = self.longest.max(gap);
    }

    /// The longest gap; `None` if no piece came.
    pub(crate) fn longest(&self) -> Option<Duration> {
        self.buckets.iter().any(|(count, _)| *count > 0).then_some(self.longest)
    }

    /// The number of gaps between two bounds, and their mean length in seconds.
    pub fn means(&self) -> impl Iterator<Item = (u32, f64)> + '_ {
        let filled = self.buckets.iter().filter(|(count, _)| *count > 0);
        filled.map(|(count, sum)| (*count, sum / f64::from(*count)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_counted_by_their_bounds_and_sum_up() {
        let mut gaps = StreamGaps::default();
        assert_eq!((gaps.longest(), gaps.means().count()), (None, 0));
        for ms in [0, 4, 10, 11, 300_000, 300_001] {
            gaps.add(Duration::from_millis(ms));
        }
        let means: Vec<_> = gaps.means().collect();
        assert_eq!(means.iter().map(|(count, _)| *count).collect::<Vec<_>>(), [3, 1, 1, 1]);
        let sum: f64 = means.iter().map(|(count, mean)| f64::from(*count) * mean).sum();
        assert!((sum - 600.026).abs() < 1e-9, "{sum}");
        assert_eq!(gaps.longest(), Some(Duration::from_millis(300_001)));
        // Each mean lies between the bounds of its gaps, so a histogram of the means has the same buckets.
        let within = [(0.0, 0.01), (0.01, 0.05), (250.0, 300.0), (300.0, f64::MAX)];
        for ((_, mean), (above, most)) in means.iter().zip(within) {
            assert!(above < *mean && *mean <= most, "{mean}");
        }
    }
}
