//! Endpoints for conversations, by the end of a path: dialect and purpose, and model and stream if they are in it.
//!
//! Whatever comes before the end does not matter: base paths, and prefixes of gateways. Pure.

use std::borrow::Cow;

use http::Method;

use crate::dialect::{Dialect, Purpose, percent};

/// What method and path say of a request for a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint<'p> {
    /// The dialect of request and response.
    pub dialect: Dialect,
    /// The purpose according to the path; the body may be more specific.
    pub purpose: Purpose,
    /// The model, if it is in the path: percent-decoded. For Azure it is the deployment.
    pub model: Option<Cow<'p, str>>,
    /// Whether a stream is requested, if the path says it.
    pub stream: Option<bool>,
    /// How the response is sent.
    pub transport: Transport,
    /// The id of the reply that is read, if it was made for an earlier request.
    pub stored: Option<Cow<'p, str>>,
}

/// How the response of an endpoint is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// JSON or server-sent events over HTTP.
    Http,
    /// An upgrade: requests and events are text frames (`docs/protocols.md` 3.1).
    WebSocket,
    /// AWS's binary event stream: the request is read, the response is not (`docs/protocols.md` 1.1).
    AwsEventStream,
}

/// The last segment of Gemini's Interactions API.
const INTERACTIONS: &str = "interactions";

/// Whether requests for this target are only metered, and never rewritten (`docs/protocols.md` 5.6).
pub fn is_metered_only(target: &str) -> bool {
    path_of(target).rsplit('/').find(|segment| !segment.is_empty()) == Some(INTERACTIONS)
}

/// The endpoint at `target` (path, with or without query), if it is one for conversations.
///
/// A `GET` is one only if it can open a WebSocket, or reads a reply that the provider stored; `HEAD` and other
/// methods never are.
pub fn endpoint<'p>(method: &Method, target: &'p str) -> Option<Endpoint<'p>> {
    let segments = segments(target);
    if let Some(stored) = stored(method, &segments) {
        return Some(stored);
    }
    if *method == Method::GET {
        // Only Responses is also spoken over a WebSocket.
        if *segments.last()? != "responses" {
            return None;
        }
        let endpoint = plain(Dialect::OpenaiResponses, Purpose::Turn);
        return Some(Endpoint { transport: Transport::WebSocket, ..endpoint });
    }
    if *method != Method::POST {
        return None;
    }
    let endpoint = anthropic(&segments)
        .or_else(|| openai(&segments))
        .or_else(|| bedrock(&segments))
        .or_else(|| google(&segments))?;
    let model = endpoint.model.map(without_parameters);
    Some(Endpoint { model, ..endpoint })
}

fn without_parameters(model: Cow<'_, str>) -> Cow<'_, str> {
    // A model's name is shown and stored; the parameters of its segment may be credentials (`;key=…`).
    match model.split_once(';') {
        Some((name, _)) => Cow::Owned(name.to_owned()),
        None => model,
    }
}

/// The path's segments without empty ones: doubled slashes come from base URLs that end with one.
pub(in crate::dialect) fn segments(target: &str) -> Vec<&str> {
    path_of(target).split('/').filter(|segment| !segment.is_empty()).collect()
}

fn path_of(target: &str) -> &str {
    target.split_once('?').map_or(target, |(path, _)| path)
}

fn plain<'p>(dialect: Dialect, purpose: Purpose) -> Endpoint<'p> {
    Endpoint {
        dialect,
        purpose,
        model: None,
        stream: None,
        transport: Transport::Http,
        stored: None,
    }
}

fn stored<'p>(method: &Method, segments: &[&'p str]) -> Option<Endpoint<'p>> {
    // As `docs/protocols.md` 3.7 and 5.6 have it.
    let (dialect, id) = match (method.as_str(), segments) {
        ("GET", [.., "responses", id]) | ("POST", [.., "responses", id, "cancel"]) => {
            (Dialect::OpenaiResponses, *id)
        }
        ("GET", [.., "chat", "completions" | "deferred-completion", id]) => {
            (Dialect::OpenaiChat, *id)
        }
        ("POST", [.., INTERACTIONS, id, "cancel"]) => (Dialect::Gemini, *id),
        (method, [.., INTERACTIONS, id]) => (Dialect::Gemini, stored_interaction(method, id)?),
        _ => return None,
    };
    Some(Endpoint { stored: Some(percent::decoded(id)), ..plain(dialect, Purpose::Turn) })
}

fn stored_interaction<'p>(method: &str, named: &'p str) -> Option<&'p str> {
    // Vertex adds a method to the id.
    match method {
        "GET" => Some(named.trim_end_matches(":poll").trim_end_matches(":stream")),
        "POST" => named.strip_suffix(":cancel"),
        _ => None,
    }
}

fn anthropic<'p>(segments: &[&'p str]) -> Option<Endpoint<'p>> {
    match segments {
        // Messages of OpenAI's assistants and Mistral's agents have another form.
        [.., "threads" | "conversations", _, "messages"] => None,
        [.., "messages"] => Some(plain(Dialect::Anthropic, Purpose::Turn)),
        [.., "messages", "count_tokens"] => Some(plain(Dialect::Anthropic, Purpose::Count)),
        _ => None,
    }
}

fn openai<'p>(segments: &[&'p str]) -> Option<Endpoint<'p>> {
    match segments {
        [.., "deployments", deployment, "chat", "completions"] => Some(Endpoint {
            model: Some(percent::decoded(deployment)),
            ..plain(Dialect::OpenaiChat, Purpose::Turn)
        }),
        [.., "chat", "completions"] => Some(plain(Dialect::OpenaiChat, Purpose::Turn)),
        [.., "responses"] => Some(plain(Dialect::OpenaiResponses, Purpose::Turn)),
        [.., "responses", "compact"] => Some(plain(Dialect::OpenaiResponses, Purpose::Compaction)),
        [.., "responses", "input_tokens"] => Some(plain(Dialect::OpenaiResponses, Purpose::Count)),
        _ => None,
    }
}

fn bedrock<'p>(segments: &[&'p str]) -> Option<Endpoint<'p>> {
    // Models of other makers have other bodies.
    let [.., "model", id, action] = segments else { return None };
    let model = percent::decoded(id);
    if !model.contains("anthropic") && !model.contains("claude") {
        return None;
    }
    let (purpose, stream, transport) = match *action {
        "invoke" => (Purpose::Turn, Some(false), Transport::Http),
        "invoke-with-response-stream" => (Purpose::Turn, Some(true), Transport::AwsEventStream),
        "count-tokens" => (Purpose::Count, None, Transport::Http),
        _ => return None,
    };
    let model = Some(model);
    Some(Endpoint { model, stream, transport, ..plain(Dialect::Anthropic, purpose) })
}

fn google<'p>(segments: &[&'p str]) -> Option<Endpoint<'p>> {
    // `…/interactions`, or `…/models/{m}:method`, the form of Google's APIs.
    if segments.last() == Some(&INTERACTIONS) {
        return Some(plain(Dialect::Gemini, Purpose::Turn));
    }
    let (name, method) = verb(segments.last()?)?;
    let parents = &segments[..segments.len() - 1];
    let publisher =
        parents.iter().rposition(|s| *s == "publishers").and_then(|at| parents.get(at + 1));
    if matches!(publisher, Some(&"anthropic")) {
        return vertex_claude(name, &method);
    }
    let (purpose, stream) = match &*method {
        "generateContent" => (Purpose::Turn, Some(false)),
        "streamGenerateContent" => (Purpose::Turn, Some(true)),
        "countTokens" => (Purpose::Count, None),
        _ => return None,
    };
    // Code Assist's address has no model.
    let model = if name == "v1internal" { None } else { Some(name) };
    Some(Endpoint { model, stream, ..plain(Dialect::Gemini, purpose) })
}

fn vertex_claude<'p>(name: Cow<'p, str>, method: &str) -> Option<Endpoint<'p>> {
    // The model is in the path, and counting has a model name of its own.
    let stream = match method {
        "rawPredict" => false,
        "streamRawPredict" => true,
        _ => return None,
    };
    if name == "count-tokens" {
        return Some(plain(Dialect::Anthropic, Purpose::Count));
    }
    // The body of a `rawPredict` may request a stream as well, so only `streamRawPredict` is certain.
    let stream = if stream { Some(true) } else { None };
    Some(Endpoint { model: Some(name), stream, ..plain(Dialect::Anthropic, Purpose::Turn) })
}

pub(super) fn verb<'p>(segment: &'p str) -> Option<(Cow<'p, str>, Cow<'p, str>)> {
    // Some clients escape the colon.
    match percent::decoded(segment) {
        Cow::Borrowed(text) => {
            let (name, method) = text.rsplit_once(':')?;
            Some((Cow::Borrowed(name), Cow::Borrowed(method)))
        }
        Cow::Owned(text) => {
            let (name, method) = text.rsplit_once(':')?;
            Some((Cow::Owned(name.to_owned()), Cow::Owned(method.to_owned())))
        }
    }
}
