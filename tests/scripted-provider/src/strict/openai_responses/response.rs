//! A reply as a Responses object, and what is remembered of one (`docs/protocols.md` 3.4, 3.5).
//!
//! Each piece of reasoning is an item of its own, encrypted, right before what it led to.

use serde_json::{Value, json};

use super::{DIALECT, Item, weigh_item};
use crate::strict::Call;
use crate::strict::prompt::{STRUCTURE, items, link, text};
use crate::strict::reply::{Part, Reply};
use crate::strict::reply_store::{self, Book, Issued, Kind, Mint, Prefix, Seal};
use crate::strict::rules::Model;
use crate::strict::verdict::{Accepted, Transformation, Why};

/// The response, with what each reasoning item weighs.
pub(crate) fn write(
    call: &Call,
    model: &Model,
    accepted: &Accepted,
    reply: &Reply,
    mint: &mut Mint,
) -> (Value, Vec<u64>) {
    let phase = model.phases.then(|| if reply.calls() { "commentary" } else { "final_answer" });
    let most = accepted.standing.scene.max_output.unwrap_or(u64::MAX);
    let (mut spent, mut reasoned, mut weights) = (0, 0, Vec::new());
    let (mut output, mut status) = (Vec::new(), "completed");
    for part in &reply.parts {
        let (item, thought) = item(part, phase, accepted.standing.omits, mint);
        let cost = thought.map_or_else(|| weight(&item), |tokens| tokens + STRUCTURE);
        if spent + cost > most {
            status = "incomplete";
            break;
        }
        spent += cost;
        if let Some(tokens) = thought {
            reasoned += cost;
            weights.push(tokens);
        }
        output.push(item);
    }
    let cached = accepted.cached;
    let mut response = json!({
        "id": mint.id("resp_"), "object": "response", "created_at": 1_795_000_000_u64,
        "status": status, "error": null, "incomplete_details": null,
        "instructions": call.body["instructions"], "max_output_tokens": call.body["max_output_tokens"],
        "model": call.model, "output": output, "parallel_tool_calls": true,
        "previous_response_id": call.body["previous_response_id"], "reasoning": call.body["reasoning"],
        "store": call.body["store"] != false, "temperature": 1.0, "tool_choice": "auto",
        "tools": call.body["tools"], "top_p": 1.0, "truncation": "disabled", "metadata": {},
        "usage": {
            "input_tokens": accepted.input_tokens,
            "input_tokens_details": {"cached_tokens": cached.read, "cache_write_tokens": if model.bills_cache_writes { cached.written_5m } else { 0 }},
            "output_tokens": spent, "output_tokens_details": {"reasoning_tokens": reasoned},
            "total_tokens": accepted.input_tokens + spent,
        },
    });
    if status == "incomplete" {
        response["incomplete_details"] = json!({"reason": "max_output_tokens"});
    }
    if !accepted.transformations.is_empty() {
        let all: Vec<Value> = accepted.transformations.iter().map(transformation).collect();
        response["input_transformations"] = json!(all);
    }
    (response, weights)
}

/// A part as an item, with the weight of a thought.
fn item(part: &Part, phase: Option<&str>, omits: bool, mint: &mut Mint) -> (Value, Option<u64>) {
    let item = match part {
        Part::Thinking { text, tokens } => {
            let shown = !omits && !text.is_empty();
            let summary = shown.then(|| json!({"type": "summary_text", "text": text}));
            return (reasoning(summary, mint), Some(*tokens));
        }
        Part::Sealed { tokens } | Part::Redacted { tokens } => {
            return (reasoning(None, mint), Some(*tokens));
        }
        Part::Text(text) => {
            let mut message = json!({
                "id": mint.id("msg_"), "type": "message", "status": "completed", "role": "assistant",
                "content": [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}],
            });
            if let Some(phase) = phase {
                message["phase"] = json!(phase);
            }
            message
        }
        Part::Call { name, arguments } => json!({
            "id": mint.id("fc_"), "type": "function_call", "status": "completed",
            "call_id": mint.id("call_"), "name": name, "arguments": arguments.to_string(),
        }),
    };
    (item, None)
}

fn reasoning(summary: Option<Value>, mint: &mut Mint) -> Value {
    let summary: Vec<Value> = summary.into_iter().collect();
    json!({
        "id": mint.id("rs_"), "type": "reasoning", "summary": summary,
        "encrypted_content": mint.signature(420),
    })
}

fn weight(item: &Value) -> u64 {
    weigh_item(&as_item(item)).iter().map(|one| one.tokens).sum()
}

fn as_item(value: &Value) -> Item<'_> {
    Item { kind: text(&value["type"]).to_owned(), value: std::borrow::Cow::Borrowed(value) }
}

/// `docs/protocols.md` 3.5.
fn transformation(one: &Transformation) -> Value {
    let reason = match one.why {
        Why::Model => "model_mismatch",
        Why::Account => "organization_mismatch",
        Why::Prefix => "prefix_mismatch",
        Why::Turn => "turn_boundary",
    };
    json!({"id": one.id, "type": "reasoning", "action": "removed", "reason": reason})
}

/// Remembers a response as issued: seals, items and their neighbours, and where it is stored, all of it.
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
    let output: Vec<&Value> = items(&whole["output"]).collect();
    let is_reasoning = |item: &&Value| item["type"] == "reasoning";
    let id = |item: &Value| text(&item["id"]).to_owned();
    let (mut chain, mut lead) = (standing.prefix.messages, 0);
    let (mut seals, mut before, mut issued) = (Vec::new(), Vec::new(), Vec::new());
    for (at, item) in output.iter().enumerate() {
        let led_to = output[at..].iter().find(|item| !is_reasoning(item)).map(|item| id(item));
        let mut one = reply_store::Item {
            id: id(item),
            reasoning: Vec::new(),
            led_to: led_to.filter(|_| is_reasoning(item)),
            phase: item["phase"].as_str().map(str::to_owned),
        };
        if is_reasoning(item) {
            let number = book.next_seal();
            let seal = Seal {
                kind: Kind::Encrypted,
                account,
                model: model.name.clone(),
                text: 0,
                prefix: Prefix { messages: chain, ..standing.prefix },
                before: None,
                reply,
                run: (number, 1),
                lead,
                tokens: weights.get(seals.len()).copied().unwrap_or_default(),
                id: one.id.clone(),
            };
            seals.push(number);
            book.add_seal(DIALECT, text(&item["encrypted_content"]), seal);
            before.push(one.id.clone());
        } else {
            one.reasoning = std::mem::take(&mut before);
            lead += 1;
            chain =
                weigh_item(&as_item(item)).iter().fold(chain, |chain, one| link(chain, one.hash));
            book.add_trace(DIALECT, "id", &one.id);
            if let Some(call_id) = item["call_id"].as_str() {
                book.add_trace(DIALECT, "call", call_id);
            }
            let words: String = items(&item["content"]).map(|part| text(&part["text"])).collect();
            if !words.is_empty() {
                book.add_trace(DIALECT, "text", &words);
            }
        }
        issued.push(one);
    }
    if call.body["store"] != false {
        book.store(whole, &call.body, account);
    }
    book.add_reply(Issued { seals, reasoning: None, items: issued, trail: standing.trail.clone() });
}
