//! Limits of pictures, of output, and of what a character is, in the provider's own words (`docs/protocols.md` 1.8).
//!
//! Checked before anything else is read, as real providers do. Knows nothing of conversations.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::prompt::text;
use super::rules::Rules;
use super::verdict::{Refusal, Rule};
use super::{Call, Dialect, Purpose};

/// Checks a request.
pub(super) fn check(call: &Call, rules: &Rules) -> Result<(), Refusal> {
    size(call, rules)?;
    characters(call)?;
    let mut media = Vec::new();
    gather(&call.body, String::new(), &mut media);
    let most = rules.most_pictures;
    if media.len() > most {
        let count = media.len();
        let message = format!("too many images and documents: {count} + 0 > {most}");
        return refuse(call, Rule::Pictures, message);
    }
    for one in &media {
        match one.mime == "application/pdf" {
            true => document(call, one)?,
            false => picture(call, rules, one)?,
        }
    }
    output(call, rules)
}

/// What a provider says that is out of its mind: a small request is far longer than its window.
pub(super) fn wild_overflow(call: &Call) -> Refusal {
    let message = match call.dialect {
        Dialect::Anthropic => "prompt is too long: 210000 tokens > 200000 maximum",
        Dialect::Chat | Dialect::Responses => {
            "This model's maximum context length is 200000 tokens. However, your messages resulted in 210000 tokens. Please reduce the length of the messages."
        }
        Dialect::Gemini => {
            "The input token count (210000) exceeds the maximum number of tokens allowed (200000)."
        }
    };
    let message = message.to_owned();
    match call.dialect {
        Dialect::Anthropic => Refusal::anthropic(Rule::Overflow, message),
        Dialect::Chat | Dialect::Responses => {
            let code = Some("context_length_exceeded");
            Refusal::openai(Rule::Overflow, 400, code, None, message)
        }
        Dialect::Gemini => Refusal::gemini(Rule::Overflow, 400, message),
    }
}

/// A picture or document in a request.
struct Media<'v> {
    /// The path of its block.
    path: String,
    /// Its declared type; empty where none is declared.
    mime: &'v str,
    /// Its base64.
    data: &'v str,
}

/// How the base64 of each picture begins.
const BEGINS: [(&str, &str); 4] = [
    ("image/png", "iVBORw0KGgo"),
    ("image/jpeg", "/9j/"),
    ("image/gif", "R0lGOD"),
    ("image/webp", "UklGR"),
];

fn picture(call: &Call, rules: &Rules, picture: &Media<'_>) -> Result<(), Refusal> {
    let Media { path, mime, data } = picture;
    let is_anthropic = call.dialect == Dialect::Anthropic;
    let (bytes, most) = (data.len(), rules.most_picture_bytes);
    if bytes > most {
        let at = if is_anthropic { ".image.source.base64" } else { "" };
        let message = format!(
            "{path}{at}: image exceeds {} MB maximum: {bytes} bytes > {most} bytes",
            most >> 20
        );
        return refuse(call, Rule::Pictures, message);
    }
    let at = if is_anthropic { ".image.source.base64.data" } else { "" };
    let most = rules.most_picture_side;
    if side(data).is_some_and(|side| side > most) {
        let message = format!(
            "{path}{at}: At least one of the image dimensions exceed max allowed size: {most} pixels"
        );
        return refuse(call, Rule::Pictures, message);
    }
    if data.starts_with("AAAA") {
        let message = match is_anthropic {
            true => format!("{path}{at}: Image does not match the provided media type image/png"),
            false => "The image data you provided does not represent a valid image. Please check your input and try again with one of the supported image formats: ['image/jpeg', 'image/png', 'image/gif', 'image/webp'].".to_owned(),
        };
        return refuse(call, Rule::Pictures, message);
    }
    let is = BEGINS.iter().find(|(_, begins)| data.starts_with(begins)).map(|(mime, _)| *mime);
    if let Some(is) = is.filter(|is| is_anthropic && is != mime) {
        let message = format!(
            "{path}{at}: The image was specified using the {mime} media type, but the image appears to be a {is} image"
        );
        return refuse(call, Rule::Pictures, message);
    }
    Ok(())
}

/// A document has to be one; OpenAI's words for it are not known.
fn document(call: &Call, document: &Media<'_>) -> Result<(), Refusal> {
    if document.data.starts_with("JVBERi") {
        return Ok(());
    }
    let message = match call.dialect {
        Dialect::Anthropic => {
            format!("{}.pdf.source.base64.data: The PDF specified was not valid.", document.path)
        }
        Dialect::Gemini => "The document has no pages.".to_owned(),
        Dialect::Chat | Dialect::Responses => return Ok(()),
    };
    refuse(call, Rule::Pictures, message)
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

/// Each picture, and each document that comes as base64.
fn gather<'v>(value: &'v Value, path: String, found: &mut Vec<Media<'v>>) {
    match value {
        Value::Object(members) => {
            let source = &value["source"];
            let is_media = value["type"] == "image"
                || value["type"] == "document" && source["type"] == "base64";
            let data = source["data"].as_str().filter(|_| is_media);
            let data = data.map(|data| (text(&source["media_type"]), data));
            let inline = &value["inlineData"];
            let inline = inline["data"].as_str().map(|data| (text(&inline["mimeType"]), data));
            let url = value["image_url"]["url"].as_str().or_else(|| value["image_url"].as_str());
            let url = url.and_then(|url| url.strip_prefix("data:")?.split_once(";base64,"));
            if let Some((mime, data)) = data.or(inline).or(url) {
                found.push(Media { path, mime, data });
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
