//! `/responses/compact` (`docs/protocols.md` 3.3): the user's messages, then one item that only the
//! provider reads, bound to account and model.
//!
//! Whether later reasoning stays readable is not documented; taken to be as with Anthropic
//! (`docs/protocols.md` 1.5.7).

use serde_json::{Value, json};

use super::{DIALECT, InputItem};
use crate::strict::ReceivedRequest;
use crate::strict::prompt::{PIECE_OVERHEAD_TOKENS, hash, items, text};
use crate::strict::reply_store::{IdGenerator, IssuedSummary, ReplyStore};
use crate::strict::rules::ModelRules;
use crate::strict::verdict::{AcceptedRequest, ApiError, Rule};

/// Tokens of a summary.
pub(super) const SUMMARY_TOKENS: u64 = 120;

/// Checks summaries that came back: issued here, of this account, for this model.
pub(super) fn check(
    request: &ReceivedRequest,
    model: &ModelRules,
    store: &ReplyStore,
    list: &[InputItem<'_>],
) -> Result<(), ApiError> {
    for item in list.iter().filter(|item| item.kind == "compaction") {
        let summary = store.summary(DIALECT, text(item.field("encrypted_content")));
        let fits = |summary: &&IssuedSummary| {
            Some(summary.account) == request.account && summary.content_hash == hash(&[&model.name])
        };
        if summary.filter(fits).is_none() {
            let id = item.id().unwrap_or("(no id)");
            let message = format!(
                "The encrypted content for item {id} could not be verified. Reason: Encrypted content could not be decrypted or parsed."
            );
            let code = Some("invalid_encrypted_content");
            return Err(ApiError::openai(Rule::Compaction, 400, code, None, message));
        }
    }
    Ok(())
}

/// The chain after a summary.
pub(super) fn chain(store: &ReplyStore, item: &InputItem<'_>) -> Option<u128> {
    let summary = store.summary(DIALECT, text(item.field("encrypted_content")))?;
    summary.keeps_prefix.then_some(summary.prefix.messages)
}

/// The response.
pub(crate) fn compact(
    request: &ReceivedRequest,
    model: &ModelRules,
    accepted: &AcceptedRequest,
    store: &mut ReplyStore,
    ids: &mut IdGenerator,
) -> Value {
    let user_messages = items(&request.body["input"]).filter(|item| item["role"] == "user");
    let mut output: Vec<Value> = user_messages
        .map(|item| {
            let content = match item["content"].as_str() {
                Some(text) => json!([{"type": "input_text", "text": text}]),
                None => item["content"].clone(),
            };
            json!({"id": ids.id("msg_"), "type": "message", "status": "completed",
                "role": "user", "content": content})
        })
        .collect();
    let encrypted = ids.signature(400);
    store.add_summary(
        DIALECT,
        &encrypted,
        IssuedSummary {
            account: request.account.unwrap_or_default(),
            content_hash: hash(&[&model.name]),
            prefix: accepted.basis.prefix,
            keeps_prefix: true,
            last_role: String::new(),
        },
    );
    output
        .push(json!({"id": ids.id("cmp_"), "type": "compaction", "encrypted_content": encrypted}));
    let output_tokens = SUMMARY_TOKENS + PIECE_OVERHEAD_TOKENS;
    json!({
        "id": ids.id("resp_"), "object": "response.compaction", "created_at": 1_795_000_000_u64,
        "output": output,
        "usage": {
            "input_tokens": accepted.input_tokens,
            "input_tokens_details": {"cached_tokens": accepted.cache_usage.read},
            "output_tokens": output_tokens, "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": accepted.input_tokens + output_tokens,
        },
    })
}
