//! Checks reasoning that comes back over Chat Completions: required, optional or refused as text, and signed
//! if the model behind signs (`docs/protocols.md` 4.2, 5.4).

use serde_json::{Value, json};

use super::{DIALECT, find_reply, refuse};
use crate::strict::prompt::{Place, hash, items, text};
use crate::strict::reply_store::{IssuedReply, ReplyStore, SignatureKind};
use crate::strict::rules::{Host, ModelRules, ReasoningEcho, SignatureRule};
use crate::strict::verdict::{ApiError, DropReason, Loss, Rule};

/// Formats of `reasoning_details` that need their signature.
const SIGNED_FORMATS: [&str; 2] = ["anthropic-claude-v1", "google-gemini-v1"];
/// Values that skip the check of a signature (`docs/protocols.md` 5.4).
const SKIP_VALUES: [&str; 2] =
    ["skip_thought_signature_validator", "context_engineering_is_the_way_to_go"];

/// Checks all messages; returns for each whether its reasoning is read.
pub(super) fn check(
    model: &ModelRules,
    store: &ReplyStore,
    messages: &[&Value],
    thinks: bool,
    losses: &mut Vec<Loss>,
) -> Result<Vec<bool>, ApiError> {
    let last_user = messages.iter().rposition(|message| message["role"] == "user").unwrap_or(0);
    let mut is_read = vec![false; messages.len()];
    for (at, message) in messages.iter().enumerate() {
        if message["role"] != "assistant" {
            continue;
        }
        let issued = find_reply(store, message).and_then(|number| store.reply(number));
        check_text(model, at, message, issued, thinks, at > last_user, losses)?;
        let details_are_read = check_details(model, store, at, message, losses)?;
        if model.host == Host::GeminiCompat {
            check_signature(model, store, at, message, issued, at > last_user, losses)?;
        }
        is_read[at] = model.reasoning_echo != ReasoningEcho::Refused && details_are_read;
    }
    Ok(is_read)
}

fn place(message: usize) -> Place {
    Place::Message { message, block: 0 }
}

/// Checks `reasoning_content`, under any of its names.
fn check_text(
    model: &ModelRules,
    at: usize,
    message: &Value,
    issued: Option<&IssuedReply>,
    thinks: bool,
    current: bool,
    losses: &mut Vec<Loss>,
) -> Result<(), ApiError> {
    let names = ["reasoning_content", "reasoning", "reasoning_text"];
    let given = names.iter().find(|name| !message[**name].is_null());
    let reasoning = given.and_then(|name| message[*name].as_str());
    let calls = items(&message["tool_calls"]).len() > 0;
    match (model.reasoning_echo, given, reasoning) {
        (ReasoningEcho::Refused, Some(name), _) => {
            return refuse(
                Rule::ReasoningRefused,
                format!("messages.{at}: property '{name}' is unsupported"),
            );
        }
        (ReasoningEcho::Required, _, reasoning) if calls && thinks => {
            require_reasoning(model, at, reasoning)?;
        }
        _ => {}
    }
    let Some(expected) = issued.and_then(|issued| issued.reasoning_hash) else { return Ok(()) };
    if !thinks {
        return Ok(());
    }
    let is_expected = calls && (model.reasoning_echo == ReasoningEcho::Required || current);
    match reasoning.filter(|text| !["", " ", "."].contains(text)) {
        Some(text) if hash(&[text]) != expected => {
            losses.push(Loss::ReasoningChanged { place: place(at) });
        }
        None if is_expected && items(&message["reasoning_details"]).len() == 0 => {
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

fn require_reasoning(
    model: &ModelRules,
    at: usize,
    reasoning: Option<&str>,
) -> Result<(), ApiError> {
    // DeepSeek requires the field, which may be empty; Kimi requires some text in it (`docs/protocols.md` 4.2).
    match (model.host, reasoning) {
        (Host::Kimi, Some(text)) if !text.is_empty() => Ok(()),
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

fn check_details(
    model: &ModelRules,
    store: &ReplyStore,
    at: usize,
    message: &Value,
    losses: &mut Vec<Loss>,
) -> Result<bool, ApiError> {
    // Checks `reasoning_details`: signed entries unmodified, in order, with their signatures. Returns whether
    // they are read.
    let invalid = format!("messages.{at}.content.0: Invalid `signature` in `thinking` block");
    let mut signatures = Vec::new();
    let mut last_reply = None;
    for entry in items(&message["reasoning_details"]) {
        if !SIGNED_FORMATS.contains(&text(&entry["format"])) {
            continue;
        }
        let signature = entry["signature"].as_str().or_else(|| entry["data"].as_str());
        match signature.and_then(|signature| store.find_signature(DIALECT, signature)) {
            Some((number, signature))
                if signature.kind == SignatureKind::Thinking
                    && signature.content_hash == hash(&[text(&entry["text"])]) =>
            {
                signatures.push(number);
                last_reply = Some(signature);
            }
            _ => return refuse_wrapped(&invalid),
        }
    }
    let Some(signature) = last_reply else { return Ok(true) };
    if store.reply(signature.reply).is_some_and(|issued| issued.signatures != signatures) {
        return refuse_wrapped(&invalid);
    }
    if !model.reads(&signature.model) {
        losses.push(Loss::ReasoningDropped { place: place(at), reason: DropReason::Model });
        return Ok(false);
    }
    Ok(true)
}

fn refuse_wrapped<T>(raw: &str) -> Result<T, ApiError> {
    // Refuses with an upstream's error as OpenRouter forwards it (`docs/protocols.md` 4.2).
    let error =
        json!({"type": "error", "error": {"type": "invalid_request_error", "message": raw}});
    let body = json!({"error": {
        "message": "Provider returned error", "code": 400,
        "metadata": {"raw": error.to_string(), "provider_name": "Anthropic"},
    }});
    let error_response = ApiError::openai(Rule::SignatureInvalid, 400, None, None, raw.to_owned());
    Err(ApiError { body: Box::new(body), ..error_response })
}

fn check_signature(
    model: &ModelRules,
    store: &ReplyStore,
    at: usize,
    message: &Value,
    issued: Option<&IssuedReply>,
    current: bool,
    losses: &mut Vec<Loss>,
) -> Result<(), ApiError> {
    // Checks Gemini's signature on the first call of a step of the current turn (`docs/protocols.md` 5.4).
    for (n, call) in items(&message["tool_calls"]).enumerate() {
        let Some(given) = call["extra_content"]["google"]["thought_signature"].as_str() else {
            let expected = issued.is_none_or(|issued| !issued.signatures.is_empty());
            if n > 0 || !current || !expected {
                continue;
            }
            if model.signature_rule == SignatureRule::Required {
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
        if SKIP_VALUES.contains(&given) {
            losses.push(Loss::SignatureAbsent { place: place(at) });
            continue;
        }
        let content_hash = super::measure_call(call).hash;
        match store.find_signature(DIALECT, given) {
            Some((_, signature))
                if signature.kind == SignatureKind::ThoughtSignature
                    && signature.content_hash == content_hash =>
            {
                if !model.reads(&signature.model) {
                    losses.push(Loss::ReasoningDropped {
                        place: place(at),
                        reason: DropReason::Model,
                    });
                }
            }
            _ => return refuse(Rule::SignatureInvalid, "Thought signature is not valid."),
        }
    }
    Ok(())
}
