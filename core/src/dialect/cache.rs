//! Why a provider's cache was missed, if it says so. Both providers compare a request with the previous one
//! if the client asks for it (`diagnostics.previous_message_id`,
//! `prompt_cache_options.comparison_response_id`; `docs/protocols.md` 1.3, 7.2).
//!
//! Reads these reports; must not know what was changed in a request.

use serde::{Deserialize, Serialize};
use strum::{AsRefStr, EnumIter};

use super::count::Count;
use crate::wire::json::Value;

/// The `anthropic-beta` that the comparison needs. Newer versions of the API need none, and accept it.
pub const BETA: &str = "cache-diagnosis-2026-04-07";

/// The provider's report on a cache that could not be used as far as expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct CacheMiss {
    /// The first difference.
    pub cause: CacheMissCause,
    /// Input tokens that would have been read from the cache, if it says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
}

/// What differs from the previous request; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[derive(AsRefStr, EnumIter, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum CacheMissCause {
    /// The model differs.
    Model,
    /// The system prompt differs.
    System,
    /// The tool definitions differ.
    Tools,
    /// The history: Anthropic's `messages`, OpenAI's `input`.
    Messages,
    /// The provider compacted the history.
    Compacted,
    /// The client's cache key differs (OpenAI's `prompt_cache_key`).
    CacheKey,
    /// Settings of the response: format, effort, verbosity, service tier.
    Settings,
    /// The request to compare with is no longer known.
    NotFound,
    /// The provider cannot say.
    Unavailable,
    /// An unknown cause.
    Other,
}

impl CacheMiss {
    /// From an Anthropic message; `None` if nothing was missed, or the comparison is still pending.
    pub(super) fn in_message(message: Value<'_>) -> Option<Self> {
        let reason = message.path(&["diagnostics", "cache_miss_reason"])?;
        let cause = match reason.get_text("type")?.as_ref() {
            "model_changed" => CacheMissCause::Model,
            "system_changed" => CacheMissCause::System,
            "tools_changed" => CacheMissCause::Tools,
            "messages_changed" => CacheMissCause::Messages,
            "previous_message_not_found" => CacheMissCause::NotFound,
            "unavailable" => CacheMissCause::Unavailable,
            _ => CacheMissCause::Other,
        };
        let tokens = Count::from_member(reason.get("cache_missed_input_tokens")).value();
        Some(Self { cause, tokens })
    }

    /// From an OpenAI response; `None` for a hit.
    pub(super) fn in_response(response: Value<'_>) -> Option<Self> {
        let diagnostics = response.get("prompt_cache_diagnostics")?;
        let cause = match diagnostics.get_text("type")?.as_ref() {
            "cache_hit" => return None,
            "comparison_response_not_found" => CacheMissCause::NotFound,
            "unavailable" => CacheMissCause::Unavailable,
            "cache_miss" => match diagnostics.get_text("reason").unwrap_or_default().as_ref() {
                "model_changed" => CacheMissCause::Model,
                "prompt_cache_key_changed" => CacheMissCause::CacheKey,
                "tools_changed" => CacheMissCause::Tools,
                "context_compacted" => CacheMissCause::Compacted,
                "input_changed" => CacheMissCause::Messages,
                "text_format_changed"
                | "reasoning_effort_changed"
                | "verbosity_changed"
                | "service_tier_changed" => CacheMissCause::Settings,
                _ => CacheMissCause::Other,
            },
            _ => CacheMissCause::Other,
        };
        let tokens = Count::from_member(diagnostics.get("cache_missed_tokens")).value();
        Some(Self { cause, tokens })
    }
}
