//! Floor 3, deciding: what is remembered of a conversation, and what follows from it.
//!
//! Everything known is a fact about a piece of a conversation, addressed by content, written once.
//! Pure: no sockets, no clock, no store; `now` and policy are arguments.

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
pub mod trim;

use std::borrow::Cow;

pub use self::method::EstimateMethod;
pub use crate::dialect::ids::{ExchangeId, SessionId, TenantId, ThreadId};
use crate::dialect::{Chain, Dialect, Part, PartKey, Purpose, StopReason, Usage, models::Family};
pub use crate::tokens::{CountingMethod, learn::CostPrediction};
pub use compact::ForwardedHistory;
pub use inject::{InjectedMessage, InjectionPlace, InjectionState, QueuedMessage};
use serde::{Deserialize, Serialize};

/// Milliseconds since 1970, UTC. Passed in: these floors have no clock.
pub type Millis = u64;

/// What the next call will cost, before it is sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Input tokens. With an anchor: its input, its output, and `new`, less `gone`.
    pub tokens: u64,
    /// How it was made.
    pub method: EstimateMethod,
    /// How the new parts were counted; the least exact of them.
    #[serde(default)]
    pub counting: CountingMethod,
    /// Tokens of what is new since the anchor, its reply left out; without an anchor, of all parts.
    pub new: u64,
    /// Tokens of what left since the anchor, the reasoning of its reply included where that is not
    /// sent back or not read.
    pub gone: u64,
    /// The part of `gone` that is history other than reasoning: cut, compacted, or dropped by the client.
    #[serde(default, skip_serializing_if = "plan::is_default")]
    pub went: u64,
    /// Where the tokens are; the sum is `tokens`.
    pub breakdown: Breakdown,
    /// How sure it is, and what it rests on.
    #[serde(default)]
    pub guess: CostPrediction,
}

/// A prompt as the provider's counting endpoint counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProviderCount {
    /// Whether the request was counted as it came, and not as it was sent.
    pub as_it_came: bool,
    /// Input tokens.
    pub tokens: u64,
}

/// Where the tokens of a context are. Their sum is the total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Breakdown {
    /// System prompt, tokens, estimated.
    pub system: u64,
    /// Tool definitions, tokens, estimated.
    pub tools: u64,
    /// Everything else, tokens: total less the two above, never below 0.
    pub messages: u64,
    /// The part of `messages` that is reasoning sent back, tokens, estimated.
    pub reasoning: u64,
    /// What can be told apart within tools and messages.
    #[serde(flatten)]
    pub sections: budget::SectionTokens,
    /// System and tools were estimated larger than the total, so messages were capped at 0.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub capped: bool,
}

/// How an exchange ended. Exactly one per exchange (invariant 6); a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The answer came whole, or the client left after its terminal event.
    Complete,
    /// The provider answered an error status.
    Refused,
    /// The upstream could not be reached, broke off, or told of an error inside a success.
    UpstreamFailed,
    /// The client left before the end.
    ClientLeft,
    /// We answered ourselves: no permit, no route, headers too large, refused by policy; or a drain's
    /// deadline broke it off.
    Turned,
    /// The process ended in the middle of it: what is told of it is what was known by then.
    Interrupted,
}

/// One completed exchange on a thread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// Its exchange: unique, where a chain is not (retries, parallel calls).
    #[serde(rename = "request")]
    pub exchange: ExchangeId,
    /// Where it stands among the turns of its session.
    #[serde(rename = "standing")]
    pub position: Position,
    /// The chain after its reply, if the client sends the reply back whole.
    pub after: Chain,
    /// What was done to its request.
    #[serde(default, skip_serializing_if = "plan::RewriteSummary::is_nothing")]
    pub done: plan::RewriteSummary,
    /// The response's id: partial requests chain by it.
    pub response: Option<Box<str>>,
    /// The provider's id of the request: what its support asks for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_request_id: Option<Box<str>>,
    /// In how many of the model's last ten turns the newest call had the same result, from four on.
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
    /// Its tokenizer.
    pub family: Family,
    /// What the request was for.
    pub purpose: Purpose,
    /// What was predicted.
    pub estimate: Option<Estimate>,
    /// What the provider reported.
    pub usage: Usage,
    /// What its counting endpoint answered, where it was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted: Option<ProviderCount>,
    /// Why the reply ended.
    pub stop: Option<StopReason>,
    /// How the exchange ended.
    pub outcome: Outcome,
    /// The window that was believed, tokens.
    pub window: u64,
    /// Output tokens held free.
    pub reserve: u64,
    /// What was sent, part by part.
    pub sketch: Sketch,
    /// The reply's keyed parts: what each will cost when it comes back.
    pub reply: Vec<SketchPart>,
    /// The keys of reply parts that mark the turn (`ledger::anchor_keys`).
    #[serde(rename = "marks", default, skip_serializing_if = "Vec::is_empty")]
    pub anchor_keys: Vec<PartKey>,
    /// What of it the next request will hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carry: Option<budget::CarryOver>,
}

/// Where a request stands among the turns of its session, found by `lineage`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Position {
    /// Its thread.
    pub thread: ThreadId,
    /// The exchange it grew from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<ExchangeId>,
    /// The chain at the end of the request.
    pub chain: Chain,
    /// The last keyed part of the request: with the first of the reply, a boundary to find it by.
    pub last: Option<PartKey>,
    /// Identity of the system prompt.
    pub system: PartKey,
    /// Identity of the tools.
    pub tools: PartKey,
    /// The thread that the client names, where it names one.
    #[serde(rename = "lane", default, skip_serializing_if = "Option::is_none")]
    pub client_thread: Option<Box<str>>,
    /// When a rewrite was last refused, of this request or of one that it grew from.
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
    /// A part of the system prompt that came as an item of the history (`Part::in_history`).
    SystemItem,
    /// A tool definition that came so.
    ToolsItem,
    /// The history.
    History,
    /// Reasoning in the history, after the user's last words.
    Reasoning,
    /// Reasoning before words that came with tool results, of the turn that goes on.
    SteeredReasoning,
    /// Reasoning of turns before it: whether it is read depends on the model.
    OldReasoning,
}

/// One part of what was sent: who it is, what it was believed to cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SketchPart {
    /// The part; for parts without a key of their own, a hash of their bytes.
    pub key: PartKey,
    /// Tokens, with its share of structure.
    pub tokens: u32,
    /// Where it stands.
    pub place: PromptSection,
}

/// What a request consisted of, as the difference from another turn's sketch: histories grow at
/// the end, so each turn stores only what is its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sketch {
    /// The exchange whose sketch it differs from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<ExchangeId>,
    /// How many entries of that sketch stay, from the front.
    pub kept: u32,
    /// What follows them.
    pub added: Vec<SketchPart>,
}

/// Reasoning as it was received, for the client that drops it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReasoningRecord {
    /// Chain after the reply: which turn's reasoning it is.
    pub after: Chain,
    /// When the exchange ended.
    pub at: Millis,
    /// What was forwarded before it, system prompt and tools included: its prefix ([`plan::Overlay`]).
    pub prefix: Chain,
    /// The newest reasoning that stood before it: bound reasoning is bound to its order, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<PartKey>,
    /// The model that made it.
    pub model: Box<str>,
    /// The configured upstream's name.
    pub upstream: Box<str>,
    /// Raw blocks, in order.
    pub blocks: Vec<ReasoningBlock>,
    /// Signatures that stand on parts of the reply (Gemini).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub seals: Vec<reasoning::Signature>,
    /// The reply's keyed parts, in order.
    #[serde(default)]
    pub parts: Vec<PartKey>,
    /// Those that it is found by where its client changed what stands before it (`ledger::anchor_keys`).
    #[serde(rename = "marks", default, skip_serializing_if = "Vec::is_empty")]
    pub anchor_keys: Vec<PartKey>,
}

/// One block of reasoning, and where in its reply it stood.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReasoningBlock {
    /// The reply's keyed parts before it.
    pub before: u32,
    /// Parts without a key between the last of them and it: what ran at the provider.
    #[serde(default, skip_serializing_if = "plan::is_default")]
    pub hosted: u32,
    /// Whether such a part came next: the block led to it, and must stand before it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leads: bool,
    /// The block, as it was received.
    pub raw: Box<str>,
    /// The stream broke off within it: a client may send it, and nobody knows whether it is whole.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
}

/// A tool result whose content gave way to words of ours. Block, id and place stay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cut {
    /// Which result ([`plan::about`]).
    pub about: PartKey,
    /// When it was decided.
    pub at: Millis,
    /// The exchange that decided it.
    #[serde(rename = "request")]
    pub exchange: ExchangeId,
    /// What stands in its place.
    #[serde(flatten)]
    pub content: Replacement,
    /// Whether its pictures and documents stay.
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
    /// Decided anew after this refusal ([`Suspension::at`]), beside what had been decided before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Millis>,
}

/// What stands in place of a tool result's content.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Replacement {
    /// Words of ours.
    #[serde(rename = "text")]
    Text(Box<str>),
    /// The first and the last of its own words.
    #[serde(rename = "trim")]
    Trim(trim::TrimRange),
}

impl Replacement {
    /// The words for `part` of this body; `None` where it says something else than when that was decided.
    pub fn words(&self, part: &Part, body: &[u8]) -> Option<Cow<'_, str>> {
        match self {
            Self::Text(text) => Some(Cow::Borrowed(text)),
            Self::Trim(trim) => trim.apply(&trim::words(part, body)).map(Cow::Owned),
        }
    }
}

/// What was decided about reasoning: from then on it is repeated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReasoningDecision {
    /// The chain after the reply ([`ReasoningRecord::after`]), or the part it is about.
    pub about: PartKey,
    /// When it was decided.
    pub at: Millis,
    /// The exchange that decided it.
    #[serde(rename = "request")]
    pub exchange: ExchangeId,
    /// What.
    pub does: ReasoningAction,
    /// Why.
    pub why: plan::DecisionReason,
    /// Decided in shadow mode.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shadow: bool,
    /// Decided anew after this refusal, as with a [`Cut`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Millis>,
}

/// What is done with reasoning.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReasoningAction {
    /// What was recorded is put back.
    Back,
    /// The real one is gone; this stands in for it, where the provider demands one.
    StandIn(Box<str>),
    /// What the client sends is taken out.
    Out,
}

/// A summary that stands in place of the beginning of a history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CompactionRecord {
    /// The chain at the cut: of everything before the first message that stays, as the client sends it.
    pub about: Chain,
    /// The keyed parts before the cut, nearest first: by them it is found where the client changed
    /// what stands before.
    pub near: Vec<PartKey>,
    /// Whether no other place of the conversation is likely to hold these parts.
    pub is_own: bool,
    /// When it was written, or taken into use.
    pub at: Millis,
    /// The exchange it was written for, or that took it into use.
    #[serde(rename = "request")]
    pub exchange: ExchangeId,
    /// The messages that stand in place of those before the cut, as they stand in a body.
    pub raw: Box<str>,
    /// What those cost, tokens, estimated.
    pub was: u64,
    /// What these cost, tokens, estimated.
    pub tokens: u32,
    /// Who wrote it.
    pub by: policy::SummaryAuthor,
    /// Why.
    pub why: plan::DecisionReason,
    /// The upstream that wrote it.
    pub upstream: Box<str>,
    /// The model that wrote it.
    pub model: Box<str>,
    /// What writing it cost, as reported: overhead, in no turn's usage.
    #[serde(default)]
    pub spent: Usage,
    /// How long writing it took, ms.
    #[serde(default)]
    pub took: Millis,
    /// What the provider had read when it wrote this: reasoning after the cut that is bound to that
    /// stays valid (`docs/protocols.md` 1.5.7). Only of what a provider wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carries: Option<ForwardedHistory>,
    /// Decided in shadow mode.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shadow: bool,
    /// Written or decided anew after this refusal, as with a [`Cut`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Millis>,
}

impl CompactionRecord {
    /// The identity of what stands in place of the messages.
    pub fn key(&self) -> PartKey {
        PartKey::of_bytes(self.raw.as_bytes())
    }

    /// What it is kept by: one at each cut, and one of each model's provider beside it, because that
    /// is void for another model.
    pub fn address(&self) -> Chain {
        match self.by {
            policy::SummaryAuthor::Summary => self.about,
            policy::SummaryAuthor::Provider => {
                self.about.then(PartKey::of_bytes(self.model.as_bytes()))
            }
        }
    }

    /// Whether a request for this model can be sent with it.
    fn is_for(&self, model: Option<&str>) -> bool {
        self.by == policy::SummaryAuthor::Summary || model == Some(&*self.model)
    }
}

/// A rewrite was refused: what was decided up to then is not repeated in what grows from that request,
/// nor where its thread goes on from the same turn. Other branches keep what they have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Suspension {
    /// The exchange that was refused.
    #[serde(rename = "request")]
    pub exchange: ExchangeId,
    /// Its thread.
    pub thread: ThreadId,
    /// The exchange it grew from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<ExchangeId>,
    /// When.
    pub at: Millis,
}

/// What was decided for one request and refused with it: void, wherever it is found. What had been decided
/// before stays, because reasoning may rest on it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Revocation {
    /// The exchange that was refused.
    #[serde(rename = "request")]
    pub exchange: ExchangeId,
    /// Its thread.
    pub thread: ThreadId,
    /// The exchange it grew from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<ExchangeId>,
    /// When.
    pub at: Millis,
    /// What the decisions are kept by.
    pub about: Vec<PartKey>,
    /// When they may be made again.
    #[serde(rename = "anew")]
    pub retry: RevocationRetry,
}

/// When what was taken back may be decided again; once, since what is refused twice is not tried a third time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RevocationRetry {
    /// With the next request: what the refusal taught spares it another.
    Next,
    /// Once the cache is cold. Nor is anything else decided before then in what grows from that request.
    Cold,
    /// Never: nothing shows that it was not to blame.
    Never,
}

impl Revocation {
    /// What it is kept by: a request may be refused more than once, each time with less.
    pub fn key(&self) -> u128 {
        let exchange = Chain(PartKey::of_bytes(self.exchange.as_str().as_bytes()).0);
        self.about.iter().copied().fold(exchange, Chain::then).0
    }

    /// After which what it made void is decided anew, if it may be. It is no time: none lies so far off.
    pub fn epoch(&self) -> Option<Millis> {
        (self.retry != RevocationRetry::Never).then(|| (self.key() >> 64) as u64 | 1 << 63)
    }
}

/// Everything that is remembered. Written once; first write wins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Fact {
    /// A completed exchange.
    Turn(Box<Turn>),
    /// Reasoning of a reply.
    Reasoning(Box<ReasoningRecord>),
    /// A tool result that was cut.
    Cut(Box<Cut>),
    /// What was decided about reasoning.
    Echo(Box<ReasoningDecision>),
    /// A change that answers a refusal: from then on it is repeated.
    Repair(Box<repair::RepairDecision>),
    /// A rewrite that was refused.
    Aside(Box<Suspension>),
    /// Decisions that were refused.
    TakenBack(Box<Revocation>),
    /// A summary that was written; nothing is sent of it yet.
    Summary(Box<CompactionRecord>),
    /// A summary that was taken into use: from then on it is repeated.
    Compact(Box<CompactionRecord>),
    /// Words that wait to be said.
    Queued(Box<QueuedMessage>),
    /// What became of them.
    Said(Box<InjectedMessage>),
}

#[cfg(test)]
mod scene;
