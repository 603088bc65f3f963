//! The paths of providers' APIs, from the first segment on.
//!
//! The end of a path shows its purpose, the start its provider. A path that begins with a word of no API
//! names something that is not configured, such as a misspelled upstream. Routing it by its end would send a
//! key to somebody else. Pure.

use http::Method;

use super::endpoints::{endpoint, segments, verb};

/// Segments that may come before a known end: the roots of providers' APIs. Those of a gateway belong in
/// `base_url`.
const ROOTS: &[&str] = &["api", "openai", "anthropic", "coding", "codex", "backend-api"];

/// First segments after the roots that several providers have; headers show which one is meant.
const SHARED: &[&str] = &[
    "models",
    "files",
    "batches",
    "organization",
    "rerank",
    "tokenize",
    "tokenizers",
    "agents",
    "fim",
    "ocr",
    "model",
    "projects",
    "publishers",
];

/// Segments that only Google's APIs have.
pub(super) const GEMINI: &[&str] = &[
    "v1beta",
    "v1alpha",
    "v1beta1",
    "v1internal",
    "tunedModels",
    "cachedContents",
    "corpora",
    "fileSearchStores",
    "interactions",
];

/// Segments that only OpenAI's API and compatible APIs have.
pub(super) const OPENAI: &[&str] = &[
    "chat",
    "completions",
    "responses",
    "conversations",
    "embeddings",
    "audio",
    "images",
    "moderations",
    "fine_tuning",
    "assistants",
    "threads",
    "vector_stores",
    "uploads",
    "realtime",
    "evals",
    "containers",
    "videos",
    "backend-api",
    "deployments",
];

/// Segments that only Anthropic's API and its client have.
pub(super) const ANTHROPIC: &[&str] =
    &["messages", "complete", "anthropic", "hello", "skills", "organizations"];

/// Whether a provider's API has such a path: an endpoint for conversations with nothing unknown before it, or
/// another of its resources, with anything after it.
pub fn is_known(method: &Method, target: &str) -> bool {
    let segments = segments(target);
    match endpoint(method, target) {
        Some(endpoint) if endpoint.stored.is_none() => are_roots(before_end(&segments)),
        Some(_) | None => resource(&segments).is_some(),
    }
}

pub(super) fn resource<'s, 'p>(segments: &'s [&'p str]) -> Option<&'s [&'p str]> {
    // Google's uploads have a root of their own.
    let end = segments.iter().position(|segment| {
        !(ROOTS.contains(segment) || *segment == "upload" || is_version(segment))
    })?;
    let name = segments[end];
    let is_last = end + 1 == segments.len();
    let is_named = [SHARED, OPENAI, ANTHROPIC, GEMINI].iter().any(|names| names.contains(&name));
    let is_verb = name.starts_with("v1internal:") || is_last && verb(name).is_some();
    // Everything below this root belongs to one provider.
    let is_chatgpt = segments[..end].contains(&"backend-api");
    if is_named || is_verb || is_chatgpt { Some(&segments[..=end]) } else { None }
}

pub(super) fn before_end<'s, 'p>(segments: &'s [&'p str]) -> &'s [&'p str] {
    match segments {
        [before @ .., "deployments", _, "chat", "completions"]
        | [before @ .., "deployments", _, "completions" | "embeddings"]
        | [before @ .., "chat", "completions"]
        | [before @ .., "messages", "count_tokens"]
        | [before @ .., "responses", "compact" | "input_tokens"]
        | [before @ .., "model", _, _]
        | [before @ .., "publishers", _, "models", _]
        | [before @ .., "models" | "tunedModels" | "endpoints", _]
        | [before @ .., _] => before,
        [] => &[],
    }
}

pub(super) fn are_roots(segments: &[&str]) -> bool {
    // On Vertex also project and location.
    match segments {
        [] => true,
        ["projects", _, "locations", _, rest @ ..] => match rest {
            ["endpoints", "openapi"] => true,
            rest => are_roots(rest),
        },
        [root, rest @ ..] => (ROOTS.contains(root) || is_version(root)) && are_roots(rest),
    }
}

fn is_version(segment: &str) -> bool {
    // `v1`, `v1beta`, `v2`, …
    let mut bytes = segment.bytes();
    bytes.next() == Some(b'v')
        && bytes.next().is_some_and(|byte| byte.is_ascii_digit())
        && bytes.all(|byte| byte.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_provider_apis_are_known() {
        for target in [
            "/v1/messages?beta=true",
            "/messages",
            "//v1//messages",
            "/anthropic/v1/messages",
            "/api/v1/messages",
            "/coding/v1/messages",
            "/v1/messages/count_tokens",
            "/v1/messages/batches/b_1/results",
            "/v1/chat/completions",
            "/chat/completions",
            "/api/v1/chat/completions",
            "/openai/v1/chat/completions",
            "/v1beta/openai/chat/completions",
            "/v1/projects/p/locations/l/endpoints/openapi/chat/completions",
            "/openai/deployments/my%20gpt/chat/completions?api-version=1",
            "/v1/responses",
            "/openai/responses?api-version=preview",
            "/backend-api/codex/responses",
            "/backend-api/codex/models",
            "/backend-api/wham/usage",
            "/v1/responses/compact",
            "/v1/responses/resp_1/cancel",
            "/v1beta/models/gemini-3-pro:generateContent",
            "/models/g%3AgenerateContent",
            "/v1beta/tunedModels/t-1:generateContent",
            "/v1/projects/p/locations/l/publishers/anthropic/models/m:rawPredict",
            "/v1/publishers/google/models/g:generateContent",
            "/v1beta1/projects/p/locations/l/endpoints/77:generateContent",
            "/v1internal:streamGenerateContent?alt=sse",
            "/v1internal:loadCodeAssist",
            "/upload/v1beta/files",
            "/model/us.anthropic.claude-opus-5-v1%3A0/invoke",
            "/model/amazon.nova-pro/converse-stream",
            "/v1/models",
            "/v1/files/f_1/content",
            "/v1/threads/t/messages",
            "/v1/conversations/c/items",
            "/v1/embeddings",
            "/v1/organizations/me",
            "/api/hello",
        ] {
            assert!(is_known(&Method::POST, target), "{target}");
        }
        assert!(is_known(&Method::GET, "/v1/chat/completions/c_1/messages"));
        assert!(is_known(&Method::HEAD, "/api/hello"));
    }

    #[test]
    fn unknown_prefix_is_no_path() {
        for target in [
            "/",
            "",
            "/v1",
            "/api",
            "/openai",
            "/x",
            "/deepseak/v1/chat/completions",
            "/deepseak/chat/completions",
            "/v1/deepseak/chat/completions",
            "/anthropc/v1/messages",
            "/openai/deepseak/v1/responses",
            "/team/v1beta/models/m:generateContent",
            "/team/v1/models",
            "/v1/files/messages",
            "/v1/uploads/chat/completions",
            "/v1%2Fmessages",
            "/deepseak%2Fv1/messages",
            "/v1/../deepseak/messages",
            "/./v1/messages",
            "/V1/messages",
            "/v1x-y/messages",
        ] {
            assert!(!is_known(&Method::POST, target), "{target}");
        }
    }
}
