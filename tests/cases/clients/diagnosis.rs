//! `cache.diagnose`: Plimsoll asks the provider why its cache was missed, and the client sees nothing of it.

use std::sync::Arc;

use plimsoll::config::Config;
use plimsoll::context::policy::{DiagnosisPolicy, Policy};
use plimsoll::dialect::Dialect;
use plimsoll::dialect::cache::CacheMissCause;
use serde_json::{Value, json};

use super::stage::{Stage, reply, request, target};
use crate::support::http1::{Message, Provider, Wire};
use crate::support::server::{TestServer, config};

fn diagnoses(config: &mut Config) {
    let cache = DiagnosisPolicy { diagnose: true };
    config.policy = Arc::new(Policy { cache, ..Policy::default() });
}

/// A provider that says why its cache was missed where it is asked.
fn says_why(request: &Message, number: usize) -> (&'static str, Value) {
    let dialect = super::stage::dialect_of(request.first_line());
    let asked: Value = serde_json::from_str(request.text()).unwrap();
    let mut reply = reply(dialect, number as u64, "Aye.");
    match dialect {
        Dialect::Anthropic => {
            let asked = &asked["diagnostics"];
            if asked["previous_message_id"].is_string() {
                reply["diagnostics"] = json!({"cache_miss_reason":
                    {"type": "tools_changed", "cache_missed_input_tokens": 700}});
            } else if asked.is_object() {
                reply["diagnostics"] = Value::Null;
            }
        }
        Dialect::OpenaiResponses if asked["prompt_cache_options"].is_object() => {
            reply["prompt_cache_diagnostics"] = json!({"type": "cache_miss", "reason": "tools_changed", "cache_missed_tokens": 700});
        }
        _ => {}
    }
    ("200 OK", reply)
}

fn texts(count: usize) -> Vec<String> {
    let text = |at: usize| {
        if at.is_multiple_of(2) { format!("Question {at}?") } else { "Aye.".to_owned() }
    };
    (0..count).map(text).collect()
}

fn body_of(dialect: Dialect, count: usize) -> Value {
    let mut body = request(dialect, "You are calm.", &texts(count));
    if dialect == Dialect::OpenaiResponses {
        body["model"] = json!("gpt-5.6-sol");
        body["include"] = json!(["reasoning.encrypted_content"]);
    }
    body
}

#[tokio::test]
async fn miss_is_diagnosed_unseen() {
    for dialect in [Dialect::Anthropic, Dialect::OpenaiResponses] {
        let mut stage = Stage::of(says_why, diagnoses).await;
        let headers = "x-plimsoll-session: s\r\naccept-encoding: gzip\r\n";
        let first = body_of(dialect, 1);
        let (answer, _) = stage.exchange(target(dialect), headers, &first).await;
        let given: Value = serde_json::from_str(answer.text()).unwrap();
        assert_eq!(given, reply(dialect, 1, "Aye."), "{dialect:?}");
        let sent: Value = serde_json::from_str(stage.last().text()).unwrap();
        match dialect {
            Dialect::Anthropic => {
                assert_eq!(sent["diagnostics"], json!({"previous_message_id": null}));
                let betas = stage.last().header("anthropic-beta").unwrap_or_default().to_owned();
                assert!(betas.contains("cache-diagnosis-2026-04-07"), "{betas}");
            }
            _ => assert_eq!(sent, first, "there is nothing to compare with"),
        }
        // Without `include`, Plimsoll asks for that, too.
        let mut second = body_of(dialect, 3);
        second.as_object_mut().unwrap().remove("include");
        let (answer, exchange) = stage.exchange(target(dialect), headers, &second).await;
        let sent: Value = serde_json::from_str(stage.last().text()).unwrap();
        match dialect {
            Dialect::Anthropic => {
                assert_eq!(sent["diagnostics"], json!({"previous_message_id": "msg_1"}));
            }
            _ => {
                assert_eq!(
                    sent["prompt_cache_options"],
                    json!({"comparison_response_id": "resp_1"})
                );
                assert_eq!(sent["include"], json!(["reasoning.encrypted_content"]));
            }
        }
        assert_eq!(stage.last().header("accept-encoding"), Some("identity"));
        let given: Value = serde_json::from_str(answer.text()).unwrap();
        assert_eq!(given, reply(dialect, 2, "Aye."), "{dialect:?}");
        let miss = exchange.usage.cache_miss.unwrap();
        assert_eq!(miss.cause, CacheMissCause::Tools);
        assert_eq!(miss.tokens, Some(700));
        let metrics = stage.server.telemetry.render();
        let counted = |line: &&str| {
            line.starts_with("plimsoll_cache_misses_total") && line.contains(r#"cause="tools""#)
        };
        assert_eq!(metrics.lines().filter(counted).count(), 1);
    }
}

/// What a client asks for itself is its own, and nothing is asked unless it is configured.
#[tokio::test]
async fn what_client_asks_for_is_its_own() {
    let mut stage = Stage::of(says_why, diagnoses).await;
    let mut body = body_of(Dialect::Anthropic, 1);
    body["diagnostics"] = json!({"previous_message_id": "msg_0"});
    let (answer, _) = stage.exchange("/v1/messages", "", &body).await;
    assert!(answer.text().contains("tools_changed"), "{}", answer.text());
    assert_eq!(stage.last().text(), body.to_string());
    let mut stage = Stage::of(says_why, |_| {}).await;
    for dialect in super::stage::DIALECTS {
        let body = body_of(dialect, 3);
        stage.exchange(target(dialect), "", &body).await;
        assert_eq!(stage.last().text(), body.to_string(), "{dialect:?}");
    }
    // Chat Completions and Gemini have no such option.
    let mut stage = Stage::of(says_why, diagnoses).await;
    for dialect in [Dialect::OpenaiChat, Dialect::Gemini] {
        let body = body_of(dialect, 3);
        stage.exchange(target(dialect), "", &body).await;
        assert_eq!(stage.last().text(), body.to_string(), "{dialect:?}");
    }
}

fn refuses(request: &Message, number: usize) -> (&'static str, Value) {
    let dialect = super::stage::dialect_of(request.first_line());
    if request.text().contains("diagnostics") {
        return (
            "400 Bad Request",
            json!({"type": "error", "error": {"type": "invalid_request_error",
            "message": "diagnostics: Extra inputs are not permitted"}}),
        );
    }
    if request.text().contains("prompt_cache_options") {
        return (
            "400 Bad Request",
            json!({"error": {"type": "invalid_request_error",
            "code": "unknown_parameter", "param": "prompt_cache_options",
            "message": "Unknown parameter: 'prompt_cache_options'."}}),
        );
    }
    ("200 OK", reply(dialect, number as u64, "Aye."))
}

/// Where the provider refuses the option, the request is sent without it, and so are all later ones.
#[tokio::test]
async fn refused_option_is_left_out() {
    for dialect in [Dialect::Anthropic, Dialect::OpenaiResponses] {
        let mut stage = Stage::of(refuses, diagnoses).await;
        let headers = "x-plimsoll-session: s\r\n";
        for count in [1, 3, 5] {
            let (answer, exchange) =
                stage.exchange(target(dialect), headers, &body_of(dialect, count)).await;
            assert_eq!(answer.status(), 200, "{dialect:?} {}", answer.text());
            assert!(!exchange.suspends_branch());
        }
        let received = stage.received.lock().unwrap();
        let asked = received.iter().filter(|sent| {
            sent.text().contains("diagnostics") || sent.text().contains("prompt_cache_options")
        });
        assert_eq!(asked.count(), 1, "{dialect:?}");
        assert_eq!(received.len(), 4, "{dialect:?}");
    }
}

/// In a stream the answer is in one event, which the client gets without it, however the stream is cut.
#[tokio::test]
async fn answer_is_hidden_in_stream() {
    let begins = r#"event: message_start
data: {"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","model":"m","content":[],HIDDEN"usage":{"input_tokens":9,"output_tokens":1}}}

"#;
    let rest = r#"event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"\"diagnostics\": I see."}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":5}}

event: message_stop
data: {"type":"message_stop"}

"#;
    let hidden = r#""diagnostics":{"cache_miss_reason":{"type":"system_changed"}},"#;
    let sent = format!("{}{rest}", begins.replace("HIDDEN", hidden));
    let expected = format!("{}{rest}", begins.replace("HIDDEN", ""));
    for cut in [1, 40, 150, 230, sent.len() - 1] {
        let provider = Provider::start().await;
        let mut config = config(&provider.base());
        diagnoses(&mut config);
        let mut server = TestServer::with(config).await;
        let mut body = body_of(Dialect::Anthropic, 1);
        body["stream"] = json!(true);
        let body = body.to_string();
        let mut client = Wire::connect(server.address).await;
        client
            .send(format!(
                "POST /v1/messages HTTP/1.1\r\nhost: localhost\r\nx-api-key: k\r\ncontent-type: application/json\r\n\
                 content-length: {}\r\n\r\n{body}",
                body.len()
            ))
            .await;
        let mut call = provider.call().await;
        call.begin_events().await;
        call.chunk(&sent[..cut]).await;
        call.chunk(&sent[cut..]).await;
        call.end().await;
        assert_eq!(client.response().await.text(), expected, "cut at {cut}");
        let exchange = server.next_exchange().await;
        assert_eq!(exchange.usage.cache_miss.unwrap().cause, CacheMissCause::System);
    }
}
