//! Usage in the spellings of Chat Completions and compatible APIs (`docs/protocols.md` 2.4, 4.1).
//!
//! Repeated reports are cumulative, so no number falls; details missing in a later report stay. What was not
//! reported stays unknown.

use crate::dialect::billing::Billing;
use crate::dialect::count::Count;
use crate::dialect::note::note_once;
use crate::dialect::{Note, Usage, UsageSpelling};
use crate::wire::json::{Value, members};

/// For servers that count reasoning in the output, the numbers differ by at most this many tokens and a
/// twentieth.
const FEW: u64 = 4;

/// The provider's own usage fields, before they are normalised. Tokens. What differs from OpenAI's:
///
/// * DeepSeek: `prompt_cache_hit_tokens`, `prompt_cache_miss_tokens`.
/// * Moonshot: `cached_tokens` at the top; in streams sometimes inside the choice.
/// * OpenRouter: also `cost` and `cache_write_tokens`.
/// * xAI: `completion_tokens` excludes reasoning, the total shows it; `num_server_side_tools_used`: tools ran there.
/// * Mistral: cached in `num_cached_tokens` or `prompt_token_details`; usage without a request for it.
/// * Groq: `x_groq.usage`, and the usual place.
/// * vLLM, Perplexity, Databricks: usage in every chunk, cumulative.
/// * llama.cpp: `timings`, whose `prompt_n` counts only what was new.
/// * Gemini's compatible API: thoughts may be only in the total (unconfirmed).
#[derive(Default)]
pub(super) struct UsageFields {
    prompt: Count,
    completion: Count,
    total: Count,
    reasoning: Count,
    cached: Count,
    written: Count,
    written_long: Count,
    audio: Count,
    hosted: bool,
    billing: Billing,
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
        num_server_side_tools_used,
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
    pub(super) fn is_known(&self) -> bool {
        self.prompt.value().is_some() || self.completion.value().is_some()
    }

    /// Merges a `usage` object from any place.
    pub(super) fn merge(&mut self, usage: Value<'_>) {
        self.billing.read_cost(usage);
        let usage = UsageMembers::from_value(usage);
        let mut prompt = Count::of_any(&[usage.prompt_tokens, usage.input_tokens]);
        if prompt == Count::default()
            && let [Some(hit), Some(miss)] =
                [usage.prompt_cache_hit_tokens, usage.prompt_cache_miss_tokens]
        {
            // DeepSeek splits the prompt into these two.
            prompt = Count::from_member(Some(hit)).plus(Count::from_member(Some(miss)));
        }
        let completion = Count::of_any(&[usage.completion_tokens, usage.output_tokens]);
        let total = Count::from_member(usage.total_tokens);
        let grew = [self.prompt.grow(prompt), self.completion.grow(completion)].contains(&true);
        // A total is that of the numbers that it came with.
        match grew {
            true => self.total = total,
            false => _ = self.total.grow(total),
        }
        // Each server has a place of its own for these numbers (`docs/protocols.md` 4.1).
        self.reasoning.grow(Count::of_any(&[
            member(usage.completion_tokens_details, "reasoning_tokens"),
            member(usage.output_tokens_details, "reasoning_tokens"),
            usage.reasoning_tokens,
        ]));
        let details =
            usage.prompt_tokens_details.map(UsageDetailMembers::from_value).unwrap_or_default();
        self.cached.grow(Count::of_any(&[
            details.cached_tokens,
            member(usage.prompt_token_details, "cached_tokens"),
            member(usage.input_tokens_details, "cached_tokens"),
            usage.prompt_cache_hit_tokens,
            usage.cached_tokens,
            usage.num_cached_tokens,
            usage.cached_input_tokens,
            usage.cache_read_input_tokens,
        ]));
        self.written.grow(Count::of_any(&[
            details.cache_write_tokens,
            details.cache_creation_tokens,
            details.cache_creation_input_tokens,
            usage.cache_write_tokens,
            usage.cache_creation_input_tokens,
        ]));
        self.written_long.grow(Count::of_any(&[
            member(usage.cache_creation, "ephemeral_1h_input_tokens"),
            member(usage.cache_creation, "ephemeral_24h_input_tokens"),
        ]));
        self.audio.grow(Count::from_member(details.audio_tokens));
        for tools in [usage.server_tool_use_details, usage.server_tool_use] {
            self.billing.grow_searches(tools.and_then(|tools| tools.get("web_search_requests")));
            for (_, count) in tools.iter().flat_map(Value::entries) {
                self.hosted |= count.as_u64().is_some_and(|count| count > 0);
            }
        }
        let used = usage.num_server_side_tools_used.and_then(|count| count.as_u64());
        self.hosted |= used.is_some_and(|count| count > 0);
    }

    /// Reads llama.cpp's `timings`, which are used if no usage was requested: `prompt_n` counts only tokens
    /// that were newly evaluated.
    pub(super) fn timings(&mut self, timings: Value<'_>) {
        let [evaluated, cached, written] =
            timings.members(["prompt_n", "cache_n", "predicted_n"]).map(Count::from_member);
        if self.cached.value().is_none() {
            self.cached.grow(cached);
        }
        if !self.is_known() && evaluated.value().is_some() && written.value().is_some() {
            // Cached tokens are not evaluated again, and are not in `prompt_n`.
            self.prompt = evaluated.plus(cached);
            self.completion = written;
        }
    }

    /// Reads the tier that served the reply.
    pub(super) fn read_tier(&mut self, tier: Option<Value<'_>>) {
        self.billing.read_tier(tier);
    }

    /// Records that tools ran at the provider. Each has its fee (Groq's "Pricing"), which the reply does not tell.
    pub(super) fn record_hosted_tools(&mut self) {
        self.hosted = true;
        self.billing.grow_unmetered(1);
    }

    /// The normalised usage. `output` is at least the total less the input: xAI, Gemini's compatible API and
    /// Inception leave reasoning out of `completion_tokens`. Vercel's gateway leaves Gemini's reasoning out
    /// of the total, too. Mistral leaves audio out of the prompt.
    pub(super) fn normalised(&self, notes: &mut Vec<Note>) -> Usage {
        let [prompt, completion, mut reasoning, cached] =
            [self.prompt, self.completion, self.reasoning, self.cached].map(Count::value);
        let mut input = prompt;
        let mut output = completion;
        if let (Some(prompt), Some(total)) = (prompt, self.total.value()) {
            let visible = completion.unwrap_or(0);
            // xAI, Gemini's compatible API and Inception leave reasoning out of
            // `completion_tokens`. Mistral leaves audio out of the prompt.
            let rest = total.saturating_sub(prompt);
            let missing = rest.saturating_sub(visible);
            if completion.is_some() && rest != visible {
                note_once(notes, Note::UsageMismatch);
            }
            match self.audio.value() {
                Some(audio) if missing > 0 && audio == missing && audio > prompt => {
                    input = Some(prompt.saturating_add(audio));
                }
                _ if self.completion.is_unknown() => {}
                _ => output = Some(rest.max(visible)),
            }
        }
        // Much more reasoning than output means that it is not part of the output, as a bill confirmed.
        if let (Some(visible), Some(thought)) = (output, reasoning)
            && thought > visible.saturating_add(visible / 20).saturating_add(FEW)
        {
            note_once(notes, Note::UsageMismatch);
            output = Some(visible.saturating_add(thought));
        }
        // Some servers count a few more tokens of reasoning than of output.
        if reasoning > output.or(reasoning) {
            note_once(notes, Note::UsageMismatch);
            reasoning = output;
        }
        if Count::any_impossible(&self.counts()) {
            note_once(notes, Note::ImpossibleCount);
        }
        Usage {
            input,
            output,
            reasoning,
            cache_read: cached,
            cache_write: self.written.value(),
            cache_write_long: self.written_long.value(),
            hosted_tools: self.hosted,
            billing: Billing {
                audio_input: self.audio.value().unwrap_or(0),
                ..self.billing.clone()
            },
            ..Usage::default()
        }
    }

    fn counts(&self) -> [Count; 8] {
        let Self {
            prompt, completion, total, reasoning, cached, written, written_long, audio, ..
        } = *self;
        [prompt, completion, total, reasoning, cached, written, written_long, audio]
    }
}

fn member<'d>(details: Option<Value<'d>>, name: &str) -> Option<Value<'d>> {
    details?.get(name)
}
