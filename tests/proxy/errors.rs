//! An error inside a response with status 200 is not a reply: it has the same outcome in all dialects, with its kind,
//! and a client that retries continues its thread.

use plimsoll::context::Outcome;
use plimsoll::dialect::StopReason;
use plimsoll::dialect::error_kind::ErrorKind;
use serde_json::json;

use crate::support::http1::{Call, Provider, Wire};
use crate::support::server::TestServer;

const QUESTION: &str = "How deep is she?";

/// A path and a request for each dialect.
fn requests() -> [(&'static str, String); 4] {
    let chat = json!({"model": "m", "stream": true, "stream_options": {"include_usage": true},
        "messages": [{"role": "user", "content": QUESTION}]});
    [
        (
            "/v1/messages",
            json!({"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": QUESTION}]})
                .to_string(),
        ),
        ("/v1/chat/completions", chat.to_string()),
        ("/v1/responses", json!({"model": "gpt-5", "input": QUESTION}).to_string()),
        (
            "/v1beta/models/gemini-2.5-pro:generateContent",
            json!({"contents": [{"role": "user", "parts": [{"text": QUESTION}]}]}).to_string(),
        ),
    ]
}

/// An error as a body and as an event, with its kind and stop reason.
fn answers(target: &str) -> [(String, ErrorKind, StopReason); 2] {
    let (kind, filtered) = match target {
        "/v1/messages" => (
            json!({"type": "error", "error": {"type": "overloaded_error", "message": "No."}}),
            "content_filter",
        ),
        "/v1/responses" => {
            (json!({"error": {"code": "server_overloaded", "message": "No."}}), "content_filter")
        }
        "/v1/chat/completions" => {
            (json!({"error": {"code": 503, "message": "No."}}), "content_filter")
        }
        _ => (
            json!({"error": {"code": 503, "status": "UNAVAILABLE", "message": "No."}}),
            "PROHIBITED_CONTENT",
        ),
    };
    let filtered = json!({"type": "error",
        "error": {"status": filtered, "type": filtered, "message": "Filtered."}});
    [
        (kind.to_string(), ErrorKind::Overloaded, StopReason::Failed),
        (filtered.to_string(), ErrorKind::Filter, StopReason::Refused),
    ]
}

async fn ask(server: &TestServer, target: &str, body: &str) -> Wire {
    let mut client = Wire::connect(server.address).await;
    let length = body.len();
    let head = format!(
        "POST {target} HTTP/1.1\r\nhost: localhost\r\nx-api-key: k\r\nx-plimsoll-session: s\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    client.send(format!("{head}{body}")).await;
    client
}

#[tokio::test]
async fn error_inside_200_response_is_no_reply_in_any_dialect() {
    for (target, body) in requests() {
        for (answer, kind, stop) in answers(target) {
            for as_stream in [false, true] {
                let provider = Provider::start().await;
                let mut server = TestServer::before(&provider.base()).await;
                let mut threads = Vec::new();
                // The client retries: no new branch begins.
                for _ in 0..2 {
                    let mut client = ask(&server, target, &body).await;
                    let mut call = provider.call().await;
                    match as_stream {
                        true => {
                            call.begin_events().await;
                            call.chunk(&format!("data: {answer}\n\n")).await;
                            call.chunk("data: [DONE]\n\n").await;
                            call.end().await;
                        }
                        false => call.answer("200 OK", &answer).await,
                    }
                    let response = client.response().await;
                    assert!(response.text().contains(&answer), "{}", response.text());
                    let exchange = server.next_exchange().await;
                    let case = format!("{target} {answer} as a stream: {as_stream}");
                    assert_eq!(exchange.outcome, Outcome::UpstreamFailed, "{case}");
                    assert_eq!(exchange.error_kind, Some(kind), "{case}");
                    assert_eq!(exchange.stop, Some(stop), "{case}");
                    threads.push(exchange.thread.clone().unwrap());
                }
                assert_eq!(threads[0], threads[1], "{target}");
                let label = serde_json::to_value(kind).unwrap();
                let count =
                    format!(r#"plimsoll_provider_errors_total{{kind={label},upstream="up"}} 2"#);
                let metrics = server.telemetry.render();
                assert!(metrics.contains(&count), "{count}\n{metrics}");
            }
        }
    }
}

/// Sends `events` as a stream, or the only event as a body.
async fn answered(call: &mut Call, events: &[&str], as_stream: bool) {
    if !as_stream {
        return call.answer("200 OK", events[0]).await;
    }
    call.begin_events().await;
    for event in events {
        call.chunk(&format!("data: {event}\n\n")).await;
    }
    call.chunk("data: [DONE]\n\n").await;
    call.end().await;
}

/// A reply may report its failure without an error: OpenRouter's `finish_reason: error`, a call that Gemini could not
/// read, `status: failed`.
#[tokio::test]
async fn reply_that_reports_its_own_failure_counts_as_failed() {
    let begun = r#"{"id":"c","model":"m","choices":[{"index":0,"delta":{"content":"Three"},"finish_reason":null}]}"#;
    let ended =
        r#"{"id":"c","model":"m","choices":[{"index":0,"delta":{},"finish_reason":"error"}]}"#;
    let whole = r#"{"id":"c","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"Three"},"finish_reason":"error"}],"usage":{"prompt_tokens":9,"completion_tokens":1,"total_tokens":10}}"#;
    let failed = r#"{"id":"resp_1","object":"response","status":"failed","error":null,"output":[],"usage":null}"#;
    let malformed = r#"{"candidates":[{"content":{},"finishReason":"MALFORMED_FUNCTION_CALL","index":0}],"usageMetadata":{"promptTokenCount":9,"totalTokenCount":9}}"#;
    let requests = requests();
    for (request, events, as_stream) in [
        (&requests[1], &[begun, ended][..], true),
        (&requests[1], &[whole], false),
        (&requests[2], &[failed], false),
        (&requests[3], &[malformed], false),
        (&requests[3], &[malformed], true),
    ] {
        let provider = Provider::start().await;
        let mut server = TestServer::before(&provider.base()).await;
        let mut client = ask(&server, request.0, &request.1).await;
        answered(&mut provider.call().await, events, as_stream).await;
        let response = client.response().await;
        // The client gets what the upstream sent.
        assert!(events.iter().all(|event| response.text().contains(event)), "{}", response.text());
        let exchange = server.next_exchange().await;
        let case = format!("{} {events:?}", request.0);
        assert_eq!(exchange.outcome, Outcome::UpstreamFailed, "{case}");
        let expected = (Some(ErrorKind::Provider), Some(StopReason::Failed));
        assert_eq!((exchange.error_kind, exchange.stop), expected, "{case}");
        let metrics = server.telemetry.render();
        let count = r#"plimsoll_provider_errors_total{kind="provider",upstream="up"} 1"#;
        assert!(metrics.contains(count), "{case}\n{metrics}");
    }
}

/// An error after some text, in a thread with an earlier reply: the client retries and continues on the same thread.
#[tokio::test]
async fn retry_after_streamed_error_continues_its_thread() {
    let message = |role: &str, text: &str| json!({"role": role, "content": text});
    let chunk = |text: &str| json!({"id": "c", "model": "m", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": null}]});
    let stop = json!({"id": "c", "model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]});
    let failed = json!({"id": "c", "model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": "error"}]});
    let error = json!({"error": {"code": 502, "message": "Upstream error"}});
    for (ending, kind) in [(error, ErrorKind::Provider), (failed, ErrorKind::Provider)] {
        let provider = Provider::start().await;
        let mut server = TestServer::before(&provider.base()).await;
        let mut history = vec![message("user", QUESTION)];
        let mut threads = Vec::new();
        for (text, ending, outcome) in [
            ("Three.", &stop, Outcome::Complete),
            ("Fo", &ending, Outcome::UpstreamFailed),
            ("Four.", &stop, Outcome::Complete),
            ("Five.", &stop, Outcome::Complete),
        ] {
            let body = json!({"model": "m", "stream": true, "stream_options": {"include_usage": true},
                "messages": history});
            let mut client = ask(&server, "/v1/chat/completions", &body.to_string()).await;
            let events = [chunk(text).to_string(), ending.to_string()];
            let events: Vec<&str> = events.iter().map(String::as_str).collect();
            answered(&mut provider.call().await, &events, true).await;
            client.response().await;
            let exchange = server.next_exchange().await;
            assert_eq!(exchange.outcome, outcome, "{text} {ending}");
            let is_failed = outcome == Outcome::UpstreamFailed;
            assert_eq!(exchange.error_kind, is_failed.then_some(kind), "{text} {ending}");
            threads.push(exchange.thread.clone().unwrap());
            if !is_failed {
                history.extend([message("assistant", text), message("user", "And now?")]);
            }
        }
        assert!(threads.iter().all(|thread| *thread == threads[0]), "{threads:?}");
    }
}

/// Azure's body for a prompt that its filter blocks.
#[tokio::test]
async fn azure_filter_has_its_kind() {
    let filtered = json!({"error": {
        "message": "The response was filtered due to the prompt triggering Azure OpenAI's content management policy.",
        "type": null, "param": "prompt", "code": "content_filter", "status": 400,
        "innererror": {"code": "ResponsibleAIPolicyViolation", "content_filter_result": {
            "hate": {"filtered": true, "severity": "high"}, "jailbreak": {"filtered": false, "detected": false},
            "self_harm": {"filtered": false, "severity": "safe"}, "sexual": {"filtered": false, "severity": "safe"},
            "violence": {"filtered": false, "severity": "low"}}}}})
    .to_string();
    let (target, body) = &requests()[1];
    for (status, outcome) in
        [("400 Bad Request", Outcome::Refused), ("200 OK", Outcome::UpstreamFailed)]
    {
        let provider = Provider::start().await;
        let mut server = TestServer::before(&provider.base()).await;
        let mut client = ask(&server, target, body).await;
        provider.call().await.answer(status, &filtered).await;
        assert!(client.response().await.text().contains(&filtered));
        let exchange = server.next_exchange().await;
        let expected = (outcome, Some(ErrorKind::Filter));
        assert_eq!((exchange.outcome, exchange.error_kind), expected, "{status}");
    }
}

/// A refusal has a kind from its status; a reply has none.
#[tokio::test]
async fn refusal_has_kind_and_answer_none() {
    let provider = Provider::start().await;
    let mut server = TestServer::before(&provider.base()).await;
    let (target, body) = &requests()[0];
    let refused = r#"{"type":"error","error":{"type":"rate_limit_error","message":"Slowly."}}"#;
    let answer = r#"{"id":"m","type":"message","role":"assistant","model":"m","content":[{"type":"text","text":"Three."}],"stop_reason":"end_turn","usage":{"input_tokens":9,"output_tokens":1}}"#;
    for (status, content, outcome, kind) in [
        ("429 Too Many Requests", refused, Outcome::Refused, Some(ErrorKind::RateLimit)),
        ("200 OK", answer, Outcome::Complete, None),
    ] {
        let mut client = ask(&server, target, body).await;
        let mut call = provider.call().await;
        call.answer(status, content).await;
        client.response().await;
        let exchange = server.next_exchange().await;
        assert_eq!(exchange.outcome, outcome);
        assert_eq!(exchange.error_kind, kind);
    }
}
