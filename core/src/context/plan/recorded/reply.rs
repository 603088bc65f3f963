//! A reply that came back: where its parts are, and which of its reasoning the client dropped.
//!
//! Also what is known of a client's own reasoning that belongs to no such reply. Both are found by `replies`.

use std::ops::Range;
use std::sync::Arc;

use crate::context::plan::PlanRequest;
use crate::context::signature::is_signed_within;
use crate::context::{ReasoningBlock, ReasoningRecord, Signature};
use crate::dialect::{Conversation, Dialect, Part, PartIndex, PartKind, Role};
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
    /// Whether the client dropped nothing.
    pub(crate) fn is_nothing(&self) -> bool {
        self.blocks.is_empty() && self.signatures.is_empty()
    }

    /// Whether the client dropped only blocks that may be incomplete.
    pub(crate) fn is_partial(&self) -> bool {
        self.signatures.is_empty() && self.blocks.iter().all(|block| block.partial)
    }
}

impl ReturnedReply {
    /// Whether all its keyed parts came back.
    pub(crate) fn is_whole(&self) -> bool {
        self.parts.iter().all(Option::is_some)
    }

    /// Whether its client edited it: a part of the model's in its range is none of its own.
    pub(crate) fn is_edited(&self, conversation: &Conversation) -> bool {
        let is_other = |at: PartIndex| {
            let part = conversation.part(at);
            part.is_some_and(|part| part.role == Role::Assistant && part.key.is_some())
                && !self.holds(at)
        };
        self.places(conversation).any(is_other)
    }

    /// Whether its stream broke off inside a reasoning block that a client may send back.
    pub(crate) fn is_partial(&self) -> bool {
        self.reasoning.blocks.iter().any(|block| block.partial)
    }

    /// The place of its first part.
    pub(crate) fn start(&self) -> PartIndex {
        self.parts.iter().flatten().next().copied().unwrap_or(self.region.start)
    }

    /// Whether a place is within it.
    pub(crate) fn spans(&self, at: PartIndex) -> bool {
        self.region.contains(&at)
    }

    /// Whether one of its keyed parts is at this place.
    pub(crate) fn holds(&self, at: PartIndex) -> bool {
        self.parts.iter().flatten().any(|part| *part == at)
    }

    /// The reasoning that the client dropped. What it sends is left as it is: one signature stands for its
    /// block, and in dialects with one reasoning field, that field stands for all.
    pub(crate) fn missing(&self, request: &PlanRequest<'_>) -> DroppedReasoning<'_> {
        if self.is_replaced {
            return DroppedReasoning::default();
        }
        let sent: Vec<&Part> = self.region(request.conversation);
        let is_reasoning = |part: &&&Part| part.kind == PartKind::Reasoning;
        let sent: Vec<&Part> = sent.iter().filter(is_reasoning).copied().collect();
        let one_field = request.conversation.dialect == Dialect::OpenaiChat;
        let is_there = |raw: &str| {
            sent.iter().any(|part| match part.signature {
                Some(signature) => {
                    let literal = signature.slice(request.body);
                    let unquoted = literal.get(1..literal.len().saturating_sub(1));
                    unquoted.is_some_and(|unquoted| {
                        memchr::memmem::find(raw.as_bytes(), unquoted).is_some()
                    })
                }
                None => true,
            })
        };
        let blocks = self.reasoning.blocks.iter();
        let blocks = blocks.filter(|block| match one_field {
            // Some clients keep the text and not the signature, without which it is worth nothing.
            true => {
                let is_bare = sent.iter().all(|part| part.signature.is_none());
                sent.is_empty() || is_bare && is_signed_within(&block.raw)
            }
            false => !is_there(&block.raw),
        });
        let signatures = self.reasoning.signatures.iter().filter_map(|signature| {
            let at = self.signed(request, signature)?;
            let is_bare = request.part(at).is_some_and(|part| part.signature.is_none());
            is_bare.then_some((at, &*signature.value))
        });
        DroppedReasoning { blocks: blocks.collect(), signatures: signatures.collect() }
    }

    /// The part that a signature belongs to. `None` if that part did not come back, or if it is text that
    /// came back split differently, so that the signature does not fit.
    fn signed(&self, request: &PlanRequest<'_>, signature: &Signature) -> Option<PartIndex> {
        let keyed = self.parts.get(signature.part as usize).copied().flatten()?;
        if request.part(keyed)?.kind != PartKind::Text {
            return Some(keyed);
        }
        let before: Vec<_> =
            self.places(request.conversation).take_while(|at| *at <= keyed).collect();
        let is_of_run = |at: &&PartIndex| {
            **at == keyed || request.part(**at).is_some_and(|part| part.key.is_none())
        };
        let mut run: Vec<(PartIndex, usize)> = before
            .iter()
            .rev()
            .take_while(is_of_run)
            .filter_map(|at| Some((*at, text_bytes(request.part(*at)?, request.body)?)))
            .collect();
        run.reverse();
        let whole = run.iter().map(|(_, bytes)| bytes).sum();
        let piece = signature.piece.map_or((0, whole), |(from, to)| (from as usize, to as usize));
        let mut ends = 0;
        run.into_iter().find_map(|(at, bytes)| {
            let begins = ends;
            ends += bytes;
            (bytes > 0 && (begins, ends) == piece).then_some(at)
        })
    }

    /// The part that a block has to be inserted before. `None` if the block led to a call that ran at the
    /// provider and did not come back: alone, the block would be refused (`docs/protocols.md` 3.2).
    pub(crate) fn place(
        &self,
        conversation: &Conversation,
        thought: &ReasoningBlock,
    ) -> Option<PartIndex> {
        let before = self.parts.len().min(thought.before as usize);
        let (earlier, later) = self.parts.split_at(before);
        let after = earlier.iter().flatten().next_back().copied();
        if !thought.leads {
            let last = after.map(PartIndex::after);
            return later.iter().flatten().next().copied().or(last);
        }
        let all: Vec<PartIndex> = self.places(conversation).collect();
        let start = match after {
            Some(after) => all.iter().position(|at| *at == after)? + 1,
            None => 0,
        };
        let ran = all[start..].iter().filter(|at| conversation.part(**at).is_some_and(is_hosted));
        ran.copied().nth(thought.hosted as usize)
    }

    /// The places of all parts within it.
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

    /// Every part of the model within the reply's range.
    pub(in crate::context) fn region<'c>(&self, conversation: &'c Conversation) -> Vec<&'c Part> {
        let places = self.places(conversation);
        let parts = places.filter_map(|at| conversation.part(at));
        parts.filter(|part| part.role == Role::Assistant).collect()
    }
}

/// Whether a part of the model ran at the provider: it has no key, and is neither text nor reasoning.
fn is_hosted(part: &Part) -> bool {
    let is_content = matches!(part.kind, PartKind::Text | PartKind::Reasoning);
    part.role == Role::Assistant && part.key.is_none() && !is_content
}

/// Length of a text part's text, bytes; `None` for other parts.
fn text_bytes(part: &Part, body: &[u8]) -> Option<usize> {
    let bytes =
        part.texts.iter().map(|text| text_of(text.slice(body)).map_or(0, |text| text.len()));
    (part.kind == PartKind::Text).then(|| bytes.sum())
}
