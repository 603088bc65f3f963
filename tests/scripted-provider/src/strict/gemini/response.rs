//! A reply in Gemini's words, and what is remembered of one (`docs/protocols.md` 5.3, 5.4).
//!
//! The signature of a step sits on its first call; where nothing is called, on an empty text at the end.

use serde_json::{Value, json};

use super::thought_signatures::signed_hash;
use super::{DIALECT, get, thought_tokens, weigh_call, weigh_part};
use crate::strict::Call;
use crate::strict::prompt::{items, text};
use crate::strict::reply::{Part, Reply};
use crate::strict::reply_store::{Book, Issued, Kind, Mint, Seal};
use crate::strict::rules::{Model, Signatures};
use crate::strict::verdict::Accepted;

/// The response, with what its signature weighs.
pub(crate) fn write(
    call: &Call,
    model: &Model,
    accepted: &Accepted,
    reply: &Reply,
    mint: &mut Mint,
) -> (Value, Vec<u64>) {
    let most = accepted.standing.scene.max_output.unwrap_or(u64::MAX);
    let (mut parts, mut thought, mut candidates) = (Vec::new(), 0, 0);
    let mut finish = "STOP";
    for part in &reply.parts {
        let (part, tokens) = match part {
            Part::Thinking { text, tokens } if !accepted.standing.omits && !text.is_empty() => {
                (Some(json!({"text": text, "thought": true})), *tokens)
            }
            Part::Thinking { tokens, .. } | Part::Sealed { tokens } | Part::Redacted { tokens } => {
                (None, *tokens)
            }
            Part::Text(text) => (Some(json!({"text": text})), 0),
            Part::Call { name, arguments } => {
                let call = json!({"id": mint.id(""), "name": name, "args": arguments});
                (Some(json!({"functionCall": call})), 0)
            }
        };
        let weighed = part.as_ref().and_then(|part| weigh_part("model", part));
        let cost = tokens + weighed.map_or(0, |weighed| weighed.tokens);
        if thought + candidates + cost > most {
            finish = "MAX_TOKENS";
            break;
        }
        thought += tokens;
        candidates += cost - tokens;
        parts.extend(part);
    }
    let called = parts.iter_mut().find(|part| part["functionCall"].is_object());
    let weight = thought;
    if thought > 0 || called.is_some() && model.signatures == Signatures::Required {
        let signature = json!(mint.signature(130));
        match called {
            Some(part) => part["thoughtSignature"] = signature,
            None => parts.push(json!({"text": "", "thoughtSignature": signature})),
        }
    }
    let thought = thought_tokens(thought);
    let input = accepted.input_tokens;
    let mut usage = json!({
        "promptTokenCount": input, "candidatesTokenCount": candidates,
        "totalTokenCount": input + candidates + thought,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": input}],
    });
    if thought > 0 {
        usage["thoughtsTokenCount"] = json!(thought);
    }
    if accepted.cached.read > 0 {
        usage["cachedContentTokenCount"] = json!(accepted.cached.read);
    }
    let content = json!({"parts": parts, "role": "model"});
    let whole = json!({
        "candidates": [{"content": content, "finishReason": finish, "index": 0}],
        "usageMetadata": usage, "modelVersion": call.model, "responseId": mint.id(""),
    });
    (whole, vec![weight])
}

/// Remembers a response as issued: its signatures, ids and words.
pub(crate) fn remember(
    call: &Call,
    model: &Model,
    accepted: &Accepted,
    whole: &Value,
    weights: &[u64],
    book: &mut Book,
) {
    let (reply, account) = (book.next_reply(), call.account.unwrap_or_default());
    let mut seals = Vec::new();
    let mut words = String::new();
    for part in items(&whole["candidates"][0]["content"]["parts"]) {
        if part["thought"] != true {
            words += text(&part["text"]);
        }
        let called = get(part, "functionCall");
        if called.is_object() {
            book.add_trace(DIALECT, "call", &weigh_call(called).hash.to_string());
        }
        if let Some(id) = called["id"].as_str() {
            book.add_trace(DIALECT, "id", id);
        }
        let Some(signature) = part["thoughtSignature"].as_str() else { continue };
        let number = book.next_seal();
        let seal = Seal {
            kind: Kind::Thought,
            account,
            model: model.name.clone(),
            text: signed_hash(part),
            prefix: accepted.standing.prefix,
            before: None,
            reply,
            run: (number, 1),
            lead: 0,
            tokens: weights.get(seals.len()).copied().unwrap_or_default(),
            id: String::new(),
        };
        seals.push(number);
        book.add_seal(DIALECT, signature, seal);
    }
    if !words.is_empty() {
        book.add_trace(DIALECT, "text", &words);
    }
    book.add_reply(Issued {
        seals,
        reasoning: None,
        items: Vec::new(),
        trail: accepted.standing.trail.clone(),
    });
}
