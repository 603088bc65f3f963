//! Invalid characters: escapes of single surrogates, and bytes that are not UTF-8. Each becomes U+FFFD;
//! nothing else changes.

use crate::dialect::Span;
use crate::dialect::rewrite::edit;
use crate::wire::splice::Edit;

/// U+FFFD as an escape, and as UTF-8.
const ESCAPED: &str = "\\ufffd";
const PLAIN: &str = "\u{fffd}";

/// The edits that replace all invalid characters.
pub(super) fn edits(body: &[u8]) -> Vec<Edit> {
    let mut edits = surrogates(body);
    let mut at = 0;
    for chunk in body.utf8_chunks() {
        at += chunk.valid().len();
        let broken = chunk.invalid().len();
        if broken > 0 {
            edits.push(edit(Span::new(at, at + broken), PLAIN));
            at += broken;
        }
    }
    edits.sort_by_key(|edit| edit.at);
    edits.dedup_by(|later, first| later.at.start < first.at.end);
    edits
}

/// Escapes of a surrogate without its pair.
fn surrogates(body: &[u8]) -> Vec<Edit> {
    let mut edits = Vec::new();
    let mut at = 0;
    while let Some(next) = memchr::memchr(b'\\', body.get(at..).unwrap_or_default()) {
        let here = at + next;
        let Some(unit) = escaped(body, here) else {
            at = here + 2;
            continue;
        };
        let is_pair = (0xD800..0xDC00).contains(&unit)
            && escaped(body, here + 6).is_some_and(|low| (0xDC00..0xE000).contains(&low));
        if !is_pair && (0xD800..0xE000).contains(&unit) {
            edits.push(edit(Span::new(here, here + 6), ESCAPED));
        }
        at = here + if is_pair { 12 } else { 6 };
    }
    edits
}

/// The code unit of a `\uXXXX` at a place.
fn escaped(body: &[u8], at: usize) -> Option<u32> {
    let digits = body.get(at..at + 6)?.strip_prefix(b"\\u")?;
    if !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}
