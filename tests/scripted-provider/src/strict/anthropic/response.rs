//! A reply in Anthropic's words, and what is remembered of one (`docs/protocols.md` 1.4, 1.5).
//!
//! What the model thought is sealed here; how a stream of it looks is the speakers' affair.

use serde_json::{Value, json};

use super::DIALECT;
use crate::strict::Call;
use crate::strict::prompt::{STRUCTURE, hash, items, link, text, weigh};
use crate::strict::reply::{Part, Reply};
use crate::strict::reply_store::{Book, Issued, Kind, Mint, Prefix, Seal};
use crate::strict::rules::Model;
use crate::strict::verdict::{Accepted, Transformation, Why};

/// The message, with what each thinking block weighs.
pub(crate) fn write(
    call: &Call,
    accepted: &Accepted,
    reply: &Reply,
    mint: &mut Mint,
) -> (Value, Vec<u64>) {
    let mut weights = Vec::new();
    let mut content = Vec::new();
    let most = accepted.standing.scene.max_output.unwrap_or(u64::MAX);
    let (mut output, mut stop) = (0, "end_turn");
    for part in &reply.parts {
        let (block, tokens) = block(part, accepted.standing.omits, mint);
        if output + tokens > most {
            stop = "max_tokens";
            break;
        }
        output += tokens;
        if matches!(part, Part::Thinking { .. } | Part::Sealed { .. } | Part::Redacted { .. }) {
            weights.push(tokens - STRUCTURE);
        } else if matches!(part, Part::Call { .. }) {
            stop = "tool_use";
        }
        content.push(block);
    }
    if stop == "max_tokens" && call.body["max_tokens"].as_u64().is_some_and(|asked| asked > most) {
        stop = "model_context_window_exceeded";
    }
    let thought: u64 = weights.iter().map(|tokens| tokens + STRUCTURE).sum();
    let mut message = json!({
        "id": mint.id("msg_"), "type": "message", "role": "assistant", "model": call.model,
        "content": content, "stop_reason": stop, "stop_sequence": null,
        "usage": usage(accepted, output, thought),
    });
    if !accepted.edits.is_empty() {
        message["context_management"] = json!({"applied_edits": accepted.edits});
    }
    if !accepted.transformations.is_empty() {
        let all: Vec<Value> = accepted.transformations.iter().map(transformation).collect();
        message["input_transformations"] = json!(all);
    }
    (message, weights)
}

/// A part as a block, with its output tokens.
fn block(part: &Part, omits: bool, mint: &mut Mint) -> (Value, u64) {
    let sealed = |shown: &str, tokens: u64, mint: &mut Mint| {
        let signature = mint.signature(160 + tokens as usize % 97);
        json!({"type": "thinking", "thinking": if omits { "" } else { shown }, "signature": signature})
    };
    let block = match part {
        Part::Thinking { text, tokens } => {
            return (sealed(text, *tokens, mint), tokens + STRUCTURE);
        }
        Part::Sealed { tokens } => return (sealed("", *tokens, mint), tokens + STRUCTURE),
        Part::Redacted { tokens } => {
            let data = mint.signature(240);
            return (json!({"type": "redacted_thinking", "data": data}), tokens + STRUCTURE);
        }
        Part::Text(text) => json!({"type": "text", "text": text}),
        Part::Call { name, arguments } => {
            json!({"type": "tool_use", "id": mint.id("toolu_"), "name": name, "input": arguments})
        }
    };
    let tokens = weigh("assistant", &block).tokens;
    (block, tokens)
}

/// `docs/protocols.md` 1.4: `input_tokens` is what the cache had no part in.
fn usage(accepted: &Accepted, output: u64, thought: u64) -> Value {
    let cached = accepted.cached;
    let written = cached.written_5m + cached.written_1h;
    json!({
        "input_tokens": accepted.input_tokens - cached.read - written,
        "cache_creation_input_tokens": written, "cache_read_input_tokens": cached.read,
        "cache_creation": {
            "ephemeral_5m_input_tokens": cached.written_5m,
            "ephemeral_1h_input_tokens": cached.written_1h,
        },
        "output_tokens": output, "output_tokens_details": {"thinking_tokens": thought},
        "service_tier": "standard",
    })
}

/// `docs/protocols.md` 1.5.6.
fn transformation(one: &Transformation) -> Value {
    let kind = if one.allowed { "thinking_mismatch_allowed" } else { "thinking_dropped" };
    let reason = match one.why {
        Why::Model => "model_binding_mismatch",
        Why::Account => "organization_binding_mismatch",
        Why::Prefix | Why::Turn => "prefix_binding_mismatch",
    };
    json!({"type": kind, "path": one.place.to_string(), "reason": reason})
}

/// Remembers a message as issued: its seals with all they are bound to, its ids and its words.
pub(crate) fn remember(
    call: &Call,
    model: &Model,
    accepted: &Accepted,
    whole: &Value,
    weights: &[u64],
    book: &mut Book,
) {
    let standing = &accepted.standing;
    let (reply, account) = (book.next_reply(), call.account.unwrap_or_default());
    let blocks: Vec<&Value> = items(&whole["content"]).collect();
    let is_thinking =
        |block: &&Value| ["thinking", "redacted_thinking"].contains(&text(&block["type"]));
    let mut chain = standing.prefix.messages;
    let (mut before, mut seals, mut lead) = (standing.last_seal, Vec::new(), 0);
    let mut run = (0, 0);
    for (at, block) in blocks.iter().enumerate() {
        if !is_thinking(block) {
            chain = link(chain, weigh("assistant", block).hash);
            lead += 1;
            if let Some(id) = block["id"].as_str() {
                book.add_trace(DIALECT, "id", id);
            }
            continue;
        }
        if at == 0 || !is_thinking(&blocks[at - 1]) {
            run = (book.next_seal(), blocks[at..].iter().take_while(|b| is_thinking(b)).count());
        }
        let (kind, signature) = match text(&block["type"]) {
            "thinking" => (Kind::Thinking, text(&block["signature"])),
            _ => (Kind::Redacted, text(&block["data"])),
        };
        let shown = text(&block["thinking"]);
        let seal = Seal {
            kind,
            account,
            model: model.name.clone(),
            text: hash(&[shown]),
            prefix: Prefix { messages: chain, ..standing.prefix },
            before,
            reply,
            run,
            lead,
            tokens: weights.get(seals.len()).copied().unwrap_or(shown.len() as u64 / 4),
            id: String::new(),
        };
        before = Some(book.next_seal());
        seals.push(book.next_seal());
        book.add_seal(DIALECT, signature, seal);
    }
    let words: String = blocks.iter().map(|block| text(&block["text"])).collect();
    if !words.is_empty() {
        book.add_trace(DIALECT, "text", &words);
    }
    book.add_reply(Issued {
        seals,
        reasoning: None,
        items: Vec::new(),
        trail: standing.trail.clone(),
    });
}
