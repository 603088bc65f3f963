//! Times between the chunks of a stream, added up by bucket.
//!
//! A stream has thousands of chunks, and the exchange is reported once: this is all that is kept of them.

use std::time::Duration;

/// Upper bounds of the buckets in seconds; the last bucket has none.
pub(crate) const CHUNK_SECONDS: [f64; 14] =
    [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92];

/// How long the chunks of a stream took, each since the one before it; the first one is not among them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChunkTimes([ChunkBucket; CHUNK_SECONDS.len() + 1]);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ChunkBucket {
    chunks: u32,
    together: Duration,
}

impl ChunkTimes {
    pub(crate) fn add(&mut self, time: Duration) {
        let seconds = time.as_secs_f64();
        let number = CHUNK_SECONDS.partition_point(|bound| *bound < seconds);
        if let Some(bucket) = self.0.get_mut(number) {
            bucket.chunks = bucket.chunks.saturating_add(1);
            bucket.together = bucket.together.saturating_add(time);
        }
    }

    /// Of each bucket that has any, their mean in seconds, and how many there are.
    #[cfg_attr(not(feature = "otel"), allow(dead_code))]
    pub(crate) fn means(&self) -> impl Iterator<Item = (f64, u32)> {
        let bounds = CHUNK_SECONDS.into_iter().chain([f64::INFINITY]);
        let filled = self.0.iter().zip(bounds).filter(|(bucket, _)| bucket.chunks > 0);
        filled.map(|(bucket, bound)| {
            let mean = bucket.together.as_secs_f64() / f64::from(bucket.chunks);
            // Rounded up, it would be in the next bucket.
            (mean.min(bound), bucket.chunks)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_keep_bucket_and_sum() {
        let mut times = ChunkTimes::default();
        for ms in [0, 10, 11, 20, 15, 90_000] {
            times.add(Duration::from_millis(ms));
        }
        let means: Vec<(f64, u32)> = times.means().collect();
        assert_eq!(means.iter().map(|(_, chunks)| *chunks).collect::<Vec<_>>(), [2, 3, 1]);
        let together: f64 = means.iter().map(|(mean, chunks)| mean * f64::from(*chunks)).sum();
        assert!((together - 90.056).abs() < 1e-9, "{together}");
        assert!(means[0].0 <= 0.01 && means[1].0 > 0.01 && means[1].0 <= 0.02, "{means:?}");
        assert_eq!(means[2].0, 90.0);
    }
}
