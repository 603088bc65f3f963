//! What the provider counts: numbers that fall, numbers that cannot be, calls inside a reply, and Interactions.
//!
//! The inputs are in `tests/data/cases/zero-usage` and `interactions`; the rest is made here.

use std::sync::Arc;

use plimsoll::config::Mode;
use plimsoll::context::EstimateMethod;
use plimsoll::dialect::{Attempt, Note, Usage};
use plimsoll::telemetry::Exchange;
use serde_json::{Value, json};

use crate::support::http1::{Provider, Wire};
use crate::support::looking::Looking;
use crate::support::server::{TestServer, config};

macro_rules! case {
    ($file:literal) => {
        include_str!(concat!("../data/cases/", $file))
    };
}

/// A server, its provider and its admin listener.
struct Play {
    provider: Provider,
    server: TestServer,
    looking: Looking,
}

impl Play {
    async fn start() -> Self {
        let provider = Provider::start().await;
        let mut config = config(&provider.base());
        config.mode = Mode::Active;
        let looked_at = config.clone();
        let server = TestServer::with(config).await;
        let looking = Looking::at(&server, &looked_at).await;
        Self { provider, server, looking }
    }

    /// Sends a request in a session, answers it, and returns what was recorded. Neither side's bytes may change.
    async fn exchange(
        &mut self,
        path: &str,
        session: &str,
        body: &str,
        reply: &str,
    ) -> Arc<Exchange> {
        let mut client = Wire::connect(self.server.address).await;
        let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\nx-api-key: k-{session}\r\n");
        let length = body.len();
        let named = format!("x-session-id: {session}\r\ncontent-length: {length}\r\n\r\n");
        client.send(format!("{head}{named}{body}")).await;
        let mut call = self.provider.call().await;
        let kind = match reply.starts_with('{') {
            true => "application/json",
            false => "text/event-stream",
        };
        let length = reply.len();
        call.send(format!(
            "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n{reply}"
        ))
        .await;
        assert_eq!(client.response().await.text(), reply);
        self.server.next_exchange().await
    }

    async fn metric(&self, start: &str) -> u64 {
        let page = self.server.telemetry.render();
        let lines = page.lines().filter(|line| line.starts_with(start));
        lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum()
    }

    /// The only session in the list.
    async fn session(&self) -> Value {
        let list = self.looking.json("/api/v1/sessions").await;
        let [line] = &list["sessions"].as_array().unwrap()[..] else { panic!("{list}") };
        let id = line["id"].as_str().unwrap();
        let view = self.looking.json(&format!("/api/v1/sessions/{id}")).await;
        for name in ["input", "output", "cache_read"] {
            assert_eq!(line[name], view["totals"][name], "{name}: {list} {view}");
        }
        view
    }
}

fn counts(usage: &Usage) -> [Option<u64>; 4] {
    [usage.input, usage.output, usage.cache_read, usage.cache_write]
}

/// A conversation of this many user messages, each answered with "done".
fn conversation(turns: usize) -> String {
    let mut messages = vec![json!({"role": "user", "content": "hello there"})];
    for _ in 1..turns {
        messages.push(json!({"role": "assistant", "content": "done"}));
        messages.push(json!({"role": "user", "content": "and again, please"}));
    }
    json!({"model": "claude-sonnet-4-5", "max_tokens": 1000, "messages": messages, "stream": true})
        .to_string()
}

fn message(usage: &Value, stop: &str) -> String {
    json!({"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5",
        "content": [{"type": "text", "text": "done"}], "stop_reason": stop, "usage": usage})
    .to_string()
}

#[tokio::test]
async fn later_zero_does_not_erase_count() {
    let mut play = Play::start().await;
    let known = [Some(3215), Some(42), Some(3000), Some(200)];
    for (session, path, body, reply, expected) in [
        (
            "one",
            "/v1/messages",
            case!("zero-usage/request.json"),
            case!("zero-usage/reply-input-zero.sse"),
            known,
        ),
        (
            "two",
            "/v1/messages",
            case!("zero-usage/request.json"),
            case!("zero-usage/reply-all-zero.sse"),
            known,
        ),
        (
            "three",
            "/v1/chat/completions",
            case!("zero-usage/chat-request.json"),
            case!("zero-usage/chat-reply.sse"),
            [Some(500), Some(40), None, None],
        ),
    ] {
        // The chat request gets an option, and what that adds is hidden: not what is checked here.
        let body = match path {
            "/v1/messages" => body.to_owned(),
            _ => body.replace(
                "\"stream\": true",
                "\"stream\": true, \"stream_options\": {\"include_usage\": true}",
            ),
        };
        let exchange = play.exchange(path, session, &body, reply).await;
        assert_eq!(counts(&exchange.usage), expected, "{session}");
        assert!(exchange.notes.is_empty(), "{session}: {:?}", exchange.notes);
    }
}

#[tokio::test]
async fn session_whose_replies_end_with_zeros_keeps_its_fill_and_its_anchors() {
    let mut play = Play::start().await;
    for (turn, input) in [30_010, 30_030, 30_050].into_iter().enumerate() {
        let reply = case!("zero-usage/reply-input-zero.sse")
            .replace("\"input_tokens\": 15", &format!("\"input_tokens\": {}", input - 3200))
            .replace("\"output_tokens\": 42", "\"output_tokens\": 9")
            .replace("msg_1", &format!("msg_{turn}"));
        let exchange = play.exchange("/v1/messages", "s", &conversation(turn + 1), &reply).await;
        assert_eq!(exchange.usage.input, Some(input));
        let method = exchange.estimate.as_ref().unwrap().method;
        let expected = if turn == 0 { EstimateMethod::Estimated } else { EstimateMethod::Anchored };
        assert_eq!(method, expected, "turn {turn}");
    }
    let session = play.session().await;
    assert_eq!(session["threads"][0]["context"]["total"], 30_059);
    assert_eq!(session["totals"]["input"], 90_090);
}

/// Zeros at the end, in each dialect and each place where usage may be.
#[tokio::test]
async fn final_zeros_are_ignored() {
    let mut play = Play::start().await;
    let chat = |usage: &str| {
        format!(
            r#"data: {{"id":"c","choices":[{{"index":0,"delta":{{}},"finish_reason":"stop"{usage}"#
        )
    };
    let moonshot =
        chat(r#","usage":{"prompt_tokens":500,"completion_tokens":40,"cached_tokens":300}}]}"#);
    let zeros = r#"data: {"id":"c","choices":[],"usage":{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0,"prompt_tokens_details":{"cached_tokens":0}}}"#;
    let groq = format!(
        "{}\n\n{}",
        chat("}]}"),
        r#"data: {"id":"c","choices":[],"x_groq":{"usage":{"prompt_tokens":500,"completion_tokens":40,"prompt_tokens_details":{"cached_tokens":300}}},"usage":{"prompt_tokens":0,"completion_tokens":0}}"#
    );
    let done = "data: [DONE]";
    let response = |kind: &str, usage: &str| {
        format!(
            r#"data: {{"type":"response.{kind}","response":{{"id":"r","status":"completed","output":[],"usage":{usage}}}}}"#
        )
    };
    let full = response(
        "completed",
        r#"{"input_tokens":500,"output_tokens":40,"total_tokens":540,"input_tokens_details":{"cached_tokens":300}}"#,
    );
    let empty = response(
        "done",
        r#"{"input_tokens":0,"output_tokens":0,"total_tokens":0,"input_tokens_details":{"cached_tokens":0}}"#,
    );
    let gemini = r#"data: {"candidates":[{"content":{"parts":[{"text":"a"}]},"finishReason":"STOP"}],"usageMetadata":{"promptTokenCount":500,"candidatesTokenCount":40,"cachedContentTokenCount":300,"totalTokenCount":540}}"#;
    let gemini_zeros = r#"data: {"usageMetadata":{"promptTokenCount":0,"candidatesTokenCount":0,"cachedContentTokenCount":0,"totalTokenCount":0}}"#;
    let ask_chat = r#"{"model":"kimi-k3","messages":[{"role":"user","content":"a"}],"stream":true,"stream_options":{"include_usage":true}}"#;
    let ask_gemini = r#"{"contents":[{"role":"user","parts":[{"text":"a"}]}]}"#;
    let stream = "/v1beta/models/gemini-2.5-flash:streamGenerateContent?alt=sse";
    for (at, (path, body, events)) in [
        ("/v1/chat/completions", ask_chat, vec![&*moonshot, zeros, done]),
        ("/v1/chat/completions", ask_chat, vec![&*groq, zeros, done]),
        ("/v1/responses", r#"{"model":"gpt-5","input":"a","stream":true}"#, vec![&*full, &*empty]),
        (stream, ask_gemini, vec![gemini, gemini_zeros]),
    ]
    .into_iter()
    .enumerate()
    {
        let reply = events.join("\n\n") + "\n\n";
        let exchange = play.exchange(path, &format!("s{at}"), body, &reply).await;
        assert_eq!(counts(&exchange.usage), [Some(500), Some(40), Some(300), None], "{reply}");
    }
}

/// A count that cannot be is unknown: it is in no sum, it anchors nothing, and is told once.
#[tokio::test]
async fn count_that_cannot_be_is_unknown_everywhere_and_told_once() {
    let mut play = Play::start().await;
    let mut told = 0;
    for (turn, wrong) in [
        json!(4_000_000_000_u64),
        json!(9_223_372_036_854_775_808_u64),
        json!(u64::MAX),
        json!(-5),
        json!(10.5),
        json!(200_001),
    ]
    .into_iter()
    .enumerate()
    {
        let reply = message(&json!({"input_tokens": wrong, "output_tokens": 9}), "end_turn");
        let body = conversation(turn + 1).replace(",\"stream\":true", "");
        let exchange = play.exchange("/v1/messages", "s", &body, &reply).await;
        assert_eq!(counts(&exchange.usage), [None, Some(9), None, None], "{wrong}");
        let estimate = exchange.estimate.as_ref().unwrap();
        assert_eq!(estimate.method, EstimateMethod::Estimated);
        assert!(estimate.tokens < 1000);
        told += exchange.notes.iter().filter(|note| **note == Note::ImpossibleCount).count();
        assert!(play.metric("plimsoll_context_fill_ratio_sum").await < 2);
    }
    assert_eq!(told, 1);
    assert_eq!(play.metric("plimsoll_notes_total{note=\"impossible_count\"}").await, 1);
    assert_eq!(play.metric("plimsoll_tokens_total{kind=\"input\"").await, 0);
    let session = play.session().await;
    assert_eq!(session["totals"]["input"], json!(0));
    assert_eq!(session["totals"]["output"], json!(54));
    // An output, and a share of the input.
    for (at, usage) in [
        json!({"input_tokens": 30, "output_tokens": 4_000_000_000_u64}),
        json!({"input_tokens": 30, "output_tokens": 9, "cache_read_input_tokens": 4_000_000_000_u64}),
    ]
    .into_iter()
    .enumerate()
    {
        let body = conversation(1).replace(",\"stream\":true", "");
        let reply = message(&usage, "end_turn");
        let exchange = play.exchange("/v1/messages", &format!("t{at}"), &body, &reply).await;
        let expected = [[Some(30), None, None, None], [None, Some(9), None, None]];
        assert_eq!(counts(&exchange.usage), expected[at]);
    }
}

#[tokio::test]
async fn count_that_cannot_be_is_unknown_in_every_dialect() {
    let mut play = Play::start().await;
    let huge = 4_000_000_000_u64;
    let chat = json!({"id": "c", "model": "m", "choices": [{"index": 0, "message": {"role": "assistant", "content": "a"},
        "finish_reason": "stop"}], "usage": {"prompt_tokens": huge, "completion_tokens": 9}});
    let response = json!({"id": "r", "object": "response", "status": "completed", "model": "gpt-5", "output": [],
        "usage": {"input_tokens": huge, "output_tokens": 9, "total_tokens": huge + 9}});
    let gemini = json!({"candidates": [{"content": {"parts": [{"text": "a"}]}, "finishReason": "STOP"}],
        "usageMetadata": {"promptTokenCount": huge, "candidatesTokenCount": 9}});
    let interaction = json!({"id": "i", "object": "interaction", "status": "completed", "steps": [],
        "usage": {"total_input_tokens": huge, "total_output_tokens": 9}});
    for (path, body, reply) in [
        // The window of this model is not known.
        (
            "/v1/chat/completions",
            r#"{"model":"unheard-of","messages":[{"role":"user","content":"a"}]}"#,
            chat,
        ),
        ("/v1/responses", r#"{"model":"gpt-5","input":"a"}"#, response),
        (
            "/v1beta/models/gemini-2.5-flash:generateContent",
            r#"{"contents":[{"parts":[{"text":"a"}]}]}"#,
            gemini,
        ),
        ("/v1beta/interactions", r#"{"model":"gemini-3.8-flash","input":"a"}"#, interaction),
    ] {
        let exchange = play.exchange(path, path, body, &reply.to_string()).await;
        assert_eq!(counts(&exchange.usage), [None, Some(9), None, None], "{path}");
        assert!(exchange.notes.contains(&Note::ImpossibleCount), "{path}");
    }
    assert_eq!(play.metric("plimsoll_tokens_total{kind=\"input\"").await, 0);
}

fn call(kind: &str, model: &str, input: u64, output: u64) -> Value {
    json!({"type": kind, "model": model, "input_tokens": input, "output_tokens": output})
}

/// All calls inside a reply are counted, each under the model that did it; a refusal that is not billed is not.
#[tokio::test]
async fn every_call_inside_reply_is_counted_under_its_model() {
    let mut play = Play::start().await;
    let iterations = json!([
        {"type": "compaction", "input_tokens": 700, "output_tokens": 80},
        call("message", "claude-fable-5", 900, 30),
        call("message", "claude-mythos-5", 900, 0),
        call("advisor_message", "claude-opus-4-6", 2000, 400),
        call("fallback_message", "claude-opus-4-8", 950, 60)]);
    let usage = json!({"input_tokens": 950, "output_tokens": 60, "iterations": iterations});
    let body = conversation(1)
        .replace(",\"stream\":true", "")
        .replace("claude-sonnet-4-5", "claude-fable-5");
    let exchange = play.exchange("/v1/messages", "s", &body, &message(&usage, "end_turn")).await;
    assert_eq!(counts(&exchange.usage)[..2], [Some(950), Some(60)]);
    assert_eq!(exchange.usage.served_by.as_deref(), Some("claude-opus-4-8"));
    let kinds: Vec<_> = exchange.usage.attempts.iter().map(|it: &Attempt| &*it.kind).collect();
    assert_eq!(kinds, ["compaction", "message", "advisor_message"]);
    for (model, input, output) in [
        ("claude-fable-5", 700 + 900, 80 + 30),
        ("claude-mythos-5", 0, 0),
        ("claude-opus-4-6", 2000, 400),
        ("claude-opus-4-8", 950, 60),
    ] {
        for (kind, tokens) in [("input", input), ("output", output)] {
            let name = format!("plimsoll_tokens_total{{kind=\"{kind}\",model=\"{model}\"");
            assert_eq!(play.metric(&name).await, tokens, "{name}");
        }
    }
    // A refusal before any output: measured, and not booked.
    let refused = message(&json!({"input_tokens": 412, "output_tokens": 0}), "refusal")
        .replace(r#"{"type":"text","text":"done"}"#, "");
    let next = play.exchange("/v1/messages", "s", &body, &refused).await;
    assert!(next.usage.unbilled, "{refused}");
    assert_eq!(next.usage.input, Some(412));
    let session = play.session().await;
    let whole = 700 + 900 + 2000 + 950;
    assert_eq!(session["totals"]["input"], json!(whole));
    assert_eq!(session["totals"]["output"], json!(570));
    // The context is as large as the call that answered made it.
    let first = exchange.usage.context().unwrap();
    assert_eq!(first.input, 950);
    assert_eq!(first.output, 60);
    let shown = play.looking.json(&format!("/api/v1/requests/{}", exchange.id)).await;
    assert_eq!(shown["usage"]["attempts"][2]["usage"]["input"], 2000);
    let id = session["id"].as_str().unwrap();
    let export = play.looking.get(&format!("/api/v1/sessions/{id}/export?content=false")).await;
    let line: Value = serde_json::from_str(export.text().lines().next().unwrap()).unwrap();
    assert_eq!(line["usage"]["attempts"][1]["model"], "claude-fable-5", "{line}");
}

#[tokio::test]
async fn interaction_is_metered_and_its_bytes_do_not_change() {
    let mut play = Play::start().await;
    let (request, reply) = (case!("interactions/request.json"), case!("interactions/reply.json"));
    let first = play.exchange("/v1beta/interactions", "s", request, reply).await;
    assert_eq!(first.model.as_deref(), Some("gemini-3.8-flash"));
    assert_eq!(counts(&first.usage), [Some(1200), Some(550), Some(0), None]);
    assert!(first.session.is_some());
    assert!(first.done.made.is_nothing());
    // Streamed, and on from the first one.
    let next = r#"{"model": "gemini-3.8-flash", "input": "go on", "previous_interaction_id": "int_1", "stream": true}"#;
    let usage = r#"{"total_input_tokens":1560,"total_output_tokens":5,"total_thought_tokens":0,"total_tokens":1565}"#;
    let events = [
        r#"{"interaction":{"id":"int_2","status":"in_progress","object":"interaction","model":"gemini-3.8-flash"},"event_type":"interaction.created"}"#.to_owned(),
        r#"{"index":0,"step":{"type":"model_output"},"event_type":"step.start"}"#.to_owned(),
        r#"{"index":0,"delta":{"text":"ok","type":"text"},"event_type":"step.delta"}"#.to_owned(),
        r#"{"index":0,"event_type":"step.stop"}"#.to_owned(),
        format!(r#"{{"interaction":{{"id":"int_2","status":"completed","usage":{usage}}},"event_type":"interaction.completed"}}"#),
    ];
    let mut stream: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    stream.push_str("event: done\ndata: [DONE]\n\n");
    let second = play.exchange("/v1beta/interactions", "s", next, &stream).await;
    assert_eq!(counts(&second.usage)[..2], [Some(1560), Some(5)]);
    assert_eq!(second.session, first.session);
    assert_eq!(second.thread, first.thread);
    assert!(second.streamed, "{:?}", second.notes);
    assert!(second.notes.is_empty(), "{:?}", second.notes);
}
