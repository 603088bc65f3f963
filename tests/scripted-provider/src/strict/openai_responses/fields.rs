//! Which fields a Responses request and its items may have, and how their ids begin
//! (`docs/protocols.md` 3.2).
//!
//! Items of a kind that is on no list here are refused by name; tool items are an open set.

use std::collections::HashSet;

use serde_json::Value;

use super::{DIALECT, InputItem, refuse, refuse_at};
use crate::strict::prompt::{items, text};
use crate::strict::rules::ModelRules;
use crate::strict::verdict::{ApiError, Rule};
use crate::strict::{Operation, ReceivedRequest};

const FIELDS: [&str; 33] = [
    "model",
    "input",
    "instructions",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "stream",
    "stream_options",
    "store",
    "include",
    "reasoning",
    "text",
    "max_output_tokens",
    "max_tool_calls",
    "temperature",
    "top_p",
    "top_logprobs",
    "truncation",
    "metadata",
    "client_metadata",
    "user",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "service_tier",
    "previous_response_id",
    "conversation",
    "background",
    "prompt",
    "context_management",
    "generate",
    "moderation",
];

/// The fields of a request to compact (`docs/protocols.md` 3.3).
const COMPACT_FIELDS: [&str; 8] = [
    "model",
    "input",
    "instructions",
    "previous_response_id",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "service_tier",
];

/// The fields of items that take no others.
const ITEM_FIELDS: [(&str, &[&str]); 7] = [
    ("compaction", &["type", "id", "encrypted_content", "created_by"]),
    ("message", &["type", "id", "role", "content", "status", "phase"]),
    ("reasoning", &["type", "id", "summary", "content", "encrypted_content", "status"]),
    (
        "function_call",
        &[
            "type",
            "id",
            "call_id",
            "name",
            "arguments",
            "status",
            "namespace",
            "caller",
            "parsed_arguments",
        ],
    ),
    ("function_call_output", &["type", "id", "call_id", "output", "status", "name", "caller"]),
    (
        "custom_tool_call",
        &["type", "id", "call_id", "name", "input", "status", "namespace", "caller"],
    ),
    ("custom_tool_call_output", &["type", "id", "call_id", "output", "status", "name", "caller"]),
];
/// A field that Codex adds to any item.
const CODEX_METADATA: &str = "internal_chat_message_metadata_passthrough";

/// How ids begin, by the item's type.
const ID_PREFIXES: [(&str, &str); 5] = [
    ("message", "msg"),
    ("reasoning", "rs"),
    ("function_call", "fc"),
    ("custom_tool_call", "ctc"),
    ("compaction", "cmp"),
];

/// The fields beside the items.
pub(super) fn check(request: &ReceivedRequest, model: &ModelRules) -> Result<(), ApiError> {
    let body = &request.body;
    let Some(fields) = body.as_object() else {
        return refuse(Rule::BadValue, "We could not parse the JSON body of your request.");
    };
    let known: &[&str] = match request.operation {
        Operation::Compact => &COMPACT_FIELDS,
        Operation::Reply | Operation::CountTokens => &FIELDS,
    };
    if let Some(name) = fields.keys().find(|name| !known.contains(&name.as_str()))
        && model.unknown_fields_refused
    {
        return refuse_unknown_field(name);
    }
    if model.name.is_empty() {
        return refuse_at(
            Rule::FieldRequired,
            "model",
            "Missing required parameter: 'model'.".into(),
        );
    }
    let input = &body["input"];
    if !input.is_string() && !input.is_array() {
        return refuse_at(
            Rule::FieldRequired,
            "input",
            "Missing required parameter: 'input'.".into(),
        );
    }
    let is_first = !body["previous_response_id"].is_string();
    if is_first && (input == "" || input.as_array().is_some_and(Vec::is_empty)) {
        return refuse_at(Rule::EmptyContent, "input", "Invalid 'input': empty array. Expected an array with minimum length 1, but got an empty array instead.".into());
    }
    let what = match () {
        () if !body["conversation"].is_null() => "conversations",
        () if body["generate"] == false && request.operation == Operation::Reply => "warm-ups",
        () if items(input).any(|item| item["type"] == "compaction_trigger") => {
            "compaction triggers"
        }
        () => return Ok(()),
    };
    Err(ApiError::not_simulated(DIALECT, what))
}

fn refuse_unknown_field<T>(path: &str) -> Result<T, ApiError> {
    let message = format!("Unknown parameter: '{path}'.");
    let code = Some("unknown_parameter");
    Err(ApiError::openai(Rule::UnknownField, 400, code, Some(path), message))
}

fn refuse_missing_field<T>(path: &str) -> Result<T, ApiError> {
    let message = format!("Missing required parameter: '{path}'.");
    let code = Some("missing_required_parameter");
    Err(ApiError::openai(Rule::FieldRequired, 400, code, Some(path), message))
}

/// Checks each item by itself: fields, ids, and that no id comes twice.
pub(super) fn check_items(model: &ModelRules, list: &[InputItem<'_>]) -> Result<(), ApiError> {
    let mut ids = HashSet::new();
    for (at, item) in list.iter().enumerate() {
        let path = format!("input[{at}]");
        check_fields(model, item, &path)?;
        let Some(id) = item.id() else { continue };
        let prefix = ID_PREFIXES.iter().find(|(kind, _)| *kind == item.kind);
        if let Some((_, prefix)) = prefix.filter(|(_, prefix)| !id.starts_with(prefix)) {
            return refuse_at(
                Rule::ItemIdForm,
                &format!("{path}.id"),
                format!("Invalid '{path}.id': '{id}'. Expected an ID that begins with '{prefix}'."),
            );
        }
        if !ids.insert(id) {
            return refuse_at(
                Rule::ItemTwice,
                "input",
                format!(
                    "Duplicate item found with id {id}. Remove duplicate items from your input and try again."
                ),
            );
        }
    }
    Ok(())
}

fn check_fields(model: &ModelRules, item: &InputItem<'_>, path: &str) -> Result<(), ApiError> {
    let known_fields = ITEM_FIELDS.iter().find(|(kind, _)| *kind == item.kind);
    let is_open = item.kind.ends_with("_call")
        || item.kind.ends_with("_output")
        || ["additional_tools", "configuration_update"].contains(&item.kind.as_str())
        || ["mcp_", "tool_search", "program"].iter().any(|start| item.kind.starts_with(start));
    let Some((_, known)) = known_fields else {
        return match is_open {
            true => Ok(()),
            false => refuse_at(
                Rule::BadValue,
                &format!("{path}.type"),
                format!("Invalid value: '{}'.", item.kind),
            ),
        };
    };
    let mut names = item.value.as_object().into_iter().flat_map(serde_json::Map::keys);
    let extra = names.find(|name| !known.contains(&name.as_str()) && *name != CODEX_METADATA);
    if let Some(name) = extra
        && model.unknown_fields_refused
    {
        return refuse_unknown_field(&format!("{path}.{name}"));
    }
    let required: &[&str] = match item.kind.as_str() {
        "message" => &["role", "content"],
        // An empty list is required, not optional (`docs/protocols.md` 3.5).
        "reasoning" => &["summary"],
        "function_call" => &["call_id", "name", "arguments"],
        "compaction" => &["encrypted_content"],
        "custom_tool_call" => &["call_id", "name", "input"],
        _ => &["call_id", "output"],
    };
    if let Some(name) = required.iter().find(|name| item.field(name).is_null()) {
        return refuse_missing_field(&format!("{path}.{name}"));
    }
    check_types(item, path)
}

fn check_types(item: &InputItem<'_>, path: &str) -> Result<(), ApiError> {
    let is = |name: &str, fits: fn(&Value) -> bool| fits(item.field(name));
    let wrong = match item.kind.as_str() {
        "message" if !is("content", |v: &Value| v.is_string() || v.is_array()) => "content",
        "message"
            if !["user", "assistant", "system", "developer"]
                .contains(&text(item.field("role"))) =>
        {
            "role"
        }
        "reasoning" if !is("summary", Value::is_array) => "summary",
        "function_call" if !is("arguments", Value::is_string) => "arguments",
        "custom_tool_call" if !is("input", Value::is_string) => "input",
        "function_call_output" | "custom_tool_call_output"
            if !is("output", |v: &Value| v.is_string() || v.is_array()) =>
        {
            "output"
        }
        _ => return Ok(()),
    };
    let path = format!("{path}.{wrong}");
    refuse_at(Rule::BadValue, &path, format!("Invalid type for '{path}'."))
}
