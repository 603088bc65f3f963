//! How many values are read of one text: each takes memory, whatever it says.
//!
//! Must not know how they are kept.

/// Most values of a text of so many bytes. Real ones have one every eight bytes and more; a text of nothing
/// but commas would take ten times its length.
pub fn most_values(length: usize) -> usize {
    (length / 4).max(SHORT)
}

/// As many values are read of any text, however short.
const SHORT: usize = 1 << 16;
