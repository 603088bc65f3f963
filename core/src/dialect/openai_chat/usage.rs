//! Usage in the spellings of Chat Completions and compatible APIs (`docs/protocols.md` 2.4, 4.1).
//!
//! Later numbers replace earlier ones, because repeated reports are cumulative; details missing in a later
//! report stay. What was not reported stays unknown.

use crate::dialect::note::note_once;
use crate::dialect::{Note, Usage, UsageSpelling};
use crate::wire::json::{Value, first, members};

/// For servers that count reasoning in the output, the numbers differ by at most this many tokens and a
/// twentieth.
const FEW: u64 = 4;

/// The provider's own usage fields, before they are normalised. Tokens.
#[derive(Default)]
pub(super) struct UsageFields {
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

members! {
    /// The members of a report that are read, in all spellings.
    UsageMembers {
        prompt_tokens,
        input_tokens,
        completion_tokens,
        output_tokens,
        total_tokens,
        reasoning_tokens,
        prompt_cache_hit_tokens,
        prompt_cache_miss_tokens,
        cached_tokens,
        num_cached_tokens,
        cached_input_tokens,
        cache_read_input_tokens,
        cache_write_tokens,
        cache_creation_input_tokens,
        prompt_tokens_details,
        prompt_token_details,
        input_tokens_details,
        completion_tokens_details,
        output_tokens_details,
        cache_creation,
        server_tool_use_details,
        server_tool_use,
    }
}

members! {
    /// The members of a prompt's details that are read.
    UsageDetailMembers {
        cached_tokens,
        cache_write_tokens,
        cache_creation_tokens,
        cache_creation_input_tokens,
        audio_tokens,
    }
}

/// How usage is spelled.
pub const USAGE: UsageSpelling =
    UsageSpelling { envelope: None, report: &["usage"], input: &["prompt_tokens", "total_tokens"] };

impl UsageFields {
    /// Whether anything was reported.
    pub(super) fn is_known(&self) -> bool {
        self.prompt.is_some() || self.completion.is_some()
    }

    /// Merges a `usage` object from any place.
    pub(super) fn merge<'d>(&mut self, usage: Value<'d>) {
        let usage = UsageMembers::of(usage);
        let number = |value: Option<Value<'_>>| value.and_then(|number| number.as_u64());
        // Several spellings at once mean the same; if one of them is 0, it was not filled in.
        let most =
            |values: &[Option<Value<'_>>]| values.iter().flatten().filter_map(Value::as_u64).max();
        let halves = || {
            let [hit, miss] = [usage.prompt_cache_hit_tokens, usage.prompt_cache_miss_tokens];
            Some(number(hit)?.saturating_add(number(miss)?))
        };
        let prompt = number(first([usage.prompt_tokens, usage.input_tokens])).or_else(halves);
        let completion = number(first([usage.completion_tokens, usage.output_tokens]));
        if prompt.is_some() || completion.is_some() {
            self.prompt = prompt.or(self.prompt);
            self.completion = completion.or(self.completion);
            self.total = number(usage.total_tokens);
        }
        let within = |details: Option<Value<'d>>, name: &str| details?.get(name);
        self.reasoning = most(&[
            within(usage.completion_tokens_details, "reasoning_tokens"),
            within(usage.output_tokens_details, "reasoning_tokens"),
            usage.reasoning_tokens,
        ])
        .or(self.reasoning);
        let details = usage.prompt_tokens_details.map(UsageDetailMembers::of).unwrap_or_default();
        self.cached = most(&[
            details.cached_tokens,
            within(usage.prompt_token_details, "cached_tokens"),
            within(usage.input_tokens_details, "cached_tokens"),
            usage.prompt_cache_hit_tokens,
            usage.cached_tokens,
            usage.num_cached_tokens,
            usage.cached_input_tokens,
            usage.cache_read_input_tokens,
        ])
        .or(self.cached);
        self.written = most(&[
            details.cache_write_tokens,
            details.cache_creation_tokens,
            details.cache_creation_input_tokens,
            usage.cache_write_tokens,
            usage.cache_creation_input_tokens,
        ])
        .or(self.written);
        self.written_long = most(&[
            within(usage.cache_creation, "ephemeral_1h_input_tokens"),
            within(usage.cache_creation, "ephemeral_24h_input_tokens"),
        ])
        .or(self.written_long);
        self.audio = number(details.audio_tokens).or(self.audio);
        for tools in [usage.server_tool_use_details, usage.server_tool_use] {
            for (_, count) in tools.iter().flat_map(Value::entries) {
                self.hosted |= count.as_u64().is_some_and(|count| count > 0);
            }
        }
    }

    /// Reads llama.cpp's `timings`, which are used if no usage was requested: `prompt_n` counts only tokens
    /// that were newly evaluated.
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

    /// Records that tools ran at the provider.
    pub(super) fn record_hosted_tools(&mut self) {
        self.hosted = true;
    }

    /// The normalised usage. `output` is at least the total less the input: xAI, Gemini's compatible API and
    /// Inception leave reasoning out of `completion_tokens`. Vercel's gateway leaves Gemini's reasoning out
    /// of the total, too. Mistral leaves audio out of the prompt.
    pub(super) fn normalised(&self, notes: &mut Vec<Note>) -> Usage {
        let (mut input, mut output) = (self.prompt, self.completion);
        if let (Some(prompt), Some(total)) = (self.prompt, self.total) {
            let visible = self.completion.unwrap_or(0);
            let rest = total.saturating_sub(prompt);
            let missing = rest.saturating_sub(visible);
            if self.completion.is_some() && rest != visible {
                note_once(notes, Note::UsageMismatch);
            }
            match self.audio {
                Some(audio) if missing > 0 && audio == missing && audio > prompt => {
                    input = Some(prompt.saturating_add(audio));
                }
                _ => output = Some(rest.max(visible)),
            }
        }
        // Much more reasoning than output means that it is not part of the output, as a bill confirmed.
        if let (Some(visible), Some(thought)) = (output, self.reasoning)
            && thought > visible.saturating_add(visible / 20).saturating_add(FEW)
        {
            note_once(notes, Note::UsageMismatch);
            output = Some(visible.saturating_add(thought));
        }
        // Azure's Grok counts a hidden prefix as cached but not in the prompt, and some servers count a few
        // more tokens of reasoning than of output. The numbers are kept as reported.
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
