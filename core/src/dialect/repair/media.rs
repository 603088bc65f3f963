//! Replaces an image or document by text, or an image by a smaller one.
//!
//! The block keeps its place and its cache marker. Must not decide which one is replaced.

use std::borrow::Cow;

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
    let raw = part.span.of(body);
    let document = Document::read(raw).ok()?;
    let block = document.root(raw).filter(|block| block.kind() == Kind::Object)?;
    let shared = room(body, part.span)?;
    if matches!(&shared, Removal::Alone(list) if list.of(body).first() != Some(&b'[')) {
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
    let at = base64_span(part, body).filter(|_| part.kind == PartKind::Image)?;
    Some(edit(at, base64.to_owned()))
}

/// The range of the base64 data of media, without a `data:` prefix; `None` if they are only linked.
pub(crate) fn base64_span(part: &Part, body: &[u8]) -> Option<Span> {
    let at = part.media.as_ref()?.data?;
    let text = at.of(body).strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    let begin = match text.strip_prefix(b"data:") {
        Some(url) => b"data:".len() + memchr::memmem::find(url, MARK)? + MARK.len(),
        None => 0,
    };
    Some(Span::new(at.start + 1 + begin, at.end - 1))
}

/// The end of the prefix of a `data:` URL.
const MARK: &[u8] = b"base64,";

/// The decoded file of media; `None` if the base64 data is invalid.
pub(crate) fn file(base64: &[u8]) -> Option<Vec<u8>> {
    // Some clients write `\/` in JSON.
    let mut plain = Cow::Borrowed(base64);
    if plain.contains(&b'\\') {
        plain.to_mut().retain(|byte| *byte != b'\\');
    }
    let mut plain = plain.trim_ascii_end().to_vec();
    standard_alphabet(&mut plain);
    plain.resize(plain.len().next_multiple_of(4), b'=');
    STANDARD.decode(plain).ok()
}

/// A file as base64.
pub(crate) fn base64(file: &[u8]) -> String {
    STANDARD.encode(file)
}
