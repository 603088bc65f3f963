//! Numbers in the messages of providers.
//!
//! Must not know what they count.

/// Numbers outside this range are not windows, tokens.
pub(super) const WINDOWS: std::ops::RangeInclusive<u64> = 128..=1_000_000_000;

/// A number with its separators (`1,048,576`), and the rest of the text.
pub(super) fn number(text: &str) -> Option<(Option<u64>, &str)> {
    let bytes = text.as_bytes();
    let mut end = 0;
    while let Some(byte) = bytes.get(end) {
        // A separator stands between digits; a comma after the number belongs to the sentence.
        let is_separator = matches!(byte, b',' | b'_')
            && end > 0
            && bytes.get(end + 1).is_some_and(u8::is_ascii_digit);
        if !byte.is_ascii_digit() && !is_separator {
            break;
        }
        end += 1;
    }
    let (digits, rest) = text.split_at(end);
    let digits: String = digits.chars().filter(char::is_ascii_digit).collect();
    if digits.is_empty() {
        return None;
    }
    // A number that is too long to parse still matches.
    Some((digits.parse().ok(), rest))
}
