//! Which fields a Gemini request, its contents and their parts may have (`docs/protocols.md` 5.2).
//!
//! The protocol is protocol buffers in JSON: an unknown name is an error with its path.

use serde_json::Value;

use super::{camel, get, refuse};
use crate::strict::prompt::{items, text};
use crate::strict::rules::Model;
use crate::strict::verdict::{Refusal, Rule};

const REQUEST: [&str; 10] = [
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
const CONTENT: [&str; 2] = ["role", "parts"];
/// What a part is: exactly one of these.
const DATA: [&str; 9] = [
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
const BESIDE: [&str; 5] =
    ["thought", "thoughtSignature", "videoMetadata", "mediaResolution", "partMetadata"];
const CALL: [&str; 5] = ["id", "name", "args", "partialArgs", "willContinue"];
const RESPONSE: [&str; 6] = ["id", "name", "response", "parts", "willContinue", "scheduling"];

/// Checks all fields.
pub(super) fn check(body: &Value, model: &Model) -> Result<(), Refusal> {
    if !body.is_object() {
        return refuse(Rule::BadValue, "Invalid JSON payload received.");
    }
    known(body, &REQUEST, "", model)?;
    cached(body)?;
    if items(&body["contents"]).len() == 0 {
        return refuse(
            Rule::FieldRequired,
            "* GenerateContentRequest.contents: contents is not specified\n",
        );
    }
    for (at, content) in items(&body["contents"]).enumerate() {
        let path = format!("contents[{at}]");
        known(content, &CONTENT, &path, model)?;
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

/// Explicit caches are not simulated; what may not stand beside one is refused all the same
/// (`docs/protocols.md` 5.2).
fn cached(body: &Value) -> Result<(), Refusal> {
    if get(body, "cachedContent").is_null() {
        return Ok(());
    }
    let beside = ["systemInstruction", "tools", "toolConfig"];
    match beside.iter().any(|name| !get(body, name).is_null()) {
        true => refuse(
            Rule::CachedContent,
            "CachedContent can not be used with GenerateContent request setting system_instruction, tools or tool_config.",
        ),
        false => Err(Refusal::not_simulated(super::DIALECT, "explicit caches")),
    }
}

fn known(value: &Value, names: &[&str], path: &str, model: &Model) -> Result<(), Refusal> {
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

fn check_part(part: &Value, path: &str, model: &Model) -> Result<(), Refusal> {
    known(part, &[&DATA[..], &BESIDE].concat(), path, model)?;
    let held = DATA.iter().filter(|name| !get(part, name).is_null()).count();
    let signed = get(part, "thoughtSignature").is_string();
    if held > 1 {
        return refuse(
            Rule::BadValue,
            format!("Invalid value at '{path}' (oneof), oneof field 'data' is already set."),
        );
    }
    // An empty text is a part only where it carries a signature (`docs/protocols.md` 5.4).
    if !signed && (held == 0 || part["text"] == "") {
        return refuse(
            Rule::EmptyContent,
            format!(
                "* GenerateContentRequest.{path}.data: required oneof field 'data' must have one initialized field\n"
            ),
        );
    }
    let (call, response) = (get(part, "functionCall"), get(part, "functionResponse"));
    known(call, &CALL, &format!("{path}.function_call"), model)?;
    known(response, &RESPONSE, &format!("{path}.function_response"), model)?;
    let (args, object) = (get(call, "args"), get(response, "response"));
    if !args.is_null() && !args.is_object() {
        return not_a_struct(&format!("{path}.function_call.args"), args);
    }
    if response.is_object() && !object.is_object() {
        return not_a_struct(&format!("{path}.function_response.response"), object);
    }
    let unnamed = |value: &Value| value.is_object() && !value["name"].is_string();
    if unnamed(call) || unnamed(response) {
        return refuse(
            Rule::FieldRequired,
            format!("* GenerateContentRequest.{path}: name is not specified\n"),
        );
    }
    Ok(())
}

/// A pruned result stays an object (`docs/protocols.md` 5.2).
fn not_a_struct(path: &str, value: &Value) -> Result<(), Refusal> {
    refuse(
        Rule::ResponseForm,
        format!("Invalid value at '{path}' (type.googleapis.com/google.protobuf.Struct), {value}"),
    )
}
