//! OpenAI Chat Completions and compatible APIs (`docs/protocols.md` 2, 4): reads requests, with ranges into
//! the body.
//!
//! Leading system messages are the conversation's system; later ones stay in their places. The parts of an
//! assistant message are always in the same order (reasoning, text, calls), whatever the order of its
//! members, so that their chain equals that of the reply, which is read in `reply.rs`.

mod reasoning;
mod reply;
pub(in crate::dialect) mod think;
mod usage;

pub(super) use reasoning::lacks_signature_of;
pub use reply::ReplyStream;
pub use usage::USAGE;

use super::key::{Keyer, ToolArguments};
use super::note::note_once;
use super::{
    Audience, BodyElements, Conversation, Dialect, Media, Message, Note, Part, PartKind,
    PictureDetail, Purpose, Role, Span,
};
use crate::wire::json::{Kind, Value, members};
use crate::wire::member::first;

/// Reads the body of a request.
pub(super) fn read(root: Value<'_>, body: &[u8], elements: &mut BodyElements) -> Conversation {
    let mut conversation = Conversation::empty(Dialect::OpenaiChat);
    let request = RequestMembers::from_value(root);
    conversation.model = request.model.and_then(|model| model.text()).map(Into::into);
    conversation.stream = request.stream.and_then(|stream| stream.as_bool()).unwrap_or(false);
    // The client continues with one of them, and the usage is of all.
    conversation.several = request.n.and_then(|n| n.as_u64()).is_some_and(|n| n > 1);
    // The newer name counts if both are given.
    let limit = first([request.max_completion_tokens, request.max_tokens]);
    conversation.max_output = limit.and_then(|limit| limit.as_u64());
    let thinking = request.thinking.and_then(|thinking| thinking.get("type"));
    conversation.thinks = thinking.map(|kind| kind.text().as_deref() != Some("disabled"));
    // Nothing is to be written: such a call only fills the cache.
    if conversation.max_output == Some(0) {
        conversation.purpose = Purpose::WarmUp;
    }
    let option = request.stream_options.and_then(|options| options.get("include_usage"));
    conversation.include_usage = option.and_then(|option| option.as_bool());
    conversation.session = super::identity::session_in_body(&root);
    conversation.backend = super::backend::choice_in(body, root);

    let mut reader = Reader { keyer: Keyer::default(), conversation, body, elements };
    reader.head(&request);
    reader.messages(&request);
    reader.conversation
}

members! {
    /// The members of a request that are read.
    RequestMembers {
        model,
        stream,
        n,
        max_completion_tokens,
        max_tokens,
        thinking,
        stream_options,
        tools,
        functions,
        response_format,
        messages,
    }
}

struct Reader<'r> {
    keyer: Keyer,
    conversation: Conversation,
    body: &'r [u8],
    elements: &'r mut BodyElements,
}

impl Reader<'_> {
    fn head(&mut self, request: &RequestMembers<'_>) {
        for tool in request.tools.iter().flat_map(Value::items) {
            if let Some(known) = self.elements.reading(tool, self.body) {
                self.conversation.tools.extend(known.parts);
                continue;
            }
            let inner = tool.get_any(&["function", "custom"]).unwrap_or(tool);
            let name = inner.get_text("name").map(Into::into);
            let deferred = first([tool.get("defer_loading"), inner.get("defer_loading")]);
            let mut part = match deferred.and_then(|deferred| deferred.as_bool()) {
                Some(true) => Part::deferred_tool(tool, name, &mut self.keyer),
                _ => Part::tool(tool, name, &mut self.keyer),
            };
            self.elements.keep(tool, self.body, Role::System, std::slice::from_mut(&mut part));
            self.conversation.tools.push(part);
        }
        for function in request.functions.iter().flat_map(Value::items) {
            let name = function.get_text("name").map(Into::into);
            self.conversation.tools.push(Part::tool(function, name, &mut self.keyer));
        }
        if let Some(format) = first([request.response_format])
            && format.get_text("type").as_deref() != Some("text")
        {
            self.conversation.tools.push(Part::schema(format, None, &mut self.keyer));
        }
    }

    fn messages(&mut self, request: &RequestMembers<'_>) {
        let Some(messages) = request.messages.filter(|m| m.kind() == Kind::Array) else {
            return note_once(&mut self.conversation.notes, Note::UnknownStructure);
        };
        // If there are only system messages, they are the history.
        let leading = messages.items().position(|message| self.role(message) != Role::System);
        for (index, message) in messages.items().enumerate() {
            let (role, mut parts) = self.element(message);
            if leading.is_some_and(|leading| index < leading) {
                self.conversation.system.append(&mut parts);
            } else {
                self.conversation.messages.push(Message::new(role, message.span(), parts));
            }
        }
    }

    fn role(&mut self, message: Value<'_>) -> Role {
        let role = if message.is_closed() { self.elements.role(message) } else { None };
        role.unwrap_or_else(|| message.opened(role_of))
    }

    fn element(&mut self, message: Value<'_>) -> (Role, Vec<Part>) {
        if let Some(known) = self.elements.reading(message, self.body) {
            return (known.role, known.parts);
        }
        let notes = self.conversation.begin_element();
        let (role, mut parts) = message.opened(|message| {
            let mut parts = Vec::new();
            let role = role_of(message);
            self.message(role, message, &mut parts);
            (role, parts)
        });
        if self.conversation.end_element(notes) {
            self.elements.keep(message, self.body, role, &mut parts);
        }
        (role, parts)
    }

    fn message(&mut self, role: Role, message: Value<'_>, parts: &mut Vec<Part>) {
        if message.kind() != Kind::Object {
            note_once(&mut self.conversation.notes, Note::UnknownStructure);
            return parts.push(Part::opaque(role, message, &mut self.keyer));
        }
        if role == Role::Tool {
            return self.tool_result(message, parts);
        }
        if role == Role::Assistant {
            reasoning_fields(message, parts);
        }
        if let Some(content) = message.get_any(&["content"]) {
            self.content(role, content, parts);
        }
        if role == Role::Assistant {
            self.other_members(message, parts);
        }
    }

    fn content(&mut self, role: Role, content: Value<'_>, parts: &mut Vec<Part>) {
        match content.kind() {
            Kind::String => parts.push(self.text(role, content, content)),
            Kind::Array => content.items().for_each(|block| self.block(role, block, parts)),
            Kind::Object => self.block(role, content, parts),
            Kind::Null | Kind::Bool | Kind::Number => {
                note_once(&mut self.conversation.notes, Note::UnknownStructure);
                parts.push(Part::opaque(role, content, &mut self.keyer));
            }
        }
    }

    fn block(&mut self, role: Role, block: Value<'_>, parts: &mut Vec<Part>) {
        let [kind, text, refusal] = block.members(["type", "text", "refusal"]);
        let kind = kind.and_then(|kind| kind.text()).unwrap_or_default();
        let text = first([text, refusal]).filter(|text| text.kind() == Kind::String);
        match (kind.as_ref(), text) {
            _ if block.kind() == Kind::String => parts.push(self.text(role, block, block)),
            ("text" | "input_text" | "output_text" | "refusal" | "", Some(text)) => {
                parts.push(self.text(role, block, text));
            }
            ("thinking" | "reasoning" | "redacted_thinking", _) => {
                let mut part = Part::at(PartKind::Reasoning, role, block);
                (part.texts, part.signature) = thoughts(block);
                parts.push(part);
            }
            // LiteLLM answers a program's call like this.
            ("tool_result", _) => parts.push(Part {
                kind: PartKind::ToolResult,
                id: known(block.get("tool_use_id")),
                ..Part::opaque(role, block, &mut self.keyer)
            }),
            ("image_url" | "image" | "input_image", _) => {
                parts.push(self.media(PartKind::Image, role, block));
            }
            (
                "input_audio" | "audio_url" | "file" | "input_file" | "video_url" | "document_url"
                | "input_video",
                _,
            ) => parts.push(self.media(PartKind::Document, role, block)),
            _ => {
                note_once(&mut self.conversation.notes, Note::UnknownPart);
                parts.push(Part::opaque(role, block, &mut self.keyer));
            }
        }
    }

    fn text(&mut self, role: Role, block: Value<'_>, literal: Value<'_>) -> Part {
        let key = match role {
            Role::Assistant => {
                // Thinking in tags before the text is not part of the key, because clients drop it.
                self.keyer.text(role, think::split(&literal.text().unwrap_or_default()).1)
            }
            _ => self.keyer.text(role, literal),
        };
        Part { texts: vec![literal.span()], key, ..Part::at(PartKind::Text, role, block) }
    }

    fn other_members(&mut self, message: Value<'_>, parts: &mut Vec<Part>) {
        let [refusal, audio, calls, call] =
            message.members(["refusal", "audio", "tool_calls", "function_call"]);
        if let Some(refusal) = refusal
            && refusal.text().is_some_and(|text| !text.is_empty())
        {
            parts.push(self.text(Role::Assistant, refusal, refusal));
        }
        if let Some(audio) = audio
            && audio.get_text("id").is_some_and(|id| !id.is_empty())
        {
            parts.push(self.media(PartKind::Document, Role::Assistant, audio));
        }
        for call in calls.iter().flat_map(Value::items) {
            parts.push(self.tool_call(call));
        }
        if let Some(call) = call
            && call.get_text("name").is_some_and(|name| !name.is_empty())
        {
            parts.push(self.tool_call(call));
        }
    }

    fn tool_call(&mut self, call: Value<'_>) -> Part {
        let mut part = Part::at(PartKind::ToolCall, Role::Assistant, call);
        part.audience = Audience::by_caller(call);
        let [id, function, custom] = call.members(["id", "function", "custom"]);
        let inner = first([function, custom]).unwrap_or(call);
        let [name, arguments, input] = inner.members(["name", "arguments", "input"]);
        part.id = known(id);
        part.name = name.and_then(|name| name.text()).map(Into::into);
        let arguments = first([arguments, input]);
        part.texts = arguments.iter().map(Value::span).collect();
        part.signature = signature(call).map(|signature| signature.span());
        let name = part.name.as_deref().unwrap_or_default();
        let text = arguments.and_then(|arguments| arguments.text());
        let arguments = match (&text, arguments) {
            (None, Some(value)) => ToolArguments::Value(value),
            _ => ToolArguments::Text(text.as_deref().unwrap_or_default()),
        };
        part.key = self.keyer.tool_call(part.id.as_deref(), name, arguments);
        part
    }

    fn tool_result(&mut self, message: Value<'_>, parts: &mut Vec<Part>) {
        let mut part = Part::at(PartKind::ToolResult, Role::Tool, message);
        let [id, name, content] = message.members(["tool_call_id", "name", "content"]);
        part.id = known(id);
        part.name = known(name);
        let content = first([content]);
        part.loads = content.iter().flat_map(Value::items).filter_map(referenced).collect();
        // A result that loads tools has no content to cut: later calls depend on it.
        if part.loads.is_empty()
            && let Some(content) = content
            && matches!(content.kind(), Kind::String | Kind::Array)
        {
            part.content = Some(content.span());
        }
        let mut pieces = Vec::new();
        let mut inner = Vec::new();
        match content {
            Some(content) if content.kind() == Kind::Array => {
                for block in content.items() {
                    match block.get("text").filter(|text| text.kind() == Kind::String) {
                        Some(text) => pieces.push(text),
                        None if block.kind() == Kind::String => pieces.push(block),
                        // Instead of it the model reads the tool's definition.
                        None if referenced(block).is_some() => {}
                        None => self.block(Role::Tool, block, &mut inner),
                    }
                }
            }
            Some(content) if content.kind() == Kind::String => pieces.push(content),
            Some(content) => inner.push(Part::opaque(Role::Tool, content, &mut self.keyer)),
            None => {}
        }
        part.texts = pieces.iter().map(Value::span).collect();
        let answers = part.id.as_deref().or(part.name.as_deref()).unwrap_or_default();
        part.key = self.keyer.tool_result(answers, pieces);
        parts.push(part);
        parts.append(&mut inner);
    }

    fn media(&mut self, kind: PartKind, role: Role, block: Value<'_>) -> Part {
        const BODIES: [&str; 7] = [
            "image_url",
            "input_audio",
            "file",
            "video_url",
            "audio_url",
            "document_url",
            "input_video",
        ];
        let mut part = Part::at(kind, role, block);
        let inner = block.get_any(&BODIES).unwrap_or(block);
        let named = &["url", "data", "file_data", "file_id", "file_url", "id"];
        let address = match inner.kind() {
            Kind::String => Some(inner),
            _ => inner.get_any(named).filter(|address| address.kind() == Kind::String),
        };
        let Some(text) = address.and_then(|address| address.text()) else {
            // The model reads it as JSON, as far as is known.
            part.texts = vec![inner.span()];
            part.key = self.keyer.value(kind, role, inner);
            return part;
        };
        let is_data = text.starts_with("data:") || inner.get("data").is_some();
        let mime = match text.strip_prefix("data:").and_then(|rest| rest.split([';', ',']).next()) {
            Some(mime) => Some(mime.into()),
            None => declared_mime(block, inner),
        };
        let data = if is_data { address.map(|address| address.span()) } else { None };
        let detail =
            PictureDetail::from_member(inner.get("detail").or_else(|| block.get("detail")));
        part.media = Some(Media { data, mime, detail });
        part.key = self.keyer.media(kind, role, &text);
        part
    }
}

fn declared_mime(block: Value<'_>, inner: Value<'_>) -> Option<Box<str>> {
    let format = inner.get_any(&["format", "mime_type", "media_type"])?.text()?;
    match block.get("input_audio") {
        // Audio names its format alone: `wav`.
        Some(_) => Some(format!("audio/{format}").into()),
        None => Some(format.into()),
    }
}

fn role_of(message: Value<'_>) -> Role {
    match message.get_text("role").as_deref() {
        Some("system" | "developer") => Role::System,
        Some("assistant" | "model") => Role::Assistant,
        Some("tool" | "function") => Role::Tool,
        _ => Role::User,
    }
}

fn referenced(block: Value<'_>) -> Option<Box<str>> {
    // As `docs/protocols.md` 12.2 has it.
    block.get_text("type").filter(|kind| kind == "tool_reference")?;
    block.get_any(&["tool_name", "name"]).and_then(|name| name.text()).map(Into::into)
}

fn known(value: Option<Value<'_>>) -> Option<Box<str>> {
    // Some servers send `""` or `null` instead of an id.
    value?.text().filter(|text| !text.is_empty()).map(Into::into)
}

fn signature(value: Value<'_>) -> Option<Value<'_>> {
    // As `docs/protocols.md` 5.4 has it; the second is LiteLLM's own member for it.
    let google = value.path(&["extra_content", "google", "thought_signature"]);
    google
        .or_else(|| value.path(&["provider_specific_fields", "thought_signature"]))
        .filter(|signature| signature.kind() == Kind::String)
}

/// Members in which compatible APIs put reasoning (`docs/protocols.md` 4.2), the most complete first: if a
/// client sends several, the model reads it only once.
const REASONING: &[&str] = &[
    "reasoning_details",
    "thinking_blocks",
    "reasoning_content",
    "reasoning",
    "reasoning_text",
    "reasoning_opaque",
    "reasoning_signature",
    "reasoning_encrypted",
    "extra_content",
];

fn reasoning_fields(message: Value<'_>, parts: &mut Vec<Part>) {
    let mut fields: Vec<(usize, Part)> = Vec::new();
    for (key, value) in message.entries().filter(|(_, value)| !value.is_null()) {
        let Some(rank) = REASONING.iter().position(|name| key.is(name)) else { continue };
        let mut part = Part::at(PartKind::Reasoning, Role::Assistant, value);
        // From the key to the end of the value, so that it can be taken out whole.
        part.span.start = key.span().start;
        (part.texts, part.signature) = match REASONING[rank] {
            "extra_content" => match value.path(&["google", "thought_signature"]) {
                Some(signature) => (Vec::new(), Some(signature.span())),
                None => continue,
            },
            "reasoning_opaque" | "reasoning_signature" | "reasoning_encrypted" => {
                let is_text = value.kind() == Kind::String;
                (Vec::new(), if is_text { Some(value.span()) } else { None })
            }
            _ => thoughts(value),
        };
        fields.push((rank, part));
    }
    fields.sort_by_key(|(rank, _)| *rank);
    let mut is_read = false;
    for (_, mut part) in fields {
        // One thought may stand in several members: the model reads it once.
        if is_read {
            part.texts.clear();
        }
        is_read |= !part.texts.is_empty();
        parts.push(part);
    }
}

/// The texts in a reasoning member or block, in any of its forms, and the last signature in it.
fn thoughts(value: Value<'_>) -> (Vec<Span>, Option<Span>) {
    let mut texts = Vec::new();
    let mut signature = None;
    match value.kind() {
        Kind::String if value.span().len() > 2 => texts.push(value.span()),
        Kind::Array | Kind::Object => {
            let single = if value.kind() == Kind::Object { Some(value) } else { None };
            for item in value.items().chain(single) {
                let item = item.path(&["reasoningContent", "reasoningText"]).unwrap_or(item);
                let pieces = item.get_any(&["thinking", "text", "summary", "content"]);
                match pieces {
                    None if item.kind() == Kind::String => texts.push(item.span()),
                    Some(pieces) if pieces.kind() == Kind::String => texts.push(pieces.span()),
                    // Mistral: `thinking` is a list of text blocks, not nested.
                    Some(pieces) => texts.extend(
                        pieces
                            .items()
                            .filter_map(|inner| inner.get("text"))
                            .map(|text| text.span()),
                    ),
                    None => {}
                }
                // Databricks: the signature is in the text block.
                let inner = pieces.iter().flat_map(Value::items);
                for sealed in inner.chain([item]) {
                    let names = ["signature", "data", "redactedContent"];
                    // One that came in pieces was empty at first, and some clients keep that.
                    let seal = sealed.get_any(&names).filter(|value| value.span().len() > 2);
                    signature = seal.map(|value| value.span()).or(signature);
                }
            }
        }
        _ => {}
    }
    (texts, signature)
}

/// Fuzz target: no bytes make the reader panic, and every range is within the body.
#[cfg(any(test, fuzzing))]
pub fn fuzz(bytes: &[u8]) {
    let conversation = super::read(Dialect::OpenaiChat, "/v1/chat/completions", bytes);
    for part in conversation.all_parts() {
        assert!(part.span.end <= bytes.len());
        assert!(part.texts.iter().all(|text| text.end <= bytes.len()));
    }
}

#[cfg(test)]
mod tests;
