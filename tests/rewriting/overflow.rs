//! A request that does not fit is made to fit, once; where that fails, the provider's own answer goes
//! through as it came.

use plimsoll::config::Mode;
use plimsoll::context::overflow::OverflowSign;
use plimsoll::context::plan::{Change, Decision, DecisionReason};
use plimsoll::context::policy::{Policy, SummaryEngine};
use serde_json::{Value, json};

use crate::play::{Play, anthropic_reply, anthropic_request, message};
use crate::pruned::history;
use crate::refused::BOUND;

const MODEL: &str = "claude-sonnet-4-5";
pub const TOO_LONG: &str = r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 2600 tokens > 2000 maximum"},"request_id":"req_1"}"#;
const LIMITED: &str = r#"{"type":"error","error":{"type":"invalid_request_error","message":"Rate limit reached: maximum context length is 4000 tokens per minute"}}"#;
const CLEARED: &str = "[Old tool result content cleared]";

/// Of the two ways to make room, the one that asks nobody.
pub fn cuts_alone() -> Policy {
    let mut policy = Policy::default();
    policy.compact.engine = SummaryEngine::Off;
    policy
}

fn reply() -> Value {
    anthropic_reply("m1", MODEL, json!([{"type": "text", "text": "Go on."}]))
}

pub fn cleared(body: &str) -> usize {
    body.matches(CLEARED).count()
}

#[tokio::test]
async fn overflow_is_resent_once_with_room_and_teaches_window() {
    let mut play = Play::of("/v1/messages", cuts_alone()).await;
    let request = anthropic_request(MODEL, &history(8));
    let mut client = play.send_request(&request).await;
    let mut call = play.provider.call().await;
    assert_eq!(call.message.text(), request.to_string());
    call.answer("400 Bad Request", TOO_LONG).await;
    let mut call = call.wire.request().await;
    let sent = call.message.text().to_owned();
    assert!(cleared(&sent) >= 5, "{sent}");
    assert!(sent.contains("Line 7 of the log."), "{sent}");
    call.answer("200 OK", &reply().to_string()).await;
    let answer = client.response().await;
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.text(), &*reply().to_string());
    drop(call);
    let exchange = play.server.next_exchange().await;
    play.server.expect_no_exchange();
    let overflow = exchange.done.overflow.unwrap();
    assert!(overflow.saved);
    assert!(overflow.sign == OverflowSign::Refused);
    assert_eq!(overflow.reported.window, Some(2000));
    assert_eq!(overflow.reported.input, Some(2600));
    assert_eq!(exchange.done.new.cut as usize, cleared(&sent));
    assert!(exchange.done.steps.iter().all(|step| step.why == DecisionReason::Overflow));
    assert_eq!(exchange.window, Some(2000));
    let estimate = exchange.estimate.as_ref().unwrap().tokens;
    assert!(estimate < 1100, "the estimate is of what was answered: {estimate}");
    let metrics = play.server.telemetry.render();
    let line = r#"plimsoll_overflows_total{end="saved",model="claude-sonnet-4-5",sign="refused",upstream="up"} 1"#;
    assert!(metrics.contains(line), "{metrics}");

    room_stays(&mut play, history(8), &sent).await;
}

/// What made room in the request `sent` stays as the conversation goes on, the window is known, and both after a
/// restart.
async fn room_stays(play: &mut Play, mut history: Vec<Value>, sent: &str) {
    history.push(message("assistant", json!([{"type": "text", "text": "Go on."}])));
    history.push(message("user", json!("And then?")));
    for restarts in [false, true] {
        if restarts {
            play.restart().await;
        }
        let scene = play.exchange(&anthropic_request(MODEL, &history), &reply()).await;
        let prefix = sent.rfind("]}").unwrap();
        assert_eq!(scene.bytes[..prefix], sent[..prefix], "the prefix is what it was");
        assert_eq!(scene.exchange.window, Some(2000));
        assert_eq!(scene.exchange.done.overflow, None);
    }
}

#[tokio::test]
async fn request_refused_with_room_too_gets_first_refusal() {
    let mut play = Play::of("/v1/messages", cuts_alone()).await;
    let mut client = play.send_request(&anthropic_request(MODEL, &history(8))).await;
    let mut call = play.provider.call().await;
    call.answer("400 Bad Request", TOO_LONG).await;
    let mut call = call.wire.request().await;
    assert!(cleared(call.message.text()) > 0);
    call.answer("400 Bad Request", &TOO_LONG.replace("2600", "2100")).await;
    let answer = client.response().await;
    assert_eq!(answer.status(), 400);
    assert_eq!(answer.text(), TOO_LONG);
    drop(call);
    let exchange = play.server.next_exchange().await;
    play.server.expect_no_exchange();
    let overflow = exchange.done.overflow.unwrap();
    assert!(!overflow.saved);
    assert!(exchange.status == Some(400));
    assert!(play.server.telemetry.render().contains(r#"plimsoll_overflows_total{end="lost""#));
}

/// Nothing that could be cut, a mode that changes nothing, a limit of rate: one request, one answer.
#[tokio::test]
async fn overflow_is_forwarded_if_no_cut_is_possible_or_allowed() {
    let text = "Tell me of the sea. ".repeat(300);
    let talk = [message("user", json!(text))];
    for (body, messages, mode, is_overflow) in [
        (TOO_LONG, &talk[..], Mode::Active, true),
        (TOO_LONG, &history(8)[..], Mode::Observe, true),
        (TOO_LONG, &history(8)[..], Mode::Shadow, true),
        (LIMITED, &history(8)[..], Mode::Active, false),
    ] {
        let mut play = Play::of("/v1/messages", cuts_alone()).await;
        play.config.mode = mode;
        play.restart().await;
        let mut client = play.send_request(&anthropic_request(MODEL, messages)).await;
        let mut call = play.provider.call().await;
        call.answer("400 Bad Request", body).await;
        let answer = client.response().await;
        assert_eq!(answer.status(), 400);
        assert_eq!(answer.text(), body);
        let exchange = play.server.next_exchange().await;
        assert_eq!(
            exchange.done.overflow.map(|overflow| overflow.saved),
            is_overflow.then_some(false)
        );
    }
}

/// What makes room is refused for its form: the first answer is the client's, and the cuts are not
/// repeated.
#[tokio::test]
async fn cuts_for_room_that_are_refused_for_another_reason_are_not_repeated() {
    let mut play = Play::of("/v1/messages", cuts_alone()).await;
    play.exchange(&anthropic_request(MODEL, &history(7)), &reply()).await;
    let request = anthropic_request(MODEL, &history(8));
    let mut client = play.send_request(&request).await;
    let mut call = play.provider.call().await;
    call.answer("400 Bad Request", TOO_LONG).await;
    let mut call = call.wire.request().await;
    let refused = r#"{"type":"error","error":{"message":"tool_result: no such thing"}}"#;
    call.answer("400 Bad Request", refused).await;
    assert_eq!(client.response().await.text(), TOO_LONG);
    drop(call);
    play.server.next_exchange().await;
    assert_eq!(play.exchange(&request, &reply()).await.bytes, request.to_string());
}

/// A failing provider says nothing about the cuts that made room: they stay.
#[tokio::test]
async fn room_stays_if_provider_fails() {
    let mut play = Play::of("/v1/messages", cuts_alone()).await;
    let request = anthropic_request(MODEL, &history(8));
    let mut client = play.send_request(&request).await;
    let mut call = play.provider.call().await;
    call.answer("400 Bad Request", TOO_LONG).await;
    let mut call = call.wire.request().await;
    let sent = call.message.text().to_owned();
    let failed =
        r#"{"type":"error","error":{"type":"api_error","message":"Internal server error"}}"#;
    call.answer("500 Internal Server Error", failed).await;
    let answer = client.response().await;
    assert_eq!(answer.status(), 500);
    assert_eq!(answer.text(), failed);
    drop(call);
    play.server.next_exchange().await;
    assert_eq!(play.exchange(&request, &reply()).await.bytes, sent);
}

/// Prompt and output are refused together, and a lower output limit for another reason. Room is made in the
/// request without it, and neither it nor its like is sent again.
#[tokio::test]
async fn room_is_made_without_repair_that_was_refused() {
    let mut play = Play::of("/v1/messages", cuts_alone()).await;
    let long = |part: Value| match part["content"].as_str() {
        Some(text) => {
            json!({"type": part["type"], "tool_use_id": part["tool_use_id"], "content": text.repeat(12)})
        }
        None => part,
    };
    let grown = |mut message: Value| {
        if let Some(parts) = message["content"].as_array().cloned() {
            message["content"] = parts.into_iter().map(long).collect();
        }
        message
    };
    let mut request =
        anthropic_request(MODEL, &history(8).into_iter().map(grown).collect::<Vec<_>>());
    request["max_tokens"] = json!(11_000);
    let mut client = play.send_request(&request).await;
    let mut call = play.provider.call().await;
    let together = r#"{"type":"error","error":{"type":"invalid_request_error","message":"input length and `max_tokens` exceed context limit: 7000 + 11000 > 12000, decrease input length or `max_tokens` and try again"}}"#;
    call.answer("400 Bad Request", together).await;
    let mut call = call.wire.request().await;
    let lowered: Value = serde_json::from_str(call.message.text()).unwrap();
    assert!(lowered["max_tokens"].as_u64().unwrap() < 6_000, "{}", lowered["max_tokens"]);
    assert_eq!(cleared(call.message.text()), 0);
    call.answer(
        "400 Bad Request",
        r#"{"type":"error","error":{"message":"max_tokens: no such thing"}}"#,
    )
    .await;
    let mut call = call.wire.request().await;
    let sent = call.message.text().to_owned();
    assert!(cleared(&sent) > 0, "{sent}");
    assert!(sent.contains(r#""max_tokens":11000"#), "{sent}");
    call.answer("200 OK", &reply().to_string()).await;
    assert_eq!(client.response().await.status(), 200);
    drop(call);
    assert!(play.server.next_exchange().await.done.overflow.unwrap().saved);
    assert_eq!(play.exchange(&request, &reply()).await.bytes, sent);
}

/// What was refused first is repaired; then the body of an accepted response says that the request does not fit.
#[tokio::test]
async fn repaired_request_gets_room_too() {
    let mut play = Play::of("/v1/messages", cuts_alone()).await;
    let mut messages = history(8);
    messages.push(message("assistant", json!([{"type": "text", "text": ""}])));
    messages.push(message("user", json!("And then?")));
    let request = anthropic_request(MODEL, &messages);
    let mut client = play.send_request(&request).await;
    let mut call = play.provider.call().await;
    let empty = r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages: text content blocks must be non-empty"}}"#;
    call.answer("400 Bad Request", empty).await;
    let mut call = call.wire.request().await;
    let repaired = call.message.text().to_owned();
    assert_ne!(repaired, request.to_string());
    assert_eq!(cleared(&repaired), 0, "{repaired}");
    call.answer("200 OK", TOO_LONG).await;
    let mut call = call.wire.request().await;
    let sent = call.message.text().to_owned();
    assert!(cleared(&sent) > 0, "{sent}");
    assert!(!sent.contains(r#""text":"""#), "{sent}");
    call.answer("200 OK", &reply().to_string()).await;
    assert_eq!((client.response().await.text()), &*reply().to_string());
    drop(call);
    let exchange = play.server.next_exchange().await;
    let overflow = exchange.done.overflow.unwrap();
    assert!(overflow.saved);
    assert!(overflow.sign == OverflowSign::InReply);
    assert_eq!(play.exchange(&request, &reply()).await.bytes, sent);
}

/// A conversation that does not fit, with a thought after its results.
pub fn thoughtful() -> Vec<Value> {
    let mut history = history(8);
    let thought = json!({"type": "thinking", "thinking": "So far.", "signature": "c2ln"});
    history.push(message("assistant", json!([thought, {"type": "text", "text": "So."}])));
    history.push(message("user", json!("And now?")));
    history
}

/// A model turns out to bind its reasoning to the results that were cut to make room: the client gets the first
/// answer, and room is made without the reasoning the next time.
#[tokio::test]
async fn cuts_refused_for_bound_reasoning_take_it_out_next_time() {
    let mut play = Play::of("/v1/messages", cuts_alone()).await;
    let request = anthropic_request(MODEL, &thoughtful());
    let mut client = play.send_request(&request).await;
    let mut call = play.provider.call().await;
    call.answer("400 Bad Request", TOO_LONG).await;
    let mut call = call.wire.request().await;
    let with_room = call.message.text().to_owned();
    assert!(cleared(&with_room) > 0, "{with_room}");
    assert!(with_room.contains("So far."), "{with_room}");
    call.answer("400 Bad Request", BOUND).await;
    assert_eq!(client.response().await.text(), TOO_LONG);
    drop(call);
    assert!(!play.server.next_exchange().await.done.overflow.unwrap().saved);
    let mut client = play.send_request(&request).await;
    let mut call = play.provider.call().await;
    call.answer("400 Bad Request", TOO_LONG).await;
    let mut call = call.wire.request().await;
    let sent = call.message.text().to_owned();
    assert_eq!(cleared(&sent), cleared(&with_room));
    assert!(!sent.contains("So far."), "{sent}");
    call.answer("200 OK", &reply().to_string()).await;
    assert_eq!(client.response().await.status(), 200);
}

/// A refusal that is larger than what is read of it reaches the client whole.
#[tokio::test]
async fn long_refusal_arrives_whole() {
    let mut play = Play::of("/v1/messages", cuts_alone()).await;
    let long = format!(r#"{{"error":{{"message":"{}"}}}}"#, "Ünlesbar. ".repeat(40_000));
    let mut client = play.send_request(&anthropic_request(MODEL, &history(8))).await;
    let mut call = play.provider.call().await;
    call.answer("400 Bad Request", &long).await;
    assert!(client.response().await.text() == long, "not what the provider wrote");
    assert_eq!(play.server.next_exchange().await.timing.response_bytes, long.len() as u64);
}

/// A refusal that breaks off breaks off at the client too.
#[tokio::test]
async fn broken_refusal_never_ends_well() {
    let play = Play::of("/v1/messages", cuts_alone()).await;
    let mut client = play.send_request(&anthropic_request(MODEL, &history(8))).await;
    let mut call = play.provider.call().await;
    call.send("HTTP/1.1 400 Bad Request\r\ntransfer-encoding: chunked\r\n\r\n").await;
    call.chunk("{\"error\":").await;
    call.wire.reset();
    let rest = client.rest().await.unwrap_or_default();
    assert!(!rest.ends_with(b"0\r\n\r\n"), "{}", String::from_utf8_lossy(&rest));
}

/// One result that fills the window by itself is cut to head and tail.
#[tokio::test]
async fn new_result_is_trimmed_if_cutting_old_ones_is_not_enough() {
    let mut play = Play::of("/v1/messages", cuts_alone()).await;
    let mut messages = history(1);
    messages[2]["content"][0]["content"] = json!(format!("begin {} end", "middle ".repeat(9000)));
    let mut client = play.send_request(&anthropic_request(MODEL, &messages)).await;
    let mut call = play.provider.call().await;
    call.answer("400 Bad Request", &TOO_LONG.replace("2600", "9100")).await;
    let mut call = call.wire.request().await;
    let sent: Value = serde_json::from_str(call.message.text()).unwrap();
    let trimmed = sent["messages"][2]["content"][0]["content"].as_str().unwrap();
    assert!(trimmed.starts_with("begin "));
    assert!(trimmed.ends_with(" end"));
    assert!(trimmed.len() < 16_000);
    call.answer("200 OK", &reply().to_string()).await;
    assert_eq!(client.response().await.status(), 200);
    let exchange = play.server.next_exchange().await;
    let step = &exchange.done.steps[0];
    assert_eq!(step.change, Change::Cut);
    assert_eq!(step.decision, Decision::New);
    assert_eq!(step.why, DecisionReason::TooLarge);
}

/// What shows in a reply can only be told; what it says of the window is learned all the same.
#[tokio::test]
async fn overflow_seen_in_reply_is_recorded_and_learned_from() {
    let mut play = Play::of("/v1/responses", cuts_alone()).await;
    let text = "Tell me of the sea. ".repeat(2000);
    let request = json!({"model": "local-model", "input": text, "stream": true});
    let failed = json!({"type": "response.failed", "response": {"id": "r1", "status": "failed",
        "error": {"code": "context_length_exceeded",
                  "message": "This model's maximum context length is 9000 tokens."}}});
    let mut client = play.send_request(&request).await;
    let mut call = play.provider.call().await;
    call.begin_events().await;
    call.chunk(format!("event: response.failed\ndata: {failed}\n\n")).await;
    call.end().await;
    client.response().await;
    let exchange = play.server.next_exchange().await;
    assert_eq!(exchange.done.overflow.map(|seen| seen.sign), Some(OverflowSign::InReply));
    drop(call);

    let body = |usage: Value| {
        json!({"id": "r2", "object": "response", "status": "completed", "usage": usage,
               "output": [{"type": "message", "role": "assistant", "id": "m",
                           "content": [{"type": "output_text", "text": "Yes."}]}]})
    };
    let mut request = request;
    request["stream"] = json!(false);
    let read = json!({"input_tokens": 2048, "output_tokens": 3, "total_tokens": 2051});
    let scene = play.exchange(&request, &body(read)).await;
    assert_eq!(scene.exchange.window, Some(9000), "the window was learned");
    let overflow = scene.exchange.done.overflow.unwrap();
    assert_eq!(overflow.sign, OverflowSign::Truncated);
    assert!(!overflow.saved);
    // It is kept with the turn, for whoever looks at its context.
    let scope = plimsoll::store::Scope {
        tenant: scene.exchange.tenant.clone().unwrap(),
        session: scene.exchange.session.clone().unwrap(),
    };
    let id = scene.exchange.id.clone();
    let view = play.server.ledgers.look(&scope, move |ledger| {
        plimsoll::context::budget::ContextView::after(ledger.turn(&id).unwrap()).to_string()
    });
    let view = view.await.unwrap();
    assert!(view.contains("Overflow: the provider read far less than was sent"), "{view}");
}

/// In `observe` and `shadow` nothing new is cut. If a request does not fit with the reasoning that was put back before,
/// and is refused without it, its client hears that it does not fit, and can make room.
#[tokio::test]
async fn observe_and_shadow_cut_nothing_to_fit_reasoning_put_back_before() {
    for mode in ["observe", "shadow"] {
        let mut play = Play::of("/v1/messages", cuts_alone()).await;
        let mut talk = vec![message("user", json!("Look."))];
        let thinking = json!({"type": "thinking", "thinking": "Let me look.", "signature": "c2ln"});
        for id in ["toolu_01AbCdEfGh12", "toolu_01AbCdEfGh34"] {
            let call = json!({"type": "tool_use", "id": id, "name": "Read", "input": {}});
            let reply = anthropic_reply("m1", MODEL, json!([thinking, call]));
            play.exchange(&anthropic_request(MODEL, &talk), &reply).await;
            talk.push(message("assistant", json!([call])));
            let result = json!({"type": "tool_result", "tool_use_id": id, "content": "Deep."});
            talk.push(message("user", json!([result])));
        }
        play.headers = format!("x-plimsoll-mode: {mode}\r\n");
        let request = anthropic_request(MODEL, &talk);
        let mut client = play.send_request(&request).await;
        let mut call = play.provider.call().await;
        let back = call.message.text().matches("Let me look.").count();
        assert_eq!(back, 1, "{mode}: what was put back before, and nothing else");
        call.answer("400 Bad Request", TOO_LONG).await;
        let mut call = call.wire.request().await;
        assert_eq!(call.message.text(), request.to_string());
        call.answer("400 Bad Request", BOUND).await;
        let answer = client.response().await;
        assert_eq!(answer.status(), 400);
        assert_eq!(answer.text(), TOO_LONG);
        drop(call);
        let exchange = play.server.next_exchange().await;
        play.server.expect_no_exchange();
        assert_eq!(exchange.done.overflow.map(|overflow| overflow.saved), Some(false));
    }
}

/// With its reasoning put back it does not fit, and without it is refused: a client can make room, and cannot
/// bring back what it does not have.
#[tokio::test]
async fn overflow_error_is_preferred_to_one_of_missing_reasoning() {
    const LACKS: &str = r#"{"type":"error","error":{"message":"thinking must be passed back"}}"#;
    let mut play = Play::of("/v1/messages", cuts_alone()).await;
    let mut talk = vec![message("user", json!("Look."))];
    let thinking = json!({"type": "thinking", "thinking": "Let me look.", "signature": "c2ln"});
    let call = json!({"type": "tool_use", "id": "toolu_01AbCdEfGh12", "name": "Read", "input": {}});
    let reply = anthropic_reply("m1", MODEL, json!([thinking, call]));
    play.exchange(&anthropic_request(MODEL, &talk), &reply).await;
    talk.push(message("assistant", json!([call])));
    let result = json!({"type": "tool_result", "tool_use_id": call["id"], "content": "Deep."});
    talk.push(message("user", json!([result])));
    let request = anthropic_request(MODEL, &talk);
    let mut client = play.send_request(&request).await;
    let mut call = play.provider.call().await;
    assert!(call.message.text().contains("Let me look."), "{}", call.message.text());
    call.answer("400 Bad Request", TOO_LONG).await;
    let mut call = call.wire.request().await;
    assert_eq!(call.message.text(), request.to_string());
    call.answer("400 Bad Request", LACKS).await;
    let answer = client.response().await;
    assert_eq!(answer.status(), 400);
    assert_eq!(answer.text(), TOO_LONG);
    assert!(!play.server.next_exchange().await.suspends_branch());
}
