//! Puts reasoning back into Chat Completions, as the member in which it was received.
//!
//! The member of a compatible API is added; thinking in tags or blocks is put into the content
//! (`docs/protocols.md` 4.2). What the client sends is only ever replaced by the same text.

use super::beside::{edit, first_member, insert, literal, set};
use super::blocks::{ReasoningInsert, around};
use super::ranges::{shifted, within};
use crate::dialect::key::Keyer;
use crate::dialect::openai_chat::think;
use crate::dialect::{Message, Part, PartKind, Role, Span};
use crate::wire::json::{Document, Kind, Value};
use crate::wire::splice::Edit;

/// Adds members to a message that has none of that name, and thinking to its content.
pub(super) fn put_back(
    message: &Message,
    root: Value<'_>,
    body: &[u8],
    blocks: &[ReasoningInsert<'_>],
) -> Vec<Edit> {
    let mut back =
        MessageRestore { message, root, body, names: Vec::new(), new: None, edits: Vec::new() };
    let mut thinking: Vec<&str> = Vec::new();
    for block in blocks {
        let raw = block.raw.as_bytes();
        let document = Document::read(raw).unwrap_or_default();
        let source = |value: Value<'_>| block.raw.get(value.span().start..value.span().end);
        for (key, value) in document.root(raw).iter().flat_map(Value::entries) {
            match (&*key.text(), value.kind()) {
                ("content", Kind::Array) => thinking.extend(value.items().filter_map(source)),
                ("content", Kind::String) => {
                    back.tagged(
                        source(value).unwrap_or_default(),
                        &value.text().unwrap_or_default(),
                    );
                }
                ("content", _) => {}
                (name, _) => back.member(name, source(value).unwrap_or_default()),
            }
        }
    }
    back.thinking(&thinking);
    back.edits
        .extend(back.new.and_then(|members| first_member(body, message.span.start, &members)));
    back.edits
}

/// Puts reasoning back into one message.
struct MessageRestore<'a> {
    message: &'a Message,
    root: Value<'a>,
    body: &'a [u8],
    /// Names of members that were put back.
    names: Vec<String>,
    /// New members, separated by commas.
    new: Option<String>,
    edits: Vec<Edit>,
}

impl MessageRestore<'_> {
    /// Adds a member that is missing or `null`.
    fn member(&mut self, name: &str, value: &str) {
        if self.names.iter().any(|known| known == name) {
            return;
        }
        self.names.push(name.to_owned());
        match self.root.get(name) {
            None => {
                let comma = if self.new.is_some() { "," } else { "" };
                let new = self.new.get_or_insert_default();
                new.extend([comma, &literal(name), ":", value]);
            }
            Some(null) if null.is_null() => {
                let at = shifted(null.span(), self.message.span.start);
                self.edits.push(edit(at, value.to_owned()));
            }
            Some(_) => {}
        }
    }

    /// Replaces a text by the same text with thinking in tags before it.
    fn tagged(&mut self, raw: &str, text: &str) {
        let (Some(_), answer) = think::split(text) else { return };
        let key = Keyer::default().text(Role::Assistant, answer);
        let Some((place, _)) = self.content() else {
            if key.is_none() {
                self.member("content", raw);
            }
            return;
        };
        let is_same = |part: &&Part| {
            part.kind == PartKind::Text && part.key == key && within(part.span, place)
        };
        let same = self.message.parts.iter().find(is_same).and_then(|part| part.texts.first());
        let bare = same.filter(|at| !is_tagged(at.of(self.body)));
        self.edits.extend(bare.map(|at| edit(*at, raw.to_owned())));
    }

    /// Inserts blocks of thinking at the start of the content.
    fn thinking(&mut self, blocks: &[&str]) {
        if blocks.is_empty() {
            return;
        }
        let blocks = blocks.join(",");
        let Some((at, content)) = self.content() else {
            return self.member("content", &format!("[{blocks}]"));
        };
        let is_there = |part: &Part| part.kind == PartKind::Reasoning && within(part.span, at);
        match content.kind() {
            Kind::String if at.len() == 2 => self.edits.push(edit(at, format!("[{blocks}]"))),
            Kind::String => {
                let first = ReasoningInsert { before: 0, raw: &blocks };
                self.edits.extend(around(at, "{\"type\":\"text\",\"text\":", "}", &[first]));
            }
            Kind::Array if !self.message.parts.iter().any(is_there) => {
                let comma = if content.items().next().is_some() { "," } else { "" };
                self.edits.push(insert(at.start + 1, format!("{blocks}{comma}")));
            }
            Kind::Array | Kind::Null | Kind::Bool | Kind::Number | Kind::Object => {}
        }
    }

    /// The message's content, with its range in the body.
    fn content(&self) -> Option<(Span, Value<'_>)> {
        let content = self.root.get_any(&["content"])?;
        Some((shifted(content.span(), self.message.span.start), content))
    }
}

/// Whether the text of a string literal begins with a thought in tags.
fn is_tagged(literal: &[u8]) -> bool {
    let document = Document::read(literal).unwrap_or_default();
    let text = document.root(literal).and_then(|root| root.text());
    text.is_some_and(|text| think::split(&text).0.is_some())
}

/// Puts Google's signature on a call.
pub(super) fn restore_signature(part: &Part, body: &[u8], signature: &str) -> Option<Edit> {
    const PLACE: [&str; 3] = ["extra_content", "google", "thought_signature"];
    (part.kind == PartKind::ToolCall)
        .then(|| set(body, part.span, &PLACE, &literal(signature)))
        .flatten()
}
