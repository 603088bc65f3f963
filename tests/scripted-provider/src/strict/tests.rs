//! What the tests of all protocols share: a client that keeps its history, and checks that say what
//! went wrong.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};

use super::*;

/// One client of one provider, with its headers.
pub(super) struct Client {
    pub(super) provider: Provider,
    pub(super) path: &'static str,
    pub(super) headers: HeaderMap,
}

impl Client {
    pub(super) fn new(path: &'static str, headers: &[(&'static str, &str)], rules: Rules) -> Self {
        let provider = Provider::at(rules, 11, Clock::manual());
        let mut client = Self { provider, path, headers: HeaderMap::new() };
        headers.iter().for_each(|(name, value)| client.set(name, value));
        client
    }

    pub(super) fn set(&mut self, name: &'static str, value: &str) {
        self.headers.insert(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
    }

    pub(super) fn call(&self, body: &Value) -> Call {
        let now = self.provider.clock().now();
        let bytes = Bytes::from(body.to_string());
        Call::read(self.path, &self.headers, bytes, now).unwrap()
    }

    pub(super) fn judge(&self, body: &Value) -> Verdict {
        self.provider.judge(&self.call(body))
    }

    /// The accepted verdict; fails the test with the refusal's words.
    pub(super) fn accept(&self, body: &Value) -> Accepted {
        match self.judge(body) {
            Verdict::Accepted(accepted) => accepted,
            Verdict::Refused(refusal) => panic!("{:?}: {}", refusal.rule, refusal.message),
        }
    }

    /// Fails unless it is refused by that rule, in words that hold these, and that the body holds.
    pub(super) fn refuse(&self, body: &Value, rule: Rule, words: &str) {
        let refusal = self.refuse_raw(body, rule, words);
        let quoted = Value::from(refusal.message.as_str()).to_string();
        assert!(refusal.body.to_string().contains(&quoted), "{}", refusal.body);
    }

    /// The same for an error that is wrapped in another.
    pub(super) fn refuse_raw(&self, body: &Value, rule: Rule, words: &str) -> Refusal {
        match self.judge(body) {
            Verdict::Refused(refusal) => {
                assert_eq!(refusal.rule, rule, "{}", refusal.message);
                assert!(refusal.message.contains(words), "{} has no {words}", refusal.message);
                refusal
            }
            Verdict::Accepted(accepted) => panic!("accepted: {accepted:?}, wanted {rule:?}"),
        }
    }

    /// Says `reply` to the request and answers the whole answer.
    pub(super) fn hear(&self, body: &Value, reply: Reply) -> Value {
        self.provider.say(reply);
        let answer = self.provider.answer(&self.call(body));
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.body
    }

    pub(super) fn pass(&self, seconds: u64) {
        self.provider.clock().advance(Duration::from_secs(seconds));
    }
}

/// Adds to a list in a request.
pub(super) fn push(body: &mut Value, list: &str, value: Value) {
    body[list].as_array_mut().unwrap().push(value);
}

/// A text of about so many tokens, different for each name.
pub(super) fn words(name: &str, tokens: usize) -> String {
    format!("{name} ").repeat(tokens * 4 / (name.len() + 1) + 1)
}

#[test]
fn the_log_keeps_every_verdict_with_its_exact_body() {
    let client = Client::new("/v1/messages?beta=true", &[], Rules::default());
    let odd = Bytes::from_static(b"{ \"model\" : \"claude-opus-5\"  , \"x\": 1e2 }");
    let call = Call::read(client.path, &client.headers, odd.clone(), Duration::ZERO).unwrap();
    assert_eq!(client.provider.judge(&call).refused(), Some(Rule::Authentication));
    let log = client.provider.take_log();
    assert_eq!((log.len(), &log[0].call.bytes), (1, &odd));
    assert_eq!(log[0].verdict.refused(), Some(Rule::Authentication));
    assert!(client.provider.take_log().is_empty());
}

#[test]
fn paths_say_what_is_asked() {
    let read = |path: &str| {
        let call = Call::read(
            path,
            &HeaderMap::new(),
            Bytes::from_static(b"{\"model\":\"m\"}"),
            Duration::ZERO,
        )?;
        Some((call.dialect, call.purpose, call.model, call.stream, call.framed))
    };
    let table = [
        ("/v1/messages?beta=true", Dialect::Anthropic, Purpose::Answer, "m", false, true),
        ("/v1/messages/count_tokens", Dialect::Anthropic, Purpose::Count, "m", false, true),
        ("/v1/chat/completions", Dialect::Chat, Purpose::Answer, "m", false, true),
        ("/v1/responses", Dialect::Responses, Purpose::Answer, "m", false, true),
        ("/v1/responses/input_tokens", Dialect::Responses, Purpose::Count, "m", false, true),
        ("/v1beta/models/g:generateContent", Dialect::Gemini, Purpose::Answer, "g", false, false),
        (
            "/v1/models/g:streamGenerateContent?alt=sse",
            Dialect::Gemini,
            Purpose::Answer,
            "g",
            true,
            true,
        ),
        (
            "/v1beta/models/g:streamGenerateContent",
            Dialect::Gemini,
            Purpose::Answer,
            "g",
            true,
            false,
        ),
        ("/v1beta/models/g:countTokens", Dialect::Gemini, Purpose::Count, "g", false, false),
    ];
    for (path, dialect, purpose, model, stream, framed) in table {
        assert_eq!(read(path), Some((dialect, purpose, model.into(), stream, framed)), "{path}");
    }
    for path in ["/", "/v1/models", "/v1/completions", "/v1/models/g:embedContent"] {
        assert_eq!(read(path), None, "{path}");
    }
}

#[test]
fn an_account_is_its_key_in_any_header() {
    let account = |name: &'static str, value: &str, path: &str| {
        let mut headers = HeaderMap::new();
        headers.insert(name, HeaderValue::from_str(value).unwrap());
        Call::read(path, &headers, Bytes::from_static(b"{}"), Duration::ZERO).unwrap().account
    };
    let key = account("x-api-key", "k", "/v1/messages");
    assert_eq!(key, account("authorization", "Bearer k", "/v1/messages"));
    assert_eq!(key, account("accept", "*/*", "/v1/models/g:generateContent?key=k"));
    assert_ne!(key, account("x-goog-api-key", "other", "/v1/models/g:generateContent?key=k"));
}

/// What a recording may be refused for: another provider's seals and ids, reasoning that a host of
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
fn what_real_clients_send_is_well_formed() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/agents");
    let mut judged = 0;
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
            let Some(call) = recorded(&request) else { continue };
            judged += 1;
            let verdict = Provider::at(Rules::default(), 1, Clock::manual()).judge(&call);
            if let Verdict::Refused(refusal) = verdict {
                let (rule, message) = (refusal.rule, refusal.message);
                assert!(excused(rule, &file), "{file}: {rule:?}: {message}");
            }
        }
    }
    assert!(judged > 300, "{judged}");
}

/// A recorded request as a call; `None` for what is no call for an answer.
fn recorded(request: &Value) -> Option<Call> {
    let body = request["body"].as_str().filter(|body| !body.is_empty())?;
    let mut headers = HeaderMap::new();
    for pair in prompt::items(&request["headers"]) {
        let name = HeaderName::from_bytes(prompt::text(&pair[0]).as_bytes()).unwrap();
        headers.append(name, HeaderValue::from_str(prompt::text(&pair[1])).unwrap());
    }
    // Recordings hold no keys.
    headers.insert("authorization", HeaderValue::from_static("Bearer key"));
    let bytes = Bytes::copy_from_slice(body.as_bytes());
    Call::read(prompt::text(&request["target"]), &headers, bytes, Duration::ZERO)
}

#[test]
fn a_wild_overflow_is_said_once_whatever_the_request() {
    let rules = || Rules { wild_overflow: true, ..Rules::default() };
    let body = json!({"model": "deepseek-v4", "messages": [{"role": "user", "content": "Look."}]});
    let client = Client::new("/v1/chat/completions", &[("authorization", "Bearer k")], rules());
    let as_it_is = client.provider.would(client.path, &client.headers, body.to_string().into());
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
