//! Floor 3: what is remembered of a conversation, and what is decided from it.
//!
//! Everything that is stored is a [`Fact`] about a part of a conversation: its key is a hash of content, and
//! it is written once. Pure: no sockets, no clock, no store; `now` and policy are arguments.

pub mod attempt;
mod begins;
pub mod budget;
pub mod cache;
pub mod compact;
pub mod content;
mod decisions;
pub mod editing;
mod footprint;
pub mod inject;
pub mod ledger;
pub mod lineage;
mod method;
pub mod overflow;
pub mod plan;
pub mod policy;
pub mod prune;
pub mod reasoning;
pub mod repair;
pub mod repeats;
pub mod savings;
mod seal;
pub mod trim;

use std::borrow::Cow;

pub use self::method::EstimateMethod;
pub use crate::dialect::ids::{ExchangeId, SessionId, TenantId, ThreadId};
use crate::dialect::{Chain, Dialect, Part, PartKey, Purpose, StopReason, Usage, models::Family};
pub use crate::tokens::{CountingMethod, learn::CostPrediction};
pub use compact::ForwardedHistory;
pub use inject::{InjectedMessage, InjectionPlace, InjectionState, QueuedMessage};
use serde::{Deserialize, Serialize};

/// Milliseconds since 1970, UTC. Passed in: this package has no clock.
pub type Millis = u64;

/// What a request will cost, estimated before it is sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Input tokens. With an anchor: the anchor's input and output, plus `new`, less `gone`.
    pub tokens: u64,
    /// What the estimate is based on.
    pub method: EstimateMethod,
    /// How the new parts were counted; where ways differ, the least exact one.
    #[serde(default)]
    pub counting: CountingMethod,
    /// Tokens of what is new since the anchor, without the anchor's reply; without an anchor, of all parts.
    pub new: u64,
    /// Tokens that the anchor had and this request has not. Includes the reasoning of the anchor's reply if
    /// that is not sent back or not read.
    pub gone: u64,
    /// The share of `gone` that is history other than reasoning: cut, compacted, or dropped by the client.
    #[serde(default, skip_serializing_if = "plan::is_default")]
    pub went: u64,
    /// A compaction that only the provider can read is counted from its length.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sealed: bool,
    /// How the tokens are split; the sum is `tokens`.
    pub breakdown: Breakdown,
    /// How uncertain the estimate is, and what data it comes from.
    #[serde(default)]
    pub guess: CostPrediction,
}

/// A prompt's size according to the provider's counting endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProviderCount {
    /// Whether the client's original request was counted, not the rewritten one.
    pub as_it_came: bool,
    /// Input tokens.
    pub tokens: u64,
}

/// How the tokens of a context are split. The parts add up to the total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Breakdown {
    /// System prompt, tokens, estimated.
    pub system: u64,
    /// Tool definitions, tokens, estimated.
    pub tools: u64,
    /// Everything else, tokens: the total less `system` and `tools`, never below 0.
    pub messages: u64,
    /// The share of `messages` that is reasoning sent back, tokens, estimated.
    pub reasoning: u64,
    /// Kinds of content that can be told apart within tools and messages.
    #[serde(flatten)]
    pub sections: budget::SectionTokens,
    /// The estimates of system and tools exceeded the total, so `messages` was set to 0.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub capped: bool,
}

/// How an exchange ended. Exactly one per exchange (invariant 6); a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The whole response arrived, or the client left after its terminal event.
    Complete,
    /// The provider responded with an error status.
    Refused,
    /// The upstream was unreachable, broke off, or sent an error inside a response with status 200.
    UpstreamFailed,
    /// The client left before the end.
    ClientLeft,
    /// Plimsoll responded itself (no permit, no route, headers too large, forbidden by policy), or the
    /// deadline of a drain ended the exchange.
    Turned,
    /// The process ended during the exchange; the record has what was known until then.
    Interrupted,
}

/// One completed exchange on a thread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// The id of its exchange. It is unique, which a chain is not (retries, parallel calls).
    #[serde(rename = "request")]
    pub exchange: ExchangeId,
    /// Its place among the turns of its session.
    #[serde(rename = "standing")]
    pub position: Position,
    /// The chain after its reply, as the next request has it if the client sends the whole reply back.
    pub after: Chain,
    /// The rewrites of its request.
    #[serde(default, skip_serializing_if = "plan::RewriteSummary::is_nothing")]
    pub done: plan::RewriteSummary,
    /// The response's id, by which partial requests refer to it (`previous_response_id`).
    pub response: Option<Box<str>>,
    /// The provider's id of the request, which its support asks for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_request_id: Option<Box<str>>,
    /// How many of the model's last ten turns made the newest call again with the same result. Only from four
    /// on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeated_calls: Option<u32>,
    /// When the request arrived.
    pub at: Millis,
    /// When the exchange ended.
    pub ended: Millis,
    /// The configured upstream's name.
    pub upstream: Box<str>,
    /// The wire protocol.
    pub dialect: Dialect,
    /// The model, as the client named it.
    pub model: Box<str>,
    /// The model's tokenizer.
    pub family: Family,
    /// What the request was for.
    pub purpose: Purpose,
    /// The cost that was predicted.
    pub estimate: Option<Estimate>,
    /// What the provider reported.
    pub usage: Usage,
    /// The count of the provider's counting endpoint, if it was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted: Option<ProviderCount>,
    /// Why the reply ended.
    pub stop: Option<StopReason>,
    /// How the exchange ended.
    pub outcome: Outcome,
    /// The window that was assumed, tokens.
    pub window: u64,
    /// Output tokens that were reserved.
    pub reserve: u64,
    /// What was sent, part by part.
    pub sketch: Sketch,
    /// The reply's keyed parts, with what each will cost when the client sends it back.
    pub reply: Vec<SketchPart>,
    /// The keys of the reply's parts by which the turn is found again (`ledger::anchor_keys`).
    #[serde(rename = "marks", default, skip_serializing_if = "Vec::is_empty")]
    pub anchor_keys: Vec<PartKey>,
    /// The parts of this turn that the next request will contain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carry: Option<budget::CarryOver>,
}

/// A request's place among the turns of its session, found by `lineage`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Position {
    /// Its thread.
    pub thread: ThreadId,
    /// The exchange that it continues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<ExchangeId>,
    /// The chain at the end of the request.
    pub chain: Chain,
    /// The last keyed part of the request. With the first part of the reply, it is a boundary by which the
    /// turn is found.
    pub last: Option<PartKey>,
    /// The hash of the system prompt.
    pub system: PartKey,
    /// The hash of the tools.
    pub tools: PartKey,
    /// The thread that the client names, if it names one.
    #[serde(rename = "lane", default, skip_serializing_if = "Option::is_none")]
    pub client_thread: Option<Box<str>>,
    /// When a rewrite of this request, or of one of its ancestors, was last refused.
    #[serde(rename = "aside", default, skip_serializing_if = "Option::is_none")]
    pub suspended: Option<Millis>,
}

/// Where a part stands in the prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PromptSection {
    /// The system prompt.
    System,
    /// A tool definition.
    Tools,
    /// A part of the system prompt that was sent as an item of the history (`Part::in_history`).
    SystemItem,
    /// A tool definition that was sent as an item of the history.
    ToolsItem,
    /// The history.
    History,
    /// Reasoning in the history, after the user's last text.
    Reasoning,
    /// Reasoning in the open turn, before text of the user that was sent along with tool results.
    SteeredReasoning,
    /// Reasoning of earlier turns: whether it is read depends on the model.
    OldReasoning,
}

/// One part of what was sent: its key, and its estimated cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SketchPart {
    /// The part key; for parts without one, a hash of their bytes.
    pub key: PartKey,
    /// Tokens, with the part's share of the JSON structure.
    pub tokens: u32,
    /// Its section of the prompt.
    pub place: PromptSection,
}

/// The parts of a request, stored as the difference from another turn's sketch: histories grow at the end, so
/// each turn stores only its own parts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sketch {
    /// The exchange whose sketch it differs from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<ExchangeId>,
    /// How many parts are taken from that sketch, from the front.
    pub kept: u32,
    /// The parts after those.
    pub added: Vec<SketchPart>,
}

/// Reasoning as it was received, kept for clients that drop it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReasoningRecord {
    /// The chain after the reply that the reasoning belongs to.
    pub after: Chain,
    /// When the exchange ended.
    pub at: Millis,
    /// What was forwarded before it, system prompt and tools included: its prefix ([`plan::Overlay`]).
    pub prefix: Chain,
    /// The newest reasoning before it: bound reasoning is bound to the order of reasoning, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<PartKey>,
    /// The model that made it.
    pub model: Box<str>,
    /// The configured upstream's name.
    pub upstream: Box<str>,
    /// Raw blocks, in order.
    pub blocks: Vec<ReasoningBlock>,
    /// Signatures on parts of the reply (Gemini).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub seals: Vec<reasoning::Signature>,
    /// The reply's keyed parts, in order.
    #[serde(default)]
    pub parts: Vec<PartKey>,
    /// The keys by which the reply is found if the client changed what comes before it
    /// (`ledger::anchor_keys`).
    #[serde(rename = "marks", default, skip_serializing_if = "Vec::is_empty")]
    pub anchor_keys: Vec<PartKey>,
}

impl ReasoningRecord {
    /// The key that it is stored under. It includes the reasoning, because a request that is sent twice may be
    /// answered twice with the same parts.
    pub fn key(&self) -> u128 {
        let seals = self.seals.iter().map(|signature| &signature.seal);
        let pieces = self.blocks.iter().map(|block| &block.raw).chain(seals);
        pieces.map(|piece| PartKey::of_bytes(piece.as_bytes())).fold(self.after, Chain::then).0
    }
}

/// One block of reasoning, and its place in its reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReasoningBlock {
    /// How many of the reply's keyed parts come before it.
    pub before: u32,
    /// How many parts without a key (calls that ran at the provider) are between the last keyed part and it.
    #[serde(default, skip_serializing_if = "plan::is_default")]
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

/// A tool result whose content was replaced. Its block, id and place stay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cut {
    /// The key of the decision: which result it is about ([`plan::about`]).
    pub about: PartKey,
    /// When it was decided.
    pub at: Millis,
    /// The exchange that decided it.
    #[serde(rename = "request")]
    pub exchange: ExchangeId,
    /// The content that replaces it.
    #[serde(flatten)]
    pub content: Replacement,
    /// Whether its images and documents are kept.
    pub keep_media: bool,
    /// What it cost before, tokens.
    pub was: u32,
    /// What it costs now, tokens.
    pub tokens: u32,
    /// Why.
    pub why: plan::DecisionReason,
    /// Decided in shadow mode: it was never sent, and is repeated in shadow mode alone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shadow: bool,
    /// A new decision after the refusal at this time ([`Suspension::at`]), stored beside the earlier one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Millis>,
}

/// What replaces a tool result's content.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Replacement {
    /// A placeholder text.
    #[serde(rename = "text")]
    Text(Box<str>),
    /// The beginning and the end of the original text.
    #[serde(rename = "trim")]
    Trim(trim::TrimRange),
}

impl Replacement {
    /// The replacement for `part` of this body; `None` if its text differs from the one that was decided on.
    pub fn words(&self, part: &Part, body: &[u8]) -> Option<Cow<'_, str>> {
        match self {
            Self::Text(text) => Some(Cow::Borrowed(text)),
            Self::Trim(trim) => trim.apply(&trim::words(part, body)).map(Cow::Owned),
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
    #[serde(rename = "request")]
    pub exchange: ExchangeId,
    /// The action.
    pub does: ReasoningAction,
    /// Why.
    pub why: plan::DecisionReason,
    /// Decided in shadow mode.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shadow: bool,
    /// A new decision after the refusal at this time, as in [`Cut`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Millis>,
}

/// What is done with reasoning.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReasoningAction {
    /// The recorded reasoning is put back.
    Back,
    /// The reasoning is lost; this replaces it, for providers that require some.
    StandIn(Box<str>),
    /// The reasoning that the client sends is removed.
    Out,
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
    #[serde(rename = "request")]
    pub exchange: ExchangeId,
    /// The messages that replace those before the cut, as JSON for the body.
    pub raw: Box<str>,
    /// Tokens of the replaced messages, estimated.
    pub was: u64,
    /// Tokens of the summary, estimated.
    pub tokens: u32,
    /// Who wrote it.
    pub by: policy::SummaryAuthor,
    /// Why.
    pub why: plan::DecisionReason,
    /// The upstream that wrote it.
    pub upstream: Box<str>,
    /// The model that wrote it.
    pub model: Box<str>,
    /// Reported usage for writing it. This is overhead, and in no turn's usage.
    #[serde(default)]
    pub spent: Usage,
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
    /// Written or decided again after the refusal at this time, as in [`Cut`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Millis>,
}

impl CompactionRecord {
    /// The key of the messages of the summary.
    pub fn key(&self) -> PartKey {
        PartKey::of_bytes(self.raw.as_bytes())
    }

    /// The key that it is stored under: one per cut. A provider's own summary is void for another model, so
    /// it is stored per cut and model.
    pub fn address(&self) -> Chain {
        match self.by {
            policy::SummaryAuthor::Summary => self.about,
            policy::SummaryAuthor::Provider => {
                self.about.then(PartKey::of_bytes(self.model.as_bytes()))
            }
        }
    }

    /// Whether it can be sent to this model.
    fn is_for(&self, model: Option<&str>) -> bool {
        self.by == policy::SummaryAuthor::Summary || model == Some(&*self.model)
    }
}

/// A rewrite was refused. The decisions made until then are not repeated in requests that continue the
/// refused one, nor in those that continue the same turn on its thread. Other branches keep theirs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Suspension {
    /// The exchange that was refused.
    #[serde(rename = "request")]
    pub exchange: ExchangeId,
    /// Its thread.
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
    #[serde(rename = "request")]
    pub exchange: ExchangeId,
    /// Its thread.
    pub thread: ThreadId,
    /// The exchange that it continues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<ExchangeId>,
    /// When it was refused.
    pub at: Millis,
    /// The keys that the decisions are stored under.
    pub about: Vec<PartKey>,
    /// When they may be made again.
    #[serde(rename = "anew")]
    pub retry: RevocationRetry,
}

/// When revoked decisions may be made again. Once only: what is refused twice is not tried a third time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RevocationRetry {
    /// With the next request: what was learned from the refusal prevents another.
    Next,
    /// Once the cache is cold. Until then, nothing else is decided either in requests that continue that one.
    Cold,
    /// Never: it may have caused the refusal.
    Never,
}

impl Revocation {
    /// The key that it is stored under. It includes the decisions, because a request may be refused several
    /// times, with fewer decisions each time.
    pub fn key(&self) -> u128 {
        let exchange = Chain(PartKey::of_bytes(self.exchange.as_str().as_bytes()).0);
        self.about.iter().copied().fold(exchange, Chain::then).0
    }

    /// A marker for decisions that are made again after this revocation; `None` if they may not be. It is
    /// used like a time of refusal, and its highest bit is set, so that it never equals a real time.
    pub fn epoch(&self) -> Option<Millis> {
        (self.retry != RevocationRetry::Never).then(|| (self.key() >> 64) as u64 | 1 << 63)
    }
}

/// Everything that is stored. Written once; the first write wins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Fact {
    /// A completed exchange.
    Turn(Box<Turn>),
    /// The reasoning of a reply.
    Reasoning(Box<ReasoningRecord>),
    /// A tool result that was cut.
    Cut(Box<Cut>),
    /// A decision about reasoning.
    Echo(Box<ReasoningDecision>),
    /// A change that answers a refusal, repeated from then on.
    Repair(Box<repair::RepairDecision>),
    /// A refused rewrite, after which its branch is suspended.
    Aside(Box<Suspension>),
    /// Refused decisions that no longer apply.
    TakenBack(Box<Revocation>),
    /// A summary that was written but is not in use yet.
    Summary(Box<CompactionRecord>),
    /// A summary that is in use, repeated from then on.
    Compact(Box<CompactionRecord>),
    /// A message that waits to be injected.
    Queued(Box<QueuedMessage>),
    /// What happened to a queued message.
    Said(Box<InjectedMessage>),
}

#[cfg(test)]
mod scene;
