//! Anthropic Messages (`docs/protocols.md` 1): reads requests, with ranges into the body.
//!
//! Also reads bodies of Vertex and Bedrock, and of compatible APIs. The set of blocks is open: an unknown
//! block becomes an opaque part and is kept. Replies are read in `anthropic/reply.rs`.

mod reply;
mod usage;

pub use reply::ReplyStream;
pub use usage::USAGE;

use super::key::{Keyer, ToolArguments};
use super::note::note_once;
use super::{
    Audience, BodyElements, Conversation, Dialect, HeldHistory, Media, Message, Note, Part,
    PartKey, PartKind, Purpose, Role, ServerStep,
};
use crate::wire::json::{Kind, Span, Value, members};

/// Reads the body of a request.
pub(super) fn read(root: Value<'_>, body: &[u8], elements: &mut BodyElements) -> Conversation {
    let mut conversation = Conversation::empty(Dialect::Anthropic);
    let request = RequestMembers::from_value(root);
    conversation.model = request.model.and_then(|model| model.text()).map(Into::into);
    conversation.stream = request.stream.and_then(|stream| stream.as_bool()).unwrap_or(false);
    conversation.max_output = request.max_tokens.and_then(|limit| limit.as_u64());
    let thinking = request.thinking.and_then(|thinking| thinking.get("type"));
    // Every setting thinks but `disabled`.
    conversation.thinks = thinking.map(|kind| kind.text().as_deref() != Some("disabled"));
    conversation.held = request.thread.and_then(held);
    conversation.redeems_credit =
        request.fallback_credit_token.is_some_and(|token| !token.is_null());
    let choice = request.tool_choice.and_then(|choice| choice.get_text("type"));
    conversation.forces_tool = matches!(choice.as_deref(), Some("any" | "tool"));
    conversation.clears_past =
        request.context_management.and_then(|_| super::editing::trigger_in(root));
    conversation.long_cache = elements.cache_marks(body).asks_long();
    conversation.session = super::identity::session_in_body(&root);
    conversation.backend = super::backend::choice_in(body, root);
    conversation.purpose = purpose(&request, conversation.max_output);

    let mut reader = Reader { keyer: Keyer::default(), conversation, body, elements };
    reader.head(&request);
    if let Some(messages) = request.messages {
        reader.conversation.messages.reserve_exact(messages.items().count());
        messages.items().for_each(|message| reader.message(message));
    }
    reader.conversation
}

members! {
    /// The members of a request that are read.
    RequestMembers {
        model,
        stream,
        max_tokens,
        thinking,
        thread,
        fallback_credit_token,
        context_management,
        system,
        tools,
        tool_choice,
        messages,
        output_config,
        compaction,
    }
}

impl<'d> RequestMembers<'d> {
    fn format(&self) -> Option<Value<'d>> {
        self.output_config?.get_any(&["format"])
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
        if let Some(system) = request.system {
            let mut parts = Vec::new();
            match system.kind() {
                Kind::Array => {
                    system.items().for_each(|block| self.instructions(block, &mut parts));
                }
                _ => self.content(Role::System, system, &mut parts),
            }
            // Claude Code's first block differs in each request (`docs/protocols.md` 1.2).
            if let Some(first) = parts.first_mut()
                && is_billing_line(system)
            {
                first.key = None;
            }
            self.conversation.system = parts;
        }
        for tool in request.tools.iter().flat_map(Value::items) {
            if let Some(known) = self.elements.reading(tool, self.body) {
                self.conversation.tools.extend(known.parts);
                continue;
            }
            let name = tool.get_text("name").map(Into::into);
            // Those of an MCP server are deferred together.
            let deferred = tool.get("defer_loading");
            let deferred = deferred.or_else(|| tool.path(&["default_config", "defer_loading"]));
            let is_deferred = deferred.and_then(|deferred| deferred.as_bool()) == Some(true);
            let mut part = match is_deferred {
                true => Part::deferred_tool(tool, name, &mut self.keyer),
                false => Part::tool(tool, name, &mut self.keyer),
            };
            self.elements.keep(tool, self.body, Role::System, std::slice::from_mut(&mut part));
            self.conversation.tools.push(part);
        }
        if let Some(format) = request.format() {
            self.conversation.tools.push(Part::schema(format, None, &mut self.keyer));
        }
    }

    /// A block of the system prompt.
    fn instructions(&mut self, block: Value<'_>, parts: &mut Vec<Part>) {
        if let Some(mut known) = self.elements.reading(block, self.body) {
            return parts.append(&mut known.parts);
        }
        let notes = self.conversation.begin_element();
        let start = parts.len();
        block.opened(|block| self.block(Role::System, block, parts));
        if self.conversation.end_element(notes) {
            self.elements.keep(block, self.body, Role::System, &mut parts[start..]);
        }
    }

    fn message(&mut self, message: Value<'_>) {
        let span = message.span();
        if let Some(known) = self.elements.reading(message, self.body) {
            self.conversation.messages.push(Message::new(known.role, span, known.parts));
            return;
        }
        let notes = self.conversation.begin_element();
        let (role, mut parts) = message.opened(|message| self.read_message(message));
        if self.conversation.end_element(notes) {
            self.elements.keep(message, self.body, role, &mut parts);
        }
        self.conversation.messages.push(Message::new(role, span, parts));
    }

    fn read_message(&mut self, message: Value<'_>) -> (Role, Vec<Part>) {
        let [role, content] = message.members(["role", "content"]);
        let role = match role {
            Some(role) if role.is("assistant") => Role::Assistant,
            Some(role) if role.is("system") => Role::System,
            _ => Role::User,
        };
        let mut parts = Vec::new();
        if let Some(content) = content {
            self.content(role, content, &mut parts);
        } else {
            note_once(&mut self.conversation.notes, Note::UnknownStructure);
        }
        (role, parts)
    }

    /// A string, or a list of blocks.
    fn content(&mut self, role: Role, content: Value<'_>, parts: &mut Vec<Part>) {
        match content.kind() {
            // A part is large, and most messages have one.
            Kind::String => {
                parts.reserve_exact(1);
                parts.push(Part::text(role, content, &mut self.keyer));
            }
            Kind::Array => {
                parts.reserve_exact(content.items().count());
                content.items().for_each(|block| self.block(role, block, parts));
            }
            _ => note_once(&mut self.conversation.notes, Note::UnknownStructure),
        }
    }

    fn block(&mut self, role: Role, block: Value<'_>, parts: &mut Vec<Part>) {
        let [kind, text] = block.members(["type", "text"]);
        let kind = kind.and_then(|kind| kind.text()).unwrap_or_default();
        match kind.as_ref() {
            "text" => {
                if let Some(text) = text {
                    let part = Part::text(role, text, &mut self.keyer);
                    parts.push(Part { span: block.span(), ..part });
                }
            }
            "thinking" | "redacted_thinking" => parts.push(reasoning(role, block)),
            "image" => parts.push(self.media(PartKind::Image, role, block)),
            "document" => self.document(role, block, parts),
            "container_upload" => parts.push(self.media(PartKind::Document, role, block)),
            "tool_use" => parts.push(self.tool_call(block)),
            // It runs at the provider: the client sends no result.
            "server_tool_use" | "mcp_tool_use" => {
                parts.push(Part { server_step: Some(ServerStep::Begins), ..self.tool_call(block) });
            }
            // Each of the provider's tools has a result of its own name: `web_search_tool_result`, …
            _ if kind.ends_with("tool_result") => self.tool_result(role, block, parts),
            "compaction" => {
                let content = block.get_any(&["content"]);
                let content_text = content.and_then(|content| content.text()).unwrap_or_default();
                parts.push(Part {
                    texts: content.iter().map(Value::span).collect(),
                    name: Some("compaction".into()),
                    key: compaction_key(&mut self.keyer, &content_text),
                    ..Part::at(PartKind::Opaque, role, block)
                });
            }
            "tool_reference" | "tool_addition" => {
                parts.push(Part {
                    loads: referenced(block),
                    texts: loaded_texts(block),
                    ..Part::opaque(role, block, &mut self.keyer)
                });
            }
            // Known, and never edited: they need no note.
            "search_result" | "fallback" | "tool_removal" => {
                parts.push(Part::opaque(role, block, &mut self.keyer));
            }
            _ => {
                note_once(&mut self.conversation.notes, Note::UnknownPart);
                parts.push(Part::opaque(role, block, &mut self.keyer));
            }
        }
    }

    fn tool_call(&mut self, block: Value<'_>) -> Part {
        let mut part = Part::at(PartKind::ToolCall, Role::Assistant, block);
        part.audience = Audience::by_caller(block);
        let [id, name, input] = block.members(["id", "name", "input"]);
        part.id = id.and_then(|id| id.text()).map(Into::into);
        part.name = name.and_then(|name| name.text()).map(Into::into);
        part.texts = input.iter().map(Value::span).collect();
        let arguments = input.map_or(ToolArguments::Text(""), ToolArguments::Value);
        let name = part.name.as_deref().unwrap_or_default();
        part.key = self.keyer.tool_call(part.id.as_deref(), name, arguments);
        part
    }

    fn tool_result(&mut self, role: Role, block: Value<'_>, parts: &mut Vec<Part>) {
        let mut part = Part::at(PartKind::ToolResult, role, block);
        part.audience = Audience::by_caller(block);
        let [kind, id, error, content] =
            block.members(["type", "tool_use_id", "is_error", "content"]);
        part.id = id.and_then(|id| id.text()).map(Into::into);
        part.is_error = error.and_then(|error| error.as_bool()).unwrap_or(false);
        // A provider's own tool responds with its own objects: they are its result, not further parts.
        let hosted = kind.and_then(|kind| kind.text()).is_some_and(|kind| kind != "tool_result");
        part.server_step = if hosted { Some(ServerStep::Ends) } else { None };
        let content = content.filter(|content| !content.is_null());
        part.content = content
            .filter(|content| !hosted && may_give_way(*content))
            .map(|content| content.span());
        let mut texts = Vec::new();
        // Images and documents in a result become parts of their own, because they are counted and
        // cut by themselves.
        let mut inner = Vec::new();
        match content {
            Some(content) if content.kind() == Kind::Array => {
                for item in content.items() {
                    let [kind, text] = item.members(["type", "text"]);
                    match kind.and_then(|kind| kind.text()).as_deref() {
                        Some("text") => texts.extend(text),
                        Some("image") => inner.push(self.media(PartKind::Image, role, item)),
                        Some("document") => self.document(role, item, &mut inner),
                        _ if hosted => texts.push(item),
                        Some("tool_reference") => self.block(role, item, &mut inner),
                        _ => inner.push(Part::opaque(role, item, &mut self.keyer)),
                    }
                }
            }
            Some(content) if content.kind() == Kind::String => texts.push(content),
            Some(content) if content.kind() == Kind::Object => {
                part.loads = content.get("tool_references").iter().flat_map(found).collect();
                if part.loads.is_empty() {
                    texts.push(content);
                }
            }
            _ => {}
        }
        part.texts = texts.iter().map(Value::span).collect();
        // Clients re-serialise the objects of a hosted tool; its id is enough to identify it.
        texts.retain(|text| text.kind() == Kind::String);
        part.key = self.keyer.tool_result(part.id.as_deref().unwrap_or_default(), texts);
        parts.push(part);
        parts.append(&mut inner);
    }

    /// A document, and the pictures among the blocks that it may be made of.
    fn document(&mut self, role: Role, block: Value<'_>, parts: &mut Vec<Part>) {
        parts.push(self.media(PartKind::Document, role, block));
        let blocks = block.path(&["source", "content"]);
        let pictures = blocks
            .iter()
            .flat_map(Value::items)
            .filter(|inner| inner.get_text("type").as_deref() == Some("image"));
        for picture in pictures {
            parts.push(self.media(PartKind::Image, role, picture));
        }
    }

    fn media(&mut self, kind: PartKind, role: Role, block: Value<'_>) -> Part {
        let mut part = Part::at(kind, role, block);
        let source = block.get("source").unwrap_or(block);
        let mime = source.get_text("media_type").map(Into::into);
        let data = source.get_any(&["data", "url", "file_id"]);
        match (source.get_text("type").as_deref(), data) {
            (Some("text"), Some(data)) => {
                part.texts = vec![data.span()];
                part.key = self.keyer.value(kind, role, source);
            }
            (Some("base64"), Some(data)) => {
                part.media = Some(Media { data: Some(data.span()), mime, detail: None });
                part.key = self.keyer.media(kind, role, data);
            }
            (_, Some(address)) => {
                part.media = Some(Media { data: None, mime, detail: None });
                part.key = self.keyer.media(kind, role, address);
            }
            (_, None) => {
                let content = source.get("content");
                let blocks = content.iter().flat_map(Value::items);
                let texts = blocks.filter_map(|inner| inner.get("text"));
                let string = content.filter(|content| content.kind() == Kind::String);
                part.texts = string.into_iter().chain(texts).map(|text| text.span()).collect();
                part.key = self.keyer.value(kind, role, source);
            }
        }
        part
    }
}

fn may_give_way(content: Value<'_>) -> bool {
    // Not if it loads a tool's definition, which later calls depend on.
    match content.kind() {
        Kind::String => true,
        Kind::Array => {
            content.items().all(|item| item.get_text("type").as_deref() != Some("tool_reference"))
        }
        Kind::Null | Kind::Bool | Kind::Number | Kind::Object => false,
    }
}

fn found(references: &Value<'_>) -> Vec<Box<str>> {
    references.items().flat_map(referenced).collect()
}

/// The tool that a reference names, or that is added with a reference or with its definition.
fn referenced(block: Value<'_>) -> Vec<Box<str>> {
    let tool = block.get("tool").unwrap_or(block);
    let tool = tool.get("definition").unwrap_or(tool);
    let name = tool.get_any(&["tool_name", "name"]).and_then(|name| name.text());
    name.map(Into::into).into_iter().collect()
}

fn loaded_texts(block: Value<'_>) -> Vec<Span> {
    let definition = block.path(&["tool", "definition"]);
    definition.iter().map(Value::span).collect()
}

fn reasoning(role: Role, block: Value<'_>) -> Part {
    let mut part = Part::at(PartKind::Reasoning, role, block);
    part.texts = block.get("thinking").iter().map(Value::span).collect();
    part.signature = block.get_any(&["signature", "data"]).map(|value| value.span());
    part
}

fn compaction_key(keyer: &mut Keyer, content_text: &str) -> Option<PartKey> {
    // By its text, not by its signature: the signature differs each time.
    keyer.text_of_kind(PartKind::Opaque, Role::Assistant, content_text)
}

/// Whether `system` begins with Claude Code's attribution line.
fn is_billing_line(system: Value<'_>) -> bool {
    let begins =
        |value: Value<'_>| value.text().map(|text| text.starts_with("x-anthropic-billing-header"));
    let first_block =
        system.items().next().and_then(|block| block.opened(|block| begins(block.get("text")?)));
    first_block.or_else(|| begins(system)).unwrap_or(false)
}

fn held(thread: Value<'_>) -> Option<HeldHistory> {
    // A thread that the server holds (`docs/protocols.md` 1.3): the body brings only what is new.
    if thread.get_text("type")? != "continue" {
        return None;
    }
    let id = thread.get_text("previous_message_id")?;
    Some(HeldHistory::After(id.into()))
}

fn purpose(request: &RequestMembers<'_>, limit: Option<u64>) -> Purpose {
    let has_tools = request.tools.is_some_and(|tools| tools.items().next().is_some());
    let mut messages = request.messages.into_iter().flat_map(|messages| messages.items());
    let first_message = messages.next();
    let second = messages.next();
    let last_message = messages.last().or(second);
    let compacts = request.compaction.is_some_and(|compaction| !compaction.is_null());
    if compacts || last_message.is_some_and(|last| last.opened(asks_for_a_summary)) {
        Purpose::Compaction
    } else if limit.is_some_and(|limit| limit <= 1) {
        // A single token is the least that can be asked for: clients do it to fill the cache.
        Purpose::WarmUp
    } else if request.format().is_some()
        && !has_tools
        && first_message.is_some()
        && second.is_none()
    {
        Purpose::Side // one question, one object: a title call (`docs/protocols.md` 10.11)
    } else {
        Purpose::Turn
    }
}

fn asks_for_a_summary(message: Value<'_>) -> bool {
    const NEAR: usize = 2048;
    const PHRASE: &[u8] = b"create a detailed summary of the conversation";
    let [role, content] = message.members(["role", "content"]);
    // Claude Code keeps tools, prompt and history, and asks in the last message only
    // (`docs/protocols.md` 10.12).
    let is_user = role.and_then(|role| role.text()).is_some_and(|role| role == "user");
    let Some(content) = content else { return false };
    let text = content.items().last().map_or(Some(content), |block| block.get("text"));
    is_user
        && text.is_some_and(|text| {
            let raw = text.raw();
            memchr::memmem::find(&raw[..raw.len().min(NEAR)], PHRASE).is_some()
        })
}

/// Fuzz target: no bytes make the reader panic, and every range is within the body.
#[cfg(any(test, fuzzing))]
pub fn fuzz(bytes: &[u8]) {
    let conversation = super::read(Dialect::Anthropic, "", bytes);
    for part in conversation.all_parts() {
        assert!(part.span.end <= bytes.len());
        assert!(part.texts.iter().all(|text| text.end <= bytes.len()));
    }
}

#[cfg(test)]
mod tests;
