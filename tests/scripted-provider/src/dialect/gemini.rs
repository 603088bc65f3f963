//! Gemini `generateContent`, as the scripted provider speaks it (`docs/protocols.md` 5).
//!
//! Thoughts are not in `candidatesTokenCount`; the signature on a function call remembers what they
//! cost, and counts in the current turn when it comes back. Streams use CRLF, as the real one does.

use serde_json::{Value, json};

use super::{Event, deltas, items, seal, text, unseal, words};
use crate::script::{Answer, Ask, Tokenizer};

/// Reads a request; the model comes from the path.
pub(crate) fn ask(tokenizer: Tokenizer, model: &str, stream: bool, body: &Value) -> Ask {
    let config = &body["generationConfig"];
    let mut ask = Ask {
        model: model.to_owned(),
        stream,
        think: config["thinkingConfig"].is_object() || model.contains("gemini-3"),
        keeps_thoughts: config["thinkingConfig"]["includeThoughts"] != true,
        max_output: config["maxOutputTokens"].as_u64(),
        schema: ["responseJsonSchema", "responseSchema"]
            .iter()
            .find_map(|name| config[*name].as_object())
            .map(|schema| json!(schema)),
        ..Ask::new(tokenizer)
    };
    for tool in items(&body["tools"]).flat_map(|tool| items(&tool["functionDeclarations"])) {
        // The Python SDK writes this one field in snake case, as protocol buffers allow.
        let schema = ["parametersJsonSchema", "parameters_json_schema", "parameters"];
        let schema = schema.iter().find_map(|name| tool.get(name)).unwrap_or(&Value::Null);
        ask.offer(text(&tool["name"]), schema, tool);
    }
    ask.read(&words(&body["systemInstruction"]["parts"]), 4);
    let turn = items(&body["contents"]).rposition(is_user_turn).unwrap_or(0);
    for (at, content) in items(&body["contents"]).enumerate() {
        for part in items(&content["parts"]) {
            read_part(&mut ask, part, content["role"] != "model", at > turn);
        }
    }
    ask
}

fn read_part(ask: &mut Ask, part: &Value, user: bool, this_turn: bool) {
    if this_turn && let Some(tokens) = unseal(text(&part["thoughtSignature"])) {
        ask.read_counted(text(&part["thoughtSignature"]), tokens);
    }
    let (call, response) = (&part["functionCall"], &part["functionResponse"]);
    if part["thought"] == true {
        // Thought summaries that come back are not read.
    } else if call.is_object() {
        let tokens = ask.count_call(text(&call["name"]), &call["args"].to_string());
        ask.read_counted(&call.to_string(), tokens);
    } else if response.is_object() {
        ask.result(&response["response"].to_string(), 15);
    } else if user {
        ask.user(text(&part["text"]));
    } else {
        ask.read(text(&part["text"]), 0);
    }
}

fn is_user_turn(content: &Value) -> bool {
    content["role"] != "model" && items(&content["parts"]).any(|part| part["text"].is_string())
}

/// The whole answer as one body.
pub(crate) fn whole(ask: &Ask, answer: &Answer) -> Value {
    let spent = &answer.usage;
    let finish = if answer.truncated { "MAX_TOKENS" } else { "STOP" };
    let content = json!({"parts": parts(ask, answer), "role": "model"});
    let mut usage = json!({
        "promptTokenCount": spent.input, "totalTokenCount": spent.input + spent.output,
        "candidatesTokenCount": spent.output - spent.reasoning,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": spent.input}],
    });
    if spent.reasoning > 0 {
        usage["thoughtsTokenCount"] = json!(spent.reasoning);
    }
    if spent.cache_read > 0 {
        usage["cachedContentTokenCount"] = json!(spent.cache_read);
    }
    json!({
        "candidates": [{"content": content, "index": 0, "finishReason": finish}],
        "usageMetadata": usage, "modelVersion": ask.model, "responseId": answer.id,
    })
}

fn parts(ask: &Ask, answer: &Answer) -> Vec<Value> {
    let mut parts = Vec::new();
    if let Some(reasoning) = answer.reasoning.as_ref().filter(|_| !ask.keeps_thoughts) {
        parts.push(json!({"text": reasoning, "thought": true}));
    }
    if !answer.text.is_empty() {
        parts.push(json!({"text": answer.text}));
    }
    if let Some(call) = &answer.call {
        parts.push(json!({"functionCall": {"name": call.name, "args": call.arguments}}));
    }
    if let Some(last) = parts.last_mut().filter(|_| answer.reasoning.is_some()) {
        last["thoughtSignature"] = json!(seal(answer.usage.reasoning, &answer.id));
    }
    parts
}

/// A whole answer as events: text in pieces, each chunk with all usage.
pub(crate) fn stream(whole: &Value) -> Vec<Event> {
    let mut pieces = Vec::new();
    for part in items(&whole["candidates"][0]["content"]["parts"]) {
        let words = deltas(text(&part["text"]));
        if words.is_empty() {
            pieces.push(part.clone());
            continue;
        }
        let last = words.len() - 1;
        for (at, piece) in words.into_iter().enumerate() {
            let mut cut = part.clone();
            cut["text"] = json!(piece);
            if at < last
                && let Some(fields) = cut.as_object_mut()
            {
                fields.remove("thoughtSignature");
            }
            pieces.push(cut);
        }
    }
    if pieces.is_empty() {
        return vec![Event::data(whole)];
    }
    let last = pieces.len() - 1;
    let chunk = |(at, part): (usize, Value)| {
        let mut chunk = whole.clone();
        let candidate = &mut chunk["candidates"][0];
        candidate["content"]["parts"] = json!([part]);
        if at < last
            && let Some(fields) = candidate.as_object_mut()
        {
            fields.remove("finishReason");
        }
        Event::data(&chunk)
    };
    pieces.into_iter().enumerate().map(chunk).collect()
}
