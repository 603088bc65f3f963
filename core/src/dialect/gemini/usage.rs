//! Gemini's `usageMetadata` (`docs/protocols.md` 5.3).
//!
//! It comes with every chunk and is cumulative: numbers that are 0 or missing in a later chunk stay, and no output falls. A
//! prompt may be corrected. What was not reported stays unknown.

use crate::dialect::count::Count;
use crate::dialect::note::note_once;
use crate::dialect::{LastCall, Note, Usage, UsageSpelling};
use crate::wire::json::{Value, members};

/// Google's own usage fields, before they are normalised. Tokens.
#[derive(Default)]
pub(super) struct UsageFields {
    prompt: Count,
    tool_use: Count,
    candidates: Count,
    thoughts: Count,
    cached: Count,
    total: Count,
}

members! {
    /// The members of a report that are read, in both key styles.
    UsageMembers {
        prompt = "promptTokenCount",
        snake_prompt = "prompt_token_count",
        tool_use = "toolUsePromptTokenCount",
        snake_tool_use = "tool_use_prompt_token_count",
        candidates = "candidatesTokenCount",
        snake_candidates = "candidates_token_count",
        thoughts = "thoughtsTokenCount",
        snake_thoughts = "thoughts_token_count",
        cached = "cachedContentTokenCount",
        snake_cached = "cached_content_token_count",
        total = "totalTokenCount",
        snake_total = "total_token_count",
    }
}

/// How usage is spelled, in both key styles.
pub const USAGE: UsageSpelling = UsageSpelling {
    envelope: None,
    report: &["usageMetadata", "usage_metadata"],
    input: &["promptTokenCount", "totalTokenCount", "prompt_token_count", "total_token_count"],
};

impl UsageFields {
    pub(super) fn is_known(&self) -> bool {
        self.prompt.value().is_some() || self.total.value().is_some()
    }

    /// Merges a `usageMetadata` object.
    pub(super) fn merge(&mut self, usage: Value<'_>) {
        let reported = UsageMembers::from_value(usage);
        for (count, spellings) in [
            (&mut self.prompt, [reported.prompt, reported.snake_prompt]),
            (&mut self.tool_use, [reported.tool_use, reported.snake_tool_use]),
            (&mut self.cached, [reported.cached, reported.snake_cached]),
            (&mut self.total, [reported.total, reported.snake_total]),
        ] {
            // The prompt is counted better at the end, so it may become smaller; the output only
            // grows.
            count.correct(Count::of_any(&spellings));
        }
        for (count, spellings) in [
            (&mut self.candidates, [reported.candidates, reported.snake_candidates]),
            (&mut self.thoughts, [reported.thoughts, reported.snake_thoughts]),
        ] {
            count.grow(Count::of_any(&spellings));
        }
    }

    pub(super) fn normalised(&self, notes: &mut Vec<Note>) -> Usage {
        let Self { prompt, tool_use, candidates, thoughts, cached, total } = *self;
        let input = if tool_use.is_unknown() { None } else { prompt.value() };
        let input = input.map(|prompt| prompt.saturating_add(tool_use.value().unwrap_or(0)));
        let is_known = !candidates.is_unknown() && !thoughts.is_unknown();
        let reported = candidates.plus(thoughts).value();
        let rest = input.zip(total.value()).map(|(input, total)| total.saturating_sub(input));
        if reported.is_some() && rest.is_some() && reported != rest {
            note_once(notes, Note::UsageMismatch);
        }
        if Count::any_impossible(&[prompt, tool_use, candidates, thoughts, cached, total]) {
            note_once(notes, Note::ImpossibleCount);
        }
        let output = if is_known { reported.max(rest) } else { None };
        let tool_use = tool_use.value().filter(|tokens| *tokens > 0);
        let last_call = if tool_use.is_some() { prompt.value().zip(output) } else { None };
        // Prompts of the provider's own tools do not stay in the context: the next prompt is based
        // on `promptTokenCount` only, which is the last call's input.
        Usage {
            input,
            output,
            reasoning: thoughts.value(),
            cache_read: cached.value(),
            last_call: last_call.map(|(input, output)| LastCall { input, output }),
            hosted_tools: tool_use.is_some(),
            tool_use_prompt: tool_use,
            ..Usage::default()
        }
    }
}
