//! Recorded sessions, one call per line: what each call added, and what the provider reported.
//!
//! A line contains the messages since the previous call (`new_parts`), not the request. Requests and replies
//! are rebuilt from them in the session's own dialect, so that the code that serves live traffic reads and
//! measures them. System prompt and tools are not recorded.

mod hidden;

pub(crate) use hidden::excesses;

use std::collections::VecDeque;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use plimsoll_core::context::Estimate;
use plimsoll_core::dialect::Dialect;

/// One call.
#[derive(Debug, Deserialize)]
pub struct TranscriptLine {
    /// The session it belongs to.
    pub session: String,
    /// Where the session comes from.
    #[serde(default)]
    pub source: String,
    /// The model name that the client sent.
    pub model: String,
    /// `anthropic`, `openai` or `gemini`.
    pub provider: String,
    #[serde(default)]
    ts: Value,
    #[serde(default)]
    flags: Vec<String>,
    new_parts: Vec<AddedPart>,
    usage: TranscriptUsage,
    /// The estimate for live traffic, in an export of our own that has no text to measure again.
    #[serde(default)]
    pub estimate: Option<Estimate>,
}

/// A part that was added to the conversation.
#[derive(Debug, Deserialize)]
struct AddedPart {
    role: String,
    kind: String,
    #[serde(default)]
    text: String,
    #[serde(default)]
    reply: bool,
    name: Option<String>,
    #[serde(default)]
    cont: bool,
    /// For an image: whether it came as a tool's result.
    #[serde(default)]
    in_tool_result: bool,
    /// For a result: whether its client cleared it before the session ended.
    #[serde(default)]
    cleared_later: bool,
    #[serde(default)]
    redacted: u64,
    attachment: Option<Value>,
    tool_reference: Option<Value>,
    #[serde(default)]
    mime: Option<String>,
    #[serde(default)]
    w: u32,
    #[serde(default)]
    h: u32,
}

/// The usage that the provider reported, in tokens.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
struct TranscriptUsage {
    #[serde(default)]
    input_total: u64,
    #[serde(default)]
    cache_read: u64,
    #[serde(default)]
    cache_write: u64,
    #[serde(default)]
    output: u64,
    reasoning: Option<u64>,
}

impl TranscriptLine {
    /// When the call was made, in ms since 1970; 0 if that cannot be read.
    pub fn at(&self) -> u64 {
        match &self.ts {
            Value::Number(ms) => ms.as_u64().unwrap_or(0),
            Value::String(text) => {
                let since = humantime::parse_rfc3339_weak(text).ok();
                let since = since.and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
                since.map_or(0, |since| since.as_millis() as u64)
            }
            _ => 0,
        }
    }

    /// Whether a flag is set.
    fn is(&self, flag: &str) -> bool {
        self.flags.iter().any(|set| set.split('=').next() == Some(flag))
    }

    /// Whether the line has content: our own exports contain only sizes, unless content was requested.
    pub fn has_text(&self) -> bool {
        let has_content = |part: &AddedPart| {
            !part.text.is_empty()
                || part.redacted > 0
                || part.mime.is_some()
                || part.attachment.is_some()
        };
        self.estimate.is_none() || self.new_parts.iter().any(has_content)
    }

    /// Whether the reported usage measures the context: then later estimates can be based on the call.
    pub(super) fn is_measured(&self) -> bool {
        let poor = ["output_unreliable", "no_usage", "aborted"];
        self.usage.input_total > 0 && !poor.iter().any(|flag| self.is(flag))
    }

    /// The reported input tokens, if they can be compared with an estimate.
    pub fn actual(&self) -> Option<u64> {
        let poor = ["no_usage", "aborted", "dup", "fork", "usage_gap", "server_tool"];
        let poor = poor.iter().any(|flag| self.is(flag)) || self.is_reset();
        (self.usage.input_total > 0 && !poor).then_some(self.usage.input_total)
    }

    /// Whether the history was replaced before this call.
    fn is_reset(&self) -> bool {
        self.flags.iter().any(|flag| flag.starts_with("reset"))
    }

    /// The tool calls in the line.
    pub(super) fn calls(&self) -> impl Iterator<Item = CallKey> {
        self.new_parts.iter().filter(|part| part.kind == "tool_use").map(CallKey::new)
    }

    /// The protocol that its client speaks to this provider.
    pub fn dialect(&self) -> Option<Dialect> {
        match self.provider.as_str() {
            "anthropic" => Some(Dialect::Anthropic),
            "openai" => Some(Dialect::OpenaiResponses),
            "gemini" => Some(Dialect::Gemini),
            _ => None,
        }
    }
}

/// A call that waits for its result.
#[derive(Clone, Default)]
struct OpenCall {
    id: String,
    name: String,
    key: CallKey,
}

/// A digest of a call's tool and arguments: the same for every call that requests the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct CallKey(u64);

impl CallKey {
    fn new(part: &AddedPart) -> Self {
        let name = xxh3_64(part.name.as_deref().unwrap_or_default().as_bytes());
        Self(xxh3_64_with_seed(part.text.as_bytes(), name))
    }
}

/// A result in the history of a client that clears old results.
struct ClearableResult {
    /// The index of its message, and its index there.
    at: (usize, usize),
    turn: usize,
    /// The client's own estimate of it.
    tokens: usize,
    /// The block that is sent once it is cleared; `None` if it never was, or is already.
    cleared: Option<String>,
}

/// OpenCode's rule: at the end of a turn, results of turns before the last two are cleared past
/// `PROTECTED_TOKENS` tokens of them, if that frees at least `WORTH_TOKENS`.
const PROTECTED_TURNS: usize = 2;
const PROTECTED_TOKENS: usize = 40_000;
const WORTH_TOKENS: usize = 20_000;
/// The text that it sends instead of a result.
const CLEARED: &str = "[Old tool result content cleared]";

/// A session's history so far, as its client would send it.
#[derive(Default)]
pub struct ClientHistory {
    /// Messages or items as raw JSON, with the role of each.
    messages: Vec<(String, Vec<String>)>,
    /// Calls that wait for their results.
    open: VecDeque<OpenCall>,
    /// The call of the last result, which a further block of that result continues.
    last: Option<OpenCall>,
    /// The calls of the results in the history, in order.
    answered: Vec<CallKey>,
    /// The results in the history, in order, as far as their client may clear them.
    results: Vec<ClearableResult>,
    /// The number of user messages.
    turns: usize,
    calls: u64,
    thoughts: u64,
    /// Gemini's reasoning that the next call's signature represents.
    unsigned: Option<u64>,
}

impl ClientHistory {
    /// Adds the content of a line; returns the blocks of the reply before it.
    pub fn add(&mut self, line: &TranscriptLine) -> Vec<String> {
        let Some(dialect) = line.dialect() else { return Vec::new() };
        // In our own exports, a flag marks lines with everything that was sent, not only what was added.
        if line.is_reset() || line.is("whole") {
            (self.messages, self.open, self.last, self.answered) = <_>::default();
            self.results.clear();
        }
        if line.new_parts.iter().any(|part| part.kind == "text" && part.role == "user") {
            self.clear();
            self.turns += 1;
        }
        let mut reply = Vec::new();
        self.unsigned = None;
        // The number of following images that belong to the last result.
        let mut pictures = 0;
        for (at, part) in line.new_parts.iter().enumerate() {
            let more = line.new_parts[at + 1..].iter().take_while(|part| part.cont);
            let block = match part.kind.as_str() {
                "thinking" => self.thinking(dialect, part),
                "tool_use" => Some(self.call(dialect, part)),
                "tool_result" if part.cont => None,
                "tool_result" => Some(self.result(dialect, part, more.collect())),
                "image" if part.in_tool_result && pictures == 0 && !self.open.is_empty() => {
                    let own = more_of_picture(&line.new_parts[at + 1..], self.open.len());
                    pictures = own.len();
                    Some(self.result(dialect, part, own.iter().collect()))
                }
                "image" if pictures > 0 => {
                    pictures -= 1;
                    None
                }
                "image" => Some(image(dialect, part)),
                "text" => text(dialect, part),
                _ => None,
            };
            let Some(block) = block else { continue };
            let role = if part.role == "assistant" { "assistant" } else { part.role.as_str() };
            if part.reply {
                reply.push(block.clone());
            }
            match self.messages.last_mut() {
                Some((last, blocks)) if last == role => blocks.push(block),
                _ => self.messages.push((role.to_owned(), vec![block])),
            }
            if part.kind == "tool_result" {
                self.keep(dialect, part);
            }
        }
        reply
    }

    /// Records the position of the last result, and what is sent once it is cleared.
    fn keep(&mut self, dialect: Dialect, part: &AddedPart) {
        let Some((_, blocks)) = self.messages.last() else { return };
        let at = (self.messages.len() - 1, blocks.len() - 1);
        let (call, name) = (self.last.clone().unwrap_or_default(), part.name.as_deref());
        let cleared = || self.block(dialect, &call, name, &ResultContent::Text(CLEARED));
        let cleared = part.cleared_later.then(cleared);
        let tokens = part.text.len() / 4;
        self.results.push(ClearableResult { at, turn: self.turns, tokens, cleared });
    }

    /// Clears what the client's rule clears by now: a recording says what was cleared, but not when.
    fn clear(&mut self) {
        let old = |it: &ClearableResult| it.turn + PROTECTED_TURNS <= self.turns;
        let old = self.results.iter().enumerate().rev().filter(|(_, it)| old(it));
        let (mut tokens, mut freed, mut cleared) = (0, 0, Vec::new());
        for (at, result) in old {
            tokens += result.tokens;
            if tokens > PROTECTED_TOKENS && result.cleared.is_some() {
                freed += result.tokens;
                cleared.push(at);
            }
        }
        if freed <= WORTH_TOKENS {
            return;
        }
        for at in cleared {
            let ClearableResult { at: (message, block), ref mut cleared, .. } = self.results[at];
            if let Some(cleared) = cleared.take() {
                self.messages[message].1[block] = cleared;
            }
        }
    }

    /// The call of a result; `number` is the result's index in the history.
    pub(super) fn call_of(&self, number: usize) -> Option<CallKey> {
        self.answered.get(number).copied()
    }

    /// The request's path and body.
    pub fn request(&self, line: &TranscriptLine, dialect: Dialect) -> (String, Vec<u8>) {
        let model = Value::from(line.model.as_str());
        let listed = |role: fn(&str) -> &str, field: &str| {
            let messages = self.messages.iter().map(|(who, blocks)| {
                format!(r#"{{"role":"{}","{field}":[{}]}}"#, role(who), blocks.join(","))
            });
            messages.collect::<Vec<_>>().join(",")
        };
        let (path, body) = match dialect {
            Dialect::Gemini => (
                format!("/v1beta/models/{}:streamGenerateContent?alt=sse", line.model),
                format!(r#"{{"contents":[{}]}}"#, listed(gemini_role, "parts")),
            ),
            Dialect::OpenaiResponses => {
                let items = self.messages.iter().flat_map(|(_, blocks)| blocks);
                let items = items.map(String::as_str).collect::<Vec<_>>().join(",");
                ("/v1/responses".to_owned(), format!(r#"{{"model":{model},"input":[{items}]}}"#))
            }
            Dialect::Anthropic | Dialect::OpenaiChat => {
                let messages = listed(anthropic_role, "content");
                let body =
                    format!(r#"{{"model":{model},"max_tokens":32000,"messages":[{messages}]}}"#);
                ("/v1/messages".to_owned(), body)
            }
        };
        (path, body.into_bytes())
    }

    fn thinking(&mut self, dialect: Dialect, part: &AddedPart) -> Option<String> {
        self.thoughts += 1;
        let signature = format!("seal-{}", self.thoughts);
        let block = match dialect {
            Dialect::OpenaiResponses => json!({
                "type": "reasoning", "id": signature, "summary": [], "encrypted_content": signature,
            }),
            // Gemini's reasoning is not sent back; a signature on the first call that followed it represents
            // it.
            Dialect::Gemini => {
                self.unsigned = Some(self.thoughts);
                return None;
            }
            Dialect::Anthropic | Dialect::OpenaiChat => {
                json!({ "type": "thinking", "thinking": part.text, "signature": signature })
            }
        };
        Some(block.to_string())
    }

    fn call(&mut self, dialect: Dialect, part: &AddedPart) -> String {
        self.calls += 1;
        let id = format!("toolu_call{:08}", self.calls);
        let name = part.name.clone().unwrap_or_default();
        self.open.push_back(OpenCall {
            id: id.clone(),
            name: name.clone(),
            key: CallKey::new(part),
        });
        let arguments = RawValue::from_string(part.text.clone()).ok();
        let arguments = arguments.filter(|raw| raw.get().starts_with('{'));
        let raw = arguments.as_ref().map_or("{}", |raw| raw.get());
        let (name, id) = (Value::from(name), Value::from(id));
        match dialect {
            Dialect::OpenaiResponses => match arguments {
                Some(_) => json!({
                    "type": "function_call", "call_id": id, "name": name, "arguments": part.text,
                })
                .to_string(),
                None => json!({
                    "type": "custom_tool_call", "call_id": id, "name": name, "input": part.text,
                })
                .to_string(),
            },
            Dialect::Gemini => {
                let signature = self.unsigned.take();
                let signature = signature.map(|at| format!(r#","thoughtSignature":"seal-{at}""#));
                let signature = signature.unwrap_or_default();
                format!(r#"{{"functionCall":{{"name":{name},"args":{raw}}}{signature}}}"#)
            }
            Dialect::Anthropic | Dialect::OpenaiChat => {
                format!(r#"{{"type":"tool_use","id":{id},"name":{name},"input":{raw}}}"#)
            }
        }
    }

    fn result(&mut self, dialect: Dialect, part: &AddedPart, more: Vec<&AddedPart>) -> String {
        let named = |open: &OpenCall| part.name.as_ref().is_none_or(|it| *it == open.name);
        let at = self.open.iter().position(named).unwrap_or(0);
        let call = self.open.remove(at).or_else(|| self.last.clone()).unwrap_or_default();
        self.last = Some(call.clone());
        self.answered.push(call.key);
        let content = match part.kind.as_str() {
            "tool_result" if more.is_empty() => ResultContent::Text(&part.text),
            _ => ResultContent::Blocks(std::iter::once(part).chain(more).collect()),
        };
        self.block(dialect, &call, part.name.as_deref(), &content)
    }

    /// The block of a result of `call`; `named` is the tool's name in the recording.
    fn block(
        &self,
        dialect: Dialect,
        call: &OpenCall,
        named: Option<&str>,
        content: &ResultContent<'_>,
    ) -> String {
        let OpenCall { id, name, .. } = call;
        let is_call = |id: &str| {
            let raw = format!(r#""call_id":"{id}""#);
            let blocks = self.messages.iter().rev().flat_map(|(_, blocks)| blocks.iter().rev());
            blocks.take(400).any(|block| block.contains(&raw) && block.contains("custom_tool_call"))
        };
        match dialect {
            Dialect::OpenaiResponses => {
                let custom = is_call(id);
                let kind = if custom { "custom_tool_call_output" } else { "function_call_output" };
                let pictures: Vec<Value> =
                    content.pictures().map(|it| picture(dialect, it)).collect();
                let output = match pictures[..] {
                    [] => Value::from(content.first()),
                    _ => Value::from(pictures),
                };
                json!({ "type": kind, "call_id": id, "output": output }).to_string()
            }
            Dialect::Gemini => {
                let text = content.first();
                let response = RawValue::from_string(text.to_owned()).ok();
                let response = response.filter(|raw| raw.get().starts_with('{'));
                let wrapped = || json!({ "output": text }).to_string();
                let response = response.map_or_else(wrapped, |raw| raw.get().to_owned());
                let name = Value::from(named.unwrap_or(name));
                let answer =
                    format!(r#"{{"functionResponse":{{"name":{name},"response":{response}}}}}"#);
                let pictures = content.pictures().map(|part| picture(dialect, part).to_string());
                std::iter::once(answer).chain(pictures).collect::<Vec<_>>().join(",")
            }
            Dialect::Anthropic | Dialect::OpenaiChat => {
                let block = |part: &&AddedPart| match part.kind.as_str() {
                    "image" => Some(picture(dialect, part).to_string()),
                    _ => text(dialect, part),
                };
                let content = match content {
                    ResultContent::Text(text) => Value::from(*text).to_string(),
                    ResultContent::Blocks(parts) => {
                        format!(
                            "[{}]",
                            parts.iter().filter_map(block).collect::<Vec<_>>().join(",")
                        )
                    }
                };
                let id = Value::from(id.as_str());
                format!(r#"{{"type":"tool_result","tool_use_id":{id},"content":{content}}}"#)
            }
        }
    }
}

/// The content of a result.
enum ResultContent<'p> {
    Text(&'p str),
    Blocks(Vec<&'p AddedPart>),
}

impl ResultContent<'_> {
    fn first(&self) -> &str {
        match self {
            Self::Text(text) => text,
            Self::Blocks(parts) => parts.first().map_or("", |part| &part.text),
        }
    }

    fn pictures(&self) -> impl Iterator<Item = &AddedPart> {
        let parts = match self {
            Self::Text(_) => &[],
            Self::Blocks(parts) => &parts[..],
        };
        parts.iter().copied().filter(|part| part.kind == "image")
    }
}

/// The images that follow an image in the same result: those for which none of the `open` calls is left.
fn more_of_picture(rest: &[AddedPart], open: usize) -> &[AddedPart] {
    let is_picture = |part: &&AddedPart| part.kind == "image" && part.in_tool_result;
    let pictures = rest.iter().take_while(is_picture).count();
    let results = rest.iter().filter(|part| part.kind == "tool_result" && !part.cont).count();
    let calls = open.saturating_sub(1).saturating_sub(results);
    &rest[..if calls == 0 { pictures } else { 0 }]
}

/// A response with these `blocks` and the line's usage.
pub(super) fn response(line: &TranscriptLine, dialect: Dialect, blocks: &[String]) -> Vec<u8> {
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
            let fresh = input_total.saturating_sub(cache_read).saturating_sub(cache_write);
            let usage = json!({
                "input_tokens": fresh,
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

fn anthropic_role(role: &str) -> &str {
    if role == "assistant" { "assistant" } else { "user" }
}

fn gemini_role(role: &str) -> &str {
    if role == "assistant" { "model" } else { "user" }
}

fn text(dialect: Dialect, part: &AddedPart) -> Option<String> {
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

fn image(dialect: Dialect, part: &AddedPart) -> String {
    let picture = picture(dialect, part);
    match dialect {
        Dialect::OpenaiResponses => {
            json!({ "type": "message", "role": "user", "content": [picture] }).to_string()
        }
        Dialect::Gemini | Dialect::Anthropic | Dialect::OpenaiChat => picture.to_string(),
    }
}

/// An image of the recorded size: pixels are not recorded, so it is only a header.
fn picture(dialect: Dialect, part: &AddedPart) -> Value {
    use base64::Engine as _;
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
