//! Sums over parts: what is read for each habit, and what came and left since an anchor.
//!
//! Parts that stayed cancel out, whatever they were believed to cost. Counts no text.

use super::{Anchor, sum};
use crate::context::{Breakdown, PromptSection, SketchPart, Turn};
use crate::tokens::learn::CostPrediction;
use crate::tokens::retention::{ByRetention, ReasoningRetention};

/// Sums of parts, tokens.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TokenSums {
    /// All but reasoning, the structure around what is new not counted.
    pub(super) words: u64,
    /// Reasoning after the user's last words.
    pub(super) reasoning: u64,
    /// Reasoning before them, of the turn that goes on.
    pub(super) steered: u64,
    /// Reasoning of turns before it.
    pub(super) old: u64,
    /// What stands around new parts.
    pub(super) around: i64,
    /// The same once more where reasoning is read.
    pub(super) around_read: u64,
    /// Of `words`, those that neither the anchor's request nor its reply held, with what stands around
    /// them.
    pub(super) new: u64,
}

impl TokenSums {
    pub(super) fn of(parts: &[SketchPart]) -> Self {
        parts.iter().fold(Self::default(), |mut sums, part| {
            sums.add(part);
            sums
        })
    }

    pub(super) fn add(&mut self, part: &SketchPart) {
        let sum = match part.place {
            PromptSection::Reasoning => &mut self.reasoning,
            PromptSection::SteeredReasoning => &mut self.steered,
            PromptSection::OldReasoning => &mut self.old,
            PromptSection::System
            | PromptSection::Tools
            | PromptSection::SystemItem
            | PromptSection::ToolsItem
            | PromptSection::History => &mut self.words,
        };
        *sum += u64::from(part.tokens);
    }

    /// All reasoning, wherever it stands.
    pub(super) fn thoughts(&self) -> u64 {
        self.reasoning + self.steered + self.old
    }

    /// What is read, for each habit.
    pub(super) fn by_retention(&self) -> ByRetention<(ReasoningRetention, u64)> {
        ReasoningRetention::ALL.map(|retention| {
            let (thoughts, around) = match retention {
                ReasoningRetention::Keeps => (self.thoughts(), self.around_read),
                ReasoningRetention::Loops => (self.reasoning + self.steered, self.around_read),
                ReasoningRetention::Turns => (self.reasoning, self.around_read),
                ReasoningRetention::Drops => (0, 0),
            };
            let words = self.words.saturating_add_signed(self.around);
            (retention, words.saturating_add(thoughts).saturating_add(around))
        })
    }
}

/// Tokens that may leave without meaning anything: marks around a reply.
pub(super) const FEW: u64 = 64;

/// Reasoning that may leave between two calls, tokens.
pub(super) fn thoughts(anchor: &Anchor<'_>) -> u64 {
    reasoning_of(anchor.turn).saturating_add(TokenSums::of(anchor.sketch).thoughts())
}

/// What was reported, and what came and left since: the parts that stayed cancel out. `left`: tokens of
/// the history that is gone, as they were counted; with much of it goes its share of what the whole was
/// counted wrong by.
pub(super) fn grown(
    anchor: &Anchor<'_>,
    retention: ReasoningRetention,
    all: u64,
    left: u64,
    clears_past: Option<u64>,
) -> u64 {
    let before = TokenSums::of(anchor.sketch).by_retention()[retention as usize].1;
    let reported = whole(anchor);
    let wrong = miscounted(reported, before, left);
    let whole = reported.saturating_add(all).saturating_sub(before).saturating_add_signed(-wrong);
    cleared(anchor, whole, clears_past)
}

/// A guess with a floor, and a band as wide as what it stands on is unsure. What left was counted, not
/// measured: a response schema that was counted for more than it cost takes more with it than there was.
/// `head_left`: tokens of system prompt and tools that left, as they were counted.
pub(super) fn floored(
    guess: CostPrediction,
    anchor: &Anchor<'_>,
    now: &TokenSums,
    head_left: u64,
) -> CostPrediction {
    let at = guess.retention as usize;
    let (all, before) =
        (now.by_retention()[at].1, TokenSums::of(anchor.sketch).by_retention()[at].1);
    // What is sent now, if all of it was counted wrong as the whole was.
    let reported = u128::from(whole(anchor).min(before));
    let share = (u128::from(all) * reported / u128::from(before.max(1))) as u64;
    let unsure = head_left / 2;
    let (low, high) = (guess.low.saturating_sub(unsure), guess.high.saturating_add(unsure));
    if guess.tokens >= share / 2 {
        return CostPrediction { low: low.max(share / 4).min(guess.tokens), high, ..guess };
    }
    let by_retention = guess.by_retention.map(|tokens| tokens.max(share));
    CostPrediction {
        tokens: share,
        by_retention,
        low: share / 4,
        high: high.max(all).max(share),
        ..guess
    }
}

/// Tokens of the history that is gone, as the provider counts: `left`, as they were counted, with their share
/// of what the whole was counted wrong by.
pub(super) fn went(anchor: &Anchor<'_>, retention: ReasoningRetention, left: u64) -> u64 {
    let before = TokenSums::of(anchor.sketch).by_retention()[retention as usize].1;
    left.saturating_add_signed(miscounted(whole(anchor), before, left))
}

/// What was counted too little of `left` tokens, if the whole, `before`, was `reported` in truth.
fn miscounted(reported: u64, before: u64, left: u64) -> i64 {
    let share = if left < MUCH { 0.0 } else { left as f64 / before.max(1) as f64 };
    let wrong = (reported as f64 - before as f64).clamp(-0.5 * before as f64, before as f64);
    (share.min(1.0) * wrong) as i64
}

/// Less than this leaves and comes again with every call of some clients.
const MUCH: u64 = 1_000;

/// What came (with what was cleared, where it is read again), and what left of input and reply
/// together.
///
/// `counted`: the tokens before what was learned corrected them; that is of what is new.
pub(super) fn moved(anchor: &Anchor<'_>, counted: u64, tokens: u64, new: u64) -> (u64, u64) {
    let context = anchor.turn.context().unwrap_or_default();
    let before = context.input.saturating_add(context.output);
    let new = new.saturating_add(tokens).saturating_sub(counted);
    let new = new.max(tokens.saturating_sub(before));
    (new, before.saturating_add(new).saturating_sub(tokens))
}

/// The parts' sum, by as much wrong as the last sum was for its tokenizer.
pub(super) fn rescaled(anchor: &Anchor<'_>, all: u64, clears_past: Option<u64>) -> u64 {
    let whole = match sum(anchor.sketch) {
        0 => all,
        before => (u128::from(all) * u128::from(whole(anchor)) / u128::from(before)) as u64,
    };
    cleared(anchor, whole, clears_past)
}

/// The anchor's input with what the provider cleared of it, as its sketch has it.
fn whole(anchor: &Anchor<'_>) -> u64 {
    let context = anchor.turn.context().unwrap_or_default();
    context.input.saturating_add(cleared_of(anchor.turn))
}

/// What is left of a whole prompt: the client sends again what was cleared, and the provider clears
/// it again, where it is asked to and the prompt is large enough. What it clears for the first time
/// cannot be foretold.
fn cleared(anchor: &Anchor<'_>, whole: u64, clears_past: Option<u64>) -> u64 {
    let clears = clears_past.is_some_and(|past| whole > past);
    if clears { whole.saturating_sub(cleared_of(anchor.turn)) } else { whole }
}

/// The same of a turn's own input and what was added to it: what was cleared comes again.
pub(super) fn cleared_next(turn: &Turn, tokens: u64, clears_past: Option<u64>) -> u64 {
    let whole = tokens.saturating_add(cleared_of(turn));
    if clears_past.is_some_and(|past| whole > past) { tokens } else { whole }
}

fn cleared_of(turn: &Turn) -> u64 {
    turn.usage.cleared.map_or(0, |cleared| cleared.input_tokens)
}

/// Where the tokens are; reasoning as far as it is read.
pub(super) fn places(parts: &[SketchPart], retention: ReasoningRetention) -> Breakdown {
    let sums = TokenSums::of(parts);
    let at = |place| {
        let there = parts.iter().filter(|part| part.place == place);
        there.map(|part| u64::from(part.tokens)).sum()
    };
    Breakdown {
        system: at(PromptSection::System) + at(PromptSection::SystemItem),
        tools: at(PromptSection::Tools) + at(PromptSection::ToolsItem),
        messages: at(PromptSection::History),
        reasoning: match retention {
            ReasoningRetention::Keeps => sums.thoughts(),
            ReasoningRetention::Loops => sums.reasoning + sums.steered,
            ReasoningRetention::Turns => sums.reasoning,
            ReasoningRetention::Drops => 0,
        },
        ..Breakdown::default()
    }
}

/// Reasoning tokens of a turn's reply: its output less what its parts cost, and no fewer than reported.
pub(super) fn reasoning_of(turn: &Turn) -> u64 {
    let Some(context) = turn.context() else { return 0 };
    context.output.saturating_sub(sum(&turn.reply)).max(reported_reasoning(turn))
}

/// The same as far as it was reported.
pub(super) fn reported_reasoning(turn: &Turn) -> u64 {
    let output = turn.context().map_or(0, |context| context.output);
    turn.usage.reasoning.unwrap_or(0).min(output)
}

/// A breakdown whose sum is `total`: messages are what system and tools leave, never below 0.
pub(super) fn fit(parts: Breakdown, total: u64) -> Breakdown {
    let head = parts.system.saturating_add(parts.tools);
    let capped = head > total;
    let (system, tools) = if capped {
        let system = u128::from(parts.system) * u128::from(total) / u128::from(head);
        (system as u64, total - system as u64)
    } else {
        (parts.system, parts.tools)
    };
    let messages = total - system - tools;
    let reasoning = parts.reasoning.min(messages);
    let whole = Breakdown { system, tools, messages, reasoning, capped, ..Breakdown::default() };
    Breakdown { sections: parts.sections.within(&whole), ..whole }
}

#[cfg(test)]
mod tests;
