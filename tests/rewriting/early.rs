//! An overflow that is reported inside an accepted response. If the client has seen nothing yet, room is made;
//! otherwise the error is forwarded.

use plimsoll::context::overflow::OverflowSign;
use plimsoll::context::policy::{Policy, SummaryEngine};
use serde_json::{Value, json};

use crate::play::{Play, anthropic_reply, anthropic_request};
use crate::pruned::history;
use crate::support::http1::{Call, Wire};

const MODEL: &str = "claude-sonnet-4-5";
const CLEARED: &str = "[Old tool result content cleared]";
const BEGINS: &str = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\
    \"role\":\"assistant\",\"content\":[],\"usage\":{\"input_tokens\":9}}}\n\n";
const SAYS: &str = "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\
    \"content_block\":{\"type\":\"text\",\"text\":\"So\"}}\n\n";
const TOO_LONG: &str = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\",\
    \"message\":\"prompt is too long: 2600 tokens > 2000 maximum\"}}\n\n";

/// A play in which the model's window is configured, nothing is cut before an overflow, and no summary is written.
async fn play(target: &'static str, window: u64) -> Play {
    let mut policy = Policy::default();
    policy.prune.gate = Vec::new();
    policy.compact.engine = SummaryEngine::Off;
    let mut play = Play::of(target, policy).await;
    play.config.upstreams[0].window = Some(window);
    play.restart().await;
    play
}

/// The same history in Chat Completions.
fn chat() -> Value {
    let mut messages = vec![json!({"role": "user", "content": "Read them."})];
    for number in 0..8 {
        let id = format!("call_{number}");
        let function = json!({"name": "Read", "arguments": "{}"});
        let call = json!([{"id": id, "type": "function", "function": function}]);
        messages.push(json!({"role": "assistant", "content": null, "tool_calls": call}));
        let text = format!("Line {number} of the log. ").repeat(60);
        messages.push(json!({"role": "tool", "tool_call_id": id, "content": text}));
    }
    json!({"model": "some-model", "messages": messages, "stream": true,
        "stream_options": {"include_usage": true}})
}

fn responses() -> Value {
    let mut input = vec![json!({"role": "user", "content": "Read them."})];
    for number in 0..8 {
        let id = format!("call_{number}");
        let call =
            json!({"type": "function_call", "call_id": id, "name": "Read", "arguments": "{}"});
        let text = format!("Line {number} of the log. ").repeat(60);
        let result = json!({"type": "function_call_output", "call_id": id, "output": text});
        input.extend([call, result]);
    }
    json!({"model": "some-model", "input": input, "stream": true})
}

fn stream() -> Value {
    let mut request = anthropic_request(MODEL, &history(8));
    request["stream"] = json!(true);
    request
}

/// The response that the client got, to its end.
async fn response_text(client: &mut Wire) -> String {
    client.response().await.text().to_owned()
}

/// The next request, on the same connection or on another.
async fn next_call(play: &Play, call: Call) -> Call {
    tokio::select! {
        call = play.provider.call() => call,
        call = call.wire.request() => call,
    }
}

/// The first response is dropped, and the client sees only the second.
async fn mended(target: &'static str, request: Value, first: &str, second: &str) {
    let mut play = play(target, 3000).await;
    let mut client = play.send_request(&request).await;
    let mut call = play.provider.call().await;
    assert_eq!(call.message.text(), request.to_string());
    call.begin_events().await;
    call.chunk(first).await;
    call.end().await;
    let mut call = next_call(&play, call).await;
    assert!(call.message.text().matches(CLEARED).count() >= 4, "{}", call.message.text());
    call.begin_events().await;
    call.chunk(second).await;
    call.end().await;
    assert_eq!(response_text(&mut client).await, second);
    let exchange = play.server.next_exchange().await;
    play.server.expect_no_exchange();
    let overflow = exchange.done.overflow.unwrap();
    assert_eq!(overflow.sign, OverflowSign::InReply);
    assert!(overflow.saved);
}

#[tokio::test]
async fn overflow_before_any_text_is_resent_with_room() {
    let ends = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
    let says = [BEGINS, SAYS, ends].concat();
    mended("/v1/messages", stream(), &[BEGINS, TOO_LONG].concat(), &says).await;
    mended("/v1/messages", stream(), &[": wait\n\n", TOO_LONG].concat(), &says).await;
}

#[tokio::test]
async fn overflow_before_any_text_is_resent_in_other_dialects_too() {
    let chunk = |delta: Value| {
        let choice = json!({"index": 0, "delta": delta, "finish_reason": null});
        format!("data: {}\n\n", json!({"id": "c", "choices": [choice]}))
    };
    let says =
        [&*chunk(json!({"role": "assistant", "content": "So"})), "data: [DONE]\n\n"].concat();
    let error = json!({"error": {"code": 400, "type": "exceed_context_size_error",
        "message": "request (4831 tokens) exceeds the available context size (2048 tokens)"}});
    mended("/v1/chat/completions", chat(), &format!("data: {error}\n\n"), &says).await;
    // The end of a stream of llama.cpp behind gpustack.
    mended("/v1/chat/completions", chat(), &format!("error: {}\n\n", error["error"]), &says).await;

    let created = "event: response.created\ndata: {\"type\":\"response.created\",\"response\":\
        {\"id\":\"r\",\"status\":\"in_progress\",\"output\":[]}}\n\n";
    let failed = json!({"type": "response.failed", "response": {"id": "r", "status": "failed",
        "error": {"code": "context_length_exceeded", "message": "Your input exceeds the context \
        window of this model."}}});
    let failed = format!("{created}event: response.failed\ndata: {failed}\n\n");
    let says = json!({"type": "response.completed", "response": {"id": "r", "status": "completed",
        "output": [{"type": "message", "role": "assistant", "id": "m",
            "content": [{"type": "output_text", "text": "So"}]}]}});
    let says = format!("{created}event: response.completed\ndata: {says}\n\n");
    mended("/v1/responses", responses(), &failed, &says).await;
}

/// MiniMax responds with 200 and reports an error in `base_resp`.
#[tokio::test]
async fn overflow_inside_200_response_is_resent_with_room() {
    let mut play = play("/v1/chat/completions", 3000).await;
    let mut request = chat();
    request["stream"] = json!(false);
    let mut client = play.send_request(&request).await;
    let mut call = play.provider.call().await;
    let base = json!({"base_resp": {"status_code": 2013,
        "status_msg": "invalid params, context window exceeds limit (2013)"}});
    call.answer("200 OK", &base.to_string()).await;
    let mut call = next_call(&play, call).await;
    assert!(call.message.text().contains(CLEARED));
    let choice = json!({"index": 0, "finish_reason": "stop",
        "message": {"role": "assistant", "content": "So."}});
    let says =
        json!({"id": "c", "choices": [choice], "base_resp": {"status_code": 0, "status_msg": ""}});
    call.answer("200 OK", &says.to_string()).await;
    assert_eq!(client.response().await.text(), says.to_string());
    let overflow = play.server.next_exchange().await.done.overflow.unwrap();
    assert_eq!(overflow.sign, OverflowSign::InReply);
    assert!(overflow.saved);
}

/// Once the client has begun to read a response, the response is not replaced.
#[tokio::test]
async fn late_overflow_is_forwarded() {
    let mut play = play("/v1/messages", 3000).await;
    let mut client = play.send_request(&stream()).await;
    let mut call = play.provider.call().await;
    call.begin_events().await;
    let all = [BEGINS, SAYS, TOO_LONG].concat();
    call.chunk(&*all).await;
    call.end().await;
    assert_eq!(response_text(&mut client).await, all);
    let overflow = play.server.next_exchange().await.done.overflow.unwrap();
    assert_eq!(overflow.sign, OverflowSign::InReply);
    assert!(!overflow.saved);
}

/// The client gets the first response, byte for byte.
#[tokio::test]
async fn stream_that_overflows_twice_returns_first_response() {
    let mut play = play("/v1/messages", 3000).await;
    let mut client = play.send_request(&stream()).await;
    let mut call = play.provider.call().await;
    call.begin_events().await;
    call.chunk([BEGINS, TOO_LONG].concat()).await;
    call.end().await;
    let mut call = next_call(&play, call).await;
    call.begin_events().await;
    call.chunk(TOO_LONG).await;
    call.end().await;
    assert_eq!(response_text(&mut client).await, [BEGINS, TOO_LONG].concat());
    let exchange = play.server.next_exchange().await;
    play.server.expect_no_exchange();
    assert_eq!(exchange.done.overflow.map(|overflow| overflow.saved), Some(false));
}

/// If the text of a response is late, its beginning is not held back. Nor is that of a response to a request that
/// surely fits.
#[tokio::test]
async fn slow_answer_is_not_held_back() {
    for window in [3000, 200_000] {
        let mut play = play("/v1/messages", window).await;
        let mut client = play.send_request(&stream()).await;
        let mut call = play.provider.call().await;
        call.begin_events().await;
        call.chunk(BEGINS).await;
        assert!(client.until(BEGINS).await.starts_with(b"HTTP/1.1 200"), "nothing came");
        call.chunk(TOO_LONG).await;
        call.end().await;
        client.until(TOO_LONG).await;
        let overflow = play.server.next_exchange().await.done.overflow.unwrap();
        assert_eq!(overflow.sign, OverflowSign::InReply);
        assert!(!overflow.saved);
    }
}

/// A window that an error named is forgotten if the provider later reads more than that.
#[tokio::test]
async fn learned_window_that_proves_too_small_is_forgotten() {
    let mut play = play("/v1/messages", 200_000).await;
    let mut client = play.send_request(&anthropic_request(MODEL, &history(8))).await;
    let mut call = play.provider.call().await;
    let refused = "{\"type\":\"error\",\"error\":{\"message\":\"prompt is too long: 2600 tokens > 2000 maximum\"}}";
    call.answer("400 Bad Request", refused).await;
    let mut call = call.wire.request().await;
    let reply = |input: u64| {
        let mut reply = anthropic_reply("m1", MODEL, json!([{"type": "text", "text": "So."}]));
        reply["usage"] = json!({"input_tokens": input, "output_tokens": 50});
        reply
    };
    call.answer("200 OK", &reply(1900).to_string()).await;
    client.response().await;
    drop(call);
    play.server.next_exchange().await;
    let request = anthropic_request(MODEL, &history(8));
    for (input, window) in [(1950, 2000), (1951, 2000), (9000, 200_000), (9000, 200_000)] {
        let scene = play.exchange(&request, &reply(input)).await;
        assert_eq!(scene.exchange.window, Some(window), "{input}");
    }
    play.restart().await;
    assert_eq!(play.exchange(&request, &reply(10)).await.exchange.window, Some(200_000));
}
