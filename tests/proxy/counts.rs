//! If an upstream has no endpoint that counts tokens, Plimsoll responds with its estimate; other responses are
//! forwarded.

use std::sync::Arc;

use plimsoll::config::{Config, CountTokens, Mode};
use plimsoll::telemetry::{CountEstimate, Exchange};
use serde_json::{Value, json};

use crate::support::http1::{Message, Provider, Wire};
use crate::support::server::{TestServer, config};

/// A protocol that counts: the counting path, its body, and path, body and reply of a turn.
struct Endpoint {
    target: &'static str,
    body: Value,
    /// The response for this many tokens.
    answer: fn(u64) -> Value,
    turn: (&'static str, Value, Value),
}

fn endpoints() -> [Endpoint; 4] {
    let messages = json!([{"role": "user", "content": "Say hello."}]);
    let contents = json!([{"role": "user", "parts": [{"text": "Say hello."}]}]);
    let claude = |model: &str| {
        json!({"id": "m", "type": "message", "role": "assistant", "model": model, "content": [],
            "stop_reason": "end_turn", "usage": {"input_tokens": 11, "output_tokens": 2}})
    };
    [
        Endpoint {
            target: "/v1/messages/count_tokens?beta=true",
            body: json!({"model": "claude-sonnet-4-5", "messages": messages}),
            answer: |tokens| json!({"input_tokens": tokens}),
            turn: (
                "/v1/messages",
                json!({"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": messages}),
                claude("claude-sonnet-4-5"),
            ),
        },
        Endpoint {
            target: "/v1/projects/p/locations/l/publishers/anthropic/models/count-tokens:rawPredict",
            body: json!({"model": "claude-sonnet-4-5", "anthropic_version": "vertex-2023-10-16", "messages": messages}),
            answer: |tokens| json!({"input_tokens": tokens}),
            turn: (
                "/v1/projects/p/locations/l/publishers/anthropic/models/claude-sonnet-4-5:rawPredict",
                json!({"anthropic_version": "vertex-2023-10-16", "max_tokens": 9, "messages": messages}),
                claude("claude-sonnet-4-5"),
            ),
        },
        Endpoint {
            target: "/v1/responses/input_tokens",
            body: json!({"model": "gpt-5", "input": "Say hello."}),
            answer: |tokens| json!({"object": "response.input_tokens", "input_tokens": tokens}),
            turn: (
                "/v1/responses",
                json!({"model": "gpt-5", "input": "Say hello.", "store": false}),
                json!({"id": "r", "object": "response", "status": "completed", "model": "gpt-5", "output": [],
                    "usage": {"input_tokens": 9, "output_tokens": 2, "total_tokens": 11}}),
            ),
        },
        Endpoint {
            target: "/v1beta/models/gemini-2.5-flash:countTokens",
            body: json!({"contents": contents}),
            answer: |tokens| json!({"totalTokens": tokens}),
            turn: (
                "/v1beta/models/gemini-2.5-flash:generateContent",
                json!({"contents": contents}),
                json!({"candidates": [{"content": {"role": "model", "parts": [{"text": "Hi"}]}, "finishReason": "STOP"}],
                    "usageMetadata": {"promptTokenCount": 4, "candidatesTokenCount": 1, "totalTokenCount": 5}}),
            ),
        },
    ]
}

async fn post(server: &TestServer, target: &str, body: &Value) -> Wire {
    let (mut client, body) = (Wire::connect(server.address).await, body.to_string());
    client
        .send(format!(
            "POST {target} HTTP/1.1\r\nhost: localhost\r\nx-api-key: k\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        ))
        .await;
    client
}

fn active(provider: &Provider) -> Config {
    let mut config = config(&provider.base());
    config.mode = Mode::Active;
    config
}

/// The number in one of our responses, which must have the shape of its endpoint and be within its band.
fn estimated(answer: &Message, endpoint: &Endpoint) -> u64 {
    assert_eq!(answer.status(), 200, "{}", answer.head);
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let band = answer.header("x-plimsoll-estimated").expect("the band");
    let (low, high) = band.split_once('-').unwrap();
    let answered: Value = serde_json::from_str(answer.text()).unwrap();
    let name = if answered["totalTokens"].is_u64() { "totalTokens" } else { "input_tokens" };
    let tokens = answered[name].as_u64().unwrap();
    assert_eq!(answered, (endpoint.answer)(tokens), "{}", endpoint.target);
    let (low, high): (u64, u64) = (low.parse().unwrap(), high.parse().unwrap());
    assert!(low <= tokens, "{band}: {tokens}");
    assert!(tokens <= high, "{band}: {tokens}");
    assert!((1..60).contains(&tokens), "{tokens}");
    tokens
}

async fn is_recorded(server: &mut TestServer, why: Option<CountEstimate>) -> Arc<Exchange> {
    let exchange = server.next_exchange().await;
    assert_eq!(exchange.count_estimated, why);
    exchange
}

/// In each protocol that counts, the upstream's 404 is replaced by the estimate. Once the upstream has replied to a
/// turn, it is no longer asked for counts.
#[tokio::test]
async fn missing_count_endpoint_is_learned_and_replaced_by_estimates() {
    for endpoint in endpoints() {
        let provider = Provider::start().await;
        let mut server = TestServer::with(active(&provider)).await;
        for _ in 0..2 {
            let mut client = post(&server, endpoint.target, &endpoint.body).await;
            let mut call = provider.call().await;
            assert_eq!(call.message.text(), endpoint.body.to_string());
            call.answer("404 Not Found", r#"{"detail":"Not Found"}"#).await;
            let tokens = estimated(&client.response().await, &endpoint);
            let exchange = is_recorded(&mut server, Some(CountEstimate::Missing)).await;
            assert_eq!(exchange.estimate.as_ref().map(|it| it.tokens), Some(tokens));
            assert_eq!(exchange.status, Some(200));
            assert_eq!(exchange.thread, None);
        }
        let (target, request, answer) = &endpoint.turn;
        let mut client = post(&server, target, request).await;
        provider.call().await.answer("200 OK", &answer.to_string()).await;
        assert_eq!(client.response().await.status(), 200);
        is_recorded(&mut server, None).await;
        // The provider does not respond: the client does not wait for it.
        let mut client = post(&server, endpoint.target, &endpoint.body).await;
        estimated(&client.response().await, &endpoint);
        is_recorded(&mut server, Some(CountEstimate::Learned)).await;
        let metrics = server.telemetry.render();
        for reason in ["missing", "learned"] {
            let line =
                format!("plimsoll_token_estimates_total{{reason=\"{reason}\",upstream=\"up\"}}");
            assert!(metrics.contains(&line), "{line}");
        }
    }
}

/// Which responses say that the counting endpoint is missing.
#[tokio::test]
async fn missing_endpoint_is_distinguished_from_missing_model() {
    let provider = Provider::start().await;
    let mut server = TestServer::with(active(&provider)).await;
    let [endpoint, ..] = endpoints();
    let json = "application/json";
    for (status, kind, body, is_missing) in [
        (
            "404 Not Found",
            json,
            r#"{"error":{"message":"Invalid URL (POST /v1/messages/count_tokens)"}}"#,
            true,
        ),
        (
            "404 Not Found",
            "text/html",
            "<html><head><title>404 Not Found</title></head></html>",
            true,
        ),
        ("405 Method Not Allowed", json, r#"{"error":"no"}"#, true),
        ("501 Not Implemented", "text/plain", "later", true),
        (
            "404 Not Found",
            json,
            r#"{"type":"error","error":{"type":"not_found_error","message":"model: claude-sonnet-4-5"}}"#,
            false,
        ),
        ("400 Bad Request", json, r#"{"type":"error","error":{"message":"Not Found"}}"#, false),
        ("200 OK", json, r#"{"input_tokens":14}"#, false),
    ] {
        let mut client = post(&server, endpoint.target, &endpoint.body).await;
        let mut call = provider.call().await;
        call.send(format!(
            "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        ))
        .await;
        let answer = client.response().await;
        if is_missing {
            estimated(&answer, &endpoint);
        } else {
            assert!(status.starts_with(&answer.status().to_string()), "{}", answer.head);
            assert_eq!(answer.text(), body);
            assert_eq!(answer.header("x-plimsoll-estimated"), None);
        }
        is_recorded(&mut server, is_missing.then_some(CountEstimate::Missing)).await;
    }
}

/// Observe and shadow change nothing by themselves; an explicit configuration applies in every mode.
#[tokio::test]
async fn mode_and_configuration_decide_whether_counts_are_estimated() {
    for (mode, wanted) in [
        (Mode::Observe, CountTokens::Auto),
        (Mode::Shadow, CountTokens::Auto),
        (Mode::Active, CountTokens::Provider),
        (Mode::Observe, CountTokens::Estimate),
        (Mode::Active, CountTokens::Estimate),
    ] {
        let provider = Provider::start().await;
        let mut config = active(&provider);
        config.mode = mode;
        config.upstreams[0].count_tokens = wanted;
        let mut server = TestServer::with(config).await;
        for endpoint in endpoints() {
            let mut client = post(&server, endpoint.target, &endpoint.body).await;
            if wanted == CountTokens::Estimate {
                estimated(&client.response().await, &endpoint);
                is_recorded(&mut server, Some(CountEstimate::Configured)).await;
                continue;
            }
            provider.call().await.answer("404 Not Found", "{}").await;
            let answer = client.response().await;
            assert_eq!(answer.status(), 404, "{mode:?}");
            assert_eq!(answer.text(), "{}", "{mode:?}");
            is_recorded(&mut server, None).await;
        }
    }
}

/// A client whose credential is unknown gets the estimate, but teaches nothing.
#[tokio::test]
async fn client_with_unknown_credential_gets_estimate_and_teaches_nothing() {
    let provider = Provider::start().await;
    let mut server = TestServer::with(active(&provider)).await;
    let [endpoint, ..] = endpoints();
    let (body, turn) = (endpoint.body.to_string(), &endpoint.turn);
    let ask = async |target: &str, body: &str| {
        let mut client = Wire::connect(server.address).await;
        let head = format!("POST {target} HTTP/1.1\r\nhost: localhost\r\nx-corp-user: me\r\n");
        client.send(format!("{head}content-length: {}\r\n\r\n{body}", body.len())).await;
        client
    };
    for _ in 0..2 {
        let mut client = ask(endpoint.target, &body).await;
        provider.call().await.answer("404 Not Found", "").await;
        estimated(&client.response().await, &endpoint);
        let mut client = ask(turn.0, &turn.1.to_string()).await;
        provider.call().await.answer("200 OK", &turn.2.to_string()).await;
        client.response().await;
    }
    for why in [Some(CountEstimate::Missing), None, Some(CountEstimate::Missing), None] {
        is_recorded(&mut server, why).await;
    }
}
