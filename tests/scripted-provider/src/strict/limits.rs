//! Limits of pictures, of output, and of what a character is, in the provider's own words (`docs/protocols.md` 1.8).
//!
//! Checked before anything else is read, as real providers do. Knows nothing of conversations.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::rules::Rules;
use super::verdict::{Refusal, Rule};
use super::{Call, Dialect, Purpose};

/// Checks a request.
pub(super) fn check(call: &Call, rules: &Rules) -> Result<(), Refusal> {
    size(call, rules)?;
    characters(call)?;
    let mut pictures = Vec::new();
    gather(&call.body, String::new(), &mut pictures);
    let most = rules.most_pictures;
    if pictures.len() > most {
        let count = pictures.len();
        return refuse(
            call,
            Rule::Pictures,
            format!("too many images and documents: {count} + 0 > {most}"),
        );
    }
    for (path, picture) in &pictures {
        let bytes = picture.len();
        if bytes > rules.most_picture_bytes {
            let most = rules.most_picture_bytes;
            let message = match call.dialect {
                Dialect::Anthropic => format!(
                    "{path}.image.source.base64: image exceeds {} MB maximum: {bytes} bytes > {most} bytes",
                    most / 1024 / 1024
                ),
                Dialect::Chat | Dialect::Responses | Dialect::Gemini => {
                    format!(
                        "{path}: image exceeds {} MB maximum: {bytes} bytes > {most} bytes",
                        most >> 20
                    )
                }
            };
            return refuse(call, Rule::Pictures, message);
        }
        let most = rules.most_picture_side;
        if side(picture).is_some_and(|side| side > most) {
            let at = match call.dialect {
                Dialect::Anthropic => format!("{path}.image.source.base64.data"),
                Dialect::Chat | Dialect::Responses | Dialect::Gemini => path.clone(),
            };
            let message = format!(
                "{at}: At least one of the image dimensions exceed max allowed size: {most} pixels"
            );
            return refuse(call, Rule::Pictures, message);
        }
        if picture.starts_with("AAAA") {
            let message = match call.dialect {
                Dialect::Anthropic => {
                    format!("{path}.image.source.base64.data: Image does not match the provided media type image/png")
                }
                _ => "The image data you provided does not represent a valid image. Please check your input and try again with one of the supported image formats: ['image/jpeg', 'image/png', 'image/gif', 'image/webp'].".to_owned(),
            };
            return refuse(call, Rule::Pictures, message);
        }
    }
    output(call, rules)
}

/// `docs/protocols.md` 1.6: no more bytes than are read.
fn size(call: &Call, rules: &Rules) -> Result<(), Refusal> {
    if call.bytes.len() <= rules.most_request_bytes {
        return Ok(());
    }
    let (rule, most) = (Rule::RequestBytes, rules.most_request_bytes);
    Err(match call.dialect {
        Dialect::Anthropic => {
            let message = "Request exceeds the maximum size".to_owned();
            Refusal::anthropic_kind(rule, 413, "request_too_large", message)
        }
        Dialect::Chat | Dialect::Responses => {
            Refusal::openai(rule, 413, None, None, "413 Request Entity Too Large".to_owned())
        }
        Dialect::Gemini => {
            let message = format!("Request payload size exceeds the limit: {most} bytes.");
            Refusal::gemini(rule, 400, message)
        }
    })
}

/// Pixels of the longer side of a PNG.
fn side(picture: &str) -> Option<u32> {
    let head = STANDARD.decode(picture.get(..32)?).ok()?;
    let at = |at: usize| Some(u32::from_be_bytes(head.get(at..at + 4)?.try_into().ok()?));
    head.starts_with(b"\x89PNG").then_some(at(16)?.max(at(20)?))
}

/// `docs/protocols.md` 1.8: half a pair is no JSON.
fn characters(call: &Call) -> Result<(), Refusal> {
    let Err(error) = serde_json::from_slice::<Value>(&call.bytes) else { return Ok(()) };
    let why = error.to_string();
    if !["surrogate", "hex escape", "unicode"].iter().any(|word| why.contains(word)) {
        return Ok(());
    }
    let (line, column) = (error.line(), error.column());
    let message = match call.dialect {
        Dialect::Anthropic => format!(
            "The request body is not valid JSON: no low surrogate in string: line {line} column {column} (char {column})"
        ),
        _ => format!(
            "Failed to parse the request body as JSON: lone leading surrogate in hex escape at line {line} column {column}"
        ),
    };
    refuse(call, Rule::Characters, message)
}

/// `docs/protocols.md` 1.8: no more than the model writes.
fn output(call: &Call, rules: &Rules) -> Result<(), Refusal> {
    let Some(most) = rules.most_output.filter(|_| call.purpose == Purpose::Answer) else {
        return Ok(());
    };
    let asked = ["max_tokens", "max_completion_tokens", "max_output_tokens"];
    let asked = asked.iter().find_map(|name| call.body[*name].as_u64());
    let asked = asked.or_else(|| call.body["generationConfig"]["maxOutputTokens"].as_u64());
    let Some(asked) = asked.filter(|asked| *asked > most) else { return Ok(()) };
    let model = &call.model;
    let message = match call.dialect {
        Dialect::Anthropic => format!(
            "max_tokens: {asked} > {most}, which is the maximum allowed number of output tokens for {model}"
        ),
        Dialect::Chat => format!(
            "max_tokens is too large: {asked}. This model supports at most {most} completion tokens, whereas you provided {asked}."
        ),
        Dialect::Responses => format!(
            "max_output_tokens is too large: {asked}. This model supports at most {most} output tokens, whereas you provided {asked}."
        ),
        Dialect::Gemini => format!(
            "Unable to submit request because it has a maxOutputTokens value of {asked} but the supported range is from 1 (inclusive) to {} (exclusive). Update the value and try again.",
            most + 1
        ),
    };
    refuse(call, Rule::OutputLimit, message)
}

/// The base64 of each picture, and the path of its block.
fn gather<'v>(value: &'v Value, path: String, found: &mut Vec<(String, &'v str)>) {
    match value {
        Value::Object(members) => {
            let data = value["source"]["data"].as_str().filter(|_| value["type"] == "image");
            let inline = value["inlineData"]["data"].as_str();
            let url = value["image_url"]["url"].as_str().or_else(|| value["image_url"].as_str());
            let url = url.and_then(|url| url.split_once("base64,")).map(|(_, data)| data);
            if let Some(data) = data.or(inline).or(url) {
                found.push((path, data));
                return;
            }
            for (name, member) in members {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                gather(member, path, found);
            }
        }
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                gather(item, format!("{path}.{at}"), found);
            }
        }
        _ => {}
    }
}

fn refuse<T>(call: &Call, rule: Rule, message: String) -> Result<T, Refusal> {
    Err(match call.dialect {
        Dialect::Anthropic => Refusal::anthropic(rule, message),
        Dialect::Chat | Dialect::Responses => Refusal::openai(rule, 400, None, None, message),
        Dialect::Gemini => Refusal::gemini(rule, 400, message),
    })
}
