//! A request as planning sees it: its content, its model, and the policy that applies to it.
//!
//! What was decided about its conversation before is in `recorded`; nothing is decided here.

use crate::context::policy::{Mode, Policy, ReasoningRule, StripPolicy};
use crate::context::{ExchangeId, Millis, turn_start};
use crate::dialect::models::{Model, ReasoningBinding};
use crate::dialect::{Conversation, Dialect, Part, PartIndex, PartKind, Role};
use crate::tokens::Tokenizer;

/// A request to plan for, and the policy that applies to it.
#[derive(Clone, Copy)]
pub struct PlanRequest<'a> {
    /// New decisions are recorded as this exchange's.
    pub exchange: &'a ExchangeId,
    /// The request as it was read.
    pub conversation: &'a Conversation,
    /// The body that `conversation` was read from.
    pub body: &'a [u8],
    /// What is known about the model that it asks for.
    pub model: &'a Model,
    /// The model, as the client named it.
    pub name: &'a str,
    /// The configured upstream's name.
    pub upstream: &'a str,
    /// What the upstream does with reasoning that is sent back.
    pub reasoning_rule: ReasoningRule,
    /// The provider refused to compact contexts of this model.
    pub compaction_refused: bool,
    /// What may be changed.
    pub policy: &'a Policy,
    /// Whether its client is left to compact by itself: one that is known to do it
    /// ([`compacts_by_itself`](crate::context::compact::compacts_by_itself)) is, under a preset none is. `None`: once
    /// it was seen to.
    pub client_compacts: Option<bool>,
    /// The mode: observe, shadow or active.
    pub mode: Mode,
    /// The provider is asked to clear old tool results instead of us, past this many input tokens.
    pub clears_past: Option<u64>,
    /// Counts the tokens of what is inserted.
    pub tokenizer: Tokenizer,
    /// Output tokens that are reserved.
    pub reserve: u64,
    /// When it came; ms since 1970.
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

    /// Tokens of the window that the request may fill: the window less the reserve, or less a quarter if the
    /// reserve is half of the window or more. By this number results are cut and histories compacted.
    pub fn fillable(&self) -> u64 {
        let window = self.model.window;
        // A reserve of half of the window or more is not meant literally.
        let is_sensible = self.reserve.saturating_mul(2) < window;
        window.saturating_sub(if is_sensible { self.reserve } else { window / 4 })
    }

    /// Whether decisions are made for shadow mode only.
    pub fn is_shadow(&self) -> bool {
        self.mode == Mode::Shadow
    }

    pub(crate) fn is_models(&self, message: usize) -> bool {
        self.conversation
            .messages
            .get(message)
            .is_some_and(|message| message.role == Role::Assistant)
    }

    pub(crate) fn part(&self, at: PartIndex) -> Option<&Part> {
        self.conversation.part(at)
    }

    /// The newest message that is the user's own text. Reasoning after it belongs to the open tool loop, and
    /// is kept.
    pub(crate) fn newest_user_message(&self) -> usize {
        // Tokens are counted by `turn_start`, which differs for text right after tool results, and
        // with Gemini for text beside results.
        self.conversation.messages.iter().rposition(turn_start::is_users).unwrap_or(0)
    }

    /// Whether the provider requires reasoning of the open tool loop that a change before it would make void
    /// (`docs/protocols.md` 1.5).
    pub(crate) fn needs_loop_reasoning(&self) -> bool {
        self.reasoning_rule == ReasoningRule::Demanded && self.is_bound() && self.is_in_loop()
    }

    /// Whether policy lets a cut make reasoning void, which is then taken out.
    pub(crate) fn accepts_reasoning_loss(&self) -> bool {
        self.policy.prune.accept_reasoning_loss
            || self.policy.reasoning.strip() != StripPolicy::None
    }

    /// Whether the model is in the middle of a tool loop: the newest of the texts, calls and results is a
    /// call or a result.
    pub(crate) fn is_in_loop(&self) -> bool {
        // Other parts (images, references to tools) come with results as well as with text.
        let newest = self.conversation.parts().rev().find(|part| {
            let decides =
                matches!(part.kind, PartKind::Text | PartKind::ToolCall | PartKind::ToolResult);
            decides && part.key.is_some()
        });
        newest.is_some_and(|part| part.kind != PartKind::Text)
    }
}
