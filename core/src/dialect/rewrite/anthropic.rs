//! Puts thinking back into Anthropic Messages, between the blocks where it was.
//!
//! A plain string becomes a list with a block of the same text, which is the same for the model and for the
//! part key (`docs/protocols.md` 1.2, 10.7). Must not know the content of a block.

use super::beside::edit;
use super::blocks::{ReasoningInsert, around, between};
use super::ranges::shifted;
use crate::dialect::Message;
use crate::wire::json::{Kind, Value};
use crate::wire::splice::Edit;

pub(super) fn put_back(
    message: &Message,
    root: Value<'_>,
    blocks: &[ReasoningInsert<'_>],
) -> Vec<Edit> {
    let Some(content) = root.get("content") else { return Vec::new() };
    let at = shifted(content.span(), message.span.start);
    match content.kind() {
        // An empty text block would be refused.
        Kind::String if at.len() == 2 => {
            let raws: Vec<&str> = blocks.iter().map(|block| block.raw).collect();
            vec![edit(at, format!("[{}]", raws.join(",")))]
        }
        Kind::String => around(at, "{\"type\":\"text\",\"text\":", "}", blocks),
        Kind::Array => {
            let items = content.items().map(|item| shifted(item.span(), message.span.start));
            between(message, at, &items.collect::<Vec<_>>(), blocks)
        }
        Kind::Null | Kind::Bool | Kind::Number | Kind::Object => Vec::new(),
    }
}
