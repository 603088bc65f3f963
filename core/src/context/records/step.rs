//! One change of a plan: what it is, whether it is made, and why.
//!
//! Stored with decisions and turns, and counted in metrics: no text of a prompt.

use serde::{Deserialize, Serialize};
use strum::{AsRefStr, EnumIter};

use crate::dialect::{PartIndex, Span};
use crate::wire::splice::Edit;

/// Why something was decided or declined; a metric label. [`DecisionReason::rule`] gives the rule and the
/// document that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[derive(EnumIter, AsRefStr, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
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
    /// An operator queued the message.
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
    Suspended,
    /// Not done: the session is held out for comparison.
    HeldOut,
    /// Not done: the provider holds the history.
    Held,
    /// Not done: the request is the client's own compaction, or a call beside the conversation.
    Purpose,
    /// Not done: the structure of the body does not allow it.
    Structure,
    /// Not done: the store could not save it.
    NotKept,
    /// The context is past the share of the window at which policy compacts.
    Threshold,
    /// It would not fit the window otherwise.
    Window,
    /// Somebody asked for it.
    Requested,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[derive(AsRefStr, EnumIter, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Change {
    /// A tool result's content was replaced.
    Cut,
    /// Reasoning was put back.
    PutBack,
    /// A replacement for lost reasoning was inserted.
    StandIn,
    /// Reasoning was removed.
    Removed,
    /// A summary replaced the beginning of the history.
    Compacted,
    /// A queued message was injected.
    Injected,
    /// Something that the provider refused was changed.
    Repaired,
}

/// Whether a change is made, and whether it is new.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[derive(AsRefStr, EnumIter, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Decision {
    /// Decided earlier and repeated now.
    Replayed,
    /// Decided for this request.
    New,
    /// Not made.
    #[serde(rename = "refused")]
    #[strum(serialize = "refused")]
    Declined,
}

/// One change, made or declined, with its explanation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct PlanStep {
    /// What kind of change.
    pub change: Change,
    /// Whether it is made.
    pub decision: Decision,
    /// Why it is made, or why not.
    pub why: DecisionReason,
    /// Message and part in the history.
    pub at: PartIndex,
    /// First byte of the changed range, in the request as the client sent it.
    pub byte: u64,
    /// Length of the range before, bytes.
    pub bytes_before: u64,
    /// Length of its replacement, bytes.
    pub bytes_after: u64,
    /// Tokens of the range before, estimated.
    pub tokens_before: u64,
    /// Tokens of its replacement, estimated.
    pub tokens_after: u64,
}

impl PlanStep {
    pub(in crate::context) fn made(
        change: Change,
        decision: Decision,
        why: DecisionReason,
        at: PartIndex,
        edits: &[Edit],
    ) -> Self {
        Self {
            change,
            decision,
            why,
            at,
            byte: edits.first().map_or(0, |edit| edit.at.start as u64),
            bytes_before: edits.iter().map(|edit| edit.at.len() as u64).sum(),
            bytes_after: edits.iter().map(|edit| edit.with.len() as u64).sum(),
            tokens_before: 0,
            tokens_after: 0,
        }
    }

    /// A change that is not made.
    pub fn declined(
        change: Change,
        why: DecisionReason,
        at: PartIndex,
        span: Span,
        tokens: u64,
    ) -> Self {
        Self {
            change,
            decision: Decision::Declined,
            why,
            at,
            byte: span.start as u64,
            bytes_before: span.len() as u64,
            // Nothing changes, so the range is as long as before.
            bytes_after: span.len() as u64,
            tokens_before: tokens,
            tokens_after: tokens,
        }
    }

    pub(in crate::context) fn removed(&self) -> u64 {
        self.tokens_before.saturating_sub(self.tokens_after)
    }
}

/// Tokens that cuts will save which wait until they pay, or until a summary would be used otherwise. No summary is
/// prepared for them.
pub fn waiting_savings(declined: &[PlanStep]) -> u64 {
    let waiting = declined
        .iter()
        .filter(|step| step.change == Change::Cut && step.why == DecisionReason::NoGain);
    waiting.map(|step| step.tokens_before).sum()
}
