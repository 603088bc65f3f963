//! Anthropic Messages, as the scripted provider speaks it (`docs/protocols.md` 1).
//!
//! Thinking is signed, and its signature remembers what it cost, so that blocks sent back weigh
//! what they weighed when they were written. Newer models keep it in all turns, older ones do not.

use serde_json::{Value, json};

use super::{Event, deltas, items, seal, text, unseal, words};
use crate::script::{Answer, Ask, Tokenizer};

/// Reads a request.
pub(crate) fn ask(tokenizer: Tokenizer, body: &Value) -> Ask {
    let thinking = &body["thinking"]["type"];
    let mut ask = Ask {
        model: text(&body["model"]).to_owned(),
        stream: body["stream"] == true,
        think: thinking == "enabled" || thinking == "adaptive",
        marks_cache: body.to_string().contains("\"cache_control\""),
        max_output: body["max_tokens"].as_u64(),
        schema: body["output_config"]["format"]["schema"].as_object().map(|schema| json!(schema)),
        ..Ask::new(tokenizer)
    };
    for tool in items(&body["tools"]) {
        ask.offer(text(&tool["name"]), &tool["input_schema"], &unmarked(tool));
    }
    ask.read(&words(&body["system"]), 4);
    let keeps = keeps_reasoning(&ask.model);
    let turn = items(&body["messages"]).rposition(is_user_turn).unwrap_or(0);
    for (at, message) in items(&body["messages"]).enumerate() {
        let listed = [json!({"type": "text", "text": message["content"]})];
        let blocks = message["content"].as_array().map_or(&listed[..], Vec::as_slice);
        for block in blocks {
            let read = message["role"] != "assistant" || keeps || at > turn;
            read_block(&mut ask, block, is_user_turn(message), read);
        }
    }
    ask
}

fn read_block(ask: &mut Ask, block: &Value, user: bool, reasoning_counts: bool) {
    match text(&block["type"]) {
        "text" if user => ask.user(&words(block)),
        "tool_result" => ask.result(&words(&block["content"]), 38),
        "tool_use" => {
            let tokens = ask.count_call(text(&block["name"]), &block["input"].to_string());
            ask.read_counted(text(&block["id"]), tokens);
        }
        "thinking" if reasoning_counts => {
            let tokens = unseal(text(&block["signature"])).unwrap_or(0);
            ask.read_counted(text(&block["signature"]), tokens);
        }
        "thinking" | "redacted_thinking" => {}
        "image" => ask.read_counted("image", 1334),
        _ => ask.read(&words(block), 0),
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
fn unmarked(tool: &Value) -> Value {
    let mut tool = tool.clone();
    if let Some(fields) = tool.as_object_mut() {
        fields.remove("cache_control");
    }
    tool
}

/// The whole answer as one body.
pub(crate) fn whole(ask: &Ask, answer: &Answer) -> Value {
    json!({
        "id": format!("msg_{}", answer.id), "type": "message", "role": "assistant", "model": ask.model,
        "content": blocks(answer), "stop_reason": stop(answer), "stop_sequence": null, "usage": usage(answer),
    })
}

fn blocks(answer: &Answer) -> Vec<Value> {
    let mut blocks = Vec::new();
    if let Some(thinking) = &answer.reasoning {
        blocks.push(json!({"type": "thinking", "thinking": thinking, "signature": seal(answer.usage.reasoning, &answer.id)}));
    }
    if !answer.text.is_empty() {
        blocks.push(json!({"type": "text", "text": answer.text}));
    }
    if let Some(call) = &answer.call {
        blocks.push(json!({"type": "tool_use", "id": call.id.replace("call_", "toolu_"), "name": call.name, "input": call.arguments}));
    }
    blocks
}

fn stop(answer: &Answer) -> &'static str {
    match answer {
        Answer { call: Some(_), .. } => "tool_use",
        Answer { truncated: true, .. } => "max_tokens",
        _ => "end_turn",
    }
}

fn usage(answer: &Answer) -> Value {
    let spent = &answer.usage;
    let mut usage = json!({
        "input_tokens": spent.input - spent.cache_read - spent.cache_write,
        "cache_creation_input_tokens": spent.cache_write, "cache_read_input_tokens": spent.cache_read,
        "cache_creation": {"ephemeral_5m_input_tokens": spent.cache_write, "ephemeral_1h_input_tokens": 0},
        "output_tokens": spent.output, "service_tier": "standard",
    });
    if spent.reasoning > 0 {
        usage["output_tokens_details"] = json!({"thinking_tokens": spent.reasoning});
    }
    usage
}

/// A whole answer as events: usage begins with one token of output and ends as in the answer.
pub(crate) fn stream(whole: &Value) -> Vec<Event> {
    let mut message = whole.clone();
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
    let mut all =
        vec![Event::named("message_start", &json!({"type": "message_start", "message": message}))];
    for (index, block) in items(&whole["content"]).enumerate() {
        block_events(&mut all, index, block);
        if index == 0 {
            all.push(Event::named("ping", &json!({"type": "ping"})));
        }
    }
    let usage = &whole["usage"];
    let mut delta = json!({
        "type": "message_delta",
        "delta": {"stop_reason": whole["stop_reason"], "stop_sequence": whole["stop_sequence"]},
        "usage": {
            "input_tokens": usage["input_tokens"], "output_tokens": usage["output_tokens"],
            "cache_creation_input_tokens": usage["cache_creation_input_tokens"],
            "cache_read_input_tokens": usage["cache_read_input_tokens"],
            "output_tokens_details": usage["output_tokens_details"],
        },
    });
    if let Some(edits) = whole.get("context_management") {
        delta["context_management"] = edits.clone();
    }
    all.push(Event::named("message_delta", &delta));
    all.push(Event::named("message_stop", &json!({"type": "message_stop"})));
    all
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
        // `redacted_thinking` and what else comes whole.
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
