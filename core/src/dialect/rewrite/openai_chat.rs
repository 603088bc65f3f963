//! Puts reasoning back into Chat Completions, as the member in which it was received.
//!
//! The member of a compatible API is added; thinking in tags or blocks is put into the content
//! (`docs/protocols.md` 4.2). What the client sends is only ever replaced by the same text.

use super::beside::{edit, first_member, insert, literal, set};
use super::blocks::{ReasoningInsert, around};
use super::ranges::{shifted, within};
use crate::dialect::key::Keyer;
use crate::dialect::openai_chat::{lacks_signature_of, think};
use crate::dialect::{Message, Part, PartKind, Role, Span};
use crate::wire::json::{Document, Kind, Value};
use crate::wire::splice::Edit;

pub(super) fn put_back(
    message: &Message,
    root: Value<'_>,
    body: &[u8],
    blocks: &[ReasoningInsert<'_>],
) -> Vec<Edit> {
    let mut restore =
        MessageRestore { message, root, body, names: Vec::new(), new: None, edits: Vec::new() };
    let mut thinking: Vec<&str> = Vec::new();
    for block in blocks {
        let raw = block.raw.as_bytes();
        let document = Document::read(raw).unwrap_or_default();
        for (key, value) in document.root(raw).iter().flat_map(Value::entries) {
            match (&*key.text(), value.kind()) {
                // All blocks of a message go in with one edit, because two at the same place would contradict
                // each other.
                ("content", Kind::Array) => {
                    thinking.extend(value.items().map(|item| source(block.raw, item)));
                }
                ("content", Kind::String) => {
                    restore.tagged(source(block.raw, value), &value.text().unwrap_or_default());
                }
                ("content", _) => {}
                (name, _) => restore.member(name, source(block.raw, value)),
            }
        }
    }
    restore.thinking(&thinking);
    if let Some(members) = restore.new {
        restore.edits.extend(first_member(body, message.span.start, &members));
    }
    restore.edits
}

fn source<'b>(raw: &'b str, value: Value<'_>) -> &'b str {
    raw.get(value.span().start..value.span().end).unwrap_or_default()
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
    fn member(&mut self, name: &str, value: &str) {
        // A name may not occur twice, so a member that has less of it is replaced: `null`, an empty list, the text without
        // its signature.
        if self.names.iter().any(|known| known == name) {
            return;
        }
        self.names.push(name.to_owned());
        match self.root.get(name) {
            None => {
                let comma = if self.new.is_some() { "," } else { "" };
                let members = self.new.get_or_insert_default();
                members.extend([comma, &literal(name), ":", value]);
            }
            Some(copy) if lacks_signature_of(copy.raw(), value.as_bytes()) => {
                let span = shifted(copy.span(), self.message.span.start);
                self.edits.push(edit(span, value.to_owned()));
            }
            Some(_) => {}
        }
    }

    fn tagged(&mut self, raw: &str, text: &str) {
        // The same text with thinking in tags before it: clients drop the tags.
        let (thought, answer) = think::split(text);
        if thought.is_none() {
            return;
        }
        let key = Keyer::default().text(Role::Assistant, answer);
        let Some((place, _)) = self.content() else {
            if key.is_none() {
                self.member("content", raw);
            }
            return;
        };
        let part = self.message.parts.iter().find(|part| {
            part.kind == PartKind::Text && part.key == key && within(part.span, place)
        });
        if let Some(literal) = part.and_then(|part| part.texts.first())
            && !is_tagged(literal.slice(self.body))
        {
            self.edits.push(edit(*literal, raw.to_owned()));
        }
    }

    fn thinking(&mut self, blocks: &[&str]) {
        if blocks.is_empty() {
            return;
        }
        let blocks = blocks.join(",");
        let list = format!("[{blocks}]");
        let Some((at, content)) = self.content() else {
            return self.member("content", &list);
        };
        let parts = self.message.parts.iter();
        let thoughts: Vec<&Part> = parts
            .filter(|part| part.kind == PartKind::Reasoning && within(part.span, at))
            .collect();
        match content.kind() {
            // An empty text needs no block of its own.
            Kind::String if at.len() == 2 => self.edits.push(edit(at, list)),
            Kind::String => {
                let insert = ReasoningInsert { before: 0, raw: &blocks };
                self.edits.extend(around(at, "{\"type\":\"text\",\"text\":", "}", &[insert]));
            }
            Kind::Array => match thoughts[..] {
                [] => {
                    let comma = if content.items().next().is_some() { "," } else { "" };
                    self.edits.push(insert(at.start + 1, format!("{blocks}{comma}")));
                }
                // The client kept its text alone.
                [part] if lacks_signature_of(part.span.slice(self.body), list.as_bytes()) => {
                    self.edits.push(edit(part.span, blocks));
                }
                // It has its thinking already.
                _ => {}
            },
            Kind::Null | Kind::Bool | Kind::Number | Kind::Object => {}
        }
    }

    fn content(&self) -> Option<(Span, Value<'_>)> {
        let content = self.root.get_any(&["content"])?;
        Some((shifted(content.span(), self.message.span.start), content))
    }
}

fn is_tagged(literal: &[u8]) -> bool {
    let document = Document::read(literal).unwrap_or_default();
    let text = document.root(literal).and_then(|root| root.text());
    text.is_some_and(|text| think::split(&text).0.is_some())
}

/// Puts Google's signature on a call.
pub(super) fn restore_signature(part: &Part, body: &[u8], signature: &str) -> Option<Edit> {
    const PLACE: [&str; 3] = ["extra_content", "google", "thought_signature"];
    if part.kind != PartKind::ToolCall {
        return None;
    }
    set(body, part.span, &PLACE, &literal(signature))
}
