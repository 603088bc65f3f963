//! Facts: the records that a conversation's memory is made of. Each is about a part of the conversation, by a
//! hash of its content, and is written once.
//!
//! Only records and their keys. They are decided by `prune`, `reasoning`, `repair`, `compact` and `inject`,
//! remembered by `ledger`, and replayed by `plan`.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{DecisionEpoch, DecisionReason, InjectedMessage, QueuedMessage, Turn, is_default};
use crate::context::policy::SummaryAuthor;
use crate::context::signature::signature_key;
use crate::context::trim::{self, TrimRange};
use crate::context::{ExchangeId, Millis, ThreadId};
use crate::dialect::repair::Repair;
use crate::dialect::{Chain, Part, PartKey, Usage};

/// Reasoning as it was received, kept for clients that drop it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReasoningRecord {
    /// The chain after the reply that the reasoning belongs to.
    pub after: Chain,
    /// When the exchange ended.
    pub at: Millis,
    /// What was forwarded before it, system prompt and tools included: its prefix ([`Overlay`](crate::context::plan::Overlay)).
    pub prefix: Chain,
    /// The newest reasoning before it: bound reasoning is bound to the order of reasoning, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<PartKey>,
    /// The name of the model that made it.
    pub model: Box<str>,
    /// The configured upstream's name.
    pub upstream: Box<str>,
    /// Raw blocks, in order.
    pub blocks: Vec<ReasoningBlock>,
    /// Signatures on parts of the reply (Gemini).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signatures: Vec<Signature>,
    /// The reply's keyed parts, in order.
    #[serde(default)]
    pub parts: Vec<PartKey>,
    /// The keys by which the reply is found if the client changed what comes before it
    /// (`ledger::anchor_keys`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub anchor_keys: Vec<PartKey>,
}

impl ReasoningRecord {
    /// The key that it is stored under.
    pub fn key(&self) -> u128 {
        // A request that is sent twice may be answered twice with the same parts: the reasoning tells
        // the answers apart.
        let values = self.signatures.iter().map(|signature| &signature.value);
        let pieces = self.blocks.iter().map(|block| &block.raw).chain(values);
        pieces.map(|piece| PartKey::of_bytes(piece.as_bytes())).fold(self.after, Chain::then).0
    }

    /// The keys of its signed blocks, and of its signatures on other parts, as the client's own have them.
    pub fn signature_keys(&self) -> impl Iterator<Item = PartKey> {
        let on_parts = self.signatures.iter().map(|signed| PartKey::of_signature(&signed.value));
        self.blocks.iter().filter_map(|block| signature_key(&block.raw)).chain(on_parts)
    }
}

/// One block of reasoning, and its place in its reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReasoningBlock {
    /// How many of the reply's keyed parts come before it.
    pub before: u32,
    /// How many parts without a key (calls that ran at the provider) are between the last keyed part and it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub hosted: u32,
    /// Whether such a part came directly after it: the block led to it, and has to stay before it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leads: bool,
    /// The block, as it was received.
    pub raw: Box<str>,
    /// The stream broke off inside it. A client may send it back, but whether it is whole is unknown.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
}

/// A signature on a part of a reply (Gemini).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signature {
    /// The index of the keyed part.
    pub part: u32,
    /// The bytes of the signature, as they were received.
    pub value: Box<str>,
    /// If the part is a text that came in several pieces: the range of the signed piece, bytes of the whole
    /// text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub piece: Option<(u32, u32)>,
}

/// A tool result whose content was replaced. Its block, id and place stay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cut {
    /// The key of the decision: which result it is about.
    pub about: PartKey,
    /// The part's key, if decisions about it are stored under its position (Gemini, counted ids).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<PartKey>,
    /// When it was decided.
    pub at: Millis,
    /// The exchange that decided it.
    pub exchange: ExchangeId,
    /// What stands in its place.
    #[serde(flatten)]
    pub content: Replacement,
    /// Whether its images and documents are kept.
    pub keep_media: bool,
    /// What it cost before, tokens.
    pub was: u32,
    /// What it costs now, tokens.
    pub tokens: u32,
    /// Why it was decided.
    pub why: DecisionReason,
    /// Decided in shadow mode: it was never sent, and is repeated in shadow mode alone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shadow: bool,
    /// A new decision after this refusal, stored beside the earlier one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<DecisionEpoch>,
}

impl Cut {
    /// The key of the part as it is sent with this cut, as in sketches.
    pub fn sent_key(&self) -> PartKey {
        self.part.unwrap_or(self.about).cut()
    }

    /// Whether a result was trimmed when it was first sent, because it was too large.
    pub fn is_trim(&self) -> bool {
        self.why == DecisionReason::TooLarge
    }
}

/// What replaces a tool result's content.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Replacement {
    /// This text stands in place of the content.
    Text(Box<str>),
    /// The beginning and the end of the original text.
    Trim(TrimRange),
}

impl Replacement {
    pub(in crate::context) fn text(&self, part: &Part, body: &[u8]) -> Option<Cow<'_, str>> {
        match self {
            Self::Text(text) => Some(Cow::Borrowed(text)),
            // The text may differ from the one that was decided on: then nothing is cut.
            Self::Trim(trim) => trim.apply(&trim::text(part, body), part.kind).map(Cow::Owned),
        }
    }
}

/// A decision about reasoning; it is repeated from then on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReasoningDecision {
    /// The chain after the reply ([`ReasoningRecord::after`]), or the key of the part that it is about.
    pub about: PartKey,
    /// When it was decided.
    pub at: Millis,
    /// The exchange that decided it.
    pub exchange: ExchangeId,
    /// What is done with the reasoning.
    pub does: ReasoningAction,
    /// Why it was decided.
    pub why: DecisionReason,
    /// Decided in shadow mode.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shadow: bool,
    /// A new decision after this refusal, as in [`Cut`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<DecisionEpoch>,
}

/// What is done with reasoning.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReasoningAction {
    /// The recorded reasoning is put back.
    PutBack,
    /// The reasoning is lost; this replaces it, for providers that require some.
    StandIn(Box<str>),
    /// The reasoning that the client sends is removed.
    Remove,
}

/// A change of a request that answers a refusal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RepairDecision {
    /// The key that it is stored under.
    pub about: PartKey,
    /// When it was decided.
    pub at: Millis,
    /// The exchange that decided it.
    pub exchange: ExchangeId,
    /// The model that refused, as the client named it.
    pub model: Box<str>,
    /// The configured name of the upstream that refused.
    pub upstream: Box<str>,
    /// The edit, repeated from then on.
    #[serde(flatten)]
    pub repair: Repair,
    /// Decided again after this refusal, as in [`Cut`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<DecisionEpoch>,
}

/// A summary that replaces the beginning of a history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CompactionRecord {
    /// The chain at the cut: of everything before the first message that stays, as the client sends it.
    pub about: Chain,
    /// The keyed parts before the cut, nearest first. They find the cut if the client changed something
    /// before it.
    pub near: Vec<PartKey>,
    /// Whether these parts are unlikely to occur elsewhere in the conversation.
    pub is_own: bool,
    /// When it was written, or first used.
    pub at: Millis,
    /// The exchange that it was written for, or that first used it.
    pub exchange: ExchangeId,
    /// The messages that replace those before the cut, as JSON for the body.
    pub raw: Box<str>,
    /// Tokens of the replaced messages, estimated.
    pub was: u64,
    /// Tokens of the summary, estimated.
    pub tokens: u32,
    /// Who wrote it.
    pub by: SummaryAuthor,
    /// Why it was decided.
    pub why: DecisionReason,
    /// The configured upstream's name.
    pub upstream: Box<str>,
    /// The model that was asked to write it.
    pub model: Box<str>,
    /// Reported usage for writing it. This is overhead, and in no turn's usage.
    #[serde(default)]
    pub spent: Usage,
    /// What that cost at the prices of its time, US dollars; `None` if the price was not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dollars: Option<f64>,
    /// How long writing it took, ms.
    #[serde(default)]
    pub took: Millis,
    /// What the provider had read when it wrote this: reasoning after the cut that is bound to that stays
    /// valid (`docs/protocols.md` 1.5.7). Only for summaries that a provider wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carries: Option<ForwardedHistory>,
    /// Decided in shadow mode.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shadow: bool,
    /// Written or decided again after this refusal, as in [`Cut`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<DecisionEpoch>,
}

impl CompactionRecord {
    pub(in crate::context) fn key(&self) -> PartKey {
        PartKey::of_bytes(self.raw.as_bytes())
    }

    /// The key that it is stored under: one per cut. A provider's own summary is void for another model, so
    /// it is stored per cut and model.
    pub fn address(&self) -> Chain {
        match self.by {
            SummaryAuthor::Summary => self.about,
            SummaryAuthor::Provider => self.about.then(PartKey::of_bytes(self.model.as_bytes())),
        }
    }

    pub(in crate::context) fn is_for(&self, model: Option<&str>) -> bool {
        // A provider's own summary is opaque: only the model that wrote it can read it.
        self.by == SummaryAuthor::Summary || model == Some(&*self.model)
    }
}

/// The history before a cut, as it was forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForwardedHistory {
    /// The chain of system prompt and tools.
    pub head: Chain,
    /// The chain of everything that was forwarded before the cut.
    pub sent: Chain,
}

/// A rewrite was refused. The decisions made until then are not repeated in requests that continue the
/// refused one, nor in those that continue the same turn on its thread. Other branches keep theirs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Suspension {
    /// The exchange that was refused.
    pub exchange: ExchangeId,
    /// The thread of the refused request.
    pub thread: ThreadId,
    /// The exchange that it continues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<ExchangeId>,
    /// When it was refused.
    pub at: Millis,
}

/// Decisions that were made for one request and refused with it: they are void everywhere. Earlier decisions
/// stay, because reasoning may depend on them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Revocation {
    /// The exchange that was refused.
    pub exchange: ExchangeId,
    /// The thread of the refused request.
    pub thread: ThreadId,
    /// The exchange that it continues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<ExchangeId>,
    /// When it was refused.
    pub at: Millis,
    /// The keys that the decisions are stored under.
    pub about: Vec<PartKey>,
    /// When they may be made again.
    pub renewal: Renewal,
}

/// When revoked decisions may be made again. Once only: what is refused twice is not tried a third time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Renewal {
    /// With the next request: what was learned from the refusal prevents another.
    Next,
    /// Once the cache is cold. Until then, nothing else is decided either in requests that continue that one.
    Cold,
    /// Never: it may have caused the refusal.
    Never,
}

impl Revocation {
    /// The key that it is stored under.
    pub fn key(&self) -> u128 {
        // A request may be refused several times, with fewer decisions each time.
        let exchange = Chain(PartKey::of_bytes(self.exchange.as_str().as_bytes()).0);
        self.about.iter().copied().fold(exchange, Chain::then).0
    }

    /// The epoch of decisions that are made again after this revocation; `None` if they may not be.
    pub(in crate::context) fn epoch(&self) -> Option<DecisionEpoch> {
        if self.renewal == Renewal::Never {
            return None;
        }
        Some(DecisionEpoch::of_revocation(self.key()))
    }
}

/// Everything that is stored. Written once; the first write wins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Fact {
    /// A completed exchange.
    Turn(Arc<Turn>),
    /// The reasoning of a reply, as it was received.
    Reasoning(Box<ReasoningRecord>),
    /// A tool result that was cut.
    Cut(Box<Cut>),
    /// Reasoning is put back, left out, or replaced by a stand-in.
    ReasoningDecision(Box<ReasoningDecision>),
    /// A change that answers a refusal, repeated from then on.
    Repair(Box<RepairDecision>),
    /// A refused rewrite, after which its branch is suspended.
    Suspension(Box<Suspension>),
    /// Refused decisions that no longer apply.
    Revocation(Box<Revocation>),
    /// A summary that was written but is not in use yet.
    Summary(Box<CompactionRecord>),
    /// A summary that is in use, repeated from then on.
    Compact(Box<CompactionRecord>),
    /// A message that waits to be injected.
    Queued(Box<QueuedMessage>),
    /// What happened to a queued message.
    InjectedMessage(Box<InjectedMessage>),
}
