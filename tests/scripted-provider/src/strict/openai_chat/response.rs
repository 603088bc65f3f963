//! A reply in Chat Completions' words, and what is remembered of one (`docs/protocols.md` 2.4, 4).
//!
//! Each host carries reasoning and usage in fields of its own; a stream of it is the speakers' affair.

use serde_json::{Value, json};

use super::DIALECT;
use crate::strict::Call;
use crate::strict::prompt::{hash, items, text, weigh, weigh_text};
use crate::strict::reply::{Part, Reply};
use crate::strict::reply_store::{Book, Issued, Kind, Mint, Seal};
use crate::strict::rules::{Echo, Host, Model};
use crate::strict::verdict::Accepted;

/// The completion.
pub(crate) fn write(
    call: &Call,
    model: &Model,
    accepted: &Accepted,
    reply: &Reply,
    mint: &mut Mint,
) -> Value {
    let mut message = json!({"role": "assistant", "content": null, "refusal": null});
    let (mut words, mut thoughts, mut calls) = (String::new(), Vec::new(), Vec::new());
    let (mut output, mut reasoned, mut finish) = (0, 0, "stop");
    let most = accepted.standing.scene.max_output.unwrap_or(u64::MAX);
    for part in &reply.parts {
        let (cost, hidden) = match part {
            Part::Thinking { text, tokens } => (*tokens, text.as_str()),
            Part::Sealed { tokens } | Part::Redacted { tokens } => (*tokens, ""),
            Part::Text(text) => (weigh_text("assistant", text).tokens, ""),
            Part::Call { name, arguments } => {
                let first = calls.is_empty();
                calls.push(tool_call(name, arguments, model, first && reply.thinks(), mint));
                (calls.last().map_or(0, |call| super::weigh_call(call).tokens), "")
            }
        };
        if output + cost > most {
            finish = "length";
            if matches!(part, Part::Call { .. }) {
                calls.pop();
            }
            break;
        }
        output += cost;
        match part {
            Part::Text(text) => words += text,
            Part::Call { .. } => finish = "tool_calls",
            _ => {
                reasoned += cost;
                thoughts.extend(Some(hidden).filter(|words| !words.is_empty()));
            }
        }
    }
    if model.echo == Echo::Demanded && accepted.standing.scene.thinks && thoughts.is_empty() {
        // Who demands reasoning always reasons.
        thoughts.push("Hm.");
    }
    // What is shown of reasoning costs what it weighs when it comes back.
    if model.echo != Echo::Refused && !thoughts.is_empty() {
        show(&mut message, model, &thoughts, mint);
        let mut shown = Vec::new();
        super::reasoning_pieces(&message, &mut |weighed| shown.push(weighed.tokens));
        let shown: u64 = shown.iter().sum();
        output = output - reasoned + shown;
        reasoned = shown;
    }
    if !words.is_empty() || calls.is_empty() {
        message["content"] = json!(words);
    }
    if !calls.is_empty() {
        message["tool_calls"] = json!(calls);
    }
    json!({
        "id": mint.id("chatcmpl-"), "object": "chat.completion", "created": 1_795_000_000_u64,
        "model": call.model,
        "choices": [{"index": 0, "message": message, "logprobs": null, "finish_reason": finish}],
        "usage": usage(model, accepted, output, reasoned),
    })
}

/// Reasoning where this host carries it (`docs/protocols.md` 4.2).
fn show(message: &mut Value, model: &Model, thoughts: &[&str], mint: &mut Mint) {
    let whole = thoughts.concat();
    if model.host != Host::OpenRouter {
        message["reasoning_content"] = json!(whole);
        return;
    }
    let mut detail = |(index, words): (usize, &&str)| {
        let mut detail =
            json!({"type": "reasoning.text", "text": words, "format": "unknown", "index": index});
        if model.name.contains("claude") {
            detail["format"] = json!("anthropic-claude-v1");
            detail["signature"] = json!(mint.signature(180));
        }
        detail
    };
    let details: Vec<Value> = thoughts.iter().enumerate().map(&mut detail).collect();
    message["reasoning"] = json!(whole);
    message["reasoning_details"] = json!(details);
}

fn tool_call(name: &str, arguments: &Value, model: &Model, signs: bool, mint: &mut Mint) -> Value {
    let function = json!({"name": name, "arguments": arguments.to_string()});
    let mut call = json!({"id": mint.id("call_"), "type": "function", "function": function});
    if signs && model.host == Host::GeminiCompat {
        let signature = mint.signature(150);
        call["extra_content"] = json!({"google": {"thought_signature": signature}});
    }
    call
}

/// `docs/protocols.md` 2.4, 4.1: each host has its own fields.
fn usage(model: &Model, accepted: &Accepted, output: u64, reasoned: u64) -> Value {
    let (input, cached) = (accepted.input_tokens, accepted.cached);
    let outside = if model.host == Host::Xai { reasoned } else { 0 };
    let mut usage = json!({
        "prompt_tokens": input, "completion_tokens": output - outside, "total_tokens": input + output,
        "prompt_tokens_details": {"cached_tokens": cached.read, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": reasoned},
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

/// Remembers a completion as issued: its seals, ids and words.
pub(crate) fn remember(
    call: &Call,
    model: &Model,
    accepted: &Accepted,
    whole: &Value,
    book: &mut Book,
) {
    let message = &whole["choices"][0]["message"];
    let (reply, account) = (book.next_reply(), call.account.unwrap_or_default());
    let mut sealed = Vec::new();
    for entry in items(&message["reasoning_details"]) {
        if let Some(signature) = entry["signature"].as_str().or_else(|| entry["data"].as_str()) {
            let tokens = weigh("reasoning", entry).tokens;
            sealed.push((signature, Kind::Thinking, hash(&[text(&entry["text"])]), tokens));
        }
    }
    for call in items(&message["tool_calls"]) {
        book.add_trace(DIALECT, "id", text(&call["id"]));
        if let Some(signature) = call["extra_content"]["google"]["thought_signature"].as_str() {
            sealed.push((signature, Kind::Thought, super::weigh_call(call).hash, 0));
        }
    }
    let mut seals = Vec::new();
    for (signature, kind, text, tokens) in sealed {
        let number = book.next_seal();
        seals.push(number);
        let seal = Seal {
            kind,
            account,
            model: model.name.clone(),
            text,
            prefix: accepted.standing.prefix,
            before: None,
            reply,
            run: (number, 1),
            lead: 0,
            tokens,
            id: String::new(),
        };
        book.add_seal(DIALECT, signature, seal);
    }
    if let Some(words) = message["content"].as_str().filter(|words| !words.is_empty()) {
        book.add_trace(DIALECT, "text", words);
    }
    let reasoning = ["reasoning_content", "reasoning"];
    let reasoning = reasoning.iter().find_map(|name| message[*name].as_str());
    book.add_reply(Issued {
        seals,
        reasoning: reasoning.filter(|words| !words.is_empty()).map(|words| hash(&[words])),
        items: Vec::new(),
        trail: accepted.standing.trail.clone(),
    });
}
