//! Numbers in the messages of providers.
//!
//! Must not know what they count.

/// Numbers outside this range are not windows, tokens.
pub(super) const WINDOWS: std::ops::RangeInclusive<u64> = 128..=1_000_000_000;

/// A number with its separators (`1,048,576`), and the rest of the text.
pub(super) fn number(text: &str) -> Option<(Option<u64>, &str)> {
    let inside = |(at, byte): (usize, &u8)| {
        let next = text.as_bytes().get(at + 1);
        byte.is_ascii_digit()
            || (matches!(byte, b',' | b'_') && at > 0 && next.is_some_and(u8::is_ascii_digit))
    };
    let end = text.as_bytes().iter().enumerate().take_while(|digit| inside(*digit)).count();
    let (digits, rest) = text.split_at(end);
    let digits: String = digits.chars().filter(char::is_ascii_digit).collect();
    // A number that is too long to parse still matches.
    (!digits.is_empty()).then(|| (digits.parse().ok(), rest))
}
