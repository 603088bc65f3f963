//! What the tests of all protocols share: a client, with checks that say what went wrong.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};

use super::*;

/// One client of one provider, with its headers.
pub(super) struct Client {
    pub(super) provider: StrictProvider,
    pub(super) path: &'static str,
    pub(super) headers: HeaderMap,
}

impl Client {
    pub(super) fn new(path: &'static str, headers: &[(&'static str, &str)], rules: Rules) -> Self {
        let provider = StrictProvider::with_clock(rules, 11, Clock::manual());
        let mut client = Self { provider, path, headers: HeaderMap::new() };
        headers.iter().for_each(|(name, value)| client.set(name, value));
        client
    }

    pub(super) fn set(&mut self, name: &'static str, value: &str) {
        self.headers.insert(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
    }

    pub(super) fn request(&self, body: &Value) -> ReceivedRequest {
        let now = self.provider.clock().now();
        let bytes = Bytes::from(body.to_string());
        ReceivedRequest::parse(self.path, &self.headers, bytes, now).unwrap()
    }

    pub(super) fn validate(&self, body: &Value) -> RequestVerdict {
        self.provider.validate(&self.request(body))
    }

    /// The accepted request; fails the test with the error's message.
    pub(super) fn accept(&self, body: &Value) -> AcceptedRequest {
        match self.validate(body) {
            RequestVerdict::Accepted(accepted) => accepted,
            RequestVerdict::Refused(error) => panic!("{:?}: {}", error.rule, error.message),
        }
    }

    /// Fails unless it is refused by that rule, with a message that contains this and is in the body.
    pub(super) fn refuse(&self, body: &Value, rule: Rule, message: &str) {
        let error = self.refuse_raw(body, rule, message);
        let quoted = Value::from(error.message.as_str()).to_string();
        assert!(error.body.to_string().contains(&quoted), "{}", error.body);
    }

    /// The same for an error that is wrapped in another.
    pub(super) fn refuse_raw(&self, body: &Value, rule: Rule, message: &str) -> ApiError {
        match self.validate(body) {
            RequestVerdict::Refused(error) => {
                assert_eq!(error.rule, rule, "{}", error.message);
                assert!(error.message.contains(message), "{} has no {message}", error.message);
                error
            }
            RequestVerdict::Accepted(accepted) => panic!("accepted: {accepted:?}, wanted {rule:?}"),
        }
    }

    /// Queues `reply` and sends the request; returns the response body.
    pub(super) fn reply_to(&self, body: &Value, reply: ScriptedReply) -> Value {
        self.provider.queue_reply(reply);
        let answer = self.provider.respond(&self.request(body));
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.body
    }

    pub(super) fn advance(&self, seconds: u64) {
        self.provider.clock().advance(Duration::from_secs(seconds));
    }
}

/// An edit of a request body.
pub(super) type BodyEdit = fn(&mut Value);

/// Adds to a list in a request.
pub(super) fn push(body: &mut Value, list: &str, value: Value) {
    body[list].as_array_mut().unwrap().push(value);
}

/// A text of about this many tokens, different for each name.
pub(super) fn filler_text(name: &str, tokens: usize) -> String {
    format!("{name} ").repeat(tokens * 4 / (name.len() + 1) + 1)
}

#[test]
fn log_keeps_verdicts_and_bodies() {
    let client = Client::new("/v1/messages?beta=true", &[], Rules::default());
    let odd = Bytes::from_static(b"{ \"model\" : \"claude-opus-5\"  , \"x\": 1e2 }");
    let request =
        ReceivedRequest::parse(client.path, &client.headers, odd.clone(), Duration::ZERO).unwrap();
    assert_eq!(client.provider.validate(&request).broken_rule(), Some(Rule::Authentication));
    let log = client.provider.take_log();
    assert_eq!(log.len(), 1);
    assert_eq!(log[0].request.bytes, odd);
    assert_eq!(log[0].verdict.broken_rule(), Some(Rule::Authentication));
    assert!(client.provider.take_log().is_empty());
}

#[test]
fn paths_name_dialect_and_operation() {
    let parse = |path: &str| {
        let request = ReceivedRequest::parse(
            path,
            &HeaderMap::new(),
            Bytes::from_static(b"{\"model\":\"m\"}"),
            Duration::ZERO,
        )?;
        Some((request.dialect, request.operation, request.model, request.stream, request.is_sse))
    };
    let table = [
        ("/v1/messages?beta=true", Dialect::Anthropic, Operation::Reply, "m", false, true),
        ("/v1/messages/count_tokens", Dialect::Anthropic, Operation::CountTokens, "m", false, true),
        ("/v1/chat/completions", Dialect::Chat, Operation::Reply, "m", false, true),
        ("/v1/responses", Dialect::Responses, Operation::Reply, "m", false, true),
        (
            "/v1/responses/input_tokens",
            Dialect::Responses,
            Operation::CountTokens,
            "m",
            false,
            true,
        ),
        ("/v1beta/models/g:generateContent", Dialect::Gemini, Operation::Reply, "g", false, false),
        (
            "/v1/models/g:streamGenerateContent?alt=sse",
            Dialect::Gemini,
            Operation::Reply,
            "g",
            true,
            true,
        ),
        (
            "/v1beta/models/g:streamGenerateContent",
            Dialect::Gemini,
            Operation::Reply,
            "g",
            true,
            false,
        ),
        (
            "/v1beta/models/g:countTokens",
            Dialect::Gemini,
            Operation::CountTokens,
            "g",
            false,
            false,
        ),
    ];
    for (path, dialect, operation, model, stream, is_sse) in table {
        assert_eq!(parse(path), Some((dialect, operation, model.into(), stream, is_sse)), "{path}");
    }
    for path in ["/", "/v1/models", "/v1/completions", "/v1/models/g:embedContent"] {
        assert_eq!(parse(path), None, "{path}");
    }
}

#[test]
fn account_is_its_key_in_any_header() {
    let account = |name: &'static str, value: &str, path: &str| {
        let mut headers = HeaderMap::new();
        headers.insert(name, HeaderValue::from_str(value).unwrap());
        ReceivedRequest::parse(path, &headers, Bytes::from_static(b"{}"), Duration::ZERO)
            .unwrap()
            .account
    };
    let key = account("x-api-key", "k", "/v1/messages");
    assert_eq!(key, account("authorization", "Bearer k", "/v1/messages"));
    assert_eq!(key, account("accept", "*/*", "/v1/models/g:generateContent?key=k"));
    assert_ne!(key, account("x-goog-api-key", "other", "/v1/models/g:generateContent?key=k"));
}

/// What a recording may be refused for: another provider's signatures and ids, reasoning that a host of
/// that name does not send, and one client's own fault.
fn excused(rule: Rule, file: &str) -> bool {
    match rule {
        Rule::SignatureInvalid | Rule::LatestThinkingModified | Rule::ItemNotFound => true,
        // The recording provider sent `reasoning_content` under any model's name.
        Rule::ReasoningRefused => true,
        // After a resume this client sends every response twice.
        Rule::ResponseCount => file.starts_with("gemini-cli"),
        _ => false,
    }
}

#[test]
fn real_clients_are_well_formed() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/agents");
    let mut checked = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_name().unwrap().to_string_lossy().into_owned();
        // Frames of a WebSocket are no requests of HTTP.
        if !file.ends_with(".zst") || file == "codex-ws.jsonl.zst" {
            continue;
        }
        let lines = zstd::decode_all(std::fs::File::open(&path).unwrap()).unwrap();
        for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let request: Value = serde_json::from_slice(line).unwrap();
            let Some(request) = recorded(&request) else { continue };
            checked += 1;
            let verdict =
                StrictProvider::with_clock(Rules::default(), 1, Clock::manual()).validate(&request);
            if let RequestVerdict::Refused(error) = verdict {
                let (rule, message) = (error.rule, error.message);
                assert!(excused(rule, &file), "{file}: {rule:?}: {message}");
            }
        }
    }
    assert!(checked > 300, "{checked}");
}

/// A recorded request; `None` if it has no body.
fn recorded(request: &Value) -> Option<ReceivedRequest> {
    let body = request["body"].as_str().filter(|body| !body.is_empty())?;
    let mut headers = HeaderMap::new();
    for pair in prompt::items(&request["headers"]) {
        let name = HeaderName::from_bytes(prompt::text(&pair[0]).as_bytes()).unwrap();
        headers.append(name, HeaderValue::from_str(prompt::text(&pair[1])).unwrap());
    }
    // Recordings hold no keys.
    headers.insert("authorization", HeaderValue::from_static("Bearer key"));
    let bytes = Bytes::copy_from_slice(body.as_bytes());
    ReceivedRequest::parse(prompt::text(&request["target"]), &headers, bytes, Duration::ZERO)
}

#[test]
fn implausible_overflow_is_sent_once_whatever_request() {
    let rules = || Rules { implausible_overflow: true, ..Rules::default() };
    let body = json!({"model": "deepseek-v4", "messages": [{"role": "user", "content": "Look."}]});
    let client = Client::new("/v1/chat/completions", &[("authorization", "Bearer k")], rules());
    let as_it_is = client.provider.dry_run(client.path, &client.headers, body.to_string().into());
    assert!(as_it_is.is_ok(), "nobody asked for an answer");
    client.refuse(&body, Rule::Overflow, "your messages resulted in 210000 tokens");
    client.accept(&body);
    let client = Client::new(
        "/v1/messages",
        &[("x-api-key", "k"), ("anthropic-version", "2023-06-01")],
        rules(),
    );
    let body = json!({"model": "claude-sonnet-4-5", "max_tokens": 9,
        "messages": [{"role": "user", "content": "Look."}]});
    client.refuse(&body, Rule::Overflow, "prompt is too long: 210000 tokens > 200000 maximum");
    client.accept(&body);
}
