//! Blanks comments and literals in Rust sources, for the tests that read sources as text (`tidy`, `cycles`).
//!
//! Knows literals and comments, and nothing else of the language.

#![allow(clippy::unwrap_used, reason = "a test says what went wrong by failing")]

/// The text with comments and the inside of literals replaced by blanks, so that every remaining brace and path is
/// code.
pub(crate) fn blanked(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = literal_end(bytes, at);
        for byte in &mut out[at..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end.max(at + 1);
    }
    String::from_utf8(out).unwrap()
}

/// The end of the comment or literal that begins at `at`; `at` itself if none begins there.
fn literal_end(bytes: &[u8], at: usize) -> usize {
    let rest = &bytes[at..];
    let find = |needle: &[u8], from: usize| {
        rest[from..]
            .windows(needle.len())
            .position(|window| window == needle)
            .map_or(bytes.len(), |found| at + from + found + needle.len())
    };
    let word_before = at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_');
    match rest {
        [b'/', b'/', ..] => {
            rest.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |end| at + end)
        }
        [b'/', b'*', ..] => find(b"*/", 2),
        [b'r', b'"' | b'#', ..] if !word_before || (at > 0 && bytes[at - 1] == b'b') => {
            let hashes = rest[1..].iter().take_while(|byte| **byte == b'#').count();
            if rest.get(1 + hashes) != Some(&b'"') {
                return at;
            }
            let mut close = vec![b'"'];
            close.extend(std::iter::repeat_n(b'#', hashes));
            find(&close, 2 + hashes)
        }
        [b'"', ..] => at + quoted_length(rest),
        [b'\'', b'\\', ..] => find(b"'", 3),
        [b'\'', ..] => {
            let width = std::str::from_utf8(&rest[1..rest.len().min(5)])
                .map_or_else(|e| e.valid_up_to(), str::len);
            let first = std::str::from_utf8(&rest[1..=width])
                .unwrap()
                .chars()
                .next()
                .map_or(0, char::len_utf8);
            if rest.get(1 + first) == Some(&b'\'') { at + first + 2 } else { at }
        }
        _ => at,
    }
}

fn quoted_length(rest: &[u8]) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}
