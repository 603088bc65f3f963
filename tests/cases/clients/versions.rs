//! New versions and options of the providers: threads that cannot go on, credits for declined requests, the API of
//! October 2026, and a client that starts its history again.

use std::collections::BTreeSet;
use std::sync::Arc;

use plimsoll::context::Outcome;
use plimsoll::context::policy::{CompactPolicy, Policy, PruneGate, PrunePolicy, SummaryEngine};
use plimsoll::dialect::Dialect;
use serde_json::{Value, json};

use super::stage::{DIALECTS, Stage, dialect_of, reply, request, talkative, target};
use crate::support::http1::Message;

fn is_refused_thread(request: &Message) -> bool {
    let body: Value = serde_json::from_str(request.text()).unwrap();
    body["thread"]["type"] == "continue" && body["thread"]["previous_message_id"] == "msg_2"
}

fn forgets_threads(request: &Message, number: usize) -> (&'static str, Value) {
    if is_refused_thread(request) {
        return (
            "400 Bad Request",
            json!({"type": "error", "error": {"type": "invalid_request_error",
                "message": "thread: this request is not supported on threads",
                "details": {"error_code": "thread_unsupported_request"}}}),
        );
    }
    ("200 OK", reply(Dialect::Anthropic, number as u64, "Aye."))
}

fn is_expired(request: &Message, number: usize) -> (&'static str, Value) {
    if is_refused_thread(request) {
        return (
            "404 Not Found",
            json!({"type": "error", "error": {"type": "not_found_error",
                "message": "The thread was not found", "details": {"error_code": "thread_not_found"}}}),
        );
    }
    ("200 OK", reply(Dialect::Anthropic, number as u64, "Aye."))
}

/// A thread at the provider that cannot go on: the client sends the whole conversation, which stays in its session and
/// thread. Nothing of a request that continues a thread is changed, and the refusal is no fault of ours.
#[tokio::test]
async fn ended_thread_is_sent_whole() {
    for answer in [forgets_threads, is_expired] {
        for headers in ["x-claude-code-session-id: s-1\r\n", ""] {
            let mut stage = Stage::of(answer, |config| {
                let prune = PrunePolicy {
                    gate: vec![PruneGate::Always],
                    protect_tokens: 0,
                    protect_messages: 0,
                    ..PrunePolicy::default()
                };
                config.policy = Arc::new(Policy { prune, ..Policy::default() });
            })
            .await;
            let headers = format!("{headers}anthropic-beta: message-threads-2026-08-12\r\n");
            let texts = ["One?", "Aye.", "Two?", "Aye.", "Three?"].map(str::to_owned);
            let mut create = request(Dialect::Anthropic, "You are calm.", &texts[..1]);
            create["thread"] = json!({"type": "create"});
            let first = stage.exchange("/v1/messages", &headers, &create).await.1;
            let go_on = |id: &str, text: &str| {
                json!({"model": "claude-sonnet-4-5", "max_tokens": 900,
                    "messages": [{"role": "user", "content": text}],
                    "thread": {"type": "continue", "previous_message_id": id}})
            };
            let second = stage.exchange("/v1/messages", &headers, &go_on("msg_1", "Two?")).await.1;
            assert_eq!(stage.last().text(), go_on("msg_1", "Two?").to_string());
            let refused = go_on("msg_2", "Three?");
            let (answer, third) = stage.exchange("/v1/messages", &headers, &refused).await;
            assert_eq!(stage.last().text(), refused.to_string());
            assert!(answer.text().contains("error_code"), "{}", answer.text());
            assert_eq!(third.outcome, Outcome::Refused);
            assert!(third.refusal.is_none());
            assert!(!third.suspends_branch(), "{third:?}");
            assert!(third.fail_open.is_empty(), "{third:?}");
            let whole = request(Dialect::Anthropic, "You are calm.", &texts);
            let fourth = stage.exchange("/v1/messages", &headers, &whole).await.1;
            for exchange in [&second, &third, &fourth] {
                assert_eq!(exchange.session, first.session, "{headers:?}");
                assert_eq!(exchange.thread, first.thread, "{headers:?}");
            }
        }
    }
}

fn declines(request: &Message, number: usize) -> (&'static str, Value) {
    let body: Value = serde_json::from_str(request.text()).unwrap();
    let mut reply = reply(Dialect::Anthropic, number as u64 * 1000, "Aye.");
    if body["model"] == "claude-fable-5" {
        reply["content"] = json!([]);
        reply["stop_reason"] = json!("refusal");
        reply["stop_details"] = json!({"type": "refusal", "fallback_credit_token": "credit"});
    }
    ("200 OK", reply)
}

/// The retry of a declined request gets its credit only if it is the same request, on another model. So nothing new is
/// decided for it, though the other model's cache is cold; and it stays on its thread.
#[tokio::test]
async fn credited_request_is_the_same() {
    let prune = PrunePolicy {
        gate: vec![PruneGate::ColdCache],
        protect_tokens: 0,
        protect_messages: 0,
        min_saving_tokens: 1,
        min_messages: 0,
        ..PrunePolicy::default()
    };
    let mut stage = Stage::of(declines, |config| {
        config.policy = Arc::new(Policy { prune: prune.clone(), ..Policy::default() });
    })
    .await;
    let mut messages = vec![json!({"role": "user", "content": "Read them all."})];
    for number in 0..6 {
        let id = format!("toolu_{number}");
        messages.push(json!({"role": "assistant", "content":
            [{"type": "tool_use", "id": id, "name": "Read", "input": {"path": number}}]}));
        messages
            .push(json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": id,
            "content": format!("Line {number} of the log. ").repeat(60)}]}));
    }
    let body = json!({"model": "claude-fable-5", "max_tokens": 900, "messages": messages});
    let headers = "x-claude-code-session-id: s-1\r\nanthropic-beta: fallback-credit-2026-07-01\r\n";
    let declined = stage.exchange("/v1/messages", headers, &body).await.1;
    let declined_body: Value = serde_json::from_str(stage.last().text()).unwrap();
    let mut retry = body.clone();
    retry["model"] = json!("claude-opus-4-8");
    let mut credited = retry.clone();
    credited["fallback_credit_token"] = json!("credit");
    let accepted = stage.exchange("/v1/messages", headers, &credited).await.1;
    let sent: Value = serde_json::from_str(stage.last().text()).unwrap();
    assert_eq!(sent["messages"], declined_body["messages"], "{:?}", accepted.done.steps);
    assert_eq!(sent["fallback_credit_token"], "credit");
    assert_eq!(accepted.thread, declined.thread);
    // Without a credit to lose, another model's cold cache is used.
    retry["model"] = json!("claude-sonnet-4-5");
    stage.exchange("/v1/messages", headers, &retry).await;
    let sent: Value = serde_json::from_str(stage.last().text()).unwrap();
    assert!(sent["messages"] != declined_body["messages"]);
}

/// A reply of a model that declines before it writes anything; the other model's is whole.
fn declines_in_all(request: &Message, number: usize) -> (&'static str, Value) {
    let dialect = dialect_of(request.first_line());
    let mut reply = reply(dialect, number as u64 * 1000, &format!("Aye, aye, number {number}."));
    if !request.text().contains("declines") && !request.first_line().contains("declines") {
        return ("200 OK", reply);
    }
    match dialect {
        Dialect::Anthropic => {
            reply["content"] = json!([]);
            reply["stop_reason"] = json!("refusal");
            reply["stop_details"] = json!({"type": "refusal", "fallback_credit_token": "credit"});
        }
        Dialect::OpenaiChat => {
            reply["choices"][0]["message"]["content"] = Value::Null;
            reply["choices"][0]["finish_reason"] = json!("content_filter");
        }
        Dialect::OpenaiResponses => {
            reply["output"] = json!([]);
            reply["status"] = json!("incomplete");
            reply["incomplete_details"] = json!({"reason": "content_filter"});
        }
        Dialect::Gemini => {
            reply["candidates"] = json!([]);
            reply["promptFeedback"] = json!({"blockReason": "PROHIBITED_CONTENT"});
        }
    }
    ("200 OK", reply)
}

/// The first request of a conversation, and the target that it is sent to.
fn first_request(dialect: Dialect, declines: bool) -> (String, Value) {
    let mut body = request(dialect, "You are calm.", &["Say aye.".to_owned()]);
    let mut target = target(dialect).to_owned();
    match dialect {
        Dialect::Gemini if declines => target = target.replace("gemini", "declines"),
        _ if declines => body["model"] = json!("declines"),
        Dialect::Anthropic => body["fallback_credit_token"] = json!("credit"),
        _ => {}
    }
    (target, body)
}

/// A first request proves nothing, unless the model declined it: then its client, which names no session, sends it to
/// another model. Two clients at once stay two.
#[tokio::test]
async fn declined_first_request_is_sent_again() {
    for dialect in DIALECTS {
        let mut stage = Stage::of(declines_in_all, |_| {}).await;
        let mut places = Vec::new();
        for declines in [true, false, true, false, true, true, false, false, false] {
            let (target, body) = first_request(dialect, declines);
            let exchange = stage.exchange(&target, "", &body).await.1;
            places.push((exchange.session.clone(), exchange.thread.clone()));
        }
        assert_eq!(places[0], places[1], "{dialect:?}");
        assert_eq!(places[2], places[3], "{dialect:?}");
        let begun: BTreeSet<_> = [1, 3, 6, 7, 8].map(|at| &places[at].0).into();
        assert_eq!(begun.len(), 5, "{dialect:?}");
    }
}

/// Our own requests obey the version that the client names: no sampling parameters, no documents in the model's messages,
/// no citations in the user's.
#[tokio::test]
async fn summaries_obey_version_of_api() {
    let compact = CompactPolicy {
        engine: SummaryEngine::Summary,
        threshold: 0.6,
        prepare: 0.6,
        keep_messages: 4,
        wait_s: 5,
        timeout_s: 10,
        ..CompactPolicy::default()
    };
    let mut stage = Stage::of(talkative, |config| {
        config.policy = Arc::new(Policy { compact, ..Policy::default() });
        config.upstreams[0].window = Some(4000);
    })
    .await;
    let headers = "x-api-key: k\r\nanthropic-version: 2026-10-21\r\nx-plimsoll-session: s\r\n";
    let mut texts = Vec::new();
    for number in 0..12 {
        texts.push(format!("Question {number}: {}", "more of it ".repeat(40)));
        let mut body = request(Dialect::Anthropic, "You are calm.", &texts);
        body["thinking"] = json!({"type": "between_tools"});
        let (answer, _) = stage.exchange("/v1/messages", headers, &body).await;
        let answer: Value = serde_json::from_str(answer.text()).unwrap();
        texts.push(answer["content"][0]["text"].as_str().unwrap().to_owned());
    }
    let summaries = stage.summaries.lock().unwrap();
    assert!(!summaries.is_empty());
    for summary in summaries.iter() {
        assert_eq!(summary.header("anthropic-version"), Some("2026-10-21"));
        let body: Value = serde_json::from_str(summary.text()).unwrap();
        for name in ["temperature", "top_p", "top_k"] {
            assert!(body.get(name).is_none(), "{name}");
        }
        assert_eq!(body["thinking"], json!({"type": "between_tools"}));
        for message in body["messages"].as_array().unwrap() {
            for block in message["content"].as_array().into_iter().flatten() {
                assert!(message["role"] == "user" || block["type"] != "document");
                assert!(message["role"] != "user" || block.get("citations").is_none());
            }
        }
    }
}

fn codex(request: &Message, number: usize) -> (&'static str, Value) {
    let mut reply = reply(dialect_of(request.first_line()), 4000 + number as u64, "Aye.");
    reply["id"] = json!(format!("resp_{number}"));
    ("200 OK", reply)
}

/// Codex starts its history again without a summary: the session is the same, the thread a new one, and nothing is taken
/// for a fault.
#[tokio::test]
async fn restarted_history_is_new_branch() {
    let mut stage = Stage::of(codex, |_| {}).await;
    let headers = "session-id: 01a1fbfb-85a1\r\nthread-id: 01a1fbfb-85a1\r\n";
    let request_of = |texts: &[String]| {
        let mut body = request(Dialect::OpenaiResponses, "You are Codex.", texts);
        body["model"] = json!("gpt-5.6-sol");
        body["include"] = json!(["reasoning.encrypted_content"]);
        body
    };
    let mut texts = Vec::new();
    let mut exchanges = Vec::new();
    for number in 0..6 {
        texts.push(format!("Question {number}: {}", "more of it ".repeat(300)));
        exchanges.push(stage.exchange("/v1/responses", headers, &request_of(&texts)).await.1);
        texts.push("Aye.".to_owned());
    }
    let first = &exchanges[0];
    assert!(exchanges.iter().all(|one| one.thread == first.thread));
    // The newest question alone, and then the conversation goes on from there.
    let mut restarted = vec![texts[10].clone()];
    let mut again = Vec::new();
    for _ in 0..3 {
        let body = request_of(&restarted);
        let (answer, exchange) = stage.exchange("/v1/responses", headers, &body).await;
        assert_eq!(answer.status(), 200);
        assert_eq!(stage.last().text(), body.to_string());
        assert_eq!(exchange.session, first.session);
        assert!(exchange.notes.is_empty(), "{exchange:?}");
        assert!(exchange.fail_open.is_empty(), "{exchange:?}");
        assert!(exchange.done.overflow.is_none());
        restarted.extend(["Aye.".to_owned(), "And on?".to_owned()]);
        again.push(exchange);
    }
    assert_ne!(again[0].thread, first.thread);
    assert!(again.iter().all(|one| one.thread == again[0].thread));
}

fn declines_midway(request: &Message, number: usize) -> (&'static str, Value) {
    let mut reply = reply(Dialect::Anthropic, number as u64 * 1000, "I begin to ");
    if request.text().contains("claude-fable-5") {
        reply["stop_reason"] = json!("refusal");
        reply["stop_details"] = json!({"type": "refusal", "fallback_credit_token": "credit",
            "fallback_has_prefill_claim": true});
    }
    ("200 OK", reply)
}

/// What a model wrote before it declined is sent back behind the request, or left out of it: both are the second attempt.
#[tokio::test]
async fn request_declined_midway_is_sent_again() {
    for with_partial in [true, false] {
        let mut stage = Stage::of(declines_midway, |_| {}).await;
        let mut body = request(Dialect::Anthropic, "You are calm.", &["Say aye.".to_owned()]);
        body["model"] = json!("claude-fable-5");
        let declined = stage.exchange("/v1/messages", "", &body).await.1;
        body["model"] = json!("claude-opus-4-8");
        body["fallback_credit_token"] = json!({"token": "credit", "mode": "best_effort"});
        if with_partial {
            let text = json!([{"type": "text", "text": "I begin to"}]);
            let messages = body["messages"].as_array_mut().unwrap();
            messages.push(json!({"role": "assistant", "content": text}));
        }
        let accepted = stage.exchange("/v1/messages", "", &body).await.1;
        assert_eq!(stage.last().text(), body.to_string());
        assert_eq!(accepted.session, declined.session, "{with_partial}");
        assert_eq!(accepted.thread, declined.thread, "{with_partial}");
    }
}
