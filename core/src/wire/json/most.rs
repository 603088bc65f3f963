//! How many values are read of one text: each takes memory, whatever it contains.
//!
//! Must not know how values are stored.

/// The most values of a text of `length` bytes.
pub fn most_values(length: usize) -> usize {
    // Real texts have at most one every eight bytes; a text of only commas would take ten times its length.
    (length / 4).max(SHORT)
}

/// The number of values that is read of any text, however short.
const SHORT: usize = 1 << 16;
