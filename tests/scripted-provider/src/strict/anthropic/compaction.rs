//! Compaction on demand (`docs/protocols.md` 1.3, 1.5.7): what may be summarized, the signed block with the
//! summary, and where such a block may stand.
//!
//! Codes and messages are those of the public SDK's errors.

use serde_json::{Value, json};

use super::{Block, DIALECT, refuse};
use crate::strict::prompt::{hash, items, link, measure_text, text};
use crate::strict::reply_store::{IdGenerator, IssuedSummary, ReplyStore};
use crate::strict::rules::ModelRules;
use crate::strict::verdict::{AcceptedRequest, ApiError, Rule};
use crate::strict::{Operation, ReceivedRequest};

const BETA: &str = "compact-2026-09-04";

fn refuse_with_code<T>(code: &str, message: &str) -> Result<T, ApiError> {
    Err(ApiError::anthropic_code(Rule::Compaction, code, message.to_owned()))
}

/// Checks a request for a summary, and summaries that came back.
pub(super) fn check(
    request: &ReceivedRequest,
    model: &ModelRules,
    store: &ReplyStore,
    blocks: &[Block<'_>],
    betas: &str,
) -> Result<(), ApiError> {
    if request.operation == Operation::Compact {
        check_operation(request, model, blocks)?;
    }
    let is_summary = |block: &&Block<'_>| block.kind == "compaction";
    let Some(first) = blocks.iter().find(is_summary) else { return Ok(()) };
    if !betas.split(',').any(|beta| beta.trim() == BETA) || !model.compacts {
        let path = first.path();
        return refuse(
            Rule::BetaMissing,
            format!(
                "{path}: Input tag 'compaction' found using 'type' does not match any of the expected tags"
            ),
        );
    }
    let edits = items(&request.body["context_management"]["edits"]);
    if edits.into_iter().any(|edit| text(&edit["type"]).starts_with("compact_")) {
        let message =
            "context_management: a `compaction` block cannot be combined with a compaction edit";
        return refuse(Rule::Compaction, message);
    }
    for (at, block) in blocks.iter().enumerate().filter(|(_, block)| is_summary(block)) {
        if at > 0 || block.role == "system" {
            let message = "The `compaction` block is not the first block of the conversation, or is in a `system` message.";
            return refuse_with_code("compaction_block_misplaced", message);
        }
        if block.field("content").is_null() {
            continue;
        }
        let summary = store.summary(DIALECT, text(block.field("signature")));
        let Some(summary) = summary.filter(|summary| Some(summary.account) == request.account)
        else {
            let message = "The `compaction` block's `signature` does not verify.";
            return refuse_with_code("compaction_signature_invalid", message);
        };
        if summary.content_hash != hash(&[text(block.field("content"))]) {
            let message = "The `compaction` block's `content` differs from the text its `signature` recorded.";
            return refuse_with_code("compaction_content_mismatch", message);
        }
    }
    Ok(())
}

fn check_operation(
    request: &ReceivedRequest,
    model: &ModelRules,
    blocks: &[Block<'_>],
) -> Result<(), ApiError> {
    // Checks a request for a summary: it ends on a finished turn and has no fields that only shape a reply.
    let body = &request.body;
    let extra =
        |name: &str| refuse(Rule::UnknownField, format!("{name}: Extra inputs are not permitted"));
    if !model.compacts {
        return extra("compaction");
    }
    if body["compaction"]["type"] != "summarize" {
        return refuse(Rule::BadValue, "compaction.type: Input should be 'summarize'");
    }
    for name in ["context_management", "stop_sequences", "output_format"] {
        if !body[name].is_null() {
            let message = format!("{name}: cannot be combined with `compaction`");
            return refuse(Rule::Compaction, message);
        }
    }
    let forced = ["any", "tool"].contains(&text(&body["tool_choice"]["type"]));
    if forced || !body["output_config"]["format"].is_null() {
        return refuse(
            Rule::Compaction,
            "compaction: the request shapes a reply that is not given",
        );
    }
    match blocks.last() {
        Some(last) if last.kind == "tool_use" => refuse_with_code(
            "compaction_incomplete_turn",
            "The compaction request ends on an `assistant` turn that is not finished.",
        ),
        None => refuse_with_code(
            "compaction_nothing_to_summarize",
            "`messages` holds no `user` or `assistant` content to summarize or adopt.",
        ),
        Some(_) => Ok(()),
    }
}

/// The chain after a summary: that of the history it stands for, if a binding model wrote it and the next
/// message has another role than the last one in that history (`docs/protocols.md` 1.5.7).
pub(super) fn chain(
    store: &ReplyStore,
    block: &Block<'_>,
    next: Option<&Block<'_>>,
    chain: u128,
) -> u128 {
    if block.field("content").is_null() {
        return chain;
    }
    let summary = store.summary(DIALECT, text(block.field("signature")));
    let continues =
        |summary: &&IssuedSummary| next.is_none_or(|next| next.role != summary.last_role);
    match summary.filter(|summary| summary.keeps_prefix).filter(continues) {
        Some(summary) => summary.prefix.messages,
        None => link(chain, block.measured.hash),
    }
}

/// The response: one signed block.
pub(crate) fn compact(
    request: &ReceivedRequest,
    model: &ModelRules,
    accepted: &AcceptedRequest,
    store: &mut ReplyStore,
    ids: &mut IdGenerator,
) -> Value {
    let count = items(&request.body["messages"]).count();
    let instructions = text(&request.body["compaction"]["instructions"]);
    let summary =
        format!("Of {count} messages: much was read, and the task goes on. {instructions}");
    let signature = ids.signature(200);
    let last_message = items(&request.body["messages"]).last();
    store.add_summary(
        DIALECT,
        &signature,
        IssuedSummary {
            account: request.account.unwrap_or_default(),
            content_hash: hash(&[&summary]),
            prefix: accepted.basis.prefix,
            keeps_prefix: model.binding,
            last_role: last_message
                .map_or(String::new(), |message| text(&message["role"]).to_owned()),
        },
    );
    let cached = accepted.cache_usage;
    let written = cached.written_5m + cached.written_1h;
    json!({
        "id": ids.id("msg_"), "type": "message", "role": "assistant", "model": request.model,
        "content": [{"type": "compaction", "content": summary, "signature": signature, "tool_changes": []}],
        "stop_reason": "compaction", "stop_sequence": null,
        "usage": {
            "input_tokens": 0, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
            "output_tokens": 0, "iterations": [{
                "type": "compaction", "input_tokens": accepted.input_tokens - cached.read - written,
                "cache_creation_input_tokens": written, "cache_read_input_tokens": cached.read,
                "output_tokens": measure_text("assistant", &summary).tokens,
            }],
        },
    })
}
