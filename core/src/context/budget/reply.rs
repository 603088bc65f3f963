//! What a reply will cost once its client sends it back, part by part.
//!
//! The reported output is split among the parts in proportion to their counted text. Pure.

use foldhash::HashSet;

use super::anchor::sum;
use super::known::KnownCosts;
use crate::context::ledger::anchor_keys_of;
use crate::context::{PromptSection, ReplyForm, SketchPart};
use crate::dialect::models::Family;
use crate::dialect::reply::{chain_after, runs};
use crate::dialect::{Audience, Chain, PartKey, PartKind, Reply, ReplyPart};
use crate::tokens::{CountingMethod, TokenCounter, Tokenizer};

/// What each keyed part of a reply will cost when the client sends it back: the reported output less its
/// reasoning, split among the parts. Stored as [`Turn::reply`](crate::context::Turn::reply).
pub fn reply(reply: &Reply, tokenizer: Tokenizer) -> Vec<SketchPart> {
    choices(reply, tokenizer).swap_remove(0)
}

/// The same for the other forms in which the client may send the reply back, if the request ended at `chain`. Stored as
/// [`Turn::others`](crate::context::Turn::others).
pub fn other_forms(reply: &Reply, chain: Chain, tokenizer: Tokenizer) -> Vec<ReplyForm> {
    if reply.choices.is_empty() && reply.variants.is_empty() {
        return Vec::new();
    }
    let choices = choices(reply, tokenizer);
    let number = choices.len() as u64;
    let output = reply.usage.context().map_or(0, |context| context.output);
    let visible: u64 = choices.iter().map(|parts| sum(parts)).sum();
    let hidden = output.saturating_sub(visible) / number;
    let reasoning = reply.usage.reasoning.unwrap_or(0).min(output) / number;
    let costs = KnownCosts::from_parts(&choices[0]);
    let variants = reply.variants.iter().map(|parts| {
        // A call under another id is at the same place, and costs the same.
        let counted = counted(parts, &mut tokenizer.reply());
        let has_same_places = parts.len() == reply.parts.len();
        let tokens = counted.into_iter().enumerate().map(|(index, part)| {
            let tokens = costs.tokens(part.key).or_else(|| match choices[0].get(index) {
                Some(same_place) if has_same_places => Some(same_place.tokens),
                _ => None,
            });
            SketchPart { tokens: tokens.unwrap_or(part.tokens), ..part }
        });
        reply_form(parts, chain, tokens.collect())
    });
    let others = reply.choices.iter().zip(choices.iter().skip(1)).map(|(parts, tokens)| {
        let output = sum(tokens).saturating_add(hidden);
        ReplyForm { output, reasoning, ..reply_form(parts, chain, tokens.clone()) }
    });
    others.chain(variants).collect()
}

/// A form of a reply to a request that ended at `chain`, as if it had cost nothing.
fn reply_form(parts: &[ReplyPart], chain: Chain, tokens: Vec<SketchPart>) -> ReplyForm {
    ReplyForm {
        after: chain_after(parts, chain),
        anchor_keys: anchor_keys_of(parts),
        parts: tokens,
        output: 0,
        reasoning: 0,
    }
}

fn choices(reply: &Reply, tokenizer: Tokenizer) -> Vec<Vec<SketchPart>> {
    let replies = std::iter::once(&reply.parts).chain(&reply.choices);
    let thoughts =
        replies.clone().flatten().filter(|part| part.kind == PartKind::Reasoning).count();
    let mut counter = tokenizer.reply();
    let mut choices: Vec<Vec<SketchPart>> =
        replies.clone().map(|parts| counted(parts, &mut counter)).collect();
    let Some(context) = reply.usage.context() else { return choices };
    let texts: u64 = choices.iter().map(|parts| sum(parts)).sum();
    // A text that is counted with the model's own tokenizer costs that, and little more.
    let text_margin = match counter.counting {
        CountingMethod::Exact => AROUND_EXACT,
        CountingMethod::Ratio | CountingMethod::Length => AROUND,
    };
    let margins = replies.flatten().map(|part| match part.kind {
        PartKind::ToolCall => AROUND_CALL,
        _ => text_margin,
    });
    let margin = margins.fold(text_margin, u64::saturating_add);
    let marks = match tokenizer.family {
        Family::O200k => 2 * thoughts as u64, // the tokens around each block
        _ => 0,
    };
    let visible = match reply.usage.reasoning {
        Some(reasoning) => context.output.saturating_sub(reasoning).saturating_sub(marks),
        // Older Claude models do not report reasoning: output that the visible text does not explain is
        // reasoning.
        None if thoughts > 0 => texts.min(context.output),
        None => context.output,
    };
    // For parallel calls in a stream, some providers report only the first; all of them were sent, so our
    // count is used. Not if hosted tools ran, whose content is no output.
    let is_short = texts > visible.saturating_mul(3) / 2 + SHORT
        && reply.forms().any(has_parallel_calls)
        && is_written_by_model(reply);
    // So it is if the report is more than the text can be: the rest was reasoning that is neither sent nor reported.
    let is_long =
        visible > most(texts, counter.counting).saturating_add(margin) && shows_all_output(reply);
    let counts = is_short || is_long;
    // The calls of a program are no output of the model, nor will it read them.
    let programs = reply.forms().flatten().filter(|part| part.audience != Audience::Model);
    let programs: HashSet<PartKey> = programs.filter_map(|part| part.key).collect();
    let parts = choices.iter_mut().flatten().filter(|part| !programs.contains(&part.key));
    share(parts.collect(), if counts { texts } else { visible });
    choices
}

/// The most tokens that a text can be which was counted as `texts`.
fn most(texts: u64, counting: CountingMethod) -> u64 {
    match counting {
        CountingMethod::Exact => texts.saturating_mul(5) / 4,
        CountingMethod::Ratio => texts.saturating_mul(3) / 2,
        CountingMethod::Length => texts.saturating_mul(2),
    }
}

/// The most tokens around a text or a whole reply, and around a call, which some models write with a tag for each argument.
const AROUND: u64 = 24;
const AROUND_EXACT: u64 = 8;
const AROUND_CALL: u64 = 80;

fn counted(parts: &[ReplyPart], counter: &mut TokenCounter<'_>) -> Vec<SketchPart> {
    let keyed = runs(parts).map(|(key, run)| {
        let texts = run.into_iter().filter(|part| part.audience == Audience::Model);
        let tokens = texts.fold(0, |sum: u32, part| sum.saturating_add(counter.reply_part(part)));
        SketchPart { key, tokens, place: PromptSection::History, by_length: false }
    });
    keyed.collect()
}

fn has_parallel_calls(parts: &[ReplyPart]) -> bool {
    parts.iter().filter(|part| part.kind == PartKind::ToolCall).count() > 1
}

fn is_written_by_model(reply: &Reply) -> bool {
    let own_kinds = [PartKind::Text, PartKind::ToolCall, PartKind::Reasoning];
    reply.forms().flatten().all(|part| own_kinds.contains(&part.kind))
}

fn shows_all_output(reply: &Reply) -> bool {
    reply.forms().flatten().all(|part| match part.kind {
        PartKind::Text | PartKind::ToolCall | PartKind::ToolResult | PartKind::Reasoning => true,
        // The content of hosted tools is no output.
        PartKind::Opaque => part.audience != Audience::Model || !part.text.is_empty(),
        PartKind::Tool | PartKind::Image | PartKind::Document => false,
    })
}

/// Our count may exceed one and a half times the reported number by this many tokens before the report is
/// taken as too low.
const SHORT: u64 = 64;

fn share(parts: Vec<&mut SketchPart>, total: u64) {
    let weights: u64 = parts.iter().map(|part| u64::from(part.tokens).max(1)).sum();
    let count = parts.len();
    let mut rest = total;
    for (index, part) in parts.into_iter().enumerate() {
        let weight = u128::from(part.tokens.max(1));
        let share = (weight * u128::from(total) / u128::from(weights.max(1))) as u64;
        // The last one takes what rounding left.
        let tokens = if index + 1 == count { rest } else { share.min(rest) };
        part.tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        rest -= tokens;
    }
}
