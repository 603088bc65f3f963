//! An error inside a success is no answer: one outcome for all dialects, with its kind, and a client that asks
//! again goes on where it was.

use plimsoll::context::Outcome;
use plimsoll::dialect::StopReason;
use plimsoll::dialect::error_kind::ErrorKind;
use serde_json::json;

use crate::support::http1::{Provider, Wire};
use crate::support::server::TestServer;

const WORDS: &str = "How deep is she?";

/// A request of each dialect, and where it goes.
fn requests() -> [(&'static str, String); 4] {
    let chat = json!({"model": "m", "stream": true, "stream_options": {"include_usage": true},
        "messages": [{"role": "user", "content": WORDS}]});
    [
        (
            "/v1/messages",
            json!({"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": WORDS}]})
                .to_string(),
        ),
        ("/v1/chat/completions", chat.to_string()),
        ("/v1/responses", json!({"model": "gpt-5", "input": WORDS}).to_string()),
        (
            "/v1beta/models/gemini-2.5-pro:generateContent",
            json!({"contents": [{"role": "user", "parts": [{"text": WORDS}]}]}).to_string(),
        ),
    ]
}

/// An error as a body, and as the events of a stream, with the kind that it is of.
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
async fn an_error_inside_a_success_is_no_answer_in_any_dialect() {
    for (target, body) in requests() {
        for (said, kind, stop) in answers(target) {
            for as_stream in [false, true] {
                let provider = Provider::start().await;
                let mut server = TestServer::before(&provider.base()).await;
                let mut threads = Vec::new();
                // The client asks the same again: no new branch.
                for _ in 0..2 {
                    let mut client = ask(&server, target, &body).await;
                    let mut call = provider.call().await;
                    match as_stream {
                        true => {
                            call.begin_events().await;
                            call.chunk(&format!("data: {said}\n\n")).await;
                            call.chunk("data: [DONE]\n\n").await;
                            call.end().await;
                        }
                        false => call.answer("200 OK", &said).await,
                    }
                    let response = client.response().await;
                    assert!(response.text().contains(&said), "{}", response.text());
                    let told = server.told().await;
                    let case = format!("{target} {said} as a stream: {as_stream}");
                    assert_eq!(told.outcome, Outcome::UpstreamFailed, "{case}");
                    assert_eq!((told.error_kind, told.stop), (Some(kind), Some(stop)), "{case}");
                    threads.push(told.thread.clone().unwrap());
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

/// What a status tells is told with its kind, too; an answer has none.
#[tokio::test]
async fn a_refusal_has_a_kind_and_an_answer_none() {
    let provider = Provider::start().await;
    let mut server = TestServer::before(&provider.base()).await;
    let (target, body) = &requests()[0];
    let refused = r#"{"type":"error","error":{"type":"rate_limit_error","message":"Slowly."}}"#;
    let answer = r#"{"id":"m","type":"message","role":"assistant","model":"m","content":[{"type":"text","text":"Three."}],"stop_reason":"end_turn","usage":{"input_tokens":9,"output_tokens":1}}"#;
    for (status, said, outcome, kind) in [
        ("429 Too Many Requests", refused, Outcome::Refused, Some(ErrorKind::RateLimit)),
        ("200 OK", answer, Outcome::Complete, None),
    ] {
        let mut client = ask(&server, target, body).await;
        let mut call = provider.call().await;
        call.answer(status, said).await;
        client.response().await;
        let told = server.told().await;
        assert_eq!((told.outcome, told.error_kind), (outcome, kind));
    }
}
