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
    let mut offset = 0;
    for chunk in body.utf8_chunks() {
        offset += chunk.valid().len();
        let broken = chunk.invalid().len();
        if broken > 0 {
            edits.push(edit(Span::new(offset, offset + broken), PLAIN));
            offset += broken;
        }
    }
    edits.sort_by_key(|edit| edit.at);
    edits.dedup_by(|later, first| later.at.start < first.at.end);
    edits
}

fn surrogates(body: &[u8]) -> Vec<Edit> {
    // A surrogate without its pair is no character.
    let mut edits = Vec::new();
    let mut offset = 0;
    while let Some(next) = memchr::memchr(b'\\', body.get(offset..).unwrap_or_default()) {
        let escape = offset + next;
        let Some(unit) = escaped(body, escape) else {
            offset = escape + 2;
            continue;
        };
        let is_pair = (0xD800..0xDC00).contains(&unit)
            && escaped(body, escape + 6).is_some_and(|low| (0xDC00..0xE000).contains(&low));
        if !is_pair && (0xD800..0xE000).contains(&unit) {
            edits.push(edit(Span::new(escape, escape + 6), ESCAPED));
        }
        offset = escape + if is_pair { 12 } else { 6 };
    }
    edits
}

fn escaped(body: &[u8], at: usize) -> Option<u32> {
    let digits = body.get(at..at + 6)?.strip_prefix(b"\\u")?;
    if !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}
