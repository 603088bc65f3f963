//! A streamed answer, put together as the dialect's own clients do it.

use scripted_provider::strict::Dialect;
use serde_json::{Value, json};

/// The whole answer that a stream delivers in parts.
pub fn assemble(dialect: Dialect, stream: &str) -> Value {
    assemble_choice(dialect, stream, None)
}

/// The same, of one choice or candidate alone if it is named.
pub fn assemble_choice(dialect: Dialect, stream: &str, choice: Option<usize>) -> Value {
    let data = stream.lines().filter_map(|line| line.strip_prefix("data:"));
    let events = data.filter_map(|data| serde_json::from_str::<Value>(data.trim()).ok());
    let events = events.filter(|event| {
        let one = event.get("choices").or(event.get("candidates"));
        choice.is_none_or(|choice| one.is_none_or(|one| one[0]["index"] == choice))
    });
    match dialect {
        Dialect::Anthropic => events.fold(json!({"content": []}), anthropic),
        Dialect::Chat => {
            events.fold(json!({"choices": [{"message": {"role": "assistant"}}]}), chat)
        }
        Dialect::Responses => events.fold(json!({"output": []}), responses),
        Dialect::Gemini => events.fold(json!({"candidates": [{"content": {"parts": []}}]}), gemini),
    }
}

fn anthropic(mut answer: Value, event: Value) -> Value {
    let blocks = answer["content"].as_array_mut().unwrap();
    match event["type"].as_str() {
        Some("content_block_start") => {
            let mut block = event["content_block"].clone();
            if block["type"] == "tool_use" {
                block["input"] = json!("");
            }
            blocks.push(block);
        }
        Some("content_block_delta") => {
            let block = &mut blocks[event["index"].as_u64().unwrap() as usize];
            let delta = &event["delta"];
            for (from, to) in [
                ("text", "text"),
                ("thinking", "thinking"),
                ("signature", "signature"),
                ("partial_json", "input"),
            ] {
                if delta[from].is_string() {
                    append(&mut block[to], &delta[from]);
                }
            }
        }
        Some("content_block_stop") => {
            let block = &mut blocks[event["index"].as_u64().unwrap() as usize];
            if let Some(input) = block["input"].as_str() {
                let input = if input.is_empty() { "{}" } else { input };
                block["input"] = serde_json::from_str(input).unwrap();
            }
        }
        _ => {}
    }
    answer
}

fn chat(mut answer: Value, event: Value) -> Value {
    let message = &mut answer["choices"][0]["message"];
    let delta = &event["choices"][0]["delta"];
    for field in ["content", "reasoning_content", "reasoning"] {
        if delta[field].is_string() {
            append(&mut message[field], &delta[field]);
        }
    }
    for detail in delta["reasoning_details"].as_array().into_iter().flatten() {
        push(&mut message["reasoning_details"], detail.clone());
    }
    for piece in delta["tool_calls"].as_array().into_iter().flatten() {
        let index = piece["index"].as_u64().unwrap_or(0) as usize;
        let known = message["tool_calls"].as_array().map_or(0, Vec::len);
        if index >= known {
            let mut call = piece.clone();
            call.as_object_mut().unwrap().remove("index");
            push(&mut message["tool_calls"], call);
        } else {
            let call = &mut message["tool_calls"][index];
            append(&mut call["function"]["arguments"], &piece["function"]["arguments"]);
        }
    }
    if message["content"].is_null() {
        message["content"] = Value::Null;
    }
    answer
}

/// Its items one by one. What the end lists counts only if nothing came before it.
fn responses(mut answer: Value, mut event: Value) -> Value {
    match event["type"].as_str() {
        Some("response.completed") => {
            let mut whole = event["response"].take();
            if answer["output"] != json!([]) {
                whole["output"] = answer["output"].take();
            }
            whole
        }
        Some("response.output_item.done") => {
            push(&mut answer["output"], event["item"].take());
            answer
        }
        _ => answer,
    }
}

fn gemini(mut answer: Value, event: Value) -> Value {
    let parts = event["candidates"][0]["content"]["parts"].as_array().cloned().unwrap_or_default();
    let all = answer["candidates"][0]["content"]["parts"].as_array_mut().unwrap();
    for part in parts {
        let plain = |part: &Value| part["text"].is_string() && part["thoughtSignature"].is_null();
        match all.last_mut() {
            Some(last) if plain(last) && plain(&part) && last["thought"] == part["thought"] => {
                append(&mut last["text"], &part["text"]);
            }
            _ => all.push(part),
        }
    }
    answer
}

fn append(to: &mut Value, more: &Value) {
    let Some(more) = more.as_str() else { return };
    let text = to.as_str().unwrap_or_default().to_owned() + more;
    *to = json!(text);
}

fn push(to: &mut Value, item: Value) {
    if !to.is_array() {
        *to = json!([]);
    }
    to.as_array_mut().unwrap().push(item);
}
