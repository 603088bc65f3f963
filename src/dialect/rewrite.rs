//! The writing side: which bytes change when a result is cut, or reasoning is put back or taken out.
//!
//! Answers edits of the body that a conversation was read from; whatever they do not touch stays byte
//! for byte. Never decides whether; where the bytes do not allow a change, there is no edit.

use bytes::Bytes;

use super::{Conversation, Dialect, Message, Part, PartKind, Span};
use crate::wire::json::{Document, Kind, Value};
use crate::wire::splice::Edit;

/// What a cut leaves of a tool result.
#[derive(Clone, Copy, Debug)]
pub struct Cut<'a> {
    /// The words that stand in its place.
    pub text: &'a str,
    /// Whether pictures and documents in it stay.
    pub keep_media: bool,
}

/// One piece of reasoning to put back.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a> {
    /// The part of its message before which it stood; as many as there are parts: after the last.
    pub before: usize,
    /// As it was received ([`super::ReplyPart::raw`]).
    pub raw: &'a str,
}

/// Edits that replace a tool result's content. `at`: message and part. None where the part has no
/// content that can be replaced.
pub fn cut(
    conversation: &Conversation,
    body: &[u8],
    at: (usize, usize),
    cut: &Cut<'_>,
) -> Vec<Edit> {
    let Some(message) = conversation.messages.get(at.0) else { return Vec::new() };
    let Some(part) = message.parts.get(at.1) else { return Vec::new() };
    let Some(content) = part.content else { return Vec::new() };
    let raw = content.of(body);
    let has_media = message.parts[at.1 + 1..].iter().any(|inner| within(inner.span, part.span));
    match conversation.dialect {
        Dialect::Gemini => response(part, body, content, cut, has_media),
        dialect => {
            let is_list = raw.first() == Some(&b'[');
            let marked = memchr::memmem::find(raw, b"\"cache_control\"").is_some();
            let keeps = cut.keep_media && has_media;
            if is_list && (marked || keeps) {
                let kind = if dialect == Dialect::OpenaiResponses { "input_text" } else { "text" };
                return list(content, raw, cut.text, kind, keeps);
            }
            vec![edit(content, literal(cut.text))]
        }
    }
}

/// A list that keeps its pictures, or its cache marker.
fn list(content: Span, raw: &[u8], text: &str, kind: &str, keeps: bool) -> Vec<Edit> {
    let Ok(document) = Document::read(raw) else { return Vec::new() };
    let Some(root) = document.root(raw) else { return Vec::new() };
    let items: Vec<Value<'_>> = root.items().collect();
    let marker = items.iter().rev().find_map(|item| item.get("cache_control"));
    let is_words = |item: &Value<'_>| {
        item.kind() == Kind::String || item.get("text").is_some_and(|it| it.kind() == Kind::String)
    };
    let block = |marker: Option<Value<'_>>| {
        let marker = marker.map(|marker| String::from_utf8_lossy(marker.raw()).into_owned());
        let marker = marker.map(|raw| format!(",\"cache_control\":{raw}")).unwrap_or_default();
        format!("{{\"type\":\"{kind}\",\"text\":{}{marker}}}", literal(text))
    };
    if !keeps {
        return vec![edit(content, format!("[{}]", block(marker)))];
    }
    // The words first, then what is kept, as it stands; markers of words that go move to ours.
    let kept: Vec<&Value<'_>> = items.iter().filter(|item| !is_words(item)).collect();
    let words = items.iter().rev().filter(|item| is_words(item));
    let marker = words.filter_map(|item| item.get("cache_control")).next();
    let mut out = format!("[{}", block(marker));
    for item in kept {
        out.push(',');
        out.push_str(&String::from_utf8_lossy(item.raw()));
    }
    out.push(']');
    vec![edit(content, out)]
}

/// Gemini: the answer stays an object (`providers.md` §5.2); its pictures stand beside it.
fn response(part: &Part, body: &[u8], content: Span, cut: &Cut<'_>, has_media: bool) -> Vec<Edit> {
    let mut edits = vec![edit(content, format!("{{\"output\":{}}}", literal(cut.text)))];
    if has_media && !cut.keep_media {
        let raw = part.span.of(body);
        let document = Document::read(raw).unwrap_or_default();
        let response = document
            .root(raw)
            .and_then(|root| root.get_any(&["functionResponse", "function_response"]));
        if let Some(parts) = response.and_then(|response| response.get("parts")) {
            edits.push(edit(shifted(parts.span(), part.span.start), "[]".to_owned()));
        }
    }
    edits
}

/// Edits that put blocks back into message `message` (one item of Responses is one message here).
pub fn put_back(
    conversation: &Conversation,
    body: &[u8],
    message: usize,
    blocks: &[Block<'_>],
) -> Vec<Edit> {
    let Some(message) = conversation.messages.get(message) else { return Vec::new() };
    if blocks.is_empty() {
        return Vec::new();
    }
    match conversation.dialect {
        Dialect::Anthropic => into_list(message, body, blocks, "content"),
        Dialect::Gemini => into_list(message, body, blocks, "parts"),
        Dialect::OpenaiResponses => as_items(message, body, blocks),
        Dialect::OpenaiChat => as_members(message, body, blocks),
    }
}

/// Blocks between the blocks of a message.
fn into_list(message: &Message, body: &[u8], blocks: &[Block<'_>], name: &str) -> Vec<Edit> {
    let raw = message.span.of(body);
    let document = Document::read(raw).unwrap_or_default();
    let Some(content) = document.root(raw).and_then(|root| root.get(name)) else {
        return Vec::new();
    };
    let joined =
        |blocks: &[Block<'_>]| blocks.iter().map(|block| block.raw).collect::<Vec<_>>().join(",");
    if content.kind() == Kind::String {
        // A plain string becomes a list: its words keep their place among the blocks.
        let words = String::from_utf8_lossy(content.raw());
        let (before, after): (Vec<Block<'_>>, Vec<Block<'_>>) =
            blocks.iter().partition(|block| block.before == 0);
        let words = format!("{{\"type\":\"text\",\"text\":{words}}}");
        let pieces = [joined(&before), words, joined(&after)];
        let pieces: Vec<String> = pieces.into_iter().filter(|piece| !piece.is_empty()).collect();
        let at = shifted(content.span(), message.span.start);
        return vec![edit(at, format!("[{}]", pieces.join(",")))];
    }
    if content.kind() != Kind::Array {
        return Vec::new();
    }
    let mut edits = Vec::new();
    let mut rest = blocks;
    while let Some(first) = rest.first() {
        let run = rest.iter().take_while(|block| block.before == first.before).count();
        let raws = joined(&rest[..run]);
        let next = message.parts.get(first.before).map(|part| part.span.start);
        let last = message.parts.iter().map(|part| part.span.end).max();
        match (next, last) {
            (Some(at), _) => edits.push(edit(Span::new(at, at), format!("{raws},"))),
            (None, Some(at)) => edits.push(edit(Span::new(at, at), format!(",{raws}"))),
            (None, None) => {
                let at = content.span().start + 1 + message.span.start;
                edits.push(edit(Span::new(at, at), raws));
            }
        }
        rest = &rest[run..];
    }
    edits
}

/// Items before an item, or after it.
fn as_items(message: &Message, body: &[u8], blocks: &[Block<'_>]) -> Vec<Edit> {
    let has_id = {
        let raw = message.span.of(body);
        let document = Document::read(raw).unwrap_or_default();
        document.root(raw).is_some_and(|item| item.get_any(&["id"]).is_some())
    };
    let is_stored = {
        let document = Document::read(body).unwrap_or_default();
        let store = document.root(body).and_then(|root| root.get("store"));
        store.and_then(|store| store.as_bool()) != Some(false)
    };
    let item = |block: &Block<'_>| {
        let document = Document::read(block.raw.as_bytes()).ok()?;
        let root = document.root(block.raw.as_bytes())?;
        let sealed = root.get_any(&["encrypted_content"]).is_some();
        let open = root.get("content").is_some_and(|content| content.items().next().is_some());
        // Without its content it is known at the provider alone, by its id.
        if !sealed && !open && !is_stored {
            return None;
        }
        let named = has_id || !sealed && is_stored;
        Some(if named { block.raw.to_owned() } else { without(block.raw, root, "id") })
    };
    let joined = |at_end: bool| {
        let those = blocks.iter().filter(|block| (block.before > 0) == at_end);
        those.filter_map(item).collect::<Vec<_>>().join(",")
    };
    let (before, after) = (joined(false), joined(true));
    let mut edits = Vec::new();
    if !before.is_empty() {
        let at = Span::new(message.span.start, message.span.start);
        edits.push(edit(at, format!("{before},")));
    }
    if !after.is_empty() {
        let at = Span::new(message.span.end, message.span.end);
        edits.push(edit(at, format!(",{after}")));
    }
    edits
}

/// An object without one member.
fn without(raw: &str, object: Value<'_>, name: &str) -> String {
    let members = object.entries().filter(|(key, _)| !key.is(name));
    let members: Vec<&str> =
        members.filter_map(|(key, value)| raw.get(key.span().start..value.span().end)).collect();
    format!("{{{}}}", members.join(","))
}

/// Members of a message: the one field that was received.
fn as_members(message: &Message, body: &[u8], blocks: &[Block<'_>]) -> Vec<Edit> {
    let raw = message.span.of(body);
    let document = Document::read(raw).unwrap_or_default();
    let Some(root) = document.root(raw).filter(|root| root.kind() == Kind::Object) else {
        return Vec::new();
    };
    let (mut edits, mut members) = (Vec::new(), Vec::new());
    for block in blocks {
        let document = Document::read(block.raw.as_bytes()).unwrap_or_default();
        let Some(received) = document.root(block.raw.as_bytes()) else { continue };
        for (key, value) in received.entries() {
            let there = root.get(&key.text());
            match there {
                None => members.push(block.raw[key.span().start..value.span().end].to_owned()),
                Some(there) if key.is("content") => {
                    let at = shifted(there.span(), message.span.start);
                    edits.extend(content(there, value).map(|with| edit(at, with)));
                }
                Some(_) => {}
            }
        }
    }
    if !members.is_empty() {
        let at = message.span.start + 1;
        let comma = if root.entries().next().is_some() { "," } else { "" };
        edits.push(edit(Span::new(at, at), format!("{}{comma}", members.join(","))));
    }
    edits
}

/// Content with the thinking that belongs to it: the tagged words whole, or a thinking block first.
fn content(there: Value<'_>, received: Value<'_>) -> Option<String> {
    let words = String::from_utf8_lossy(received.raw());
    if received.kind() == Kind::String {
        return (there.kind() == Kind::String).then(|| words.into_owned());
    }
    let blocks = words.trim().strip_prefix('[')?.strip_suffix(']')?.trim().to_owned();
    let own = String::from_utf8_lossy(there.raw());
    match there.kind() {
        Kind::String => Some(format!("[{blocks},{{\"type\":\"text\",\"text\":{own}}}]")),
        Kind::Null => Some(format!("[{blocks}]")),
        Kind::Array => {
            let rest = own.strip_prefix('[')?.trim_start();
            let comma = if rest == "]" { "" } else { "," };
            Some(format!("[{blocks}{comma}{rest}"))
        }
        Kind::Bool | Kind::Number | Kind::Object => None,
    }
}

/// The edit that puts a signature back on a part: Gemini's on any, Google's on a call in Chat
/// (`providers.md` §5.4).
pub fn seal(
    conversation: &Conversation,
    _body: &[u8],
    at: (usize, usize),
    signature: &str,
) -> Option<Edit> {
    let part = conversation.messages.get(at.0)?.parts.get(at.1)?;
    if part.sealed.is_some() {
        return None;
    }
    let member = match conversation.dialect {
        Dialect::Gemini => format!("\"thoughtSignature\":{},", literal(signature)),
        Dialect::OpenaiChat if part.kind == PartKind::ToolCall => format!(
            "\"extra_content\":{{\"google\":{{\"thought_signature\":{}}}}},",
            literal(signature)
        ),
        Dialect::OpenaiChat | Dialect::Anthropic | Dialect::OpenaiResponses => return None,
    };
    let start = part.span.start + 1;
    Some(edit(Span::new(start, start), member))
}

/// Edits that take reasoning out of a message; `None` where it would be left empty.
pub fn take_out(
    conversation: &Conversation,
    body: &[u8],
    message: usize,
    parts: &[usize],
) -> Option<Vec<Edit>> {
    let history = &conversation.messages;
    let of = history.get(message)?;
    if conversation.dialect == Dialect::OpenaiResponses {
        // The item goes, with the comma after it, or the one before it.
        return match (history.get(message + 1), message.checked_sub(1)) {
            (Some(next), _) => {
                Some(vec![edit(Span::new(of.span.start, next.span.start), String::new())])
            }
            (None, Some(before)) => {
                let before = history.get(before)?;
                Some(vec![edit(Span::new(before.span.end, of.span.end), String::new())])
            }
            (None, None) => None,
        };
    }
    let top: Vec<Span> = elements(of, body);
    let gone: Vec<Span> = parts.iter().filter_map(|at| Some(of.parts.get(*at)?.span)).collect();
    if top.is_empty() || top.iter().all(|span| gone.contains(span)) {
        return None;
    }
    let mut edits = Vec::new();
    let mut at = 0;
    while at < top.len() {
        if !gone.contains(&top[at]) {
            at += 1;
            continue;
        }
        let run = top[at..].iter().take_while(|span| gone.contains(span)).count();
        let span = match (top.get(at + run), at.checked_sub(1)) {
            (Some(next), _) => Span::new(top[at].start, next.start),
            (None, Some(before)) => Span::new(top[before].end, top[at + run - 1].end),
            (None, None) => return None,
        };
        edits.push(edit(span, String::new()));
        at += run;
    }
    Some(edits)
}

/// What stands side by side where a message's reasoning stands: blocks of its list, or (Chat) its
/// members, each from its key to its value's end.
fn elements(message: &Message, body: &[u8]) -> Vec<Span> {
    let raw = message.span.of(body);
    let document = Document::read(raw).unwrap_or_default();
    let Some(root) = document.root(raw) else { return Vec::new() };
    let start = message.span.start;
    let is_block = |span: Span| {
        let reasoning = message.parts.iter().filter(|part| part.kind == PartKind::Reasoning);
        reasoning.into_iter().any(|part| part.span == span)
    };
    let lists = [root.get("content"), root.get("parts")];
    for list in lists.into_iter().flatten().filter(|list| list.kind() == Kind::Array) {
        let blocks: Vec<Span> = list.items().map(|item| shifted(item.span(), start)).collect();
        if blocks.iter().any(|span| is_block(*span)) {
            return blocks;
        }
    }
    let members = root.entries();
    members
        .map(|(key, value)| shifted(Span::new(key.span().start, value.span().end), start))
        .collect()
}

/// Responses: asks for reasoning's encrypted content; `None` where it is asked for already.
pub fn include_encrypted_reasoning(body: &[u8]) -> Option<Edit> {
    const WANTED: &str = "\"reasoning.encrypted_content\"";
    let document = Document::read(body).ok()?;
    let root = document.root(body).filter(|root| root.kind() == Kind::Object)?;
    match root.get("include") {
        Some(list) if list.kind() == Kind::Array => {
            let there = |item: Value<'_>| {
                item.text().is_some_and(|text| text == "reasoning.encrypted_content")
            };
            if list.items().any(there) {
                return None;
            }
            let at = list.span().start + 1;
            let comma = if list.items().next().is_some() { "," } else { "" };
            Some(edit(Span::new(at, at), format!("{WANTED}{comma}")))
        }
        Some(null) if null.is_null() => Some(edit(null.span(), format!("[{WANTED}]"))),
        Some(_) => None,
        None => {
            let at = root.span().start + 1;
            let comma = if root.entries().next().is_some() { "," } else { "" };
            Some(edit(Span::new(at, at), format!("\"include\":[{WANTED}]{comma}")))
        }
    }
}

fn edit(at: Span, with: String) -> Edit {
    Edit { at, with: Bytes::from(with) }
}

fn shifted(span: Span, by: usize) -> Span {
    Span::new(span.start + by, span.end + by)
}

fn within(inner: Span, outer: Span) -> bool {
    inner.start >= outer.start && inner.end <= outer.end
}

/// A JSON string of these words.
fn literal(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
