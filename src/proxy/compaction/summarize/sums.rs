//! Sums for summaries: the usage of several calls, and the tokens of the head.
//!
//! A number that none of the calls reported stays unknown.

use crate::context::{PromptSection, SketchPart};
use crate::dialect::Usage;

/// Tokens of system prompt and tools.
pub(in crate::proxy) fn head_tokens(parts: &[SketchPart]) -> u64 {
    let head = [
        PromptSection::System,
        PromptSection::SystemItem,
        PromptSection::Tools,
        PromptSection::ToolsItem,
    ];
    let parts = parts.iter().filter(|part| head.contains(&part.place));
    parts.map(|part| u64::from(part.tokens)).sum()
}

/// Adds the reported usage of one call.
pub(super) fn add(sum: &mut Usage, one: &Usage) {
    for (sum, one) in [
        (&mut sum.input, one.input),
        (&mut sum.output, one.output),
        (&mut sum.reasoning, one.reasoning),
        (&mut sum.cache_read, one.cache_read),
        (&mut sum.cache_write, one.cache_write),
    ] {
        if let Some(one) = one {
            *sum = Some(sum.unwrap_or(0).saturating_add(one));
        }
    }
}
