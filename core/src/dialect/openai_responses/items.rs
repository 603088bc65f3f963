//! Items of the Responses dialect: one reader for those from clients and those from models.
//!
//! What clients drop or replace when they send an item back (ids, status, phase, metadata, null members) is
//! not part of its key (`docs/protocols.md` 3.2, 10.10). Items that ran at the provider are opaque: they are
//! not calls that need a result, and have no key, because clients shorten or drop them.

use crate::dialect::key::{Keyer, ToolArguments};
use crate::dialect::{
    Audience, Chain, Media, Part, PartKey, PartKind, PictureDetail, Role, ServerStep,
};
use crate::wire::json::{Kind, Value};
use crate::wire::member::first;

/// An item that was read.
pub(super) struct ResponseItem {
    pub(super) role: Role,
    pub(super) parts: Vec<Part>,
    /// A tool ran at the provider, inside the same response.
    pub(super) hosted: bool,
    /// The kind of item is unknown.
    pub(super) unknown: bool,
    /// Part of it is a refusal.
    pub(super) refused: bool,
}

/// One item of `input` or `output`, as parts; unknown items are opaque.
pub(super) fn read(item: Value<'_>, keyer: &mut Keyer) -> ResponseItem {
    let mut read = read_kind(item, keyer);
    // What a program called is data of the program, also if the provider ran it.
    let audience = Audience::by_caller(item);
    for part in &mut read.parts {
        part.audience = audience;
    }
    read
}

fn read_kind(item: Value<'_>, keyer: &mut Keyer) -> ResponseItem {
    let kind = item.get_text("type");
    let kind = kind.as_deref().unwrap_or("message");
    let part = match kind {
        "message" => return message(item, keyer),
        "reasoning" => reasoning(item),
        "item_reference" if refers_to_reasoning(item) => {
            Part::at(PartKind::Reasoning, Role::Assistant, item)
        }
        "function_call" | "custom_tool_call" => call(item, None, keyer),
        "shell_call" | "local_shell_call" | "apply_patch_call" | "computer_call" => {
            call(item, kind.strip_suffix("_call"), keyer)
        }
        "tool_search_call" if !ran_at_provider(item) => call(item, Some("tool_search"), keyer),
        "tool_search_output" if ran_at_provider(item) => {
            Part { loads: names_in(item), ..hosted(item, &["tools"]) }
        }
        "program" => program(item, ServerStep::Begins, "code", keyer),
        "program_output" => program(item, ServerStep::Ends, "result", keyer),
        _ if kind.ends_with("_output") && item.get_any(&["call_id"]).is_some() => {
            return result(item, keyer);
        }
        "local_shell_call_output" => return result(item, keyer),
        "compaction" | "compaction_summary" => compaction(item, keyer),
        "image_generation_call" => picture_made(item),
        _ => {
            let texts = HOSTED.iter().find(|(name, _)| *name == kind).map(|(_, texts)| *texts);
            let mut part = hosted(item, texts.unwrap_or_default());
            if texts.is_none() {
                // What is unknown counts as a whole, and has a key, so that a changed one is noticed.
                part.texts = vec![item.span()];
                part.key = lasting(item, keyer);
            }
            let unknown = texts.is_none();
            return ResponseItem {
                role: part.role,
                parts: vec![part],
                hosted: !unknown,
                unknown,
                refused: false,
            };
        }
    };
    let hosted = kind == "image_generation_call"
        || kind.starts_with("tool_search_") && part.kind == PartKind::Opaque;
    ResponseItem { role: part.role, parts: vec![part], hosted, unknown: false, refused: false }
}

/// Whether an item refers to reasoning stored by the provider; the rest of the history is in the request.
pub(super) fn refers_to_reasoning(item: Value<'_>) -> bool {
    item.get_text("id").is_some_and(|id| id.starts_with("rs_"))
}

/// Items that the provider runs or writes itself, with their members that the model reads.
const HOSTED: &[(&str, &[&str])] = &[
    ("web_search_call", &["action", "arguments"]),
    ("x_search_call", &["input", "arguments"]),
    ("file_search_call", &["queries", "results"]),
    ("code_interpreter_call", &["code", "outputs"]),
    ("mcp_call", &["name", "arguments", "output", "error"]),
    ("mcp_list_tools", &["tools"]),
    ("mcp_approval_request", &["name", "arguments"]),
    ("mcp_approval_response", &["approve", "reason"]),
    ("tool_search_call", &["arguments"]),
    ("configuration_update", &["tools", "instructions"]),
];

fn message(item: Value<'_>, keyer: &mut Keyer) -> ResponseItem {
    let [role, content] = item.members(["role", "content"]);
    let role = match role.and_then(|role| role.text()).as_deref() {
        Some("assistant") => Role::Assistant,
        // Both are instructions: the newer models only call them differently.
        Some("system" | "developer") => Role::System,
        _ => Role::User,
    };
    let mut read =
        ResponseItem { role, parts: Vec::new(), hosted: false, unknown: false, refused: false };
    match content {
        Some(content) if content.kind() == Kind::String => {
            read.parts.push(Part::text(role, content, keyer));
        }
        Some(content) if content.kind() == Kind::Array => {
            for block in content.items() {
                let (part, refused) = content_part(role, block, keyer);
                read.unknown |= part.kind == PartKind::Opaque;
                read.refused |= refused;
                read.parts.push(part);
            }
        }
        Some(content) if content.is_null() => {}
        _ => {
            read.unknown = true;
            read.parts.push(Part::opaque(role, item, keyer));
        }
    }
    read
}

/// A block of a message's content or of a tool's output; also whether it is a refusal.
fn content_part(role: Role, block: Value<'_>, keyer: &mut Keyer) -> (Part, bool) {
    if block.kind() == Kind::String {
        return (Part::text(role, block, keyer), false);
    }
    let [kind, text, refusal] = block.members(["type", "text", "refusal"]);
    let kind = kind.and_then(|kind| kind.text());
    let part = match kind.as_deref() {
        Some("input_image" | "computer_screenshot" | "image") => {
            media(PartKind::Image, role, block, keyer)
        }
        Some("input_file") => media(PartKind::Document, role, block, keyer),
        Some("input_audio") => {
            media(PartKind::Document, role, block.get("input_audio").unwrap_or(block), keyer)
        }
        _ => match first([text, refusal]) {
            Some(text) => Part { span: block.span(), ..Part::text(role, text, keyer) },
            None => Part::opaque(role, block, keyer),
        },
    };
    (part, kind.as_deref() == Some("refusal"))
}

fn media(kind: PartKind, role: Role, block: Value<'_>, keyer: &mut Keyer) -> Part {
    let mut part = Part::at(kind, role, block);
    let names = ["image_url", "file_data", "data", "file_url", "file_id"];
    let Some(source) = block.get_any(&names) else {
        part.key = keyer.value(kind, role, block);
        return part;
    };
    let detail = PictureDetail::from_member(block.get("detail").or_else(|| source.get("detail")));
    // The form of Chat Completions, which some clients keep: `{"image_url": {"url": …}}`.
    let source = source.get("url").unwrap_or(source);
    let address = source.text().unwrap_or_default();
    let has_data = match address.split_once(':') {
        Some((scheme, _)) => scheme == "data",
        None => block.get_any(&["file_data", "data"]).is_some(),
    };
    let typed = address.strip_prefix("data:").and_then(|rest| rest.split([';', ',']).next());
    let mime = typed.filter(|mime| !mime.is_empty()).map(Into::into);
    let data = if has_data { Some(source.span()) } else { None };
    part.media = Some(Media { data, mime, detail });
    part.name = block.get_text("filename").map(Into::into);
    part.key = keyer.media(kind, role, &address);
    part
}

fn reasoning(item: Value<'_>) -> Part {
    let mut part = Part::at(PartKind::Reasoning, Role::Assistant, item);
    // A summary counts only where the provider does not show the content.
    for name in ["content", "summary"] {
        if part.texts.is_empty() {
            let blocks = item.get(name);
            let blocks = blocks.iter().flat_map(Value::items);
            part.texts = blocks.filter_map(|block| Some(block.get("text")?.span())).collect();
        }
    }
    part.signature = item.get_any(&["encrypted_content"]).map(|encrypted| encrypted.span());
    part
}

/// A call that the client answers. `name`: the tool's name, if the item does not have it.
fn call(item: Value<'_>, name: Option<&str>, keyer: &mut Keyer) -> Part {
    let mut part = Part::at(PartKind::ToolCall, Role::Assistant, item);
    part.id = item.get_any(&["call_id", "id"]).and_then(|id| id.text()).map(Into::into);
    part.name = item.get_text("name").map(Into::into).or(name.map(Into::into));
    let input = item.get_any(&["arguments", "input", "action", "actions", "operation"]);
    part.texts = input.iter().map(Value::span).collect();
    let text = input.and_then(|input| input.text());
    let arguments = match (input, &text) {
        (_, Some(text)) => ToolArguments::Text(text),
        (Some(value), None) => ToolArguments::Value(value),
        (None, None) => ToolArguments::Text(""),
    };
    let name = part.name.as_deref().unwrap_or_default();
    part.key = keyer.tool_call(part.id.as_deref().map(own_id), name, arguments);
    part
}

pub(super) fn own_id(id: &str) -> &str {
    // If a provider uses `call_0` in every turn, clients put the response's id in front of it when
    // they send it back.
    match id.rsplit_once(':') {
        Some((response, own)) if response.starts_with("resp_") => own,
        _ => id,
    }
}

fn result(item: Value<'_>, keyer: &mut Keyer) -> ResponseItem {
    // Images and files in a result become parts of their own, because they are counted and cut by
    // themselves.
    let role = Role::Tool;
    let mut part = Part::at(PartKind::ToolResult, role, item);
    part.id = item.get_any(&["call_id", "id"]).and_then(|id| id.text()).map(Into::into);
    part.is_error = item.get_text("status").is_some_and(|status| status == "failed");
    let output = item.get_any(&["output"]);
    let is_plain = item.get_text("type").is_some_and(|kind| PLAIN.contains(&&*kind));
    if let Some(output) = output
        && is_plain
        && matches!(output.kind(), Kind::String | Kind::Array)
    {
        part.content = Some(output.span());
    }
    let mut texts = Vec::new();
    let mut parts = Vec::new();
    if let Some(output) = item.get_any(&["output", "tools", "result"]) {
        let single = if output.kind() == Kind::Array { None } else { Some(output) };
        for piece in single.into_iter().chain(output.items()) {
            answer(piece, &mut texts, &mut parts, keyer);
        }
    }
    part.texts = texts.iter().map(Value::span).collect();
    part.loads = names_in(item);
    part.key = keyer.tool_result(part.id.as_deref().map(own_id).unwrap_or_default(), texts);
    parts.insert(0, part);
    ResponseItem { role, parts, hosted: false, unknown: false, refused: false }
}

/// Results with free-form output: those of the provider's own tools have a fixed form.
const PLAIN: &[&str] = &["function_call_output", "custom_tool_call_output"];

fn answer<'d>(
    piece: Value<'d>,
    texts: &mut Vec<Value<'d>>,
    parts: &mut Vec<Part>,
    keyer: &mut Keyer,
) {
    let printed = [piece.get("stdout"), piece.get("stderr")];
    if piece.kind() != Kind::Object {
        texts.push(piece);
    } else if let Some(text) = piece.get_any(&["text", "refusal"]) {
        texts.push(text);
    } else if printed.iter().any(Option::is_some) {
        texts.extend(printed.into_iter().flatten());
    } else {
        match content_part(Role::Tool, piece, keyer).0 {
            part if part.kind == PartKind::Opaque => texts.push(piece),
            part => parts.push(part),
        }
    }
}

pub(super) fn is_compaction(part: &Part) -> bool {
    part.kind == PartKind::Opaque && part.name.as_deref() == Some(COMPACTION)
}

/// The name of a part that is a compaction by the provider.
const COMPACTION: &str = "compaction";

fn compaction(item: Value<'_>, keyer: &mut Keyer) -> Part {
    // Only the provider can read it.
    let mut part = Part::at(PartKind::Opaque, Role::Assistant, item);
    let encrypted = item.get_any(&["encrypted_content"]);
    part.name = Some(COMPACTION.into());
    part.signature = encrypted.map(|encrypted| encrypted.span());
    part.key = match encrypted {
        Some(encrypted) => keyer.value(PartKind::Opaque, Role::Assistant, encrypted),
        None => lasting(item, keyer),
    };
    part
}

fn picture_made(item: Value<'_>) -> Part {
    let mut part = Part::at(PartKind::Image, Role::Assistant, item);
    part.name = Some("image_generation".into());
    let data = item.get_any(&["result"]).map(|data| data.span());
    part.media = Some(Media { data, mime: None, detail: None });
    part
}

fn hosted(item: Value<'_>, texts: &[&str]) -> Part {
    let mut part = Part::at(PartKind::Opaque, Role::Assistant, item);
    part.name = item.get_text("type").map(Into::into);
    part.id = item.get_text("id").map(Into::into);
    part.texts = texts.iter().filter_map(|name| item.get_any(&[name])).map(|v| v.span()).collect();
    part.is_error = item.get_any(&["error"]).is_some();
    part
}

fn program(item: Value<'_>, step: ServerStep, text: &str, keyer: &mut Keyer) -> Part {
    // Clients send both back as they are (`docs/protocols.md` 12.1).
    let mut part = hosted(item, &[text]);
    part.id = item.get_any(&["call_id", "id"]).and_then(|id| id.text()).map(Into::into);
    part.server_step = Some(step);
    part.key = lasting(item, keyer);
    part
}

fn names_in(item: Value<'_>) -> Vec<Box<str>> {
    // Also those in namespaces.
    let tools: Vec<_> = item.get("tools").iter().flat_map(Value::items).collect();
    let inner: Vec<_> = tools.iter().filter_map(|tool| tool.get("tools")).collect();
    let functions = tools.iter().copied().chain(inner.iter().flat_map(Value::items));
    functions.filter_map(|tool| tool_name(tool)?.text().map(Into::into)).collect()
}

pub(super) fn tool_name(tool: Value<'_>) -> Option<Value<'_>> {
    tool.get_any(&["name", "server_label", "type"])
}

fn ran_at_provider(item: Value<'_>) -> bool {
    // A search by the client says `client`.
    item.get_text("execution").is_none_or(|execution| execution != "client")
}

fn is_passing(name: &str) -> bool {
    matches!(name, "id" | "status" | "phase" | "metadata" | "created_by" | "container_id")
        || name.starts_with("internal_")
}

fn lasting(item: Value<'_>, keyer: &mut Keyer) -> Option<PartKey> {
    // Ids, states and notes change when an item is sent back.
    let mut members: Vec<_> = item.entries().map(|(key, value)| (key.text(), value)).collect();
    members.retain(|(name, value)| !is_passing(name) && !value.is_null());
    members.sort_by(|a, b| a.0.cmp(&b.0));
    let mut chain = Chain::START;
    for (name, value) in members {
        let name = keyer.text(Role::Assistant, &name);
        let value = keyer.value(PartKind::Opaque, Role::Assistant, value);
        for key in name.into_iter().chain(value) {
            chain = chain.then(key);
        }
    }
    Some(PartKey(chain.0))
}
