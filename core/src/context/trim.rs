//! Trims a tool result or message that is too large: its beginning and end stay, with a note between them.
//!
//! The decision is stored as ranges and a hash, without any text of the result. The text is taken from the
//! request each time, which always gives the same bytes. If a request has another text at that place, it is
//! not trimmed. Pure.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::dialect::{Part, PartKey, PartKind, Span};
use crate::wire::json::Document;

/// Which part of a result's text stays. Ranges are bytes of [`text`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrimRange {
    /// The head is everything before this byte.
    pub head: u64,
    /// The tail is everything from this byte on.
    pub tail: u64,
    /// The length of the whole text.
    pub bytes: u64,
    /// The hash of the whole text.
    pub hash: PartKey,
}

/// The length of the note in the middle, bytes, rounded up.
const NOTE_BYTES: usize = 120;

pub(super) fn text(part: &Part, body: &[u8]) -> String {
    let text: String = part.texts.iter().map(|span| text_at(*span, body)).collect();
    // The part key ignores surrounding white space, too.
    match text.trim() {
        trimmed if trimmed.len() == text.len() => text,
        trimmed => trimmed.to_owned(),
    }
}

impl TrimRange {
    /// Keeps about `target` of the `tokens` that `text` costs; `None` if nothing would be left out.
    pub(super) fn new(text: &str, tokens: u64, target: u64) -> Option<Self> {
        let bytes = u128::from(target) * text.len() as u128 / u128::from(tokens.max(1));
        let bytes = usize::try_from(bytes).ok()?.saturating_sub(NOTE_BYTES);
        if bytes >= text.len() {
            return None;
        }
        let head = text.floor_char_boundary(bytes * 2 / 3);
        let tail = text.ceil_char_boundary(text.len() - (bytes - bytes * 2 / 3));
        Some(Self {
            head: head as u64,
            tail: tail as u64,
            bytes: text.len() as u64,
            hash: PartKey::of_bytes(text.as_bytes()),
        })
    }

    /// The head and tail of `text`, which is of a part of this kind; `None` if it is not the text that the decision
    /// was made for.
    pub(super) fn apply(&self, text: &str, kind: PartKind) -> Option<String> {
        let total = text.len();
        // The length is compared first: it is free, and a hash is not.
        let is_same = total as u64 == self.bytes && PartKey::of_bytes(text.as_bytes()) == self.hash;
        if !is_same {
            return None;
        }
        let head = usize::try_from(self.head).ok()?;
        let tail = usize::try_from(self.tail).ok()?;
        let beginning = text.get(..head)?;
        let end = text.get(tail..)?;
        let missing = tail.checked_sub(head)?;
        let what = if kind == PartKind::Text { "message" } else { "tool result" };
        Some(format!(
            "{beginning}\n\n[… {missing} of {total} bytes of this {what} left out: it was too large …]\n\n{end}"
        ))
    }
}

pub(super) fn head_and_tail(part: &Part, body: &[u8], tokens: u64, target: u64) -> Option<String> {
    let text = text(part, body);
    TrimRange::new(&text, tokens, target)?.apply(&text, part.kind)
}

pub(super) fn text_at(span: Span, body: &[u8]) -> String {
    let raw = span.slice(body);
    let document = Document::read(raw);
    let text = document
        .as_ref()
        .ok()
        .and_then(|document| document.root(raw))
        .and_then(|v| v.text().map(Cow::into_owned));
    text.unwrap_or_else(|| String::from_utf8_lossy(raw).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::{Cut, Replacement};

    #[test]
    fn same_text_is_trimmed_same_and_another_not_at_all() {
        let text = "héad ".repeat(100) + &"tail".repeat(100);
        let trim = TrimRange::new(&text, 1000, 400).unwrap();
        let trimmed = trim.apply(&text, PartKind::ToolResult).unwrap();
        assert!(trimmed.starts_with("héad "));
        assert!(trimmed.ends_with("tail"));
        assert!(trimmed.len() < text.len());
        assert_eq!(trim.apply(&text, PartKind::ToolResult), Some(trimmed));
        assert_eq!(trim.apply(&text.replace("tail", "tale"), PartKind::ToolResult), None);
        assert_eq!(trim.apply(&text[..text.len() - 4], PartKind::ToolResult), None);
        assert_eq!(TrimRange::new(&text, 1000, 1300), None);
    }

    #[test]
    fn misfit_ranges_trim_nothing() {
        let text = "é".repeat(40);
        let whole =
            TrimRange { head: 4, tail: 60, bytes: 80, hash: PartKey::of_bytes(text.as_bytes()) };
        assert!(whole.apply(&text, PartKind::ToolResult).is_some());
        for (head, tail) in [(3, 60), (4, 61), (60, 4), (4, 81), (u64::MAX, 60)] {
            assert_eq!(
                TrimRange { head, tail, ..whole }.apply(&text, PartKind::ToolResult),
                None,
                "{head} {tail}"
            );
        }
    }

    /// A cut as earlier versions stored it is read and written unchanged.
    #[test]
    fn cut_stored_with_its_text_is_read_and_written_unchanged() {
        let old = r#"{"about":"000000000000000000000000000000ff","at":1,"exchange":"r","text":"begin … end","keep_media":true,"was":9,"tokens":2,"why":"too_large"}"#;
        let cut: Cut = serde_json::from_str(old).unwrap();
        assert_eq!(cut.content, Replacement::Text("begin … end".into()));
        assert_eq!(serde_json::to_string(&cut).unwrap(), old);
        let content = Replacement::Trim(TrimRange::new(&"word ".repeat(500), 1000, 400).unwrap());
        let cut = Cut { content, ..cut };
        let kept = serde_json::to_string(&cut).unwrap();
        assert_eq!(serde_json::from_str::<Cut>(&kept).unwrap(), cut);
    }

    #[test]
    fn stored_trim_range_contains_no_text() {
        let text = "canary ".repeat(500);
        let kept = serde_json::to_string(&TrimRange::new(&text, 1000, 400).unwrap()).unwrap();
        assert!(!kept.contains("canary"), "{kept}");
    }
}
