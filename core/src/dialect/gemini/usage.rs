//! Gemini's `usageMetadata` (`docs/protocols.md` 5.3).
//!
//! It comes with every chunk and is cumulative: later numbers replace earlier ones, and numbers missing in a
//! later chunk stay. What was not reported stays unknown.

use crate::dialect::note::note_once;
use crate::dialect::{LastCall, Note, Usage, UsageSpelling};
use crate::wire::json::{Value, first, members};

/// Google's own usage fields, before they are normalised. Tokens.
#[derive(Default)]
pub(super) struct UsageFields {
    prompt: Option<u64>,
    tool_use: Option<u64>,
    candidates: Option<u64>,
    thoughts: Option<u64>,
    cached: Option<u64>,
    total: Option<u64>,
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
    /// Whether anything was reported.
    pub(super) fn is_known(&self) -> bool {
        self.prompt.is_some() || self.total.is_some()
    }

    /// Merges a `usageMetadata` object.
    pub(super) fn merge(&mut self, usage: Value<'_>) {
        let reported = UsageMembers::of(usage);
        let keep = |to: &mut Option<u64>, spellings: [Option<Value<'_>>; 2]| {
            *to = first(spellings).and_then(|number| number.as_u64()).or(*to);
        };
        keep(&mut self.prompt, [reported.prompt, reported.snake_prompt]);
        keep(&mut self.tool_use, [reported.tool_use, reported.snake_tool_use]);
        keep(&mut self.candidates, [reported.candidates, reported.snake_candidates]);
        keep(&mut self.thoughts, [reported.thoughts, reported.snake_thoughts]);
        keep(&mut self.cached, [reported.cached, reported.snake_cached]);
        keep(&mut self.total, [reported.total, reported.snake_total]);
    }

    /// The normalised usage. Prompts of the provider's own tools are input that does not stay in the context:
    /// the next prompt is based on `promptTokenCount` only, which is the last call's input.
    pub(super) fn normalised(&self, notes: &mut Vec<Note>) -> Usage {
        let tool_use = self.tool_use.unwrap_or(0);
        let input = self.prompt.map(|prompt| prompt.saturating_add(tool_use));
        let reported = match (self.candidates, self.thoughts) {
            (None, None) => None,
            (candidates, thoughts) => {
                Some(candidates.unwrap_or(0).saturating_add(thoughts.unwrap_or(0)))
            }
        };
        let rest = input.zip(self.total).map(|(input, total)| total.saturating_sub(input));
        if reported.is_some() && rest.is_some() && reported != rest {
            note_once(notes, Note::UsageMismatch);
        }
        let output = reported.max(rest);
        let last_call = self.prompt.zip(output).filter(|_| tool_use > 0);
        Usage {
            input,
            output,
            reasoning: self.thoughts,
            cache_read: self.cached,
            last_call: last_call.map(|(input, output)| LastCall { input, output }),
            hosted_tools: tool_use > 0,
            tool_use_prompt: self.tool_use.filter(|tokens| *tokens > 0),
            ..Usage::default()
        }
    }
}
