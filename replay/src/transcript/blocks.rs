//! Recorded parts as each dialect writes them: blocks of messages, and the response that they came in.
//!
//! Knows nothing of what came before a part.

use base64::Engine as _;
use plimsoll_core::dialect::Dialect;
use serde_json::{Value, json};

use super::line::{AddedPart, TranscriptLine, TranscriptUsage};

/// A response with these `blocks` and the line's usage.
pub(crate) fn response(line: &TranscriptLine, dialect: Dialect, blocks: &[String]) -> Vec<u8> {
    let blocks = blocks.join(",");
    let TranscriptUsage { input_total, cache_read, cache_write, output, reasoning } = line.usage;
    let body = match dialect {
        Dialect::OpenaiResponses => {
            let usage = json!({
                "input_tokens": input_total,
                "input_tokens_details": { "cached_tokens": cache_read },
                "output_tokens": output,
                "output_tokens_details": { "reasoning_tokens": reasoning.unwrap_or(0) },
                "total_tokens": input_total.saturating_add(output),
            });
            format!(
                r#"{{"object":"response","status":"completed","output":[{blocks}],"usage":{usage}}}"#
            )
        }
        Dialect::Gemini => {
            let thoughts = reasoning.unwrap_or(0);
            let usage = json!({
                "promptTokenCount": input_total,
                "cachedContentTokenCount": cache_read,
                "candidatesTokenCount": output,
                "thoughtsTokenCount": thoughts,
                "totalTokenCount": input_total.saturating_add(output).saturating_add(thoughts),
            });
            format!(
                r#"{{"candidates":[{{"content":{{"role":"model","parts":[{blocks}]}},"finishReason":"STOP"}}],"usageMetadata":{usage}}}"#
            )
        }
        Dialect::Anthropic | Dialect::OpenaiChat => {
            let uncached = input_total.saturating_sub(cache_read).saturating_sub(cache_write);
            let usage = json!({
                "input_tokens": uncached,
                "cache_read_input_tokens": cache_read,
                "cache_creation_input_tokens": cache_write,
                "output_tokens": output,
            });
            format!(
                r#"{{"type":"message","role":"assistant","content":[{blocks}],"stop_reason":"end_turn","usage":{usage}}}"#
            )
        }
    };
    body.into_bytes()
}

pub(super) fn anthropic_role(role: &str) -> &str {
    if role == "assistant" { "assistant" } else { "user" }
}

pub(super) fn gemini_role(role: &str) -> &str {
    if role == "assistant" { "model" } else { "user" }
}

pub(super) fn text(dialect: Dialect, part: &AddedPart) -> Option<String> {
    let text = &part.text;
    if text.is_empty() {
        return None;
    }
    let block = match dialect {
        Dialect::OpenaiResponses => {
            let kind = if part.role == "assistant" { "output_text" } else { "input_text" };
            let content = [json!({ "type": kind, "text": text })];
            json!({ "type": "message", "role": part.role, "content": content })
        }
        Dialect::Gemini => json!({ "text": text }),
        Dialect::Anthropic | Dialect::OpenaiChat => json!({ "type": "text", "text": text }),
    };
    Some(block.to_string())
}

pub(super) fn image(dialect: Dialect, part: &AddedPart) -> String {
    let picture = picture(dialect, part);
    match dialect {
        Dialect::OpenaiResponses => {
            json!({ "type": "message", "role": "user", "content": [picture] }).to_string()
        }
        Dialect::Gemini | Dialect::Anthropic | Dialect::OpenaiChat => picture.to_string(),
    }
}

/// An image of the recorded size: pixels are not recorded, so it is only a header.
pub(super) fn picture(dialect: Dialect, part: &AddedPart) -> Value {
    let mut png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
    png.extend_from_slice(&part.w.to_be_bytes());
    png.extend_from_slice(&part.h.to_be_bytes());
    png.extend_from_slice(b"\x08\x06\0\0\0\0\0\0\0");
    let data = base64::engine::general_purpose::STANDARD.encode(png);
    let mime = part.mime.as_deref().unwrap_or("image/png");
    match dialect {
        Dialect::OpenaiResponses => {
            json!({ "type": "input_image", "image_url": format!("data:{mime};base64,{data}") })
        }
        Dialect::Gemini => json!({ "inlineData": { "mimeType": mime, "data": data } }),
        Dialect::Anthropic | Dialect::OpenaiChat => json!({
            "type": "image",
            "source": { "type": "base64", "media_type": mime, "data": data },
        }),
    }
}
