//! OpenAI Responses, as the scripted provider speaks it (`docs/protocols.md` 3).
//!
//! Reasoning is encrypted; its seal remembers what it cost. Inside a tool loop it counts when it is
//! sent back, and at the next user turn it is dropped.

use serde_json::{Value, json};

use super::{Event, deltas, items, seal, text, unseal, words};
use crate::script::{Answer, Ask, Tokenizer};

/// Reads a request.
pub(crate) fn ask(tokenizer: Tokenizer, body: &Value) -> Ask {
    let mut ask = Ask {
        model: text(&body["model"]).to_owned(),
        stream: body["stream"] == true,
        think: body["reasoning"].is_object(),
        max_output: body["max_output_tokens"].as_u64(),
        schema: body["text"]["format"]["schema"].as_object().map(|schema| json!(schema)),
        ..Ask::new(tokenizer)
    };
    for tool in
        items(&body["tools"]).chain(items(&body["input"]).flat_map(|item| items(&item["tools"])))
    {
        match text(&tool["type"]) {
            "function" => ask.offer(text(&tool["name"]), &tool["parameters"], tool),
            _ => ask.read(&tool.to_string(), 8),
        }
    }
    ask.read(text(&body["instructions"]), 4);
    if let Some(said) = body["input"].as_str() {
        ask.user(said);
    }
    let turn = items(&body["input"]).rposition(|item| item["role"] == "user").unwrap_or(0);
    for (at, item) in items(&body["input"]).enumerate() {
        read_item(&mut ask, item, at > turn);
    }
    ask
}

fn read_item(ask: &mut Ask, item: &Value, this_turn: bool) {
    match (text(&item["type"]), text(&item["role"])) {
        (_, "user") => ask.user(&words(&item["content"])),
        (_, "assistant") => ask.read(&words(&item["content"]), 0),
        ("message", _) => ask.read(&words(&item["content"]), 4),
        ("function_call", _) => {
            let tokens = ask.count_call(text(&item["name"]), text(&item["arguments"]));
            ask.read_counted(text(&item["call_id"]), tokens);
        }
        ("function_call_output" | "custom_tool_call_output", _) => {
            ask.result(&words(&item["output"]), 10);
        }
        ("reasoning", _) if this_turn => {
            let sealed = text(&item["encrypted_content"]);
            let tokens = unseal(sealed).map_or(0, |tokens| tokens + 2);
            ask.read_counted(sealed, tokens);
        }
        _ => {}
    }
}

/// The whole answer as one body.
pub(crate) fn whole(ask: &Ask, answer: &Answer) -> Value {
    let status = if answer.truncated { "incomplete" } else { "completed" };
    let mut response = shell(ask, answer, status);
    response["output"] = json!(output(answer));
    response["usage"] = usage(answer);
    if answer.truncated {
        response["incomplete_details"] = json!({"reason": "max_output_tokens"});
    }
    response
}

fn shell(ask: &Ask, answer: &Answer, status: &str) -> Value {
    json!({
        "id": format!("resp_{}", answer.id), "object": "response", "created_at": 1_795_000_000_u64, "status": status,
        "error": null, "incomplete_details": null, "instructions": null, "max_output_tokens": null, "model": ask.model,
        "output": [], "parallel_tool_calls": true, "previous_response_id": null, "store": false, "temperature": 1.0,
        "tool_choice": "auto", "tools": [], "top_p": 1.0, "truncation": "disabled", "usage": null, "metadata": {},
    })
}

fn output(answer: &Answer) -> Vec<Value> {
    let mut items = Vec::new();
    if let Some(reasoning) = &answer.reasoning {
        items.push(json!({
            "id": format!("rs_{}", answer.id), "type": "reasoning",
            "summary": [{"type": "summary_text", "text": reasoning}],
            "encrypted_content": seal(answer.usage.reasoning, &answer.id),
        }));
    }
    if !answer.text.is_empty() {
        items.push(json!({
            "id": format!("msg_{}", answer.id), "type": "message", "status": "completed", "role": "assistant",
            "content": [{"type": "output_text", "text": answer.text, "annotations": [], "logprobs": []}],
        }));
    }
    if let Some(call) = &answer.call {
        items.push(json!({
            "id": format!("fc_{}", answer.id), "type": "function_call", "status": "completed", "call_id": call.id,
            "name": call.name, "arguments": call.arguments.to_string(),
        }));
    }
    items
}

fn usage(answer: &Answer) -> Value {
    let spent = &answer.usage;
    json!({
        "input_tokens": spent.input, "input_tokens_details": {"cached_tokens": spent.cache_read / 128 * 128, "cache_write_tokens": 0},
        "output_tokens": spent.output, "output_tokens_details": {"reasoning_tokens": spent.reasoning},
        "total_tokens": spent.input + spent.output,
    })
}

/// A whole answer as events.
pub(crate) fn stream(whole: &Value) -> Vec<Event> {
    let mut begun = whole.clone();
    begun["status"] = json!("in_progress");
    begun["output"] = json!([]);
    (begun["usage"], begun["incomplete_details"]) = (Value::Null, Value::Null);
    let mut all = Vec::new();
    let mut push = |name: &'static str, mut data: Value| {
        data["type"] = json!(name);
        data["sequence_number"] = json!(all.len());
        all.push(Event::named(name, &data));
    };
    push("response.created", json!({"response": begun}));
    push("response.in_progress", json!({"response": begun}));
    for (index, item) in items(&whole["output"]).enumerate() {
        item_events(&mut push, index, item);
    }
    let incomplete = whole["status"] == "incomplete";
    let last = if incomplete { "response.incomplete" } else { "response.completed" };
    push(last, json!({"response": whole}));
    all
}

fn item_events(push: &mut impl FnMut(&'static str, Value), index: usize, item: &Value) {
    let at = |more: Value| {
        let mut data = json!({"item_id": item["id"], "output_index": index});
        if let (Some(data), Value::Object(more)) = (data.as_object_mut(), more) {
            data.extend(more);
        }
        data
    };
    let mut begun = item.clone();
    match text(&item["type"]) {
        "reasoning" => begun["summary"] = json!([]),
        "message" => (begun["content"], begun["status"]) = (json!([]), json!("in_progress")),
        _ => (begun["arguments"], begun["status"]) = (json!(""), json!("in_progress")),
    }
    push("response.output_item.added", json!({"output_index": index, "item": begun}));
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
