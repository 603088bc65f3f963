//! Gemini's `usageMetadata` (`providers.md` §5.3).
//!
//! It comes with every chunk and is cumulative: later numbers replace earlier ones, and what a later
//! chunk leaves out stays. What was not said stays unknown.

use crate::dialect::reading::note_once;
use crate::dialect::{LastCall, Note, Usage};
use crate::wire::json::Value;

/// Google's own fields, before normalising. Tokens.
#[derive(Default)]
pub(super) struct Counted {
    prompt: Option<u64>,
    tool_use: Option<u64>,
    candidates: Option<u64>,
    thoughts: Option<u64>,
    cached: Option<u64>,
    total: Option<u64>,
}

impl Counted {
    /// Whether anything was reported.
    pub(super) fn is_known(&self) -> bool {
        self.prompt.is_some() || self.total.is_some()
    }

    /// A `usageMetadata` object.
    pub(super) fn merge(&mut self, usage: Value<'_>) {
        let keep = |to: &mut Option<u64>, names: &[&str; 2]| {
            *to = usage.get_any(names).and_then(|number| number.as_u64()).or(*to);
        };
        keep(&mut self.prompt, &["promptTokenCount", "prompt_token_count"]);
        keep(&mut self.tool_use, &["toolUsePromptTokenCount", "tool_use_prompt_token_count"]);
        keep(&mut self.candidates, &["candidatesTokenCount", "candidates_token_count"]);
        keep(&mut self.thoughts, &["thoughtsTokenCount", "thoughts_token_count"]);
        keep(&mut self.cached, &["cachedContentTokenCount", "cached_content_token_count"]);
        keep(&mut self.total, &["totalTokenCount", "total_token_count"]);
    }

    /// In our words. Prompts of the provider's own tools are input that does not stay in the
    /// context: the next prompt grows from `promptTokenCount` alone, which is the last call's input.
    pub(super) fn normalised(&self, notes: &mut Vec<Note>) -> Usage {
        let tool_use = self.tool_use.unwrap_or(0);
        let input = self.prompt.map(|prompt| prompt.saturating_add(tool_use));
        let said = match (self.candidates, self.thoughts) {
            (None, None) => None,
            (candidates, thoughts) => {
                Some(candidates.unwrap_or(0).saturating_add(thoughts.unwrap_or(0)))
            }
        };
        let rest = input.zip(self.total).map(|(input, total)| total.saturating_sub(input));
        if said.is_some() && rest.is_some() && said != rest {
            note_once(notes, Note::UsageMismatch);
        }
        let output = said.max(rest);
        let last_call = self.prompt.zip(output).filter(|_| tool_use > 0);
        Usage {
            input,
            output,
            reasoning: self.thoughts,
            cache_read: self.cached,
            last_call: last_call.map(|(input, output)| LastCall { input, output }),
            hosted_tools: tool_use > 0,
            ..Usage::default()
        }
    }
}
