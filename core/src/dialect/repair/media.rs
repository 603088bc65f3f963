//! Replaces an image or document by text, or an image by a smaller one.
//!
//! The block keeps its place and its cache marker. Must not decide which one is replaced.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::dialect::key::standard_alphabet;
use crate::dialect::rewrite::{Removal, edit, room, text_block, within};
use crate::dialect::{Conversation, Dialect, Part, PartKind, Span};
use crate::wire::json::{Document, Kind};
use crate::wire::splice::Edit;

/// The edit that replaces an image or document by text; `None` if it is neither, or not a block of a list.
pub(crate) fn edits(
    conversation: &Conversation,
    body: &[u8],
    part: &Part,
    text: &str,
) -> Option<Edit> {
    if !matches!(part.kind, PartKind::Image | PartKind::Document) {
        return None;
    }
    let raw = part.span.slice(body);
    let document = Document::read(raw).ok()?;
    let block = document.root(raw).filter(|block| block.kind() == Kind::Object)?;
    let shared = room(body, part.span)?;
    if matches!(&shared, Removal::Alone(list) if list.slice(body).first() != Some(&b'[')) {
        return None;
    }
    // A function response of Gemini may only contain media.
    let is_in_response = conversation.dialect == Dialect::Gemini
        && conversation.parts().any(|other| {
            other.kind == PartKind::ToolResult
                && other.span != part.span
                && within(part.span, other.span)
        });
    if is_in_response {
        return Some(match shared {
            Removal::Shared(at) => edit(at, ""),
            Removal::Alone(at) => edit(at, "[]"),
        });
    }
    Some(edit(part.span, text_block(conversation.dialect, block, text)))
}

/// The edit that replaces the base64 data of an image, and nothing else of its block. `None` if it has none.
pub(crate) fn replaced(body: &[u8], part: &Part, base64: &str) -> Option<Edit> {
    if part.kind != PartKind::Image {
        return None;
    }
    Some(edit(base64_span(part, body)?, base64.to_owned()))
}

/// The range of the base64 data of media, without a `data:` prefix; `None` if they are only linked.
pub(crate) fn base64_span(part: &Part, body: &[u8]) -> Option<Span> {
    let literal = part.media.as_ref()?.data?;
    let text = literal.slice(body).strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    let begin = match text.strip_prefix(b"data:") {
        Some(url) => b"data:".len() + memchr::memmem::find(url, MARK)? + MARK.len(),
        None => 0,
    };
    Some(Span::new(literal.start + 1 + begin, literal.end - 1))
}

/// The end of the prefix of a `data:` URL.
const MARK: &[u8] = b"base64,";

/// The decoded file of media; `None` if the base64 data is invalid.
pub(crate) fn file(base64: &[u8]) -> Option<Vec<u8>> {
    // Some clients write `\/` in JSON.
    let mut digits: Vec<u8> = base64.iter().copied().filter(|byte| *byte != b'\\').collect();
    digits.truncate(digits.trim_ascii_end().len());
    standard_alphabet(&mut digits);
    digits.resize(digits.len().next_multiple_of(4), b'=');
    STANDARD.decode(digits).ok()
}

pub(crate) fn base64(file: &[u8]) -> String {
    STANDARD.encode(file)
}
