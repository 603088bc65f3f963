//! A request as the checks see it: its parts before and after a splice.
//!
//! A splice that conflicts, makes the JSON invalid, or changes a byte outside an edit or in the prompt's head
//! is wrong, whatever its purpose. Must not know the purpose of the edits.

use bytes::Bytes;

use crate::dialect::rewrite::{has_content, within};
use crate::dialect::{Conversation, Dialect, Part, PartIndex, PartKey, PartKind, Role, Span, read};
use crate::wire::json::Document;
use crate::wire::splice::{Edit, splice};

/// The content of a part, without its place in the message.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PartSnapshot {
    /// Only compared if a message has several items.
    message: usize,
    pub(super) kind: PartKind,
    role: Role,
    id: Option<Box<str>>,
    name: Option<Box<str>>,
    is_error: bool,
    pub(super) key: Option<PartKey>,
    /// The hash of its text, signature and data as in the body. `None` if they are not compared.
    pub(super) bytes: Option<PartKey>,
}

impl PartSnapshot {
    pub(super) fn moves_up(&mut self, gone: usize) {
        self.message -= usize::from(self.message > gone);
    }

    pub(super) fn give_way(&mut self) {
        self.key = None;
        self.bytes = None;
    }
}

/// Asserts that two lists of parts are equal; shows the first that differs.
pub(super) fn agree(snapshots: &[PartSnapshot], expected: &[PartSnapshot]) {
    let differing = snapshots.iter().zip(expected).position(|(one, two)| one != two);
    let index = differing.unwrap_or(snapshots.len().min(expected.len()));
    assert_eq!(snapshots.get(index), expected.get(index), "part {index}");
}

pub(super) fn without(mut snapshots: Vec<PartSnapshot>, gone: &[usize]) -> Vec<PartSnapshot> {
    let mut index = 0;
    snapshots.retain(|_| {
        index += 1;
        !gone.contains(&(index - 1))
    });
    snapshots
}

/// A request that was read.
pub(super) struct RequestSnapshot<'a> {
    target: &'a str,
    pub(super) body: Bytes,
    pub(super) read: Conversation,
}

impl<'a> RequestSnapshot<'a> {
    pub(super) fn read(dialect: Dialect, target: &'a str, body: &[u8]) -> Self {
        let body = Bytes::copy_from_slice(body);
        Self { target, read: read(dialect, target, &body), body }
    }

    pub(super) fn dialect(&self) -> Dialect {
        self.read.dialect
    }

    pub(super) fn is(&self, dialect: Dialect) -> bool {
        self.dialect() == dialect
    }

    pub(super) fn part(&self, at: PartIndex) -> &Part {
        &self.read.messages[at.message].parts[at.part]
    }

    pub(super) fn number(&self, at: PartIndex) -> usize {
        let earlier = self.read.messages[..at.message].iter().map(|message| message.parts.len());
        earlier.sum::<usize>() + at.part
    }

    pub(super) fn held(&self, at: PartIndex) -> Vec<usize> {
        let parts = &self.read.messages[at.message].parts;
        let inner =
            parts[at.part + 1..].iter().take_while(|part| within(part.span, parts[at.part].span));
        (self.number(at) + 1..).take(inner.count()).collect()
    }

    pub(super) fn those(&self, holds: impl Fn(&Part) -> bool) -> Vec<usize> {
        let parts = self.read.parts().enumerate().filter(|(_, part)| holds(part));
        parts.map(|(at, _)| at).collect()
    }

    pub(super) fn empty(&self) -> Vec<usize> {
        // If a string becomes a list, they have no block.
        self.those(|part| !has_content(part))
    }

    pub(super) fn reasoning(&self, message: usize) -> Vec<usize> {
        let parts = self.read.messages[message].parts.iter().enumerate();
        let reasoning = parts.filter(|(_, part)| part.kind == PartKind::Reasoning);
        reasoning.map(|(at, _)| at).collect()
    }

    pub(super) fn literals(&self, part: &Part) -> Vec<&[u8]> {
        let data = part.media.iter().filter_map(|media| media.data);
        let spans = part.texts.iter().copied().chain(part.signature).chain(data);
        spans.map(|span| span.slice(&self.body)).collect()
    }

    pub(super) fn snapshots(&self) -> Vec<PartSnapshot> {
        let has_items = self.is(Dialect::OpenaiResponses);
        let mut snapshots = Vec::new();
        for (index, message) in self.read.messages.iter().enumerate() {
            for part in &message.parts {
                snapshots.push(PartSnapshot {
                    // An item that leaves moves all that come after it.
                    message: if has_items { 0 } else { index },
                    kind: part.kind,
                    role: part.role,
                    id: part.id.clone(),
                    name: part.name.clone(),
                    is_error: part.is_error,
                    key: part.key,
                    bytes: Some(PartKey::of_bytes(&self.literals(part).join(&0))),
                });
            }
        }
        snapshots
    }

    pub(super) fn ordered(&self, mut snapshots: Vec<PartSnapshot>) -> Vec<PartSnapshot> {
        // Neither has a meaning there: the order of reasoning among the parts, and which of several
        // members is read.
        if self.is(Dialect::OpenaiChat) {
            snapshots
                .sort_by_key(|snapshot| (snapshot.kind == PartKind::Reasoning, snapshot.message));
            for snapshot in &mut snapshots {
                if snapshot.kind == PartKind::Reasoning {
                    snapshot.bytes = None;
                }
            }
        }
        snapshots
    }

    /// The request after a splice; asserts that the JSON is as valid as before, and that bytes outside the
    /// edits and the head are unchanged.
    pub(super) fn after(&self, mut edits: Vec<Edit>) -> Self {
        let slices = splice(&self.body, edits.clone());
        assert!(slices.is_ok(), "{slices:?}");
        let body = slices.unwrap_or_default().concat();
        edits.sort_by_key(|edit| edit.at);
        let mut position = 0;
        let mut old_position = 0;
        for edit in edits {
            let unchanged = &self.body[old_position..edit.at.start];
            assert!(body[position..].starts_with(unchanged), "a byte outside the edits");
            position += unchanged.len() + edit.with.len();
            old_position = edit.at.end;
        }
        assert!(body[position..] == self.body[old_position..], "a byte outside the edits");
        assert!(Document::read(&body).is_ok() || Document::read(&self.body).is_err(), "no JSON");
        assert!(is_strict(&body) || !is_strict(&self.body), "no longer strict JSON");
        let after = Self::read(self.dialect(), self.target, &body);
        assert_eq!(head_keys(&after.read), head_keys(&self.read));
        after
    }

    pub(super) fn text_at(&self, span: Span) -> String {
        let raw = span.slice(&self.body);
        let document = Document::read(raw).unwrap_or_default();
        let text = document.root(raw).and_then(|root| root.text());
        text.map(Into::into).unwrap_or_default()
    }
}

fn head_keys(read: &Conversation) -> Vec<Option<PartKey>> {
    read.system.iter().chain(&read.tools).map(|part| part.key).collect()
}

fn is_strict(body: &[u8]) -> bool {
    serde_json::from_slice::<serde::de::IgnoredAny>(body).is_ok()
}
