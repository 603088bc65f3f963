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
pub use recorded::{RecordedDecisions, ReturnedReply};
pub use replay::{as_it_came, replay};
pub(in crate::context) use report::is_default;
pub use report::{ChangeCounts, MOST_TOLD, RewriteSummary};

use serde::{Deserialize, Serialize};

use super::Millis;
use super::policy::{EchoRule, Mode, Policy, SummaryAuthor};
use crate::dialect::models::{Model, ReasoningBinding};
use crate::dialect::{
    Chain, Conversation, Dialect, Part, PartIndex, PartKey, PartKind, Role, Span,
};
use crate::tokens::Tokenizer;
use crate::wire::splice::Edit;

/// A request that is planned for, and the policy it stands under.
#[derive(Clone, Copy)]
pub struct PlanRequest<'a> {
    /// Its exchange.
    pub id: &'a str,
    /// What it says.
    pub conversation: &'a Conversation,
    /// What it was read from.
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
    /// How far we may go.
    pub mode: Mode,
    /// The provider is asked to clear old results in our place, past so many input tokens.
    pub clears_past: Option<u64>,
    /// Counts what is put in.
    pub tokenizer: Tokenizer,
    /// Output tokens held free.
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

    /// Tokens that may be filled: the window less what is held free.
    pub fn usable(&self) -> u64 {
        self.model.window.saturating_sub(self.reserve)
    }

    /// Whether what is decided is decided for shadow mode alone.
    pub fn is_shadow(&self) -> bool {
        self.mode == Mode::Shadow
    }

    /// Whether a message is the model's.
    pub fn is_models(&self, message: usize) -> bool {
        self.conversation.messages.get(message).is_some_and(|it| it.role == Role::Assistant)
    }

    /// The part at a place of the history.
    pub fn part(&self, at: PartIndex) -> Option<&Part> {
        self.conversation.part(at)
    }

    /// The message with which the turn begins that is not finished yet: the newest words of the
    /// user. Reasoning after it belongs to the open tool loop.
    pub fn turn_begins(&self) -> usize {
        self.conversation.messages.iter().rposition(super::begins::is_users).unwrap_or(0)
    }

    /// Whether the model is in the middle of a tool loop: its last words are calls that are being
    /// answered. Pictures come with results as well as with words.
    pub fn is_in_loop(&self) -> bool {
        let beside = [PartKind::Reasoning, PartKind::Image, PartKind::Document];
        let said = |part: &&Part| !beside.contains(&part.kind) && part.key.is_some();
        let last = self.conversation.parts().rev().find(said);
        last.is_some_and(|part| matches!(part.kind, PartKind::ToolResult | PartKind::ToolCall))
    }
}

/// Why something was decided, or was not; a metric label. [`DecisionReason::rule`] says it in words, and
/// where it is written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, strum::EnumIter)]
#[serde(rename_all = "snake_case")]
pub enum DecisionReason {
    /// The window fills.
    Pressure,
    /// The provider's cache is cold, or holds nothing (`docs/protocols.md` 7.4).
    ColdCache,
    /// The saving pays for the broken cache in time (`docs/protocols.md` 7.4).
    PaysBack,
    /// Policy cuts whenever there is enough.
    Always,
    /// One result was too large when it was first seen.
    TooLarge,
    /// Somebody queued it.
    Queued,
    /// The provider refused the request: it does not fit the window.
    Overflow,
    /// First seen: nothing rests on its absence yet.
    Birth,
    /// The provider answers 400 without it (`docs/protocols.md` 4.2, 5.4).
    Demanded,
    /// The tool loop it belongs to is open (`docs/protocols.md` 1.2, 1.5).
    OpenLoop,
    /// Policy leaves reasoning out of the context.
    Stripped,
    /// Refused: later reasoning is bound to what would change (`docs/protocols.md` 1.5).
    Bound,
    /// Refused: it was made from another prefix than the one that is sent now (`docs/protocols.md` 1.5).
    OtherPrefix,
    /// Refused: another model made it (`docs/protocols.md` 1.5).
    OtherModel,
    /// Refused: another upstream made it.
    OtherUpstream,
    /// Refused: the provider does not want it (`docs/protocols.md` 4.2).
    Unwanted,
    /// Refused: it was sent without it before, and the cache rests on that.
    TooLate,
    /// Refused: policy forbids it.
    Policy,
    /// Refused: the provider cuts in our place, or nobody does.
    Provider,
    /// Refused: no gate of the policy is open.
    NoGate,
    /// Refused: too little would be saved.
    TooLittle,
    /// Refused: nobody knows how large the model's window is.
    UnknownWindow,
    /// Refused: it would not make room for several turns.
    LittleRoom,
    /// Refused: the broken cache would cost more than is saved.
    NoGain,
    /// Refused: the thread is set aside, because a rewrite of it was refused.
    Aside,
    /// Refused: the session is held out for comparison.
    HeldOut,
    /// Refused: the provider holds the history.
    Held,
    /// Refused: it is the client's own compaction, or a call beside the conversation.
    Purpose,
    /// Refused: the bytes do not allow it.
    Shape,
    /// Refused: the store did not keep it.
    NotKept,
    /// The context fills past the share at which policy compacts.
    Threshold,
    /// It would not fit the window otherwise.
    Window,
    /// Somebody asked for it.
    Asked,
    /// Refused: there is nothing that could be summarised.
    NothingToCut,
    /// Refused: shadow mode asks for no summary.
    Shadow,
    /// Refused: the summary is not written yet.
    NotReady,
    /// The provider refused the request without it.
    Refusal,
}

/// What is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// A tool result's content gave way to words of ours.
    Cut,
    /// Reasoning was put back.
    PutBack,
    /// Something stands in for reasoning that is gone.
    StandIn,
    /// Reasoning was taken out.
    TakenOut,
    /// A summary took the place of the history's beginning.
    Compacted,
    /// Words were added that somebody queued.
    Said,
    /// Something that the provider refused was changed.
    Repaired,
}

/// Whether a change is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// Decided earlier, repeated now.
    Replayed,
    /// Decided for this request.
    New,
    /// Not made.
    Refused,
}

/// One change, made or refused, as it is explained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanStep {
    /// What.
    pub change: Change,
    /// Whether.
    pub decision: Decision,
    /// Why.
    pub why: DecisionReason,
    /// Message and part of the history.
    pub at: PartIndex,
    /// First byte of what is changed, in the request as it came.
    pub byte: u64,
    /// Bytes there before.
    pub bytes_before: u64,
    /// Bytes there after.
    pub bytes_after: u64,
    /// Tokens before.
    pub tokens_before: u64,
    /// Tokens after.
    pub tokens_after: u64,
}

/// What recorded decisions make of a request.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The changes of bytes; disjoint.
    pub edits: Vec<Edit>,
    /// What is sent, as far as it is not what came.
    pub sent: Overlay,
    /// The changes, one by one.
    pub steps: Vec<PlanStep>,
    /// The changes contradicted each other: none is made.
    pub conflict: bool,
    /// Who wrote the summary that is sent.
    pub summary: Option<SummaryAuthor>,
}

/// What a decision about a part is kept by: its key where the call's id is its own; else the whole
/// chain up to it, because a counted id, or none, says the same words again without meaning the same
/// place (Gemini, `call_0`).
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
}

#[cfg(test)]
mod tests;
