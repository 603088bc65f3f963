//! How a client of each dialect writes its history, and what it keeps of a reply.
//!
//! Written for these tests alone: nothing of the product is used, so that a mistake there cannot hide
//! here.

use scripted_provider::strict::Dialect;
use serde_json::{Map, Value, json};

/// One item of the history that a client stores.
#[derive(Clone, Debug)]
pub enum HistoryItem {
    /// A user's text.
    User(String),
    /// A user's text with a picture.
    UserWithPicture(String),
    /// The model's reply as received.
    Reply(Value),
    /// The complete parts of a reply that broke off.
    PartialReply(Value),
    /// The results of its tool calls, in order.
    ToolResults(Vec<ToolResult>),
}

impl HistoryItem {
    /// Whether a user turn begins with this item.
    pub fn is_user_turn(&self) -> bool {
        matches!(self, Self::User(_) | Self::UserWithPicture(_))
    }

    /// Its tool results; empty for any other item.
    pub fn results(&self) -> &[ToolResult] {
        match self {
            Self::ToolResults(results) => results,
            Self::User(_) | Self::UserWithPicture(_) | Self::Reply(_) | Self::PartialReply(_) => {
                &[]
            }
        }
    }
}

/// The result of a tool call.
#[derive(Clone, Debug)]
pub struct ToolResult {
    pub id: String,
    pub name: String,
    pub text: String,
    pub is_error: bool,
    pub has_picture: bool,
    pub in_blocks: bool,
    /// It loads a deferred tool.
    pub loads: bool,
    /// The program that reads it.
    pub caller: Option<Value>,
}

impl ToolResult {
    /// A result of one text, without error or picture.
    pub fn plain(call: ToolCall, text: String) -> Self {
        Self {
            id: call.id,
            name: call.name,
            text,
            is_error: false,
            has_picture: false,
            in_blocks: false,
            loads: false,
            caller: call.caller,
        }
    }
}

/// A tool call that waits for its result.
pub struct ToolCall {
    pub id: String,
    pub name: String,
    /// The program at the provider that called.
    pub caller: Option<Value>,
}

/// What a client does with reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptReasoning {
    /// Sends all of it back.
    All,
    /// Sends none of it back.
    None,
    /// Sends back what belongs to the newest reply alone.
    Newest,
    /// Sends back that of every second reply.
    Half,
    /// Sends it back while its tool loop is open: a new user message ends that.
    OpenLoop,
    /// Sends back that of replies that call tools, and of those that broke off.
    WithCalls,
}

/// What a client does to the model's texts before it sends them back, thoughts excepted.
#[derive(Clone, Copy, Debug)]
pub enum ReplyEdit {
    /// Appends a footer to each of them.
    Footers,
    /// Appends a footer to the last one of a reply.
    LastFooter,
    /// Writes other line ends.
    LineEnds,
    /// Writes them in another Unicode form.
    Decomposed,
    /// Drops those beside calls.
    DropBesideCalls,
}

/// Where a client puts what it retrieved for a message of the user, in one request only.
#[derive(Clone, Copy, Debug)]
pub enum Retrieval {
    Before,
    After,
}

/// How a client writes its requests.
#[derive(Clone, Copy, Debug)]
pub struct ClientStyle {
    pub kept_reasoning: KeptReasoning,
    /// Cache markers on the last message, moving on.
    pub cache_markers: bool,
    /// Tool arguments are parsed and written in another format.
    pub reformats_arguments: bool,
    /// White space around texts is stripped.
    pub trims_text: bool,
    /// The model's texts are edited, as a filter of the client does.
    pub edits_replies: Option<ReplyEdit>,
    /// It adds what it retrieved to the user's newest message while that is the last one.
    pub retrieves: Option<Retrieval>,
    /// It sends calls and results without ids (Gemini).
    pub drops_call_ids: bool,
    /// Signatures are written in the URL-safe alphabet (Gemini).
    pub url_safe_signatures: bool,
    /// Programs at the provider may call its tools (Anthropic, Responses).
    pub programs: bool,
    /// One tool is deferred, and another one finds it (Anthropic).
    pub defers: bool,
    /// It asks for so many replies at once, and continues with one (Chat Completions, Gemini).
    pub replies: usize,
}

impl ClientStyle {
    /// A client that sends everything as it got it.
    pub fn plain(kept_reasoning: KeptReasoning) -> Self {
        Self {
            kept_reasoning,
            cache_markers: false,
            reformats_arguments: false,
            trims_text: false,
            edits_replies: None,
            retrieves: None,
            drops_call_ids: false,
            url_safe_signatures: false,
            programs: false,
            defers: false,
            replies: 1,
        }
    }
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

/// The tool that is deferred, and the one that finds it.
pub const DEFERRED: &str = "Bash";
pub const FINDER: &str = "Grep";

pub const PICTURE: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII=";

/// The path of a request.
pub fn path(dialect: Dialect, head: &Head) -> String {
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
pub fn request(
    dialect: Dialect,
    head: &Head,
    history: &[HistoryItem],
    style: ClientStyle,
) -> Value {
    let is_reply =
        |item: &HistoryItem| matches!(item, HistoryItem::Reply(_) | HistoryItem::PartialReply(_));
    let newest = history.iter().rposition(is_reply);
    let loop_start = history.iter().rposition(HistoryItem::is_user_turn).unwrap_or(0);
    let mut replies = 0;
    let mut messages = Vec::new();
    for (index, item) in history.iter().enumerate() {
        let last = index + 1 == history.len();
        match item {
            HistoryItem::User(text) => {
                let sent = match style.retrieves {
                    Some(retrieval) if last => retrieval.around(text),
                    _ => text.clone(),
                };
                messages.push(user_message(dialect, &sent, style, last));
            }
            HistoryItem::UserWithPicture(text) => messages.push(picture_message(dialect, text)),
            HistoryItem::Reply(reply) | HistoryItem::PartialReply(reply) => {
                replies += 1;
                let is_partial = matches!(item, HistoryItem::PartialReply(_));
                let keeps_reasoning = match style.kept_reasoning {
                    KeptReasoning::All => true,
                    KeptReasoning::None => false,
                    KeptReasoning::Newest => newest == Some(index),
                    KeptReasoning::Half => replies % 2 == 0,
                    KeptReasoning::OpenLoop => index > loop_start,
                    KeptReasoning::WithCalls => is_partial || has_calls(dialect, reply),
                };
                messages.extend(reply_messages(dialect, reply, keeps_reasoning, style));
            }
            HistoryItem::ToolResults(results) => {
                messages.extend(result_messages(dialect, results, style, last));
            }
        }
    }
    body(dialect, head, messages, style)
}

fn body(dialect: Dialect, head: &Head, messages: Vec<Value>, style: ClientStyle) -> Value {
    let schema = json!({"type": "object", "properties": {"path": {"type": "string"}},
        "required": ["path"]});
    let tools = |make: &dyn Fn(&str) -> Value| -> Vec<Value> {
        head.tools.iter().map(|name| make(name)).collect()
    };
    let mut body = match dialect {
        Dialect::Anthropic => {
            let thinking = if head.thinks { "adaptive" } else { "disabled" };
            let mut system = json!({"type": "text", "text": head.system});
            if style.cache_markers {
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
    if dialect == Dialect::Anthropic && !head.tools.is_empty() {
        let tools = array_mut(&mut body["tools"]);
        for tool in tools.iter_mut().filter(|tool| style.defers && tool["name"] == DEFERRED) {
            tool["defer_loading"] = json!(true);
        }
        if style.programs {
            tools.push(json!({"type": "code_execution_20260120", "name": "code_execution"}));
        }
    }
    if dialect == Dialect::Responses && style.programs {
        array_mut(&mut body["tools"]).push(json!({"type": "programmatic_tool_calling"}));
    }
    if style.replies > 1 && dialect == Dialect::Chat {
        body["n"] = json!(style.replies);
    } else if style.replies > 1 {
        body["generationConfig"] = json!({"candidateCount": style.replies});
    }
    if head.tools.is_empty() {
        body.as_object_mut().unwrap().remove("tools");
    }
    if head.stream && dialect != Dialect::Gemini {
        body["stream"] = json!(true);
    }
    body
}

fn user_message(dialect: Dialect, text: &str, style: ClientStyle, last: bool) -> Value {
    match dialect {
        Dialect::Anthropic if style.cache_markers && last => json!({"role": "user", "content": [
            {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]}),
        Dialect::Anthropic | Dialect::Chat => json!({"role": "user", "content": text}),
        Dialect::Responses => json!({"type": "message", "role": "user",
            "content": [{"type": "input_text", "text": text}]}),
        Dialect::Gemini => json!({"role": "user", "parts": [{"text": text}]}),
    }
}

fn picture_message(dialect: Dialect, text: &str) -> Value {
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

/// Tool results as messages: one for all, or one each.
fn result_messages(
    dialect: Dialect,
    results: &[ToolResult],
    style: ClientStyle,
    last: bool,
) -> Vec<Value> {
    match dialect {
        Dialect::Anthropic => {
            let count = results.len();
            let blocks = results.iter().enumerate().map(|(index, result)| {
                let mut block = json!({"type": "tool_result", "tool_use_id": result.id});
                block["content"] = anthropic_content(result);
                if result.is_error {
                    block["is_error"] = json!(true);
                }
                if style.cache_markers && last && index + 1 == count {
                    block["cache_control"] = json!({"type": "ephemeral"});
                }
                block
            });
            vec![json!({"role": "user", "content": blocks.collect::<Vec<_>>()})]
        }
        Dialect::Chat => {
            let message = |result: &ToolResult| {
                let content = match result.in_blocks {
                    true => json!([{"type": "text", "text": result.text}]),
                    false => json!(result.text),
                };
                json!({"role": "tool", "tool_call_id": result.id, "content": content})
            };
            results.iter().map(message).collect()
        }
        Dialect::Responses => {
            let item = |result: &ToolResult| {
                let output = match result.in_blocks {
                    true => json!([{"type": "input_text", "text": result.text}]),
                    false => json!(result.text),
                };
                let id = &result.id;
                let mut item =
                    json!({"type": "function_call_output", "call_id": id, "output": output});
                if let Some(caller) = &result.caller {
                    item["caller"] = caller.clone();
                }
                item
            };
            results.iter().map(item).collect()
        }
        Dialect::Gemini => {
            let part = |result: &ToolResult| {
                let key = if result.is_error { "error" } else { "output" };
                let mut response = Map::new();
                response.insert(key.to_owned(), json!(result.text));
                let mut answer = json!({"name": result.name, "response": response});
                if !result.id.is_empty() && !style.drops_call_ids {
                    answer["id"] = json!(result.id);
                }
                json!({"functionResponse": answer})
            };
            let parts: Vec<Value> = results.iter().map(part).collect();
            vec![json!({"role": "user", "parts": parts})]
        }
    }
}

fn anthropic_content(result: &ToolResult) -> Value {
    if result.loads {
        return json!([{"type": "tool_reference", "tool_name": DEFERRED}]);
    }
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
fn reply_messages(
    dialect: Dialect,
    reply: &Value,
    keeps_reasoning: bool,
    style: ClientStyle,
) -> Vec<Value> {
    let mut reply = reply.clone();
    if let Some(edit) = style.edits_replies {
        edit_reply(dialect, &mut reply, edit);
    }
    match dialect {
        Dialect::Anthropic => {
            if !keeps_reasoning {
                array_mut(&mut reply["content"])
                    .retain(|block| !has_type(block, &["thinking", "redacted_thinking"]));
            }
            if style.trims_text {
                for block in
                    array_mut(&mut reply["content"]).iter_mut().filter(|b| has_type(b, &["text"]))
                {
                    block["text"] = json!(block["text"].as_str().unwrap().trim());
                }
            }
            if array_mut(&mut reply["content"]).is_empty() {
                return Vec::new();
            }
            vec![json!({"role": "assistant", "content": reply["content"]})]
        }
        Dialect::Chat => {
            let message = reply.as_object_mut().unwrap();
            if !keeps_reasoning {
                for field in ["reasoning_content", "reasoning", "reasoning_details"] {
                    message.remove(field);
                }
            }
            for call in message.get_mut("tool_calls").map(array_mut).into_iter().flatten() {
                if style.reformats_arguments {
                    let arguments = call["function"]["arguments"].as_str().unwrap();
                    let parsed: Value = serde_json::from_str(arguments).unwrap();
                    let formatted = serde_json::to_string_pretty(&parsed).unwrap();
                    call["function"]["arguments"] = json!(formatted);
                }
                if !keeps_reasoning {
                    call.as_object_mut().unwrap().remove("extra_content");
                }
            }
            vec![reply]
        }
        Dialect::Responses => {
            let items = array_mut(&mut reply["output"]);
            items.retain(|item| keeps_reasoning || !has_type(item, &["reasoning"]));
            for item in items.iter_mut() {
                // As most clients send it: inline, without the ids of the provider's store.
                item.as_object_mut().unwrap().remove("id");
                item.as_object_mut().unwrap().remove("status");
            }
            std::mem::take(items)
        }
        Dialect::Gemini => {
            let parts = array_mut(&mut reply["parts"]);
            parts.retain(|part| part["thought"] != json!(true));
            if !keeps_reasoning {
                parts.retain(|part| part["text"] != json!(""));
            }
            for part in parts.iter_mut() {
                let part = part.as_object_mut().unwrap();
                if style.drops_call_ids {
                    let call = part.get_mut("functionCall").and_then(Value::as_object_mut);
                    call.into_iter().for_each(|call| _ = call.remove("id"));
                }
                let signature =
                    part.get("thoughtSignature").and_then(Value::as_str).map(str::to_owned);
                match signature {
                    Some(_) if !keeps_reasoning => drop(part.remove("thoughtSignature")),
                    Some(signature) if style.url_safe_signatures => {
                        let signature = signature.replace('+', "-").replace('/', "_");
                        part.insert("thoughtSignature".to_owned(), json!(signature));
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

/// What is appended to the model's texts.
const FOOTER: &str = "\n\n---\nanswered by a model";

impl ReplyEdit {
    /// The text as its client sends it back.
    fn text(self, text: &str, is_last: bool) -> String {
        match self {
            Self::LastFooter if !is_last => text.to_owned(),
            Self::Footers | Self::LastFooter => format!("{text}{FOOTER}"),
            Self::DropBesideCalls => text.to_owned(),
            Self::LineEnds => text.replace('\n', "\r\n"),
            Self::Decomposed => text.replace('ï', "i\u{308}").replace('ö', "o\u{308}"),
        }
    }
}

impl Retrieval {
    fn around(self, text: &str) -> String {
        // Another one for each message.
        let context = format!("<context>\nIt is on page {} of the log.\n</context>", text.len());
        match self {
            Self::Before => format!("Answer from the context.\n{context}\n\n{text}"),
            Self::After => format!("{text}\n\n{context}"),
        }
    }
}

/// Edits the texts of a reply, or drops them. A signed text stays: it would no longer be valid.
fn edit_reply(dialect: Dialect, reply: &mut Value, edit: ReplyEdit) {
    if matches!(edit, ReplyEdit::DropBesideCalls) {
        if has_calls(dialect, reply) {
            drop_texts(dialect, reply);
        }
        return;
    }
    let mut texts = Vec::new();
    collect_texts(reply, &mut texts);
    let count = texts.len();
    for (index, text) in texts.into_iter().enumerate() {
        *text = edit.text(text, index + 1 == count);
    }
}

fn drop_texts(dialect: Dialect, reply: &mut Value) {
    let is_text = |part: &Value| part["text"].is_string() && part["thought"] != true;
    match dialect {
        Dialect::Anthropic => {
            array_mut(&mut reply["content"]).retain(|block| !has_type(block, &["text"]));
        }
        Dialect::Chat => reply["content"] = Value::Null,
        Dialect::Responses => {
            array_mut(&mut reply["output"]).retain(|item| !has_type(item, &["message"]));
        }
        Dialect::Gemini => array_mut(&mut reply["parts"])
            .retain(|part| !is_text(part) || part["thoughtSignature"].is_string()),
    }
}

fn collect_texts<'v>(value: &'v mut Value, texts: &mut Vec<&'v mut String>) {
    let member = |name| value.get(name);
    let is_own =
        member("thought").is_some_and(|it| *it == true) || member("thoughtSignature").is_some();
    if is_own || has_type(value, &["thinking", "redacted_thinking", "reasoning"]) {
        return;
    }
    match value {
        Value::String(text) => texts.push(text),
        Value::Array(parts) => parts.iter_mut().for_each(|part| collect_texts(part, texts)),
        Value::Object(members) => {
            for (name, value) in members {
                if ["content", "output", "parts", "text"].contains(&&**name) {
                    collect_texts(value, texts);
                }
            }
        }
        _ => {}
    }
}

/// Whether a client changed what stands before the last reasoning of a reply within that reply: the provider finds it bound to
/// other text.
pub fn edits_before_reasoning(dialect: Dialect, reply: &Value, style: ClientStyle) -> bool {
    let parts = |reply: &Value| -> Vec<Value> {
        let name = match dialect {
            Dialect::Anthropic => "content",
            Dialect::Responses => "output",
            // There is no place for reasoning between texts.
            Dialect::Chat | Dialect::Gemini => return Vec::new(),
        };
        reply[name].as_array().cloned().unwrap_or_default()
    };
    let mut edited = reply.clone();
    style.edits_replies.into_iter().for_each(|edit| edit_reply(dialect, &mut edited, edit));
    let (received, edited) = (parts(reply), parts(&edited));
    let is_reasoning =
        |part: &Value| has_type(part, &["thinking", "redacted_thinking", "reasoning"]);
    let last = received.iter().rposition(is_reasoning).unwrap_or(0);
    received[..last] != edited[..last]
}

/// The texts of a reply, without thoughts and signed texts.
pub fn texts(reply: &Value) -> Vec<String> {
    let mut reply = reply.clone();
    let mut texts = Vec::new();
    collect_texts(&mut reply, &mut texts);
    texts.into_iter().map(|text| text.clone()).collect()
}

/// Whether a reply calls a tool, and the call has an id.
pub fn has_call_ids(dialect: Dialect, reply: &Value) -> bool {
    let has_id = |part: &Value| part["functionCall"]["id"].is_string();
    match dialect {
        Dialect::Gemini => reply["parts"].as_array().is_some_and(|parts| parts.iter().any(has_id)),
        _ => has_calls(dialect, reply),
    }
}

/// Whether a reply calls tools.
pub fn has_calls(dialect: Dialect, reply: &Value) -> bool {
    let has = |list: &Value, is_call: &dyn Fn(&Value) -> bool| {
        list.as_array().is_some_and(|all| all.iter().any(is_call))
    };
    match dialect {
        Dialect::Anthropic => has(&reply["content"], &|block| has_type(block, &["tool_use"])),
        Dialect::Chat => has(&reply["tool_calls"], &|_| true),
        Dialect::Responses => has(&reply["output"], &|item| has_type(item, &["function_call"])),
        Dialect::Gemini => has(&reply["parts"], &|part| part["functionCall"].is_object()),
    }
}

/// What a client stores of a complete reply, and the tool calls in it.
pub fn read_reply(dialect: Dialect, answer: &Value) -> (Value, Vec<ToolCall>) {
    let tool_call = |id: &Value, name: &Value| ToolCall {
        id: id.as_str().unwrap_or_default().to_owned(),
        name: name.as_str().unwrap_or_default().to_owned(),
        caller: None,
    };
    let caller = |call: &Value| call.get("caller").filter(|caller| caller.is_object()).cloned();
    match dialect {
        Dialect::Anthropic => {
            let blocks = answer["content"].as_array().cloned().unwrap_or_default();
            let calls = blocks.iter().filter(|block| has_type(block, &["tool_use"]));
            let calls = calls.map(|block| ToolCall {
                caller: caller(block),
                ..tool_call(&block["id"], &block["name"])
            });
            let calls = calls.collect();
            (json!({"content": blocks}), calls)
        }
        Dialect::Chat => {
            let message = answer["choices"][0]["message"].clone();
            let calls = message["tool_calls"].as_array().cloned().unwrap_or_default();
            let calls = calls.iter().map(|call| tool_call(&call["id"], &call["function"]["name"]));
            let calls = calls.collect();
            (message, calls)
        }
        Dialect::Responses => {
            let items = answer["output"].as_array().cloned().unwrap_or_default();
            let calls = items.iter().filter(|item| has_type(item, &["function_call"]));
            let calls = calls.map(|item| ToolCall {
                caller: caller(item),
                ..tool_call(&item["call_id"], &item["name"])
            });
            let calls = calls.collect();
            (json!({"output": items}), calls)
        }
        Dialect::Gemini => {
            let parts = answer["candidates"][0]["content"]["parts"].as_array().cloned();
            let parts = parts.unwrap_or_default();
            let calls = parts.iter().filter(|part| part["functionCall"].is_object());
            let calls = calls
                .map(|part| tool_call(&part["functionCall"]["id"], &part["functionCall"]["name"]));
            let calls = calls.collect();
            (json!({"parts": parts}), calls)
        }
    }
}

/// What a client keeps of a reply that broke off, if anything: complete or signed reasoning, text and complete
/// items. It drops tool calls, because it never runs them.
pub fn partial_reply(dialect: Dialect, mut answer: Value) -> Option<Value> {
    match dialect {
        Dialect::Anthropic => {
            array_mut(&mut answer["content"]).retain(|block| match block["type"].as_str() {
                Some("thinking") => {
                    block["signature"].as_str().is_some_and(|signature| !signature.is_empty())
                }
                Some("redacted_thinking") => true,
                Some("text") => block["text"] != "",
                _ => false,
            });
            (!array_mut(&mut answer["content"]).is_empty())
                .then(|| json!({"content": answer["content"]}))
        }
        Dialect::Chat => {
            let message = answer["choices"][0]["message"].as_object_mut()?;
            message.remove("tool_calls");
            let content = message.get("content").and_then(Value::as_str);
            content.is_some_and(|text| !text.trim().is_empty()).then(|| json!(message))
        }
        Dialect::Responses => {
            let items = answer["output"].as_array_mut()?;
            items.retain(|item| !has_type(item, &["function_call"]));
            (!items.is_empty()).then(|| json!({"output": items}))
        }
        Dialect::Gemini => None,
    }
}

fn has_type(value: &Value, kinds: &[&str]) -> bool {
    value["type"].as_str().is_some_and(|kind| kinds.contains(&kind))
}

fn array_mut(value: &mut Value) -> &mut Vec<Value> {
    value.as_array_mut().unwrap()
}

/// The history in a request in one form, so that two can be compared: without cache markers, texts as strings,
/// signatures in one alphabet.
pub fn history(dialect: Dialect, body: &Value) -> Vec<Value> {
    let name = match dialect {
        Dialect::Anthropic | Dialect::Chat => "messages",
        Dialect::Responses => "input",
        Dialect::Gemini => "contents",
    };
    body[name].as_array().into_iter().flatten().map(normalized).collect()
}

/// How much of a history went out before the newest reply in it.
pub fn answered(history: &[Value]) -> usize {
    let is_models = |item: &Value| {
        item["role"] == "assistant"
            || item["role"] == "model"
            || has_type(item, &["reasoning", "function_call"])
    };
    let newer = history.iter().rev().skip_while(|item| !is_models(item));
    newer.skip_while(|item| is_models(item)).count()
}

/// The results in a history that are no context, by the ids of their calls: those for programs, and those that load
/// tools.
pub fn kept_out(dialect: Dialect, body: &Value) -> Vec<(&Value, &Value)> {
    let calls = all_with(body, "caller");
    let by_program =
        |id: &Value| calls.iter().any(|call| call["id"] == *id || call["call_id"] == *id);
    let loads = |content: &Value| content.to_string().contains("\"tool_reference\"");
    let results = results_by_id(dialect, body).into_iter();
    results.filter(|(id, content)| by_program(id) || loads(content)).collect()
}

/// The results in a history, by the ids of their calls (Anthropic, Responses).
pub fn results_by_id(dialect: Dialect, body: &Value) -> Vec<(&Value, &Value)> {
    let (id, content) = match dialect {
        Dialect::Anthropic => ("tool_use_id", "content"),
        Dialect::Responses => ("call_id", "output"),
        Dialect::Chat | Dialect::Gemini => return Vec::new(),
    };
    let results = all_with(body, content).into_iter().filter(|result| result.get(id).is_some());
    results.map(|result| (&result[id], &result[content])).collect()
}

/// The items and blocks of a history that have a member.
fn all_with<'v>(body: &'v Value, member: &str) -> Vec<&'v Value> {
    let items = body["messages"].as_array().or(body["input"].as_array()).into_iter().flatten();
    let blocks = items.flat_map(|item| {
        std::iter::once(item).chain(item["content"].as_array().into_iter().flatten())
    });
    blocks.filter(|block| block.get(member).is_some()).collect()
}

/// The contents of all tool results in a history, in order.
pub fn results(dialect: Dialect, history: &[Value]) -> Vec<&Value> {
    let mut found = Vec::new();
    for item in history {
        match dialect {
            Dialect::Anthropic => {
                let blocks = item["content"].as_array().into_iter().flatten();
                let results = blocks.filter(|block| has_type(block, &["tool_result"]));
                found.extend(results.map(|block| &block["content"]));
            }
            Dialect::Chat if item["role"] == "tool" => found.push(&item["content"]),
            Dialect::Responses if has_type(item, &["function_call_output"]) => {
                found.push(&item["output"]);
            }
            Dialect::Gemini => {
                let parts = item["parts"].as_array().into_iter().flatten();
                let results = parts.map(|part| &part["functionResponse"]);
                found.extend(results.filter(|it| it.is_object()).map(|it| &it["response"]));
            }
            Dialect::Chat | Dialect::Responses => {}
        }
    }
    found
}

pub fn normalized(value: &Value) -> Value {
    match value {
        Value::Array(items) => match items.as_slice() {
            [one] if has_type(one, &["text"]) => one["text"].clone(),
            _ => items.iter().map(normalized).collect(),
        },
        Value::Object(members) => {
            let kept = members.iter().filter(|(name, _)| *name != "cache_control");
            let one_form = |name: &str, value: &Value| match value {
                // Some clients send it in another alphabet: the same bytes, other text (`docs/protocols.md` 10.8).
                Value::String(signature) if name == "thoughtSignature" => {
                    json!(signature.replace('-', "+").replace('_', "/"))
                }
                other => normalized(other),
            };
            kept.map(|(name, value)| (name.clone(), one_form(name, value))).collect()
        }
        other => other.clone(),
    }
}
