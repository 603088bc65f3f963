//! What a JSON string means: its escapes resolved.
//!
//! Trusting: what is no escape stays as it is, and half a surrogate is U+FFFD. Never panics.

use super::plain_run;

/// Resolves JSON escapes; what is no escape stays as it is.
pub(super) fn unescape(raw: &[u8]) -> String {
    let mut out = Vec::with_capacity(raw.len());
    append_unescaped(raw, &mut out);
    String::from_utf8(out).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
}

/// The same, added to `out`; broken UTF-8 stays as it stands.
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
            let (meant, used) = escape(rest);
            if meant.is_ascii() {
                out.push(meant as u8);
            } else {
                out.extend_from_slice(meant.encode_utf8(&mut [0; 4]).as_bytes());
            }
            rest = &rest[used.min(rest.len())..];
        }
    }
}

/// The character that an escape at the front means, and how many bytes it takes.
fn escape(bytes: &[u8]) -> (char, usize) {
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
    let hex = |at: usize| {
        let digits = std::str::from_utf8(bytes.get(at..at + 4)?).ok()?;
        u32::from_str_radix(digits, 16).ok()
    };
    let Some(first) = hex(2) else { return (char::REPLACEMENT_CHARACTER, 2) };
    if (0xD800..0xDC00).contains(&first)
        && bytes.get(6..8) == Some(b"\\u")
        && let Some(second @ 0xDC00..=0xDFFF) = hex(8)
    {
        let code = 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
        return (char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER), 12);
    }
    (char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER), 6)
}
