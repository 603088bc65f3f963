//! The names that spans and metrics use: OpenTelemetry's conventions for generative AI, version 0.1.0, and ours.
//!
//! <https://github.com/open-telemetry/semantic-conventions-genai/tree/v0.1.0>. All of them are in development there, so
//! the version is pinned here and named in what is sent. What those do not know is under `plimsoll.`.

use crate::context::Outcome;
use crate::dialect::{Dialect, Purpose, StopReason};
use crate::telemetry::Exchange;

/// The version, as what is sent names it.
pub(super) const SCHEMA_URL: &str = "https://opentelemetry.io/schemas/gen-ai/0.1.0";
/// The instrumentation scope.
pub(super) const SCOPE: &str = "plimsoll";

pub(super) const OPERATION: &str = "gen_ai.operation.name";
pub(super) const PROVIDER: &str = "gen_ai.provider.name";
pub(super) const CONVERSATION: &str = "gen_ai.conversation.id";
pub(super) const COMPACTED: &str = "gen_ai.conversation.compacted";
pub(super) const REQUEST_MODEL: &str = "gen_ai.request.model";
pub(super) const STREAM: &str = "gen_ai.request.stream";
pub(super) const RESPONSE_MODEL: &str = "gen_ai.response.model";
pub(super) const FINISH_REASONS: &str = "gen_ai.response.finish_reasons";
pub(super) const FIRST_CHUNK: &str = "gen_ai.response.time_to_first_chunk";
pub(super) const INPUT: &str = "gen_ai.usage.input_tokens";
pub(super) const OUTPUT: &str = "gen_ai.usage.output_tokens";
pub(super) const CACHE_READ: &str = "gen_ai.usage.cache_read.input_tokens";
pub(super) const CACHE_WRITE: &str = "gen_ai.usage.cache_write.input_tokens";
pub(super) const REASONING: &str = "gen_ai.usage.reasoning.output_tokens";
pub(super) const MODALITY: &str = "gen_ai.token.modality";
pub(super) const ERROR: &str = "error.type";
pub(super) const SERVER: &str = "server.address";
pub(super) const PORT: &str = "server.port";
pub(super) const METHOD: &str = "http.request.method";
pub(super) const STATUS: &str = "http.response.status_code";
pub(super) const PATH: &str = "url.path";

/// Whether a model is called, so that the conventions for inference apply.
pub(super) fn is_inference(exchange: &Exchange) -> bool {
    let is_count = exchange.purpose == Some(Purpose::Count);
    exchange.dialect.is_some() && exchange.purpose.is_some() && !is_count
}

/// `gen_ai.operation.name`.
pub(super) fn operation(dialect: Option<Dialect>) -> &'static str {
    match dialect {
        Some(Dialect::Gemini) => "generate_content",
        _ => "chat",
    }
}

/// `gen_ai.response.finish_reasons`, by the names of the conventions' schema of messages.
pub(super) fn finish_reason(exchange: &Exchange) -> Option<&'static str> {
    match exchange.stop {
        Some(StopReason::End) => Some("stop"),
        Some(StopReason::ToolUse) => Some("tool_call"),
        Some(StopReason::MaxTokens | StopReason::WindowFull) => Some("length"),
        Some(StopReason::Refused) => Some("content_filter"),
        Some(StopReason::Paused) => Some("pause"),
        Some(StopReason::Failed) => Some("error"),
        Some(StopReason::Other) => Some("other"),
        // It was expected, and did not come.
        None if exchange.outcome != Outcome::Complete => Some("error"),
        None => None,
    }
}

/// `error.type`: what the provider reported, else the status, else how the exchange ended.
pub(super) fn error(exchange: &Exchange) -> Option<String> {
    if let Some(kind) = exchange.error_kind {
        return Some(kind.as_ref().to_owned());
    }
    let status = exchange.status.filter(|status| *status >= 400);
    status.map(|status| status.to_string()).or_else(|| {
        (exchange.outcome == Outcome::UpstreamFailed).then(|| exchange.outcome.as_ref().to_owned())
    })
}

/// `gen_ai.response.model`: the reply's own name for it, or the requested one if that is what answered.
pub(super) fn response_model(exchange: &Exchange) -> Option<&str> {
    let requested = match exchange.usage.input {
        Some(_) => exchange.model.as_deref(),
        None => None,
    };
    exchange.served.as_deref().or(requested)
}
