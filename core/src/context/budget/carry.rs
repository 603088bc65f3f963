//! What the next request will contain of a turn: the number shown between turns, which the next decision is
//! based on.
//!
//! There is one number per way of counting. Ours knows the model's reasoning retention. The one by an agent's
//! rules is the last input plus the part of the last output that comes back. Both are written with the turn,
//! under the policy of that time.

use foldhash::HashSet;

use super::anchor::{Anchor, cache_blocks, evidence_of, sum};
use super::classic::first_new;
use super::measure::MeasuredEstimate;
use super::returned::{has_content, reply_weight};
use super::sums::{TokenSums, cleared_next, reasoning_by_rules, reasoning_of, returned_reasoning};
use crate::context::plan::PlanRequest;
use crate::context::policy::StripPolicy;
use crate::context::reasoning::{self, NextRequest};
use crate::context::records::CarryOver;
use crate::context::records::MessageTokens;
use crate::context::records::WindowLimits;
use crate::context::{EstimateMethod, ExchangeId, PromptSection, SketchPart, Turn};
use crate::dialect::models::{Family, Model};
use crate::dialect::{
    Chain, Conversation, Dialect, LastCall, Part, PartKey, PartKind, Reply, Role,
};
use crate::tokens::classic::{ClassicRules, SentContent};
use crate::tokens::learn::{EstimatorState, Observation};
use crate::tokens::retention::ReasoningRetention;
use crate::tokens::unsent::UnsentReasoning;

/// What has to be kept of a sent request to predict the next one. Its size does not depend on the request's
/// length.
#[derive(Clone, Debug)]
pub struct CarryOutlook {
    dialect: Dialect,
    streams: bool,
    /// The provider holds earlier history.
    held: bool,
    /// The count by an agent's rules, if they decide.
    rules: Option<RulesCount>,
    /// Input and output of the call that the estimate is based on.
    basis: Option<LastCall>,
    /// The provider clears old tool results past this many input tokens.
    clears_past: Option<u64>,
    /// Which of the sent reasoning policy removes.
    strip: StripPolicy,
    /// Whether it may be removed from finished turns, and from the open turn.
    may_strip: bool,
    may_strip_loop: bool,
    /// Whether the reply's reasoning is put back if the client drops it.
    puts_back: bool,
    /// Whether the client has dropped reasoning before.
    drops: bool,
    /// The same if the reply that shows it is not that of the turn before.
    dropped_before: bool,
    /// The exchange that the estimate is based on.
    anchor: Option<ExchangeId>,
    /// The tokens of the reasoning that was sent, by section.
    thoughts: TokenSums,
    /// Those that policy does not remove: of signatures on text and calls.
    fixed: TokenSums,
    /// The newest piece that policy may remove.
    newest: Option<SketchPart>,
    /// The points at which pruning, compaction and so on begin, for the next request.
    limits: WindowLimits,
    /// The sent messages by kind of content.
    contents: MessageTokens,
}

/// A count by an agent's rules before its last rounding, so that more can be added.
#[derive(Clone, Debug)]
struct RulesCount {
    rules: ClassicRules,
    /// Tokens that come from an earlier call.
    before: u64,
    /// The weight of what is new since.
    weight: f64,
    /// The share of it that is reasoning which policy removes, if it may be removed.
    stripped: f64,
    /// Where the request of that call ended. A repetition of it counts with its reply, whatever came this time.
    after: Option<Chain>,
}

/// What the reply shows about the next request.
#[derive(Clone, Copy, Debug)]
struct ReplyCarry {
    /// The reply's reasoning is sent with it, whether the model reads it or not.
    returns: bool,
    /// None of the reasoning is expected to be sent: with Gemini, reasoning without a signature.
    unsent: bool,
    /// Whether the reasoning comes back by an agent's rules, which do not know signatures.
    returns_by_rules: bool,
    /// Nothing in the reply can bring it back.
    hidden: bool,
    /// Tool calls wait for their results, so the next message is not the user's.
    goes_on: bool,
}

impl CarryOutlook {
    /// For a request that was sent as measured. `rewrites`: whether policy's rewrites apply to its thread.
    /// `limits`: the points at which pruning and so on begin, for the next request.
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
        let signed: HashSet<PartKey> = conversation
            .parts()
            .filter(|part| !reasoning::is_removable(conversation.dialect, part))
            .filter_map(|part| part.signature_key)
            .collect();
        let is_answered = anchor.is_some_and(|anchor| has_reply(conversation, &anchor));
        let mut thoughts = parts.iter().filter(|part| is_reasoning(part.place));
        Self {
            dialect: conversation.dialect,
            streams: conversation.stream,
            held: conversation.held.is_some(),
            rules: request.policy.estimate.deciding().zip(measured.classic.as_ref()).map(
                |(rules, classic)| RulesCount {
                    rules: rules.clone(),
                    before: classic.before,
                    weight: classic.weight,
                    stripped: match strip == StripPolicy::All && classic.before == 0 {
                        true => reasoning_weight(rules, request, parts),
                        false => 0.0,
                    },
                    after: anchor.map(|anchor| anchor.turn.position.chain),
                },
            ),
            basis: match measured.estimate.method {
                EstimateMethod::Estimated => None,
                _ => anchor.and_then(|anchor| anchor.turn.context()),
            },
            clears_past: request.clears_past.or(conversation.clears_past),
            strip,
            may_strip: reasoning::may_go_next(request, NextRequest::NewTurn),
            may_strip_loop: reasoning::may_go_next(request, NextRequest::InLoop),
            puts_back: rewrites && reasoning::is_put_back_next(request),
            drops: has_dropped(parts, anchor, is_answered),
            dropped_before: has_dropped(parts, anchor, false),
            anchor: anchor.map(|anchor| anchor.turn.exchange.clone()),
            thoughts: TokenSums { content: 0, ..TokenSums::from_parts(parts) },
            fixed: TokenSums::from_parts(
                thoughts.clone().filter(|part| signed.contains(&part.key)),
            ),
            newest: thoughts.rfind(|part| !signed.contains(&part.key)).copied(),
            limits,
            contents: measured.contents.clone().with_few_tools(),
        }
    }

    /// What the next request contains of `turn`, which ended with `reply`. `learned`: what is known about its
    /// model by now.
    pub fn carry_over(
        mut self,
        turn: &Turn,
        reply: &Reply,
        model: &Model,
        learned: &EstimatorState,
    ) -> CarryOver {
        // Another reply than the anchor's is in the request: it shows nothing of the anchor's reasoning.
        if turn.position.parent != self.anchor {
            self.drops = self.dropped_before;
        }
        let reply_carry = self.reply_carry(reply);
        let cache = cache_blocks(turn);
        let observation = Observation {
            belief: ReasoningRetention::prior(model, self.streams, cache),
            streams: self.streams,
            cache,
            ..Observation::default()
        };
        let retention = learned.retention(&observation, evidence_of(turn));
        let contents = self.contents.clone().with_reply(reply, &turn.reply).with_few_tools();
        let counts_unsent = learned.counts_unsent(self.streams);
        let mut carry = self.carried(turn, reply_carry, retention, counts_unsent);
        // Without usage of its own, the call before it and our count of the reply must do.
        if turn.context().is_none() {
            carry.basis = self.basis;
            if let Some(RulesCount { rules, before, weight, stripped, after }) = &self.rules {
                let thoughts = reply_carry.returns_by_rules && !self.drops;
                let reply = match *after == Some(turn.position.chain) {
                    true => 0.0,
                    false => reply_weight(rules, self.dialect, reply, thoughts),
                };
                let may_strip =
                    if reply_carry.goes_on { self.may_strip_loop } else { self.may_strip };
                let stripped = if may_strip { *stripped } else { 0.0 };
                carry.by_rules = before.saturating_add(rules.sum(weight - stripped + reply));
            }
        }
        CarryOver { limits: Some(self.limits), contents, ..carry }
    }

    fn reply_carry(&self, reply: &Reply) -> ReplyCarry {
        let has_blocks = reply.parts.iter().any(|part| part.kind == PartKind::Reasoning);
        // Nobody sends reasoning alone, such as that of a stream that broke off in it.
        let blocks = has_blocks && has_content(reply);
        let signs_parts = reply
            .parts
            .iter()
            .any(|part| part.kind != PartKind::Reasoning && part.signature.is_some());
        // Half a call has no key: nobody can answer it.
        let goes_on =
            reply.parts.iter().any(|part| part.kind == PartKind::ToolCall && part.key.is_some());
        let mut parts = reply.forms().flatten();
        let has_reasoning =
            parts.any(|part| part.kind == PartKind::Reasoning || part.signature.is_some());
        let hidden = !self.held && !has_reasoning;
        let may_strip = if goes_on { self.may_strip_loop } else { self.may_strip };
        let stripped = self.strip == StripPolicy::All && may_strip;
        let blocks = blocks && !stripped && (!self.drops || self.puts_back);
        // Gemini's thoughts themselves are not read; their signature is.
        let signs = self.dialect == Dialect::Gemini && signs_parts;
        let returns =
            self.held || blocks || signs || signs_parts && (!self.drops || self.puts_back);
        ReplyCarry {
            returns,
            unsent: match self.dialect {
                Dialect::Gemini => !self.held && !signs,
                _ => !returns,
            },
            returns_by_rules: self.held || {
                let strips_all = self.strip == StripPolicy::All;
                // Gemini reads no thoughts, so that they count only where nothing leaves them out.
                let reads_blocks = self.dialect != Dialect::Gemini || !strips_all;
                blocks && reads_blocks || signs_parts && !strips_all
            },
            hidden,
            goes_on,
        }
    }

    /// `retention`: the model's reasoning retention. `counted`: whether reasoning that is not sent back is
    /// billed as input all the same.
    fn carried(
        &self,
        turn: &Turn,
        reply_carry: ReplyCarry,
        retention: ReasoningRetention,
        counted: bool,
    ) -> CarryOver {
        let unsent = if reply_carry.unsent { reasoning_of(turn) } else { 0 };
        let unsent = UnsentReasoning { tokens: unsent, counted }.input();
        let reply_reasoning = if reply_carry.returns { returned_reasoning(turn) } else { 0 };
        let stay = self.stay(reply_carry);
        let next_reasoning = next(stay, reply_reasoning, reply_carry.goes_on);
        let read = next_reasoning.read(retention);
        let reasoning = read.saturating_add(unsent);
        let carried_over = CarryOver {
            ruled: self.rules.is_some(),
            reasoning,
            returns: reply_carry.returns,
            drops: self.drops,
            hidden: reply_carry.hidden && reasoning_of(turn) > 0,
            ..CarryOver::default()
        };
        let reply = sum(&turn.reply);
        let Some(context) = turn.context() else {
            let tokens = turn.estimate.as_ref().map_or(0, |estimate| estimate.tokens);
            let tokens = tokens.saturating_add(reply);
            return CarryOver { tokens, by_rules: tokens, ..carried_over };
        };
        // The input contains the reasoning that was sent; `read` is what of it the next one has.
        let tokens = context.input.saturating_add(reply).saturating_add(read);
        let tokens = tokens.saturating_sub(self.thoughts.read(retention)).saturating_add(unsent);
        let tokens = cleared_next(turn, tokens, self.clears_past);
        let stripped = self.thoughts.thoughts().saturating_sub(stay.thoughts());
        let lost = if reply_carry.returns_by_rules { 0 } else { reasoning_by_rules(turn) };
        let reported = context.input.saturating_add(context.output);
        let by_rules = reported.saturating_sub(lost).saturating_sub(stripped);
        CarryOver { tokens, by_rules, ..carried_over }
    }

    fn stay(&self, reply_carry: ReplyCarry) -> TokenSums {
        let TokenSums { reasoning, steered, old, .. } = self.thoughts;
        let may_strip = self.may_strip;
        // The open turn goes on with the results of the reply's calls.
        let may_strip_open = if reply_carry.goes_on { self.may_strip_loop } else { may_strip };
        // What stands behind a signature on a text or call stays with it.
        let mut stay = TokenSums {
            reasoning: self.stripped(reasoning, self.fixed.reasoning, may_strip_open),
            steered: self.stripped(steered, self.fixed.steered, may_strip),
            old: self.stripped(old, self.fixed.old, may_strip),
            ..TokenSums::default()
        };
        // If the reply's reasoning does not come back, the newest that was sent stays the newest.
        if self.strip == StripPolicy::AllButLast
            && !reply_carry.returns
            && let Some(newest) = self.newest
        {
            let is_stripped = match newest.place {
                PromptSection::Reasoning => may_strip_open,
                _ => may_strip,
            };
            if is_stripped {
                stay.add(&newest);
            }
        }
        stay
    }

    fn stripped(&self, all: u64, fixed: u64, may_strip: bool) -> u64 {
        match self.strip {
            StripPolicy::All | StripPolicy::AllButLast if may_strip => fixed,
            StripPolicy::None | StripPolicy::All | StripPolicy::AllButLast => all,
        }
    }
}

fn next(stay: TokenSums, own: u64, goes_on: bool) -> TokenSums {
    // If the user sends a text next, all of it belongs to finished turns.
    match goes_on {
        true => TokenSums { reasoning: stay.reasoning.saturating_add(own), ..stay },
        false => TokenSums { old: stay.thoughts().saturating_add(own), ..TokenSums::default() },
    }
}

fn reasoning_weight(rules: &ClassicRules, request: &PlanRequest<'_>, sent: &[SketchPart]) -> f64 {
    let sent: HashSet<PartKey> =
        sent.iter().filter(|part| is_reasoning(part.place)).map(|part| part.key).collect();
    let messages = &request.conversation.messages;
    // The difference of two counts: each message and each piece is rounded by itself.
    let with_sent = rules.weigh(request.body, messages, &|part: &Part| match part.kind {
        PartKind::Reasoning
            if !part.reasoning_key.is_some_and(|key| sent.contains(&PartKey(key))) =>
        {
            SentContent::Gone
        }
        _ => SentContent::Whole,
    });
    let without = rules.weigh(request.body, messages, &|part: &Part| match part.kind {
        PartKind::Reasoning => SentContent::Gone,
        _ => SentContent::Whole,
    });
    with_sent - without
}

fn has_reply(conversation: &Conversation, anchor: &Anchor<'_>) -> bool {
    let index = first_new(conversation, anchor).checked_sub(1);
    let message = index.and_then(|index| conversation.messages.get(index));
    conversation.held.is_some() || message.is_some_and(|message| message.role == Role::Assistant)
}

fn has_dropped(parts: &[SketchPart], anchor: Option<Anchor<'_>>, has_reply: bool) -> bool {
    let Some(anchor) = anchor else { return false };
    let Some(carry) = &anchor.turn.carry else { return false };
    // A repeated request shows nothing.
    if !has_reply || !carry.returns || reasoning_of(anchor.turn) == 0 {
        return carry.drops;
    }
    let earlier: HashSet<PartKey> = anchor.sketch.iter().map(|part| part.key).collect();
    let has_new = parts.iter().any(|part| is_reasoning(part.place) && !earlier.contains(&part.key));
    // The client may send one signature several times.
    !has_new && reasoning_count(parts) <= reasoning_count(anchor.sketch)
}

fn reasoning_count(parts: &[SketchPart]) -> usize {
    parts.iter().filter(|part| is_reasoning(part.place)).count()
}

fn is_reasoning(place: PromptSection) -> bool {
    matches!(
        place,
        PromptSection::Reasoning | PromptSection::SteeredReasoning | PromptSection::OldReasoning
    )
}

impl Turn {
    /// Input and output that measure its context. If the reply broke off after its input was reported, the
    /// output is the larger of the reported number and our count of what was received.
    pub(crate) fn context(&self) -> Option<LastCall> {
        let usage = &self.usage;
        let context = usage.context().or_else(|| self.cut_context())?;
        // Of several replies, the client continues with one.
        let others: u64 = self.others.iter().map(|form| form.output).sum();
        Some(LastCall { output: context.output.saturating_sub(others), ..context })
    }

    fn cut_context(&self) -> Option<LastCall> {
        let usage = &self.usage;
        // With several calls behind one report, the input is that of all of them.
        if !usage.lower_bound || usage.hosted_tools || usage.last_call.is_some() {
            return None;
        }
        let reply_tokens = self.reply.iter().map(|part| u64::from(part.tokens)).sum();
        Some(LastCall { input: usage.input?, output: usage.output.unwrap_or(0).max(reply_tokens) })
    }

    /// What the next request will contain of it by an agent's rules, tokens.
    pub(super) fn carried_by_rules(&self) -> Option<u64> {
        let context = self.context()?;
        if let Some(carry) = &self.carry {
            return Some(carry.by_rules);
        }
        let reported = context.input.saturating_add(context.output);
        Some(reported.saturating_sub(lost_reasoning(self).min(context.output)))
    }

    /// The number shown after it: what the next request will contain of it, tokens.
    pub fn carried(&self) -> Option<u64> {
        if let Some(carry) = &self.carry {
            return Some(carry.displayed());
        }
        self.carried_by_rules().or(self.estimate.as_ref().map(|estimate| estimate.tokens))
    }
}

fn lost_reasoning(turn: &Turn) -> u64 {
    // For turns without a stored carry-over: OpenAI's Chat Completions does not return reasoning.
    match (turn.dialect, turn.family) {
        (Dialect::OpenaiChat, Family::O200k) => reasoning_of(turn),
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
