//! Which fields a Gemini request, its contents and their parts may have (`docs/protocols.md` 5.2).
//!
//! The protocol is protocol buffers in JSON: an unknown name is an error with its path.

use serde_json::Value;

use super::{camel, get, refuse};
use crate::strict::prompt::{items, text};
use crate::strict::rules::ModelRules;
use crate::strict::verdict::{ApiError, Rule};

const REQUEST_FIELDS: [&str; 10] = [
    "contents",
    "systemInstruction",
    "tools",
    "toolConfig",
    "generationConfig",
    "safetySettings",
    "cachedContent",
    "labels",
    "model",
    "serviceTier",
];
const CONTENT_FIELDS: [&str; 2] = ["role", "parts"];
/// A part has exactly one of these.
const DATA_FIELDS: [&str; 9] = [
    "text",
    "inlineData",
    "fileData",
    "functionCall",
    "functionResponse",
    "executableCode",
    "codeExecutionResult",
    "toolCall",
    "toolResponse",
];
const OTHER_PART_FIELDS: [&str; 5] =
    ["thought", "thoughtSignature", "videoMetadata", "mediaResolution", "partMetadata"];
const CALL_FIELDS: [&str; 5] = ["id", "name", "args", "partialArgs", "willContinue"];
const RESPONSE_FIELDS: [&str; 6] =
    ["id", "name", "response", "parts", "willContinue", "scheduling"];

/// Checks all fields.
pub(super) fn check(body: &Value, model: &ModelRules) -> Result<(), ApiError> {
    if !body.is_object() {
        return refuse(Rule::BadValue, "Invalid JSON payload received.");
    }
    check_names(body, &REQUEST_FIELDS, "", model)?;
    check_cached_content(body)?;
    if items(&body["contents"]).len() == 0 {
        return refuse(
            Rule::FieldRequired,
            "* GenerateContentRequest.contents: contents is not specified\n",
        );
    }
    for (at, content) in items(&body["contents"]).enumerate() {
        let path = format!("contents[{at}]");
        check_names(content, &CONTENT_FIELDS, &path, model)?;
        if !["", "user", "model", "function"].contains(&text(&content["role"])) {
            return refuse(Rule::Role, "Please use a valid role: user, model.");
        }
        let parts = items(get(content, "parts"));
        if parts.len() == 0 {
            return refuse(
                Rule::EmptyContent,
                format!(
                    "* GenerateContentRequest.{path}.parts: contents.parts must not be empty.\n"
                ),
            );
        }
        for (block, part) in parts.enumerate() {
            check_part(part, &format!("{path}.parts[{block}]"), model)?;
        }
    }
    Ok(())
}

fn check_cached_content(body: &Value) -> Result<(), ApiError> {
    // Explicit caches are not simulated; fields that may not be combined with one are refused all the same
    // (`docs/protocols.md` 5.2).
    if get(body, "cachedContent").is_null() {
        return Ok(());
    }
    let conflicting = ["systemInstruction", "tools", "toolConfig"];
    match conflicting.iter().any(|name| !get(body, name).is_null()) {
        true => refuse(
            Rule::CachedContent,
            "CachedContent can not be used with GenerateContent request setting system_instruction, tools or tool_config.",
        ),
        false => Err(ApiError::not_simulated(super::DIALECT, "explicit caches")),
    }
}

fn check_names(
    value: &Value,
    names: &[&str],
    path: &str,
    model: &ModelRules,
) -> Result<(), ApiError> {
    let mut keys = value.as_object().into_iter().flat_map(serde_json::Map::keys);
    match keys.find(|key| !names.contains(&camel(key).as_str())) {
        Some(key) if model.unknown_fields_refused => {
            let at = if path.is_empty() { String::new() } else { format!(" at '{path}'") };
            refuse(
                Rule::UnknownField,
                format!(
                    "Invalid JSON payload received. Unknown name \"{key}\"{at}: Cannot find field."
                ),
            )
        }
        _ => Ok(()),
    }
}

fn check_part(part: &Value, path: &str, model: &ModelRules) -> Result<(), ApiError> {
    check_names(part, &[&DATA_FIELDS[..], &OTHER_PART_FIELDS].concat(), path, model)?;
    let data_count = DATA_FIELDS.iter().filter(|name| !get(part, name).is_null()).count();
    let is_signed = get(part, "thoughtSignature").is_string();
    if data_count > 1 {
        return refuse(
            Rule::BadValue,
            format!("Invalid value at '{path}' (oneof), oneof field 'data' is already set."),
        );
    }
    // An empty text is a part only where it carries a signature (`docs/protocols.md` 5.4).
    if !is_signed && (data_count == 0 || part["text"] == "") {
        return refuse(
            Rule::EmptyContent,
            format!(
                "* GenerateContentRequest.{path}.data: required oneof field 'data' must have one initialized field\n"
            ),
        );
    }
    let (request, response) = (get(part, "functionCall"), get(part, "functionResponse"));
    check_names(request, &CALL_FIELDS, &format!("{path}.function_call"), model)?;
    check_names(response, &RESPONSE_FIELDS, &format!("{path}.function_response"), model)?;
    let (args, object) = (get(request, "args"), get(response, "response"));
    if !args.is_null() && !args.is_object() {
        return refuse_non_object(&format!("{path}.function_call.args"), args);
    }
    if response.is_object() && !object.is_object() {
        return refuse_non_object(&format!("{path}.function_response.response"), object);
    }
    let has_no_name = |value: &Value| value.is_object() && !value["name"].is_string();
    if has_no_name(request) || has_no_name(response) {
        return refuse(
            Rule::FieldRequired,
            format!("* GenerateContentRequest.{path}: name is not specified\n"),
        );
    }
    Ok(())
}

fn refuse_non_object(path: &str, value: &Value) -> Result<(), ApiError> {
    // A response is an object, also after pruning (`docs/protocols.md` 5.2).
    refuse(
        Rule::ResponseForm,
        format!("Invalid value at '{path}' (type.googleapis.com/google.protobuf.Struct), {value}"),
    )
}
