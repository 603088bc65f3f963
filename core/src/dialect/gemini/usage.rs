//! Gemini's `usageMetadata` (`docs/protocols.md` 5.3).
//!
//! It comes with every chunk and is cumulative: numbers that are 0 or missing in a later chunk stay, and no output falls. A
//! prompt may be corrected. What was not reported stays unknown.

use crate::dialect::billing::Billing;
use crate::dialect::count::Count;
use crate::dialect::note::note_once;
use crate::dialect::{LastCall, Note, Usage, UsageSpelling};
use crate::wire::json::{Value, members};
use crate::wire::member::first;

/// Google's own usage fields, before they are normalised. Tokens.
#[derive(Default)]
pub(super) struct UsageFields {
    prompt: Count,
    tool_use: Count,
    candidates: Count,
    thoughts: Count,
    cached: Count,
    total: Count,
    billing: Billing,
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
        traffic = "trafficType",
        snake_traffic = "traffic_type",
        tier = "serviceTier",
        snake_tier = "service_tier",
        details = "promptTokensDetails",
        snake_details = "prompt_tokens_details",
        cached_details = "cacheTokensDetails",
        snake_cached_details = "cache_tokens_details",
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
        self.merge_billing(&reported);
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

    fn merge_billing(&mut self, reported: &UsageMembers<'_>) {
        let tiers = [reported.traffic, reported.snake_traffic, reported.tier, reported.snake_tier];
        self.billing.read_tier(first(tiers));
        if let Some(details) = first([reported.details, reported.snake_details]) {
            let cached = first([reported.cached_details, reported.snake_cached_details]);
            self.billing.audio_cached = cached.map_or(0, audio_tokens);
            self.billing.audio_input =
                audio_tokens(details).saturating_sub(self.billing.audio_cached);
        }
    }

    /// Counts a search by the provider, once for each of its queries.
    pub(super) fn count_searches(&mut self, grounding: Value<'_>) {
        let queries = grounding.get_any(&["webSearchQueries", "web_search_queries"]);
        let queries = queries.map_or(0, |queries| queries.items().count());
        self.billing.searches = self.billing.searches.max(queries as u64);
        // Maps have a fee of their own.
        let chunks = grounding.get_any(&["groundingChunks", "grounding_chunks"]);
        let from_maps =
            chunks.iter().flat_map(Value::items).filter(|chunk| chunk.get("maps").is_some());
        self.billing.grow_unmetered(from_maps.count().min(1) as u64);
    }

    /// Reads the tier, if it is said beside the usage.
    pub(super) fn read_tier(&mut self, tier: Option<Value<'_>>) {
        self.billing.read_tier(tier);
    }

    pub(super) fn normalised(&self, notes: &mut Vec<Note>) -> Usage {
        let Self { prompt, tool_use, candidates, thoughts, cached, total, .. } = *self;
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
            billing: self.billing.clone(),
            ..Usage::default()
        }
    }
}

/// The tokens of audio in a list of tokens by modality.
fn audio_tokens(details: Value<'_>) -> u64 {
    let audio = details.items().filter(|of| of.get_text("modality").as_deref() == Some("AUDIO"));
    audio.filter_map(|of| of.get_any(&["tokenCount", "token_count"])?.as_u64()).sum()
}
