//! What the next request will hold of a turn: what is shown between turns, and what the next decision
//! grows from.
//!
//! One number for each way of counting: ours, which knows what becomes of reasoning, and that of an
//! agent's rules: last input, and of the last output what comes back. Written with the turn, under the
//! policy that was in force.

use foldhash::HashSet;
use serde::{Deserialize, Serialize};

use super::sums::{cleared_next, reasoning_of, reported_reasoning};
use super::{
    Anchor, MeasuredEstimate, MessageTokens, TokenSums, WindowLimits, began_cached, shown, sum,
};
use crate::context::plan::PlanRequest;
use crate::context::policy::StripPolicy;
use crate::context::{PromptSection, SketchPart, Turn, reasoning};
use crate::dialect::models::{Family, Model};
use crate::dialect::{Dialect, LastCall, PartKey, PartKind, Reply};
use crate::tokens::learn::{EstimatorState, Observation};
use crate::tokens::retention::ReasoningRetention;
use crate::tokens::unsent::UnsentReasoning;

/// What of a turn the next request will hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CarryOver {
    /// Tokens: input and output, less what does not go back or is not read again.
    pub tokens: u64,
    /// The same by an agent's rules: last input, and of the last output what comes back.
    pub by_rules: u64,
    /// Whether the agent's rules decided, so that theirs is shown.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ruled: bool,
    /// The part of `tokens` that is reasoning.
    pub reasoning: u64,
    /// Whether the reply's reasoning is expected to come back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub returns: bool,
    /// Whether the client was seen to drop reasoning.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drops: bool,
    /// Where things begin for the next request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<WindowLimits>,
    /// What its messages are made of, estimated.
    #[serde(default, skip_serializing_if = "MessageTokens::is_nothing")]
    pub contents: MessageTokens,
}

impl CarryOver {
    /// The number that is shown.
    pub fn shown(&self) -> u64 {
        if self.ruled { self.by_rules } else { self.tokens }
    }
}

/// What has to be known of a request, once it is sent, to say what the next one will hold of its turn: small,
/// however long the request is.
#[derive(Clone, Debug)]
pub struct CarryOutlook {
    dialect: Dialect,
    streams: bool,
    /// The provider holds earlier history.
    held: bool,
    /// An agent's rules decide.
    ruled: bool,
    /// The provider clears old results past so many tokens.
    clears_past: Option<u64>,
    /// What policy takes out of the reasoning that was sent.
    strip: StripPolicy,
    /// Whether it may be taken out of turns that are over, and of the turn that goes on.
    may_strip: bool,
    may_strip_loop: bool,
    /// Whether the reply's reasoning is put back should the client drop it: in the next turn, and in the
    /// turn that goes on.
    puts_back: bool,
    puts_back_loop: bool,
    /// Whether the client was seen to drop reasoning.
    drops: bool,
    /// Reasoning that was sent, by its place, and the newest of it.
    thoughts: TokenSums,
    newest: Option<SketchPart>,
    /// Where things begin for the next request.
    limits: WindowLimits,
    /// What was sent is made of.
    contents: MessageTokens,
}

/// What the reply says of the request after it.
#[derive(Clone, Copy, Debug)]
struct ReplyCarry {
    /// The reply's reasoning is sent with it, whatever the model makes of it.
    returns: bool,
    /// None of it is expected to be sent: of Gemini's, none without a signature.
    unsent: bool,
    /// So an agent's rules see it, which know of no signatures.
    returns_by_rules: bool,
    /// Calls of tools wait for their results: the user does not speak.
    goes_on: bool,
}

impl CarryOutlook {
    /// Of a request that was sent as it is measured. `rewrites`: whether its thread is rewritten as policy
    /// says. `limits`: where things begin for the next one.
    pub fn new(
        request: &PlanRequest<'_>,
        measured: &MeasuredEstimate,
        anchor: Option<Anchor<'_>>,
        rewrites: bool,
        limits: WindowLimits,
    ) -> Self {
        let parts = &*measured.parts;
        let conversation = request.conversation;
        let strip = if rewrites { request.policy.reasoning.strip() } else { StripPolicy::None };
        Self {
            dialect: conversation.dialect,
            streams: conversation.stream,
            held: conversation.held.is_some(),
            ruled: request.policy.estimate.deciding().is_some(),
            clears_past: request.clears_past.or(conversation.clears_past),
            strip,
            may_strip: reasoning::may_go_next(request, false),
            may_strip_loop: reasoning::may_go_next(request, true),
            puts_back: rewrites && reasoning::is_put_back_next(request, false),
            puts_back_loop: rewrites && reasoning::is_put_back_next(request, true),
            drops: has_dropped(parts, anchor),
            thoughts: TokenSums { words: 0, ..TokenSums::of(parts) },
            newest: parts.iter().rfind(|part| is_reasoning(part.place)).copied(),
            limits,
            contents: measured.contents.clone().with_few_tools(),
        }
    }

    /// What of `turn`, which `reply` ended, the next request holds. `learned`: what is known of its model by
    /// now.
    pub fn carry_over(
        &self,
        turn: &Turn,
        reply: &Reply,
        model: &Model,
        learned: &EstimatorState,
    ) -> CarryOver {
        let back = self.comes_back(reply);
        let began_cached = began_cached(turn);
        let belief = ReasoningRetention::of(model, self.streams, began_cached);
        let streams = self.streams;
        let seen = Observation { belief, streams, began_cached, ..Observation::default() };
        let retention = learned.retention(&seen, shown(turn));
        let contents = self.contents.clone().with_reply(reply, &turn.reply).with_few_tools();
        CarryOver {
            limits: Some(self.limits),
            contents,
            ..self.carried(turn, back, retention, learned.counts_unsent())
        }
    }

    /// What comes back of a reply.
    fn comes_back(&self, reply: &Reply) -> ReplyCarry {
        let is_block = |kind| kind == PartKind::Reasoning;
        let blocks = reply.parts.iter().any(|part| is_block(part.kind));
        let seals = reply.parts.iter().any(|part| !is_block(part.kind) && part.sealed.is_some());
        let goes_on = reply.parts.iter().any(|part| part.kind == PartKind::ToolCall);
        let (may_strip, put_back) = match goes_on {
            true => (self.may_strip_loop, self.puts_back_loop),
            false => (self.may_strip, self.puts_back),
        };
        let stripped = self.strip == StripPolicy::All && may_strip;
        let blocks = blocks && !stripped && (!self.drops || put_back);
        // Gemini's thoughts themselves are not read: their signature is.
        let signs = self.dialect == Dialect::Gemini && seals;
        let returns = self.held || blocks || signs || seals && (!self.drops || put_back);
        ReplyCarry {
            returns,
            unsent: match self.dialect {
                Dialect::Gemini => !self.held && !signs,
                _ => !returns,
            },
            returns_by_rules: self.held
                || blocks
                || seals && !stripped && self.strip != StripPolicy::All,
            goes_on,
        }
    }

    /// `retention`: what the model makes of reasoning; `counted`: whether what is not sent back is input all
    /// the same.
    fn carried(
        &self,
        turn: &Turn,
        back: ReplyCarry,
        retention: ReasoningRetention,
        counted: bool,
    ) -> CarryOver {
        let unsent = if back.unsent { reported_reasoning(turn) } else { 0 };
        let unsent = UnsentReasoning { tokens: unsent, counted }.input();
        let own = if back.returns { reasoning_of(turn) } else { 0 };
        let stay = self.stay(back);
        let reads = |sums: &TokenSums| sums.by_retention()[retention as usize].1;
        let reasoning = reads(&next(stay, own, back.goes_on)).saturating_add(unsent);
        let told = CarryOver {
            ruled: self.ruled,
            reasoning,
            returns: back.returns,
            drops: self.drops,
            ..CarryOver::default()
        };
        let reply = sum(&turn.reply);
        let Some(context) = turn.context() else {
            let tokens = turn.estimate.as_ref().map_or(0, |estimate| estimate.tokens);
            let tokens = tokens.saturating_add(reply);
            return CarryOver { tokens, by_rules: tokens, ..told };
        };
        let kept = context.input.saturating_add(reply).saturating_add(reasoning);
        let kept = kept.saturating_sub(reads(&self.thoughts));
        let tokens = cleared_next(turn, kept, self.clears_past);
        let stripped = self.thoughts.thoughts().saturating_sub(stay.thoughts());
        let lost = if back.returns_by_rules { 0 } else { reasoning_of(turn) };
        let whole = context.input.saturating_add(context.output);
        let by_rules = whole.saturating_sub(lost).saturating_sub(stripped);
        CarryOver { tokens, by_rules, ..told }
    }

    /// Of the reasoning that was sent, what policy leaves in the next request.
    fn stay(&self, back: ReplyCarry) -> TokenSums {
        let stays = |place, all: u64| {
            let may = match back.goes_on && place != PromptSection::OldReasoning {
                true => self.may_strip_loop,
                false => self.may_strip,
            };
            let newest = self.newest.filter(|part| part.place == place && !back.returns);
            match self.strip {
                StripPolicy::All if may => 0,
                StripPolicy::AllButLast if may => newest.map_or(0, |part| u64::from(part.tokens)),
                StripPolicy::None | StripPolicy::All | StripPolicy::AllButLast => all,
            }
        };
        let TokenSums { reasoning, steered, old, .. } = self.thoughts;
        TokenSums {
            reasoning: stays(PromptSection::Reasoning, reasoning),
            steered: stays(PromptSection::SteeredReasoning, steered),
            old: stays(PromptSection::OldReasoning, old),
            ..TokenSums::default()
        }
    }
}

/// Reasoning as it stands in the next request: what stays of what was sent, and the reply's own. Where the
/// user speaks, all of it is of turns that are over.
fn next(stay: TokenSums, own: u64, goes_on: bool) -> TokenSums {
    match goes_on {
        true => TokenSums { reasoning: stay.reasoning.saturating_add(own), ..stay },
        false => TokenSums { old: stay.thoughts().saturating_add(own), ..TokenSums::default() },
    }
}

/// Whether a client was seen to drop reasoning: what was expected to come back did not, or it was seen
/// before.
fn has_dropped(parts: &[SketchPart], anchor: Option<Anchor<'_>>) -> bool {
    let Some((anchor, carry)) = anchor.and_then(|it| Some((it, it.turn.carry.as_ref()?))) else {
        return false;
    };
    if !carry.returns || reasoning_of(anchor.turn) == 0 {
        return carry.drops;
    }
    let thoughts = |parts: &[SketchPart]| parts.iter().filter(|it| is_reasoning(it.place)).count();
    let before: HashSet<PartKey> = anchor.sketch.iter().map(|part| part.key).collect();
    let is_new = |part: &&SketchPart| is_reasoning(part.place) && !before.contains(&part.key);
    let came = parts.iter().any(|part| is_new(&part));
    // The same signature may come many times.
    !came && thoughts(parts) <= thoughts(anchor.sketch)
}

/// Whether reasoning stands there.
fn is_reasoning(place: PromptSection) -> bool {
    matches!(
        place,
        PromptSection::Reasoning | PromptSection::SteeredReasoning | PromptSection::OldReasoning
    )
}

impl Turn {
    /// Input and output that measure its context. Of a reply that broke off after its input was reported
    /// the output is what came of it, counted, where that is more than was reported.
    pub fn context(&self) -> Option<LastCall> {
        let usage = &self.usage;
        let cut = || {
            let is_cut = usage.lower_bound && !usage.hosted_tools && usage.last_call.is_none();
            let input = usage.input.filter(|_| is_cut)?;
            let said = self.reply.iter().map(|part| u64::from(part.tokens)).sum();
            Some(LastCall { input, output: usage.output.unwrap_or(0).max(said) })
        };
        usage.context().or_else(cut)
    }

    /// What the next request will hold of it by an agent's rules.
    pub(super) fn carried_by_rules(&self) -> Option<u64> {
        let context = self.context()?;
        let whole = context.input.saturating_add(context.output);
        let lost = || whole.saturating_sub(lost_reasoning(self).min(context.output));
        Some(self.carry.as_ref().map_or_else(lost, |carry| carry.by_rules))
    }

    /// The number that is shown after it: what the next request will hold of it.
    pub fn carried(&self) -> Option<u64> {
        if let Some(carry) = &self.carry {
            return Some(carry.shown());
        }
        self.carried_by_rules().or(self.estimate.as_ref().map(|estimate| estimate.tokens))
    }
}

/// Reasoning of a reply that never comes back, where nothing was written of that with the turn: OpenAI's
/// Chat Completions does not show it.
fn lost_reasoning(turn: &Turn) -> u64 {
    match (turn.dialect, turn.family) {
        (Dialect::OpenaiChat, Family::O200k) => reasoning_of(turn),
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
