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

/// Declares names, and of all of them a list for the test that compares them with the conventions.
macro_rules! names {
    ($($name:ident = $text:literal;)+) => {
        $(pub(super) const $name: &str = $text;)+
        #[cfg(test)]
        const NAMES: &[&str] = &[$($text),+];
    };
}

names! {
    // Metrics.
    DURATION = "gen_ai.client.inference.duration";
    TIME_TO_FIRST_CHUNK = "gen_ai.client.inference.time_to_first_chunk";
    TIME_PER_OUTPUT_CHUNK = "gen_ai.client.inference.time_per_output_chunk";
    INPUT_TOKENS = "gen_ai.client.inference.usage.input_tokens";
    OUTPUT_TOKENS = "gen_ai.client.inference.usage.output_tokens";
    CACHE_READ_TOKENS = "gen_ai.client.inference.usage.cache_read.input_tokens";
    CACHE_WRITE_TOKENS = "gen_ai.client.inference.usage.cache_write.input_tokens";
    REASONING_TOKENS = "gen_ai.client.inference.usage.reasoning.output_tokens";

    // Attributes.
    OPERATION = "gen_ai.operation.name";
    PROVIDER = "gen_ai.provider.name";
    CONVERSATION = "gen_ai.conversation.id";
    COMPACTED = "gen_ai.conversation.compacted";
    REQUEST_MODEL = "gen_ai.request.model";
    STREAM = "gen_ai.request.stream";
    RESPONSE_MODEL = "gen_ai.response.model";
    FINISH_REASONS = "gen_ai.response.finish_reasons";
    FIRST_CHUNK = "gen_ai.response.time_to_first_chunk";
    INPUT = "gen_ai.usage.input_tokens";
    OUTPUT = "gen_ai.usage.output_tokens";
    CACHE_READ = "gen_ai.usage.cache_read.input_tokens";
    CACHE_WRITE = "gen_ai.usage.cache_write.input_tokens";
    REASONING = "gen_ai.usage.reasoning.output_tokens";
    MODALITY = "gen_ai.token.modality";
    ERROR = "error.type";
    SERVER = "server.address";
    PORT = "server.port";
    METHOD = "http.request.method";
    STATUS = "http.response.status_code";
    PATH = "url.path";
}

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

#[cfg(test)]
mod tests {
    use strum::IntoEnumIterator as _;

    use super::super::providers::HOSTS;
    use super::*;

    const FACTS: &str = include_str!("../../tests/data/conventions/gen-ai-0.1.0.tsv");

    fn facts(kind: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
        let rows = FACTS.lines().map(|row| row.split('\t').collect::<Vec<_>>());
        rows.filter(move |row| row[0] == kind).map(|row| (row[1], row[2]))
    }

    #[test]
    fn names_are_those_of_pinned_version() {
        let known = || facts("attribute").chain(facts("metric")).map(|(name, _)| name);
        for name in NAMES {
            assert!(known().any(|known| known == *name), "{name}");
        }
        assert!(NAMES.len() > 25 && SCHEMA_URL.ends_with("/gen-ai/0.1.0"));
    }

    #[test]
    fn values_are_those_of_pinned_version() {
        let known = |name: &str, value: &str| facts("value").any(|fact| fact == (name, value));
        for (host, provider) in HOSTS {
            assert!(known(PROVIDER, provider), "{host}: {provider}");
        }
        for dialect in Dialect::iter() {
            assert!(known(OPERATION, operation(Some(dialect))), "{dialect:?}");
        }
        assert!(!known(PROVIDER, "plimsoll"));
    }
}
