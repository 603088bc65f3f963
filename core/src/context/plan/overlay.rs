//! What is sent, where it differs from what the client sent: the overlay that the budget measures over.
//!
//! Parts are identified by their first byte in the body. Holds the running chain of what is forwarded,
//! without reasoning; bound reasoning depends on it (`docs/protocols.md` 1.5).

use foldhash::{HashMap, HashSet};

use crate::context::CompactionRecord;
use crate::dialect::{Chain, Conversation, Message, PartIndex, PartKey, Span};

/// What is forwarded before a reply.
#[derive(Clone, Copy, Debug)]
pub struct ForwardedPrefix {
    /// Its chain.
    pub chain: Chain,
    /// The newest reasoning in it: the model's next reasoning comes after it.
    pub thought: Option<PartKey>,
}

/// What is sent in place of what the client sent. The default changes nothing.
#[derive(Clone, Debug, Default)]
pub struct Overlay {
    /// Parts whose content was replaced: their new key and tokens.
    replaced: HashMap<usize, (PartKey, u32)>,
    /// Parts that are not sent.
    gone: HashSet<usize>,
    /// Reasoning inserted before a part, in order. The end of a message as key means after its last part.
    back: HashMap<usize, Vec<PartKey>>,
    /// Messages injected after a part, in order: key and tokens.
    injected: HashMap<usize, Vec<(PartKey, u32)>>,
    /// The newest reasoning that is sent.
    pub(super) thought: Option<PartKey>,
    /// The chain of what is forwarded, before each keyed part of the history and after the last.
    chains: Vec<Chain>,
    /// The provider is asked to clear old tool results, past this many input tokens.
    clears_past: Option<u64>,
    /// The summary that begins the history: key and tokens.
    summary: Option<(PartKey, u32)>,
}

impl Overlay {
    pub(super) fn new(chains: Vec<Chain>) -> Self {
        Self { chains, ..Self::default() }
    }

    pub(super) fn cleared_past(self, clears_past: Option<u64>) -> Self {
        Self { clears_past, ..self }
    }

    pub(crate) fn clears_past(&self) -> Option<u64> {
        self.clears_past
    }

    pub(crate) fn before(&self, index: usize) -> Chain {
        self.chains.get(index).copied().unwrap_or(Chain::START)
    }

    /// Whether nothing differs from what the client sent.
    pub fn is_original(&self) -> bool {
        let adds_nothing = self.back.is_empty() && self.injected.is_empty();
        self.replaced.is_empty() && self.gone.is_empty() && adds_nothing
    }

    pub(crate) fn summary(&self) -> Option<(PartKey, u32)> {
        self.summary
    }

    pub(super) fn summarize(&mut self, summary: &CompactionRecord, messages: &[Message]) {
        self.summary = Some((summary.key(), summary.tokens));
        let parts = messages.iter().flat_map(|message| &message.parts);
        self.gone.extend(parts.map(|part| part.span.start));
    }

    pub(crate) fn replaced(&self, span: Span) -> Option<(PartKey, u32)> {
        self.replaced.get(&span.start).copied()
    }

    pub(crate) fn is_gone(&self, span: Span) -> bool {
        self.gone.contains(&span.start)
    }

    pub(crate) fn back(&self, at: usize) -> &[PartKey] {
        // At the end of a message, it stands after its last part.
        self.back.get(&at).map(Vec::as_slice).unwrap_or_default()
    }

    /// Whether reasoning was put back.
    pub fn has_put_back(&self) -> bool {
        !self.back.is_empty()
    }

    pub(crate) fn all_back(&self) -> impl Iterator<Item = PartKey> + '_ {
        self.back.values().flatten().copied()
    }

    pub(crate) fn injected_after(&self, span: Span) -> &[(PartKey, u32)] {
        self.injected.get(&span.start).map(Vec::as_slice).unwrap_or_default()
    }

    /// The prefix that the reply's reasoning is bound to.
    pub fn prefix(&self) -> ForwardedPrefix {
        let chain = self.chains.last().copied().unwrap_or(Chain::START);
        ForwardedPrefix { chain, thought: self.thought }
    }

    pub(super) fn replace(&mut self, span: Span, key: PartKey, tokens: u32) {
        self.replaced.insert(span.start, (key, tokens));
    }

    pub(super) fn inject(&mut self, span: Span, key: PartKey, tokens: u32) {
        self.injected.entry(span.start).or_default().push((key, tokens));
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
        // Past the last part, it stands at the end of the message.
        let start = message.parts.get(before.part).map_or(message.span.end, |part| part.span.start);
        self.back.entry(start).or_default().push(key);
    }
}
