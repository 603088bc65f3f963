//! How a client of each dialect says its history, and what it keeps of an answer.
//!
//! Written for these tests alone: nothing of the product is used, so that a mistake there cannot hide
//! here.

use scripted_provider::strict::Dialect;
use serde_json::{Map, Value, json};

/// One step of a history as a client holds it.
#[derive(Clone, Debug)]
pub enum Said {
    /// The person's words.
    User(String),
    /// The person's words, and a picture.
    Shown(String),
    /// What the model answered, as it came.
    Model(Value),
    /// What is whole of an answer that broke off.
    Partial(Value),
    /// Answers to its calls, in order.
    Results(Vec<Answered>),
}

impl Said {
    /// Whether a turn of the person begins with it.
    pub fn is_users(&self) -> bool {
        matches!(self, Self::User(_) | Self::Shown(_))
    }

    /// The answers to calls in it.
    pub fn results(&self) -> &[Answered] {
        match self {
            Self::Results(results) => results,
            Self::User(_) | Self::Shown(_) | Self::Model(_) | Self::Partial(_) => &[],
        }
    }
}

/// A tool's answer.
#[derive(Clone, Debug)]
pub struct Answered {
    pub id: String,
    pub name: String,
    pub text: String,
    pub is_error: bool,
    pub has_picture: bool,
    pub in_blocks: bool,
}

/// A call that waits for an answer.
pub struct Called {
    pub id: String,
    pub name: String,
}

/// What a client does with reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Sends all of it back.
    Whole,
    /// Sends none of it back.
    None,
    /// Sends back what belongs to the newest reply alone.
    Newest,
    /// Sends back that of every second reply.
    Half,
    /// Sends it back while its tool loop is open: once the person says something, none of what was before.
    Loop,
    /// Sends back that of replies that call tools, and of those that broke off.
    Calls,
}

/// How a client spells what it sends.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    pub memory: Memory,
    /// Cache markers on the last message, moving on.
    pub marks: bool,
    /// Tool arguments are written anew.
    pub respells: bool,
    /// White space around texts is stripped.
    pub strips: bool,
    /// Signatures are written in the URL-safe alphabet (Gemini).
    pub url_safe: bool,
}

/// The head of a request: what stands before the history.
#[derive(Clone, Debug)]
pub struct Head {
    pub model: &'static str,
    pub system: String,
    pub tools: Vec<&'static str>,
    pub thinks: bool,
    pub stream: bool,
}

pub const PICTURE: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII=";

/// The path of a request.
pub fn target(dialect: Dialect, head: &Head) -> String {
    match dialect {
        Dialect::Anthropic => "/v1/messages".to_owned(),
        Dialect::Chat => "/v1/chat/completions".to_owned(),
        Dialect::Responses => "/v1/responses".to_owned(),
        Dialect::Gemini if head.stream => {
            format!("/v1beta/models/{}:streamGenerateContent?alt=sse", head.model)
        }
        Dialect::Gemini => format!("/v1beta/models/{}:generateContent", head.model),
    }
}

/// A request's body.
pub fn request(dialect: Dialect, head: &Head, history: &[Said], habits: Habits) -> Value {
    let is_reply = |said: &Said| matches!(said, Said::Model(_) | Said::Partial(_));
    let newest = history.iter().rposition(is_reply);
    let loop_begins = history.iter().rposition(Said::is_users).unwrap_or(0);
    let mut replies = 0;
    let mut messages = Vec::new();
    for (index, said) in history.iter().enumerate() {
        let last = index + 1 == history.len();
        match said {
            Said::User(text) => messages.push(user(dialect, text, habits, last)),
            Said::Shown(text) => messages.push(shown(dialect, text)),
            Said::Model(reply) | Said::Partial(reply) => {
                replies += 1;
                let is_partial = matches!(said, Said::Partial(_));
                let keeps = match habits.memory {
                    Memory::Whole => true,
                    Memory::None => false,
                    Memory::Newest => newest == Some(index),
                    Memory::Half => replies % 2 == 0,
                    Memory::Loop => index > loop_begins,
                    Memory::Calls => is_partial || calls(dialect, reply),
                };
                messages.extend(model(dialect, reply, keeps, habits));
            }
            Said::Results(results) => messages.extend(answers(dialect, results, habits, last)),
        }
    }
    whole(dialect, head, messages, habits)
}

fn whole(dialect: Dialect, head: &Head, messages: Vec<Value>, habits: Habits) -> Value {
    let schema = json!({"type": "object", "properties": {"path": {"type": "string"}},
        "required": ["path"]});
    let tools = |make: &dyn Fn(&str) -> Value| -> Vec<Value> {
        head.tools.iter().map(|name| make(name)).collect()
    };
    let mut body = match dialect {
        Dialect::Anthropic => {
            let thinking = if head.thinks { "adaptive" } else { "disabled" };
            let mut system = json!({"type": "text", "text": head.system});
            if habits.marks {
                system["cache_control"] = json!({"type": "ephemeral"});
            }
            json!({"model": head.model, "max_tokens": 8000, "system": [system],
                "thinking": {"type": thinking}, "messages": messages,
                "tools": tools(&|name| json!({"name": name, "description": name,
                    "input_schema": schema}))})
        }
        Dialect::Chat => {
            let mut all = vec![json!({"role": "system", "content": head.system})];
            all.extend(messages);
            json!({"model": head.model, "messages": all,
                "tools": tools(&|name| json!({"type": "function",
                    "function": {"name": name, "parameters": schema}}))})
        }
        Dialect::Responses => json!({"model": head.model, "instructions": head.system,
            "store": false, "include": ["reasoning.encrypted_content"], "input": messages,
            "tools": tools(&|name| json!({"type": "function", "name": name,
                "parameters": schema}))}),
        Dialect::Gemini => json!({"contents": messages,
            "systemInstruction": {"parts": [{"text": head.system}]},
            "tools": [{"functionDeclarations": tools(&|name| json!({"name": name,
                "parameters": schema}))}]}),
    };
    if head.tools.is_empty() {
        body.as_object_mut().unwrap().remove("tools");
    }
    if head.stream && dialect != Dialect::Gemini {
        body["stream"] = json!(true);
    }
    body
}

fn user(dialect: Dialect, text: &str, habits: Habits, last: bool) -> Value {
    match dialect {
        Dialect::Anthropic if habits.marks && last => json!({"role": "user", "content": [
            {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]}),
        Dialect::Anthropic | Dialect::Chat => json!({"role": "user", "content": text}),
        Dialect::Responses => json!({"type": "message", "role": "user",
            "content": [{"type": "input_text", "text": text}]}),
        Dialect::Gemini => json!({"role": "user", "parts": [{"text": text}]}),
    }
}

fn shown(dialect: Dialect, text: &str) -> Value {
    let url = format!("data:image/png;base64,{PICTURE}");
    match dialect {
        Dialect::Anthropic => json!({"role": "user", "content": [
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PICTURE}},
            {"type": "text", "text": text}]}),
        Dialect::Chat => json!({"role": "user", "content": [
            {"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": url}}]}),
        Dialect::Responses => json!({"type": "message", "role": "user", "content": [
            {"type": "input_text", "text": text}, {"type": "input_image", "image_url": url}]}),
        Dialect::Gemini => json!({"role": "user", "parts": [
            {"text": text}, {"inlineData": {"mimeType": "image/png", "data": PICTURE}}]}),
    }
}

/// Answers to calls: one message, or one each.
fn answers(dialect: Dialect, results: &[Answered], habits: Habits, last: bool) -> Vec<Value> {
    match dialect {
        Dialect::Anthropic => {
            let count = results.len();
            let blocks = results.iter().enumerate().map(|(index, result)| {
                let mut block = json!({"type": "tool_result", "tool_use_id": result.id});
                block["content"] = anthropic_content(result);
                if result.is_error {
                    block["is_error"] = json!(true);
                }
                if habits.marks && last && index + 1 == count {
                    block["cache_control"] = json!({"type": "ephemeral"});
                }
                block
            });
            vec![json!({"role": "user", "content": blocks.collect::<Vec<_>>()})]
        }
        Dialect::Chat => {
            let message = |result: &Answered| {
                let content = match result.in_blocks {
                    true => json!([{"type": "text", "text": result.text}]),
                    false => json!(result.text),
                };
                json!({"role": "tool", "tool_call_id": result.id, "content": content})
            };
            results.iter().map(message).collect()
        }
        Dialect::Responses => {
            let item = |result: &Answered| {
                let output = match result.in_blocks {
                    true => json!([{"type": "input_text", "text": result.text}]),
                    false => json!(result.text),
                };
                json!({"type": "function_call_output", "call_id": result.id, "output": output})
            };
            results.iter().map(item).collect()
        }
        Dialect::Gemini => {
            let part = |result: &Answered| {
                let key = if result.is_error { "error" } else { "output" };
                let mut response = Map::new();
                response.insert(key.to_owned(), json!(result.text));
                let mut answer = json!({"name": result.name, "response": response});
                if !result.id.is_empty() {
                    answer["id"] = json!(result.id);
                }
                json!({"functionResponse": answer})
            };
            let parts: Vec<Value> = results.iter().map(part).collect();
            vec![json!({"role": "user", "parts": parts})]
        }
    }
}

fn anthropic_content(result: &Answered) -> Value {
    // Pictures in a result that reports an error are refused.
    if result.has_picture && !result.is_error {
        return json!([{"type": "text", "text": result.text}, {"type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": PICTURE}}]);
    }
    match result.in_blocks {
        true => json!([{"type": "text", "text": result.text}]),
        false => json!(result.text),
    }
}

/// What a client sends back of a reply.
fn model(dialect: Dialect, reply: &Value, keeps: bool, habits: Habits) -> Vec<Value> {
    let mut reply = reply.clone();
    match dialect {
        Dialect::Anthropic => {
            if !keeps {
                list(&mut reply["content"])
                    .retain(|block| !is(block, &["thinking", "redacted_thinking"]));
            }
            if habits.strips {
                for block in list(&mut reply["content"]).iter_mut().filter(|b| is(b, &["text"])) {
                    block["text"] = json!(block["text"].as_str().unwrap().trim());
                }
            }
            if list(&mut reply["content"]).is_empty() {
                return Vec::new();
            }
            vec![json!({"role": "assistant", "content": reply["content"]})]
        }
        Dialect::Chat => {
            let message = reply.as_object_mut().unwrap();
            if !keeps {
                for field in ["reasoning_content", "reasoning", "reasoning_details"] {
                    message.remove(field);
                }
            }
            for call in message.get_mut("tool_calls").map(list).into_iter().flatten() {
                if habits.respells {
                    let arguments = call["function"]["arguments"].as_str().unwrap();
                    let parsed: Value = serde_json::from_str(arguments).unwrap();
                    let again = serde_json::to_string_pretty(&parsed).unwrap();
                    call["function"]["arguments"] = json!(again);
                }
                if !keeps {
                    call.as_object_mut().unwrap().remove("extra_content");
                }
            }
            vec![reply]
        }
        Dialect::Responses => {
            let items = list(&mut reply["output"]);
            items.retain(|item| keeps || !is(item, &["reasoning"]));
            for item in items.iter_mut() {
                // As most clients send it: inline, without the ids of the provider's store.
                item.as_object_mut().unwrap().remove("id");
                item.as_object_mut().unwrap().remove("status");
            }
            std::mem::take(items)
        }
        Dialect::Gemini => {
            let parts = list(&mut reply["parts"]);
            parts.retain(|part| part["thought"] != json!(true));
            if !keeps {
                parts.retain(|part| part["text"] != json!(""));
            }
            for part in parts.iter_mut() {
                let part = part.as_object_mut().unwrap();
                let seal = part.get("thoughtSignature").and_then(Value::as_str).map(str::to_owned);
                match seal {
                    Some(_) if !keeps => drop(part.remove("thoughtSignature")),
                    Some(seal) if habits.url_safe => {
                        let seal = seal.replace('+', "-").replace('/', "_");
                        part.insert("thoughtSignature".to_owned(), json!(seal));
                    }
                    _ => {}
                }
            }
            if parts.is_empty() {
                return Vec::new();
            }
            vec![json!({"role": "model", "parts": parts})]
        }
    }
}

/// Whether a reply calls tools.
fn calls(dialect: Dialect, reply: &Value) -> bool {
    let has = |list: &Value, is_call: &dyn Fn(&Value) -> bool| {
        list.as_array().is_some_and(|all| all.iter().any(is_call))
    };
    match dialect {
        Dialect::Anthropic => has(&reply["content"], &|block| is(block, &["tool_use"])),
        Dialect::Chat => has(&reply["tool_calls"], &|_| true),
        Dialect::Responses => has(&reply["output"], &|item| is(item, &["function_call"])),
        Dialect::Gemini => has(&reply["parts"], &|part| part["functionCall"].is_object()),
    }
}

/// What a whole answer leaves in the history, and the calls in it.
pub fn kept(dialect: Dialect, answer: &Value) -> (Value, Vec<Called>) {
    let called = |id: &Value, name: &Value| Called {
        id: id.as_str().unwrap_or_default().to_owned(),
        name: name.as_str().unwrap_or_default().to_owned(),
    };
    match dialect {
        Dialect::Anthropic => {
            let blocks = answer["content"].as_array().cloned().unwrap_or_default();
            let calls = blocks.iter().filter(|block| is(block, &["tool_use"]));
            let calls = calls.map(|block| called(&block["id"], &block["name"])).collect();
            (json!({"content": blocks}), calls)
        }
        Dialect::Chat => {
            let message = answer["choices"][0]["message"].clone();
            let calls = message["tool_calls"].as_array().cloned().unwrap_or_default();
            let calls = calls.iter().map(|call| called(&call["id"], &call["function"]["name"]));
            let calls = calls.collect();
            (message, calls)
        }
        Dialect::Responses => {
            let items = answer["output"].as_array().cloned().unwrap_or_default();
            let calls = items.iter().filter(|item| is(item, &["function_call"]));
            let calls = calls.map(|item| called(&item["call_id"], &item["name"])).collect();
            (json!({"output": items}), calls)
        }
        Dialect::Gemini => {
            let parts = answer["candidates"][0]["content"]["parts"].as_array().cloned();
            let parts = parts.unwrap_or_default();
            let calls = parts.iter().filter(|part| part["functionCall"].is_object());
            let calls = calls
                .map(|part| called(&part["functionCall"]["id"], &part["functionCall"]["name"]));
            let calls = calls.collect();
            (json!({"parts": parts}), calls)
        }
    }
}

/// What a client keeps of an answer that broke off, if anything: reasoning that came with its seal or to its
/// end, words, and whole items. No calls: they are not answered.
pub fn kept_of_partial(dialect: Dialect, mut answer: Value) -> Option<Value> {
    match dialect {
        Dialect::Anthropic => {
            list(&mut answer["content"]).retain(|block| match block["type"].as_str() {
                Some("thinking") => {
                    block["signature"].as_str().is_some_and(|seal| !seal.is_empty())
                }
                Some("redacted_thinking") => true,
                Some("text") => block["text"] != "",
                _ => false,
            });
            (!list(&mut answer["content"]).is_empty())
                .then(|| json!({"content": answer["content"]}))
        }
        Dialect::Chat => {
            let message = answer["choices"][0]["message"].as_object_mut()?;
            message.remove("tool_calls");
            let words = message.get("content").and_then(Value::as_str);
            words.is_some_and(|words| !words.trim().is_empty()).then(|| json!(message))
        }
        Dialect::Responses => {
            let items = answer["output"].as_array_mut()?;
            items.retain(|item| !is(item, &["function_call"]));
            (!items.is_empty()).then(|| json!({"output": items}))
        }
        Dialect::Gemini => None,
    }
}

fn is(value: &Value, kinds: &[&str]) -> bool {
    value["type"].as_str().is_some_and(|kind| kinds.contains(&kind))
}

fn list(value: &mut Value) -> &mut Vec<Value> {
    value.as_array_mut().unwrap()
}

/// The history in a request, spelled in one way: without cache markers, texts as strings.
pub fn history(dialect: Dialect, body: &Value) -> Vec<Value> {
    let name = match dialect {
        Dialect::Anthropic | Dialect::Chat => "messages",
        Dialect::Responses => "input",
        Dialect::Gemini => "contents",
    };
    body[name].as_array().into_iter().flatten().map(spelled).collect()
}

/// What stands in a history as results of calls, in order.
pub fn results(dialect: Dialect, history: &[Value]) -> Vec<&Value> {
    let mut found = Vec::new();
    for said in history {
        match dialect {
            Dialect::Anthropic => {
                let blocks = said["content"].as_array().into_iter().flatten();
                let results = blocks.filter(|block| is(block, &["tool_result"]));
                found.extend(results.map(|block| &block["content"]));
            }
            Dialect::Chat if said["role"] == "tool" => found.push(&said["content"]),
            Dialect::Responses if is(said, &["function_call_output"]) => {
                found.push(&said["output"]);
            }
            Dialect::Gemini => {
                let parts = said["parts"].as_array().into_iter().flatten();
                let results = parts.map(|part| &part["functionResponse"]);
                found.extend(results.filter(|it| it.is_object()).map(|it| &it["response"]));
            }
            Dialect::Chat | Dialect::Responses => {}
        }
    }
    found
}

fn spelled(value: &Value) -> Value {
    match value {
        Value::Array(items) => match items.as_slice() {
            [one] if is(one, &["text"]) => one["text"].clone(),
            _ => items.iter().map(spelled).collect(),
        },
        Value::Object(members) => {
            let kept = members.iter().filter(|(name, _)| *name != "cache_control");
            kept.map(|(name, value)| (name.clone(), spelled(value))).collect()
        }
        other => other.clone(),
    }
}
