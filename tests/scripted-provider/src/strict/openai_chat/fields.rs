//! Which fields a Chat Completions request and its messages may have (`docs/protocols.md` 2.2, 4.2).
//!
//! OpenAI itself takes fewer than its look-alikes; a field that is on no list is refused by name.

use serde_json::Value;

use super::refuse;
use crate::strict::ReceivedRequest;
use crate::strict::prompt::{items, text};
use crate::strict::rules::{Host, ModelRules};
use crate::strict::verdict::{ApiError, Rule};

/// Fields that OpenAI takes.
const FIELDS: [&str; 37] = [
    "model",
    "messages",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "stream",
    "stream_options",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "n",
    "stop",
    "seed",
    "logprobs",
    "top_logprobs",
    "logit_bias",
    "presence_penalty",
    "frequency_penalty",
    "response_format",
    "reasoning_effort",
    "verbosity",
    "service_tier",
    "store",
    "metadata",
    "user",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "modalities",
    "audio",
    "prediction",
    "web_search_options",
    "functions",
    "function_call",
    "moderation",
];
/// Fields that only the look-alikes take.
const LOOK_ALIKE_FIELDS: [&str; 20] = [
    "thinking",
    "enable_thinking",
    "preserve_thinking",
    "chat_template_kwargs",
    "reasoning",
    "reasoning_split",
    "include_reasoning",
    "usage",
    "provider",
    "models",
    "route",
    "transforms",
    "plugins",
    "session_id",
    "top_k",
    "min_p",
    "repetition_penalty",
    "extra_body",
    "safe_prompt",
    "random_seed",
];
/// Fields of an assistant message; clients send back what SDKs put there.
const ASSISTANT_FIELDS: [&str; 13] = [
    "role",
    "content",
    "tool_calls",
    "name",
    "refusal",
    "audio",
    "annotations",
    "function_call",
    "parsed",
    "provider_specific_fields",
    "phase",
    "reasoning_details",
    "prefix",
];
/// Reasoning as text.
const REASONING_FIELDS: [&str; 3] = ["reasoning_content", "reasoning", "reasoning_text"];

/// Longest tool id that OpenAI takes, characters (`docs/protocols.md` 2.2).
const MAX_ID_LENGTH: usize = 40;

fn is_known(name: &str, model: &ModelRules) -> bool {
    FIELDS.contains(&name) || model.host != Host::OpenAi && LOOK_ALIKE_FIELDS.contains(&name)
}

/// Checks all fields.
pub(super) fn check(request: &ReceivedRequest, model: &ModelRules) -> Result<(), ApiError> {
    let Some(fields) = request.body.as_object() else {
        return refuse(Rule::BadValue, "We could not parse the JSON body of your request.");
    };
    if let Some(name) = fields.keys().find(|name| !is_known(name, model))
        && model.unknown_fields_refused
    {
        let code = Some("unknown_parameter");
        let message = format!("Unknown parameter: '{name}'.");
        return Err(ApiError::openai(Rule::UnknownField, 400, code, Some(name), message));
    }
    if model.name.is_empty() {
        return refuse(Rule::FieldRequired, "you must provide a model parameter");
    }
    let streams = request.body["stream"] == true;
    if request.body.get("stream_options").is_some_and(|options| !options.is_null()) && !streams {
        return refuse(
            Rule::BadValue,
            "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
        );
    }
    if items(&request.body["messages"]).len() == 0 {
        return refuse(
            Rule::FieldRequired,
            "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array instead.",
        );
    }
    items(&request.body["messages"])
        .enumerate()
        .try_for_each(|(at, message)| check_message(at, message, model))
}

fn check_message(at: usize, message: &Value, model: &ModelRules) -> Result<(), ApiError> {
    let role = text(&message["role"]);
    let known: &[&str] = match role {
        "assistant" => &ASSISTANT_FIELDS,
        "tool" => &["role", "content", "tool_call_id", "name"],
        "system" | "developer" | "user" => &["role", "content", "name"],
        _ => {
            return refuse(
                Rule::Role,
                format!(
                    "Invalid value: '{role}'. Supported values are: 'system', 'assistant', 'user', 'function', 'tool', and 'developer'."
                ),
            );
        }
    };
    let mut names = message.as_object().into_iter().flat_map(serde_json::Map::keys);
    let unknown = names.find(|name| {
        let reasoning = role == "assistant" && REASONING_FIELDS.contains(&name.as_str());
        !known.contains(&name.as_str()) && !reasoning
    });
    if let Some(name) = unknown
        && model.unknown_fields_refused
    {
        return refuse(
            Rule::UnknownField,
            format!("messages.{at}: property '{name}' is unsupported"),
        );
    }
    let content = &message["content"];
    let calls = &message["tool_calls"];
    let may_lack_content =
        role == "assistant" && (items(calls).len() > 0 || message["refusal"].is_string());
    if !(content.is_string() || content.is_array() || content.is_null() && may_lack_content) {
        let message = format!("Invalid value for 'content': expected a string, got {content}.");
        let param = format!("messages.[{at}].content");
        return Err(ApiError::openai(Rule::EmptyContent, 400, None, Some(&param), message));
    }
    if content.as_array().is_some_and(Vec::is_empty) && !may_lack_content {
        return refuse(
            Rule::EmptyContent,
            format!(
                "Invalid 'messages[{at}].content': empty array. Expected an array with minimum length 1, but got an empty array instead."
            ),
        );
    }
    if calls.as_array().is_some_and(Vec::is_empty) {
        return refuse(
            Rule::BadValue,
            format!(
                "Invalid 'messages[{at}].tool_calls': empty array. Expected an array with minimum length 1, but got an empty array instead."
            ),
        );
    }
    items(calls).enumerate().try_for_each(|(n, call)| check_tool_call(at, n, call, model))
}

fn check_tool_call(at: usize, n: usize, call: &Value, model: &ModelRules) -> Result<(), ApiError> {
    let path = format!("messages[{at}].tool_calls[{n}]");
    let id = text(&call["id"]);
    if id.is_empty() {
        return refuse(Rule::FieldRequired, format!("Missing required parameter: '{path}.id'."));
    }
    let length = id.chars().count();
    if model.host == Host::OpenAi && length > MAX_ID_LENGTH {
        let message = format!(
            "Invalid '{path}.id': string too long. Expected a string with maximum length {MAX_ID_LENGTH}, but got a string with length {length} instead."
        );
        let code = Some("string_above_max_length");
        return Err(ApiError::openai(Rule::ToolIdForm, 400, code, None, message));
    }
    let custom = call["custom"]["input"].is_string();
    let function = &call["function"];
    match custom || function["name"].is_string() && function["arguments"].is_string() {
        true => Ok(()),
        false => refuse(
            Rule::BadValue,
            format!("Invalid type for '{path}.function.arguments': expected a string."),
        ),
    }
}
