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
    /// Adapts it to the removal of an earlier message.
    pub(super) fn moves_up(&mut self, gone: usize) {
        self.message -= usize::from(self.message > gone);
    }

    /// Marks its text as replaced, and with it its key.
    pub(super) fn give_way(&mut self) {
        (self.key, self.bytes) = (None, None);
    }
}

/// Asserts that two lists of parts are equal; shows the first that differs.
pub(super) fn agree(snapshots: &[PartSnapshot], expected: &[PartSnapshot]) {
    let differing = snapshots.iter().zip(expected).position(|(one, two)| one != two);
    let at = differing.unwrap_or(snapshots.len().min(expected.len()));
    assert_eq!(snapshots.get(at), expected.get(at), "part {at}");
}

/// The parts without those at these indexes.
pub(super) fn without(mut snapshots: Vec<PartSnapshot>, gone: &[usize]) -> Vec<PartSnapshot> {
    let mut at = 0..;
    snapshots.retain(|_| at.next().is_none_or(|at| !gone.contains(&at)));
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

    /// The index of a part among all parts of the history.
    pub(super) fn number(&self, at: PartIndex) -> usize {
        let before = self.read.messages[..at.message].iter().map(|message| message.parts.len());
        before.sum::<usize>() + at.part
    }

    /// The indexes of the parts inside another.
    pub(super) fn held(&self, at: PartIndex) -> Vec<usize> {
        let parts = &self.read.messages[at.message].parts;
        let inner =
            parts[at.part + 1..].iter().take_while(|it| within(it.span, parts[at.part].span));
        (self.number(at) + 1..).take(inner.count()).collect()
    }

    /// The indexes of the parts that match.
    pub(super) fn those(&self, holds: impl Fn(&Part) -> bool) -> Vec<usize> {
        let parts = self.read.parts().enumerate().filter(|(_, part)| holds(part));
        parts.map(|(at, _)| at).collect()
    }

    /// The indexes of empty texts: if a string becomes a list, they have no block.
    pub(super) fn empty(&self) -> Vec<usize> {
        self.those(|part| !has_content(part))
    }

    /// The indexes of reasoning within a message.
    pub(super) fn reasoning(&self, message: usize) -> Vec<usize> {
        let parts = self.read.messages[message].parts.iter().enumerate();
        let reasoning = parts.filter(|(_, part)| part.kind == PartKind::Reasoning);
        reasoning.map(|(at, _)| at).collect()
    }

    /// Its text, signature and data as in the body.
    pub(super) fn literals(&self, part: &Part) -> Vec<&[u8]> {
        let data = part.media.iter().filter_map(|media| media.data);
        let spans = part.texts.iter().copied().chain(part.signature).chain(data);
        spans.map(|span| span.of(&self.body)).collect()
    }

    /// All parts of the history.
    pub(super) fn snapshots(&self) -> Vec<PartSnapshot> {
        let items = self.is(Dialect::OpenaiResponses);
        let messages = self.read.messages.iter().enumerate();
        let parts = messages.flat_map(|(at, of)| of.parts.iter().map(move |part| (at, part)));
        let snapshot = |(message, part): (usize, &Part)| PartSnapshot {
            message: if items { 0 } else { message },
            kind: part.kind,
            role: part.role,
            id: part.id.clone(),
            name: part.name.clone(),
            is_error: part.is_error,
            key: part.key,
            bytes: Some(PartKey::of_bytes(&self.literals(part).join(&0))),
        };
        parts.map(snapshot).collect()
    }

    /// In Chat Completions, ignores what has no meaning there: the order of reasoning among the parts, and
    /// which of several members is read.
    pub(super) fn ordered(&self, mut snapshots: Vec<PartSnapshot>) -> Vec<PartSnapshot> {
        if self.is(Dialect::OpenaiChat) {
            snapshots
                .sort_by_key(|snapshot| (snapshot.kind == PartKind::Reasoning, snapshot.message));
            let reasoning =
                snapshots.iter_mut().filter(|snapshot| snapshot.kind == PartKind::Reasoning);
            reasoning.for_each(|snapshot| snapshot.bytes = None);
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
        let (mut at, mut done) = (0, 0);
        for edit in edits {
            let kept = &self.body[done..edit.at.start];
            assert!(body[at..].starts_with(kept), "a byte outside the edits");
            at += kept.len() + edit.with.len();
            done = edit.at.end;
        }
        assert!(body[at..] == self.body[done..], "a byte outside the edits");
        let is_strict = |body: &[u8]| serde_json::from_slice::<serde::de::IgnoredAny>(body).is_ok();
        assert!(Document::read(&body).is_ok() || Document::read(&self.body).is_err(), "no JSON");
        assert!(is_strict(&body) || !is_strict(&self.body), "no longer strict JSON");
        let after = Self::read(self.dialect(), self.target, &body);
        let head = |read: &Conversation| -> Vec<Option<PartKey>> {
            read.system.iter().chain(&read.tools).map(|part| part.key).collect()
        };
        assert_eq!(head(&after.read), head(&self.read));
        after
    }

    /// The text of a string literal.
    pub(super) fn text_at(&self, span: Span) -> String {
        let raw = span.of(&self.body);
        let document = Document::read(raw).unwrap_or_default();
        let text = document.root(raw).and_then(|root| root.text());
        text.map(Into::into).unwrap_or_default()
    }
}
