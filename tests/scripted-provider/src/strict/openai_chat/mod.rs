//! OpenAI Chat Completions and its look-alikes, judged (`docs/protocols.md` 2, 4).
//!
//! One protocol, many hosts: what is demanded, refused or silently lost goes by the model's name.

mod fields;
mod reasoning;
mod response;

use std::time::Duration;

use serde_json::Value;

use super::cache::Policy;
use super::prompt::{PROMPT, Piece, Place, Weighed, hash, items, link, text, weigh, weigh_text};
use super::reply::Scene;
use super::reply_store::{Book, Prefix};
use super::rules::{Echo, Host, Model};
use super::verdict::{Refusal, Rule};
use super::{Call, Dialect, Reading};

pub(super) use response::{remember, write};

const DIALECT: Dialect = Dialect::Chat;

fn refuse<T>(rule: Rule, message: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::openai(rule, 400, None, None, message.into()))
}

/// Judges a request.
pub(super) fn read(call: &Call, model: &Model, book: &Book) -> Result<Reading, Refusal> {
    if call.account.is_none() {
        let message = "You didn't provide an API key. You need to provide your API key in an Authorization header using Bearer auth (i.e. Authorization: Bearer YOUR_KEY).";
        return Err(Refusal::openai(Rule::Authentication, 401, None, None, message.into()));
    }
    fields::check(call, model)?;
    let messages: Vec<&Value> = items(&call.body["messages"]).collect();
    pairs(&messages)?;
    let thinks = thinks(&call.body, model);
    let mut losses = Vec::new();
    let read = reasoning::check(model, book, &messages, thinks, &mut losses)?;
    let mut pieces: Vec<Piece> = items(&call.body["tools"])
        .enumerate()
        .map(|(at, tool)| weigh("tool", tool).at(Place::Tool(at)))
        .collect();
    for (at, message) in messages.iter().enumerate() {
        message_pieces(at, message, read[at], &mut pieces);
    }
    let input = PROMPT + pieces.iter().map(|piece| piece.tokens).sum::<u64>();
    let room = overflow(call, model, input)?;
    let said = messages.iter().rposition(|message| message["role"] == "user");
    let after = said.map_or(0, |said| said + 1);
    let said = said.map_or(0, |at| hash(&[&messages[at]["content"].to_string()]));
    let rounds = messages[after..].iter().filter(|m| m["role"] == "assistant").count() as u64;
    let max_output = ["max_completion_tokens", "max_tokens"];
    let max_output = max_output.iter().find_map(|name| call.body[*name].as_u64());
    let parent = messages.iter().rev().find_map(|message| trace(book, message));
    Ok(Reading {
        unedited: input,
        cache_key: cache_key(&call.body),
        policy: policy(model),
        prefix: Prefix {
            messages: pieces.iter().fold(0, |chain, piece| link(chain, piece.hash)),
            ..Prefix::default()
        },
        pieces,
        last_seal: None,
        parent,
        scene: Scene {
            thinks,
            begins_thinking: false,
            tools: functions(&call.body),
            said,
            rounds,
            max_output: Some(max_output.unwrap_or(room).min(room)),
        },
        omits: false,
        transformations: Vec::new(),
        edits: Vec::new(),
        own: Vec::new(),
        losses,
    })
}

/// Calls are answered at once and completely, and nothing else is (`docs/protocols.md` 2.2).
fn pairs(messages: &[&Value]) -> Result<(), Refusal> {
    let mut open: Vec<&str> = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        if message["role"] == "tool" {
            let id = text(&message["tool_call_id"]);
            let Some(found) = open.iter().position(|open| *open == id) else {
                let param = format!("messages.[{at}].role");
                let message = "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'.";
                let rule = Rule::ResultWithoutCall;
                return Err(Refusal::openai(rule, 400, None, Some(&param), message.into()));
            };
            open.swap_remove(found);
            continue;
        }
        unanswered(&open, at)?;
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
    unanswered(&open, messages.len())
}

fn unanswered(open: &[&str], at: usize) -> Result<(), Refusal> {
    if open.is_empty() {
        return Ok(());
    }
    let message = format!(
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. The following tool_call_ids did not have response messages: {}",
        open.join(", ")
    );
    let param = format!("messages.[{at}].role");
    Err(Refusal::openai(Rule::CallUnanswered, 400, None, Some(&param), message))
}

/// A message as the model reads it. `reasoning` says whether its reasoning is read.
fn message_pieces(at: usize, message: &Value, reasoning: bool, pieces: &mut Vec<Piece>) {
    let role = match text(&message["role"]) {
        "developer" => "system",
        "tool" => text(&message["tool_call_id"]),
        role => role,
    };
    let mut block = 0;
    let mut push = |weighed: Weighed| {
        pieces.push(weighed.at(Place::Message { message: at, block }));
        block += 1;
    };
    if reasoning {
        reasoning_pieces(message, &mut push);
    }
    if let Some(words) = message["content"].as_str().filter(|words| !words.is_empty()) {
        push(weigh_text(role, words));
    }
    items(&message["content"]).for_each(|part| push(weigh(role, part)));
    items(&message["tool_calls"]).for_each(|call| push(weigh_call(call)));
}

/// Reasoning as it is read: the details where there are any, else the text.
fn reasoning_pieces(message: &Value, push: &mut impl FnMut(Weighed)) {
    let details = items(&message["reasoning_details"]);
    if details.len() > 0 {
        return details.for_each(|detail| push(weigh("reasoning", detail)));
    }
    let texts = ["reasoning_content", "reasoning"].map(|name| text(&message[name]));
    if let Some(words) = texts.into_iter().find(|words| !words.is_empty()) {
        push(weigh_text("reasoning", words));
    }
}

/// A call weighs its name and arguments; what else hangs on it is not rendered.
fn weigh_call(call: &Value) -> Weighed {
    let function = &call["function"];
    let words = format!("{}\n{}", text(&function["name"]), text(&function["arguments"]));
    weigh_text(&format!("call {}", text(&call["id"])), &words)
}

fn functions(body: &Value) -> Vec<(String, Value)> {
    let none = body["tool_choice"] == "none";
    items(&body["tools"])
        .filter(|tool| !none && tool["function"].is_object())
        .map(|tool| {
            (text(&tool["function"]["name"]).to_owned(), tool["function"]["parameters"].clone())
        })
        .collect()
}

/// Whether the model reasons for this request.
fn thinks(body: &Value, model: &Model) -> bool {
    let off = body["thinking"]["type"] == "disabled"
        || body["enable_thinking"] == false
        || body["reasoning_effort"] == "none";
    let reasons = match model.host {
        Host::OpenAi => model.reasons,
        Host::DeepSeek => model.name != "deepseek-chat" || body["thinking"]["type"] == "enabled",
        Host::GeminiCompat => true,
        _ => model.echo != Echo::Refused,
    };
    reasons && !off
}

/// The reply of ours that a message is, by its tool ids or its words.
fn trace(book: &Book, message: &Value) -> Option<usize> {
    if message["role"] != "assistant" {
        return None;
    }
    let mut calls = items(&message["tool_calls"]);
    calls.find_map(|call| book.trace(DIALECT, "id", text(&call["id"]))).or_else(|| {
        let words: String = match message["content"].as_str() {
            Some(words) => words.to_owned(),
            None => items(&message["content"]).map(|part| text(&part["text"])).collect(),
        };
        book.trace(DIALECT, "text", &words)
    })
}

/// What keeps caches apart (`docs/protocols.md` 7.2, the reasons that the API itself gives for a miss).
fn cache_key(body: &Value) -> u128 {
    let names =
        ["prompt_cache_key", "response_format", "reasoning_effort", "verbosity", "service_tier"];
    let values: Vec<String> = names.iter().map(|name| body[*name].to_string()).collect();
    hash(&values.iter().map(String::as_str).collect::<Vec<_>>())
}

/// `docs/protocols.md` 7.2, 7.3.
fn policy(model: &Model) -> Policy {
    let (step, minutes) = match model.host {
        Host::DeepSeek => (64, 120),
        _ if model.bills_cache_writes => (128, 30),
        _ => (128, 5),
    };
    Policy::Automatic { min: model.cache_min, step, ttl: Duration::from_secs(60 * minutes) }
}

/// `docs/protocols.md` 2.5, 4.3: the wording goes by the host. Answers the room for output.
fn overflow(call: &Call, model: &Model, input: u64) -> Result<u64, Refusal> {
    let window = model.window;
    let asked = ["max_completion_tokens", "max_tokens"];
    let asked = asked.iter().find_map(|name| call.body[*name].as_u64()).unwrap_or(0);
    let total = match model.host {
        Host::DeepSeek => input + asked,
        _ => input,
    };
    if total <= window {
        return Ok(window - input);
    }
    let message = match model.host {
        Host::OpenAi if model.reasons => "Your input exceeds the context window of this model. Please adjust your input and try again.".to_owned(),
        Host::OpenAi => format!("This model's maximum context length is {window} tokens. However, your messages resulted in {input} tokens. Please reduce the length of the messages."),
        Host::DeepSeek => format!("This model's maximum context length is {window} tokens. However, you requested {total} tokens ({input} in the messages, {asked} in the completion). Please reduce the length of the messages or completion."),
        Host::Kimi => format!("Your request exceeded model token limit: {window} (requested: {input})"),
        Host::OpenRouter => format!("This endpoint's maximum context length is {window} tokens. However, you requested about {input} tokens ({input} of text input). Please reduce the length of either one."),
        Host::Xai => format!("This model's maximum prompt length is {window} but the request contains {input} tokens."),
        Host::Mistral => format!("Prompt contains {input} tokens, too large for model with {window} maximum context length"),
        Host::GeminiCompat => format!("The input token count ({input}) exceeds the maximum number of tokens allowed ({window})."),
        Host::Compatible => format!("This model's maximum context length is {window} tokens. However, you requested {asked} output tokens and your prompt contains {input} input tokens, for a total of {} tokens. Please reduce the length of the input prompt or the number of requested output tokens.", input + asked),
    };
    let code = (model.host == Host::OpenAi).then_some("context_length_exceeded");
    Err(Refusal::openai(Rule::Overflow, 400, code, Some("messages"), message))
}

#[cfg(test)]
mod tests;
