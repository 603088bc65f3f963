//! The invariants of rewriting, tested over tables, random conversations, real traffic and fuzz.
//!
//! After splicing, the body is JSON and reads as intended: a cut changes the text of one result, reasoning is
//! removed and put back only where it should be, and every key stays. Asserts; only tests may call it.

mod seen;

use super::{
    CutContent, ReasoningInsert, cut, cut_picture, has_content, is_object, put_back,
    restore_signature, take_out, within,
};
use crate::dialect::{Dialect, Part, PartIndex, PartKind, Role, Span};
use crate::wire::json::{Document, Kind};
use seen::{RequestSnapshot, agree, without};

/// How many changes were made and checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct InvariantCounts {
    /// Results that were cut.
    pub cut: usize,
    /// Pieces of reasoning that were put back.
    pub put_back: usize,
    /// Signatures that were put on parts.
    pub signatures_restored: usize,
    /// Pieces of reasoning that were removed.
    pub removed: usize,
}

impl std::ops::AddAssign for InvariantCounts {
    fn add_assign(&mut self, other: Self) {
        self.cut += other.cut;
        self.put_back += other.put_back;
        self.signatures_restored += other.signatures_restored;
        self.removed += other.removed;
    }
}

/// Fuzz: the bytes are read as each dialect, and every possible change keeps the invariants.
#[cfg(any(test, fuzzing))]
pub fn fuzz(bytes: &[u8]) {
    let dialects =
        [Dialect::Anthropic, Dialect::OpenaiChat, Dialect::OpenaiResponses, Dialect::Gemini];
    for dialect in dialects {
        one_by_one(dialect, "/", bytes);
        together(dialect, "/", bytes);
    }
}

/// Makes every change at every place of a request, each alone.
pub(super) fn one_by_one(dialect: Dialect, target: &str, body: &[u8]) -> InvariantCounts {
    let request = RequestSnapshot::read(dialect, target, body);
    let mut tried = InvariantCounts::default();
    for (message, of) in request.read.messages.iter().enumerate() {
        for at in (0..of.parts.len()).map(|part| PartIndex::new(message, part)) {
            tried.cut += usize::from(request.cut(at, false)) + usize::from(request.cut(at, true));
            request.cut_picture(at);
            tried.signatures_restored += usize::from(request.restores_signature(at));
        }
        tried.put_back += request.put_back_everywhere(message);
        let reasoning = request.reasoning(message);
        if reasoning.len() > 1 {
            for part in &reasoning {
                tried.removed += request.take_out(message, &[*part]);
            }
        }
        tried.removed += request.take_out(message, &reasoning);
    }
    tried
}

/// Cuts every result, puts reasoning back before all that the model said, and takes out all that
/// came with the request, in one splice.
pub(super) fn together(dialect: Dialect, target: &str, body: &[u8]) -> InvariantCounts {
    let request = RequestSnapshot::read(dialect, target, body);
    let mut counts = InvariantCounts::default();
    let mut edits = Vec::new();
    let mut removals = request.empty();
    let mut expected = request.snapshots();
    let mut vanished = Vec::new();
    for message in 0..request.read.messages.len() {
        for at in request.results(message) {
            edits.extend(cut(&request.read, &request.body, at, &NO_MEDIA));
            expected[request.number(at)].give_way();
            removals.extend(request.held(at));
            counts.cut += 1;
        }
        let mut has_back = false;
        if let Some(before) = request.first_answered(message) {
            let block = ReasoningInsert { before, raw: samples(dialect)[0] };
            let insertions = put_back(&request.read, &request.body, message, &[block]);
            has_back = !insertions.is_empty();
            counts.put_back += usize::from(has_back);
            edits.extend(insertions);
        }
        let reasoning = request.reasoning(message);
        let goes_whole = request.goes_whole(message, &reasoning);
        if goes_whole && has_back {
            continue; // nothing can stand in what goes
        }
        if request.is_second_of_two_thoughts(message) {
            continue;
        }
        if let Some(deletions) = take_out(&request.read, &request.body, message, &reasoning) {
            removals.extend(
                reasoning.iter().map(|part| request.number(PartIndex::new(message, *part))),
            );
            counts.removed += reasoning.len();
            edits.extend(deletions);
            if goes_whole {
                vanished.push(message);
            }
        }
    }
    for snapshot in &mut expected {
        for message in vanished.iter().rev() {
            snapshot.moves_up(*message);
        }
    }
    let edited = request.after(edits);
    let inserted = edited.those(|part| edited.is_inserted(part));
    // A sample that the request brought itself cannot be told from ours.
    if request.those(|part| request.is_inserted(part)).is_empty() {
        assert_eq!(inserted.len(), counts.put_back, "as much reasoning as was put back");
        let mut snapshots = without(edited.snapshots(), &[inserted, edited.empty()].concat());
        let expected = without(expected, &removals);
        for (snapshot, expected) in snapshots.iter_mut().zip(&expected) {
            if expected.bytes.is_none() {
                snapshot.give_way();
            }
        }
        agree(&request.ordered(snapshots), &request.ordered(expected));
    }
    counts
}

const NO_MEDIA: CutContent<'static> = CutContent { text: PLACEHOLDER, keep_media: false };

/// The text in place of a cut result.
const PLACEHOLDER: &str = "cut \"here\" \\ \u{1f409}\n";

/// Reasoning as a provider gives it, with a text or signature of our own.
fn samples(dialect: Dialect) -> &'static [&'static str] {
    match dialect {
        Dialect::Anthropic => &[
            r#"{"type":"thinking","thinking":"a sample","signature":"YSBzYW1wbGU="}"#,
            r#"{"type":"redacted_thinking","data":"YSBzYW1wbGU="}"#,
        ],
        Dialect::OpenaiChat => &[
            r#"{"reasoning_content":"a sample"}"#,
            r#"{"content":[{"type":"thinking","thinking":[{"type":"text","text":"a sample"}]}]}"#,
        ],
        Dialect::OpenaiResponses => &[
            r#"{"id":"rs_sample","type":"reasoning","summary":[],"encrypted_content":"YSBzYW1wbGU="}"#,
        ],
        Dialect::Gemini => &[
            r#"{"text":"a sample","thought":true}"#,
            r#"{"text":"","thoughtSignature":"YSBzYW1wbGU="}"#,
        ],
    }
}

/// The signature in samples.
const SIGNATURE: &str = "YSBzYW1wbGU=";

impl RequestSnapshot<'_> {
    fn is_inserted(&self, part: &Part) -> bool {
        part.kind == PartKind::Reasoning
            && self
                .literals(part)
                .iter()
                .any(|literal| matches!(*literal, br#""a sample""# | br#""YSBzYW1wbGU=""#))
    }

    /// Results of a message that can be cut, and stand in no other.
    fn results(&self, message: usize) -> Vec<PartIndex> {
        let mut previous = Span::default();
        let mut results = Vec::new();
        for (part, of) in self.read.messages[message].parts.iter().enumerate() {
            if of.content.is_some() && !within(of.span, previous) {
                previous = of.span;
                results.push(PartIndex::new(message, part));
            }
        }
        results
    }

    fn first_answered(&self, message: usize) -> Option<usize> {
        // The first part of a reply that is not reasoning: reasoning may be put back before it.
        let has_field = self.is(Dialect::OpenaiChat) && !self.reasoning(message).is_empty();
        let message = &self.read.messages[message];
        if message.role != Role::Assistant || has_field {
            return None;
        }
        message.parts.iter().position(|part| part.kind != PartKind::Reasoning)
    }

    fn is_second_of_two_thoughts(&self, message: usize) -> bool {
        // Both edits would remove the comma between them.
        self.is(Dialect::OpenaiResponses) && message == 1 && !self.reasoning(0).is_empty()
    }

    fn cut(&self, at: PartIndex, keep_media: bool) -> bool {
        let cutting = CutContent { keep_media, ..NO_MEDIA };
        let edits = cut(&self.read, &self.body, at, &cutting);
        assert_eq!(edits.is_empty(), self.part(at).content.is_none());
        if edits.is_empty() {
            return false;
        }
        let edited = self.after(edits);
        let number = self.number(at);
        let part = edited.part(at);
        let text: String = part.texts.iter().map(|span| edited.text_at(*span)).collect();
        assert_eq!(text, PLACEHOLDER);
        assert!(part.content.is_some(), "it may be cut again");
        let mut snapshots = edited.snapshots();
        let mut expected = self.snapshots();
        snapshots[number].give_way();
        expected[number].give_way();
        let removals = if keep_media { Vec::new() } else { self.held(at) };
        agree(&snapshots, &without(expected, &removals));
        true
    }

    fn cut_picture(&self, at: PartIndex) {
        // A picture becomes text of the same role, and nothing else changes.
        let edits = cut_picture(&self.read, &self.body, at, PLACEHOLDER);
        if edits.is_empty() {
            return;
        }
        let edited = self.after(edits);
        let number = self.number(at);
        let part = edited.part(at);
        assert_eq!(self.part(at).kind, PartKind::Image);
        assert_eq!(part.kind, PartKind::Text);
        assert_eq!(part.role, self.part(at).role);
        let text: String = part.texts.iter().map(|span| edited.text_at(*span)).collect();
        assert_eq!(text, PLACEHOLDER);
        agree(&without(edited.snapshots(), &[number]), &without(self.snapshots(), &[number]));
    }

    fn restores_signature(&self, at: PartIndex) -> bool {
        let Some(edit) = restore_signature(&self.read, &self.body, at, SIGNATURE) else {
            return false;
        };
        let edited = self.after(vec![edit]);
        assert_eq!(
            edited.part(at).signature.map(|signature| edited.text_at(signature)),
            Some(SIGNATURE.into())
        );
        assert_eq!(self.read.chains(), edited.read.chains());
        // An empty text with a signature is a thought, and does not end a run of text.
        if has_content(self.part(at)) {
            let mut snapshots = edited.snapshots();
            let mut expected = self.snapshots();
            assert_ne!(snapshots[self.number(at)].bytes, expected[self.number(at)].bytes);
            snapshots[self.number(at)].bytes = None;
            expected[self.number(at)].bytes = None;
            agree(&snapshots, &expected);
        }
        true
    }

    fn put_back_everywhere(&self, message: usize) -> usize {
        // Before every part of a message and after the last, each sample alone and all at once.
        let reply = &self.read.messages[message];
        let has_field = self.is(Dialect::OpenaiChat) && !self.reasoning(message).is_empty();
        if reply.role != Role::Assistant || has_field {
            return 0;
        }
        let mut count = 0;
        for before in 0..=reply.parts.len() {
            let raws = samples(self.dialect()).iter();
            let blocks: Vec<ReasoningInsert<'_>> =
                raws.map(|raw| ReasoningInsert { before, raw }).collect();
            for one in blocks.chunks(1) {
                count += self.put_back(message, one);
            }
            count += self.put_back(message, &blocks);
        }
        if self.is(Dialect::OpenaiChat) {
            for (index, part) in reply.parts.iter().enumerate() {
                let at = PartIndex::new(message, index);
                if part.kind == PartKind::Text && self.put_back_in_tags(at) {
                    count += 1;
                }
            }
        }
        count
    }

    fn put_back(&self, message: usize, blocks: &[ReasoningInsert<'_>]) -> usize {
        let edits = put_back(&self.read, &self.body, message, blocks);
        if edits.is_empty() {
            return 0;
        }
        let edited = self.after(edits);
        let inserted = edited.those(|part| edited.is_inserted(part));
        if !self.those(|part| self.is_inserted(part)).is_empty() {
            return blocks.len(); // ours cannot be distinguished from its own
        }
        assert_eq!(inserted.len(), blocks.len());
        let all_say = self.read.messages[message].parts.iter().all(has_content);
        if !self.is(Dialect::OpenaiChat) && all_say {
            let start =
                self.number(PartIndex::new(message, self.outermost(message, blocks[0].before)));
            assert!(
                inserted.iter().copied().eq(start..start + blocks.len()),
                "{inserted:?} at {start}"
            );
        }
        let snapshots = without(edited.snapshots(), &[inserted, edited.empty()].concat());
        agree(&snapshots, &without(self.snapshots(), &self.empty()));
        blocks.len()
    }

    /// The part that holds this one and that none holds; of an item, its first.
    fn outermost(&self, message: usize, part: usize) -> usize {
        let parts = &self.read.messages[message].parts;
        let Some(this) = parts.get(part) else { return part };
        if self.is(Dialect::OpenaiResponses) {
            return 0;
        }
        parts.iter().position(|other| within(this.span, other.span)).unwrap_or(part)
    }

    fn put_back_in_tags(&self, at: PartIndex) -> bool {
        // A text of the model with a thought in tags before it has the same key.
        let text: String = self.part(at).texts.iter().map(|span| self.text_at(*span)).collect();
        let tagged = format!("<think>a sample</think>\n\n{text}");
        let raw = serde_json::json!({ "content": tagged }).to_string();
        let edits = put_back(
            &self.read,
            &self.body,
            at.message,
            &[ReasoningInsert { before: 0, raw: &raw }],
        );
        if edits.is_empty() {
            return false;
        }
        let edited = self.after(edits);
        let mut snapshots = edited.snapshots();
        let mut expected = self.snapshots();
        for snapshot in snapshots.iter_mut().chain(&mut expected) {
            if snapshot.kind == PartKind::Text {
                snapshot.bytes = None;
            }
        }
        agree(&snapshots, &expected);
        true
    }

    fn take_out(&self, message: usize, parts: &[usize]) -> usize {
        let Some(edits) = take_out(&self.read, &self.body, message, parts) else { return 0 };
        let next = self.read.messages.get(1);
        if self.is(Dialect::OpenaiResponses)
            && message == 0
            && next.is_some_and(|next| next.role == Role::System)
        {
            return 0; // instructions that now come first are the system's
        }
        let edited = self.after(edits);
        let removals: Vec<usize> =
            parts.iter().map(|part| self.number(PartIndex::new(message, *part))).collect();
        let mut expected = without(self.snapshots(), &removals);
        if self.goes_whole(message, parts) {
            for snapshot in &mut expected {
                snapshot.moves_up(message);
            }
            agree(&edited.snapshots(), &expected);
            return parts.len();
        }
        agree(&self.ordered(edited.snapshots()), &self.ordered(expected));
        if !self.is(Dialect::OpenaiResponses) {
            edited.is_whole(message);
        }
        self.restore_removed(&edited, message, parts);
        parts.len()
    }

    fn goes_whole(&self, message: usize, parts: &[usize]) -> bool {
        self.is(Dialect::Anthropic) && parts.len() == self.read.messages[message].parts.len()
    }

    fn is_whole(&self, message: usize) {
        // A message that says something, in a list that is not empty.
        let message = &self.read.messages[message];
        assert!(message.parts.iter().any(has_content), "an empty message");
        let raw = message.span.slice(&self.body);
        let document = Document::read(raw).unwrap_or_default();
        let root = document.root(raw);
        for name in ["content", "parts"] {
            let list = root.and_then(|root| root.get(name));
            if let Some(list) = list.filter(|list| list.kind() == Kind::Array) {
                assert!(list.items().next().is_some(), "an empty list");
            }
        }
    }

    fn restore_removed(&self, edited: &Self, message: usize, parts: &[usize]) {
        // Only where it is all reasoning of the message, and has what it needs to come back.
        let is_reply = self.read.messages[message].role == Role::Assistant;
        let is_all = self.reasoning(message).len() == parts.len();
        let are_outermost = parts.iter().all(|part| self.outermost(message, *part) == *part);
        if !is_reply || !is_all || !are_outermost {
            return;
        }
        let raws: Vec<String> =
            parts.iter().filter_map(|part| self.raw(PartIndex::new(message, *part))).collect();
        if raws.len() < parts.len() || self.is(Dialect::OpenaiChat) && has_double(&raws) {
            return;
        }
        let is_last = edited.read.messages.len() == message;
        let place = if is_last { message.checked_sub(1) } else { Some(message) };
        let Some(place) = place else { return };
        let mut blocks = Vec::with_capacity(raws.len());
        for (index, raw) in raws.iter().enumerate() {
            // The blocks before it are not in the message any more.
            let before = if is_last { usize::MAX } else { parts[index] - index };
            blocks.push(ReasoningInsert { before, raw });
        }
        let restored = edited.after(put_back(&edited.read, &edited.body, place, &blocks));
        agree(&self.ordered(restored.snapshots()), &self.ordered(self.snapshots()));
    }

    /// Reasoning as the reply had it: the whole block, or the member that it is in Chat Completions.
    fn raw(&self, at: PartIndex) -> Option<String> {
        let part = self.part(at);
        let raw = std::str::from_utf8(part.span.slice(&self.body)).ok()?;
        let raw = match self.dialect() {
            Dialect::OpenaiChat if raw.starts_with('"') => format!("{{{raw}}}"),
            Dialect::OpenaiChat => format!("{{\"content\":[{raw}]}}"),
            Dialect::OpenaiResponses if part.signature.is_none() => return None,
            Dialect::Anthropic | Dialect::OpenaiResponses | Dialect::Gemini => raw.to_owned(),
        };
        if is_object(&raw) { Some(raw) } else { None }
    }
}

fn has_double(raws: &[String]) -> bool {
    // It would come back once.
    let names = raws.iter().filter_map(|raw| raw.strip_prefix("{\"")?.split('"').next());
    let mut fields: Vec<&str> = names.filter(|name| *name != "content").collect();
    let count = fields.len();
    fields.sort_unstable();
    fields.dedup();
    fields.len() < count
}
