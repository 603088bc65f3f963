//! Refusals because of size and structure, in the words of many servers.
//!
//! The inputs are in `tests/data/cases`.

use std::path::Path;
use std::sync::Arc;

use hyper_util::client::proxy::matcher::Matcher;
use plimsoll::config::Mode;
use plimsoll::context::policy::{Policy, SummaryEngine};
use plimsoll::store::memory::MemoryStore;
use serde_json::{Value, json};

use crate::support::http1::{Provider, Wire};
use crate::support::server::{TestServer, config};

const CHAT: &str = "/v1/chat/completions";
const VERTEX: &str =
    "/v1/projects/p/locations/l/publishers/google/models/gemini-2.5-pro:generateContent";
const TURNS: usize = 30;

/// What became of a refused request.
struct Mended {
    /// The bodies that reached the provider, in order.
    sent: Vec<Value>,
    /// The status that the client got.
    status: u16,
}

/// Sends a request that is refused with this text, and accepted if it comes again.
async fn mended(target: &str, request: &Value, status: u16, text: &str, reply: &Value) -> Mended {
    let provider = Provider::start().await;
    let mut config = config(&provider.base());
    let mut policy = Policy::default();
    policy.compact.engine = SummaryEngine::Off;
    (config.mode, config.policy) = (Mode::Active, Arc::new(policy));
    let store = Arc::new(MemoryStore::default());
    let mut server = TestServer::over(store, config, Matcher::builder().build()).await;
    let mut client = Wire::connect(server.address).await;
    let body = request.to_string();
    let length = body.len();
    client
        .send(format!(
            "POST {target} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer k\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        ))
        .await;
    let mut call = provider.call().await;
    let mut sent = vec![serde_json::from_str(call.message.text()).unwrap()];
    call.answer(&format!("{status} Refused"), text).await;
    let answered = tokio::select! {
        mut again = call.wire.request() => {
            sent.push(serde_json::from_str(again.message.text()).unwrap());
            again.answer("200 OK", &reply.to_string()).await;
            client.response().await
        }
        answer = client.response() => answer,
    };
    server.next_exchange().await;
    server.expect_no_exchange();
    Mended { sent, status: answered.status() }
}

/// A result of 1,500 words.
fn result(turn: usize) -> String {
    let word =
        |at: usize| ["the", "file", "holds", "plain", "words", "of", "prose"][(turn + at) % 7];
    (0..1_500).map(word).collect::<Vec<_>>().join(" ")
}

fn chat(model: &str, more: Value) -> Value {
    let mut messages = vec![
        json!({"role": "system", "content": "You read files."}),
        json!({"role": "user", "content": "What do the files say?"}),
    ];
    for turn in 0..TURNS {
        let id = format!("call_{turn}");
        let call =
            json!({"name": "read_file", "arguments": format!("{{\"path\":\"{turn}.txt\"}}")});
        messages.push(json!({"role": "assistant", "content": null,
            "tool_calls": [{"id": id, "type": "function", "function": call}]}));
        messages.push(json!({"role": "tool", "tool_call_id": id, "content": result(turn)}));
    }
    let tool = json!({"type": "function", "function": {"name": "read_file", "parameters": {"type": "object"}}});
    let mut request = json!({"model": model, "messages": messages, "tools": [tool]});
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    request
}

fn gemini() -> Value {
    let mut contents = vec![json!({"role": "user", "parts": [{"text": "What do the files say?"}]})];
    for turn in 0..TURNS {
        let call = json!({"name": "read_file", "args": {"path": format!("{turn}.txt")}});
        contents.push(json!({"role": "model", "parts": [{"functionCall": call}]}));
        let response = json!({"name": "read_file", "response": {"output": result(turn)}});
        contents.push(json!({"role": "user", "parts": [{"functionResponse": response}]}));
    }
    json!({"systemInstruction": {"parts": [{"text": "You read files."}]}, "contents": contents})
}

fn chat_reply() -> Value {
    json!({"id": "c1", "object": "chat.completion", "model": "m", "choices": [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Prose."}}],
        "usage": {"prompt_tokens": 40_000, "completion_tokens": 3, "total_tokens": 40_003}})
}

fn gemini_reply() -> Value {
    json!({"candidates": [{"content": {"role": "model", "parts": [{"text": "Prose."}]}, "finishReason": "STOP"}],
        "usageMetadata": {"promptTokenCount": 40_000, "candidatesTokenCount": 3, "totalTokenCount": 40_003}})
}

fn text(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/cases/overflow-texts");
    std::fs::read_to_string(folder.join(name)).unwrap()
}

#[tokio::test]
async fn foreign_overflows_are_mended() {
    for (name, status, target, request, reply) in [
        (
            "sglang-input.json",
            400,
            CHAT,
            chat("glm-5.3", json!({"max_tokens": 4_000})),
            chat_reply(),
        ),
        ("sglang-pool.json", 400, CHAT, chat("glm-5.3", json!({})), chat_reply()),
        ("github-models.json", 413, CHAT, chat("openai/gpt-4.1", json!({})), chat_reply()),
        ("vertex.json", 400, VERTEX, gemini(), gemini_reply()),
    ] {
        let mended = mended(target, &request, status, &text(name), &reply).await;
        assert_eq!(mended.status, 200, "{name}");
        assert_eq!(mended.sent.len(), 2, "{name}");
        let (first, again) = (mended.sent[0].to_string(), mended.sent[1].to_string());
        assert!(again.len() < first.len() * 9 / 10, "{name}: history gives way");
    }
}

/// Only the output is too large: it is lowered, and history stays.
#[tokio::test]
async fn too_large_output_gives_way() {
    for member in ["max_tokens", "max_completion_tokens"] {
        let request = chat("glm-5.3", json!({member: 59_290}));
        let mended = mended(CHAT, &request, 400, &text("sglang-output.json"), &chat_reply()).await;
        assert_eq!(mended.status, 200, "{member}");
        assert_eq!(mended.sent.len(), 2, "{member}");
        assert_eq!(mended.sent[0]["messages"], mended.sent[1]["messages"], "history stays");
        let output = mended.sent[1][member].as_u64().unwrap();
        assert!((4_096..55_500).contains(&output), "{output}");
    }
}

/// A limit of rate is not taken for it, in whatever words and with whatever status.
#[tokio::test]
async fn limit_of_rate_is_passed_on() {
    let limited = json!({"error": {"message": "Request too large for gpt-4.1 on tokens per min (TPM): Limit 30000, Requested 60500.",
        "type": "tokens", "code": "rate_limit_exceeded"}});
    for status in [400, 413, 429] {
        let request = chat("openai/gpt-4.1", json!({"max_tokens": 64_000}));
        let passed = mended(CHAT, &request, status, &limited.to_string(), &chat_reply()).await;
        assert_eq!(passed.status, status);
        assert_eq!(passed.sent.len(), 1);
    }
}

/// Where the refusal names no number, the estimate and the known window show that only the output is too large.
#[tokio::test]
async fn output_gives_way_without_numbers() {
    for text in [
        json!({"error": {"message": "", "code": "context_length_exceeded"}}),
        json!({"error": {"message": "Your input exceeds the context window of this model.", "code": null}}),
        json!({"object": "error", "message": "Prompt is too long", "type": "BadRequestError"}),
    ] {
        let request = chat("gpt-4o", json!({"max_completion_tokens": 100_000}));
        let mended = mended(CHAT, &request, 400, &text.to_string(), &chat_reply()).await;
        assert_eq!(mended.status, 200, "{text}");
        assert_eq!(mended.sent.len(), 2, "{text}");
        assert_eq!(mended.sent[0]["messages"], mended.sent[1]["messages"], "history stays");
        let output = mended.sent[1]["max_completion_tokens"].as_u64().unwrap();
        assert!((4_096..90_000).contains(&output), "{output}");
    }
    let mut request = gemini();
    request["generationConfig"] = json!({"maxOutputTokens": 1_020_000});
    let text = json!({"error": {"code": 400, "message": "context_length_exceeded", "status": "INVALID_ARGUMENT"}});
    let mended = mended(VERTEX, &request, 400, &text.to_string(), &gemini_reply()).await;
    assert_eq!(mended.status, 200);
    assert_eq!(mended.sent.len(), 2);
    assert_eq!(mended.sent[0]["contents"], mended.sent[1]["contents"], "history stays");
    let output = mended.sent[1]["generationConfig"]["maxOutputTokens"].as_u64().unwrap();
    assert!(output < 1_010_000, "{output}");
}

/// A result without its call heals in the words of MiniMax and Moonshot, too, and an unknown member of the request is
/// removed.
#[tokio::test]
async fn pairs_heal_in_other_words() {
    for text in [
        "invalid params, tool result's tool id(call_lost) not found (2013)",
        "Invalid request: tool_call_id call_lost does not match any tool call",
    ] {
        let mut request = chat("MiniMax-M2", json!({}));
        let lost = json!({"role": "tool", "tool_call_id": "call_lost", "content": "Lost."});
        request["messages"].as_array_mut().unwrap().push(lost);
        let text = json!({"error": {"message": text, "type": "bad_request_error"}}).to_string();
        let mended = mended(CHAT, &request, 400, &text, &chat_reply()).await;
        assert_eq!(mended.status, 200, "{text}");
        assert_eq!(mended.sent.len(), 2, "{text}");
        assert!(!mended.sent[1].to_string().contains("call_lost"));
    }
    let request = chat("MiniMax-M2", json!({"service_tier": "flex", "store": false}));
    let text = json!({"detail": [{"loc": ["body", "service_tier"], "msg": "Extra inputs are not permitted"}]});
    let mended = mended(CHAT, &request, 422, &text.to_string(), &chat_reply()).await;
    assert_eq!(mended.status, 200);
    assert_eq!(mended.sent.len(), 2);
    let again = mended.sent[1].as_object().unwrap();
    assert!(!again.contains_key("service_tier"));
    assert!(again.contains_key("store"));
}
