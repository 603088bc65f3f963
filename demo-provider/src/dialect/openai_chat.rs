//! OpenAI Chat Completions in the scripted provider (`docs/protocols.md` 2, 4).
//!
//! Reasoning, if requested, is `reasoning_content` as with the look-alikes; it counts as input only if
//! the client sends it back.

use serde_json::{Value, json};

use super::{Event, content_text, deltas, items, text};
use crate::script::{ModelReply, ModelRequest, TokenizerFn};

pub(crate) fn parse_request(tokenizer: TokenizerFn, body: &Value) -> ModelRequest {
    let model = text(&body["model"]).to_owned();
    let reasons = ["deepseek", "kimi", "glm", "reason"].iter().any(|family| model.contains(family));
    let mut request = ModelRequest {
        thinks: reasons || body["reasoning_effort"].is_string(),
        model,
        stream: body["stream"] == true,
        max_output: body["max_completion_tokens"].as_u64().or_else(|| body["max_tokens"].as_u64()),
        output_schema: body["response_format"]["json_schema"]["schema"]
            .as_object()
            .map(|schema| json!(schema)),
        ..ModelRequest::new(tokenizer)
    };
    for tool in items(&body["tools"]) {
        request.add_tool(text(&tool["function"]["name"]), &tool["function"]["parameters"], tool);
    }
    for message in items(&body["messages"]) {
        let content = content_text(&message["content"]);
        match text(&message["role"]) {
            "user" => request.add_user_text(&content),
            "tool" => request.add_tool_result(&content, 6),
            "assistant" => {
                request.add_text(&content, 0);
                request.add_text(text(&message["reasoning_content"]), 0);
                for call in items(&message["tool_calls"]) {
                    let function = &call["function"];
                    request.add_call(
                        text(&function["name"]),
                        text(&function["arguments"]),
                        text(&call["id"]),
                    );
                }
            }
            _ => request.add_text(&content, 4),
        }
    }
    request
}

/// The reply as one body.
pub(crate) fn response_body(request: &ModelRequest, reply: &ModelReply) -> Value {
    let mut message = json!({"role": "assistant", "content": reply.text, "refusal": null});
    if let Some(reasoning) = &reply.reasoning {
        message["reasoning_content"] = json!(reasoning);
    }
    if let Some(call) = &reply.call {
        message["tool_calls"] = json!([{
            "id": call.id, "type": "function",
            "function": {"name": call.name, "arguments": call.arguments.to_string()},
        }]);
    }
    json!({
        "id": format!("chatcmpl-{}", reply.id), "object": "chat.completion", "created": CREATED, "model": request.model,
        "choices": [{"index": 0, "message": message, "logprobs": null, "finish_reason": finish_reason(reply)}],
        "usage": usage(reply),
    })
}

/// A fixed time, so that replies are the same every time.
const CREATED: u64 = 1_795_000_000;

fn finish_reason(reply: &ModelReply) -> &'static str {
    match reply {
        ModelReply { call: Some(_), .. } => "tool_calls",
        ModelReply { truncated: true, .. } => "length",
        _ => "stop",
    }
}

fn usage(reply: &ModelReply) -> Value {
    let tokens = &reply.usage;
    json!({
        "prompt_tokens": tokens.input, "completion_tokens": tokens.output, "total_tokens": tokens.input + tokens.output,
        "prompt_tokens_details": {"cached_tokens": tokens.cache_read / 128 * 128, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": tokens.reasoning},
    })
}

/// A body as events. Usage is there only if it was requested.
pub fn stream_events(body: &Value, include_usage: bool) -> Vec<Event> {
    let chunk = |delta: Value, finish: &Value| {
        let mut chunk = json!({
            "id": body["id"], "object": "chat.completion.chunk", "created": body["created"],
            "model": body["model"],
            "choices": [{"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish}],
        });
        if include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    };
    let message = &body["choices"][0]["message"];
    let mut events = Vec::new();
    let mut push = |delta: Value| events.push(Event::data(&chunk(delta, &Value::Null)));
    push(json!({"role": "assistant", "content": ""}));
    for part in deltas(text(&message["reasoning_content"])) {
        push(json!({"reasoning_content": part}));
    }
    if message["reasoning_details"].is_array() {
        push(
            json!({"reasoning": message["reasoning"], "reasoning_details": message["reasoning_details"]}),
        );
    }
    for part in deltas(text(&message["content"])) {
        push(json!({"content": part}));
    }
    for (index, call) in items(&message["tool_calls"]).enumerate() {
        let mut head = call.clone();
        head["index"] = json!(index);
        head["function"]["arguments"] = json!("");
        push(json!({"tool_calls": [head]}));
        for part in deltas(text(&call["function"]["arguments"])) {
            let more = json!({"index": index, "function": {"arguments": part}});
            push(json!({"tool_calls": [more]}));
        }
    }
    events.push(Event::data(&chunk(json!({}), &body["choices"][0]["finish_reason"])));
    if include_usage {
        let mut usage_chunk = chunk(json!({}), &Value::Null);
        usage_chunk["choices"] = json!([]);
        usage_chunk["usage"] = body["usage"].clone();
        events.push(Event::data(&usage_chunk));
    }
    events.push(Event { name: None, data: "[DONE]".into() });
    events
}
