//! A reply that came back: where its parts are, and which of its reasoning the client dropped.
//!
//! Also what is known of a client's own reasoning that belongs to no such reply. Both are found by `replies`.

use std::ops::Range;
use std::sync::Arc;

use crate::context::plan::PlanRequest;
use crate::context::signature::{is_signed_within, signature_key};
use crate::context::{ReasoningBlock, ReasoningRecord, Signature};
use crate::dialect::{Conversation, Dialect, Part, PartIndex, PartKey, PartKind, Role};
use crate::wire::json::text_of;

/// A reply that the client sent back and whose reasoning is recorded.
#[derive(Clone, Debug)]
pub struct ReturnedReply {
    /// The reasoning as the reply had it.
    pub reasoning: Arc<ReasoningRecord>,
    /// The place of each of its keyed parts; `None` for those that the client dropped.
    pub parts: Vec<Option<PartIndex>>,
    /// Its index among the known replies of the request.
    pub number: usize,
    /// The index of its first keyed part among all keyed parts of the history.
    pub index: usize,
    /// The places of the parts that belong to it, with a key or without: from the first to one past the last.
    pub(super) region: Range<PartIndex>,
    /// The client sends reasoning of another reply in its place: the request was repeated.
    pub is_replaced: bool,
}

/// A client's own reasoning that belongs to no reply which the client sent back.
#[derive(Clone, Debug)]
pub struct ForeignReasoning {
    /// Where the client sends it.
    pub at: PartIndex,
    /// The record of the reply that it is from. `None` if it is not known who made it.
    pub made: Option<Arc<ReasoningRecord>>,
}

/// Reasoning that a client left out of a reply.
#[derive(Clone, Debug, Default)]
pub(crate) struct DroppedReasoning<'r> {
    /// Blocks, in the order of the reply.
    pub blocks: Vec<&'r ReasoningBlock>,
    /// Signatures, with the part that each belongs to.
    pub signatures: Vec<(PartIndex, &'r str)>,
}

impl DroppedReasoning<'_> {
    pub(crate) fn is_nothing(&self) -> bool {
        self.blocks.is_empty() && self.signatures.is_empty()
    }

    pub(crate) fn is_partial(&self) -> bool {
        self.signatures.is_empty() && self.blocks.iter().all(|block| block.partial)
    }
}

impl ReturnedReply {
    /// Whether all that its reasoning came after is there: what its client dropped behind it, a text beside a call, is in no
    /// prefix of it.
    pub(crate) fn has_prefix(&self) -> bool {
        let precede = self.reasoning.blocks.iter().map(|block| block.before as usize).max();
        self.parts.iter().take(precede.unwrap_or(0)).all(Option::is_some)
    }

    /// Whether its client edited it: a part of the model's in its range is none of its own.
    pub(crate) fn is_edited(&self, conversation: &Conversation) -> bool {
        self.places(conversation).any(|at| {
            let part = conversation.part(at);
            let is_models =
                part.is_some_and(|part| part.role == Role::Assistant && part.key.is_some());
            is_models && !self.holds(at)
        })
    }

    pub(crate) fn is_partial(&self) -> bool {
        // Its stream broke off inside a block that a client may send back.
        self.reasoning.blocks.iter().any(|block| block.partial)
    }

    pub(crate) fn start(&self) -> PartIndex {
        self.parts.iter().flatten().next().copied().unwrap_or(self.region.start)
    }

    pub(super) fn last_part(&self) -> Option<PartIndex> {
        self.parts.iter().flatten().next_back().copied()
    }

    /// Whether a piece of reasoning with this key is its own. `record`: that of the reply which signed it.
    pub(super) fn made(&self, record: Option<&Arc<ReasoningRecord>>, key: PartKey) -> bool {
        record.is_some_and(|record| Arc::ptr_eq(record, &self.reasoning))
            || self.reasoning.blocks.iter().any(|block| signature_key(&block.raw) == Some(key))
    }

    pub(crate) fn spans(&self, at: PartIndex) -> bool {
        self.region.contains(&at)
    }

    pub(crate) fn holds(&self, at: PartIndex) -> bool {
        self.parts.iter().flatten().any(|part| *part == at)
    }

    /// The reasoning that the client dropped. What it sends is left as it is: one signature stands for its
    /// block, and in dialects with one reasoning field, that field stands for all.
    pub(crate) fn missing(&self, request: &PlanRequest<'_>) -> DroppedReasoning<'_> {
        if self.is_replaced {
            return DroppedReasoning::default();
        }
        let thoughts: Vec<&Part> = self
            .region(request.conversation)
            .into_iter()
            .filter(|part| part.kind == PartKind::Reasoning)
            .collect();
        let one_field = request.conversation.dialect == Dialect::OpenaiChat;
        let mut dropped = DroppedReasoning::default();
        for block in &self.reasoning.blocks {
            let is_missing = if one_field {
                // Some clients keep the text and not the signature, without which it is worth nothing.
                let is_bare = thoughts.iter().all(|part| part.signature.is_none());
                thoughts.is_empty() || is_bare && is_signed_within(&block.raw)
            } else {
                !thoughts.iter().any(|part| may_be_block(part, request.body, &block.raw))
            };
            if is_missing {
                dropped.blocks.push(block);
            }
        }
        for signature in &self.reasoning.signatures {
            let Some(at) = self.signed(request, signature) else { continue };
            if request.part(at).is_some_and(|part| part.signature.is_none()) {
                dropped.signatures.push((at, &*signature.value));
            }
        }
        dropped
    }

    /// The part that a signature belongs to. `None` if that part did not come back, or if it is text that
    /// came back split differently.
    fn signed(&self, request: &PlanRequest<'_>, signature: &Signature) -> Option<PartIndex> {
        let keyed = self.parts.get(signature.part as usize).copied().flatten()?;
        if request.part(keyed)?.kind != PartKind::Text {
            return Some(keyed);
        }
        // Adjacent texts have one key, at the last of them.
        let mut run: Vec<(PartIndex, usize)> = Vec::new();
        for at in self.places(request.conversation).take_while(|at| *at <= keyed) {
            let Some(part) = request.part(at) else { continue };
            if at != keyed && part.key.is_some() {
                run.clear();
            } else if let Some(bytes) = text_bytes(part, request.body) {
                run.push((at, bytes));
            }
        }
        let length = run.iter().map(|(_, bytes)| bytes).sum();
        let piece = signature.piece.map_or(0..length, |(start, end)| start as usize..end as usize);
        let mut start = 0;
        for (at, bytes) in run {
            let end = start + bytes;
            if bytes > 0 && (start..end) == piece {
                return Some(at);
            }
            start = end;
        }
        None
    }

    /// The part that a block has to be inserted before. `None` if the block led to a call that ran at the
    /// provider and did not come back.
    pub(crate) fn place(
        &self,
        conversation: &Conversation,
        thought: &ReasoningBlock,
    ) -> Option<PartIndex> {
        let index = self.parts.len().min(thought.before as usize);
        let (earlier, later) = self.parts.split_at(index);
        let previous = earlier.iter().flatten().next_back().copied();
        if !thought.leads {
            let following = later.iter().flatten().next().copied();
            return following.or(previous.map(PartIndex::after));
        }
        // Alone, a block that led to a call at the provider would be refused (`docs/protocols.md` 3.2).
        let mut places = self.places(conversation);
        if let Some(previous) = previous {
            places.find(|at| *at == previous)?;
        }
        let mut calls = places.filter(|at| conversation.part(*at).is_some_and(is_hosted));
        calls.nth(thought.hosted as usize)
    }

    pub(in crate::context) fn places(
        &self,
        conversation: &Conversation,
    ) -> impl Iterator<Item = PartIndex> {
        let Range { start, end } = self.region;
        let messages = conversation.messages.iter().enumerate().skip(start.message);
        let messages = messages.take_while(move |(index, _)| *index <= end.message);
        messages.flat_map(move |(index, message)| {
            let from = if index == start.message { start.part } else { 0 };
            let to = if index == end.message { end.part } else { message.parts.len() };
            (from..to).map(move |part| PartIndex::new(index, part))
        })
    }

    pub(in crate::context) fn region<'c>(&self, conversation: &'c Conversation) -> Vec<&'c Part> {
        let places = self.places(conversation);
        let parts = places.filter_map(|at| conversation.part(at));
        parts.filter(|part| part.role == Role::Assistant).collect()
    }
}

/// Whether a part of the client's may be this block: with its signature, or without any.
fn may_be_block(part: &Part, body: &[u8], raw: &str) -> bool {
    let Some(signature) = part.signature else { return true };
    let literal = signature.slice(body);
    let unquoted = literal.get(1..literal.len().saturating_sub(1));
    // Mostly it is there to the letter. Clients may write it otherwise (`docs/protocols.md` 10.8).
    unquoted.is_some_and(|unquoted| memchr::memmem::find(raw.as_bytes(), unquoted).is_some())
        || part.signature_key.is_some() && part.signature_key == signature_key(raw)
}

fn is_hosted(part: &Part) -> bool {
    // What ran there has no key, and is neither text nor reasoning.
    let is_content = matches!(part.kind, PartKind::Text | PartKind::Reasoning);
    part.role == Role::Assistant && part.key.is_none() && !is_content
}

fn text_bytes(part: &Part, body: &[u8]) -> Option<usize> {
    if part.kind != PartKind::Text {
        return None;
    }
    let texts = part.texts.iter();
    Some(texts.map(|text| text_of(text.slice(body)).map_or(0, |text| text.len())).sum())
}
