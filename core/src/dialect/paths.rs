//! What a path means: its dialect, its purpose, and its provider.
//!
//! Pure, from method, path and headers. The purpose is read from the path's end, so that base paths and
//! prefixes of gateways do not matter; the provider from its start ([`is_known`]), so that a misspelled name
//! belongs to no provider. Nothing here decides where a request goes.

mod endpoints;
mod inference;
mod known;

use http::{HeaderMap, header};

use super::Dialect;
pub(super) use endpoints::segments;
use endpoints::verb;
pub use endpoints::{Endpoint, Transport, endpoint, is_metered_only};
pub use inference::is_inference;
pub use known::is_known;
use known::{ANTHROPIC, GEMINI, OPENAI};

/// The provider of a path or header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Provider {
    /// Anthropic, or a compatible API.
    Anthropic,
    /// OpenAI, Azure, or a compatible API.
    Openai,
    /// Google: AI Studio, Code Assist, or Vertex with Google's models.
    Gemini,
    /// Amazon Bedrock.
    Bedrock,
}

impl Provider {
    /// This provider's own dialects: an upstream that speaks one of them is probably this provider.
    pub fn dialects(self) -> &'static [Dialect] {
        match self {
            Self::Anthropic | Self::Bedrock => &[Dialect::Anthropic],
            Self::Openai => &[Dialect::OpenaiChat, Dialect::OpenaiResponses],
            Self::Gemini => &[Dialect::Gemini],
        }
    }
}

/// The provider of a request, for paths that several providers have (`/v1/models`, `/v1/files`, `HEAD /`) and
/// for those without a conversation. By the path if only one provider has it, else by headers, else OpenAI,
/// which has the most compatible APIs.
pub fn provider(target: &str, headers: &HeaderMap) -> Provider {
    owner(&segments(target)).unwrap_or_else(|| hinted(target, headers).unwrap_or(Provider::Openai))
}

/// The provider that a request's headers or its `key=` indicate, if any.
pub fn hinted(target: &str, headers: &HeaderMap) -> Option<Provider> {
    if starts_with(headers, header::AUTHORIZATION, "AWS4-HMAC-SHA256") {
        return Some(Provider::Bedrock);
    }
    if has_any(headers, &["anthropic-version", "anthropic-beta", "x-api-key"]) {
        return Some(Provider::Anthropic);
    }
    if has_any(headers, &["x-goog-api-key", "x-goog-api-client"]) || query_key(target).is_some() {
        return Some(Provider::Gemini);
    }
    if has_any(headers, &["api-key", "openai-organization", "openai-beta", "originator"]) {
        return Some(Provider::Openai);
    }
    if starts_with(headers, header::USER_AGENT, "claude-cli/") {
        return Some(Provider::Anthropic);
    }
    None
}

fn has_any(headers: &HeaderMap, names: &[&str]) -> bool {
    names.iter().any(|name| headers.contains_key(*name))
}

fn starts_with(headers: &HeaderMap, name: header::HeaderName, start: &str) -> bool {
    headers.get(name).is_some_and(|value| value.as_bytes().starts_with(start.as_bytes()))
}

fn query_key(target: &str) -> Option<&str> {
    let (_, query) = target.split_once('?')?;
    query.split('&').find_map(|pair| pair.strip_prefix("key=")).filter(|key| !key.is_empty())
}

fn owner(segments: &[&str]) -> Option<Provider> {
    // After the name of a resource comes an id, which may be any word.
    let resource = known::resource(segments).unwrap_or(segments);
    if let Some(at) = segments.iter().position(|segment| *segment == "publishers") {
        let is_claude = segments.get(at + 1) == Some(&"anthropic");
        return Some(if is_claude { Provider::Anthropic } else { Provider::Gemini });
    }
    if contains_any(resource, GEMINI) || segments.iter().any(|s| s.starts_with("v1internal:")) {
        return Some(Provider::Gemini);
    }
    if segments.last().and_then(|last| verb(last)).is_some() && resource.contains(&"models") {
        return Some(Provider::Gemini);
    }
    if matches!(segments, [.., "model", _, "invoke" | "converse" | "count-tokens"])
        || matches!(segments, [.., "invoke-with-response-stream" | "converse-stream"])
    {
        return Some(Provider::Bedrock);
    }
    if contains_any(resource, OPENAI) {
        return Some(Provider::Openai);
    }
    if contains_any(resource, ANTHROPIC) {
        return Some(Provider::Anthropic);
    }
    None
}

fn contains_any(segments: &[&str], names: &[&str]) -> bool {
    segments.iter().any(|segment| names.contains(segment))
}

/// Fuzz target: no target makes a reader panic, its query decides nothing, and the redacted form of its
/// path is stable.
#[cfg(any(test, fuzzing))]
pub fn fuzz(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    for target in text.lines().take(64) {
        let path = target.split_once('?').map_or(target, |(path, _)| path);
        for method in [http::Method::POST, http::Method::GET, http::Method::HEAD] {
            let found = endpoint(&method, target);
            let bare = endpoint(&method, path);
            let of =
                |found: &Option<Endpoint<'_>>| found.as_ref().map(|it| (it.dialect, it.transport));
            assert_eq!(of(&found), of(&bare));
            assert!(method != http::Method::HEAD || found.is_none());
        }
        let _ = (provider(target, &HeaderMap::new()), hinted(target, &HeaderMap::new()));
        assert!(super::percent::decoded(target).chars().count() <= target.chars().count());
        let shown = super::credentials::redact(path).into_owned();
        assert_eq!(shown.split('/').count(), path.split('/').count());
        assert_eq!(super::credentials::redact(&shown), shown);
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, Method};

    use super::*;
    use crate::dialect::Purpose;
    use Dialect::{Anthropic, Gemini, OpenaiChat, OpenaiResponses};
    use Purpose::{Compaction, Count, Turn};

    type Case<'a> = (&'a str, Dialect, Purpose, Option<&'a str>, Option<bool>);

    #[test]
    #[expect(clippy::too_many_lines, reason = "one table of all paths")]
    fn conversation_paths_are_known() {
        let azure = "/openai/deployments/my%20gpt/chat/completions?api-version=2025-04-01-preview";
        let vertex = "/v1/projects/p/locations/global/publishers";
        let claude = format!("{vertex}/anthropic/models/claude-opus-5%4020261001:streamRawPredict");
        let claude_once = format!("{vertex}/anthropic/models/claude-opus-5@20261001:rawPredict");
        let claude_count = format!("{vertex}/anthropic/models/count-tokens:rawPredict");
        let gemini = format!("{vertex}/google/models/gemini-3-pro:streamGenerateContent?alt=sse");
        let cases: &[Case<'_>] = &[
            ("/v1/messages", Anthropic, Turn, None, None),
            ("/v1/messages?beta=true", Anthropic, Turn, None, None),
            ("/messages", Anthropic, Turn, None, None),
            ("/v1/v1/messages", Anthropic, Turn, None, None),
            ("//v1//messages", Anthropic, Turn, None, None),
            ("/anthropic/v1/messages", Anthropic, Turn, None, None),
            ("/api/v1/messages", Anthropic, Turn, None, None),
            ("/coding/v1/messages", Anthropic, Turn, None, None),
            ("/v1/messages/count_tokens?beta=true", Anthropic, Count, None, None),
            (&claude, Anthropic, Turn, Some("claude-opus-5@20261001"), Some(true)),
            (&claude_once, Anthropic, Turn, Some("claude-opus-5@20261001"), None),
            (&claude_count, Anthropic, Count, None, None),
            ("/v1/chat/completions", OpenaiChat, Turn, None, None),
            ("/chat/completions", OpenaiChat, Turn, None, None),
            ("/api/v1/chat/completions", OpenaiChat, Turn, None, None),
            ("/v1beta/openai/chat/completions", OpenaiChat, Turn, None, None),
            ("/openai/v1/chat/completions", OpenaiChat, Turn, None, None),
            (
                "/v1/projects/p/locations/l/endpoints/openapi/chat/completions",
                OpenaiChat,
                Turn,
                None,
                None,
            ),
            (azure, OpenaiChat, Turn, Some("my gpt"), None),
            ("/v1/responses", OpenaiResponses, Turn, None, None),
            ("/responses", OpenaiResponses, Turn, None, None),
            ("/openai/v1/responses", OpenaiResponses, Turn, None, None),
            ("/openai/responses?api-version=preview", OpenaiResponses, Turn, None, None),
            ("/backend-api/codex/responses", OpenaiResponses, Turn, None, None),
            ("/v1/responses/compact", OpenaiResponses, Compaction, None, None),
            ("/backend-api/codex/responses/compact", OpenaiResponses, Compaction, None, None),
            ("/v1/responses/input_tokens", OpenaiResponses, Count, None, None),
            (
                "/v1beta/models/gemini-3-pro:generateContent",
                Gemini,
                Turn,
                Some("gemini-3-pro"),
                Some(false),
            ),
            ("/v1/models/g:streamGenerateContent?alt=sse", Gemini, Turn, Some("g"), Some(true)),
            ("/v1alpha/models/g:streamGenerateContent?key=k", Gemini, Turn, Some("g"), Some(true)),
            ("/models/g%3AgenerateContent", Gemini, Turn, Some("g"), Some(false)),
            ("/v1/models/g;key=k:generateContent", Gemini, Turn, Some("g"), Some(false)),
            ("/openai/deployments/d;key=k/chat/completions", OpenaiChat, Turn, Some("d"), None),
            ("/v1beta/tunedModels/t-1:generateContent", Gemini, Turn, Some("t-1"), Some(false)),
            ("/v1beta/models/g:countTokens", Gemini, Count, Some("g"), None),
            (&gemini, Gemini, Turn, Some("gemini-3-pro"), Some(true)),
            (
                "/v1/publishers/google/models/g:generateContent",
                Gemini,
                Turn,
                Some("g"),
                Some(false),
            ),
            (
                "/v1beta1/projects/p/locations/l/endpoints/77:generateContent",
                Gemini,
                Turn,
                Some("77"),
                Some(false),
            ),
            ("/v1internal:streamGenerateContent?alt=sse", Gemini, Turn, None, Some(true)),
            ("/v1internal:countTokens", Gemini, Count, None, None),
            ("/v1beta/interactions", Gemini, Turn, None, None),
            (
                "/model/us.anthropic.claude-opus-5-v1%3A0/invoke",
                Anthropic,
                Turn,
                Some("us.anthropic.claude-opus-5-v1:0"),
                Some(false),
            ),
            (
                "/model/anthropic.claude-x/count-tokens",
                Anthropic,
                Count,
                Some("anthropic.claude-x"),
                None,
            ),
        ];
        for (path, dialect, purpose, model, stream) in cases {
            let found = endpoint(&Method::POST, path).unwrap_or_else(|| panic!("{path}"));
            let seen = (found.dialect, found.purpose, found.model.as_deref(), found.stream);
            assert_eq!(seen, (*dialect, *purpose, *model, *stream), "{path}");
            assert_eq!(found.transport, Transport::Http, "{path}");
            assert_eq!(endpoint(&Method::HEAD, path), None, "{path}");
        }
    }

    /// Azure's paths are like OpenAI's.
    #[test]
    fn stored_reply_is_read_by_its_id() {
        let stored = |method: Method, path: &'static str| {
            let found = endpoint(&method, path)?;
            Some((found.dialect, found.stored?.into_owned()))
        };
        let found = |dialect, id: &str| Some((dialect, id.to_owned()));
        for (path, id) in [
            ("/v1/responses/resp_1", "resp_1"),
            ("/v1/responses/resp_1?stream=true&starting_after=4", "resp_1"),
            ("/openai/v1/responses/resp%5F1", "resp_1"),
            ("/openai/responses/resp_1?api-version=preview", "resp_1"),
        ] {
            assert_eq!(stored(Method::GET, path), found(OpenaiResponses, id), "{path}");
            assert_eq!(endpoint(&Method::DELETE, path), None);
        }
        let cancelled = stored(Method::POST, "/v1/responses/resp_1/cancel");
        assert_eq!(cancelled, found(OpenaiResponses, "resp_1"));
        for (method, path) in [
            (Method::GET, "/v1beta/interactions/int_1"),
            (Method::GET, "/v1beta/interactions/int_1?stream=true&last_event_id=e"),
            (Method::POST, "/v1beta/interactions/int_1/cancel"),
            (Method::GET, "/v1beta1/projects/p/locations/l/interactions/int_1:poll"),
            (Method::GET, "/v1beta1/projects/p/locations/l/interactions/int_1:stream"),
            (Method::POST, "/v1beta1/projects/p/locations/l/interactions/int_1:cancel"),
        ] {
            assert_eq!(stored(method, path), found(Gemini, "int_1"), "{path}");
        }
        let chat = stored(Method::GET, "/v1/chat/completions/c_1");
        assert_eq!(chat, found(OpenaiChat, "c_1"));
        for path in [
            "/v1/responses",
            "/v1/responses/resp_1/input_items",
            "/v1/chat/completions",
            "/v1beta/interactions",
        ] {
            assert_eq!(stored(Method::GET, path), None, "{path}");
        }
        assert_eq!(stored(Method::POST, "/v1/responses"), None);
    }

    #[test]
    fn other_paths_have_no_endpoint() {
        for path in [
            "/",
            "",
            "?",
            "/v1/models",
            "/v1/models/claude-opus-5",
            "/v1/messages/batches",
            "/v1/messages/batches/b_1/results",
            "/v1/threads/thread_1/messages",
            "/v1/responses/resp_1",
            "/v1/chat/completions/c_1",
            "/v1/completions",
            "/v1/embeddings",
            "/v1/files",
            "/v1beta/files",
            "/v1beta/models/g:embedContent",
            "/v1beta/models/g:predictLongRunning",
            "/v1beta/cachedContents",
            "/v1beta/interactions/int_1",
            "/v1internal:loadCodeAssist",
            "/api/hello",
            "/model/amazon.nova-pro/invoke",
            "/model/anthropic.claude-x/converse",
            "/v1/realtime",
            ":",
            "/%",
            "/%3a",
        ] {
            assert_eq!(endpoint(&Method::POST, path), None, "{path}");
        }
    }

    #[test]
    fn websocket_and_aws_event_stream_endpoints_are_recognised() {
        let ws = endpoint(&Method::GET, "/v1/responses").unwrap();
        assert_eq!(ws.dialect, OpenaiResponses);
        assert_eq!(ws.transport, Transport::WebSocket);
        assert_eq!(endpoint(&Method::GET, "/v1/messages"), None);
        let aws = "/model/anthropic.claude-x/invoke-with-response-stream";
        let aws = endpoint(&Method::POST, aws).unwrap();
        assert_eq!(aws.dialect, Anthropic);
        assert_eq!(aws.transport, Transport::AwsEventStream);
    }

    #[test]
    fn every_path_has_provider() {
        for (path, header, provider_) in [
            ("/v1/models", "anthropic-version", Provider::Anthropic),
            ("/v1/models?limit=1000", "x-api-key", Provider::Anthropic),
            ("/v1/models", "authorization", Provider::Openai),
            ("/v1/models", "api-key", Provider::Openai),
            ("/v1/models", "x-goog-api-key", Provider::Gemini),
            ("/v1/models?key=abc", "accept", Provider::Gemini),
            ("/v1/models?key=", "accept", Provider::Openai),
            ("/v1/files", "anthropic-beta", Provider::Anthropic),
            ("/v1/files", "accept", Provider::Openai),
            ("/", "anthropic-version", Provider::Anthropic),
            ("/", "accept", Provider::Openai),
            ("/api/hello", "accept", Provider::Anthropic),
            ("/v1/messages/batches", "accept", Provider::Anthropic),
            ("/v1/threads/t/messages", "accept", Provider::Openai),
            ("/v1/batches", "accept", Provider::Openai),
            ("/v1/embeddings", "accept", Provider::Openai),
            ("/v1/realtime", "accept", Provider::Openai),
            ("/backend-api/codex/models", "accept", Provider::Openai),
            ("/v1beta/models", "accept", Provider::Gemini),
            ("/v1beta/openai/chat/completions", "accept", Provider::Gemini),
            ("/models/g:embedContent", "accept", Provider::Gemini),
            ("/v1internal:loadCodeAssist", "accept", Provider::Gemini),
            (
                "/v1/projects/p/locations/l/publishers/anthropic/models/m:rawPredict",
                "accept",
                Provider::Anthropic,
            ),
            ("/upload/v1beta/files", "accept", Provider::Gemini),
            ("/model/x/converse-stream", "accept", Provider::Bedrock),
        ] {
            let headers = HeaderMap::from_iter([(
                http::HeaderName::from_static(header),
                HeaderValue::from_static("v"),
            )]);
            assert_eq!(provider(path, &headers), provider_, "{path} {header}");
        }
        let agent = HeaderMap::from_iter([(
            header::USER_AGENT,
            HeaderValue::from_static("claude-cli/2.1.329 (external, cli)"),
        )]);
        assert_eq!(provider("/", &agent), Provider::Anthropic);
        let signed = HeaderMap::from_iter([(
            header::AUTHORIZATION,
            HeaderValue::from_static("AWS4-HMAC-SHA256 Credential=AKIA/2026"),
        )]);
        assert_eq!(provider("/", &signed), Provider::Bedrock);
        assert!(Provider::Gemini.dialects().contains(&Gemini));
    }
}
