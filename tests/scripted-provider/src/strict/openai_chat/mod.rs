//! Checks of OpenAI Chat Completions and its look-alikes (`docs/protocols.md` 2, 4).
//!
//! One protocol, many hosts: the model's name decides what is required, refused or silently lost.

mod fields;
mod reasoning;
mod response;

use std::time::Duration;

use serde_json::Value;

use super::cache::CachePolicy;
use super::prompt::{
    PROMPT_TOKENS, PieceContent, Place, PromptPiece, hash, items, link, measure, measure_text, text,
};
use super::reply::ReplyContext;
use super::reply_store::{Prefix, ReplyStore};
use super::rules::{Host, ModelRules, ReasoningEcho};
use super::verdict::{ApiError, Rule};
use super::{Dialect, ParsedRequest, ReceivedRequest};
use demo_provider::ToolDefinition;

pub(super) use response::{record_reply, write_response};

const DIALECT: Dialect = Dialect::Chat;

fn refuse<T>(rule: Rule, message: impl Into<String>) -> Result<T, ApiError> {
    Err(ApiError::openai(rule, 400, None, None, message.into()))
}

/// Checks and parses a request.
pub(super) fn parse(
    request: &ReceivedRequest,
    model: &ModelRules,
    store: &ReplyStore,
) -> Result<ParsedRequest, ApiError> {
    if request.account.is_none() {
        let message = "You didn't provide an API key. You need to provide your API key in an Authorization header using Bearer auth (i.e. Authorization: Bearer YOUR_KEY).";
        return Err(ApiError::openai(Rule::Authentication, 401, None, None, message.into()));
    }
    fields::check(request, model)?;
    let messages: Vec<&Value> = items(&request.body["messages"]).collect();
    check_pairs(&messages)?;
    let thinks = thinks(&request.body, model);
    let mut losses = Vec::new();
    let has_readable_reasoning = reasoning::check(model, store, &messages, thinks, &mut losses)?;
    let mut pieces: Vec<PromptPiece> = items(&request.body["tools"])
        .enumerate()
        .map(|(at, tool)| measure("tool", tool).at(Place::Tool(at)))
        .collect();
    for (at, message) in messages.iter().enumerate() {
        message_pieces(at, message, has_readable_reasoning[at], &mut pieces);
    }
    let input = PROMPT_TOKENS + pieces.iter().map(|piece| piece.tokens).sum::<u64>();
    let room = check_window(request, model, input)?;
    let last_user = messages.iter().rposition(|message| message["role"] == "user");
    let current = last_user.map_or(0, |at| at + 1);
    let user_hash = last_user.map_or(0, |at| hash(&[&messages[at]["content"].to_string()]));
    let rounds = messages[current..].iter().filter(|m| m["role"] == "assistant").count() as u64;
    let max_output = ["max_completion_tokens", "max_tokens"];
    let max_output = max_output.iter().find_map(|name| request.body[*name].as_u64());
    let parent = messages.iter().rev().find_map(|message| find_reply(store, message));
    Ok(ParsedRequest {
        unedited_tokens: input,
        cache_key: cache_key(&request.body),
        cache_policy: cache_policy(model),
        prefix: Prefix {
            messages: pieces.iter().fold(0, |chain, piece| link(chain, piece.hash)),
            ..Prefix::default()
        },
        pieces,
        last_signature: None,
        parent,
        context: ReplyContext {
            thinks,
            must_begin_with_thinking: false,
            tools: functions(&request.body),
            user_hash,
            rounds,
            max_output: Some(max_output.unwrap_or(room).min(room)),
        },
        omits_thinking: false,
        transformations: Vec::new(),
        edits: Vec::new(),
        provider_edits: Vec::new(),
        losses,
    })
}

fn check_pairs(messages: &[&Value]) -> Result<(), ApiError> {
    // Calls have their results right after them, and every result has a call (`docs/protocols.md` 2.2).
    let mut open: Vec<&str> = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        if message["role"] == "tool" {
            let id = text(&message["tool_call_id"]);
            let Some(found) = open.iter().position(|open| *open == id) else {
                let param = format!("messages.[{at}].role");
                let message = "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'.";
                let rule = Rule::ResultWithoutCall;
                return Err(ApiError::openai(rule, 400, None, Some(&param), message.into()));
            };
            open.swap_remove(found);
            continue;
        }
        check_answered(&open, at)?;
        open = items(&message["tool_calls"]).map(|call| text(&call["id"])).collect();
        let mut unique = open.clone();
        unique.sort_unstable();
        unique.dedup();
        if unique.len() < open.len() {
            return refuse(
                Rule::ToolIdsUnique,
                format!("Invalid 'messages[{at}].tool_calls': ids must be unique."),
            );
        }
    }
    check_answered(&open, messages.len())
}

fn check_answered(open: &[&str], at: usize) -> Result<(), ApiError> {
    if open.is_empty() {
        return Ok(());
    }
    let message = format!(
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. The following tool_call_ids did not have response messages: {}",
        open.join(", ")
    );
    let param = format!("messages.[{at}].role");
    Err(ApiError::openai(Rule::CallUnanswered, 400, None, Some(&param), message))
}

/// A message as the model reads it. `reasoning` says whether its reasoning is read.
fn message_pieces(at: usize, message: &Value, reasoning: bool, pieces: &mut Vec<PromptPiece>) {
    let role = match text(&message["role"]) {
        "developer" => "system",
        "tool" => text(&message["tool_call_id"]),
        role => role,
    };
    let mut block = 0;
    let mut push = |measured: PieceContent| {
        pieces.push(measured.at(Place::Message { message: at, block }));
        block += 1;
    };
    if reasoning {
        reasoning_pieces(message, &mut push);
    }
    if let Some(content) = message["content"].as_str().filter(|text| !text.is_empty()) {
        push(measure_text(role, content));
    }
    items(&message["content"]).for_each(|part| push(measure(role, part)));
    items(&message["tool_calls"]).for_each(|call| push(measure_call(call)));
}

/// Reasoning as the model reads it: the details if there are any, else the text.
fn reasoning_pieces(message: &Value, push: &mut impl FnMut(PieceContent)) {
    let details = items(&message["reasoning_details"]);
    if details.len() > 0 {
        return details.for_each(|detail| push(measure("reasoning", detail)));
    }
    let texts = ["reasoning_content", "reasoning"].map(|name| text(&message[name]));
    if let Some(reasoning) = texts.into_iter().find(|text| !text.is_empty()) {
        push(measure_text("reasoning", reasoning));
    }
}

fn measure_call(call: &Value) -> PieceContent {
    // A call as the model reads it: its name and arguments, nothing else.
    let function = &call["function"];
    let content = format!("{}\n{}", text(&function["name"]), text(&function["arguments"]));
    measure_text(&format!("call {}", text(&call["id"])), &content)
}

fn functions(body: &Value) -> Vec<ToolDefinition> {
    let calls_none = body["tool_choice"] == "none";
    items(&body["tools"])
        .filter(|tool| !calls_none && tool["function"].is_object())
        .map(|tool| ToolDefinition {
            name: text(&tool["function"]["name"]).to_owned(),
            parameters: tool["function"]["parameters"].clone(),
        })
        .collect()
}

/// Whether the model reasons for this request.
fn thinks(body: &Value, model: &ModelRules) -> bool {
    let is_off = body["thinking"]["type"] == "disabled"
        || body["enable_thinking"] == false
        || body["reasoning_effort"] == "none";
    let reasons = match model.host {
        Host::OpenAi => model.reasons,
        Host::DeepSeek => model.name != "deepseek-chat" || body["thinking"]["type"] == "enabled",
        Host::GeminiCompat => true,
        _ => model.reasoning_echo != ReasoningEcho::Refused,
    };
    reasons && !is_off
}

/// Number of the issued reply that a message is, by its tool ids or its text.
fn find_reply(store: &ReplyStore, message: &Value) -> Option<usize> {
    if message["role"] != "assistant" {
        return None;
    }
    let mut calls = items(&message["tool_calls"]);
    calls.find_map(|call| store.find_reply(DIALECT, "id", text(&call["id"]))).or_else(|| {
        let full_text: String = match message["content"].as_str() {
            Some(content) => content.to_owned(),
            None => items(&message["content"]).map(|part| text(&part["text"])).collect(),
        };
        // Several replies may say the same: it is the one with its reasoning.
        let reasoning_and_text =
            message_reasoning(message).map(|reasoning| format!("{reasoning}\n{full_text}"));
        reasoning_and_text
            .and_then(|text| store.find_reply(DIALECT, "reasoning and text", &text))
            .or_else(|| store.find_reply(DIALECT, "text", &full_text))
    })
}

/// The reasoning of a message, under any of its names.
fn message_reasoning(message: &Value) -> Option<&str> {
    let names = ["reasoning_content", "reasoning", "reasoning_text"];
    names.iter().find_map(|name| message[*name].as_str())
}

fn cache_key(body: &Value) -> u128 {
    // Requests with different keys share no cache (`docs/protocols.md` 7.2, the reasons that the API gives for
    // a miss).
    let names =
        ["prompt_cache_key", "response_format", "reasoning_effort", "verbosity", "service_tier"];
    let values: Vec<String> = names.iter().map(|name| body[*name].to_string()).collect();
    hash(&values.iter().map(String::as_str).collect::<Vec<_>>())
}

fn cache_policy(model: &ModelRules) -> CachePolicy {
    // `docs/protocols.md` 7.2, 7.3.
    let (step, minutes) = match model.host {
        Host::DeepSeek => (64, 120),
        _ if model.bills_cache_writes => (128, 30),
        _ => (128, 5),
    };
    CachePolicy::Automatic { min: model.cache_min, step, ttl: Duration::from_secs(60 * minutes) }
}

/// Returns the room for output, tokens.
fn check_window(
    request: &ReceivedRequest,
    model: &ModelRules,
    input: u64,
) -> Result<u64, ApiError> {
    // `docs/protocols.md` 2.5, 4.3: each host has its own message.
    let window = model.window;
    let requested = ["max_completion_tokens", "max_tokens"];
    let requested = requested.iter().find_map(|name| request.body[*name].as_u64()).unwrap_or(0);
    let total = match model.host {
        Host::DeepSeek => input + requested,
        _ => input,
    };
    if total <= window {
        return Ok(window - input);
    }
    let message = match model.host {
        Host::OpenAi if model.reasons => "Your input exceeds the context window of this model. Please adjust your input and try again.".to_owned(),
        Host::OpenAi => format!("This model's maximum context length is {window} tokens. However, your messages resulted in {input} tokens. Please reduce the length of the messages."),
        Host::DeepSeek => format!("This model's maximum context length is {window} tokens. However, you requested {total} tokens ({input} in the messages, {requested} in the completion). Please reduce the length of the messages or completion."),
        Host::Kimi => format!("Your request exceeded model token limit: {window} (requested: {input})"),
        Host::OpenRouter => format!("This endpoint's maximum context length is {window} tokens. However, you requested about {input} tokens ({input} of text input). Please reduce the length of either one."),
        Host::Xai => format!("This model's maximum prompt length is {window} but the request contains {input} tokens."),
        Host::Mistral => format!("Prompt contains {input} tokens, too large for model with {window} maximum context length"),
        Host::GeminiCompat => format!("The input token count ({input}) exceeds the maximum number of tokens allowed ({window})."),
        Host::Compatible => format!("This model's maximum context length is {window} tokens. However, you requested {requested} output tokens and your prompt contains {input} input tokens, for a total of {} tokens. Please reduce the length of the input prompt or the number of requested output tokens.", input + requested),
    };
    let code = (model.host == Host::OpenAi).then_some("context_length_exceeded");
    Err(ApiError::openai(Rule::Overflow, 400, code, Some("messages"), message))
}

#[cfg(test)]
mod tests;
