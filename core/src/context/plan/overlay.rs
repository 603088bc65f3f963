//! What is sent, as far as it is not what came: the overlay that the budget measures over.
//!
//! Parts are named by where they begin in the body. Holds the running chain of what is forwarded,
//! reasoning left out, which bound reasoning rests on (`docs/protocols.md` 1.5).

use foldhash::{HashMap, HashSet};

use crate::context::CompactionRecord;
use crate::dialect::{Chain, Conversation, Message, PartIndex, PartKey, Span};

/// What is sent in place of what came. The default: nothing else.
#[derive(Clone, Debug, Default)]
pub struct Overlay {
    /// Parts whose content gave way: who they are now, and what they cost.
    replaced: HashMap<usize, (PartKey, u32)>,
    /// Parts that are gone.
    gone: HashSet<usize>,
    /// Reasoning that stands before a part, in order; by the message's end: after the last.
    back: HashMap<usize, Vec<PartKey>>,
    /// Words that were said after a part, in order, and what they cost.
    said: HashMap<usize, Vec<(PartKey, u32)>>,
    /// The newest reasoning that is sent.
    pub(super) thought: Option<PartKey>,
    /// The chain of what is forwarded, before each keyed part of the history and after the last.
    chains: Vec<Chain>,
    /// The provider is asked to clear what is old, past so many input tokens.
    clears_past: Option<u64>,
    /// A summary that begins the history, and what it costs.
    summary: Option<(PartKey, u32)>,
}

impl Overlay {
    /// Nothing but what came, with these chains.
    pub(super) fn of(chains: Vec<Chain>) -> Self {
        Self { chains, ..Self::default() }
    }

    /// The same, of which the provider clears what is old.
    pub(super) fn cleared_past(self, clears_past: Option<u64>) -> Self {
        Self { clears_past, ..self }
    }

    /// Input tokens past which the provider was asked to clear what is old.
    pub fn clears_past(&self) -> Option<u64> {
        self.clears_past
    }

    /// The chain of what is forwarded before the keyed part of this number.
    pub fn before(&self, index: usize) -> Chain {
        self.chains.get(index).copied().unwrap_or(Chain::START)
    }

    /// Whether it is what came.
    pub fn is_as_it_came(&self) -> bool {
        let adds_nothing = self.back.is_empty() && self.said.is_empty();
        self.replaced.is_empty() && self.gone.is_empty() && adds_nothing
    }

    /// The summary that begins the history in place of what is gone there, and its tokens.
    pub fn summary(&self) -> Option<(PartKey, u32)> {
        self.summary
    }

    /// A summary takes the place of these messages.
    pub(super) fn begins_with(&mut self, summary: &CompactionRecord, gone: &[Message]) {
        self.summary = Some((summary.key(), summary.tokens));
        self.gone.extend(gone.iter().flat_map(|it| &it.parts).map(|part| part.span.start));
    }

    /// What a part is now, where its content gave way.
    pub fn replaced(&self, span: Span) -> Option<(PartKey, u32)> {
        self.replaced.get(&span.start).copied()
    }

    /// Whether a part is not sent.
    pub fn is_gone(&self, span: Span) -> bool {
        self.gone.contains(&span.start)
    }

    /// Reasoning that was put back at a place: before a part, or at the end of a message.
    pub fn back(&self, at: usize) -> &[PartKey] {
        self.back.get(&at).map(Vec::as_slice).unwrap_or_default()
    }

    /// Every piece of reasoning that was put back.
    pub fn all_back(&self) -> impl Iterator<Item = PartKey> + '_ {
        self.back.values().flatten().copied()
    }

    /// Words that were said after a part.
    pub fn said_after(&self, span: Span) -> &[(PartKey, u32)] {
        self.said.get(&span.start).map(Vec::as_slice).unwrap_or_default()
    }

    /// The newest reasoning that is sent: what is made next stands after it.
    pub fn thought(&self) -> Option<PartKey> {
        self.thought
    }

    /// The chain of all that is forwarded.
    pub fn chain(&self) -> Chain {
        self.chains.last().copied().unwrap_or(Chain::START)
    }

    pub(super) fn replace(&mut self, span: Span, key: PartKey, tokens: u32) {
        self.replaced.insert(span.start, (key, tokens));
    }

    pub(super) fn say(&mut self, span: Span, key: PartKey, tokens: u32) {
        self.said.entry(span.start).or_default().push((key, tokens));
    }

    pub(super) fn remove(&mut self, span: Span) {
        self.gone.insert(span.start);
    }

    pub(super) fn put_back(
        &mut self,
        conversation: &Conversation,
        before: PartIndex,
        key: PartKey,
    ) {
        let Some(message) = conversation.messages.get(before.message) else { return };
        let at = message.parts.get(before.part).map_or(message.span.end, |part| part.span.start);
        self.back.entry(at).or_default().push(key);
    }
}
