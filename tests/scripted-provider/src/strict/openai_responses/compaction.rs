//! `/responses/compact` (`docs/protocols.md` 3.3): the person's messages, then one item that only the
//! provider reads, bound to account and model.
//!
//! Whether later reasoning stays readable is not written anywhere: taken to be as Anthropic has it
//! (`docs/protocols.md` 1.5.7).

use serde_json::{Value, json};

use super::{DIALECT, Item};
use crate::strict::Call;
use crate::strict::prompt::{STRUCTURE, hash, items, text};
use crate::strict::reply_store::{Book, Mint, Summarised};
use crate::strict::rules::Model;
use crate::strict::verdict::{Accepted, Refusal, Rule};

/// What a summary weighs, tokens.
pub(super) const TOKENS: u64 = 120;

/// Checks items that came back: ours, of this account, for this model.
pub(super) fn check(
    call: &Call,
    model: &Model,
    book: &Book,
    list: &[Item<'_>],
) -> Result<(), Refusal> {
    for item in list.iter().filter(|item| item.kind == "compaction") {
        let known = book.summarised(DIALECT, text(item.field("encrypted_content")));
        let fits = |one: &&Summarised| {
            Some(one.account) == call.account && one.words == hash(&[&model.name])
        };
        if known.filter(fits).is_none() {
            let id = item.id().unwrap_or("(no id)");
            let message = format!(
                "The encrypted content for item {id} could not be verified. Reason: Encrypted content could not be decrypted or parsed."
            );
            let code = Some("invalid_encrypted_content");
            return Err(Refusal::openai(Rule::Compaction, 400, code, None, message));
        }
    }
    Ok(())
}

/// The chain after a summary.
pub(super) fn chain(book: &Book, item: &Item<'_>) -> Option<u128> {
    let known = book.summarised(DIALECT, text(item.field("encrypted_content")))?;
    known.binds.then_some(known.prefix.messages)
}

/// The answer.
pub(crate) fn compact(
    call: &Call,
    model: &Model,
    accepted: &Accepted,
    book: &mut Book,
    mint: &mut Mint,
) -> Value {
    let said = items(&call.body["input"]).filter(|item| item["role"] == "user");
    let mut output: Vec<Value> = said
        .map(|item| {
            let content = match item["content"].as_str() {
                Some(words) => json!([{"type": "input_text", "text": words}]),
                None => item["content"].clone(),
            };
            json!({"id": mint.id("msg_"), "type": "message", "status": "completed",
                "role": "user", "content": content})
        })
        .collect();
    let sealed = mint.signature(400);
    book.add_summarised(
        DIALECT,
        &sealed,
        Summarised {
            account: call.account.unwrap_or_default(),
            words: hash(&[&model.name]),
            prefix: accepted.standing.prefix,
            binds: true,
            last_role: String::new(),
        },
    );
    output.push(json!({"id": mint.id("cmp_"), "type": "compaction", "encrypted_content": sealed}));
    let spent = TOKENS + STRUCTURE;
    json!({
        "id": mint.id("resp_"), "object": "response.compaction", "created_at": 1_795_000_000_u64,
        "output": output,
        "usage": {
            "input_tokens": accepted.input_tokens,
            "input_tokens_details": {"cached_tokens": accepted.cached.read},
            "output_tokens": spent, "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": accepted.input_tokens + spent,
        },
    })
}
