//! The usage that clients get if something was cut: the provider's number, or that of the whole history; as one body
//! and streamed, compressed and plain, in every dialect.

use plimsoll::context::policy::{Policy, PruneGate, PrunePolicy, ReportedUsage};
use serde_json::{Value, json};

use crate::play::{Play, message};
use crate::support::coding::Encoder;

/// A dialect: the paths, a request, and the reply as one JSON value and as events.
struct ScriptedReply {
    target: &'static str,
    streamed: &'static str,
    request: Value,
    whole: &'static str,
    events: &'static str,
}

fn replies() -> [ScriptedReply; 4] {
    let old = "The log says much, and nothing of it matters now. ".repeat(80);
    let args = json!({"path": "log"});
    let anthropic = json!({"model": "claude-sonnet-4-5", "max_tokens": 1000, "messages": [
        message("user", json!("Read it.")),
        message("assistant", json!([{"type": "tool_use", "id": "toolu_1", "name": "Read", "input": args}])),
        message("user", json!([{"type": "tool_result", "tool_use_id": "toolu_1", "content": old}])),
        message("assistant", json!("I have.")), message("user", json!("And?"))]});
    let call = json!({"id": "call_1", "type": "function", "function": {"name": "Read", "arguments": "{}"}});
    let chat = json!({"model": "gpt-4.1", "stream_options": {"include_usage": true}, "messages": [
        message("user", json!("Read it.")),
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": old},
        message("assistant", json!("I have.")), message("user", json!("And?"))]});
    let responses = json!({"model": "gpt-4.1", "input": [
        message("user", json!("Read it.")),
        {"type": "function_call", "call_id": "call_1", "name": "Read", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": old},
        message("assistant", json!("I have.")), message("user", json!("And?"))]});
    let says = |role: &str, part: Value| json!({"role": role, "parts": [part]});
    let gemini = json!({"contents": [
        says("user", json!({"text": "Read it."})),
        says("model", json!({"functionCall": {"name": "Read", "args": args}})),
        says("user", json!({"functionResponse": {"name": "Read", "response": {"output": old}}})),
        says("model", json!({"text": "I have."})), says("user", json!({"text": "And?"}))]});
    [
        ScriptedReply {
            target: "/v1/messages",
            streamed: "/v1/messages",
            request: anthropic,
            whole: r#"{"id":"m","type":"message","role":"assistant","content":[{"type":"text","text":"So."}],"stop_reason":"end_turn","usage":{ "input_tokens": 1000, "cache_read_input_tokens":5,"output_tokens":3}}"#,
            events: "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"role\":\"assistant\",\"content\":[],\"usage\":{\"input_tokens\":1000,\"output_tokens\":1}}}\n\nevent: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"So.\"}}\n\nevent: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":3}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
        },
        ScriptedReply {
            target: "/v1/chat/completions",
            streamed: "/v1/chat/completions",
            request: chat,
            whole: r#"{"id":"c","choices":[{"index":0,"message":{"role":"assistant","content":"So."},"finish_reason":"stop"}],"usage":{"prompt_tokens":1000,"completion_tokens":3,"total_tokens":1003}}"#,
            events: "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"So.\"},\"finish_reason\":\"stop\"}],\"usage\":null}\n\ndata: {\"id\":\"c\",\"choices\":[],\"usage\":{\"prompt_tokens\":1000,\"completion_tokens\":3,\"total_tokens\":1003}}\n\ndata: [DONE]\n\n",
        },
        ScriptedReply {
            target: "/v1/responses",
            streamed: "/v1/responses",
            request: responses,
            whole: r#"{"id":"resp_1","object":"response","status":"completed","output":[],"usage":{"input_tokens":1000,"output_tokens":3,"total_tokens":1003}}"#,
            events: "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"resp_1\",\"usage\":null}}\n\nevent: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"resp_1\",\"status\":\"completed\",\"output\":[],\"usage\":{\"input_tokens\":1000,\"output_tokens\":3,\"total_tokens\":1003}}}\n\n",
        },
        ScriptedReply {
            target: "/v1beta/models/gemini-2.5-flash:generateContent",
            streamed: "/v1beta/models/gemini-2.5-flash:streamGenerateContent?alt=sse",
            request: gemini,
            whole: r#"{"candidates":[{"content":{"role":"model","parts":[{"text":"So."}]},"finishReason":"STOP"}],"usageMetadata":{"promptTokenCount":1000,"candidatesTokenCount":3,"totalTokenCount":1003}}"#,
            events: "data: {\"candidates\":[{\"content\":{\"role\":\"model\",\"parts\":[{\"text\":\"So.\"}]},\"finishReason\":\"STOP\"}],\"usageMetadata\":{\"promptTokenCount\":1000,\"candidatesTokenCount\":3,\"totalTokenCount\":1003}}\r\n\r\n",
        },
    ]
}

fn policy(reported: ReportedUsage) -> Policy {
    let prune = PrunePolicy {
        gate: vec![PruneGate::Always],
        protect_tokens: 0,
        protect_messages: 1,
        min_saving_tokens: 1,
        min_messages: 0,
        ..PrunePolicy::default()
    };
    Policy { prune, client_usage: reported, ..Policy::default() }
}

/// What the client gets, head and body, and how many tokens were cut.
async fn exchange(
    reported: ReportedUsage,
    reply: &ScriptedReply,
    streams: bool,
    coding: &str,
) -> (String, Vec<u8>, u64) {
    let target = if streams { reply.streamed } else { reply.target };
    let mut play = Play::of(target, policy(reported)).await;
    let mut request = reply.request.clone();
    if streams && !target.contains("gemini") {
        request["stream"] = json!(true);
    }
    let mut client = play.send_request(&request).await;
    let mut call = play.provider.call().await;
    let body_sent = if streams { reply.events } else { reply.whole };
    let kind = if streams { "text/event-stream" } else { "application/json" };
    let body = Encoder::whole(coding, body_sent.as_bytes());
    let encoding = match coding {
        "identity" => String::new(),
        coding => format!("content-encoding: {coding}\r\n"),
    };
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\n{encoding}content-length: {}\r\n\r\n",
        body.len()
    );
    call.send([head.as_bytes(), &body].concat()).await;
    let response = client.response().await;
    let event = play.server.next_exchange().await;
    assert_eq!(event.done.made.cut, 1, "{target}: {:?}", event.done);
    assert!(event.usage.input.is_some_and(|input| input == 1000 || input == 1005), "{target}");
    (response.head, response.body, event.done.tokens_removed)
}

#[tokio::test]
async fn unpruned_usage_reports_input_as_if_nothing_was_cut() {
    for reply in replies() {
        for (streams, coding) in
            [(false, "identity"), (true, "identity"), (false, "gzip"), (true, "br")]
        {
            let (head, body, cut) =
                exchange(ReportedUsage::Unpruned, &reply, streams, coding).await;
            assert!(cut > 500, "{cut}");
            let (input, total) = ((1000 + cut).to_string(), (1003 + cut).to_string());
            let body_sent = if streams { reply.events } else { reply.whole };
            let expected = body_sent.replace("1000", &input).replace("1003", &total);
            let what = format!("{} {streams} {coding}", reply.target);
            assert_eq!(String::from_utf8(body).unwrap(), expected, "{what}");
            assert!(!head.contains("content-encoding"), "{what}: it is not encoded: {head}");
        }
    }
}

#[tokio::test]
async fn by_default_reported_usage_is_forwarded_byte_for_byte() {
    for reply in replies() {
        for (streams, coding) in [(false, "gzip"), (true, "identity")] {
            let (_, body, _) = exchange(ReportedUsage::Actual, &reply, streams, coding).await;
            let body_sent = if streams { reply.events } else { reply.whole };
            assert_eq!(body, Encoder::whole(coding, body_sent.as_bytes()), "{}", reply.target);
        }
    }
}

/// If nothing was cut, nothing is added to the response, and it is neither held back nor decoded.
#[tokio::test]
async fn unpruned_usage_leaves_responses_unchanged_if_nothing_was_cut() {
    let reply = &replies()[0];
    let mut play = Play::of(reply.target, policy(ReportedUsage::Unpruned)).await;
    let request = json!({"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": [message("user", json!("Hi"))]});
    let mut client = play.send_request(&request).await;
    let mut call = play.provider.call().await;
    let body = Encoder::whole("gzip", reply.whole.as_bytes());
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: gzip\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    call.send([head.as_bytes(), &body].concat()).await;
    assert_eq!(client.response().await.body, body);
    play.server.next_exchange().await;
}
