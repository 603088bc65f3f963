//! A request as it arrives: dialect, operation, model and account, read from path, headers and body.
//!
//! Checks nothing: what is missing or wrong is refused later, with the dialect's error.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use serde_json::Value;

use super::prompt::hash;

/// The protocol of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// Anthropic Messages.
    Anthropic,
    /// OpenAI Chat Completions and its look-alikes.
    Chat,
    /// OpenAI Responses.
    Responses,
    /// Gemini `generateContent`.
    Gemini,
}

impl Dialect {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Anthropic => "anthropic",
            Self::Chat => "chat",
            Self::Responses => "responses",
            Self::Gemini => "gemini",
        }
    }
}

/// The API operation that a request calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// A reply.
    Reply,
    /// The number of its input tokens (`docs/protocols.md` 6).
    CountTokens,
    /// A summary that replaces its history (`docs/protocols.md` 1.3, 3.3).
    Compact,
}

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct ReceivedRequest {
    /// The protocol, by the path.
    pub dialect: Dialect,
    /// The operation, by the path and the body.
    pub operation: Operation,
    /// The model, by path or body; empty if none is named.
    pub model: String,
    /// Whether the reply streams.
    pub stream: bool,
    /// Whether a Gemini stream is sent as events, and not as one JSON array (`docs/protocols.md` 5.1).
    pub is_sse: bool,
    /// The request's headers.
    pub headers: HeaderMap,
    /// The body as it arrived.
    pub bytes: Bytes,
    /// The body parsed; copies of the request share it.
    pub body: Arc<Value>,
    /// The account: a hash of the credential; `None` without one.
    pub account: Option<u128>,
    /// Time since the start of the provider.
    pub received_at: Duration,
}

impl ReceivedRequest {
    /// Parses a request; `None` if the path is unknown. A body that is not JSON becomes null, which every
    /// protocol refuses.
    pub fn parse(
        path: &str,
        headers: &HeaderMap,
        bytes: Bytes,
        received_at: Duration,
    ) -> Option<Self> {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let body: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        let last_segment = path.rsplit('/').next().unwrap_or_default();
        let (dialect, operation) = match last_segment {
            "messages" if body["compaction"].is_object() => {
                (Dialect::Anthropic, Operation::Compact)
            }
            "messages" => (Dialect::Anthropic, Operation::Reply),
            "compact" if path.ends_with("/responses/compact") => {
                (Dialect::Responses, Operation::Compact)
            }
            "count_tokens" => (Dialect::Anthropic, Operation::CountTokens),
            "completions" if path.ends_with("/chat/completions") => {
                (Dialect::Chat, Operation::Reply)
            }
            "responses" => (Dialect::Responses, Operation::Reply),
            "input_tokens" => (Dialect::Responses, Operation::CountTokens),
            _ => match last_segment.split_once(':')?.1 {
                "generateContent" | "streamGenerateContent" => (Dialect::Gemini, Operation::Reply),
                "countTokens" => (Dialect::Gemini, Operation::CountTokens),
                _ => return None,
            },
        };
        let parameter = |name: &str| {
            query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
        };
        let named = body["model"].as_str().unwrap_or_default();
        let model = last_segment.split_once(':').map_or(named, |(model, _)| model).to_owned();
        let stream = match dialect {
            Dialect::Gemini => last_segment.ends_with(":streamGenerateContent"),
            _ => body["stream"] == true,
        };
        Some(Self {
            dialect,
            operation,
            model,
            stream,
            is_sse: dialect != Dialect::Gemini || parameter("alt") == Some("sse"),
            account: account(headers, parameter("key")),
            headers: headers.clone(),
            bytes,
            body: Arc::new(body),
            received_at,
        })
    }

    /// A header's text; several lines of it joined by commas.
    pub(super) fn header(&self, name: &str) -> Option<String> {
        let lines: Vec<&str> =
            self.headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect();
        (!lines.is_empty()).then(|| lines.join(","))
    }
}

/// The account behind a credential: the key alone, whichever header carries it.
fn account(headers: &HeaderMap, key: Option<&str>) -> Option<u128> {
    let header = |name: &str| headers.get(name)?.to_str().ok();
    let credential = header("x-api-key")
        .or_else(|| header("x-goog-api-key"))
        .or_else(|| header("api-key"))
        .or_else(|| header("authorization").map(|all| all.trim_start_matches("Bearer ")))
        .or(key)?;
    Some(hash(&[credential]))
}
