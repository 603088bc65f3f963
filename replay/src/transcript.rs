//! Recorded sessions, one call per line: what each call added, and what the provider reported.
//!
//! A line contains the messages since the previous call (`new_parts`), not the request. Requests and replies
//! are rebuilt from them in the session's own dialect, so that the code that serves live traffic reads and
//! measures them. System prompt and tools are not recorded.

mod blocks;
mod hidden;
mod line;

pub(crate) use blocks::response;
pub(crate) use hidden::excesses;
pub(crate) use line::CallKey;
pub use line::TranscriptLine;

use std::collections::VecDeque;

use serde_json::value::RawValue;
use serde_json::{Value, json};

use plimsoll_core::dialect::Dialect;

use blocks::{anthropic_role, gemini_role, image, picture, text};
use line::AddedPart;

/// A call that waits for its result.
#[derive(Clone, Default)]
struct OpenCall {
    id: String,
    name: String,
    key: CallKey,
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
                    let others = more_of_picture(&line.new_parts[at + 1..], self.open.len());
                    pictures = others.len();
                    Some(self.result(dialect, part, others.iter().collect()))
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
        let mut cleared = None;
        if part.cleared_later {
            let call = self.last.clone().unwrap_or_default();
            let content = ResultContent::Text(CLEARED);
            cleared = Some(self.block(dialect, &call, part.name.as_deref(), &content));
        }
        // OpenCode counts four bytes as a token.
        let tokens = part.text.len() / 4;
        self.results.push(ClearableResult { at, turn: self.turns, tokens, cleared });
    }

    fn clear(&mut self) {
        // Clears what the client's rule clears by now: a recording says what was cleared, but not when.
        let mut tokens = 0;
        let mut freed_tokens = 0;
        let mut due = Vec::new();
        for (index, result) in self.results.iter().enumerate().rev() {
            if result.turn + PROTECTED_TURNS > self.turns {
                continue;
            }
            tokens += result.tokens;
            if tokens > PROTECTED_TOKENS && result.cleared.is_some() {
                freed_tokens += result.tokens;
                due.push(index);
            }
        }
        // A rewrite of the history costs its cache, so few tokens are not worth one.
        if freed_tokens <= WORTH_TOKENS {
            return;
        }
        for index in due {
            let ClearableResult { at: (message, block), ref mut cleared, .. } = self.results[index];
            if let Some(placeholder) = cleared.take() {
                self.messages[message].1[block] = placeholder;
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
        let (path, body) = match dialect {
            Dialect::Gemini => (
                format!("/v1beta/models/{}:streamGenerateContent?alt=sse", line.model),
                format!(r#"{{"contents":[{}]}}"#, self.listed(gemini_role, "parts")),
            ),
            Dialect::OpenaiResponses => {
                let items = self.messages.iter().flat_map(|(_, blocks)| blocks);
                let items = items.map(String::as_str).collect::<Vec<_>>().join(",");
                ("/v1/responses".to_owned(), format!(r#"{{"model":{model},"input":[{items}]}}"#))
            }
            Dialect::Anthropic | Dialect::OpenaiChat => {
                let messages = self.listed(anthropic_role, "content");
                let body =
                    format!(r#"{{"model":{model},"max_tokens":32000,"messages":[{messages}]}}"#);
                ("/v1/messages".to_owned(), body)
            }
        };
        (path, body.into_bytes())
    }

    fn listed(&self, role: fn(&str) -> &str, field: &str) -> String {
        let messages = self.messages.iter().map(|(author, blocks)| {
            format!(r#"{{"role":"{}","{field}":[{}]}}"#, role(author), blocks.join(","))
        });
        messages.collect::<Vec<_>>().join(",")
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
        let name = Value::from(name);
        let id = Value::from(id);
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
        // Results may come in another order than their calls: the name tells, where there is one.
        let position = match &part.name {
            Some(name) => self.open.iter().position(|open| open.name == *name),
            None => None,
        };
        let call = self
            .open
            .remove(position.unwrap_or(0))
            .or_else(|| self.last.clone())
            .unwrap_or_default();
        self.last = Some(call.clone());
        self.answered.push(call.key);
        let content = match part.kind.as_str() {
            "tool_result" if more.is_empty() => ResultContent::Text(&part.text),
            _ => ResultContent::Blocks(std::iter::once(part).chain(more).collect()),
        };
        self.block(dialect, &call, part.name.as_deref(), &content)
    }

    fn is_custom_call(&self, id: &str) -> bool {
        // A result stands close to its call, so a long history need not be searched.
        const NEAR: usize = 400;
        let raw = format!(r#""call_id":"{id}""#);
        let blocks = self.messages.iter().rev().flat_map(|(_, blocks)| blocks.iter().rev());
        blocks.take(NEAR).any(|block| block.contains(&raw) && block.contains("custom_tool_call"))
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
        match dialect {
            Dialect::OpenaiResponses => {
                let kind = match self.is_custom_call(id) {
                    true => "custom_tool_call_output",
                    false => "function_call_output",
                };
                let pictures: Vec<Value> =
                    content.pictures().map(|part| picture(dialect, part)).collect();
                let output = match pictures[..] {
                    [] => Value::from(content.first()),
                    _ => Value::from(pictures),
                };
                json!({ "type": kind, "call_id": id, "output": output }).to_string()
            }
            Dialect::Gemini => {
                let text = content.first();
                let response = RawValue::from_string(text.to_owned()).ok();
                // Gemini takes objects alone.
                let response = match response.filter(|raw| raw.get().starts_with('{')) {
                    Some(object) => object.get().to_owned(),
                    None => json!({ "output": text }).to_string(),
                };
                let name = Value::from(named.unwrap_or(name));
                let answer =
                    format!(r#"{{"functionResponse":{{"name":{name},"response":{response}}}}}"#);
                let pictures = content.pictures().map(|part| picture(dialect, part).to_string());
                std::iter::once(answer).chain(pictures).collect::<Vec<_>>().join(",")
            }
            Dialect::Anthropic | Dialect::OpenaiChat => {
                let content = match content {
                    ResultContent::Text(text) => Value::from(*text).to_string(),
                    ResultContent::Blocks(parts) => {
                        let mut blocks = Vec::new();
                        for part in parts {
                            match part.kind.as_str() {
                                "image" => blocks.push(picture(dialect, part).to_string()),
                                _ => blocks.extend(text(dialect, part)),
                            }
                        }
                        format!("[{}]", blocks.join(","))
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
    let pictures =
        rest.iter().take_while(|part| part.kind == "image" && part.in_tool_result).count();
    let results = rest.iter().filter(|part| part.kind == "tool_result" && !part.cont).count();
    let calls = open.saturating_sub(1).saturating_sub(results);
    &rest[..if calls == 0 { pictures } else { 0 }]
}
