//! Numbers in the messages of providers.
//!
//! Must not know what they count.

/// Numbers outside this range are not windows, tokens.
pub(super) const WINDOWS: std::ops::RangeInclusive<u64> = 128..=1_000_000_000;

/// A number with its separators (`1,048,576`, `60 500`), and the rest of the text.
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
    while let Some(grouped) = group(&text[..end], &text[end..]) {
        end += grouped;
    }
    let (digits, rest) = text.split_at(end);
    let digits: String = digits.chars().filter(char::is_ascii_digit).collect();
    if digits.is_empty() {
        return None;
    }
    // A number that is too long to parse still matches.
    Some((digits.parse().ok(), rest))
}

/// The bytes of another group of three digits, if one follows behind a blank: `60 500`, but not `60 5000` or `2048 512`.
fn group(digits: &str, rest: &str) -> Option<usize> {
    let first_group = digits.split(|c: char| !c.is_ascii_digit()).next()?;
    let blank =
        rest.chars().next().filter(|c| matches!(c, ' ' | '\u{a0}' | '\u{2009}' | '\u{202f}'))?;
    let tail = &rest[blank.len_utf8()..];
    let length = tail.bytes().take_while(u8::is_ascii_digit).count();
    if (1..=3).contains(&first_group.len()) && length == 3 {
        Some(blank.len_utf8() + length)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separators_belong_to_number() {
        for (text, expected, rest) in [
            ("1,048,576 tokens", 1_048_576, " tokens"),
            ("60 500 > 54 450", 60_500, " > 54 450"),
            ("1\u{202f}048\u{202f}576", 1_048_576, ""),
            ("60 500, 3", 60_500, ", 3"),
            ("60 5000", 60, " 5000"),
            ("2048 512", 2048, " 512"),
            ("512, 2009", 512, ", 2009"),
        ] {
            assert_eq!(number(text), Some((Some(expected), rest)), "{text}");
        }
    }
}
