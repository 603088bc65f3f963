//! OpenAI Chat Completions, as the scripted provider speaks it (`docs/protocols.md` 2, 4).
//!
//! Reasoning, where asked for, is `reasoning_content` as the look-alikes have it; it counts as
//! input only where the client sends it back.

use serde_json::{Value, json};

use super::{Event, deltas, items, text, words};
use crate::script::{Answer, Ask, Tokenizer};

/// Reads a request.
pub(crate) fn ask(tokenizer: Tokenizer, body: &Value) -> Ask {
    let model = text(&body["model"]).to_owned();
    let thinks = ["deepseek", "kimi", "glm", "reason"].iter().any(|family| model.contains(family));
    let mut ask = Ask {
        think: thinks || body["reasoning_effort"].is_string(),
        model,
        stream: body["stream"] == true,
        max_output: body["max_completion_tokens"].as_u64().or_else(|| body["max_tokens"].as_u64()),
        schema: body["response_format"]["json_schema"]["schema"]
            .as_object()
            .map(|schema| json!(schema)),
        ..Ask::new(tokenizer)
    };
    for tool in items(&body["tools"]) {
        ask.offer(text(&tool["function"]["name"]), &tool["function"]["parameters"], tool);
    }
    for message in items(&body["messages"]) {
        let content = words(&message["content"]);
        match text(&message["role"]) {
            "user" => ask.user(&content),
            "tool" => ask.result(&content, 6),
            "assistant" => {
                ask.read(&content, 0);
                ask.read(text(&message["reasoning_content"]), 0);
                for call in items(&message["tool_calls"]) {
                    let function = &call["function"];
                    let tokens =
                        ask.count_call(text(&function["name"]), text(&function["arguments"]));
                    ask.read_counted(text(&call["id"]), tokens);
                }
            }
            _ => ask.read(&content, 4),
        }
    }
    ask
}

/// The whole answer as one body.
pub(crate) fn whole(ask: &Ask, answer: &Answer) -> Value {
    let mut message = json!({"role": "assistant", "content": answer.text, "refusal": null});
    if let Some(reasoning) = &answer.reasoning {
        message["reasoning_content"] = json!(reasoning);
    }
    if let Some(call) = &answer.call {
        message["tool_calls"] = json!([{
            "id": call.id, "type": "function",
            "function": {"name": call.name, "arguments": call.arguments.to_string()},
        }]);
    }
    json!({
        "id": format!("chatcmpl-{}", answer.id), "object": "chat.completion", "created": CREATED, "model": ask.model,
        "choices": [{"index": 0, "message": message, "logprobs": null, "finish_reason": finish(answer)}],
        "usage": usage(answer),
    })
}

/// When everything here was made: one fixed second, so that answers are the same every time.
const CREATED: u64 = 1_795_000_000;

fn finish(answer: &Answer) -> &'static str {
    match answer {
        Answer { call: Some(_), .. } => "tool_calls",
        Answer { truncated: true, .. } => "length",
        _ => "stop",
    }
}

fn usage(answer: &Answer) -> Value {
    let spent = &answer.usage;
    json!({
        "prompt_tokens": spent.input, "completion_tokens": spent.output, "total_tokens": spent.input + spent.output,
        "prompt_tokens_details": {"cached_tokens": spent.cache_read / 128 * 128, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": spent.reasoning},
    })
}

/// A whole answer as events. Usage comes only where it was asked for.
pub(crate) fn stream(whole: &Value, include_usage: bool) -> Vec<Event> {
    let chunk = |delta: Value, finish: &Value| {
        let mut chunk = json!({
            "id": whole["id"], "object": "chat.completion.chunk", "created": whole["created"],
            "model": whole["model"],
            "choices": [{"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish}],
        });
        if include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    };
    let message = &whole["choices"][0]["message"];
    let mut all = Vec::new();
    let mut push = |delta: Value| all.push(Event::data(&chunk(delta, &Value::Null)));
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
    all.push(Event::data(&chunk(json!({}), &whole["choices"][0]["finish_reason"])));
    if include_usage {
        let mut last = chunk(json!({}), &Value::Null);
        last["choices"] = json!([]);
        last["usage"] = whole["usage"].clone();
        all.push(Event::data(&last));
    }
    all.push(Event { name: None, data: "[DONE]".into() });
    all
}
