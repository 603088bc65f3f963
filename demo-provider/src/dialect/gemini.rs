//! Gemini `generateContent` in the scripted provider (`docs/protocols.md` 5).
//!
//! Thoughts are not in `candidatesTokenCount`; the signature on a function call holds their tokens,
//! and counts in the current turn when it comes back. Streams use CRLF, as the real one does.

use serde_json::{Value, json};

use super::{Event, content_text, deltas, items, signature, signature_tokens, text};
use crate::script::{ModelReply, ModelRequest, TokenizerFn};

/// The model and whether it streams come from the path.
pub(crate) fn parse_request(
    tokenizer: TokenizerFn,
    model: &str,
    stream: bool,
    body: &Value,
) -> ModelRequest {
    let config = &body["generationConfig"];
    let mut request = ModelRequest {
        model: model.to_owned(),
        stream,
        thinks: config["thinkingConfig"].is_object() || model.contains("gemini-3"),
        hides_reasoning: config["thinkingConfig"]["includeThoughts"] != true,
        max_output: config["maxOutputTokens"].as_u64(),
        output_schema: ["responseJsonSchema", "responseSchema"]
            .iter()
            .find_map(|name| config[*name].as_object())
            .map(|schema| json!(schema)),
        ..ModelRequest::new(tokenizer)
    };
    for tool in items(&body["tools"]).flat_map(|tool| items(&tool["functionDeclarations"])) {
        // The Python SDK writes this one field in snake case, as protocol buffers allow.
        let schema = ["parametersJsonSchema", "parameters_json_schema", "parameters"];
        let schema = schema.iter().find_map(|name| tool.get(name)).unwrap_or(&Value::Null);
        request.add_tool(text(&tool["name"]), schema, tool);
    }
    request.add_text(&content_text(&body["systemInstruction"]["parts"]), 4);
    let last_user = items(&body["contents"]).rposition(is_user_turn).unwrap_or(0);
    for (at, content) in items(&body["contents"]).enumerate() {
        for part in items(&content["parts"]) {
            read_part(&mut request, part, content["role"] != "model", at > last_user);
        }
    }
    request
}

fn read_part(request: &mut ModelRequest, part: &Value, user: bool, is_current_turn: bool) {
    if is_current_turn && let Some(tokens) = signature_tokens(text(&part["thoughtSignature"])) {
        request.add_counted(text(&part["thoughtSignature"]), tokens);
    }
    let (call, response) = (&part["functionCall"], &part["functionResponse"]);
    if part["thought"] == true {
        // Thought summaries that come back are not read.
    } else if call.is_object() {
        request.add_call(text(&call["name"]), &call["args"].to_string(), &call.to_string());
    } else if part["inlineData"].is_object() {
        request.add_counted(text(&part["inlineData"]["data"]), 258);
    } else if response.is_object() {
        request.add_tool_result(&response["response"].to_string(), 15);
    } else if user {
        request.add_user_text(text(&part["text"]));
    } else {
        request.add_text(text(&part["text"]), 0);
    }
}

fn is_user_turn(content: &Value) -> bool {
    content["role"] != "model" && items(&content["parts"]).any(|part| part["text"].is_string())
}

/// The reply as one body.
pub(crate) fn response_body(request: &ModelRequest, reply: &ModelReply) -> Value {
    let tokens = &reply.usage;
    let finish = if reply.truncated { "MAX_TOKENS" } else { "STOP" };
    let content = json!({"parts": parts(request, reply), "role": "model"});
    let mut usage = json!({
        "promptTokenCount": tokens.input, "totalTokenCount": tokens.input + tokens.output,
        "candidatesTokenCount": tokens.output - tokens.reasoning,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": tokens.input}],
    });
    if tokens.reasoning > 0 {
        usage["thoughtsTokenCount"] = json!(tokens.reasoning);
    }
    if tokens.cache_read > 0 {
        usage["cachedContentTokenCount"] = json!(tokens.cache_read);
    }
    json!({
        "candidates": [{"content": content, "index": 0, "finishReason": finish}],
        "usageMetadata": usage, "modelVersion": request.model, "responseId": reply.id,
    })
}

fn parts(request: &ModelRequest, reply: &ModelReply) -> Vec<Value> {
    let mut parts = Vec::new();
    if let Some(reasoning) = &reply.reasoning
        && !request.hides_reasoning
    {
        parts.push(json!({"text": reasoning, "thought": true}));
    }
    if !reply.text.is_empty() {
        parts.push(json!({"text": reply.text}));
    }
    if let Some(call) = &reply.call {
        parts.push(json!({"functionCall": {"name": call.name, "args": call.arguments}}));
    }
    if reply.reasoning.is_some()
        && let Some(last) = parts.last_mut()
    {
        last["thoughtSignature"] = json!(signature(reply.usage.reasoning, &reply.id));
    }
    parts
}

/// A body as events: text in pieces, each chunk with all usage.
pub fn stream_events(body: &Value) -> Vec<Event> {
    let mut parts = Vec::new();
    for part in items(&body["candidates"][0]["content"]["parts"]) {
        let chunks = deltas(text(&part["text"]));
        if chunks.is_empty() {
            parts.push(part.clone());
            continue;
        }
        let final_piece = chunks.len() - 1;
        for (at, piece) in chunks.into_iter().enumerate() {
            let mut partial = part.clone();
            partial["text"] = json!(piece);
            if at < final_piece
                && let Some(fields) = partial.as_object_mut()
            {
                fields.remove("thoughtSignature");
            }
            parts.push(partial);
        }
    }
    if parts.is_empty() {
        return vec![Event::data(body)];
    }
    let final_part = parts.len() - 1;
    let chunks = parts.into_iter().enumerate().map(|(at, part)| {
        let mut chunk = body.clone();
        let candidate = &mut chunk["candidates"][0];
        candidate["content"]["parts"] = json!([part]);
        if at < final_part
            && let Some(fields) = candidate.as_object_mut()
        {
            fields.remove("finishReason");
        }
        Event::data(&chunk)
    });
    chunks.collect()
}
