//! Retries over sockets: what each response of the provider leads to (`core/src/context/attempt/README.md`), if that
//! depends on the status, on a response in pieces or on an earlier response.

use plimsoll::context::policy::{Policy, SummaryEngine};
use plimsoll::dialect::repair::RepairCause;
use plimsoll::telemetry::RefusalOutcome;
use serde_json::{Value, json};

use crate::play::{Play, anthropic_reply, anthropic_request};
use crate::pruned::{CLEARED, eager, history};
use crate::support::http1::{Call, Wire};

const MODEL: &str = "claude-sonnet-4-5";
const EMPTY: &str = r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages: text content blocks must be non-empty"}}"#;
const TOO_LONG: &str = r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 2600 tokens > 2000 maximum"}}"#;
const WILD: &str = "prompt is too long: 210000 tokens > 200000 maximum";
const TOO_MUCH_OUTPUT: &str = r#"{"type":"error","error":{"type":"invalid_request_error","message":"max_tokens: 64000 > 8192, which is the maximum allowed number of output tokens for claude-sonnet-4-5"}}"#;

/// A play without summaries, in a window that the history nearly fills.
async fn play() -> Play {
    let mut policy = Policy::default();
    policy.prune.gate = Vec::new();
    policy.compact.engine = SummaryEngine::Off;
    let mut play = Play::of("/v1/messages", policy).await;
    play.config.upstreams[0].window = Some(3000);
    play.restart().await;
    play
}

fn reply() -> String {
    anthropic_reply("m1", MODEL, json!([{"type": "text", "text": "Go on."}])).to_string()
}

/// A long history with an empty text block.
fn empty() -> Value {
    let mut messages = history(8);
    let last = messages.last_mut().unwrap();
    last["content"].as_array_mut().unwrap().push(json!({"type": "text", "text": ""}));
    anthropic_request(MODEL, &messages)
}

fn streamed() -> Value {
    let mut request = anthropic_request(MODEL, &history(8));
    request["stream"] = json!(true);
    request
}

fn error_event(message: &str) -> String {
    let error =
        json!({"type": "error", "error": {"type": "invalid_request_error", "message": message}});
    format!("event: error\ndata: {error}\n\n")
}

/// Sends a request; the provider's first response has this status and body.
async fn refused(play: &Play, request: &Value, status: &str, body: &str) -> (Wire, Call) {
    let client = play.send_request(request).await;
    let mut call = play.provider.call().await;
    call.answer(status, body).await;
    (client, call)
}

/// Responds to the next form of the request.
async fn next(call: Call, status: &str, body: &str) -> Call {
    let mut call = call.wire.request().await;
    call.answer(status, body).await;
    call
}

#[tokio::test]
async fn repaired_request_that_does_not_fit_is_resent_with_room() {
    for status in ["400 Bad Request", "413 Payload Too Large", "500 Internal Server Error"] {
        let mut play = play().await;
        let (mut client, call) = refused(&play, &empty(), "400 Bad Request", EMPTY).await;
        let call = next(call, status, TOO_LONG).await;
        if status.starts_with("500") {
            // A server error after a repair is not about the request: it is forwarded.
            let answer = client.response().await;
            assert_eq!(answer.status(), 500);
            assert_eq!(answer.text(), TOO_LONG);
            continue;
        }
        let call = next(call, "200 OK", &reply()).await;
        assert!(call.message.text().contains(CLEARED), "{status}: {}", call.message.text());
        assert_eq!(client.response().await.status(), 200, "{status}");
        let overflow = play.server.next_exchange().await.done.overflow.unwrap();
        assert!(overflow.saved, "{status}");
    }
}

/// A rate limit is no refusal: it is forwarded, so that the client can try again.
#[tokio::test]
async fn rate_limit_after_repair_is_forwarded() {
    let play = play().await;
    let (mut client, call) = refused(&play, &empty(), "400 Bad Request", EMPTY).await;
    let slow = r#"{"type":"error","error":{"type":"rate_limit_error","message":"slow down"}}"#;
    next(call, "429 Too Many Requests", slow).await;
    let answer = client.response().await;
    assert_eq!(answer.status(), 429);
    assert_eq!(answer.text(), slow);
}

#[tokio::test]
async fn second_overflow_of_any_status_returns_first_response() {
    for status in ["400 Bad Request", "413 Payload Too Large"] {
        let mut play = play().await;
        let request = anthropic_request(MODEL, &history(8));
        let (mut client, call) = refused(&play, &request, "400 Bad Request", TOO_LONG).await;
        let still = TOO_LONG.replace("2600", "2400");
        let call = next(call, status, &still).await;
        assert!(call.message.text().contains(CLEARED), "{}", call.message.text());
        assert_eq!(client.response().await.text(), TOO_LONG, "{status}");
        let exchange = play.server.next_exchange().await;
        assert_eq!(exchange.done.overflow.map(|overflow| overflow.saved), Some(false), "{status}");
    }
}

/// An impossible number in an accepted response leads to no cut: the response is forwarded.
#[tokio::test]
async fn implausible_overflow_inside_reply_cuts_nothing() {
    let mut play = play().await;
    let mut client = play.send_request(&streamed()).await;
    let mut call = play.provider.call().await;
    call.begin_events().await;
    call.chunk(error_event(WILD)).await;
    call.end().await;
    assert_eq!(client.response().await.text(), error_event(WILD));
    let exchange = play.server.next_exchange().await;
    play.server.expect_no_exchange();
    assert!(exchange.done.made.is_nothing(), "{:?}", exchange.done);
}

/// If the request with room does not fit either, whatever number the error has, the client gets the first response.
#[tokio::test]
async fn second_overflow_inside_reply_returns_first_response() {
    let play = play().await;
    let mut client = play.send_request(&streamed()).await;
    let mut call = play.provider.call().await;
    let first = error_event("prompt is too long: 2600 tokens > 2000 maximum");
    call.begin_events().await;
    call.chunk(&first).await;
    call.end().await;
    let mut call = tokio::select! {
        call = play.provider.call() => call,
        call = call.wire.request() => call,
    };
    assert!(call.message.text().contains(CLEARED), "{}", call.message.text());
    call.begin_events().await;
    call.chunk(error_event(WILD)).await;
    call.end().await;
    assert_eq!(client.response().await.text(), first);
}

/// A server error does not blame a rewrite: it is forwarded, and nothing is sent again.
#[tokio::test]
async fn server_error_after_rewrite_is_forwarded_at_once() {
    let mut play = Play::of("/v1/messages", eager()).await;
    let broken =
        r#"{"type":"error","error":{"type":"api_error","message":"Internal server error"}}"#;
    let request = anthropic_request(MODEL, &history(6));
    let (mut client, call) = refused(&play, &request, "500 Internal Server Error", broken).await;
    assert!(call.message.text().contains(CLEARED), "{}", call.message.text());
    let answer = client.response().await;
    assert_eq!(answer.status(), 500);
    assert_eq!(answer.text(), broken);
    assert_eq!(play.server.next_exchange().await.done.resent, None);
}

/// An impossible overflow does not blame a rewrite: the client gets it as without the proxy, and the next request is
/// rewritten as before.
#[tokio::test]
async fn wild_overflow_blames_no_rewrite() {
    let wild = format!(
        r#"{{"type":"error","error":{{"type":"invalid_request_error","message":"{WILD}"}}}}"#
    );
    let mut play = Play::of("/v1/messages", eager()).await;
    let request = anthropic_request(MODEL, &history(6));
    let (mut client, call) = refused(&play, &request, "400 Bad Request", &wild).await;
    let rewritten = call.message.text().to_owned();
    assert!(rewritten.contains(CLEARED), "{rewritten}");
    let answer = client.response().await;
    assert_eq!(answer.status(), 400);
    assert_eq!(answer.text(), &*wild);
    let exchange = play.server.next_exchange().await;
    assert_eq!(exchange.done.resent, None);
    assert_eq!(exchange.done.overflow, None);
    drop(call);
    let answer = anthropic_reply("m1", MODEL, json!([{"type": "text", "text": "Go on."}]));
    let later = play.exchange(&request, &answer).await;
    assert_eq!(later.bytes, rewritten);
}

/// A refusal that arrives in pieces is judged when it is complete.
#[tokio::test]
async fn refusal_in_pieces_is_read_whole() {
    let mut play = play().await;
    let mut client = play.send_request(&empty()).await;
    let mut call = play.provider.call().await;
    let length = EMPTY.len();
    call.send(format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    ))
    .await;
    for piece in EMPTY.as_bytes().chunks(length / 3 + 1) {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        call.send(piece).await;
    }
    next(call, "200 OK", &reply()).await;
    assert_eq!(client.response().await.status(), 200);
    let refusal = play.server.next_exchange().await.refusal.clone().unwrap();
    assert_eq!(refusal.causes, vec![RepairCause::Empty]);
    assert_eq!(refusal.outcome, RefusalOutcome::Healed);
}

/// The output limit in the first refusal is learned, although something else is refused after it.
#[tokio::test]
async fn models_output_limit_is_learned_despite_later_refusal() {
    let mut play = play().await;
    let mut request = empty();
    request["max_tokens"] = json!(64_000);
    request.as_object_mut().unwrap().remove("thinking");
    play.config.upstreams[0].window = Some(200_000);
    play.restart().await;
    let (mut client, call) = refused(&play, &request, "400 Bad Request", TOO_MUCH_OUTPUT).await;
    let call = next(call, "400 Bad Request", EMPTY).await;
    next(call, "200 OK", &reply()).await;
    assert_eq!(client.response().await.status(), 200);
    let refusal = play.server.next_exchange().await.refusal.clone().unwrap();
    assert_eq!(refusal.causes, [RepairCause::MaxTokens, RepairCause::Empty]);
    play.session = "99999999-2222-3333-4444-555555555555";
    let mut other = anthropic_request(MODEL, &history(1));
    other["max_tokens"] = json!(64_000);
    let scene = play.exchange(&other, &serde_json::from_str(&reply()).unwrap()).await;
    assert_eq!(scene.sent["max_tokens"], json!(8_192));
}

/// The provider is called three times at most: its third refusal goes to the client, and the next request begins with
/// both repairs.
#[tokio::test]
async fn third_refusal_goes_to_client() {
    let mut play = play().await;
    let mut request = empty();
    request["max_tokens"] = json!(64_000);
    request.as_object_mut().unwrap().remove("thinking");
    let (mut client, call) = refused(&play, &request, "400 Bad Request", TOO_MUCH_OUTPUT).await;
    let call = next(call, "400 Bad Request", EMPTY).await;
    let call = next(call, "400 Bad Request", TOO_LONG).await;
    assert_eq!(client.response().await.text(), TOO_LONG);
    let repaired = call.message.text().to_owned();
    drop(call);
    play.server.next_exchange().await;
    let later = play.exchange(&request, &serde_json::from_str(&reply()).unwrap()).await;
    assert_eq!(later.sent["max_tokens"], json!(8_192));
    assert_eq!(later.bytes, repaired);
}
