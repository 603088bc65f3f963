//! Cuts tool results whose content is a string or a list of blocks: Anthropic, Chat Completions, Responses.
//!
//! The text is replaced by one string, or by one block if the list must stay, because it has a cache marker
//! or images that are kept. What is kept keeps its bytes and its place.

use memchr::memmem;

use super::beside::{Removal, edit, first_member, insert, literal, room, runs};
use super::ranges::{shifted, within};
use crate::dialect::key::CACHE_MARKERS;
use crate::dialect::{Part, Span};
use crate::wire::json::{Document, Kind, Value};
use crate::wire::splice::Edit;

/// A tool result to cut.
pub(super) struct ToolAnswer<'a> {
    pub(super) part: &'a Part,
    pub(super) content: Span,
    /// The parts in it that are kept: images, files, unknown parts.
    pub(super) kept: &'a [Part],
    /// The type of a text block.
    pub(super) kind: &'static str,
}

pub(super) fn cut(answer: &ToolAnswer<'_>, body: &[u8], text: &str) -> Vec<Edit> {
    let raw = answer.content.slice(body);
    let keeps = !answer.kept.is_empty();
    // Most results are strings, or have no marker, and are not parsed.
    if !raw.starts_with(b"[")
        || !keeps && CACHE_MARKERS.iter().all(|name| memmem::find(raw, name.as_bytes()).is_none())
    {
        return vec![edit(answer.content, literal(text))];
    }
    let document = Document::read(raw).unwrap_or_default();
    let Some(root) = document.root(raw) else { return Vec::new() };
    let items: Vec<ListItem<'_>> =
        root.items().map(|item| ListItem::new(item, answer, body)).collect();
    if keeps {
        return among(&items, answer, body, text);
    }
    match items.iter().rev().find_map(|item| item.marker) {
        Some(marker) => {
            vec![edit(answer.content, format!("[{}]", block(answer.kind, text, Some(marker))))]
        }
        None => vec![edit(answer.content, literal(text))],
    }
}

struct ListItem<'b> {
    /// Its range in the body.
    span: Span,
    is_object: bool,
    holds: ItemContent,
    /// Its cache marker: key and value as in the body.
    marker: Option<&'b str>,
}

#[derive(Clone, Copy, PartialEq)]
enum ItemContent {
    /// An image or a file.
    Media,
    /// Something unknown.
    Other,
    /// Text in a single string literal, at this range of the body.
    Literal(Span),
    /// Text in several pieces, or in another form.
    Texts,
}

impl<'b> ListItem<'b> {
    fn new(item: Value<'_>, answer: &ToolAnswer<'_>, body: &'b [u8]) -> Self {
        let span = shifted(item.span(), answer.content.start);
        let texts = &answer.part.texts;
        let start = texts.partition_point(|text| text.start < span.start);
        let mut texts = texts[start..].iter().take_while(|text| within(**text, span));
        let index = answer.kept.partition_point(|part| part.span.start < span.start);
        let part = answer.kept.get(index);
        let is_media = part.is_some_and(|part| part.span == span && part.media.is_some());
        let holds = match (texts.next(), texts.next()) {
            (None, _) if is_media => ItemContent::Media,
            (None, _) => ItemContent::Other,
            (Some(one), None) if one.slice(body).first() == Some(&b'"') => {
                ItemContent::Literal(*one)
            }
            (Some(_), _) => ItemContent::Texts,
        };
        let marker = CACHE_MARKERS.iter().find(|name| item.get_any(&[name]).is_some());
        let marker = marker.and_then(|name| {
            let (key, value) = item.entries().filter(|(key, _)| key.is(name)).last()?;
            let member = Span::new(key.span().start, value.span().end);
            std::str::from_utf8(shifted(member, answer.content.start).slice(body)).ok()
        });
        Self { span, is_object: item.kind() == Kind::Object, holds, marker }
    }

    fn has_text(&self) -> bool {
        matches!(self.holds, ItemContent::Literal(_) | ItemContent::Texts)
    }
}

fn among(items: &[ListItem<'_>], answer: &ToolAnswer<'_>, body: &[u8], text: &str) -> Vec<Edit> {
    // Other texts are removed, and their markers move to the nearest text or image before them.
    let Some(first) = items.iter().position(ListItem::has_text) else {
        let piece = format!("{},", block(answer.kind, text, None));
        return vec![insert(answer.content.start + 1, piece)];
    };
    let mut markers: Vec<Option<&str>> = vec![None; items.len()];
    let mut carrier = first;
    let mut removals = Vec::new();
    for (at, item) in items.iter().enumerate().skip(first + 1) {
        if item.has_text() {
            markers[carrier] = item.marker.or(markers[carrier]);
            removals.push(item.span);
        } else if item.holds == ItemContent::Media {
            carrier = at;
        }
    }
    let mut edits = Vec::new();
    for (at, item) in items.iter().enumerate() {
        let marker = if item.marker.is_none() { markers[at] } else { None };
        let insertion = marker.and_then(|marker| first_member(body, item.span.start, marker));
        match item.holds {
            _ if at != first => edits.extend(insertion),
            ItemContent::Literal(piece) if item.is_object || marker.is_none() => {
                edits.push(edit(piece, literal(text)));
                edits.extend(insertion);
            }
            _ => edits.push(edit(item.span, block(answer.kind, text, item.marker.or(marker)))),
        }
    }
    for run in runs(body, removals) {
        if let Some(Removal::Shared(at)) = room(body, run) {
            edits.push(edit(at, ""));
        }
    }
    edits
}

fn block(kind: &str, text: &str, marker: Option<&str>) -> String {
    let comma = if marker.is_some() { "," } else { "" };
    let marker = marker.unwrap_or_default();
    format!("{{\"type\":\"{kind}\",\"text\":{}{comma}{marker}}}", literal(text))
}
