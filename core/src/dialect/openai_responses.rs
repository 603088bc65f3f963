//! OpenAI Responses (`docs/protocols.md` 3): reads requests, with ranges into the body.
//!
//! The set of items is open: an unknown item becomes an opaque part and is kept. Requests and replies share
//! one reader (`openai_responses/items.rs`), so that an item has the same key in both, with ids or without.
//! Streams are read in `reply.rs`, connections in `reading/socket.rs`.

mod items;
mod output_item;
mod reply;
mod usage;

pub use reply::ReplyStream;
pub use usage::USAGE;

use super::key::Keyer;
use super::note::note_once;
use super::{
    BodyElements, Conversation, Dialect, HeldHistory, Message, Note, Part, Purpose, Role, Span,
    identity,
};
use crate::wire::json::{Document, Kind, Value, members};
use crate::wire::member::first;

/// Reads the body of a request, or a `response.create` frame, which has the same members.
pub(super) fn read(root: Value<'_>, body: &[u8], elements: &mut BodyElements) -> Conversation {
    let mut conversation = Conversation::empty(Dialect::OpenaiResponses);
    let request = RequestMembers::from_value(root);
    conversation.model = request.model.and_then(|model| model.text()).map(Into::into);
    conversation.stream = request.stream.and_then(|stream| stream.as_bool()).unwrap_or(false);
    conversation.max_output = request.max_output_tokens.and_then(|limit| limit.as_u64());
    conversation.stored = request.store.and_then(|store| store.as_bool());
    conversation.held = held(&request);
    conversation.session = identity::session_in_body(&root);
    conversation.backend = super::backend::choice_in(body, root);
    let reasoning = request.reasoning.map(|reasoning| reasoning.members(["context", "effort"]));
    let [context, effort] = reasoning.unwrap_or_default().map(|member| member?.text());
    conversation.reasoning_context = context.map(Into::into);
    // Without an effort the model decides, and it is not known here.
    conversation.thinks = effort.filter(|effort| effort != "none").map(|_| true);

    let mut reader = Reader { keyer: Keyer::default(), conversation, body, elements, begun: false };
    reader.head(&request);
    match request.input {
        Some(input) if input.kind() == Kind::String => reader.prompt(input),
        Some(input) if input.kind() == Kind::Array => {
            for item in input.items() {
                reader.item(item);
            }
        }
        // A request that only continues a stored response needs no input.
        None if reader.conversation.held.is_some() => {}
        _ => note_once(&mut reader.conversation.notes, Note::UnknownStructure),
    }
    if let Some(purpose) = purpose(&request, &reader.conversation, body) {
        reader.conversation.purpose = purpose;
    }
    reader.conversation
}

members! {
    /// The members of a request that are read.
    RequestMembers {
        model,
        stream,
        max_output_tokens,
        store,
        previous_response_id,
        conversation,
        reasoning,
        instructions,
        prompt,
        tools,
        text,
        input,
        generate,
        client_metadata,
    }
}

struct Reader<'r> {
    keyer: Keyer,
    conversation: Conversation,
    body: &'r [u8],
    elements: &'r mut BodyElements,
    /// Something other than instructions was read: what follows is history.
    begun: bool,
}

impl Reader<'_> {
    fn head(&mut self, request: &RequestMembers<'_>) {
        if let Some(instructions) = first([request.instructions]) {
            let part = match instructions.kind() {
                Kind::String => Part::text(Role::System, instructions, &mut self.keyer),
                _ => Part::opaque(Role::System, instructions, &mut self.keyer),
            };
            self.conversation.system.push(part);
        }
        if let Some(template) = first([request.prompt]) {
            self.conversation.system.push(Part::opaque(Role::System, template, &mut self.keyer));
        }
        self.tools(request.tools, false);
        let format = request
            .text
            .and_then(|text| text.get("format"))
            .filter(|format| format.get_text("type").is_some_and(|kind| kind != "text"));
        if let Some(format) = format {
            let name = format.get_text("name").map(Into::into);
            self.conversation.tools.push(Part::schema(format, name, &mut self.keyer));
        }
    }

    fn tools(&mut self, tools: Option<Value<'_>>, in_history: bool) {
        // Reads definitions from the request's `tools`, or from an `additional_tools` item.
        for tool in tools.iter().flat_map(Value::items) {
            if let Some(known) = self.elements.reading(tool, self.body) {
                self.conversation.tools.extend(known.parts);
                continue;
            }
            let start = self.conversation.tools.len();
            self.tool(tool, in_history);
            let parts = &mut self.conversation.tools[start..];
            self.elements.keep(tool, self.body, Role::System, parts);
        }
    }

    fn tool(&mut self, tool: Value<'_>, in_history: bool) {
        // Of a deferred function or server, and of a namespace with deferred functions, the model
        // reads the name and the description; the rest is a part that nobody reads until it is
        // loaded (`docs/protocols.md` 12.2).
        let part = Part::tool(tool, name_of(tool), &mut self.keyer);
        let functions = match tool.get("parameters") {
            Some(_) => None,
            None => tool.get("tools"),
        };
        let functions = functions.iter().flat_map(Value::items);
        let (mut deferred, loaded): (Vec<_>, Vec<_>) =
            functions.partition(|function| is_deferred(*function));
        if is_deferred(tool) {
            deferred.push(tool);
        }
        let texts = match deferred.is_empty() {
            true => part.texts,
            false => {
                let description = tool.get_any(&["description", "server_description"]);
                let visible = items::tool_name(tool).into_iter().chain(description).chain(loaded);
                visible.map(|value| value.span()).collect()
            }
        };
        self.conversation.tools.push(Part { in_history, texts, ..part });
        for hidden in deferred {
            let part = Part::deferred_tool(hidden, name_of(hidden), &mut self.keyer);
            // Its bytes are in the key of the tool.
            self.conversation.tools.push(Part { in_history, key: None, ..part });
        }
    }

    fn prompt(&mut self, input: Value<'_>) {
        let parts = vec![Part::text(Role::User, input, &mut self.keyer)];
        self.conversation.messages.push(Message::new(Role::User, input.span(), parts));
    }

    fn item(&mut self, item: Value<'_>) {
        match self.elements.reading(item, self.body) {
            Some(known) => self.add(known.role, item.span(), known.parts),
            None => item.opened(|item| self.read_item(item)),
        }
    }

    fn read_item(&mut self, item: Value<'_>) {
        match item.get_text("type").as_deref() {
            Some("additional_tools") => return self.tools(item.get("tools"), true),
            Some("compaction_trigger") => {
                self.conversation.purpose = Purpose::Compaction;
                return;
            }
            Some("item_reference") if !items::refers_to_reasoning(item) => {
                // The item is stored by the provider, so the visible history is not all of it.
                let id = item.get_text("id").unwrap_or_default();
                self.conversation.held.get_or_insert_with(|| HeldHistory::After(id.into()));
                self.begun = true;
                return;
            }
            _ => {}
        }
        let mut read = items::read(item, &mut self.keyer);
        if read.unknown {
            note_once(&mut self.conversation.notes, Note::UnknownPart);
        } else {
            self.elements.keep(item, self.body, read.role, &mut read.parts);
        }
        self.add(read.role, item.span(), read.parts);
    }

    fn add(&mut self, role: Role, span: Span, mut parts: Vec<Part>) {
        if role == Role::System && !self.begun {
            for part in &mut parts {
                part.in_history = true;
            }
            self.conversation.system.append(&mut parts);
            return;
        }
        self.begun = true;
        self.conversation.messages.push(Message::new(role, span, parts));
    }
}

fn name_of(tool: Value<'_>) -> Option<Box<str>> {
    items::tool_name(tool).and_then(|name| name.text()).map(Into::into)
}

fn is_deferred(tool: Value<'_>) -> bool {
    tool.get("defer_loading").and_then(|deferred| deferred.as_bool()) == Some(true)
}

fn held(request: &RequestMembers<'_>) -> Option<HeldHistory> {
    // As `docs/protocols.md` 3.2 has it.
    if let Some(id) = request.previous_response_id.and_then(|id| id.text()) {
        return Some(HeldHistory::After(id.into()));
    }
    let conversation = first([request.conversation])?;
    let id = conversation.text().or_else(|| conversation.get_text("id"))?;
    Some(HeldHistory::Named(id.into()))
}

fn purpose(
    request: &RequestMembers<'_>,
    conversation: &Conversation,
    body: &[u8],
) -> Option<Purpose> {
    if request.generate.and_then(|generate| generate.as_bool()) == Some(false) {
        return Some(Purpose::WarmUp);
    }
    let codex = request.client_metadata.and_then(|of| of.get("x-codex-turn-metadata"));
    if codex.is_some_and(is_compaction_request) {
        return Some(Purpose::Compaction);
    }
    if !conversation.tools.is_empty() {
        return None;
    }
    if starts_with(conversation.parts().next_back(), CODEX_CHECKPOINT, body) {
        return Some(Purpose::Compaction);
    }
    if starts_with(conversation.system.first(), OPENCODE_TITLE, body) {
        return Some(Purpose::Side);
    }
    None
}

fn starts_with(part: Option<&Part>, start: &str, body: &[u8]) -> bool {
    let Some(text) = part.and_then(|part| part.texts.first()) else { return false };
    // Past the quote of the literal.
    text.slice(body).get(1..).is_some_and(|text| text.starts_with(start.as_bytes()))
}

/// How Codex asks a provider other than OpenAI to compact (`docs/protocols.md` 10.12).
const CODEX_CHECKPOINT: &str = "You are performing a CONTEXT CHECKPOINT COMPACTION";

/// How opencode asks for a session's title.
const OPENCODE_TITLE: &str = "You are a title generator";

fn is_compaction_request(metadata: Value<'_>) -> bool {
    // A JSON text in a string.
    let text = metadata.text().unwrap_or_default();
    let document = Document::read(text.as_bytes()).unwrap_or_default();
    let kind = document.root(text.as_bytes()).and_then(|root| root.get_text("request_kind"));
    kind.is_some_and(|kind| kind == "compaction")
}

/// Fuzz target: no bytes make the readers panic, and every range is within the body.
#[cfg(any(test, fuzzing))]
pub fn fuzz(bytes: &[u8]) {
    let conversation = super::read(Dialect::OpenaiResponses, "", bytes);
    for part in conversation.all_parts() {
        assert!(part.span.end <= bytes.len());
        assert!(part.texts.iter().chain(&part.signature).all(|text| text.end <= bytes.len()));
    }
    let mut socket = super::reading::SocketReader::new(1 << 20);
    for line in bytes.split(|byte| *byte == b'\n') {
        let _ = (socket.request(line, |_| ()), socket.event(line));
    }
}

#[cfg(test)]
mod tests;
