//! Usage in the spellings of Responses and compatible APIs (`docs/protocols.md` 3.4, 4.1).
//!
//! The response object may come several times: no number falls. What was not reported stays unknown.

use crate::dialect::billing::Billing;
use crate::dialect::count::Count;
use crate::dialect::note::note_once;
use crate::dialect::{Note, Usage, UsageSpelling};
use crate::wire::json::{Value, members};

/// How usage is spelled.
pub const USAGE: UsageSpelling = UsageSpelling {
    envelope: Some("response"),
    report: &["usage"],
    input: &["input_tokens", "total_tokens"],
};

/// The provider's own usage fields, before they are normalised. Tokens.
#[derive(Default)]
pub(super) struct UsageFields {
    input: Count,
    output: Count,
    total: Count,
    reasoning: Count,
    read: Count,
    written: Count,
    written_long: Count,
    billing: Billing,
}

members! {
    /// The members of a response's usage that are read.
    UsageMembers {
        input_tokens,
        prompt_tokens,
        output_tokens,
        completion_tokens,
        total_tokens,
        input_tokens_details,
        output_tokens_details,
    }
}

impl UsageFields {
    /// Merges a `usage` object.
    pub(super) fn merge(&mut self, usage: Value<'_>) {
        self.billing.read_cost(usage);
        let usage = UsageMembers::from_value(usage);
        let input = Count::of_any(&[usage.input_tokens, usage.prompt_tokens]);
        let output = Count::of_any(&[usage.output_tokens, usage.completion_tokens]);
        let total = Count::from_member(usage.total_tokens);
        let grew = [self.input.grow(input), self.output.grow(output)].contains(&true);
        // A total is that of the numbers that it came with.
        match grew {
            true => self.total = total,
            false => _ = self.total.grow(total),
        }
        let reasoning = usage.output_tokens_details.and_then(|of| of.get("reasoning_tokens"));
        self.reasoning.grow(Count::from_member(reasoning));
        let details = ["cached_tokens", "cache_write_tokens", "cache_write_tokens_details"];
        let details = usage.input_tokens_details.map(|of| of.members(details));
        let [read, written, split] = details.unwrap_or_default();
        self.read.grow(Count::from_member(read));
        self.written.grow(Count::from_member(written));
        self.written_long
            .grow(Count::from_member(split.and_then(|split| split.get("ttl_12h_tokens"))));
    }

    /// Reads the tier that served the reply.
    pub(super) fn read_tier(&mut self, tier: Option<Value<'_>>) {
        self.billing.read_tier(tier);
    }

    /// The normalised usage.
    pub(super) fn normalised(&self, notes: &mut Vec<Note>) -> Usage {
        let Self { input, output, total, reasoning, read, written, written_long, .. } = *self;
        let [known_input, mut known_output] = [input, output].map(Count::value);
        if let (Some(input), Some(out), Some(total)) = (known_input, known_output, total.value())
            && total != input + out
        {
            note_once(notes, Note::UsageMismatch);
            // Compatible APIs leave reasoning out of the output.
            known_output = Some(out.max(total.saturating_sub(input)));
        }
        if Count::any_impossible(&[input, output, total, reasoning, read, written, written_long]) {
            note_once(notes, Note::ImpossibleCount);
        }
        Usage {
            input: known_input,
            output: known_output,
            reasoning: reasoning.value(),
            cache_read: read.value(),
            cache_write: written.value(),
            cache_write_long: written_long.value(),
            billing: self.billing.clone(),
            ..Usage::default()
        }
    }
}
