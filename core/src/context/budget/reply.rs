//! What a reply will cost once its client sends it back, part by part.
//!
//! The reported output is split among the parts in proportion to their counted text. Pure.

use super::anchor::sum;
use crate::context::PromptSection;
use crate::context::SketchPart;
use crate::dialect::models::Family;
use crate::dialect::{Audience, PartKind, Reply};
use crate::tokens::Tokenizer;

/// What each keyed part of a reply will cost when the client sends it back: the reported output less its
/// reasoning, split among the parts. Stored as [`Turn::reply`](crate::context::Turn::reply).
pub fn reply(reply: &Reply, tokenizer: Tokenizer) -> Vec<SketchPart> {
    let mut counter = tokenizer.reply();
    let runs: Vec<_> = reply.runs().collect();
    let thoughts = reply.parts.iter().filter(|part| part.kind == PartKind::Reasoning).count();
    let reasoned = thoughts > 0;
    // A single part gets the whole reported number, so its text need not be counted.
    let is_reported = reply.usage.reasoning.is_some() || !reasoned;
    let counts = runs.len() > 1 || !is_reported || reply.usage.context().is_none();
    let by_model: Vec<bool> =
        runs.iter().map(|(_, run)| run.iter().all(|it| it.audience == Audience::Model)).collect();
    let keyed = runs.into_iter().map(|(key, run)| {
        let texts = run.into_iter().filter(|it| counts && it.audience == Audience::Model);
        let tokens = texts.fold(0, |sum: u32, part| sum.saturating_add(counter.reply_part(part)));
        SketchPart { key, tokens, place: PromptSection::History, by_length: false }
    });
    let mut parts: Vec<SketchPart> = keyed.collect();
    if let Some(context) = reply.usage.context() {
        let marks = match tokenizer.family {
            Family::O200k => 2 * thoughts as u64, // the tokens around each block
            _ => 0,
        };
        let visible = match reply.usage.reasoning {
            Some(reasoning) => context.output.saturating_sub(reasoning).saturating_sub(marks),
            // Older Claude models do not report reasoning: output that the visible text does not explain is
            // reasoning.
            None if reasoned => sum(&parts).min(context.output),
            None => context.output,
        };
        let texts = sum(&parts);
        // For parallel calls in a stream, some providers report only the first; all of them were sent, so our
        // count is used. Not if hosted tools ran, whose content is no output.
        let is_short = texts > visible.saturating_mul(3) / 2 + SHORT && is_written_by_model(reply);
        // The calls of a program are no output of the model, nor will it read them.
        let own = parts.iter_mut().zip(by_model).filter_map(|(part, own)| own.then_some(part));
        share(own.collect(), if is_short { texts } else { visible });
    }
    parts
}

/// Whether the model itself wrote all of it.
fn is_written_by_model(reply: &Reply) -> bool {
    let own_kinds = [PartKind::Text, PartKind::ToolCall, PartKind::Reasoning];
    reply.parts.iter().all(|part| own_kinds.contains(&part.kind))
}

/// Our count may exceed one and a half times the reported number by this many tokens before the report is
/// taken as too low.
const SHORT: u64 = 64;

/// Splits `total` among the parts, in proportion to their tokens.
fn share(parts: Vec<&mut SketchPart>, total: u64) {
    let weights: u64 = parts.iter().map(|part| u64::from(part.tokens).max(1)).sum();
    let (mut left, last) = (total, parts.len());
    for (index, part) in parts.into_iter().enumerate() {
        let weight = u128::from(part.tokens.max(1));
        let fair = (weight * u128::from(total) / u128::from(weights.max(1))) as u64;
        let given = if index + 1 == last { left } else { fair.min(left) };
        part.tokens = u32::try_from(given).unwrap_or(u32::MAX);
        left -= given;
    }
}
