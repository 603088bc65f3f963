//! Compaction on demand (`docs/protocols.md` 1.3, 1.5.7): what may be summarised, the signed block that
//! comes of it, and where such a block may stand.
//!
//! Codes and wordings are those of the public SDK's errors.

use serde_json::{Value, json};

use super::{Block, DIALECT, refuse};
use crate::strict::prompt::{hash, items, link, text, weigh_text};
use crate::strict::reply_store::{Book, Mint, Summarised};
use crate::strict::rules::Model;
use crate::strict::verdict::{Accepted, Refusal, Rule};
use crate::strict::{Call, Purpose};

const BETA: &str = "compact-2026-09-04";

fn wrong<T>(code: &str, message: &str) -> Result<T, Refusal> {
    Err(Refusal::anthropic_code(Rule::Compaction, code, message.to_owned()))
}

/// Checks the question, and the blocks that came back.
pub(super) fn check(
    call: &Call,
    model: &Model,
    book: &Book,
    blocks: &[Block<'_>],
    betas: &str,
) -> Result<(), Refusal> {
    if call.purpose == Purpose::Compact {
        asked(call, model, blocks)?;
    }
    let is_one = |block: &&Block<'_>| block.kind == "compaction";
    let Some(any) = blocks.iter().find(is_one) else { return Ok(()) };
    if !betas.split(',').any(|beta| beta.trim() == BETA) || !model.compacts {
        let path = any.path();
        return refuse(
            Rule::BetaMissing,
            format!(
                "{path}: Input tag 'compaction' found using 'type' does not match any of the expected tags"
            ),
        );
    }
    let edits = items(&call.body["context_management"]["edits"]);
    if edits.into_iter().any(|edit| text(&edit["type"]).starts_with("compact_")) {
        let message =
            "context_management: a `compaction` block cannot be combined with a compaction edit";
        return refuse(Rule::Compaction, message);
    }
    for (at, block) in blocks.iter().enumerate().filter(|(_, block)| is_one(block)) {
        if at > 0 || block.role == "system" {
            let message = "The `compaction` block is not the first block of the conversation, or is in a `system` message.";
            return wrong("compaction_block_misplaced", message);
        }
        if block.field("content").is_null() {
            continue;
        }
        let known = book.summarised(DIALECT, text(block.field("signature")));
        let Some(known) = known.filter(|one| Some(one.account) == call.account) else {
            let message = "The `compaction` block's `signature` does not verify.";
            return wrong("compaction_signature_invalid", message);
        };
        if known.words != hash(&[text(block.field("content"))]) {
            let message = "The `compaction` block's `content` differs from the text its `signature` recorded.";
            return wrong("compaction_content_mismatch", message);
        }
    }
    Ok(())
}

/// A request for a block: of a finished turn, with nothing that only shapes a reply.
fn asked(call: &Call, model: &Model, blocks: &[Block<'_>]) -> Result<(), Refusal> {
    let body = &call.body;
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
        Some(last) if last.kind == "tool_use" => wrong(
            "compaction_incomplete_turn",
            "The compaction request ends on an `assistant` turn that is not finished.",
        ),
        None => wrong(
            "compaction_nothing_to_summarize",
            "`messages` holds no `user` or `assistant` content to summarize or adopt.",
        ),
        Some(_) => Ok(()),
    }
}

/// The chain after a block: that of what it stands for, where the first message after it is another
/// role's than the last in it, and a binding model wrote it (`docs/protocols.md` 1.5.7).
pub(super) fn chain(book: &Book, block: &Block<'_>, next: Option<&Block<'_>>, chain: u128) -> u128 {
    if block.field("content").is_null() {
        return chain;
    }
    let known = book.summarised(DIALECT, text(block.field("signature")));
    let goes_on = |one: &&Summarised| next.is_none_or(|next| next.role != one.last_role);
    match known.filter(|one| one.binds).filter(goes_on) {
        Some(one) => one.prefix.messages,
        None => link(chain, block.weighed.hash),
    }
}

/// The answer: a signed block, alone.
pub(crate) fn compact(
    call: &Call,
    model: &Model,
    accepted: &Accepted,
    book: &mut Book,
    mint: &mut Mint,
) -> Value {
    let count = items(&call.body["messages"]).count();
    let told = text(&call.body["compaction"]["instructions"]);
    let words = format!("Of {count} messages: much was read, and the task goes on. {told}");
    let signature = mint.signature(200);
    let last = items(&call.body["messages"]).last();
    book.add_summarised(
        DIALECT,
        &signature,
        Summarised {
            account: call.account.unwrap_or_default(),
            words: hash(&[&words]),
            prefix: accepted.standing.prefix,
            binds: model.binding,
            last_role: last.map_or(String::new(), |last| text(&last["role"]).to_owned()),
        },
    );
    let cached = accepted.cached;
    let written = cached.written_5m + cached.written_1h;
    json!({
        "id": mint.id("msg_"), "type": "message", "role": "assistant", "model": call.model,
        "content": [{"type": "compaction", "content": words, "signature": signature, "tool_changes": []}],
        "stop_reason": "compaction", "stop_sequence": null,
        "usage": {
            "input_tokens": 0, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
            "output_tokens": 0, "iterations": [{
                "type": "compaction", "input_tokens": accepted.input_tokens - cached.read - written,
                "cache_creation_input_tokens": written, "cache_read_input_tokens": cached.read,
                "output_tokens": weigh_text("assistant", &words).tokens,
            }],
        },
    })
}
