//! Writes a reply as a chat completion, and records one (`docs/protocols.md` 2.4, 4).
//!
//! Each host has its own fields for reasoning and usage; `demo_provider::dialect` makes the events of a stream.

use serde_json::{Value, json};

use super::{DIALECT, message_reasoning};
use crate::strict::prompt::{hash, items, measure, measure_text, text};
use crate::strict::reply::{ScriptedPart, ScriptedReply};
use crate::strict::reply_store::{
    IdGenerator, IssuedReply, IssuedSignature, ReplyStore, SignatureKind, SignatureRun,
};
use crate::strict::rules::{Host, ModelRules, ReasoningEcho};
use crate::strict::verdict::AcceptedRequest;
use crate::strict::{ReceivedRequest, WrittenResponse};

pub(crate) fn write_response(
    request: &ReceivedRequest,
    model: &ModelRules,
    accepted: &AcceptedRequest,
    reply: &ScriptedReply,
    ids: &mut IdGenerator,
) -> WrittenResponse {
    let mut message = json!({"role": "assistant", "content": null, "refusal": null});
    let (mut content, mut thoughts, mut calls) = (String::new(), Vec::new(), Vec::new());
    let (mut output, mut reasoning_tokens, mut finish_reason) = (0, 0, "stop");
    let max = accepted.basis.context.max_output.unwrap_or(u64::MAX);
    for part in &reply.parts {
        let (cost, thought) = match part {
            ScriptedPart::Thinking { text, tokens } => (*tokens, text.as_str()),
            ScriptedPart::HiddenThinking { tokens } | ScriptedPart::RedactedThinking { tokens } => {
                (*tokens, "")
            }
            ScriptedPart::Text(text) => (measure_text("assistant", text).tokens, ""),
            ScriptedPart::ToolCall { name, arguments } => {
                let is_first = calls.is_empty();
                calls.push(tool_call(
                    name,
                    arguments,
                    model,
                    is_first && reply.has_thinking(),
                    ids,
                ));
                (calls.last().map_or(0, |call| super::measure_call(call).tokens), "")
            }
        };
        if output + cost > max {
            finish_reason = "length";
            if matches!(part, ScriptedPart::ToolCall { .. }) {
                calls.pop();
            }
            break;
        }
        output += cost;
        match part {
            ScriptedPart::Text(text) => content += text,
            ScriptedPart::ToolCall { .. } => finish_reason = "tool_calls",
            _ => {
                reasoning_tokens += cost;
                thoughts.extend(Some(thought).filter(|text| !text.is_empty()));
            }
        }
    }
    if model.reasoning_echo == ReasoningEcho::Required
        && accepted.basis.context.thinks
        && thoughts.is_empty()
    {
        // A model that requires its reasoning always reasons.
        thoughts.push("Hm.");
    }
    // Visible reasoning costs as output what it costs as input when it comes back.
    if model.reasoning_echo != ReasoningEcho::Refused && !thoughts.is_empty() {
        add_reasoning(&mut message, model, &thoughts, ids);
        let mut visible = 0;
        super::reasoning_pieces(&message, &mut |measured| visible += measured.tokens);
        output = output - reasoning_tokens + visible;
        reasoning_tokens = visible;
    }
    if !content.is_empty() || calls.is_empty() {
        message["content"] = json!(content);
    }
    if !calls.is_empty() {
        message["tool_calls"] = json!(calls);
    }
    let body = json!({
        "id": ids.id("chatcmpl-"), "object": "chat.completion", "created": 1_795_000_000_u64,
        "model": request.model,
        "choices": [{"index": 0, "message": message, "logprobs": null, "finish_reason": finish_reason}],
        "usage": usage(model, accepted, output, reasoning_tokens),
    });
    WrittenResponse { body, reasoning_tokens: Vec::new() }
}

fn add_reasoning(
    message: &mut Value,
    model: &ModelRules,
    thoughts: &[&str],
    ids: &mut IdGenerator,
) {
    // Adds reasoning in this host's fields (`docs/protocols.md` 4.2).
    let reasoning = thoughts.concat();
    if model.host != Host::OpenRouter {
        message["reasoning_content"] = json!(reasoning);
        return;
    }
    let mut detail = |(index, text): (usize, &&str)| {
        let mut detail =
            json!({"type": "reasoning.text", "text": text, "format": "unknown", "index": index});
        if model.name.contains("claude") {
            detail["format"] = json!("anthropic-claude-v1");
            detail["signature"] = json!(ids.signature(180));
        }
        detail
    };
    let details: Vec<Value> = thoughts.iter().enumerate().map(&mut detail).collect();
    message["reasoning"] = json!(reasoning);
    message["reasoning_details"] = json!(details);
}

fn tool_call(
    name: &str,
    arguments: &Value,
    model: &ModelRules,
    is_signed: bool,
    ids: &mut IdGenerator,
) -> Value {
    let function = json!({"name": name, "arguments": arguments.to_string()});
    let mut call = json!({"id": ids.id("call_"), "type": "function", "function": function});
    if is_signed && model.host == Host::GeminiCompat {
        let signature = ids.signature(150);
        call["extra_content"] = json!({"google": {"thought_signature": signature}});
    }
    call
}

fn usage(
    model: &ModelRules,
    accepted: &AcceptedRequest,
    output: u64,
    reasoning_tokens: u64,
) -> Value {
    // `docs/protocols.md` 2.4, 4.1: each host has its own fields.
    let (input, cached) = (accepted.input_tokens, accepted.cache_usage);
    let outside_completion = if model.host == Host::Xai { reasoning_tokens } else { 0 };
    let mut usage = json!({
        "prompt_tokens": input, "completion_tokens": output - outside_completion, "total_tokens": input + output,
        "prompt_tokens_details": {"cached_tokens": cached.read, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": reasoning_tokens},
    });
    if model.bills_cache_writes {
        usage["prompt_tokens_details"]["cache_write_tokens"] = json!(cached.written_5m);
    }
    match model.host {
        Host::DeepSeek => {
            usage["prompt_cache_hit_tokens"] = json!(cached.read);
            usage["prompt_cache_miss_tokens"] = json!(input - cached.read);
        }
        Host::Kimi => usage["cached_tokens"] = json!(cached.read),
        _ => {}
    }
    usage
}

/// Records a completion as issued: its signatures, ids and text.
pub(crate) fn record_reply(
    request: &ReceivedRequest,
    model: &ModelRules,
    accepted: &AcceptedRequest,
    body: &Value,
    store: &mut ReplyStore,
) {
    let message = &body["choices"][0]["message"];
    let (reply, account) = (store.next_reply(), request.account.unwrap_or_default());
    let mut signed = Vec::new();
    for entry in items(&message["reasoning_details"]) {
        if let Some(signature) = entry["signature"].as_str().or_else(|| entry["data"].as_str()) {
            let tokens = measure("reasoning", entry).tokens;
            signed.push((
                signature,
                SignatureKind::Thinking,
                hash(&[text(&entry["text"])]),
                tokens,
            ));
        }
    }
    for call in items(&message["tool_calls"]) {
        store.add_reply_key(DIALECT, "id", text(&call["id"]));
        if let Some(signature) = call["extra_content"]["google"]["thought_signature"].as_str() {
            signed.push((
                signature,
                SignatureKind::ThoughtSignature,
                super::measure_call(call).hash,
                0,
            ));
        }
    }
    let mut signatures = Vec::new();
    for (signature, kind, content_hash, tokens) in signed {
        let number = store.next_signature();
        signatures.push(number);
        let record = IssuedSignature {
            kind,
            account,
            model: model.name.clone(),
            content_hash,
            prefix: accepted.basis.prefix,
            previous: None,
            reply,
            run: SignatureRun::single(number),
            blocks_before: 0,
            tokens,
            item_id: String::new(),
        };
        store.add_signature(DIALECT, signature, record);
    }
    let reasoning = message_reasoning(message);
    if let Some(content) = message["content"].as_str().filter(|text| !text.is_empty()) {
        store.add_reply_key(DIALECT, "text", content);
        if let Some(reasoning) = reasoning {
            store.add_reply_key(DIALECT, "reasoning and text", &format!("{reasoning}\n{content}"));
        }
    }
    store.add_reply(IssuedReply {
        signatures,
        reasoning_hash: reasoning.filter(|text| !text.is_empty()).map(|text| hash(&[text])),
        items: Vec::new(),
        cached_prefix: accepted.basis.cached_prefix.clone(),
    });
}
