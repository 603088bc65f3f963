//! A tool result too large to be sent whole: its first and last words stay, with a note between.
//!
//! What is kept of that decision is ranges and a hash, never a word of the result: the words are taken
//! from the request each time, and come out the same to the byte for ever. Where a request holds other
//! words at that place, nothing of it is trimmed. Pure.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::dialect::{Part, PartKey, Span};
use crate::wire::json::Document;

/// Which of a result's words stay. Ranges are bytes of [`words`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrimRange {
    /// Where the head ends.
    pub head: u64,
    /// Where the tail begins.
    pub tail: u64,
    /// How long all of it is.
    pub bytes: u64,
    /// The hash of all of it.
    pub hash: PartKey,
}

/// What the note in the middle takes, bytes, generously.
const NOTE_BYTES: usize = 120;

/// What a result says, without the white space around it: that does not count for its key either.
pub fn words(part: &Part, body: &[u8]) -> String {
    let words: String = part.texts.iter().map(|span| words_at(*span, body)).collect();
    match words.trim() {
        trimmed if trimmed.len() == words.len() => words,
        trimmed => trimmed.to_owned(),
    }
}

impl TrimRange {
    /// Leaves some `target` of the `tokens` that `words` cost; `None` where nothing is left out.
    pub fn new(words: &str, tokens: u64, target: u64) -> Option<Self> {
        let kept = u128::from(target) * words.len() as u128 / u128::from(tokens.max(1));
        let kept = usize::try_from(kept).ok()?.saturating_sub(NOTE_BYTES);
        if kept >= words.len() {
            return None;
        }
        let head = words.floor_char_boundary(kept * 2 / 3);
        let tail = words.ceil_char_boundary(words.len() - (kept - kept * 2 / 3));
        Some(Self {
            head: head as u64,
            tail: tail as u64,
            bytes: words.len() as u64,
            hash: PartKey::of_bytes(words.as_bytes()),
        })
    }

    /// The head and tail of `words`; `None` where these are not the words that it was decided for.
    pub fn apply(&self, words: &str) -> Option<String> {
        let all = words.len();
        let is_same = all as u64 == self.bytes && PartKey::of_bytes(words.as_bytes()) == self.hash;
        if !is_same {
            return None;
        }
        let (head, tail) = (usize::try_from(self.head).ok()?, usize::try_from(self.tail).ok()?);
        let (first, last) = (words.get(..head)?, words.get(tail..)?);
        let missing = tail.checked_sub(head)?;
        Some(format!(
            "{first}\n\n[… {missing} of {all} bytes of this tool result left out: it was too large …]\n\n{last}"
        ))
    }
}

/// The first and last words of a result of `tokens`, some `target` tokens of them, and what is missing
/// between; `None` where there is nothing to leave out.
pub fn head_and_tail(part: &Part, body: &[u8], tokens: u64, target: u64) -> Option<String> {
    let words = words(part, body);
    TrimRange::new(&words, tokens, target)?.apply(&words)
}

/// The words of a string literal, or the bytes of another value.
pub(super) fn words_at(span: Span, body: &[u8]) -> String {
    let raw = span.of(body);
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
    fn the_same_words_are_trimmed_the_same_and_other_words_not_at_all() {
        let words = "héad ".repeat(100) + &"tail".repeat(100);
        let trim = TrimRange::new(&words, 1000, 400).unwrap();
        let text = trim.apply(&words).unwrap();
        assert!(text.starts_with("héad ") && text.ends_with("tail") && text.len() < words.len());
        assert_eq!(trim.apply(&words), Some(text));
        assert_eq!(trim.apply(&words.replace("tail", "tale")), None);
        assert_eq!(trim.apply(&words[..words.len() - 4]), None);
        assert_eq!(TrimRange::new(&words, 1000, 1300), None);
    }

    #[test]
    fn ranges_that_fit_no_words_trim_nothing() {
        let words = "é".repeat(40);
        let whole =
            TrimRange { head: 4, tail: 60, bytes: 80, hash: PartKey::of_bytes(words.as_bytes()) };
        assert!(whole.apply(&words).is_some());
        for (head, tail) in [(3, 60), (4, 61), (60, 4), (4, 81), (u64::MAX, 60)] {
            assert_eq!(TrimRange { head, tail, ..whole }.apply(&words), None, "{head} {tail}");
        }
    }

    /// As earlier versions kept it: read, written and said the same.
    #[test]
    fn a_cut_that_was_kept_with_its_words_stays_as_it_is() {
        let old = r#"{"about":"000000000000000000000000000000ff","at":1,"request":"r","text":"begin … end","keep_media":true,"was":9,"tokens":2,"why":"too_large"}"#;
        let cut: Cut = serde_json::from_str(old).unwrap();
        assert_eq!(cut.content, Replacement::Text("begin … end".into()));
        assert_eq!(serde_json::to_string(&cut).unwrap(), old);
        let content = Replacement::Trim(TrimRange::new(&"word ".repeat(500), 1000, 400).unwrap());
        let cut = Cut { content, ..cut };
        let kept = serde_json::to_string(&cut).unwrap();
        assert_eq!(serde_json::from_str::<Cut>(&kept).unwrap(), cut);
    }

    #[test]
    fn what_is_kept_holds_no_word() {
        let words = "canary ".repeat(500);
        let kept = serde_json::to_string(&TrimRange::new(&words, 1000, 400).unwrap()).unwrap();
        assert!(!kept.contains("canary"), "{kept}");
    }
}
