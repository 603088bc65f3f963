//! The plan: which recorded decisions apply to a request, and the edits they make of it
//! (`docs/architecture.md` "Life of a request").
//!
//! Edits come from facts alone (invariant 3): what is new is proposed as a fact (`prune`,
//! `reasoning`), saved, and then replayed like an old one, so that the same facts and request always
//! give the same bytes (invariant 4). Pure; must not know where facts are kept.

mod overlay;
mod recorded;
mod repairs;
mod replay;
mod report;

pub use overlay::Overlay;
pub(in crate::context) use recorded::again;
pub use recorded::{ForeignReasoning, RecordedDecisions, ReturnedReply};
pub use replay::{as_it_came, replay};
pub(in crate::context) use report::is_default;
pub use report::{ChangeCounts, MOST_TOLD, NewTokens, RewriteSummary};

use serde::{Deserialize, Serialize};

use super::policy::{EchoRule, Mode, Policy, SummaryAuthor};
use super::{ExchangeId, Millis};
use crate::dialect::models::{Model, ReasoningBinding};
use crate::dialect::{
    Chain, Conversation, Dialect, Part, PartIndex, PartKey, PartKind, Role, Span,
};
use crate::tokens::Tokenizer;
use crate::wire::splice::Edit;

/// A request to plan for, and the policy that applies to it.
#[derive(Clone, Copy)]
pub struct PlanRequest<'a> {
    /// The id of its exchange.
    pub exchange: &'a ExchangeId,
    /// Its content.
    pub conversation: &'a Conversation,
    /// The bytes that it was read from.
    pub body: &'a [u8],
    /// The model it asks for.
    pub model: &'a Model,
    /// The model, as the client named it.
    pub name: &'a str,
    /// The configured upstream's name.
    pub upstream: &'a str,
    /// What the upstream does with reasoning that is sent back.
    pub echo: EchoRule,
    /// What may be changed.
    pub policy: &'a Policy,
    /// The mode: observe, shadow or active.
    pub mode: Mode,
    /// The provider is asked to clear old tool results instead of us, past this many input tokens.
    pub clears_past: Option<u64>,
    /// Counts the tokens of what is inserted.
    pub tokenizer: Tokenizer,
    /// Output tokens that are reserved.
    pub reserve: u64,
    /// The time.
    pub now: Millis,
}

impl PlanRequest<'_> {
    /// Whether the model binds reasoning to the prefix it was made from (`docs/architecture.md` "When a
    /// rewrite is allowed").
    pub fn is_bound(&self) -> bool {
        let signs =
            matches!(self.conversation.dialect, Dialect::Anthropic | Dialect::OpenaiResponses);
        signs && self.model.binding == ReasoningBinding::Prefix
    }

    /// Tokens that may be filled: the window less the reserve.
    pub fn usable(&self) -> u64 {
        self.model.window.saturating_sub(self.reserve)
    }

    /// Whether decisions are made for shadow mode only.
    pub fn is_shadow(&self) -> bool {
        self.mode == Mode::Shadow
    }

    /// Whether a message is from the model.
    pub fn is_models(&self, message: usize) -> bool {
        self.conversation.messages.get(message).is_some_and(|it| it.role == Role::Assistant)
    }

    /// The part at a place in the history.
    pub fn part(&self, at: PartIndex) -> Option<&Part> {
        self.conversation.part(at)
    }

    /// The message that begins the unfinished turn: the user's newest text. Reasoning after it belongs to the
    /// open tool loop.
    pub fn turn_begins(&self) -> usize {
        self.conversation.messages.iter().rposition(super::begins::is_users).unwrap_or(0)
    }

    /// Whether the model is in the middle of a tool loop: the last parts are calls or their results. Images
    /// are skipped, because they come with results as well as with text.
    pub fn is_in_loop(&self) -> bool {
        let beside = [PartKind::Reasoning, PartKind::Image, PartKind::Document];
        let said = |part: &&Part| !beside.contains(&part.kind) && part.key.is_some();
        let last = self.conversation.parts().rev().find(said);
        last.is_some_and(|part| matches!(part.kind, PartKind::ToolResult | PartKind::ToolCall))
    }
}

/// Why something was decided or refused; a metric label. [`DecisionReason::rule`] gives the rule and the
/// document that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, strum::EnumIter)]
#[serde(rename_all = "snake_case")]
pub enum DecisionReason {
    /// The window is filling up.
    Pressure,
    /// The provider's cache is cold or empty (`docs/protocols.md` 7.4).
    ColdCache,
    /// The saving pays for the broken cache soon enough (`docs/protocols.md` 7.4).
    PaysBack,
    /// The policy cuts whenever a cut saves enough.
    Always,
    /// The result was too large when it was first sent.
    TooLarge,
    /// An operator queued it.
    Queued,
    /// The provider refused the request: it does not fit the window.
    Overflow,
    /// First sent with this request: nothing depends on the unchanged form yet.
    Birth,
    /// The provider responds with 400 without it (`docs/protocols.md` 4.2, 5.4).
    Demanded,
    /// The tool loop it belongs to is open (`docs/protocols.md` 1.2, 1.5).
    OpenLoop,
    /// Policy removes reasoning from the context.
    Stripped,
    /// Not done: later reasoning is bound to the bytes that would change (`docs/protocols.md` 1.5).
    Bound,
    /// Not done: it was made from a prefix that differs from the one sent now (`docs/protocols.md` 1.5).
    OtherPrefix,
    /// Not done: another model made it (`docs/protocols.md` 1.5).
    OtherModel,
    /// Not done: another upstream made it.
    OtherUpstream,
    /// Not done: the provider does not accept it (`docs/protocols.md` 4.2).
    Unwanted,
    /// Not done: the request was sent without it before, and the cache depends on that.
    TooLate,
    /// Not done: policy forbids it.
    Policy,
    /// Not done: the provider cuts itself, or nobody does.
    Provider,
    /// Not done: no condition of the policy for a cut is met.
    NoGate,
    /// Not done: it would save too little.
    TooLittle,
    /// Not done: the model's window is unknown.
    UnknownWindow,
    /// Not done: it would not make room for several turns.
    LittleRoom,
    /// Not done: the broken cache would cost more than is saved.
    NoGain,
    /// Not done: the branch is suspended, because a rewrite of it was refused.
    Aside,
    /// Not done: the session is held out for comparison.
    HeldOut,
    /// Not done: the provider holds the history.
    Held,
    /// Not done: the request is the client's own compaction, or a call beside the conversation.
    Purpose,
    /// Not done: the structure of the body does not allow it.
    Shape,
    /// Not done: the store could not save it.
    NotKept,
    /// The context is past the share of the window at which policy compacts.
    Threshold,
    /// It would not fit the window otherwise.
    Window,
    /// Somebody asked for it.
    Asked,
    /// Not done: there is nothing to summarise.
    NothingToCut,
    /// Not done: shadow mode asks for no summary.
    Shadow,
    /// Not done: the summary is not written yet.
    NotReady,
    /// The provider refused the request without this change.
    Refusal,
}

/// What kind of change it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// A tool result's content was replaced.
    Cut,
    /// Reasoning was put back.
    PutBack,
    /// A replacement for lost reasoning was inserted.
    StandIn,
    /// Reasoning was removed.
    TakenOut,
    /// A summary replaced the beginning of the history.
    Compacted,
    /// A queued message was injected.
    Said,
    /// Something that the provider refused was changed.
    Repaired,
}

/// Whether a change is made, and whether it is new.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// Decided earlier and repeated now.
    Replayed,
    /// Decided for this request.
    New,
    /// Not made.
    Refused,
}

/// One change, made or refused, with its explanation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanStep {
    /// What kind of change.
    pub change: Change,
    /// Whether it is made.
    pub decision: Decision,
    /// The reason.
    pub why: DecisionReason,
    /// Message and part in the history.
    pub at: PartIndex,
    /// First byte of the changed range, in the request as the client sent it.
    pub byte: u64,
    /// Length of the range before, bytes.
    pub bytes_before: u64,
    /// Length of its replacement, bytes.
    pub bytes_after: u64,
    /// Tokens before.
    pub tokens_before: u64,
    /// Tokens after.
    pub tokens_after: u64,
}

/// The edits that the recorded decisions make in a request.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The edits; disjoint.
    pub edits: Vec<Edit>,
    /// What is sent, where it differs from what the client sent.
    pub sent: Overlay,
    /// The changes, one by one.
    pub steps: Vec<PlanStep>,
    /// The edits contradicted each other, so none is made.
    pub conflict: bool,
    /// Who wrote the summary that is sent.
    pub summary: Option<SummaryAuthor>,
}

/// The key that a decision about a part is stored under. It is the part key if the call's id is unique, else
/// the chain up to the part: with counted ids or none (Gemini, `call_0`), equal content does not mean the
/// same place.
pub fn about(key: PartKey, chain: Chain, has_own_id: bool) -> u128 {
    if has_own_id { key.0 } else { chain.0 }
}

impl PlanStep {
    /// A change that is not made.
    pub fn refused(
        change: Change,
        why: DecisionReason,
        at: PartIndex,
        span: Span,
        tokens: u64,
    ) -> Self {
        Self {
            change,
            decision: Decision::Refused,
            why,
            at,
            byte: span.start as u64,
            bytes_before: span.len() as u64,
            bytes_after: span.len() as u64,
            tokens_before: tokens,
            tokens_after: tokens,
        }
    }

    /// Tokens that it takes away.
    pub fn removed(&self) -> u64 {
        self.tokens_before.saturating_sub(self.tokens_after)
    }
}

#[cfg(test)]
mod tests;
