//! Reasoning that comes back over Chat Completions: demanded, welcome or refused as text, and sealed
//! where a signing model stands behind (`docs/protocols.md` 4.2, 5.4).

use serde_json::{Value, json};

use super::{DIALECT, refuse, trace};
use crate::strict::prompt::{Place, hash, items, text};
use crate::strict::reply_store::{Book, Issued, Kind};
use crate::strict::rules::{Echo, Host, Model, Signatures};
use crate::strict::verdict::{Loss, Refusal, Rule, Why};

/// Formats of `reasoning_details` that are worth nothing without their seal.
const SIGNING: [&str; 2] = ["anthropic-claude-v1", "google-gemini-v1"];
/// What skips the check of a signature (`docs/protocols.md` 5.4).
const SKIPS: [&str; 2] =
    ["skip_thought_signature_validator", "context_engineering_is_the_way_to_go"];

/// Checks all messages; answers of which the reasoning is read.
pub(super) fn check(
    model: &Model,
    book: &Book,
    messages: &[&Value],
    thinks: bool,
    losses: &mut Vec<Loss>,
) -> Result<Vec<bool>, Refusal> {
    let said = messages.iter().rposition(|message| message["role"] == "user").unwrap_or(0);
    let mut read = vec![false; messages.len()];
    for (at, message) in messages.iter().enumerate() {
        if message["role"] != "assistant" {
            continue;
        }
        let issued = trace(book, message).and_then(|number| book.reply(number));
        plain(model, at, message, issued, thinks, at > said, losses)?;
        let details = details(model, book, at, message, losses)?;
        if model.host == Host::GeminiCompat {
            signature(model, book, at, message, issued, at > said, losses)?;
        }
        read[at] = model.echo != Echo::Refused && details;
    }
    Ok(read)
}

fn place(message: usize) -> Place {
    Place::Message { message, block: 0 }
}

/// `reasoning_content`, or what a host calls it.
fn plain(
    model: &Model,
    at: usize,
    message: &Value,
    issued: Option<&Issued>,
    thinks: bool,
    current: bool,
    losses: &mut Vec<Loss>,
) -> Result<(), Refusal> {
    let names = ["reasoning_content", "reasoning", "reasoning_text"];
    let given = names.iter().find(|name| !message[**name].is_null());
    let words = given.and_then(|name| message[*name].as_str());
    let calls = items(&message["tool_calls"]).len() > 0;
    match (model.echo, given, words) {
        (Echo::Refused, Some(name), _) => {
            return refuse(
                Rule::ReasoningRefused,
                format!("messages.{at}: property '{name}' is unsupported"),
            );
        }
        (Echo::Demanded, _, words) if calls && thinks => demanded(model, at, words)?,
        _ => {}
    }
    let Some(expected) = issued.and_then(|issued| issued.reasoning).filter(|_| thinks) else {
        return Ok(());
    };
    let wanted = calls && (model.echo == Echo::Demanded || current);
    match words.filter(|words| !["", " ", "."].contains(words)) {
        Some(words) if hash(&[words]) != expected => {
            losses.push(Loss::ReasoningChanged { place: place(at) });
        }
        None if wanted && items(&message["reasoning_details"]).len() == 0 => {
            losses.push(Loss::ReasoningAbsent {
                place: place(at),
                issued: 1,
                present: 0,
                readable: true,
            });
        }
        _ => {}
    }
    Ok(())
}

/// DeepSeek wants the field, be it empty; Kimi wants something in it (`docs/protocols.md` 4.2).
fn demanded(model: &Model, at: usize, words: Option<&str>) -> Result<(), Refusal> {
    match (model.host, words) {
        (Host::Kimi, Some(words)) if !words.is_empty() => Ok(()),
        (Host::Kimi, _) => refuse(
            Rule::ReasoningMissing,
            format!(
                "thinking is enabled but reasoning_content is missing in assistant tool call message at index {at}"
            ),
        ),
        (_, Some(_)) => Ok(()),
        (_, None) => refuse(
            Rule::ReasoningMissing,
            "The reasoning_content in the thinking mode must be passed back to the API.",
        ),
    }
}

/// `reasoning_details`: sealed entries unmodified, in order, with their seals. Answers whether they
/// are read.
fn details(
    model: &Model,
    book: &Book,
    at: usize,
    message: &Value,
    losses: &mut Vec<Loss>,
) -> Result<bool, Refusal> {
    let invalid = format!("messages.{at}.content.0: Invalid `signature` in `thinking` block");
    let mut seals = Vec::new();
    let mut reply = None;
    for entry in items(&message["reasoning_details"]) {
        if !SIGNING.contains(&text(&entry["format"])) {
            continue;
        }
        let signature = entry["signature"].as_str().or_else(|| entry["data"].as_str());
        match signature.and_then(|signature| book.seal(DIALECT, signature)) {
            Some((number, seal))
                if seal.kind == Kind::Thinking && seal.text == hash(&[text(&entry["text"])]) =>
            {
                seals.push(number);
                reply = Some(seal);
            }
            _ => return wrapped(&invalid),
        }
    }
    let Some(seal) = reply else { return Ok(true) };
    if book.reply(seal.reply).is_some_and(|issued| issued.seals != seals) {
        return wrapped(&invalid);
    }
    if !model.reads(&seal.model) {
        losses.push(Loss::ReasoningDropped { place: place(at), why: Why::Model });
        return Ok(false);
    }
    Ok(true)
}

/// An upstream's error as OpenRouter passes it on (`docs/protocols.md` 4.2).
fn wrapped<T>(raw: &str) -> Result<T, Refusal> {
    let error =
        json!({"type": "error", "error": {"type": "invalid_request_error", "message": raw}});
    let body = json!({"error": {
        "message": "Provider returned error", "code": 400,
        "metadata": {"raw": error.to_string(), "provider_name": "Anthropic"},
    }});
    let refusal = Refusal::openai(Rule::SignatureInvalid, 400, None, None, raw.to_owned());
    Err(Refusal { body: Box::new(body), ..refusal })
}

/// Gemini's signature on the first call of a step of the current turn (`docs/protocols.md` 5.4).
fn signature(
    model: &Model,
    book: &Book,
    at: usize,
    message: &Value,
    issued: Option<&Issued>,
    current: bool,
    losses: &mut Vec<Loss>,
) -> Result<(), Refusal> {
    for (n, call) in items(&message["tool_calls"]).enumerate() {
        let Some(given) = call["extra_content"]["google"]["thought_signature"].as_str() else {
            let expected = issued.is_none_or(|issued| !issued.seals.is_empty());
            if n > 0 || !current || !expected {
                continue;
            }
            if model.signatures == Signatures::Required {
                let name = text(&call["function"]["name"]);
                return refuse(
                    Rule::SignatureMissing,
                    format!(
                        "Function call is missing a thought_signature in functionCall parts. This is required for tools to work correctly, and missing thought_signature may lead to degraded model performance. Additional data, function call `default_api:{name}` , position {at}."
                    ),
                );
            }
            losses.push(Loss::SignatureAbsent { place: place(at) });
            continue;
        };
        if SKIPS.contains(&given) {
            losses.push(Loss::SignatureAbsent { place: place(at) });
            continue;
        }
        let words = super::weigh_call(call).hash;
        match book.seal(DIALECT, given) {
            Some((_, seal)) if seal.kind == Kind::Thought && seal.text == words => {
                if !model.reads(&seal.model) {
                    losses.push(Loss::ReasoningDropped { place: place(at), why: Why::Model });
                }
            }
            _ => return refuse(Rule::SignatureInvalid, "Thought signature is not valid."),
        }
    }
    Ok(())
}
