//! JSON strings: where they end, and their text with escapes resolved.
//!
//! Lenient: an invalid escape stays as it is, and a lone surrogate becomes U+FFFD. Never panics.

use std::borrow::Cow;

pub(crate) fn text_of(raw: &[u8]) -> Option<Cow<'_, str>> {
    let inner = raw.strip_prefix(b"\"")?;
    let (quote, escaped) = closing_quote(inner, 0)?;
    if quote + 1 != inner.len() {
        return None;
    }
    Some(meaning(&inner[..quote], escaped))
}

pub(super) fn meaning(raw: &[u8], escaped: bool) -> Cow<'_, str> {
    if escaped {
        return Cow::Owned(unescape(raw));
    }
    // Replacing broken UTF-8 goes byte by byte; checking that nothing is broken is faster.
    match std::str::from_utf8(raw) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => String::from_utf8_lossy(raw),
    }
}

/// The position of the quote that ends the string whose content begins at `at`, and whether the content
/// contains a backslash.
pub(super) fn closing_quote(bytes: &[u8], mut at: usize) -> Option<(usize, bool)> {
    let mut escaped = false;
    loop {
        at += plain_run(bytes.get(at..)?);
        if *bytes.get(at)? == b'"' {
            return Some((at, escaped));
        }
        // Whatever the backslash escapes, two bytes are no end of the string.
        escaped = true;
        at += 2;
    }
}

/// Resolves JSON escapes, in a string's content or in all strings of a value; an invalid one loses its
/// backslash, or becomes U+FFFD.
pub(crate) fn unescape(raw: &[u8]) -> String {
    let mut text = Vec::with_capacity(raw.len());
    append_unescaped(raw, &mut text);
    String::from_utf8(text).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
}

/// Like [`unescape`], appended to `out`; broken UTF-8 stays unchanged.
pub(super) fn append_unescaped(raw: &[u8], out: &mut Vec<u8>) {
    let mut rest = raw;
    while !rest.is_empty() {
        let run = plain_run(rest);
        out.extend_from_slice(&rest[..run]);
        rest = &rest[run..];
        if rest.first() == Some(&b'"') {
            out.push(b'"');
            rest = &rest[1..];
        } else if !rest.is_empty() {
            let (unescaped, used) = escape(rest);
            if unescaped.is_ascii() {
                out.push(unescaped as u8);
            } else {
                out.extend_from_slice(unescaped.encode_utf8(&mut [0; 4]).as_bytes());
            }
            rest = &rest[used.min(rest.len())..];
        }
    }
}

fn escape(bytes: &[u8]) -> (char, usize) {
    // The character of the escape at the front, and the escape's length in bytes.
    match bytes.get(1) {
        Some(b'n') => ('\n', 2),
        Some(b't') => ('\t', 2),
        Some(b'r') => ('\r', 2),
        Some(b'b') => ('\u{8}', 2),
        Some(b'f') => ('\u{c}', 2),
        Some(b'u') => unicode_escape(bytes),
        Some(&other) if other.is_ascii() => (other as char, 2),
        _ => (char::REPLACEMENT_CHARACTER, 1),
    }
}

fn unicode_escape(bytes: &[u8]) -> (char, usize) {
    let Some(unit) = hex_at(bytes, 2) else { return (char::REPLACEMENT_CHARACTER, 2) };
    // A character past U+FFFF is written as two escapes.
    if (0xD800..0xDC00).contains(&unit)
        && bytes.get(6..8) == Some(b"\\u")
        && let Some(low @ 0xDC00..=0xDFFF) = hex_at(bytes, 8)
    {
        let code = 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00);
        return (char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER), 12);
    }
    (char::from_u32(unit).unwrap_or(char::REPLACEMENT_CHARACTER), 6)
}

fn hex_at(bytes: &[u8], start: usize) -> Option<u32> {
    let digits = std::str::from_utf8(bytes.get(start..start + 4)?).ok()?;
    u32::from_str_radix(digits, 16).ok()
}

const ONES: u64 = 0x0101_0101_0101_0101;

/// The high bit of each byte that is zero; those past the first one may be wrong.
fn zero_bytes(word: u64) -> u64 {
    const HIGH: u64 = 0x8080_8080_8080_8080;
    word.wrapping_sub(ONES) & !word & HIGH
}

fn plain_run(bytes: &[u8]) -> usize {
    // Eight at a time: source code in JSON has a backslash every few words, where a call to
    // `memchr` costs more than it saves.
    let mut chunks = bytes.chunks_exact(8);
    let mut run = 0;
    for chunk in &mut chunks {
        let word = u64::from_le_bytes(chunk.try_into().unwrap_or_default());
        let quotes = zero_bytes(word ^ (ONES * u64::from(b'"')));
        let backslashes = zero_bytes(word ^ (ONES * u64::from(b'\\')));
        let stops = quotes | backslashes;
        if stops != 0 {
            return run + stops.trailing_zeros() as usize / 8;
        }
        run += 8;
    }
    let rest = chunks.remainder();
    run + rest.iter().position(|b| matches!(b, b'"' | b'\\')).unwrap_or(rest.len())
}
