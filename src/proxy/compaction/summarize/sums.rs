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

/// What the calls for one summary used and cost.
#[derive(Clone)]
pub(super) struct SummarySpending {
    pub(super) usage: Usage,
    /// US dollars; `None` if the price of one of them is unknown.
    pub(super) dollars: Option<f64>,
}

impl Default for SummarySpending {
    fn default() -> Self {
        Self { usage: Usage::default(), dollars: Some(0.0) }
    }
}

impl SummarySpending {
    /// Adds one call, at its own price: several short prompts are not a long one.
    pub(super) fn add(&mut self, one: &Usage, dollars: Option<f64>) {
        let sum = &mut self.usage;
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
        self.dollars = self.dollars.zip(dollars).map(|(sum, dollars)| sum + dollars);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_added_and_unknown_price_stays_unknown() {
        let mut spent = SummarySpending::default();
        let call = Usage { input: Some(150_000), ..Usage::default() };
        spent.add(&call, Some(0.45));
        spent.add(&call, Some(0.5));
        assert_eq!(spent.usage.input, Some(300_000));
        assert_eq!(spent.usage.output, None);
        assert_eq!(spent.dollars, Some(0.95));
        spent.add(&call, None);
        spent.add(&call, Some(0.5));
        assert_eq!(spent.dollars, None);
    }
}
