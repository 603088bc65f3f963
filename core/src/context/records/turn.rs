//! One completed exchange of a thread: what it was estimated to cost, what it cost, and what the next request
//! will contain of it.
//!
//! It is a record: stored and read as it is. Where it stands among the other turns is found by `lineage`, its
//! numbers are made by `budget`.

use serde::{Deserialize, Serialize};
use strum::{AsRefStr, EnumIter};

use super::{
    MessageTokens, RewriteSummary, SectionTokens, Sketch, SketchPart, ToolTokens, TurnOrigin,
    WindowLimits, is_default,
};
use crate::context::{CostPrediction, CountingMethod, ExchangeId, Millis, ThreadId};
use crate::dialect::hints::ClientHints;
use crate::dialect::models::Family;
use crate::dialect::{Chain, Dialect, LastCall, PartKey, Purpose, StopReason, Usage};

/// What a request will cost, estimated before it is sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
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
    #[serde(default, skip_serializing_if = "is_default")]
    pub gone_history: u64,
    /// A compaction that only the provider can read is counted from its length.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub encrypted_compaction: bool,
    /// How the tokens are split; the sum is `tokens`.
    pub breakdown: Breakdown,
    /// How uncertain the estimate is, and what data it comes from.
    #[serde(default)]
    pub guess: CostPrediction,
}

/// The method of an estimate; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[derive(AsRefStr, EnumIter, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum EstimateMethod {
    /// The provider's own count of an earlier turn, plus what is new.
    Anchored,
    /// The same, but a summary has just replaced part of what that turn sent.
    Compacted,
    /// Without an anchor: the sum over all parts.
    Estimated,
    /// The provider holds part of the history, so the size is uncertain.
    Held,
}

/// A prompt's size according to the provider's counting endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ProviderCount {
    /// Whether the client's original request was counted, not the rewritten one.
    pub of_original: bool,
    /// Input tokens, as the endpoint counted them.
    pub tokens: u64,
}

/// How the tokens of a context are split. The parts add up to the total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[derive(Serialize, Deserialize, schemars::JsonSchema)]
pub struct Breakdown {
    /// System prompt, tokens, estimated.
    pub system: u64,
    /// Tool definitions, tokens, estimated.
    pub tools: u64,
    /// Everything else, tokens: the total less `system` and `tools`, never below 0.
    pub messages: u64,
    /// The share of `messages` that is reasoning sent back, tokens, estimated.
    pub reasoning: u64,
    /// Kinds of content that can be distinguished within tools and messages.
    #[serde(flatten)]
    pub sections: SectionTokens,
    /// The estimates of system and tools exceeded the total, so `messages` was set to 0.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub capped: bool,
    /// System and tools as they were estimated, if that was more than the total.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<[u64; 2]>,
}

/// How an exchange ended. Exactly one per exchange (invariant 6); a metric label.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[derive(AsRefStr, EnumIter, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Outcome {
    /// The whole response arrived, or the client left after its terminal event.
    Complete,
    /// The provider responded with an error status.
    Refused,
    /// The upstream was unreachable, broke off, or sent an error inside a response with status 200.
    UpstreamFailed,
    /// The client left before the end.
    ClientLeft,
    /// Plimsoll answered itself (no permit, no route, headers too large, forbidden by policy), closed an idle
    /// tunnel, or ended the exchange at the deadline of a drain.
    #[serde(rename = "turned")]
    #[strum(serialize = "turned")]
    EndedByProxy,
    /// The process ended during the exchange, or the reply is still being made in the background; the record has what was
    /// known until then.
    #[default]
    Interrupted,
}

impl Outcome {
    /// Whether it ended without the reply, and not because its client left or the process ended.
    pub fn is_failure(self) -> bool {
        matches!(self, Self::Refused | Self::UpstreamFailed | Self::EndedByProxy)
    }

    /// Whether a turn that ended like this is replaced by one of the same exchange that ended like `later`: the whole reply
    /// replaces a part of it, and anything replaces what is only known so far.
    pub fn is_completed_by(self, later: Self) -> bool {
        match (self, later) {
            // What is only known so far never replaces what ended.
            (_, Self::Interrupted) | (Self::Complete, _) => false,
            // The whole reply replaces a part of it.
            (Self::Interrupted, _) | (_, Self::Complete) => true,
            _ => false,
        }
    }
}

/// One completed exchange on a thread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// The id of its exchange. It is unique, which a chain is not (repeats, parallel calls).
    pub exchange: ExchangeId,
    /// Its place among the turns of its session.
    pub position: Position,
    /// The chain after its reply, as the next request has it if the client sends the whole reply back.
    pub after: Chain,
    /// The rewrites of its request.
    #[serde(default, skip_serializing_if = "RewriteSummary::is_nothing")]
    pub done: RewriteSummary,
    /// The response's id, by which partial requests refer to it (`previous_response_id`).
    pub response: Option<Box<str>>,
    /// The provider's id of the request, which its support asks for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_request_id: Option<Box<str>>,
    /// How many of the model's last ten turns made the newest call again with the same result. Only from four
    /// on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeated_calls: Option<u32>,
    /// What the client said of the request in headers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hints: Option<Box<ClientHints>>,
    /// Where the request comes from: what found its session, its agent and project.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Box<TurnOrigin>>,
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
    /// The model that the reply names, if it is not called as it was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub served: Option<Box<str>>,
    /// What it cost at the prices of its time, US dollars; `None` if one of them was not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dollars: Option<f64>,
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
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub anchor_keys: Vec<PartKey>,
    /// The forms besides this one in which the client may send the reply back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<ReplyForm>,
    /// The definitions of its tools, estimated; none if they are those of its parent ([`Position::tools`]).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub definitions: Vec<ToolTokens>,
    /// The names of the tools that its reply calls, one for each call.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub called: Vec<Box<str>>,
    /// The parts of this turn that the next request will contain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carry: Option<CarryOver>,
}

impl Turn {
    /// A turn of which only protocol and tokenizer are known.
    pub fn empty(dialect: Dialect, family: Family) -> Self {
        Self {
            exchange: ExchangeId::default(),
            position: Position::default(),
            after: Chain::START,
            done: RewriteSummary::default(),
            response: None,
            provider_request_id: None,
            repeated_calls: None,
            hints: None,
            origin: None,
            at: 0,
            ended: 0,
            upstream: Box::default(),
            dialect,
            model: Box::default(),
            family,
            purpose: Purpose::Turn,
            estimate: None,
            usage: Usage::default(),
            served: None,
            dollars: None,
            counted: None,
            stop: None,
            outcome: Outcome::default(),
            window: 0,
            reserve: 0,
            sketch: Sketch::default(),
            reply: Vec::new(),
            anchor_keys: Vec::new(),
            others: Vec::new(),
            definitions: Vec::new(),
            called: Vec::new(),
            carry: None,
        }
    }
}

/// Another form in which a client may send a reply back: another of several replies, or the same with other call ids.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReplyForm {
    /// The chain after it.
    pub after: Chain,
    /// Its keyed parts, as in [`Turn::reply`].
    pub parts: Vec<SketchPart>,
    /// The keys by which the turn is found again, as in [`Turn::anchor_keys`].
    pub anchor_keys: Vec<PartKey>,
    /// The output tokens that were reported with it, if it is a reply of its own; else 0.
    pub output: u64,
    /// The share of them that is reported reasoning.
    pub reasoning: u64,
}

/// One form of a turn's reply.
#[derive(Clone, Copy, Debug)]
pub(in crate::context) struct ReplyView<'t> {
    pub(in crate::context) after: Chain,
    pub(in crate::context) parts: &'t [SketchPart],
    pub(in crate::context) anchor_keys: &'t [PartKey],
}

impl Turn {
    /// The forms in which the client may send the reply back, the first one first.
    pub(in crate::context) fn forms(&self) -> impl Iterator<Item = ReplyView<'_>> {
        let Self { after, reply: parts, anchor_keys, .. } = self;
        let others = self.others.iter().map(|form| ReplyView {
            after: form.after,
            parts: &form.parts,
            anchor_keys: &form.anchor_keys,
        });
        std::iter::once(ReplyView { after: *after, parts, anchor_keys }).chain(others)
    }

    /// Whether the model declined, so that the request may be sent again, to another model.
    pub fn is_declined(&self) -> bool {
        // Claude may decline after it wrote something, which is no reply. Others refuse in words, which are one.
        let is_reply = self.dialect != Dialect::Anthropic && !self.reply.is_empty();
        self.stop == Some(StopReason::Refused) && !is_reply
    }

    /// Whether it is replaced by what another exchange read of its reply: one that ended better, or, after a whole reply
    /// without a count, one with it.
    pub fn is_completed_by(&self, outcome: Outcome, usage: &Usage) -> bool {
        let is_counted = self.usage.input.is_none() && usage.input.is_some();
        self.outcome.is_completed_by(outcome)
            || self.outcome == Outcome::Complete && outcome == Outcome::Complete && is_counted
    }

    pub(in crate::context) fn is_after(&self, chain: Chain) -> bool {
        self.forms().any(|form| form.after == chain)
    }

    pub(in crate::context) fn has_in_reply(&self, key: PartKey) -> bool {
        self.forms().any(|form| form.parts.iter().any(|part| part.key == key))
    }
}

/// A request's place among the turns of its session, found by `lineage`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Position {
    /// The thread whose history it continues, or begins.
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
    /// The hash of the tool definitions.
    pub tools: PartKey,
    /// The thread that the client names, if it names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_thread: Option<Box<str>>,
    /// Whether the request has a reply of the model in it: then its messages belong to one conversation.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_reply: bool,
    /// Whether it has none, and several messages of the user: some clients do not send replies back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_messages: bool,
    /// What it has in common with the next request, though that may lack a part of its last message (`edited`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beginnings: Vec<Chain>,
    /// When a rewrite of this request, or of one of its ancestors, was last refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended: Option<Millis>,
}

/// What the next request will contain of a turn.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CarryOver {
    /// Tokens: input and output, less what is not sent back or not read again.
    pub tokens: u64,
    /// The same by an agent's rules: the last input, and the part of the last output that comes back.
    pub by_rules: u64,
    /// Input and output of the earlier call that these tokens are based on, if its own usage was not reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub basis: Option<LastCall>,
    /// Whether the agent's rules decide, so that their number is shown.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ruled: bool,
    /// The share of `tokens` that is reasoning.
    pub reasoning: u64,
    /// Whether the reply's reasoning is expected to come back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub returns: bool,
    /// Whether the client has dropped reasoning before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drops: bool,
    /// Whether the reply's reasoning was only billed: nothing in the reply could bring it back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hidden: bool,
    /// The points at which pruning, compaction and so on begin, for the next request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<WindowLimits>,
    /// Its messages by kind of content, tokens, estimated.
    #[serde(default, skip_serializing_if = "MessageTokens::is_nothing")]
    pub contents: MessageTokens,
}

impl CarryOver {
    pub(in crate::context) fn displayed(&self) -> u64 {
        if self.ruled { self.by_rules } else { self.tokens }
    }
}
