//! Reads from a refusal what an edit can fix, by the provider's message (`config/refusals.toml`).
//!
//! An unknown message cannot be fixed. A known one heals a single request and teaches nothing. Pure.

use std::sync::OnceLock;

use serde::Deserialize;

use super::RepairCause;
use super::path::JsonPath;
use crate::dialect::error_message::ErrorMessage;
use crate::dialect::numbers::number;
use crate::dialect::overflow::unescaped;
use crate::wire::json::{Document, Value};

/// What a provider refused, and why, read from its message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What kind of edit can answer it.
    pub cause: RepairCause,
    /// What exceeds a limit, or is wrong.
    pub detail: Option<RefusalDetail>,
    /// The place that the provider names.
    pub place: Option<JsonPath>,
    /// The stated limit, in the unit of `detail`.
    pub limit: Option<u64>,
    /// The stated actual number, in the same unit.
    pub count: Option<u64>,
    /// An id, or the name of a member.
    pub name: Option<Box<str>>,
}

/// What exceeds a limit, or is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalDetail {
    /// Bytes of an image or document.
    Bytes,
    /// Pixels of an image's side.
    Pixels,
    /// The number of images and documents.
    Count,
    /// The format: it differs from the declared one, or is unreadable.
    Format,
    /// A document that is not valid, is locked, or has too many pages.
    Document,
    /// The model accepts none.
    Unsupported,
    /// Bytes of the whole request.
    Request,
    /// The output limit exceeds the model's maximum.
    ModelLimit,
    /// The same, but the stated limit itself is one too large.
    ModelLimitExclusive,
    /// Prompt and output together exceed the window.
    Window,
    /// A tool that is loaded by reference.
    Reference,
}

/// A response that refuses a request.
#[derive(Clone, Copy, Debug)]
pub struct RefusedAnswer<'a> {
    /// Its HTTP status.
    pub status: u16,
    /// Its body, decompressed.
    pub body: &'a [u8],
}

/// Statuses of refusals that blame the request.
const REFUSALS: &[u16] = &[400, 413, 422];
/// Most bytes of a body that are read.
const MOST_BYTES: usize = 64 * 1024;
/// Most bytes of a name in a message.
const LONGEST_NAME: usize = 200;

/// What a response refuses; `None` if it is not a refusal, or its message is unknown.
pub fn read(answer: &RefusedAnswer<'_>) -> Option<Refusal> {
    if !(400..500).contains(&answer.status) || answer.body.len() > MOST_BYTES {
        return None;
    }
    // Gateways wrap the error that they received as a string in a string.
    let text = unescaped(unescaped(answer.body).as_bytes());
    let lower = text.to_ascii_lowercase();
    let file = built_in();
    if file.except.iter().any(|pattern| lower.contains(&**pattern)) {
        return None;
    }
    let messages = ErrorMessage::all(answer.body);
    let codes: Vec<&str> =
        messages.iter().flat_map(|message| &message.kinds).map(|kind| &**kind).collect();
    let (pattern, captures) = file.refusal.iter().find_map(|pattern| {
        if !pattern.status.as_deref().unwrap_or(REFUSALS).contains(&answer.status) {
            return None;
        }
        let captures = match pattern.code.as_deref() {
            Some(code) if codes.contains(&code) => RefusalCaptures::default(),
            Some(_) => return None,
            None => pattern.captures(&lower, &text)?,
        };
        Some((pattern, captures))
    })?;
    let RefusalCaptures { limit, count, name } = captures;
    let places: Vec<&str> =
        messages.iter().flat_map(|message| &message.places).map(|place| &**place).collect();
    let mut place = listed_place(answer.body)
        .or_else(|| places.iter().find_map(|place| JsonPath::first_in(place)))
        .or_else(|| JsonPath::first_in(&text));
    if pattern.cause == RepairCause::Field && place.is_none() {
        let prefix = lower.find(": extra inputs").map(|end| last_name(&text[..end]));
        let quoted = lower.find(" at '").map(|at| &text[at + 5..]);
        let names = [quoted, prefix, name.as_deref()].into_iter().flatten();
        let mut names = places.into_iter().chain(names);
        place = listed_member(answer.body).or_else(|| names.find_map(JsonPath::member));
    }
    Some(Refusal { cause: pattern.cause, detail: pattern.detail, place, limit, count, name })
}

fn listed_place(body: &[u8]) -> Option<JsonPath> {
    let document = Document::read(body).ok()?;
    let root = document.root(body)?;
    let faults = root.get("detail").or_else(|| root.get("message")?.get("detail"))?;
    let mut loc = faults.items().filter_map(|fault: Value<'_>| fault.get("loc"));
    JsonPath::of_list(loc.next()?)
}

fn listed_member(body: &[u8]) -> Option<JsonPath> {
    let document = Document::read(body).ok()?;
    let faults = document.root(body)?.get("detail")?;
    JsonPath::member_of_list(faults.items().find_map(|fault| fault.get("loc"))?)
}

fn last_name(text: &str) -> &str {
    let start = text.bytes().rposition(|byte| !is_of_name(&byte)).map_or(0, |at| at + 1);
    text.get(start..).unwrap_or_default()
}

/// The content of `config/refusals.toml`.
#[derive(Deserialize)]
struct RefusalFile {
    except: Vec<Box<str>>,
    refusal: Vec<RefusalPattern>,
}

/// One entry of `config/refusals.toml`.
#[derive(Deserialize)]
struct RefusalPattern {
    cause: RepairCause,
    detail: Option<RefusalDetail>,
    #[serde(default)]
    text: Box<str>,
    /// Instead of a text: one word of each list.
    #[serde(default)]
    words: Vec<Vec<Box<str>>>,
    /// Instead of a text: the error's type, code or status.
    code: Option<Box<str>>,
    status: Option<Vec<u16>>,
}

/// The values in a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct RefusalCaptures {
    limit: Option<u64>,
    count: Option<u64>,
    name: Option<Box<str>>,
}

/// The built-in patterns, parsed on first use.
fn built_in() -> &'static RefusalFile {
    // A test checks that they are valid.
    static FILE: OnceLock<RefusalFile> = OnceLock::new();
    FILE.get_or_init(|| {
        toml::from_str(include_str!("../../../../config/refusals.toml"))
            .unwrap_or_else(|_| RefusalFile { except: Vec::new(), refusal: Vec::new() })
    })
}

impl RefusalPattern {
    /// The values at the first match of the pattern. `lower`: `text` in lower case.
    fn captures(&self, lower: &str, text: &str) -> Option<RefusalCaptures> {
        if !self.words.is_empty() {
            for list in &self.words {
                if !list.iter().any(|word| lower.contains(&**word)) {
                    return None;
                }
            }
            return Some(RefusalCaptures::default());
        }
        let first_word = self.text.split([' ', '{']).next().unwrap_or_default();
        let starts = memchr::memmem::find_iter(lower.as_bytes(), first_word.as_bytes());
        starts.filter_map(|start| fits(&self.text, lower.get(start..)?, text.get(start..)?)).next()
    }
}

/// The values in a text that begins with `pattern`.
fn fits(pattern: &str, lower: &str, text: &str) -> Option<RefusalCaptures> {
    let mut pattern = pattern;
    let mut rest = lower;
    let mut captured = RefusalCaptures::default();
    while let Some(next) = pattern.chars().next() {
        if next == '{' {
            let (name, after) = pattern[1..].split_once('}')?;
            pattern = after;
            if name == "name" {
                let end = rest.bytes().take_while(is_of_name).take(LONGEST_NAME).count();
                let begin = lower.len() - rest.len();
                captured.name =
                    Some(text.get(begin..begin + end).filter(|name| !name.is_empty())?.into());
                rest = &rest[end..];
                continue;
            }
            let (number, left) = number(rest)?;
            match name {
                "limit" => captured.limit = number,
                "count" => captured.count = number,
                _ => {}
            }
            rest = left;
        } else if next == ' ' {
            pattern = &pattern[1..];
            rest = rest.trim_start();
        } else {
            rest = rest.strip_prefix(next)?;
            pattern = &pattern[next.len_utf8()..];
        }
    }
    Some(captured)
}

fn is_of_name(byte: &u8) -> bool {
    // An id, a media type, a place, or abbreviated base64.
    byte.is_ascii_alphanumeric() || b"._:/@-[]+=".contains(byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn captured(status: u16, body: &str) -> Option<Refusal> {
        read(&RefusedAnswer { status, body: body.as_bytes() })
    }

    #[test]
    fn every_known_refusal_message_is_read_with_its_cause() {
        let file = built_in();
        assert!(file.refusal.len() > 50, "the data does not parse");
        assert!(file.except.len() > 8, "the data does not parse");
        for known in &file.refusal {
            let words = known.words.iter().map(|list| &*list[0]).collect::<Vec<_>>().join(" ");
            let pattern = format!("{}{words}", known.text);
            let pattern = pattern.replace("{limit}", "100").replace("{count}", "200");
            let pattern = pattern.replace("{name}", "rs_1").replace("{}", "7");
            assert_eq!(known.text, known.text.to_ascii_lowercase().into(), "in lower case");
            let body = serde_json::json!({"error": {"message": format!("Oh: {pattern}."), "code": known.code}});
            let status = known.status.as_ref().map_or(400, |all| all[0]);
            let seen = captured(status, &body.to_string()).unwrap_or_else(|| panic!("{body}"));
            assert_eq!(seen.cause, known.cause, "{body}");
            for status in [200, 401, 429, 500, 529] {
                assert_eq!(captured(status, &body.to_string()), None, "{status} {body}");
            }
        }
    }

    #[test]
    fn numbers_places_and_names_are_read() {
        let image = captured(
            400,
            r#"{"error":{"message":"messages.16.content.2.image.source.base64: image exceeds 5 MB maximum: 6521204 bytes > 5242880 bytes"}}"#,
        )
        .unwrap();
        assert_eq!(image.limit, Some(5_242_880));
        assert_eq!(image.count, Some(6_521_204));
        assert_eq!(image.detail, Some(RefusalDetail::Bytes));
        assert!(image.place.is_some());
        let item = captured(
            400,
            r#"{"error":{"message":"The encrypted content for item rs_Ab1 could not be verified."}}"#,
        );
        assert_eq!(item.unwrap().name.as_deref(), Some("rs_Ab1"));
        let content = captured(
            400,
            r#"{"error":{"message":"The encrypted content gAAA...DQ== could not be verified.","code":"invalid_encrypted_content"}}"#,
        );
        assert_eq!(content.unwrap().name.as_deref(), Some("gAAA...DQ=="));
        let field = captured(
            422,
            r#"{"detail":[{"loc":["body","messages",1,"assistant","reasoning_content"],"msg":"Extra inputs are not permitted"}]}"#,
        );
        let place = field.unwrap().place.unwrap();
        assert_eq!(place.0.len(), 4, "{place:?}");
    }

    /// Whole response bodies, as recorded.
    #[test]
    fn recorded_refusals_are_read() {
        use RefusalDetail::{Bytes, Count, Document, Format, ModelLimit, Request};
        use RepairCause::{Empty, MaxTokens, Media, Prefill, ToolPairs};
        let gemini = |pattern: &str| {
            format!(
                r#"{{"error":{{"code":400,"message":"{pattern}","status":"INVALID_ARGUMENT"}}}}"#
            )
        };
        let plain = |pattern: &str| {
            format!(r#"{{"object":"error","message":"{pattern}","type":"BadRequestError"}}"#)
        };
        for (status, body, cause, detail, limit) in [
            (400, gemini("Request payload size exceeds the limit: 20971520 bytes."), Media, Some(Request), Some(20_971_520)),
            (413, r#"{"error":{"message":"Maximum request body size 1048576 exceeded, actual body size 1056562","code":413,"status":"Request Entity Too Large"}}"#.into(), Media, Some(Request), Some(1_048_576)),
            (413, "<html>\r\n<head><title>413 Request Entity Too Large</title></head>\r\n<body>\r\n<center><h1>413 Request Entity Too Large</h1></center>\r\n<hr><center>openresty</center>\r\n</body>\r\n</html>".into(), Media, Some(Request), None),
            (400, gemini("Unable to process input image. Please retry or report in https://developers.generativeai.google/guide/troubleshooting"), Media, Some(Format), None),
            (400, gemini("Provided image is not valid."), Media, Some(Format), None),
            (400, gemini("The document has no pages."), Media, Some(Document), None),
            (400, r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages.28.content.0.pdf.source.base64.data: The PDF specified was not valid."}}"#.into(), Media, Some(Document), None),
            (400, r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages.4.content.1.pdf.source.base64.data: The PDF specified is password protected."}}"#.into(), Media, Some(Document), None),
            (400, r#"{"type":"error","error":{"type":"invalid_request_error","message":"A maximum of 100 PDF pages may be provided."}}"#.into(), Media, Some(Document), Some(100)),
            (400, r#"{"type":"error","error":{"type":"invalid_request_error","message":"Could not process PDF"},"request_id":"req_1"}"#.into(), Media, Some(Document), None),
            (400, gemini("Invalid value at 'contents[0].parts[2].inline_data.data' (TYPE_BYTES), Base64 decoding failed for \\\"data:image/png;base64\\\""), Media, Some(Format), None),
            (400, gemini("Unable to submit request because it must include at least one parts field, which describes the prompt input. Learn more: https://cloud.google.com/vertex-ai/generative-ai/docs/model-reference/gemini"), Empty, None, None),
            (400, gemini("* GenerateContentRequest.contents[33].parts[0].data: required oneof field 'data' must have one initialized field\\n"), Empty, None, None),
            (400, gemini("* GenerateContentRequest.contents[1].parts: contents.parts must not be empty.\\n"), Empty, None, None),
            (400, r#"{"error":{"code":"invalid_payload","message":"'data:image/jpeg;base64,/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAgGBgcHBgUICAcHCQkICgwUDQwLC...' is not a valid absolute URI"}}"#.into(), Media, Some(Bytes), None),
            (400, plain("At most 1 image(s) may be provided in one request."), Media, Some(Count), Some(1)),
            (400, plain("At most 6 image(s) may be provided in one prompt. None"), Media, Some(Count), Some(6)),
            (400, plain("Too many images in request. Max is 10."), Media, Some(Count), Some(10)),
            (400, plain("Too many images in request: 11 images provided, but the model supports a maximum of 10 images."), Media, Some(Count), Some(10)),
            (400, plain("request contains 52 images, exceeding the maximum of 50 allowed per request"), Media, Some(Count), Some(50)),
            (400, r#"{"error":{"message":"Invalid request: unsupported image format: image/x-icon","type":"invalid_request_error"}}"#.into(), Media, Some(Format), None),
            (400, r#"{"error":"illegal base64 data at input byte 4"}"#.into(), Media, Some(Format), None),
            (400, plain("Assistant message must have either content or tool_calls, but not none."), Empty, None, None),
            (400, r#"{"message":"The content field at messages.4.content.0.toolResult cannot be empty when status value is error."}"#.into(), Empty, None, None),
            (400, r#"{"error":{"code":400,"message":"Cannot have 2 or more assistant messages at the end of the list.","type":"invalid_request_error"}}"#.into(), Prefill, None, None),
            (400, r#"{"error":{"message":"Provider returned error","code":400,"metadata":{"raw":"{\"object\":\"error\",\"message\":\"Unexpected role 'tool' after role 'user'\",\"type\":\"invalid_request_message_order\",\"param\":null,\"code\":\"3230\"}","provider_name":"Mistral"}}}"#.into(), ToolPairs, None, None),
            (400, r#"{"message":"Expected toolResult blocks at messages.2.content for the following Ids: tooluse_bRX9ftpYK3xO5tev2x4qtc"}"#.into(), ToolPairs, None, None),
            (400, r#"{"message":"The number of toolResult blocks at messages.6.content exceeds the number of toolUse blocks of previous turn."}"#.into(), ToolPairs, None, None),
            (400, r#"{"message":"The maximum tokens you requested exceeds the model limit of 4096. Try again with a maximum tokens value that is lower than 4096."}"#.into(), MaxTokens, Some(ModelLimit), Some(4_096)),
            (400, r#"{"error":{"message":"max_tokens must be less than or equal to 16384, the maximum value for max_tokens is less than the context_window for this model"}}"#.into(), MaxTokens, Some(ModelLimit), Some(16_384)),
        ] {
            let seen = captured(status, &body).unwrap_or_else(|| panic!("{body}"));
            assert_eq!(seen.cause, cause, "{body}");
            assert_eq!(seen.detail, detail, "{body}");
            assert_eq!(seen.limit, limit, "{body}");
        }
        let order = r#"{"object":"error","message":"Unexpected role 'user' after role 'tool'","type":"invalid_request_message_order"}"#;
        assert_eq!(captured(400, order), None, "nothing that an edit can answer");
    }

    #[test]
    fn pairing_is_read_in_any_words() {
        let cause = |text: &str| captured(400, text).map(|seen| (seen.cause, seen.detail));
        for text in [
            "invalid params, tool result's tool id(call_function_g094w5htkglv_1) not found (2013)",
            "invalid params, tool call and result not match (2013)",
            "invalid params, tool call result does not follow tool call (2013)",
            "Invalid request: tool_call_id call_7 does not match any tool call in the previous message",
            "Invalid request: tool_call_id  is not found",
            "messages.2: `tool_use` ids were found without `tool_result` blocks immediately after: t1",
            "No tool output found for function call call_1.",
            "Message has tool role, but there was no previous assistant message with a tool call!",
            "Unexpected tool call id call_1 in tool results",
            "Each `tool_result` block must have a corresponding `tool_use` block in the previous message.",
            "Missing tool result for tool call call_1",
            "Please ensure that the number of function response parts is equal to the number of function call parts of the function call turn.",
        ] {
            assert_eq!(cause(text), Some((RepairCause::ToolPairs, None)), "{text}");
        }
        let reference = Some((RepairCause::ToolPairs, Some(RefusalDetail::Reference)));
        let text =
            r#"{"error":{"message":"Tool reference 'mcp__x' not found in available tools"}}"#;
        assert_eq!(cause(text), reference);
        let code =
            r#"{"error":{"message":"No.","details":{"error_code":"tool_reference_unresolved"}}}"#;
        assert_eq!(cause(code), reference);
        for text in [
            "Unexpected role 'user' after role 'tool'",
            "invalid params, function parameters is empty (2013)",
            "Tool call validation failed: parameters for tool x did not pass",
        ] {
            assert_eq!(cause(text), None, "{text}");
        }
    }

    #[test]
    fn place_of_unknown_member_is_read_from_every_form() {
        let place = |body: &str| {
            let seen = captured(400, body).unwrap_or_else(|| panic!("{body}"));
            assert_eq!(seen.cause, RepairCause::Field, "{body}");
            let steps = seen.place.unwrap_or_else(|| panic!("{body}")).0.into_iter();
            let step = |step| match step {
                crate::dialect::repair::path::JsonPathStep::Name(name) => name.to_string(),
                crate::dialect::repair::path::JsonPathStep::Number(at) => at.to_string(),
            };
            steps.map(step).collect::<Vec<_>>().join(".")
        };
        for (body, expected) in [
            ("context_management: Extra inputs are not permitted", "context_management"),
            ("body.service_tier: Extra inputs are not permitted", "service_tier"),
            (
                "thinking.adaptive.display: Extra inputs are not permitted",
                "thinking.adaptive.display",
            ),
            ("tools.0.custom.strict: Extra inputs are not permitted", "tools.0.custom.strict"),
            (
                r#"{"detail":[{"loc":["body","store"],"msg":"Extra inputs are not permitted"}]}"#,
                "store",
            ),
            (
                r#"{"error":{"message":"Unknown parameter: 'safety_identifier'.","param":"safety_identifier","code":"unknown_parameter"}}"#,
                "safety_identifier",
            ),
            (r#"{"error":{"message":"Unknown parameter: 'verbosity'."}}"#, "verbosity"),
            ("property 'store' is unsupported", "store"),
            ("Unrecognized request argument supplied: thinking", "thinking"),
            ("Extra inputs are not permitted, field: 'store', value: True", "store"),
            (
                "[{'type': 'extra_forbidden', 'loc': ('body', 'store'), 'msg': 'Extra inputs are not permitted', 'input': True}]",
                "store",
            ),
            (
                "Malformed input request: #: extraneous key [store] is not permitted, please reformat your input and try again.",
                "store",
            ),
            (
                r#"{"error":{"message":"x","param":"input[2].id","code":"unknown_parameter"}}"#,
                "input.2.id",
            ),
            (
                r#"{"error":{"message":"Extra inputs are not permitted","details":{"paths":["messages.3.content.0.citations"]}}}"#,
                "messages.3.content.0.citations",
            ),
            (
                r#"{"error":{"message":"Invalid JSON payload received. Unknown name \"foo\" at 'generation_config': Cannot find field."}}"#,
                "generation_config",
            ),
            (
                r#"{"error":{"message":"Invalid JSON payload received. Unknown name \"labels\": Cannot find field."}}"#,
                "labels",
            ),
        ] {
            assert_eq!(place(body), expected, "{body}");
        }
    }

    #[test]
    fn what_router_passes_on_is_read() {
        let raw = r#"{"error":{"message":"Provider returned error","code":400,"metadata":{"raw":"{\"type\":\"error\",\"error\":{\"message\":\"messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: t1\"}}"}}}"#;
        assert_eq!(captured(400, raw).unwrap().cause, RepairCause::ToolPairs);
    }

    /// The block is invalid only after this history. If it were removed, it would be missing where it is valid.
    #[test]
    fn reasoning_that_is_bound_elsewhere_is_left_alone() {
        let read_of =
            |why| captured(400, &format!("Invalid `signature` in `thinking` block.{why}"));
        assert_eq!(read_of("").unwrap().cause, RepairCause::Reasoning);
        assert_eq!(read_of(" The block is bound to a different conversation."), None);
    }

    #[test]
    fn unknown_messages_have_no_cause() {
        for body in ["", "{}", "temperature must be below 2", "Rate limit: image exceeds", "\\u12"]
        {
            assert_eq!(captured(400, body), None, "{body}");
        }
    }
}
