//! A retry that gets no response says nothing about what was changed: no decision is revoked.

use plimsoll::telemetry::RefusalOutcome;
use serde_json::{Value, json};

use crate::overflow::{TOO_LONG, cleared, cuts_alone, thoughtful};
use crate::play::{Play, anthropic_reply, anthropic_request, message};
use crate::pruned::{eager, history};
use crate::refused::{BOUND, cut_before};
use crate::support::http1::Call;

const MODEL: &str = "claude-sonnet-4-5";
const EMPTY: &str = r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages: text content blocks must be non-empty"}}"#;
const MOST_OUTPUT: &str = r#"{"type":"error","error":{"type":"invalid_request_error","message":"max_tokens: 100000 > 64000, which is the maximum allowed number of output tokens for claude-sonnet-4-5"}}"#;

/// Ends the connection with something that is no response; returns what was asked.
async fn fail(mut call: Call) -> String {
    call.wire.send("nonsense\r\n\r\n").await;
    call.message.text().to_owned()
}

fn reply() -> Value {
    anthropic_reply("m1", MODEL, json!([{"type": "text", "text": "Go on."}]))
}

/// The second repair gets no response: the client gets the first refusal, and its next request has both repairs.
#[tokio::test]
async fn repair_without_response_stays() {
    let mut play = Play::of("/v1/messages", cuts_alone()).await;
    let messages = [
        message("user", json!("Hm.")),
        message("assistant", json!([{"type": "text", "text": ""}])),
        message("user", json!("And then?")),
    ];
    let mut request = anthropic_request(MODEL, &messages);
    request["max_tokens"] = json!(100_000);
    let mut client = play.send_request(&request).await;
    let mut call = play.provider.call().await;
    call.answer("400 Bad Request", EMPTY).await;
    let mut call = call.wire.request().await;
    let repaired = call.message.text().to_owned();
    assert!(!repaired.contains(r#""text":"""#), "{repaired}");
    call.answer("400 Bad Request", MOST_OUTPUT).await;
    let sent = fail(call.wire.request().await).await;
    assert!(sent.contains(r#""max_tokens":64000"#), "{sent}");
    assert_eq!(client.response().await.text(), EMPTY);
    let exchange = play.server.next_exchange().await;
    assert_eq!(exchange.refusal.as_ref().unwrap().outcome, RefusalOutcome::Unanswered);
    assert_eq!(play.exchange(&request, &reply()).await.bytes, sent);
}

/// A request in which results are cut, and whose text is refused as empty, before its first accepted turn.
async fn cut_with_empty_text() -> (Play, Value) {
    let play = Play::of("/v1/messages", eager()).await;
    let mut messages = history(6);
    messages.push(message("assistant", json!([{"type": "text", "text": ""}])));
    messages.push(message("user", json!("And then?")));
    let mut request = anthropic_request(MODEL, &messages);
    request["max_tokens"] = json!(100_000);
    (play, request)
}

/// The repair gets no response, and the original is refused for something else: the cuts are revoked, and the repair,
/// which nobody judged, is not.
#[tokio::test]
async fn repair_without_response_is_not_revoked_with_cuts() {
    let (mut play, request) = cut_with_empty_text().await;
    let mut client = play.send_request(&request).await;
    let mut call = play.provider.call().await;
    assert!(cleared(call.message.text()) > 0);
    call.answer("400 Bad Request", EMPTY).await;
    let sent = fail(call.wire.request().await).await;
    assert!(!sent.contains(r#""text":"""#), "{sent}");
    let mut call = play.provider.call().await;
    assert_eq!(call.message.text(), request.to_string());
    call.answer("400 Bad Request", BOUND).await;
    assert_eq!(client.response().await.text(), BOUND);
    drop(call);
    play.server.next_exchange().await;
    let next = play.exchange(&request, &reply()).await.bytes;
    assert!(cleared(&next) == 0, "{next}");
    assert!(!next.contains(r#""text":"""#), "{next}");
}

/// A repair is refused, and so is the original: the repair is revoked with the cuts.
#[tokio::test]
async fn if_every_form_is_refused_all_repairs_are_revoked() {
    let (mut play, request) = cut_with_empty_text().await;
    let mut client = play.send_request(&request).await;
    let mut call = play.provider.call().await;
    let other = r#"{"type":"error","error":{"message":"tool_result: no such thing"}}"#;
    for refusal in [EMPTY, other] {
        call.answer("400 Bad Request", refusal).await;
        call = call.wire.request().await;
    }
    assert_eq!(call.message.text(), request.to_string());
    call.answer("400 Bad Request", BOUND).await;
    assert_eq!(client.response().await.text(), BOUND);
    drop(call);
    play.server.next_exchange().await;
    assert_eq!(play.exchange(&request, &reply()).await.bytes, request.to_string());
}

/// Room is made, and gets no response: the cuts stay.
#[tokio::test]
async fn room_without_response_stays() {
    let mut play = Play::of("/v1/messages", cuts_alone()).await;
    let request = anthropic_request(MODEL, &thoughtful());
    let mut client = play.send_request(&request).await;
    let mut call = play.provider.call().await;
    call.answer("400 Bad Request", TOO_LONG).await;
    let sent = fail(call.wire.request().await).await;
    assert!(cleared(&sent) > 0, "{sent}");
    assert_eq!(client.response().await.text(), TOO_LONG);
    play.server.next_exchange().await;
    assert_eq!(play.exchange(&request, &reply()).await.bytes, sent);
}

/// The planned form and the original are refused, and the last accepted form gets no response: whether the new cuts
/// are at fault is unknown, so they stay.
#[tokio::test]
async fn new_decisions_stay_if_last_accepted_form_gets_no_response() {
    let (mut play, reply, _) = cut_before().await;
    let longer = anthropic_request(MODEL, &history(12));
    let mut client = play.send_request(&longer).await;
    let mut call = play.provider.call().await;
    let planned = call.message.text().to_owned();
    let refusal = BOUND.replace("The block is bound to a different conversation.", "");
    for _ in 0..2 {
        call.answer("400 Bad Request", &refusal).await;
        call = call.wire.request().await;
    }
    assert!(cleared(&fail(call).await) < cleared(&planned));
    assert_eq!(client.response().await.text(), refusal);
    let exchange = play.server.next_exchange().await;
    assert!(exchange.refused.is_none());
    assert!(exchange.done.resent.is_some());
    assert_eq!(play.exchange(&longer, &reply).await.bytes, planned);
}
