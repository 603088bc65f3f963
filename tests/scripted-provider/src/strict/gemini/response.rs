//! Writes a reply as a Gemini response, and records one (`docs/protocols.md` 5.3, 5.4).
//!
//! The signature of a step is on its first call; if nothing is called, on an empty text at the end.

use serde_json::{Value, json};

use super::thought_signatures::signed_hash;
use super::{DIALECT, get, measure_call, measure_part, thought_tokens};
use crate::strict::prompt::{items, text};
use crate::strict::reply::{ScriptedPart, ScriptedReply};
use crate::strict::reply_store::{
    IdGenerator, IssuedReply, IssuedSignature, ReplyStore, SignatureKind, SignatureRun,
};
use crate::strict::rules::{ModelRules, SignatureRule};
use crate::strict::verdict::AcceptedRequest;
use crate::strict::{ReceivedRequest, WrittenResponse};

/// The response, with the thought tokens of its signature.
pub(crate) fn write_response(
    request: &ReceivedRequest,
    model: &ModelRules,
    accepted: &AcceptedRequest,
    reply: &ScriptedReply,
    ids: &mut IdGenerator,
) -> WrittenResponse {
    let max = accepted.basis.context.max_output.unwrap_or(u64::MAX);
    let (mut parts, mut signed_tokens, mut candidates) = (Vec::new(), 0, 0);
    let mut finish_reason = "STOP";
    for part in &reply.parts {
        let (part, tokens) = match part {
            ScriptedPart::Thinking { text, tokens }
                if !accepted.basis.omits_thinking && !text.is_empty() =>
            {
                (Some(json!({"text": text, "thought": true})), *tokens)
            }
            ScriptedPart::Thinking { tokens, .. }
            | ScriptedPart::HiddenThinking { tokens }
            | ScriptedPart::RedactedThinking { tokens } => (None, *tokens),
            ScriptedPart::Text(text) => (Some(json!({"text": text})), 0),
            ScriptedPart::ToolCall { name, arguments } => {
                let call = json!({"id": ids.id(""), "name": name, "args": arguments});
                (Some(json!({"functionCall": call})), 0)
            }
        };
        let measured = part.as_ref().and_then(|part| measure_part("model", part));
        let cost = tokens + measured.map_or(0, |measured| measured.tokens);
        if signed_tokens + candidates + cost > max {
            finish_reason = "MAX_TOKENS";
            break;
        }
        signed_tokens += tokens;
        candidates += cost - tokens;
        parts.extend(part);
    }
    let first_call = parts.iter_mut().find(|part| part["functionCall"].is_object());
    if signed_tokens > 0 || first_call.is_some() && model.signature_rule == SignatureRule::Required
    {
        let signature = json!(ids.signature(130));
        match first_call {
            Some(part) => part["thoughtSignature"] = signature,
            None => parts.push(json!({"text": "", "thoughtSignature": signature})),
        }
    }
    let thoughts = thought_tokens(signed_tokens);
    let input = accepted.input_tokens;
    let mut usage = json!({
        "promptTokenCount": input, "candidatesTokenCount": candidates,
        "totalTokenCount": input + candidates + thoughts,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": input}],
    });
    if thoughts > 0 {
        usage["thoughtsTokenCount"] = json!(thoughts);
    }
    if accepted.cache_usage.read > 0 {
        usage["cachedContentTokenCount"] = json!(accepted.cache_usage.read);
    }
    let content = json!({"parts": parts, "role": "model"});
    let body = json!({
        "candidates": [{"content": content, "finishReason": finish_reason, "index": 0}],
        "usageMetadata": usage, "modelVersion": request.model, "responseId": ids.id(""),
    });
    WrittenResponse { body, reasoning_tokens: vec![signed_tokens] }
}

/// Records a response as issued: its signatures, ids and text.
pub(crate) fn record_reply(
    request: &ReceivedRequest,
    model: &ModelRules,
    accepted: &AcceptedRequest,
    body: &Value,
    reasoning_tokens: &[u64],
    store: &mut ReplyStore,
) {
    let (reply, account) = (store.next_reply(), request.account.unwrap_or_default());
    let mut signatures = Vec::new();
    let mut full_text = String::new();
    for part in items(&body["candidates"][0]["content"]["parts"]) {
        if part["thought"] != true {
            full_text += text(&part["text"]);
        }
        let call = get(part, "functionCall");
        if call.is_object() {
            store.add_reply_key(DIALECT, "call", &measure_call(call).hash.to_string());
        }
        if let Some(id) = call["id"].as_str() {
            store.add_reply_key(DIALECT, "id", id);
        }
        let Some(signature) = part["thoughtSignature"].as_str() else { continue };
        let number = store.next_signature();
        let record = IssuedSignature {
            kind: SignatureKind::ThoughtSignature,
            account,
            model: model.name.clone(),
            content_hash: signed_hash(part),
            prefix: accepted.basis.prefix,
            previous: None,
            reply,
            run: SignatureRun::single(number),
            blocks_before: 0,
            tokens: reasoning_tokens.get(signatures.len()).copied().unwrap_or_default(),
            item_id: String::new(),
        };
        signatures.push(number);
        store.add_signature(DIALECT, signature, record);
    }
    if !full_text.is_empty() {
        store.add_reply_key(DIALECT, "text", &full_text);
    }
    store.add_reply(IssuedReply {
        signatures,
        reasoning_hash: None,
        items: Vec::new(),
        cached_prefix: accepted.basis.cached_prefix.clone(),
    });
}
