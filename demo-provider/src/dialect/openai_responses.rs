//! OpenAI Responses in the scripted provider (`docs/protocols.md` 3).
//!
//! Reasoning is encrypted, and the encrypted text holds its tokens. Inside a tool loop it counts when it is
//! sent back, and at the next user turn it is dropped.

use serde_json::{Value, json};

use super::{Event, content_text, deltas, items, signature, signature_tokens, text};
use crate::script::{ModelReply, ModelRequest, TokenizerFn};

pub(crate) fn parse_request(tokenizer: TokenizerFn, body: &Value) -> ModelRequest {
    let mut request = ModelRequest {
        model: text(&body["model"]).to_owned(),
        stream: body["stream"] == true,
        thinks: body["reasoning"].is_object(),
        max_output: body["max_output_tokens"].as_u64(),
        output_schema: body["text"]["format"]["schema"].as_object().map(|schema| json!(schema)),
        ..ModelRequest::new(tokenizer)
    };
    for tool in
        items(&body["tools"]).chain(items(&body["input"]).flat_map(|item| items(&item["tools"])))
    {
        match text(&tool["type"]) {
            "function" => request.add_tool(text(&tool["name"]), &tool["parameters"], tool),
            _ => request.add_text(&tool.to_string(), 8),
        }
    }
    request.add_text(text(&body["instructions"]), 4);
    if let Some(input) = body["input"].as_str() {
        request.add_user_text(input);
    }
    let last_user = items(&body["input"]).rposition(|item| item["role"] == "user").unwrap_or(0);
    for (at, item) in items(&body["input"]).enumerate() {
        read_item(&mut request, item, at > last_user);
    }
    request
}

fn read_item(request: &mut ModelRequest, item: &Value, is_current_turn: bool) {
    match (text(&item["type"]), text(&item["role"])) {
        (_, "user") => request.add_user_text(&content_text(&item["content"])),
        (_, "assistant") => request.add_text(&content_text(&item["content"]), 0),
        ("message", _) => request.add_text(&content_text(&item["content"]), 4),
        ("function_call", _) => {
            request.add_call(text(&item["name"]), text(&item["arguments"]), text(&item["call_id"]));
        }
        ("function_call_output" | "custom_tool_call_output", _) => {
            request.add_tool_result(&content_text(&item["output"]), 10);
        }
        ("reasoning", _) if is_current_turn => {
            let encrypted = text(&item["encrypted_content"]);
            let tokens = signature_tokens(encrypted).map_or(0, |tokens| tokens + 2);
            request.add_counted(encrypted, tokens);
        }
        _ => {}
    }
}

/// The reply as one body.
pub(crate) fn response_body(request: &ModelRequest, reply: &ModelReply) -> Value {
    let status = if reply.truncated { "incomplete" } else { "completed" };
    let mut response = empty_response(request, reply, status);
    response["output"] = json!(output(reply));
    response["usage"] = usage(reply);
    if reply.truncated {
        response["incomplete_details"] = json!({"reason": "max_output_tokens"});
    }
    response
}

fn empty_response(request: &ModelRequest, reply: &ModelReply, status: &str) -> Value {
    json!({
        "id": format!("resp_{}", reply.id), "object": "response", "created_at": 1_795_000_000_u64, "status": status,
        "error": null, "incomplete_details": null, "instructions": null, "max_output_tokens": null, "model": request.model,
        "output": [], "parallel_tool_calls": true, "previous_response_id": null, "store": false, "temperature": 1.0,
        "tool_choice": "auto", "tools": [], "top_p": 1.0, "truncation": "disabled", "usage": null, "metadata": {},
    })
}

fn output(reply: &ModelReply) -> Vec<Value> {
    let mut items = Vec::new();
    if let Some(reasoning) = &reply.reasoning {
        items.push(json!({
            "id": format!("rs_{}", reply.id), "type": "reasoning",
            "summary": [{"type": "summary_text", "text": reasoning}],
            "encrypted_content": signature(reply.usage.reasoning, &reply.id),
        }));
    }
    if !reply.text.is_empty() {
        items.push(json!({
            "id": format!("msg_{}", reply.id), "type": "message", "status": "completed", "role": "assistant",
            "content": [{"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}],
        }));
    }
    if let Some(call) = &reply.call {
        items.push(json!({
            "id": format!("fc_{}", reply.id), "type": "function_call", "status": "completed", "call_id": call.id,
            "name": call.name, "arguments": call.arguments.to_string(),
        }));
    }
    items
}

fn usage(reply: &ModelReply) -> Value {
    let tokens = &reply.usage;
    json!({
        "input_tokens": tokens.input, "input_tokens_details": {"cached_tokens": tokens.cache_read / 128 * 128, "cache_write_tokens": 0},
        "output_tokens": tokens.output, "output_tokens_details": {"reasoning_tokens": tokens.reasoning},
        "total_tokens": tokens.input + tokens.output,
    })
}

/// A body as events.
pub fn stream_events(body: &Value) -> Vec<Event> {
    let mut started = body.clone();
    started["status"] = json!("in_progress");
    started["output"] = json!([]);
    (started["usage"], started["incomplete_details"]) = (Value::Null, Value::Null);
    let mut events = Vec::new();
    let mut push = |name: &'static str, mut data: Value| {
        data["type"] = json!(name);
        data["sequence_number"] = json!(events.len());
        events.push(Event::named(name, &data));
    };
    push("response.created", json!({"response": started}));
    push("response.in_progress", json!({"response": started}));
    for (index, item) in items(&body["output"]).enumerate() {
        item_events(&mut push, index, item);
    }
    let incomplete = body["status"] == "incomplete";
    let name = if incomplete { "response.incomplete" } else { "response.completed" };
    push(name, json!({"response": body}));
    events
}

fn item_events(push: &mut impl FnMut(&'static str, Value), index: usize, item: &Value) {
    let at = |more: Value| {
        let mut data = json!({"item_id": item["id"], "output_index": index});
        if let (Some(data), Value::Object(more)) = (data.as_object_mut(), more) {
            data.extend(more);
        }
        data
    };
    let mut started = item.clone();
    match text(&item["type"]) {
        "reasoning" => started["summary"] = json!([]),
        "message" => (started["content"], started["status"]) = (json!([]), json!("in_progress")),
        _ => (started["arguments"], started["status"]) = (json!(""), json!("in_progress")),
    }
    push("response.output_item.added", json!({"output_index": index, "item": started}));
    match text(&item["type"]) {
        "reasoning" => {
            for (n, summary) in items(&item["summary"]).enumerate() {
                push(
                    "response.reasoning_summary_part.added",
                    at(json!({"summary_index": n, "part": {"type": "summary_text", "text": ""}})),
                );
                for part in deltas(text(&summary["text"])) {
                    push(
                        "response.reasoning_summary_text.delta",
                        at(json!({"summary_index": n, "delta": part})),
                    );
                }
                push(
                    "response.reasoning_summary_text.done",
                    at(json!({"summary_index": n, "text": summary["text"]})),
                );
                push(
                    "response.reasoning_summary_part.done",
                    at(json!({"summary_index": n, "part": summary})),
                );
            }
        }
        "message" => {
            let content = &item["content"][0];
            let empty =
                json!({"type": "output_text", "text": "", "annotations": [], "logprobs": []});
            push("response.content_part.added", at(json!({"content_index": 0, "part": empty})));
            for part in deltas(text(&content["text"])) {
                push(
                    "response.output_text.delta",
                    at(json!({"content_index": 0, "delta": part, "logprobs": []})),
                );
            }
            push(
                "response.output_text.done",
                at(json!({"content_index": 0, "text": content["text"], "logprobs": []})),
            );
            push("response.content_part.done", at(json!({"content_index": 0, "part": content})));
        }
        _ => {
            for part in deltas(text(&item["arguments"])) {
                push("response.function_call_arguments.delta", at(json!({"delta": part})));
            }
            push(
                "response.function_call_arguments.done",
                at(json!({"name": item["name"], "arguments": item["arguments"]})),
            );
        }
    }
    push("response.output_item.done", json!({"output_index": index, "item": item}));
}
