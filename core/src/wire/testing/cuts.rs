//! Where the fuzz functions cut input that arrives in pieces: nothing else may use it.
//!
//! Short input is cut everywhere. Longer input is cut at two places drawn from the input itself: so the next
//! mutation is cut elsewhere, a failing input fails again, and thousands of inputs are read per second, not
//! hundreds.

use xxhash_rust::xxh3::xxh3_64;

/// The longest input that is cut everywhere, in bytes: one or two events of a stream.
const SHORT: usize = 200;

/// Decides where to cut an input.
#[derive(Clone, Copy)]
pub(crate) struct InputCuts<'b> {
    bytes: &'b [u8],
    lot: u64,
}

impl<'b> InputCuts<'b> {
    /// Draws random bits from the input itself.
    pub(crate) fn new(bytes: &'b [u8]) -> Self {
        Self { bytes, lot: xxh3_64(bytes) }
    }

    /// Chooses one of several ways to read an input: the one that is used with cuts.
    pub(crate) fn way(self, ways: usize) -> usize {
        self.lot as usize % ways
    }

    /// The sizes of equal pieces to read it in.
    pub(crate) fn sizes(self) -> &'static [usize] {
        if self.is_short() { &[1, 2, 3, 7] } else { &[] }
    }

    /// Positions at which to cut the input in two. For a long input: any position, and one beside a byte that
    /// readers stop at.
    pub(crate) fn places(self) -> Vec<usize> {
        let Self { bytes, lot } = self;
        if self.is_short() {
            return (0..bytes.len()).step_by(bytes.len() / 64 + 1).collect();
        }
        let [anywhere, near] = [lot >> 8, lot >> 32].map(|lot| lot as usize % bytes.len());
        let stop = bytes[near..]
            .iter()
            .position(|byte| matches!(byte, b'\n' | b'\r' | b':' | b'\\' | b'"' | 0x80..))
            .map_or(near, |next| near + next);
        vec![anywhere, stop + (lot >> 63) as usize]
    }

    fn is_short(self) -> bool {
        self.bytes.len() <= SHORT
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn short_input_is_cut_everywhere_and_long_input_at_random() {
        for length in [0, 1, 63] {
            let bytes = vec![b'a'; length];
            assert_eq!(InputCuts::new(&bytes).places(), (0..length).collect::<Vec<_>>());
        }
        assert_eq!(InputCuts::new(&[b'a'; SHORT]).places().len(), 50);
        let (mut seen, mut ways) = <(HashSet<usize>, HashSet<usize>)>::default();
        for byte in 0..=255 {
            let mut bytes = vec![byte; SHORT + 1];
            bytes[SHORT] = b'\n';
            let cuts = InputCuts::new(&bytes);
            let places = cuts.places();
            assert!(places.iter().all(|at| *at <= bytes.len()));
            assert!(places == cuts.places());
            assert_eq!(places.len(), 2);
            assert_eq!(cuts.sizes().len(), 0);
            ways.insert(cuts.way(4));
            seen.extend(places);
        }
        assert_eq!(ways, (0..4).collect());
        assert!(seen.len() > 100);
        assert!(seen.contains(&SHORT));
        assert!(seen.contains(&(SHORT + 1)));
    }
}
