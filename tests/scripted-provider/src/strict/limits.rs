//! Limits of images, output and request size, and invalid characters, with the provider's errors
//! (`docs/protocols.md` 1.8).
//!
//! Checked before anything else, as real providers do. Knows nothing of conversations.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::prompt::text;
use super::rules::Rules;
use super::verdict::{ApiError, Rule};
use super::{Dialect, Operation, ReceivedRequest};

/// Checks a request.
pub(super) fn check(request: &ReceivedRequest, rules: &Rules) -> Result<(), ApiError> {
    check_size(request, rules)?;
    check_characters(request)?;
    let mut media = Vec::new();
    collect_media(&request.body, String::new(), &mut media);
    let max = rules.max_images;
    if media.len() > max {
        let count = media.len();
        let message = format!("too many images and documents: {count} + 0 > {max}");
        return refuse(request, Rule::Pictures, message);
    }
    for found in &media {
        match found.mime == "application/pdf" {
            true => check_document(request, found)?,
            false => check_image(request, rules, found)?,
        }
    }
    check_max_output(request, rules)
}

/// An error that no real provider sends: a small request is far longer than its window.
pub(super) fn implausible_overflow(request: &ReceivedRequest) -> ApiError {
    let message = match request.dialect {
        Dialect::Anthropic => "prompt is too long: 210000 tokens > 200000 maximum",
        Dialect::Chat | Dialect::Responses => {
            "This model's maximum context length is 200000 tokens. However, your messages resulted in 210000 tokens. Please reduce the length of the messages."
        }
        Dialect::Gemini => {
            "The input token count (210000) exceeds the maximum number of tokens allowed (200000)."
        }
    };
    let message = message.to_owned();
    match request.dialect {
        Dialect::Anthropic => ApiError::anthropic(Rule::Overflow, message),
        Dialect::Chat | Dialect::Responses => {
            let code = Some("context_length_exceeded");
            ApiError::openai(Rule::Overflow, 400, code, None, message)
        }
        Dialect::Gemini => ApiError::gemini(Rule::Overflow, 400, message),
    }
}

/// An image or document in a request.
struct EncodedMedia<'v> {
    /// The path of its block.
    path: String,
    /// Its declared type; empty if none is declared.
    mime: &'v str,
    /// Its base64.
    data: &'v str,
}

/// How the base64 of each image type begins.
const MAGIC_PREFIXES: [(&str, &str); 4] = [
    ("image/png", "iVBORw0KGgo"),
    ("image/jpeg", "/9j/"),
    ("image/gif", "R0lGOD"),
    ("image/webp", "UklGR"),
];

fn check_image(
    request: &ReceivedRequest,
    rules: &Rules,
    image: &EncodedMedia<'_>,
) -> Result<(), ApiError> {
    let EncodedMedia { path, mime, data } = image;
    let is_anthropic = request.dialect == Dialect::Anthropic;
    let (bytes, max) = (data.len(), rules.max_image_bytes);
    if bytes > max {
        let suffix = if is_anthropic { ".image.source.base64" } else { "" };
        let message = format!(
            "{path}{suffix}: image exceeds {} MB maximum: {bytes} bytes > {max} bytes",
            max >> 20
        );
        return refuse(request, Rule::Pictures, message);
    }
    let suffix = if is_anthropic { ".image.source.base64.data" } else { "" };
    let max = rules.max_image_side;
    if longer_side(data).is_some_and(|side| side > max) {
        let message = format!(
            "{path}{suffix}: At least one of the image dimensions exceed max allowed size: {max} pixels"
        );
        return refuse(request, Rule::Pictures, message);
    }
    if data.starts_with("AAAA") {
        let message = match is_anthropic {
            true => format!("{path}{suffix}: Image does not match the provided media type image/png"),
            false => "The image data you provided does not represent a valid image. Please check your input and try again with one of the supported image formats: ['image/jpeg', 'image/png', 'image/gif', 'image/webp'].".to_owned(),
        };
        return refuse(request, Rule::Pictures, message);
    }
    let actual = MAGIC_PREFIXES.iter().find(|(_, magic)| data.starts_with(magic));
    let actual = actual.map(|(mime, _)| *mime);
    if let Some(actual) = actual.filter(|actual| is_anthropic && actual != mime) {
        let message = format!(
            "{path}{suffix}: The image was specified using the {mime} media type, but the image appears to be a {actual} image"
        );
        return refuse(request, Rule::Pictures, message);
    }
    Ok(())
}

fn check_document(request: &ReceivedRequest, document: &EncodedMedia<'_>) -> Result<(), ApiError> {
    // A document has to be one; OpenAI's error for it is not known.
    if document.data.starts_with("JVBERi") {
        return Ok(());
    }
    let message = match request.dialect {
        Dialect::Anthropic => {
            format!("{}.pdf.source.base64.data: The PDF specified was not valid.", document.path)
        }
        Dialect::Gemini => "The document has no pages.".to_owned(),
        Dialect::Chat | Dialect::Responses => return Ok(()),
    };
    refuse(request, Rule::Pictures, message)
}

fn check_size(request: &ReceivedRequest, rules: &Rules) -> Result<(), ApiError> {
    // `docs/protocols.md` 1.6.
    if request.bytes.len() <= rules.max_request_bytes {
        return Ok(());
    }
    let (rule, max) = (Rule::RequestBytes, rules.max_request_bytes);
    Err(match request.dialect {
        Dialect::Anthropic => {
            let message = "Request exceeds the maximum size".to_owned();
            ApiError::anthropic_kind(rule, 413, "request_too_large", message)
        }
        Dialect::Chat | Dialect::Responses => {
            ApiError::openai(rule, 413, None, None, "413 Request Entity Too Large".to_owned())
        }
        Dialect::Gemini => {
            let message = format!("Request payload size exceeds the limit: {max} bytes.");
            ApiError::gemini(rule, 400, message)
        }
    })
}

/// Pixels of the longer side of a PNG.
fn longer_side(image: &str) -> Option<u32> {
    let head = STANDARD.decode(image.get(..32)?).ok()?;
    head.starts_with(b"\x89PNG").then_some(number_at(&head, 16)?.max(number_at(&head, 20)?))
}

fn number_at(bytes: &[u8], start: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(start..start + 4)?.try_into().ok()?))
}

fn check_characters(request: &ReceivedRequest) -> Result<(), ApiError> {
    // `docs/protocols.md` 1.8: a lone surrogate is not valid JSON.
    let Err(error) = serde_json::from_slice::<Value>(&request.bytes) else { return Ok(()) };
    let reason = error.to_string();
    if !["surrogate", "hex escape", "unicode"].iter().any(|word| reason.contains(word)) {
        return Ok(());
    }
    let (line, column) = (error.line(), error.column());
    let message = match request.dialect {
        Dialect::Anthropic => format!(
            "The request body is not valid JSON: no low surrogate in string: line {line} column {column} (char {column})"
        ),
        _ => format!(
            "Failed to parse the request body as JSON: lone leading surrogate in hex escape at line {line} column {column}"
        ),
    };
    refuse(request, Rule::Characters, message)
}

fn check_max_output(request: &ReceivedRequest, rules: &Rules) -> Result<(), ApiError> {
    // `docs/protocols.md` 1.8: no more output tokens than the model can write.
    let (Some(max), Operation::Reply) = (rules.max_output_tokens, request.operation) else {
        return Ok(());
    };
    let Some(requested) = requested_output(request).filter(|requested| *requested > max) else {
        return Ok(());
    };
    let model = &request.model;
    let message = match request.dialect {
        Dialect::Anthropic => format!(
            "max_tokens: {requested} > {max}, which is the maximum allowed number of output tokens for {model}"
        ),
        Dialect::Chat => format!(
            "max_tokens is too large: {requested}. This model supports at most {max} completion tokens, whereas you provided {requested}."
        ),
        Dialect::Responses => format!(
            "max_output_tokens is too large: {requested}. This model supports at most {max} output tokens, whereas you provided {requested}."
        ),
        Dialect::Gemini => format!(
            "Unable to submit request because it has a maxOutputTokens value of {requested} but the supported range is from 1 (inclusive) to {} (exclusive). Update the value and try again.",
            max + 1
        ),
    };
    refuse(request, Rule::OutputLimit, message)
}

/// The output limit that a request names.
pub(super) fn requested_output(request: &ReceivedRequest) -> Option<u64> {
    let names = ["max_tokens", "max_completion_tokens", "max_output_tokens"];
    let named = names.iter().find_map(|name| request.body[*name].as_u64());
    named.or_else(|| request.body["generationConfig"]["maxOutputTokens"].as_u64())
}

/// Finds each image, and each document that comes as base64.
fn collect_media<'v>(value: &'v Value, path: String, found: &mut Vec<EncodedMedia<'v>>) {
    match value {
        Value::Object(members) => {
            let source = &value["source"];
            let is_media = value["type"] == "image"
                || value["type"] == "document" && source["type"] == "base64";
            let data = if is_media { source["data"].as_str() } else { None };
            let data = data.map(|data| (text(&source["media_type"]), data));
            let inline = &value["inlineData"];
            let inline = inline["data"].as_str().map(|data| (text(&inline["mimeType"]), data));
            let url = value["image_url"]["url"].as_str().or_else(|| value["image_url"].as_str());
            let url = url.and_then(|url| url.strip_prefix("data:")?.split_once(";base64,"));
            if let Some((mime, data)) = data.or(inline).or(url) {
                found.push(EncodedMedia { path, mime, data });
                return;
            }
            for (name, member) in members {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                collect_media(member, path, found);
            }
        }
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                collect_media(item, format!("{path}.{at}"), found);
            }
        }
        _ => {}
    }
}

fn refuse<T>(request: &ReceivedRequest, rule: Rule, message: String) -> Result<T, ApiError> {
    Err(match request.dialect {
        Dialect::Anthropic => ApiError::anthropic(rule, message),
        Dialect::Chat | Dialect::Responses => ApiError::openai(rule, 400, None, None, message),
        Dialect::Gemini => ApiError::gemini(rule, 400, message),
    })
}
