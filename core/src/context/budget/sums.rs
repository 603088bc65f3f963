//! Sums over parts: what is read under each reasoning retention, and what was added and removed since an
//! anchor.
//!
//! Parts that stayed cancel out, whatever their estimated tokens. Counts no text.

use super::anchor::{Anchor, sum, uncounted};
use crate::context::{Breakdown, PromptSection, SketchPart, Turn};
use crate::tokens::learn::CostPrediction;
use crate::tokens::retention::{ByRetention, ReasoningRetention};

/// Sums of parts, tokens.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TokenSums {
    /// Everything but reasoning, without the structure around new parts.
    pub(super) content: u64,
    /// Reasoning after the user's last text.
    pub(super) reasoning: u64,
    /// Reasoning before it, in the open turn.
    pub(super) steered: u64,
    /// Reasoning of earlier turns.
    pub(super) old: u64,
    /// The structure around new parts.
    pub(super) around: i64,
    /// The additional structure if reasoning is read.
    pub(super) around_read: u64,
    /// The share of `content` that is in neither the anchor's request nor its reply, including the structure
    /// around it.
    pub(super) new: u64,
}

impl TokenSums {
    pub(super) fn from_parts<'p>(parts: impl IntoIterator<Item = &'p SketchPart>) -> Self {
        let mut sums = Self::default();
        for part in parts {
            sums.add(part);
        }
        sums
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
            | PromptSection::History => &mut self.content,
        };
        *sum += u64::from(part.tokens);
    }

    pub(super) fn thoughts(&self) -> u64 {
        self.reasoning + self.steered + self.old
    }

    pub(super) fn read(&self, retention: ReasoningRetention) -> u64 {
        self.by_retention()[retention as usize].1
    }

    /// Tokens that are read, for each reasoning retention.
    pub(super) fn by_retention(&self) -> ByRetention<(ReasoningRetention, u64)> {
        ReasoningRetention::ALL.map(|retention| {
            let (thoughts, around) = match retention {
                ReasoningRetention::Keeps => (self.thoughts(), self.around_read),
                ReasoningRetention::Loops => (self.reasoning + self.steered, self.around_read),
                ReasoningRetention::Turns => (self.reasoning, self.around_read),
                ReasoningRetention::Drops => (0, 0),
            };
            let content = self.content.saturating_add_signed(self.around);
            (retention, content.saturating_add(thoughts).saturating_add(around))
        })
    }
}

/// A difference of this many tokens has no meaning: it may be markers around a reply.
pub(super) const FEW: u64 = 64;

/// Tokens of the reasoning that may disappear between two calls.
pub(super) fn thoughts(anchor: &Anchor<'_>) -> u64 {
    reasoning_of(anchor.turn).saturating_add(TokenSums::from_parts(anchor.sketch).thoughts())
}

/// The anchor's reported context, plus what was added (`new`, a part of `all`) and less what was removed since; parts
/// that stayed cancel out. `left`: removed tokens of the history, as they were counted. If that is much, they are
/// corrected by their share of the error of the whole count.
pub(super) fn grown(
    anchor: &Anchor<'_>,
    retention: ReasoningRetention,
    all: u64,
    new: u64,
    left: u64,
    clears_past: Option<u64>,
) -> u64 {
    let counted = TokenSums::from_parts(anchor.sketch).read(retention);
    let reported = whole(anchor);
    let wrong = miscounted(reported, counted, left);
    // No more can be removed than was there: what is new comes on top, as after the number that is shown.
    let stayed = reported.saturating_add(all.saturating_sub(new)).saturating_sub(counted);
    let prompt = stayed.saturating_add(new).saturating_add_signed(-wrong);
    cleared(anchor, prompt, clears_past)
}

pub(super) fn floored(
    guess: CostPrediction,
    anchor: &Anchor<'_>,
    now: &TokenSums,
    head_left: u64,
) -> CostPrediction {
    let all = now.read(guess.retention);
    let counted = TokenSums::from_parts(anchor.sketch).read(guess.retention);
    // The tokens sent now, if they were miscounted by the same ratio as the whole.
    let reported = u128::from(whole(anchor).min(counted));
    let share = (u128::from(all) * reported / u128::from(counted.max(1))) as u64;
    // Removed tokens were counted, not measured: a response schema counted too high would subtract too much.
    let unsure = head_left / 2;
    let low = guess.low.saturating_sub(unsure);
    let high = guess.high.saturating_add(unsure);
    // Half of it is still within the errors of counting; less means that too much was subtracted.
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

/// Removed tokens of the history in the provider's count: `left`, as they were counted, corrected by their
/// share of the error of the whole count.
pub(super) fn gone_history(anchor: &Anchor<'_>, retention: ReasoningRetention, left: u64) -> u64 {
    let counted = TokenSums::from_parts(anchor.sketch).read(retention);
    left.saturating_add_signed(miscounted(whole(anchor), counted, left))
}

/// How many tokens too few `left` was counted, if the whole count was `before` and the reported number
/// `reported`.
fn miscounted(reported: u64, before: u64, left: u64) -> i64 {
    // The few tokens that a client moves with every call say nothing about what they cost.
    let share = if left < MUCH { 0.0 } else { left as f64 / before.max(1) as f64 };
    let wrong = (reported as f64 - before as f64).clamp(-0.5 * before as f64, before as f64);
    (share.min(1.0) * wrong) as i64
}

/// Some clients remove and add fewer tokens than this with every call.
const MUCH: u64 = 1_000;

/// The tokens that are new (including what was cleared and is read again), and those removed from input and
/// reply.
///
/// `counted`: the tokens before the correction by what was learned; the correction counts as new tokens.
pub(super) fn moved(anchor: &Anchor<'_>, counted: u64, tokens: u64, new: u64) -> (u64, u64) {
    let context = anchor.turn.context().unwrap_or_default();
    let reported = context.input.saturating_add(context.output);
    let added = new.saturating_add(tokens).saturating_sub(counted);
    let added = added.max(tokens.saturating_sub(reported));
    (added, reported.saturating_add(added).saturating_sub(tokens))
}

pub(super) fn rescaled(anchor: &Anchor<'_>, all: u64, clears_past: Option<u64>) -> u64 {
    let prompt = match sum(anchor.sketch) {
        0 => all,
        counted => (u128::from(all) * u128::from(whole(anchor)) / u128::from(counted)) as u64,
    };
    cleared(anchor, prompt, clears_past)
}

fn whole(anchor: &Anchor<'_>) -> u64 {
    let context = anchor.turn.context().unwrap_or_default();
    // What the provider cleared is in the sketch, too.
    context.input.saturating_add(cleared_of(anchor.turn))
}

/// The prompt without what the provider clears.
fn cleared(anchor: &Anchor<'_>, whole: u64, clears_past: Option<u64>) -> u64 {
    // The client sends cleared results again, and the provider clears them again if it is asked to and the
    // prompt is large enough. What it will clear for the first time cannot be predicted.
    let clears = clears_past.is_some_and(|past| whole > past);
    if clears { whole.saturating_sub(cleared_of(anchor.turn)) } else { whole }
}

pub(super) fn cleared_next(turn: &Turn, tokens: u64, clears_past: Option<u64>) -> u64 {
    // What was cleared is sent again.
    let prompt = tokens.saturating_add(cleared_of(turn));
    if clears_past.is_some_and(|past| prompt > past) { tokens } else { prompt }
}

fn cleared_of(turn: &Turn) -> u64 {
    turn.usage.cleared.map_or(0, |cleared| cleared.input_tokens)
}

/// The breakdown of parts; reasoning only if it is read.
pub(super) fn places(parts: &[SketchPart], retention: ReasoningRetention) -> Breakdown {
    let sums = TokenSums::from_parts(parts);
    let mut breakdown = Breakdown {
        reasoning: match retention {
            ReasoningRetention::Keeps => sums.thoughts(),
            ReasoningRetention::Loops => sums.reasoning + sums.steered,
            ReasoningRetention::Turns => sums.reasoning,
            ReasoningRetention::Drops => 0,
        },
        ..Breakdown::default()
    };
    for part in parts {
        let section = match part.place {
            PromptSection::System | PromptSection::SystemItem => &mut breakdown.system,
            PromptSection::Tools | PromptSection::ToolsItem => &mut breakdown.tools,
            PromptSection::History => &mut breakdown.messages,
            PromptSection::Reasoning
            | PromptSection::SteeredReasoning
            | PromptSection::OldReasoning => continue,
        };
        *section += u64::from(part.tokens);
    }
    breakdown
}

pub(super) fn reasoning_of(turn: &Turn) -> u64 {
    let Some(context) = turn.context() else { return 0 };
    // What the parts do not explain, but not fewer than reported.
    context.output.saturating_sub(sum(&turn.reply)).max(reported_reasoning(turn))
}

/// Tokens of its reply's reasoning that count as input if it is sent back.
pub(super) fn returned_reasoning(turn: &Turn) -> u64 {
    reasoning_of(turn).saturating_sub(uncounted(turn))
}

pub(super) fn reported_reasoning(turn: &Turn) -> u64 {
    let output = turn.context().map_or(0, |context| context.output);
    let others: u64 = turn.others.iter().map(|form| form.reasoning).sum();
    turn.usage.reasoning.unwrap_or(0).saturating_sub(others).min(output)
}

/// Reasoning of the last output as an agent's rules know it. They know nothing but reports: what the text of a reply does
/// not explain is reasoning to them only where none is reported as such.
pub(super) fn reasoning_by_rules(turn: &Turn) -> u64 {
    match turn.usage.reasoning {
        Some(_) => reported_reasoning(turn),
        None => reasoning_of(turn),
    }
}

/// A breakdown whose sum is `total`: messages are the rest after system and tools, never below 0. What was
/// scaled down to an earlier total is taken as it was estimated.
pub(super) fn fit(parts: Breakdown, total: u64) -> Breakdown {
    let [system, tools] = parts.head.unwrap_or([parts.system, parts.tools]);
    let head_tokens = system.saturating_add(tools);
    let mut breakdown = Breakdown { system, tools, ..Breakdown::default() };
    if head_tokens > total {
        let share = u128::from(system) * u128::from(total) / u128::from(head_tokens);
        breakdown.system = share as u64;
        breakdown.tools = total - breakdown.system;
        breakdown.capped = true;
        // Kept, so that a later and larger total does not start from what was scaled down.
        breakdown.head = Some([system, tools]);
    }
    breakdown.messages = total - breakdown.system - breakdown.tools;
    breakdown.reasoning = parts.reasoning.min(breakdown.messages);
    breakdown.sections = parts.sections.within(breakdown.tools, breakdown.messages);
    breakdown
}

#[cfg(test)]
mod tests;
