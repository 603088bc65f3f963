//! What the next request will hold of a turn: what is shown between turns, and what the next decision
//! grows from.
//!
//! One number for each way of counting: ours, which knows what becomes of reasoning, and that of an
//! agent's rules: last input, and of the last output what comes back. Written with the turn, under the
//! policy that was in force.

use foldhash::HashSet;
use serde::{Deserialize, Serialize};

use super::sums::{cleared_next, reasoning_of};
use super::{Anchor, Contents, Limits, Sums, began_cached, shown, sum};
use crate::context::plan::Request;
use crate::context::policy::Strip;
use crate::context::{Place, Sketched, Turn, reasoning};
use crate::dialect::models::Family;
use crate::dialect::{Dialect, LastCall, PartKey, PartKind, Reply};
use crate::tokens::learn::{Habit, Learned, Observation};

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
    pub limits: Option<Limits>,
    /// What its messages are made of, estimated.
    #[serde(default, skip_serializing_if = "Contents::is_nothing")]
    pub contents: Contents,
}

impl CarryOver {
    /// After `reply` to `request`, which became `turn` and was sent as `parts` say. `rewrites`: whether its
    /// thread is rewritten as policy says; `learned`: what is known of its model by now.
    pub fn after(
        turn: &Turn,
        request: &Request<'_>,
        reply: &Reply,
        (parts, anchor): (&[Sketched], Option<Anchor<'_>>),
        rewrites: bool,
        learned: &Learned,
    ) -> Self {
        let prospect = Prospect::new(request, reply, rewrites, has_dropped(parts, anchor));
        let began_cached = began_cached(turn);
        let streams = request.conversation.stream;
        let belief = Habit::of(request.model, streams, began_cached);
        let seen = Observation { belief, streams, began_cached, ..Observation::default() };
        let habit = learned.habit(&seen, shown(turn));
        let clears_past = request.clears_past.or(request.conversation.clears_past);
        let ruled = request.policy.estimate.deciding().is_some();
        prospect.carry_over(turn, parts, habit, clears_past, ruled)
    }

    /// The number that is shown.
    pub fn shown(&self) -> u64 {
        if self.ruled { self.by_rules } else { self.tokens }
    }
}

/// What the reply of a turn says of the request after it.
#[derive(Clone, Copy, Debug)]
struct Prospect {
    /// The reply's reasoning is sent with it, whatever the model makes of it.
    returns: bool,
    /// So an agent's rules see it, which know of no signatures.
    returns_by_rules: bool,
    /// Calls of tools wait for their results: the person does not speak.
    goes_on: bool,
    /// What policy takes out of the reasoning that was sent.
    strip: Strip,
    /// Whether it may be taken out of turns that are over.
    may_strip: bool,
    /// Whether it may be taken out of the turn that goes on.
    may_strip_loop: bool,
    /// Whether the client was seen to drop reasoning.
    drops: bool,
}

impl Prospect {
    /// After `reply` to `request`. `rewrites`: whether its thread is rewritten as policy says; `drops`:
    /// whether its client was seen to drop reasoning.
    fn new(request: &Request<'_>, reply: &Reply, rewrites: bool, drops: bool) -> Self {
        let conversation = request.conversation;
        let is_block = |kind| kind == PartKind::Reasoning;
        let blocks = reply.parts.iter().any(|part| is_block(part.kind));
        let seals = reply.parts.iter().any(|part| !is_block(part.kind) && part.sealed.is_some());
        let goes_on = reply.parts.iter().any(|part| part.kind == PartKind::ToolCall);
        let policy = &request.policy.reasoning;
        let strip = if rewrites { policy.strip() } else { Strip::None };
        let stripped = strip == Strip::All && reasoning::may_go_next(request, goes_on);
        let put_back = rewrites && reasoning::is_put_back_next(request, goes_on);
        let held = conversation.held.is_some();
        let blocks = blocks && !stripped && (!drops || put_back);
        // Gemini's thoughts themselves are not read: their signature is.
        let signs = conversation.dialect == Dialect::Gemini && seals;
        Self {
            returns: held || blocks || signs || seals && (!drops || put_back),
            returns_by_rules: held || blocks || seals && !stripped && strip != Strip::All,
            goes_on,
            strip,
            may_strip: reasoning::may_go_next(request, false),
            may_strip_loop: reasoning::may_go_next(request, true),
            drops,
        }
    }

    /// What of `turn` the next request holds. `parts`: what was sent; `habit`: what the model makes of
    /// reasoning; `ruled`: an agent's rules decide.
    fn carry_over(
        &self,
        turn: &Turn,
        parts: &[Sketched],
        habit: Habit,
        clears_past: Option<u64>,
        ruled: bool,
    ) -> CarryOver {
        let own = if self.returns { reasoning_of(turn) } else { 0 };
        let next = self.places(parts, own);
        let reads = |sums: &Sums| {
            let (_, all) = sums.by_habit()[habit as usize];
            all.saturating_sub(sums.words)
        };
        let (now, then) = (Sums::of(parts), Sums::of(&next));
        let reasoning = reads(&then);
        let reply = sum(&turn.reply);
        let Some(context) = turn.context() else {
            let tokens = turn.estimate.as_ref().map_or(0, |estimate| estimate.tokens);
            let tokens = tokens.saturating_add(reply);
            return CarryOver { tokens, by_rules: tokens, ruled, reasoning, ..self.told() };
        };
        let kept = context.input.saturating_add(reply).saturating_add(reasoning);
        let tokens = cleared_next(turn, kept.saturating_sub(reads(&now)), clears_past);
        let stripped = sum_of_reasoning(parts).saturating_sub(sum_of_reasoning(&next[..]) - own);
        let lost = if self.returns_by_rules { 0 } else { reasoning_of(turn) };
        let whole = context.input.saturating_add(context.output);
        let by_rules = whole.saturating_sub(lost).saturating_sub(stripped);
        CarryOver { tokens, by_rules, ruled, reasoning, ..self.told() }
    }

    fn told(&self) -> CarryOver {
        CarryOver { returns: self.returns, drops: self.drops, ..CarryOver::default() }
    }

    /// Reasoning as it stands in the next request: what was sent, and the reply's own.
    fn places(&self, parts: &[Sketched], own: u64) -> Vec<Sketched> {
        let is_old = |place| place == Place::OldReasoning;
        let newest = parts.iter().rposition(|part| is_reasoning(part.place));
        let leaves = |at: usize, part: &Sketched| {
            let may = match self.goes_on && !is_old(part.place) {
                true => self.may_strip_loop,
                false => self.may_strip,
            };
            match self.strip {
                Strip::None => false,
                Strip::All => may,
                Strip::AllButLast => may && (self.returns || newest != Some(at)),
            }
        };
        let thoughts = parts.iter().enumerate();
        let stay = thoughts.filter(|(at, part)| is_reasoning(part.place) && !leaves(*at, part));
        let moved = stay.map(|(_, part)| match self.goes_on {
            true => *part,
            false => Sketched { place: Place::OldReasoning, ..*part },
        });
        let place = if self.goes_on { Place::Reasoning } else { Place::OldReasoning };
        let tokens = u32::try_from(own).unwrap_or(u32::MAX);
        let key = PartKey(0);
        moved.chain((own > 0).then_some(Sketched { key, tokens, place })).collect()
    }
}

/// Whether a client was seen to drop reasoning: what was expected to come back did not, or it was seen
/// before.
fn has_dropped(parts: &[Sketched], anchor: Option<Anchor<'_>>) -> bool {
    let Some((anchor, carry)) = anchor.and_then(|it| Some((it, it.turn.carry.as_ref()?))) else {
        return false;
    };
    if !carry.returns || reasoning_of(anchor.turn) == 0 {
        return carry.drops;
    }
    let thoughts = |parts: &[Sketched]| parts.iter().filter(|it| is_reasoning(it.place)).count();
    let before: HashSet<PartKey> = anchor.sketch.iter().map(|part| part.key).collect();
    let is_new = |part: &&Sketched| is_reasoning(part.place) && !before.contains(&part.key);
    let came = parts.iter().any(|part| is_new(&part));
    // The same signature may come many times.
    !came && thoughts(parts) <= thoughts(anchor.sketch)
}

/// Whether reasoning stands there.
fn is_reasoning(place: Place) -> bool {
    matches!(place, Place::Reasoning | Place::SteeredReasoning | Place::OldReasoning)
}

fn sum_of_reasoning(parts: &[Sketched]) -> u64 {
    let thoughts = parts.iter().filter(|part| is_reasoning(part.place));
    thoughts.map(|part| u64::from(part.tokens)).sum()
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
