//! The window of a model depends on the door through which it is reached.
//!
//! The inputs are in `tests/data/cases`.

use std::sync::Arc;

use hyper_util::client::proxy::matcher::Matcher;
use plimsoll::config::Config;
use plimsoll::store::Store;
use plimsoll::store::memory::MemoryStore;
use plimsoll::telemetry::Exchange;
use serde_json::{Value, json};

use crate::support::http1::{Provider, Wire};
use crate::support::server::{TestServer, config};

const LOGIN: &str =
    "chatgpt-account-id: acc\r\noriginator: codex_cli_rs\r\nauthorization: Bearer login\r\n";
const KEY: &str = "authorization: Bearer sk-key\r\n";

/// A provider and the proxy in front of it.
struct Stage {
    provider: Provider,
    store: Arc<dyn Store>,
    config: Config,
    server: TestServer,
}

impl Stage {
    async fn open() -> Self {
        Self::with(|_| {}).await
    }

    async fn with(change: fn(&mut Config)) -> Self {
        let provider = Provider::start().await;
        let mut config = config(&provider.base());
        change(&mut config);
        let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
        let server =
            TestServer::over(store.clone(), config.clone(), Matcher::builder().build()).await;
        Self { provider, store, config, server }
    }

    async fn restart(&mut self) {
        let (store, config) = (self.store.clone(), self.config.clone());
        self.server = TestServer::over(store, config, Matcher::builder().build()).await;
    }

    async fn exchange(
        &mut self,
        head: &str,
        headers: &str,
        body: &str,
        reply: (&str, &str),
    ) -> Arc<Exchange> {
        let mut client = Wire::connect(self.server.address).await;
        let length = body.len();
        client
            .send(format!(
                "{head} HTTP/1.1\r\nhost: localhost\r\n{headers}content-type: application/json\r\n\
                 content-length: {length}\r\n\r\n{body}"
            ))
            .await;
        self.provider.call().await.answer(reply.0, reply.1).await;
        let answer = client.response().await;
        assert_eq!(answer.text(), reply.1);
        self.server.next_exchange().await
    }

    /// The window of a request for this model.
    async fn window(&mut self, target: &str, headers: &str, model: &str) -> Option<u64> {
        let mut body: Value = serde_json::from_str(&case("request.json")).unwrap();
        body["model"] = json!(model);
        if !target.ends_with("responses") {
            body = json!({"model": model, "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]});
        }
        let reply = case("reply.json");
        let head = format!("POST {target}");
        self.exchange(&head, headers, &body.to_string(), ("200 OK", &reply)).await.window
    }

    /// A list of models passes by.
    async fn list(&mut self, target: &str, headers: &str, list: &Value) {
        self.exchange(&format!("GET {target}"), headers, "", ("200 OK", &list.to_string())).await;
    }
}

fn case(file: &str) -> String {
    let folder = format!("{}/tests/data/cases/chatgpt-windows", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(format!("{folder}/{file}")).unwrap()
}

const CODEX: &str = "/backend-api/codex/responses";
const LIST: &str = "/backend-api/codex/models?client_version=0.150.0";

fn codex_list(window: u64) -> Value {
    json!({"models": [
        {"slug": "gpt-5.6-sol", "context_window": window, "max_context_window": 872_000, "effective_context_window_percent": 95},
        {"slug": "gpt-5.5", "context_window": 272_000, "max_context_window": 272_000}]})
}

/// The login had the API's windows: a session filled a window that the backend does not have.
#[tokio::test]
async fn login_with_chatgpt_has_smaller_windows_than_api() {
    let mut stage = Stage::open().await;
    for model in ["gpt-5.6-sol", "gpt-5.5"] {
        assert_eq!(stage.window(CODEX, LOGIN, model).await, Some(272_000), "{model}");
        assert_eq!(stage.window("/v1/responses", LOGIN, model).await, Some(272_000), "{model}");
        assert_eq!(stage.window(CODEX, KEY, model).await, Some(272_000), "{model}");
    }
    assert_eq!(stage.window("/v1/responses", KEY, "gpt-5.6-sol").await, Some(922_000));
}

#[tokio::test]
async fn what_list_says_wins_over_table_and_outlives_restart() {
    let mut stage = Stage::open().await;
    stage.list(LIST, LOGIN, &codex_list(372_000)).await;
    assert_eq!(stage.window(CODEX, LOGIN, "gpt-5.6-sol").await, Some(372_000));
    assert_eq!(stage.window(CODEX, LOGIN, "gpt-5.5").await, Some(272_000));
    assert_eq!(stage.window("/v1/responses", KEY, "gpt-5.6-sol").await, Some(922_000));
    stage.restart().await;
    assert_eq!(stage.window(CODEX, LOGIN, "gpt-5.6-sol").await, Some(372_000));
    // The next list says what the table says, and a later one something else.
    for window in [272_000, 372_000, 872_000] {
        stage.list(LIST, LOGIN, &codex_list(window)).await;
        assert_eq!(stage.window(CODEX, LOGIN, "gpt-5.6-sol").await, Some(window));
    }
}

/// Whoever asks for a list learns from it; nobody else does.
#[tokio::test]
async fn list_counts_for_its_credential() {
    let mut stage = Stage::open().await;
    let other = "chatgpt-account-id: other\r\nauthorization: Bearer another login\r\n";
    stage.list(LIST, LOGIN, &codex_list(372_000)).await;
    assert_eq!(stage.window(CODEX, other, "gpt-5.6-sol").await, Some(272_000));
    assert_eq!(stage.window(CODEX, LOGIN, "gpt-5.6-sol").await, Some(372_000));
}

/// The same account reaches the API at the same upstream: a list of one door says nothing of the other.
#[tokio::test]
async fn list_counts_for_its_door() {
    let mut stage = Stage::open().await;
    stage.list(LIST, KEY, &codex_list(372_000)).await;
    assert_eq!(stage.window("/v1/responses", KEY, "gpt-5.6-sol").await, Some(922_000));
    assert_eq!(stage.window(CODEX, KEY, "gpt-5.6-sol").await, Some(372_000));
    stage
        .list(
            "/v1/models",
            KEY,
            &json!({"data": [{"id": "gpt-5.6-sol", "context_length": 500_000}]}),
        )
        .await;
    assert_eq!(stage.window("/v1/responses", KEY, "gpt-5.6-sol").await, Some(500_000));
    assert_eq!(stage.window(CODEX, KEY, "gpt-5.6-sol").await, Some(372_000));
}

#[tokio::test]
async fn each_provider_says_its_windows_in_its_own_way() {
    let mut stage = Stage::open().await;
    let gemini = "/v1beta/models/gemini-2.5-pro:generateContent";
    for (list, said, target, model, window) in [
        (
            "/v1/models",
            json!({"data": [{"id": "claude-opus-4-5-20251101", "max_input_tokens": 1_000_000}]}),
            "/v1/messages",
            "claude-opus-4-5",
            1_000_000,
        ),
        (
            "/v1/models/claude-haiku-4-5",
            json!({"id": "claude-haiku-4-5", "max_input_tokens": 150_000}),
            "/v1/messages",
            "claude-haiku-4-5",
            150_000,
        ),
        (
            "/api/v1/models",
            json!({"data": [{"id": "openai/gpt-5.5", "context_length": 400_000}]}),
            "/v1/chat/completions",
            "openai/gpt-5.5",
            400_000,
        ),
        (
            "/api/v1/models",
            json!({"data": [{"id": "openai/gpt-5.4", "context_length": 1_050_000}]}),
            "/v1/chat/completions",
            "openai/gpt-5.4",
            922_000,
        ),
        (
            "/v1/models",
            json!({"data": [{"id": "my-own", "max_model_len": 40_960}]}),
            "/v1/chat/completions",
            "my-own",
            40_960,
        ),
        (
            "/v1beta/models",
            json!({"models": [{"name": "models/gemini-2.5-pro", "inputTokenLimit": 500_000}]}),
            gemini,
            "gemini-2.5-pro",
            500_000,
        ),
    ] {
        stage.list(list, KEY, &said).await;
        assert_eq!(stage.window(target, KEY, model).await, Some(window), "{said}");
    }
}

/// llama.cpp has one window, whatever a client calls its model.
#[tokio::test]
async fn properties_of_server_count_for_all_its_models() {
    let mut stage = Stage::with(|config| config.upstreams[0].prefix = Some("/up".into())).await;
    stage.list("/up/props", KEY, &json!({"default_generation_settings": {"n_ctx": 8_192}})).await;
    for model in ["anything", "another"] {
        assert_eq!(stage.window("/up/v1/chat/completions", KEY, model).await, Some(8_192));
    }
}

#[tokio::test]
async fn configured_window_beats_list() {
    let mut stage = Stage::with(|config| config.upstreams[0].window = Some(50_000)).await;
    stage
        .list("/v1/models", KEY, &json!({"data": [{"id": "gpt-5.5", "context_length": 900_000}]}))
        .await;
    assert_eq!(stage.window("/v1/responses", KEY, "gpt-5.5").await, Some(50_000));
    assert_eq!(stage.window(CODEX, LOGIN, "gpt-5.5").await, Some(50_000));
}

/// A refusal at one door corrects the window there, and not at the other.
#[tokio::test]
async fn refusal_counts_for_its_door() {
    let mut stage = Stage::open().await;
    let refusal = json!({"error": {"type": "invalid_request_error", "code": "context_length_exceeded", "message":
        "This model's maximum context length is 200000 tokens. However, your messages resulted in 200100 tokens. Please reduce the length of the messages."}});
    let body = json!({"model": "gpt-5.6-sol", "store": false, "input": "word ".repeat(200_100)})
        .to_string();
    let refusal = refusal.to_string();
    let head = format!("POST {CODEX}");
    stage.exchange(&head, KEY, &body, ("400 Bad Request", &refusal)).await;
    assert_eq!(stage.window(CODEX, KEY, "gpt-5.6-sol").await, Some(200_000));
    assert_eq!(stage.window("/v1/responses", KEY, "gpt-5.6-sol").await, Some(922_000));
    // What a list says later is what the refusal contradicted, until another refusal.
    stage.list(LIST, KEY, &codex_list(372_000)).await;
    assert_eq!(stage.window(CODEX, KEY, "gpt-5.6-sol").await, Some(372_000));
}

/// The beta was ended for the models that had it.
#[tokio::test]
async fn beta_for_million_tokens_raises_no_window_any_more() {
    let mut stage = Stage::open().await;
    let beta = "x-api-key: k\r\nanthropic-beta: context-1m-2025-08-07\r\n";
    for (model, window) in [
        ("claude-sonnet-4-5", 200_000),
        ("claude-sonnet-4-20250514", 200_000),
        ("claude-sonnet-4-6", 1_000_000),
    ] {
        assert_eq!(stage.window("/v1/messages", beta, model).await, Some(window), "{model}");
    }
}

/// A list that cannot be read, is too long or breaks off teaches nothing, and reaches the client as it is.
#[tokio::test]
async fn unreadable_list_is_forwarded() {
    let mut stage = Stage::open().await;
    let long = format!(
        "{{\"data\":[{{\"id\":\"gpt-5.6-sol\",\"context_length\":9000,\"x\":\"{}\"}}]}}",
        "x".repeat(5 << 20)
    );
    for list in ["not json", "{\"data\":[{\"id\":\"gpt-5.6-sol\",\"context_length\":9000", &long] {
        stage.exchange("GET /v1/models", KEY, "", ("200 OK", list)).await;
        assert_eq!(stage.window("/v1/responses", KEY, "gpt-5.6-sol").await, Some(922_000));
    }
    let list = json!({"data": [{"id": "gpt-5.6-sol", "context_length": 9_000}]}).to_string();
    stage.exchange("GET /v1/models", KEY, "", ("401 Unauthorized", &list)).await;
    assert_eq!(stage.window("/v1/responses", KEY, "gpt-5.6-sol").await, Some(922_000));
}

/// A refusal may come in a stream, with status 200.
#[tokio::test]
async fn refusal_in_stream_counts_for_its_door() {
    let error = json!({"code": "context_length_exceeded", "message":
        "This model's maximum context length is 200000 tokens. However, your messages resulted in 200100 tokens. Please reduce the length of the messages."});
    for event in [
        json!({"type": "response.failed", "response": {"id": "r", "status": "failed", "error": error, "output": []}}),
        json!({"type": "error", "error": error}),
    ] {
        let mut stage = Stage::open().await;
        let body = json!({"model": "gpt-5.6-sol", "store": false, "stream": true, "input": "word ".repeat(200_100)})
            .to_string();
        let mut client = Wire::connect(stage.server.address).await;
        let length = body.len();
        client
            .send(format!(
                "POST {CODEX} HTTP/1.1\r\nhost: localhost\r\n{KEY}content-type: application/json\r\n\
                 content-length: {length}\r\n\r\n{body}"
            ))
            .await;
        let mut call = stage.provider.call().await;
        let events = format!("data: {event}\n\n");
        let length = events.len();
        call.send(format!(
            "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: text/event-stream\r\n\
             content-length: {length}\r\n\r\n{events}"
        ))
        .await;
        client.response().await;
        stage.server.next_exchange().await;
        assert_eq!(stage.window(CODEX, KEY, "gpt-5.6-sol").await, Some(200_000), "{event}");
        assert_eq!(stage.window("/v1/responses", KEY, "gpt-5.6-sol").await, Some(922_000));
    }
}
