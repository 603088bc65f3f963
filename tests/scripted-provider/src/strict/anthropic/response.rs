//! Writes a reply as an Anthropic message, and records one (`docs/protocols.md` 1.4, 1.5).
//!
//! Thinking is signed here; `demo_provider::dialect` makes the events of a stream.

use serde_json::{Value, json};

use super::{DIALECT, programs};
use crate::strict::prompt::{PIECE_OVERHEAD_TOKENS, hash, items, link, measure, text};
use crate::strict::reply::{ScriptedPart, ScriptedReply};
use crate::strict::reply_store::{
    IdGenerator, IssuedReply, IssuedSignature, Prefix, ReplyStore, SignatureKind, SignatureRun,
};
use crate::strict::rules::ModelRules;
use crate::strict::verdict::{AcceptedRequest, DropReason, Transformation};
use crate::strict::{ReceivedRequest, WrittenResponse};

/// The message, with the tokens of each thinking block.
pub(crate) fn write_response(
    request: &ReceivedRequest,
    accepted: &AcceptedRequest,
    reply: &ScriptedReply,
    ids: &mut IdGenerator,
) -> WrittenResponse {
    let mut reasoning_tokens = Vec::new();
    let mut content = programs::results_of_code(request);
    let by_code = programs::calls_by_code(request, accepted.basis.context.rounds);
    let mut caller = Value::Null;
    let max = accepted.basis.context.max_output.unwrap_or(u64::MAX);
    let (mut output, mut stop_reason) = (0, "end_turn");
    for part in &reply.parts {
        let (mut block, mut tokens) = content_block(part, accepted.basis.omits_thinking, ids);
        if by_code && block["type"] == "tool_use" {
            // Code calls, so only the code is output.
            tokens = 0;
            if caller.is_null() {
                let (code, by) = programs::code(ids);
                (tokens, caller) = (measure("assistant", &code).tokens, by);
                content.push(code);
            }
            block["caller"] = caller.clone();
        }
        if output + tokens > max {
            stop_reason = "max_tokens";
            break;
        }
        output += tokens;
        if matches!(
            part,
            ScriptedPart::Thinking { .. }
                | ScriptedPart::HiddenThinking { .. }
                | ScriptedPart::RedactedThinking { .. }
        ) {
            reasoning_tokens.push(tokens - PIECE_OVERHEAD_TOKENS);
        } else if matches!(part, ScriptedPart::ToolCall { .. }) {
            stop_reason = "tool_use";
        }
        content.push(block);
    }
    if stop_reason == "max_tokens"
        && request.body["max_tokens"].as_u64().is_some_and(|requested| requested > max)
    {
        stop_reason = "model_context_window_exceeded";
    }
    let thinking_tokens: u64 =
        reasoning_tokens.iter().map(|tokens| tokens + PIECE_OVERHEAD_TOKENS).sum();
    let mut message = json!({
        "id": ids.id("msg_"), "type": "message", "role": "assistant", "model": request.model,
        "content": content, "stop_reason": stop_reason, "stop_sequence": null,
        "usage": usage(accepted, output, thinking_tokens),
    });
    if !accepted.edits.is_empty() {
        message["context_management"] = json!({"applied_edits": accepted.edits});
    }
    if !accepted.transformations.is_empty() {
        let all: Vec<Value> = accepted.transformations.iter().map(transformation_json).collect();
        message["input_transformations"] = json!(all);
    }
    WrittenResponse { body: message, reasoning_tokens }
}

/// A part as a block, with its output tokens.
fn content_block(part: &ScriptedPart, omits_thinking: bool, ids: &mut IdGenerator) -> (Value, u64) {
    let thinking_block = |visible: &str, tokens: u64, ids: &mut IdGenerator| {
        let signature = ids.signature(160 + tokens as usize % 97);
        json!({"type": "thinking", "thinking": if omits_thinking { "" } else { visible }, "signature": signature})
    };
    let block = match part {
        ScriptedPart::Thinking { text, tokens } => {
            return (thinking_block(text, *tokens, ids), tokens + PIECE_OVERHEAD_TOKENS);
        }
        ScriptedPart::HiddenThinking { tokens } => {
            return (thinking_block("", *tokens, ids), tokens + PIECE_OVERHEAD_TOKENS);
        }
        ScriptedPart::RedactedThinking { tokens } => {
            let data = ids.signature(240);
            return (
                json!({"type": "redacted_thinking", "data": data}),
                tokens + PIECE_OVERHEAD_TOKENS,
            );
        }
        ScriptedPart::Text(text) => json!({"type": "text", "text": text}),
        ScriptedPart::ToolCall { name, arguments } => {
            json!({"type": "tool_use", "id": ids.id("toolu_"), "name": name, "input": arguments})
        }
    };
    let tokens = measure("assistant", &block).tokens;
    (block, tokens)
}

fn usage(accepted: &AcceptedRequest, output: u64, thinking_tokens: u64) -> Value {
    // `docs/protocols.md` 1.4: `input_tokens` are those that were neither read from the cache nor written to
    // it.
    let cached = accepted.cache_usage;
    let written = cached.written_5m + cached.written_1h;
    json!({
        "input_tokens": accepted.input_tokens - cached.read - written,
        "cache_creation_input_tokens": written, "cache_read_input_tokens": cached.read,
        "cache_creation": {
            "ephemeral_5m_input_tokens": cached.written_5m,
            "ephemeral_1h_input_tokens": cached.written_1h,
        },
        "output_tokens": output, "output_tokens_details": {"thinking_tokens": thinking_tokens},
        "service_tier": "standard",
    })
}

fn transformation_json(transformation: &Transformation) -> Value {
    // `docs/protocols.md` 1.5.6.
    let kind =
        if transformation.allowed { "thinking_mismatch_allowed" } else { "thinking_dropped" };
    let reason = match transformation.reason {
        DropReason::Model => "model_binding_mismatch",
        DropReason::Account => "organization_binding_mismatch",
        DropReason::Prefix | DropReason::Turn => "prefix_binding_mismatch",
    };
    json!({"type": kind, "path": transformation.place.to_string(), "reason": reason})
}

/// Records a message as issued: its signatures with all they are bound to, its ids and its text.
pub(crate) fn record_reply(
    request: &ReceivedRequest,
    model: &ModelRules,
    accepted: &AcceptedRequest,
    body: &Value,
    reasoning_tokens: &[u64],
    store: &mut ReplyStore,
) {
    let basis = &accepted.basis;
    let (reply, account) = (store.next_reply(), request.account.unwrap_or_default());
    let blocks: Vec<&Value> = items(&body["content"]).collect();
    let is_thinking =
        |block: &&Value| ["thinking", "redacted_thinking"].contains(&text(&block["type"]));
    let mut chain = basis.prefix.messages;
    let (mut previous, mut signatures, mut blocks_before) = (basis.last_signature, Vec::new(), 0);
    let mut run = SignatureRun::single(0);
    for (at, block) in blocks.iter().enumerate() {
        if !is_thinking(block) {
            chain = link(chain, measure("assistant", block).hash);
            blocks_before += 1;
            if let Some(id) = block["id"].as_str() {
                store.add_reply_key(DIALECT, "id", id);
            }
            continue;
        }
        if at == 0 || !is_thinking(&blocks[at - 1]) {
            // Blocks in a row are one run, which has to come back whole (`docs/protocols.md` 1.5).
            let length = blocks[at..].iter().take_while(|block| is_thinking(block)).count();
            run = SignatureRun { first: store.next_signature(), length };
        }
        let (kind, signature) = match text(&block["type"]) {
            "thinking" => (SignatureKind::Thinking, text(&block["signature"])),
            _ => (SignatureKind::RedactedThinking, text(&block["data"])),
        };
        let visible = text(&block["thinking"]);
        let record = IssuedSignature {
            kind,
            account,
            model: model.name.clone(),
            content_hash: hash(&[visible]),
            prefix: Prefix { messages: chain, ..basis.prefix },
            previous,
            reply,
            run,
            blocks_before,
            // A reply that was written elsewhere does not say its tokens.
            tokens: reasoning_tokens
                .get(signatures.len())
                .copied()
                .unwrap_or(visible.len() as u64 / 4),
            item_id: String::new(),
        };
        previous = Some(store.next_signature());
        signatures.push(store.next_signature());
        store.add_signature(DIALECT, signature, record);
    }
    let full_text: String = blocks.iter().map(|block| text(&block["text"])).collect();
    if !full_text.is_empty() {
        store.add_reply_key(DIALECT, "text", &full_text);
    }
    store.add_reply(IssuedReply {
        signatures,
        reasoning_hash: None,
        items: Vec::new(),
        cached_prefix: basis.cached_prefix.clone(),
    });
}
