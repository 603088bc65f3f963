//! Gemini `generateContent` and Interactions (`docs/protocols.md` 5): reads requests, with ranges into the body.
//!
//! Handles both key styles, Vertex, and the wrappers of Code Assist and countTokens. Call ids do not identify
//! parts here, because clients make and change them; nor do signatures, because clients re-encode them.
//! Replies are read in `gemini/reply.rs`.

mod arguments;
mod interactions;
mod reply;
mod usage;

use std::borrow::Cow;

pub use reply::ReplyStream;
pub use usage::USAGE;

use super::key::{Keyer, ToolArguments};
use super::note::note_once;
use super::{
    BodyElements, Conversation, Dialect, HeldHistory, Media, Message, Note, Part, PartIndex,
    PartKey, PartKind, PictureDetail, Purpose, Role,
};
use crate::wire::json::{Kind, Value, members};
use crate::wire::member::first;

/// Reads the body of a request. Bodies of Code Assist and countTokens name the model, which is else in the path.
pub(super) fn read(outer: Value<'_>, body: &[u8], elements: &mut BodyElements) -> Conversation {
    let mut conversation = Conversation::empty(Dialect::Gemini);
    if interactions::is_request(outer) {
        return interactions::read(outer, conversation);
    }
    let counted = outer.get_any(&["generateContentRequest", "generate_content_request"]);
    if counted.is_some() {
        conversation.purpose = Purpose::Count;
    }
    // Code Assist wraps the request, and names the model outside it.
    let assist = outer.get_any(&["request"]).filter(|inner| inner.kind() == Kind::Object);
    let root = counted.or(assist).unwrap_or(outer);
    let model = outer.get_text("model").or_else(|| root.get_text("model"));
    // The name may be a path: `models/…`, `projects/…/models/…`.
    conversation.model = model.map(|model| model.rsplit('/').next().unwrap_or_default().into());
    conversation.session = super::identity::session_in_body(&outer);
    let cached = root.get_any(&["cachedContent", "cached_content"]).and_then(|name| name.text());
    conversation.held = cached.map(|name| HeldHistory::Named(name.into()));

    let run = ModelTextRun::default();
    let mut reader = Reader { keyer: Keyer::default(), conversation, body, elements, run };
    reader.head(root);
    reader.contents(root);
    let mut conversation = reader.conversation;
    // All media have it that have none of their own.
    if let Some(resolution) = generation_config(root).and_then(resolution) {
        let messages = conversation.messages.iter_mut().flat_map(|message| &mut message.parts);
        let media = conversation.system.iter_mut().chain(messages);
        for media in media.filter_map(|part| part.media.as_mut()) {
            media.detail.get_or_insert(resolution);
        }
    }
    conversation
}

struct Reader<'r> {
    keyer: Keyer,
    conversation: Conversation,
    body: &'r [u8],
    elements: &'r mut BodyElements,
    run: ModelTextRun,
}

/// Adjacent texts of the model. Some clients send a streamed reply back in its pieces, others as one text:
/// the whole run has one key, at its last piece.
#[derive(Default)]
struct ModelTextRun {
    text: String,
    /// Message and part of its last piece.
    last: Option<PartIndex>,
}

impl Reader<'_> {
    fn head(&mut self, root: Value<'_>) {
        let system = root.get_any(&["systemInstruction", "system_instruction"]);
        if let Some(system) = system {
            let mut parts = Vec::new();
            self.parts(Role::System, system, &mut parts);
            self.conversation.system = parts;
        }
        for tool in root.get("tools").iter().flat_map(listed) {
            let declared = tool.get_any(&["functionDeclarations", "function_declarations"]);
            for declaration in declared.iter().flat_map(listed) {
                if let Some(known) = self.elements.reading(declaration, self.body) {
                    self.conversation.tools.extend(known.parts);
                    continue;
                }
                let name = declaration.get_text("name").map(Into::into);
                let mut part = Part::tool(declaration, name, &mut self.keyer);
                let parts = std::slice::from_mut(&mut part);
                self.elements.keep(declaration, self.body, Role::System, parts);
                self.conversation.tools.push(part);
            }
            // The rest are the provider's own tools, by name: `googleSearch`, `codeExecution`.
            let is_whole = declared.is_none();
            for (name, value) in tool.entries() {
                if !name.is("functionDeclarations") && !name.is("function_declarations") {
                    let value = if is_whole { tool } else { value };
                    let part = Part::tool(value, Some(name.text().into()), &mut self.keyer);
                    self.conversation.tools.push(part);
                    if is_whole {
                        break;
                    }
                }
            }
        }
        let Some(config) = generation_config(root) else { return };
        let limit = config.get_any(&["maxOutputTokens", "max_output_tokens"]);
        self.conversation.max_output = limit.and_then(|limit| limit.as_u64());
        let count = config.get_any(&["candidateCount", "candidate_count"]);
        self.conversation.several = count.and_then(|n| n.as_u64()).is_some_and(|n| n > 1);
        let schema = config.get_any(&[
            "responseSchema",
            "response_schema",
            "responseJsonSchema",
            "response_json_schema",
        ]);
        if let Some(schema) = schema {
            self.conversation.tools.push(Part::schema(schema, None, &mut self.keyer));
        }
    }

    fn contents(&mut self, root: Value<'_>) {
        let Some(contents) = root.get_any(&["contents"]) else {
            return note_once(&mut self.conversation.notes, Note::UnknownStructure);
        };
        let mut contents = listed(&contents).peekable();
        while let Some(content) = contents.next() {
            let role = self.role(content);
            if role != Role::Assistant {
                self.end_run(&mut []);
            }
            // Neither does a run go on in it, nor may it go on behind it.
            let next_role = contents.peek().map(|next| self.role(*next));
            let is_alone = self.run.last.is_none()
                && (role != Role::Assistant || next_role != Some(Role::Assistant));
            let parts = self.content(role, content, is_alone);
            self.conversation.messages.push(Message::new(role, content.span(), parts));
        }
        self.end_run(&mut []);
    }

    fn role(&mut self, content: Value<'_>) -> Role {
        let role = if content.is_closed() { self.elements.role(content) } else { None };
        role.unwrap_or_else(|| content.opened(role_of))
    }

    /// `is_alone`: what was read of it does not depend on what stands around it.
    fn content(&mut self, role: Role, content: Value<'_>, is_alone: bool) -> Vec<Part> {
        if is_alone && let Some(known) = self.elements.reading(content, self.body) {
            return known.parts;
        }
        let notes = self.conversation.begin_element();
        let mut parts = Vec::new();
        content.opened(|content| self.parts(role, content, &mut parts));
        let took_no_note = self.conversation.end_element(notes);
        if is_alone {
            self.end_run(&mut parts);
            if took_no_note {
                self.elements.keep(content, self.body, role, &mut parts);
            }
        }
        parts
    }

    fn parts(&mut self, role: Role, content: Value<'_>, parts: &mut Vec<Part>) {
        // Google's own parser accepts a bare string, and a single part instead of a list.
        if content.kind() == Kind::String {
            return parts.push(Part::text(role, content, &mut self.keyer));
        }
        match content.get_any(&["parts"]) {
            Some(inner) => listed(&inner).for_each(|part| self.part(role, part, parts)),
            None => note_once(&mut self.conversation.notes, Note::UnknownStructure),
        }
    }

    fn part(&mut self, role: Role, value: Value<'_>, parts: &mut Vec<Part>) {
        let mut part = Part::at(PartKind::Opaque, role, value);
        part.signature = signature(value).map(|signature| signature.span());
        match data(value) {
            PartData::Text(text) => {
                part.kind = PartKind::Text;
                part.texts = vec![text.span()];
                self.text(role, &text.text().unwrap_or_default(), &mut part, parts);
            }
            PartData::Thought(text) => {
                part.kind = PartKind::Reasoning;
                part.texts =
                    text.filter(|text| text.span().len() > 2).iter().map(Value::span).collect();
            }
            PartData::Call(call) => {
                part.kind = PartKind::ToolCall;
                part.id = known(call, "id");
                part.name = known(call, "name");
                let arguments = call.get_any(&["args"]);
                part.texts = arguments.iter().map(Value::span).collect();
                let given = arguments.map_or(ToolArguments::Text(""), ToolArguments::Value);
                let name = part.name.as_deref().unwrap_or_default();
                // Without the id, which clients leave out or number anew.
                part.key = self.keyer.tool_call(None, name, given);
            }
            PartData::Response(response) => return self.response(part, response, parts),
            PartData::Inline(inline) => {
                let MediaPart { kind, media, key } = inline_media(&mut self.keyer, role, inline);
                part.kind = kind;
                part.media = Some(media);
                part.key = key;
            }
            PartData::File(file) => {
                let MediaPart { kind, media, key } = file_media(&mut self.keyer, role, file);
                part.kind = kind;
                part.media = Some(media);
                part.key = key;
            }
            PartData::Hosted(hosted) => {
                part.texts = hosted_text(hosted).iter().map(Value::span).collect();
                part.key = hosted_key(&mut self.keyer, hosted);
            }
            PartData::Unknown => {
                note_once(&mut self.conversation.notes, Note::UnknownPart);
                part = Part::opaque(role, value, &mut self.keyer);
            }
        }
        if let Some(media) = &mut part.media {
            media.detail = resolution(value);
        }
        // Whatever is in the chain ends a run of text.
        if part.key.is_some() && part.kind != PartKind::Text {
            self.end_run(parts);
        }
        parts.push(part);
    }

    fn text(&mut self, role: Role, text: &str, part: &mut Part, parts: &[Part]) {
        if role != Role::Assistant {
            part.key = self.keyer.text(role, text);
            return;
        }
        // Clients merge and split the texts of the model: the run as a whole has one key.
        self.run.text.push_str(text);
        self.run.last = Some(PartIndex::new(self.conversation.messages.len(), parts.len()));
    }

    fn end_run(&mut self, parts: &mut [Part]) {
        let run = std::mem::take(&mut self.run);
        let Some(PartIndex { message, part: index }) = run.last else { return };
        let part = match self.conversation.messages.get_mut(message) {
            Some(message) => message.parts.get_mut(index),
            // The last piece may be in the message that is not finished yet, whose parts these are.
            None => parts.get_mut(index),
        };
        if let Some(part) = part {
            part.key = self.keyer.text(Role::Assistant, &run.text);
        }
    }

    fn response(&mut self, mut part: Part, response: Value<'_>, parts: &mut Vec<Part>) {
        part.kind = PartKind::ToolResult;
        part.id = known(response, "id");
        part.name = known(response, "name");
        if let Some(answer) = response.get_any(&["response"]) {
            part.content = if answer.kind() == Kind::Object { Some(answer.span()) } else { None };
            part.is_error = answer.get_any(&["error"]).is_some();
            let all_strings = answer.entries().all(|(_, value)| value.kind() == Kind::String);
            part.texts = match answer.kind() {
                Kind::Object if all_strings => answer.entries().map(|(_, v)| v.span()).collect(),
                _ => vec![answer.span()],
            };
            let key = self.keyer.value(PartKind::ToolResult, Role::Tool, answer);
            let key = key.map(|key| Cow::Owned(key.to_string()));
            // In any order of members, because clients write the result anew.
            part.key = self.keyer.tool_result(part.name.as_deref().unwrap_or_default(), key);
        }
        let role = part.role;
        self.end_run(parts);
        parts.push(part);
        for inner in response.get_any(&["parts"]).iter().flat_map(listed) {
            self.part(role, inner, parts);
        }
    }
}

/// The content of a part: one of these (`docs/protocols.md` 5.2).
enum PartData<'d> {
    Text(Value<'d>),
    /// A thought, or a signature by itself: both are reasoning.
    Thought(Option<Value<'d>>),
    Call(Value<'d>),
    Response(Value<'d>),
    Inline(Value<'d>),
    File(Value<'d>),
    /// Something that ran at the provider: code and its output, tools and their results.
    Hosted(Value<'d>),
    Unknown,
}

fn data(part: Value<'_>) -> PartData<'_> {
    let inside = PartMembers::from_value(part);
    if let Some(call) = first([inside.call, inside.snake_call]) {
        return PartData::Call(call);
    }
    if let Some(response) = first([inside.response, inside.snake_response]) {
        return PartData::Response(response);
    }
    if let Some(inline) = first([inside.inline, inside.snake_inline]) {
        return PartData::Inline(inline);
    }
    if let Some(file) = first([inside.file, inside.snake_file]) {
        return PartData::File(file);
    }
    if let Some(hosted) = part.get_any(&HOSTED) {
        return PartData::Hosted(hosted);
    }
    let text = inside.text.filter(|text| text.kind() == Kind::String);
    // A signature without text signs a thought that is not shown.
    let is_thought = inside.thought.and_then(|thought| thought.as_bool()) == Some(true);
    let is_signed = signature(part).is_some();
    match text {
        Some(text) if is_thought || (is_signed && text.span().len() == 2) => {
            PartData::Thought(Some(text))
        }
        Some(text) => PartData::Text(text),
        None if is_thought || is_signed => PartData::Thought(None),
        None => PartData::Unknown,
    }
}

members! {
    /// The possible members of a part, in both key styles.
    PartMembers {
        text,
        thought,
        call = "functionCall",
        snake_call = "function_call",
        response = "functionResponse",
        snake_response = "function_response",
        inline = "inlineData",
        snake_inline = "inline_data",
        file = "fileData",
        snake_file = "file_data",
    }
}

const HOSTED: [&str; 8] = [
    "executableCode",
    "executable_code",
    "codeExecutionResult",
    "code_execution_result",
    "toolCall",
    "tool_call",
    "toolResponse",
    "tool_response",
];

fn role_of(content: Value<'_>) -> Role {
    match content.get_text("role").as_deref() {
        Some("model" | "assistant") => Role::Assistant,
        Some("system") => Role::System,
        Some("function" | "tool") => Role::Tool,
        _ => Role::User,
    }
}

fn generation_config(root: Value<'_>) -> Option<Value<'_>> {
    root.get_any(&["generationConfig", "generation_config"])
}

fn resolution(value: Value<'_>) -> Option<PictureDetail> {
    let value = value.get_any(&["mediaResolution", "media_resolution"])?;
    PictureDetail::from_member(value.get("level").or(Some(value)))
}

fn signature(part: Value<'_>) -> Option<Value<'_>> {
    part.get_any(&["thoughtSignature", "thought_signature"])
        .filter(|signature| signature.kind() == Kind::String)
}

fn hosted_text(hosted: Value<'_>) -> Option<Value<'_>> {
    match hosted.get_any(&["code", "output"]) {
        Some(code_text) if code_text.kind() == Kind::String => Some(code_text),
        _ => Some(hosted),
    }
}

fn hosted_key(keyer: &mut Keyer, hosted: Value<'_>) -> Option<PartKey> {
    // From the text, so that an id that a client adds or drops does not matter.
    keyer.value(PartKind::Opaque, Role::Assistant, hosted_text(hosted)?)
}

/// What is read of an image or a document.
struct MediaPart {
    kind: PartKind,
    media: Media,
    key: Option<PartKey>,
}

fn inline_media(keyer: &mut Keyer, role: Role, inline: Value<'_>) -> MediaPart {
    let (kind, mime) = kind_of_media(inline);
    let data = inline.get("data").filter(|data| data.kind() == Kind::String);
    let text = data.and_then(|data| data.text()).unwrap_or_default();
    let media = Media { data: data.map(|data| data.span()), mime, detail: None };
    MediaPart { kind, media, key: keyer.media(kind, role, &text) }
}

fn file_media(keyer: &mut Keyer, role: Role, file: Value<'_>) -> MediaPart {
    let (kind, mime) = kind_of_media(file);
    let address = file.get_any(&["fileUri", "file_uri"]).and_then(|address| address.text());
    let key = keyer.media(kind, role, address.unwrap_or_default());
    MediaPart { kind, media: Media { data: None, mime, detail: None }, key }
}

fn kind_of_media(value: Value<'_>) -> (PartKind, Option<Box<str>>) {
    let mime = value.get_any(&["mimeType", "mime_type"]).and_then(|mime| mime.text());
    let is_image = mime.as_ref().is_some_and(|mime| mime.starts_with("image/"));
    (if is_image { PartKind::Image } else { PartKind::Document }, mime.map(Into::into))
}

fn listed<'d>(value: &Value<'d>) -> impl Iterator<Item = Value<'d>> + use<'d> {
    // As Google's own parser accepts it.
    let single = match value.kind() {
        Kind::Array | Kind::Null => None,
        _ => Some(*value),
    };
    value.items().chain(single)
}

fn known(value: Value<'_>, name: &str) -> Option<Box<str>> {
    value.get_text(name).filter(|text| !text.is_empty()).map(Into::into)
}

/// Fuzz target: no bytes make the reader panic, and every range is within the body.
#[cfg(any(test, fuzzing))]
pub fn fuzz(bytes: &[u8]) {
    let conversation =
        super::read(Dialect::Gemini, "/v1beta/models/m:streamGenerateContent", bytes);
    for part in conversation.all_parts() {
        assert!(part.span.end <= bytes.len());
        assert!(part.texts.iter().all(|text| text.end <= bytes.len()));
    }
}

#[cfg(test)]
mod tests;
