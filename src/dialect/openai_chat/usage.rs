//! Usage as Chat Completions look-alikes spell it (`providers.md` §2.4, §4.1).
//!
//! Later numbers replace earlier ones, because where they come more than once they are cumulative;
//! details that a later report leaves out stay. What was not said stays unknown.

use crate::dialect::reading::note_once;
use crate::dialect::{Note, Usage};
use crate::wire::json::Value;

/// The provider's own fields, before normalising. Tokens.
#[derive(Default)]
pub(super) struct Counted {
    prompt: Option<u64>,
    completion: Option<u64>,
    total: Option<u64>,
    reasoning: Option<u64>,
    cached: Option<u64>,
    written: Option<u64>,
    written_long: Option<u64>,
    audio: Option<u64>,
    hosted: bool,
}

const CACHED: &[&[&str]] = &[
    &["prompt_tokens_details", "cached_tokens"],
    &["prompt_token_details", "cached_tokens"],
    &["input_tokens_details", "cached_tokens"],
    &["prompt_cache_hit_tokens"],
    &["cached_tokens"],
    &["num_cached_tokens"],
    &["cached_input_tokens"],
    &["cache_read_input_tokens"],
];

const WRITTEN: &[&[&str]] = &[
    &["prompt_tokens_details", "cache_write_tokens"],
    &["prompt_tokens_details", "cache_creation_tokens"],
    &["prompt_tokens_details", "cache_creation_input_tokens"],
    &["cache_write_tokens"],
    &["cache_creation_input_tokens"],
];

const WRITTEN_LONG: &[&[&str]] = &[
    &["cache_creation", "ephemeral_1h_input_tokens"],
    &["cache_creation", "ephemeral_24h_input_tokens"],
];

const REASONING: &[&[&str]] = &[
    &["completion_tokens_details", "reasoning_tokens"],
    &["output_tokens_details", "reasoning_tokens"],
    &["reasoning_tokens"],
];

impl Counted {
    /// Whether anything was reported.
    pub(super) fn is_known(&self) -> bool {
        self.prompt.is_some() || self.completion.is_some()
    }

    /// A `usage` object, wherever it stood.
    pub(super) fn merge(&mut self, usage: Value<'_>) {
        let first = |names: &[&str]| usage.get_any(names).and_then(|number| number.as_u64());
        // Several spellings at once say the same; where one of them is 0, it was not filled in.
        let most = |places: &[&[&str]]| {
            places.iter().filter_map(|place| usage.path(place)?.as_u64()).max()
        };
        let (hit, miss) =
            (first(&["prompt_cache_hit_tokens"]), first(&["prompt_cache_miss_tokens"]));
        let halves = || Some(hit?.saturating_add(miss?));
        let prompt = first(&["prompt_tokens", "input_tokens"]).or_else(halves);
        let completion = first(&["completion_tokens", "output_tokens"]);
        if prompt.is_some() || completion.is_some() {
            self.prompt = prompt.or(self.prompt);
            self.completion = completion.or(self.completion);
            self.total = first(&["total_tokens"]);
        }
        self.reasoning = most(REASONING).or(self.reasoning);
        self.cached = most(CACHED).or(self.cached);
        self.written = most(WRITTEN).or(self.written);
        self.written_long = most(WRITTEN_LONG).or(self.written_long);
        let audio = usage.path(&["prompt_tokens_details", "audio_tokens"]);
        self.audio = audio.and_then(|audio| audio.as_u64()).or(self.audio);
        for name in ["server_tool_use_details", "server_tool_use"] {
            for (_, count) in usage.get(name).iter().flat_map(Value::entries) {
                self.hosted |= count.as_u64().is_some_and(|count| count > 0);
            }
        }
    }

    /// llama.cpp's `timings`, which stand in where no usage was asked for: `prompt_n` counts only
    /// what was newly evaluated.
    pub(super) fn timings(&mut self, timings: Value<'_>) {
        let number = |name: &str| timings.get(name).and_then(|number| number.as_u64());
        let cached = number("cache_n");
        self.cached = self.cached.or(cached);
        if !self.is_known()
            && let (Some(fresh), Some(written)) = (number("prompt_n"), number("predicted_n"))
        {
            self.prompt = Some(fresh.saturating_add(cached.unwrap_or(0)));
            self.completion = Some(written);
        }
    }

    /// Tools ran at the provider.
    pub(super) fn saw_hosted_tools(&mut self) {
        self.hosted = true;
    }

    /// In our words. `output` is at least what the total leaves for it: xAI, Gemini's look-alike and
    /// Inception keep reasoning out of `completion_tokens`. Mistral keeps audio out of the prompt.
    pub(super) fn normalised(&self, notes: &mut Vec<Note>) -> Usage {
        let (mut input, mut output) = (self.prompt, self.completion);
        if let (Some(prompt), Some(total)) = (self.prompt, self.total) {
            let said = self.completion.unwrap_or(0);
            let rest = total.saturating_sub(prompt);
            let missing = rest.saturating_sub(said);
            if self.completion.is_some() && rest != said {
                note_once(notes, Note::UsageMismatch);
            }
            match self.audio {
                Some(audio) if missing > 0 && audio == missing && audio > prompt => {
                    input = Some(prompt.saturating_add(audio));
                }
                _ => output = Some(rest.max(said)),
            }
        }
        // Azure's Grok counts a hidden prefix as cached but not as prompt; a few servers count more
        // reasoning than output. The numbers stay as they were reported.
        if self.cached > input.or(self.cached) || self.reasoning > output.or(self.reasoning) {
            note_once(notes, Note::UsageMismatch);
        }
        Usage {
            input,
            output,
            reasoning: self.reasoning,
            cache_read: self.cached,
            cache_write: self.written,
            cache_write_long: self.written_long,
            hosted_tools: self.hosted,
            ..Usage::default()
        }
    }
}
