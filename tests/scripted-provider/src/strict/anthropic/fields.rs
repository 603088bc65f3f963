//! Which fields, values and blocks a request may have, and in which places (`docs/protocols.md` 1.1, 1.2).
//!
//! An unknown field, or one whose beta is not named, is refused as by the real provider: "Extra inputs are
//! not permitted".

use std::collections::HashSet;

use serde_json::Value;

use super::{Block, refuse};
use crate::strict::prompt::{items, text};
use crate::strict::rules::ModelRules;
use crate::strict::verdict::{ApiError, Rule};
use crate::strict::{Operation, ReceivedRequest};

/// Fields that need no beta.
const FIELDS: [&str; 21] = [
    "model",
    "messages",
    "system",
    "tools",
    "tool_choice",
    "thinking",
    "max_tokens",
    "stream",
    "metadata",
    "stop_sequences",
    "temperature",
    "top_p",
    "top_k",
    "service_tier",
    "output_config",
    "cache_control",
    "inference_geo",
    "diagnostics",
    "billing_policy",
    "user_profile_id",
    "container",
];
/// Fields with the betas of which one has to be named, by their beginnings (`docs/protocols.md` 1.3).
const BETA_FIELDS: [(&str, &[&str]); 8] = [
    ("context_management", &["context-management-", "compact-2026-01-12"]),
    ("compaction", &["compact-2026-09-04"]),
    ("thread", &["message-threads-"]),
    ("fallbacks", &["server-side-fallback-"]),
    ("fallback_credit_token", &["server-side-fallback-", "fallback-credit-"]),
    ("mcp_servers", &["mcp-client-"]),
    ("output_format", &["structured-outputs-"]),
    ("speed", &["fast-mode-"]),
];
/// Fields that a count does not take (`docs/protocols.md` 1.7).
const NOT_IN_COUNTS: [&str; 4] = ["max_tokens", "stream", "stop_sequences", "temperature"];

/// Fields of the blocks that the protocol closes; other blocks are an open set.
const BLOCK_FIELDS: [(&str, &[&str]); 6] = [
    ("text", &["type", "text", "cache_control", "citations"]),
    ("thinking", &["type", "thinking", "signature"]),
    ("redacted_thinking", &["type", "data"]),
    ("tool_use", &["type", "id", "name", "input", "cache_control", "caller", "toolset_name"]),
    (
        "tool_result",
        &["type", "tool_use_id", "content", "is_error", "cache_control", "toolset_name"],
    ),
    ("image", &["type", "source", "cache_control"]),
];
/// Other blocks that a request may hold.
const OPEN_BLOCKS: [&str; 12] = [
    "document",
    "search_result",
    "server_tool_use",
    "mcp_tool_use",
    "mcp_tool_result",
    "container_upload",
    "fallback",
    "tool_reference",
    "tool_addition",
    "tool_removal",
    "compaction",
    "browser_state",
];

fn has_beta(betas: &str, wanted: &[&str]) -> bool {
    betas.split(',').any(|beta| wanted.iter().any(|start| beta.trim().starts_with(start)))
}

fn refuse_extra_field<T>(rule: Rule, path: &str) -> Result<T, ApiError> {
    refuse(rule, format!("{path}: Extra inputs are not permitted"))
}

fn refuse_missing_field<T>(path: &str) -> Result<T, ApiError> {
    refuse(Rule::FieldRequired, format!("{path}: Field required"))
}

/// The fields beside the messages.
pub(super) fn check(
    request: &ReceivedRequest,
    model: &ModelRules,
    betas: &str,
) -> Result<(), ApiError> {
    let body = &request.body;
    let Some(fields) = body.as_object() else {
        return refuse(Rule::BadValue, "Input should be an object");
    };
    for name in fields.keys() {
        let beta = BETA_FIELDS.iter().find(|(field, _)| field == name);
        match beta {
            Some((_, wanted)) if !has_beta(betas, wanted) => {
                return refuse_extra_field(Rule::BetaMissing, name);
            }
            None if !FIELDS.contains(&name.as_str()) && model.unknown_fields_refused => {
                return refuse_extra_field(Rule::UnknownField, name);
            }
            _ => {}
        }
        if request.operation == Operation::CountTokens && NOT_IN_COUNTS.contains(&name.as_str()) {
            return refuse_extra_field(Rule::UnknownField, name);
        }
    }
    if model.name.is_empty() {
        return refuse_missing_field("model");
    }
    if request.operation != Operation::CountTokens && body["max_tokens"].as_u64().is_none() {
        return refuse_missing_field("max_tokens");
    }
    let new_version = is_new_version(request);
    let sampling = ["temperature", "top_p", "top_k"];
    if let Some(name) = sampling.iter().find(|name| new_version && fields.contains_key(**name)) {
        return refuse_extra_field(Rule::UnknownField, name);
    }
    check_simulated(body)?;
    check_thinking_config(body, model, betas)?;
    check_cache_markers(body)
}

fn is_new_version(request: &ReceivedRequest) -> bool {
    request.header("anthropic-version").as_deref() == Some("2026-10-21")
}

fn check_new_version(block: &Block<'_>, value: &Value) -> Result<(), ApiError> {
    // What the API of October 2026 no longer accepts in messages (`docs/protocols.md` 1.9).
    let path = block.path();
    if block.role == "assistant" && block.kind == "document" {
        let message = format!("{path}: document blocks are not allowed in assistant messages");
        return refuse(Rule::BadValue, message);
    }
    let has_citations = value["citations"].as_array().is_some_and(|all| !all.is_empty());
    if block.role == "user" && block.kind == "text" && has_citations {
        return refuse_extra_field(Rule::UnknownField, &format!("{path}.text.citations"));
    }
    Ok(())
}

/// Not simulated yet: compaction past a threshold.
fn check_simulated(body: &Value) -> Result<(), ApiError> {
    // It keeps no threads, so that none can be continued; a client then sends the whole conversation
    // (`docs/protocols.md` 1.3).
    if body["thread"]["type"] == "continue" {
        let message = "thread: this request is not supported on threads";
        let code = "thread_unsupported_request";
        return Err(ApiError::anthropic_code(Rule::Thread, code, message.to_owned()));
    }
    let compacts = items(&body["context_management"]["edits"])
        .any(|edit| text(&edit["type"]).starts_with("compact_"));
    let what = match () {
        () if compacts => "compaction on the server",
        () => return Ok(()),
    };
    Err(ApiError::not_simulated(super::DIALECT, what))
}

fn check_thinking_config(body: &Value, model: &ModelRules, betas: &str) -> Result<(), ApiError> {
    // `docs/protocols.md` 1.2, 1.5.6.
    let thinking = &body["thinking"];
    let kind = text(&thinking["type"]);
    let budget = thinking["budget_tokens"].as_u64();
    let max_tokens = body["max_tokens"].as_u64().unwrap_or(u64::MAX);
    if let Some(binding) = thinking.get("block_binding") {
        let path = format!("thinking.{kind}.block_binding");
        if kind != "adaptive" {
            return refuse_extra_field(Rule::UnknownField, &path);
        }
        if !has_beta(betas, &["thinking-binding-controls-2026-08-01"]) {
            return refuse_extra_field(Rule::BetaMissing, &path);
        }
        if !["drop_block", "error"].contains(&text(&binding["prefix_mismatch_behavior"])) {
            let path = format!("{path}.prefix_mismatch_behavior");
            return refuse(
                Rule::BadValue,
                format!("{path}: Input should be 'drop_block' or 'error'"),
            );
        }
    }
    match (kind, budget) {
        ("disabled" | "enabled", _) if model.always_thinks => refuse(
            Rule::ThinkingConfig,
            format!(
                "\"thinking.type.{kind}\" is not supported for this model. Use \"thinking.type.adaptive\" and \"output_config.effort\" to control thinking."
            ),
        ),
        ("enabled", None) => refuse_missing_field("thinking.enabled.budget_tokens"),
        ("enabled", Some(..1024)) => refuse(
            Rule::ThinkingConfig,
            "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024",
        ),
        ("enabled", Some(budget)) if budget >= max_tokens => refuse(
            Rule::ThinkingConfig,
            "`max_tokens` must be greater than `thinking.budget_tokens`.",
        ),
        ("" | "enabled" | "adaptive" | "disabled" | "between_tools", _) => {
            check_forced_tool(body, model, kind)
        }
        (other, _) => refuse(
            Rule::ThinkingConfig,
            format!(
                "thinking: Input tag '{other}' found using 'type' does not match any of the expected tags: 'adaptive', 'between_tools', 'disabled', 'enabled'"
            ),
        ),
    }
}

fn check_forced_tool(body: &Value, model: &ModelRules, thinking: &str) -> Result<(), ApiError> {
    // `docs/protocols.md` 1.2: thinking and forced tools.
    let forced = ["tool", "any"].contains(&text(&body["tool_choice"]["type"]));
    match thinking {
        _ if !forced => Ok(()),
        _ if model.always_thinks => refuse(
            Rule::ForcedTool,
            "tool_choice: type \"tool\" and \"any\" are not supported for this model.",
        ),
        "enabled" | "adaptive" => refuse(
            Rule::ForcedTool,
            "Thinking may not be enabled when tool_choice forces tool use.",
        ),
        _ => Ok(()),
    }
}

fn check_cache_markers(body: &Value) -> Result<(), ApiError> {
    // Cache markers: at most four, none on thinking or empty text, 1h before 5m (`docs/protocols.md` 1.2).
    let marker_of = |value: &Value| value.get("cache_control").filter(|m| m.is_object()).cloned();
    let blocks = items(&body["messages"]).flat_map(|message| items(&message["content"]));
    let with_nested =
        blocks.flat_map(|block| std::iter::once(block).chain(items(&block["content"])));
    let places = items(&body["tools"]).chain(items(&body["system"])).chain(with_nested);
    let mut markers: Vec<Value> = Vec::new();
    for place in places {
        let Some(marker) = marker_of(place) else { continue };
        if place["text"] == "" {
            return refuse(
                Rule::CacheMarkerPlace,
                "cache_control cannot be set for empty text blocks",
            );
        }
        markers.push(marker);
    }
    markers.extend(marker_of(body));
    if markers.len() > 4 {
        let count = markers.len();
        return refuse(
            Rule::CacheMarkers,
            format!("A maximum of 4 blocks with cache_control may be provided. Found {count}."),
        );
    }
    let mut has_short = false;
    for marker in &markers {
        let is_long = marker["ttl"] == "1h";
        if marker["type"] != "ephemeral" || !["", "5m", "1h"].contains(&text(&marker["ttl"])) {
            return refuse(
                Rule::BadValue,
                format!(
                    "cache_control: Input should be {{type: 'ephemeral', ttl: '5m' or '1h'}}, not {marker}"
                ),
            );
        }
        if is_long && has_short {
            return refuse(
                Rule::CacheMarkerOrder,
                "a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block. Note that blocks are processed in the following order: `tools`, `system`, `messages`.",
            );
        }
        has_short |= !is_long;
    }
    Ok(())
}

/// Roles, emptiness, and the fields of each block (`docs/protocols.md` 1.2).
pub(super) fn check_messages(
    request: &ReceivedRequest,
    model: &ModelRules,
    blocks: &[Block<'_>],
) -> Result<(), ApiError> {
    let messages: Vec<&Value> = items(&request.body["messages"]).collect();
    let Some(first) = messages.first() else {
        return refuse(Rule::FieldRequired, "messages: at least one message is required");
    };
    // A summary comes first (`docs/protocols.md` 1.3).
    let begins_with_summary =
        items(&first["content"]).next().is_some_and(|one| one["type"] == "compaction");
    if first["role"] != "user" && !begins_with_summary {
        return refuse(Rule::FirstMessage, "messages: first message must use the \"user\" role");
    }
    let last_index = messages.len() - 1;
    for (at, message) in messages.iter().enumerate() {
        let role = text(&message["role"]);
        match role {
            "user" | "assistant" => {}
            "system" => check_system_message(&messages, at, model)?,
            _ => {
                return refuse(
                    Rule::Role,
                    format!("messages.{at}.role: Input should be 'user', 'assistant' or 'system'"),
                );
            }
        }
        if let Some(extra_field) = unknown_field(message, &["role", "content", "clear_at"]) {
            return refuse_extra_field(Rule::UnknownField, &format!("messages.{at}.{extra_field}"));
        }
        let content = &message["content"];
        let empty = content == "" || content.as_array().is_some_and(Vec::is_empty);
        if !content.is_string() && !content.is_array() {
            return refuse_missing_field(&format!("messages.{at}.content"));
        }
        if is_whitespace_only(content) {
            return refuse(Rule::EmptyContent, WHITESPACE_ONLY);
        }
        if empty && !(at == last_index && role == "assistant") {
            return refuse(
                Rule::EmptyContent,
                format!(
                    "messages.{at}: all messages must have non-empty content except for the optional final assistant message"
                ),
            );
        }
    }
    let wants_reply = request.operation == Operation::Reply;
    if messages[last_index]["role"] == "assistant" && model.refuses_prefill && wants_reply {
        return refuse(
            Rule::Prefill,
            "This model does not support assistant message prefill. The conversation must end with a user message.",
        );
    }
    let mut ids = HashSet::new();
    blocks.iter().try_for_each(|block| check_block(request, block, model, &mut ids))
}

fn check_system_message(
    messages: &[&Value],
    at: usize,
    model: &ModelRules,
) -> Result<(), ApiError> {
    // `docs/protocols.md` 1.2: text only, after a user's turn, last or before the assistant's.
    if !model.system_role {
        return refuse(
            Rule::SystemRole,
            format!("messages.{at}: role 'system' is not supported on this model"),
        );
    }
    let texts = items(&messages[at]["content"])
        .all(|block| ["text", "tool_addition", "tool_removal"].contains(&text(&block["type"])));
    let role = |at: usize| messages.get(at).map(|message| text(&message["role"]));
    let follows_user = matches!(role(at.wrapping_sub(1)), Some("user" | "system"));
    let precedes_reply = matches!(role(at + 1), None | Some("assistant" | "system"));
    match texts && follows_user && precedes_reply {
        true => Ok(()),
        false => refuse(
            Rule::SystemRole,
            format!(
                "messages.{at}: a 'system' message must hold text only, follow a user turn, and be last or followed by an assistant turn"
            ),
        ),
    }
}

fn unknown_field<'v>(value: &'v Value, known: &[&str]) -> Option<&'v str> {
    let fields = value.as_object()?;
    fields.keys().map(String::as_str).find(|name| !known.contains(name))
}

fn check_block<'b>(
    request: &ReceivedRequest,
    block: &Block<'b>,
    model: &ModelRules,
    ids: &mut HashSet<&'b str>,
) -> Result<(), ApiError> {
    let Some(value) = block.value else { return Ok(()) };
    let path = block.path();
    let kind = block.kind;
    if is_new_version(request) {
        check_new_version(block, value)?;
    }
    let fields = BLOCK_FIELDS.iter().find(|(name, _)| *name == kind);
    if fields.is_none() && !OPEN_BLOCKS.contains(&kind) && !kind.ends_with("_tool_result") {
        return refuse(
            Rule::BadValue,
            format!(
                "{path}: Input tag '{kind}' found using 'type' does not match any of the expected tags"
            ),
        );
    }
    if let Some(name) = fields.and_then(|(_, fields)| unknown_field(value, fields))
        && (model.unknown_fields_refused || name == "cache_control")
    {
        let rule = match name {
            "cache_control" => Rule::CacheMarkerPlace,
            _ => Rule::UnknownField,
        };
        return refuse_extra_field(rule, &format!("{path}.{kind}.{name}"));
    }
    let role = match kind {
        "thinking" | "redacted_thinking" | "tool_use" => "assistant",
        "tool_result" => "user",
        _ => block.role,
    };
    if role != block.role {
        return refuse(
            Rule::Role,
            format!("messages.{}: `{kind}` blocks can only be in `{role}` messages", block.message),
        );
    }
    if value["type"] == "text" && is_whitespace_only(&value["text"]) {
        return refuse(Rule::EmptyContent, WHITESPACE_ONLY);
    }
    let nested = items(&value["content"]);
    if std::iter::once(value)
        .chain(nested)
        .any(|block| block["type"] == "text" && block["text"] == "")
    {
        return refuse(Rule::EmptyContent, "messages: text content blocks must be non-empty");
    }
    match kind {
        "text" if !value["text"].is_string() => refuse_missing_field(&format!("{path}.text.text")),
        "thinking" if !value["signature"].is_string() => {
            refuse_missing_field(&format!("{path}.thinking.signature"))
        }
        "thinking" if !value["thinking"].is_string() => {
            refuse_missing_field(&format!("{path}.thinking.thinking"))
        }
        "redacted_thinking" if !value["data"].is_string() => {
            refuse_missing_field(&format!("{path}.redacted_thinking.data"))
        }
        "tool_use" => check_tool_use(value, &path, ids),
        "tool_result" => check_tool_result(value, &path),
        _ => Ok(()),
    }
}

fn check_tool_use<'b>(
    value: &'b Value,
    path: &str,
    ids: &mut HashSet<&'b str>,
) -> Result<(), ApiError> {
    let id = text(&value["id"]);
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if id.is_empty() || !id.chars().all(is_allowed) {
        return refuse(
            Rule::ToolIdForm,
            format!("{path}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"),
        );
    }
    if !value["name"].is_string() {
        return refuse_missing_field(&format!("{path}.tool_use.name"));
    }
    if !value["input"].is_object() {
        return refuse(
            Rule::BadValue,
            format!("{path}.tool_use.input: Input should be a valid dictionary"),
        );
    }
    match ids.insert(id) {
        true => Ok(()),
        false => refuse(Rule::ToolIdsUnique, format!("{path}: `tool_use` ids must be unique")),
    }
}

fn check_tool_result(value: &Value, path: &str) -> Result<(), ApiError> {
    let content = &value["content"];
    if !content.is_null() && !content.is_string() && !content.is_array() {
        return refuse(
            Rule::BadValue,
            format!("{path}.tool_result.content: Input should be a valid string or list"),
        );
    }
    let allowed = ["text", "image", "document", "search_result", "tool_reference", "browser_state"];
    if let Some(other) =
        items(content).map(|block| text(&block["type"])).find(|kind| !allowed.contains(kind))
    {
        return refuse(
            Rule::BadValue,
            format!(
                "{path}.tool_result.content: Input tag '{other}' found using 'type' does not match any of the expected tags"
            ),
        );
    }
    let has_images = items(content).any(|block| block["type"] == "image");
    match value["is_error"] == true && has_images {
        true => refuse(
            Rule::BadValue,
            format!("{path}.tool_result: images are not allowed where `is_error` is true"),
        ),
        false => Ok(()),
    }
}

/// `docs/protocols.md` 1.2.
const WHITESPACE_ONLY: &str = "messages: text content blocks must contain non-whitespace text";

/// Whether a text is white space, and not empty.
fn is_whitespace_only(value: &Value) -> bool {
    value.as_str().is_some_and(|text| !text.is_empty() && text.trim().is_empty())
}
