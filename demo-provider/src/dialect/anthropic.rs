//! Anthropic Messages in the scripted provider (`docs/protocols.md` 1).
//!
//! A signature holds the tokens of its thinking, so that a block costs as input what it cost as
//! output. Newer models keep thinking in all turns, older ones do not.

use serde_json::{Value, json};

use super::{Event, content_text, deltas, items, signature, signature_tokens, text};
use crate::script::{ModelReply, ModelRequest, TokenizerFn};

pub(crate) fn parse_request(tokenizer: TokenizerFn, body: &Value) -> ModelRequest {
    let thinking = &body["thinking"]["type"];
    let mut request = ModelRequest {
        model: text(&body["model"]).to_owned(),
        stream: body["stream"] == true,
        thinks: thinking == "enabled" || thinking == "adaptive",
        has_cache_markers: body.to_string().contains("\"cache_control\""),
        max_output: body["max_tokens"].as_u64(),
        output_schema: body["output_config"]["format"]["schema"]
            .as_object()
            .map(|schema| json!(schema)),
        ..ModelRequest::new(tokenizer)
    };
    for tool in items(&body["tools"]) {
        request.add_tool(text(&tool["name"]), &tool["input_schema"], &without_cache_marker(tool));
    }
    request.add_text(&content_text(&body["system"]), 4);
    let keeps_all = keeps_reasoning(&request.model);
    let last_user = items(&body["messages"]).rposition(is_user_turn).unwrap_or(0);
    for (at, message) in items(&body["messages"]).enumerate() {
        let listed = [json!({"type": "text", "text": message["content"]})];
        let blocks = message["content"].as_array().map_or(&listed[..], Vec::as_slice);
        for block in blocks {
            let read = message["role"] != "assistant" || keeps_all || at > last_user;
            read_block(&mut request, block, is_user_turn(message), read);
        }
    }
    request
}

fn read_block(request: &mut ModelRequest, block: &Value, user: bool, reasoning_counts: bool) {
    match text(&block["type"]) {
        "text" if user => request.add_user_text(&content_text(block)),
        "tool_result" => request.add_tool_result(&content_text(&block["content"]), 38),
        "tool_use" => {
            request.add_call(text(&block["name"]), &block["input"].to_string(), text(&block["id"]));
        }
        "thinking" if reasoning_counts => {
            let tokens = signature_tokens(text(&block["signature"])).unwrap_or(0);
            request.add_counted(text(&block["signature"]), tokens);
        }
        "thinking" | "redacted_thinking" => {}
        "image" => request.add_counted("image", 1334),
        _ => request.add_text(&content_text(block), 0),
    }
}

fn is_user_turn(message: &Value) -> bool {
    message["role"] == "user"
        && !items(&message["content"]).any(|block| block["type"] == "tool_result")
}

fn keeps_reasoning(model: &str) -> bool {
    !["sonnet-4-5", "haiku-4-5", "sonnet-4-2", "opus-4-1", "opus-4-2", "claude-3"]
        .iter()
        .any(|old| model.contains(old))
}

/// A tool's definition without its cache marker, which costs nothing.
fn without_cache_marker(tool: &Value) -> Value {
    let mut tool = tool.clone();
    if let Some(fields) = tool.as_object_mut() {
        fields.remove("cache_control");
    }
    tool
}

/// The reply as one body.
pub(crate) fn response_body(request: &ModelRequest, reply: &ModelReply) -> Value {
    json!({
        "id": format!("msg_{}", reply.id), "type": "message", "role": "assistant", "model": request.model,
        "content": blocks(reply), "stop_reason": stop_reason(reply), "stop_sequence": null, "usage": usage(reply),
    })
}

fn blocks(reply: &ModelReply) -> Vec<Value> {
    let mut blocks = Vec::new();
    if let Some(thinking) = &reply.reasoning {
        blocks.push(json!({"type": "thinking", "thinking": thinking, "signature": signature(reply.usage.reasoning, &reply.id)}));
    }
    if !reply.text.is_empty() {
        blocks.push(json!({"type": "text", "text": reply.text}));
    }
    if let Some(call) = &reply.call {
        blocks.push(json!({"type": "tool_use", "id": call.id.replace("call_", "toolu_"), "name": call.name, "input": call.arguments}));
    }
    blocks
}

fn stop_reason(reply: &ModelReply) -> &'static str {
    match reply {
        ModelReply { call: Some(_), .. } => "tool_use",
        ModelReply { truncated: true, .. } => "max_tokens",
        _ => "end_turn",
    }
}

fn usage(reply: &ModelReply) -> Value {
    let tokens = &reply.usage;
    let mut usage = json!({
        "input_tokens": tokens.input - tokens.cache_read - tokens.cache_write,
        "cache_creation_input_tokens": tokens.cache_write, "cache_read_input_tokens": tokens.cache_read,
        "cache_creation": {"ephemeral_5m_input_tokens": tokens.cache_write, "ephemeral_1h_input_tokens": 0},
        "output_tokens": tokens.output, "service_tier": "standard",
    });
    if tokens.reasoning > 0 {
        usage["output_tokens_details"] = json!({"thinking_tokens": tokens.reasoning});
    }
    usage
}

/// A body as events: usage begins with one token of output and ends as in the body.
pub fn stream_events(body: &Value) -> Vec<Event> {
    let mut message = body.clone();
    message["content"] = json!([]);
    message["stop_reason"] = Value::Null;
    message["usage"]["output_tokens"] = json!(1);
    for late in ["context_management", "stop_sequence"] {
        if message.get(late).is_some() {
            message[late] = Value::Null;
        }
    }
    if let Some(usage) = message["usage"].as_object_mut() {
        usage.remove("output_tokens_details");
    }
    let mut events =
        vec![Event::named("message_start", &json!({"type": "message_start", "message": message}))];
    for (index, block) in items(&body["content"]).enumerate() {
        block_events(&mut events, index, block);
        if index == 0 {
            events.push(Event::named("ping", &json!({"type": "ping"})));
        }
    }
    let usage = &body["usage"];
    let mut delta = json!({
        "type": "message_delta",
        "delta": {"stop_reason": body["stop_reason"], "stop_sequence": body["stop_sequence"]},
        "usage": {
            "input_tokens": usage["input_tokens"], "output_tokens": usage["output_tokens"],
            "cache_creation_input_tokens": usage["cache_creation_input_tokens"],
            "cache_read_input_tokens": usage["cache_read_input_tokens"],
            "output_tokens_details": usage["output_tokens_details"],
        },
    });
    if let Some(edits) = body.get("context_management") {
        delta["context_management"] = edits.clone();
    }
    events.push(Event::named("message_delta", &delta));
    events.push(Event::named("message_stop", &json!({"type": "message_stop"})));
    events
}

fn block_events(all: &mut Vec<Event>, index: usize, block: &Value) {
    let mut start = block.clone();
    let mut parts = Vec::new();
    match text(&block["type"]) {
        "thinking" => {
            (start["thinking"], start["signature"]) = (json!(""), json!(""));
            parts.extend(
                deltas(text(&block["thinking"]))
                    .iter()
                    .map(|part| json!({"type": "thinking_delta", "thinking": part})),
            );
            parts.push(json!({"type": "signature_delta", "signature": block["signature"]}));
        }
        "tool_use" => {
            start["input"] = json!({});
            parts.push(json!({"type": "input_json_delta", "partial_json": ""}));
            parts.extend(
                deltas(&block["input"].to_string())
                    .iter()
                    .map(|part| json!({"type": "input_json_delta", "partial_json": part})),
            );
        }
        "text" => {
            start["text"] = json!("");
            parts.extend(
                deltas(text(&block["text"]))
                    .iter()
                    .map(|part| json!({"type": "text_delta", "text": part})),
            );
        }
        // `redacted_thinking` and other blocks come at once.
        _ => {}
    }
    all.push(Event::named(
        "content_block_start",
        &json!({"type": "content_block_start", "index": index, "content_block": start}),
    ));
    for delta in parts {
        all.push(Event::named(
            "content_block_delta",
            &json!({"type": "content_block_delta", "index": index, "delta": delta}),
        ));
    }
    all.push(Event::named(
        "content_block_stop",
        &json!({"type": "content_block_stop", "index": index}),
    ));
}
