//! Blocks of reasoning to put back, and their places: between the items of a list, or around a single value.
//!
//! What is there stays byte for byte. Must not know a dialect, nor the content of a block.

use super::beside::insert;
use crate::dialect::{Message, Span};
use crate::wire::splice::Edit;

/// A reasoning block to put back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReasoningInsert<'a> {
    /// The part of its message that it comes before; the number of parts means after the last.
    pub before: usize,
    /// The block as it was received ([`crate::dialect::ReplyPart::raw`]). If it is not a JSON object, it is left out.
    pub raw: &'a str,
}

/// Inserts blocks between the items of a list, with one edit per place. `items`: their ranges in the body.
pub(super) fn between(
    message: &Message,
    list: Span,
    items: &[Span],
    blocks: &[ReasoningInsert<'_>],
) -> Vec<Edit> {
    let Some(last) = items.last() else {
        let raws: Vec<&str> = blocks.iter().map(|block| block.raw).collect();
        return vec![insert(list.start + 1, raws.join(","))];
    };
    // A part may be inside another: what matters is the item of the list that contains it.
    let mut places: Vec<(usize, &str)> = Vec::with_capacity(blocks.len());
    for block in blocks {
        let place = match message.parts.get(block.before) {
            Some(part) => items.partition_point(|item| item.end <= part.span.start),
            None => items.len(),
        };
        places.push((place, block.raw));
    }
    // Stable, so that blocks at one place keep their order; two insertions there would be refused.
    places.sort_by_key(|(place, _)| *place);
    let groups = places.chunk_by(|one, two| one.0 == two.0);
    groups
        .map(|group| match items.get(group[0].0) {
            Some(next) => {
                let raws: String = group.iter().flat_map(|(_, raw)| [raw, ","]).collect();
                insert(next.start, raws)
            }
            None => {
                let raws: String = group.iter().flat_map(|(_, raw)| [",", raw]).collect();
                insert(last.end, raws)
            }
        })
        .collect()
}

/// Inserts blocks around a value in place of a list, which becomes a list: the value's bytes stay, between
/// `open` and `close`.
pub(super) fn around(
    value: Span,
    open: &str,
    close: &str,
    blocks: &[ReasoningInsert<'_>],
) -> Vec<Edit> {
    let mut head = "[".to_owned();
    let mut tail = close.to_owned();
    for block in blocks {
        if block.before == 0 {
            head.extend([block.raw, ","]);
        } else {
            tail.extend([",", block.raw]);
        }
    }
    head.push_str(open);
    tail.push(']');
    vec![insert(value.start, head), insert(value.end, tail)]
}
