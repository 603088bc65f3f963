//! Writes a reply as a Responses object, and records one (`docs/protocols.md` 3.4, 3.5).
//!
//! Each piece of reasoning is an encrypted item of its own, right before the item that follows from it.

use serde_json::{Value, json};

use super::{DIALECT, InputItem, measure_item, programs};
use crate::strict::prompt::{PIECE_OVERHEAD_TOKENS, items, link, text};
use crate::strict::reply::{ScriptedPart, ScriptedReply};
use crate::strict::reply_store::{
    IdGenerator, IssuedItem, IssuedReply, IssuedSignature, Prefix, ReplyStore, SignatureKind,
    SignatureRun,
};
use crate::strict::rules::ModelRules;
use crate::strict::verdict::{AcceptedRequest, DropReason, Transformation};
use crate::strict::{ReceivedRequest, WrittenResponse};

/// The response, with the tokens of each reasoning item.
pub(crate) fn write_response(
    request: &ReceivedRequest,
    model: &ModelRules,
    accepted: &AcceptedRequest,
    reply: &ScriptedReply,
    ids: &mut IdGenerator,
) -> WrittenResponse {
    let phase = model.phases.then(|| if reply.has_calls() { "commentary" } else { "final_answer" });
    let max = accepted.basis.context.max_output.unwrap_or(u64::MAX);
    let (mut output_tokens, mut reasoning_tokens, mut item_tokens) = (0, 0, Vec::new());
    let (mut output, mut status) = (programs::outputs(request, ids), "completed");
    let by_program = programs::calls_by_program(request, accepted.basis.context.rounds);
    let mut caller = Value::Null;
    for part in &reply.parts {
        let (mut item, reasoning) = output_item(part, phase, accepted.basis.omits_thinking, ids);
        let mut cost =
            reasoning.map_or_else(|| item_cost(&item), |tokens| tokens + PIECE_OVERHEAD_TOKENS);
        if by_program && item["type"] == "function_call" {
            // The program calls, so only the program is output.
            cost = 0;
            if caller.is_null() {
                let (program, by) = programs::program(ids);
                (cost, caller) = (item_cost(&program), by);
                output.push(program);
            }
            item["caller"] = caller.clone();
        }
        if output_tokens + cost > max {
            status = "incomplete";
            break;
        }
        output_tokens += cost;
        if let Some(tokens) = reasoning {
            reasoning_tokens += cost;
            item_tokens.push(tokens);
        }
        output.push(item);
    }
    let cached = accepted.cache_usage;
    let mut response = json!({
        "id": ids.id("resp_"), "object": "response", "created_at": 1_795_000_000_u64,
        "status": status, "error": null, "incomplete_details": null,
        "instructions": request.body["instructions"], "max_output_tokens": request.body["max_output_tokens"],
        "model": request.model, "output": output, "parallel_tool_calls": true,
        "previous_response_id": request.body["previous_response_id"], "reasoning": request.body["reasoning"],
        "store": request.body["store"] != false, "temperature": 1.0, "tool_choice": "auto",
        "tools": request.body["tools"], "top_p": 1.0, "truncation": "disabled", "metadata": {},
        "usage": {
            "input_tokens": accepted.input_tokens,
            "input_tokens_details": {"cached_tokens": cached.read, "cache_write_tokens": if model.bills_cache_writes { cached.written_5m } else { 0 }},
            "output_tokens": output_tokens, "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
            "total_tokens": accepted.input_tokens + output_tokens,
        },
    });
    if status == "incomplete" {
        response["incomplete_details"] = json!({"reason": "max_output_tokens"});
    }
    if !accepted.transformations.is_empty() {
        let all: Vec<Value> = accepted.transformations.iter().map(transformation_json).collect();
        response["input_transformations"] = json!(all);
    }
    WrittenResponse { body: response, reasoning_tokens: item_tokens }
}

/// A part as an item, with its tokens if it is reasoning.
fn output_item(
    part: &ScriptedPart,
    phase: Option<&str>,
    omits_thinking: bool,
    ids: &mut IdGenerator,
) -> (Value, Option<u64>) {
    let item = match part {
        ScriptedPart::Thinking { text, tokens } => {
            let is_visible = !omits_thinking && !text.is_empty();
            let summary = is_visible.then(|| json!({"type": "summary_text", "text": text}));
            return (reasoning_item(summary, ids), Some(*tokens));
        }
        ScriptedPart::HiddenThinking { tokens } | ScriptedPart::RedactedThinking { tokens } => {
            return (reasoning_item(None, ids), Some(*tokens));
        }
        ScriptedPart::Text(text) => {
            let mut message = json!({
                "id": ids.id("msg_"), "type": "message", "status": "completed", "role": "assistant",
                "content": [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}],
            });
            if let Some(phase) = phase {
                message["phase"] = json!(phase);
            }
            message
        }
        ScriptedPart::ToolCall { name, arguments } => json!({
            "id": ids.id("fc_"), "type": "function_call", "status": "completed",
            "call_id": ids.id("call_"), "name": name, "arguments": arguments.to_string(),
        }),
    };
    (item, None)
}

fn reasoning_item(summary: Option<Value>, ids: &mut IdGenerator) -> Value {
    let summary: Vec<Value> = summary.into_iter().collect();
    json!({
        "id": ids.id("rs_"), "type": "reasoning", "summary": summary,
        "encrypted_content": ids.signature(420),
    })
}

fn item_cost(item: &Value) -> u64 {
    measure_item(&as_item(item)).iter().map(|content| content.tokens).sum()
}

fn as_item(value: &Value) -> InputItem<'_> {
    InputItem { kind: text(&value["type"]).to_owned(), value: std::borrow::Cow::Borrowed(value) }
}

fn transformation_json(transformation: &Transformation) -> Value {
    // `docs/protocols.md` 3.5.
    let reason = match transformation.reason {
        DropReason::Model => "model_mismatch",
        DropReason::Account => "organization_mismatch",
        DropReason::Prefix => "prefix_mismatch",
        DropReason::Turn => "turn_boundary",
    };
    json!({"id": transformation.id, "type": "reasoning", "action": "removed", "reason": reason})
}

/// Records a response as issued: signatures, items and their neighbours, and the whole response if it is
/// stored.
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
    let output: Vec<&Value> = items(&body["output"]).collect();
    let is_reasoning = |item: &&Value| item["type"] == "reasoning";
    let id = |item: &Value| text(&item["id"]).to_owned();
    let (mut chain, mut blocks_before) = (basis.prefix.messages, 0);
    let (mut signatures, mut reasoning_ids, mut issued_items) =
        (Vec::new(), Vec::new(), Vec::new());
    for (at, item) in output.iter().enumerate() {
        let following = output[at..].iter().find(|item| !is_reasoning(item)).map(|item| id(item));
        let mut issued_item = IssuedItem {
            id: id(item),
            reasoning: Vec::new(),
            following: if is_reasoning(item) { following } else { None },
            phase: item["phase"].as_str().map(str::to_owned),
            text: items(&item["content"]).map(|part| text(&part["text"])).collect(),
        };
        if is_reasoning(item) {
            let number = store.next_signature();
            let record = IssuedSignature {
                kind: SignatureKind::EncryptedReasoning,
                account,
                model: model.name.clone(),
                // It is encrypted, so there is no text that could be edited.
                content_hash: 0,
                prefix: Prefix { messages: chain, ..basis.prefix },
                previous: None,
                reply,
                run: SignatureRun::single(number),
                blocks_before,
                tokens: reasoning_tokens.get(signatures.len()).copied().unwrap_or_default(),
                item_id: issued_item.id.clone(),
            };
            signatures.push(number);
            store.add_signature(DIALECT, text(&item["encrypted_content"]), record);
            reasoning_ids.push(issued_item.id.clone());
        } else {
            issued_item.reasoning = std::mem::take(&mut reasoning_ids);
            blocks_before += 1;
            chain = measure_item(&as_item(item))
                .iter()
                .fold(chain, |chain, content| link(chain, content.hash));
            store.add_reply_key(DIALECT, "id", &issued_item.id);
            if let Some(call_id) = item["call_id"].as_str() {
                store.add_reply_key(DIALECT, "call", call_id);
            }
            if !issued_item.text.is_empty() {
                store.add_reply_key(DIALECT, "text", &issued_item.text);
            }
        }
        issued_items.push(issued_item);
    }
    // It is stored unless the request says otherwise (`docs/protocols.md` 3.2).
    if request.body["store"] != false {
        store.store_response(body, &request.body, account);
    }
    store.add_reply(IssuedReply {
        signatures,
        reasoning_hash: None,
        items: issued_items,
        cached_prefix: basis.cached_prefix.clone(),
    });
}
