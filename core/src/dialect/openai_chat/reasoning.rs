//! Reasoning in Chat Completions replies, in whichever member a compatible API puts it (`docs/protocols.md`
//! 4.2).
//!
//! Kept in the form in which it would have to be sent back: the received member, or the most complete one of
//! several. Pieces of a list are joined as the provider's own clients do. Must not know requests.

use serde_json::{Map, Value as Json, json};

use super::signature;
use crate::dialect::reply::MOST_PARTS;
use crate::dialect::{PartKind, ReplyPart};
use crate::wire::json::{Kind, Value, first};

/// Members with plain text, the most certain first.
const PLAIN: [&str; 3] = ["reasoning_content", "reasoning", "reasoning_text"];

/// Members with a signature and no text.
const SIGNATURE_MEMBERS: [&str; 3] =
    ["reasoning_opaque", "reasoning_signature", "reasoning_encrypted"];

/// Most JSON values in lists of one reply. Each piece looks for a signature among them.
const MOST_LISTED: usize = 2 * MOST_PARTS;

/// The reasoning of a reply so far.
#[derive(Default)]
pub(super) struct ReplyReasoning {
    /// In the order of [`PLAIN`]; an empty text counts as received.
    plain: [Option<String>; 3],
    signatures: Vec<(&'static str, String)>,
    /// `reasoning_details` (OpenRouter, MiniMax), with pieces joined.
    details: Vec<Map<String, Json>>,
    /// Blocks in the list of the content (Mistral, Databricks), with pieces joined.
    content: Vec<Json>,
    /// `thinking_blocks` (LiteLLM, Envoy's gateway), with pieces joined.
    thinking: Vec<Json>,
    /// `reasoning_content` as an object (Envoy's gateway), with pieces joined.
    object: Vec<Json>,
    /// Bytes of text in each of these three.
    listed: [usize; 3],
    /// JSON values in all lists.
    values: usize,
    /// The message's `extra_content`, raw, and Google's signature in it.
    extra: Option<(Box<str>, Box<str>)>,
}

impl ReplyReasoning {
    /// Bytes of text, counted once: some APIs send the same text in several members.
    pub(super) fn bytes(&self) -> usize {
        let plain = self.plain.iter().flatten().map(String::len).max();
        self.listed.into_iter().fold(plain.unwrap_or(0), usize::max)
    }

    /// Adds what a delta or message has.
    pub(super) fn take<'d>(&mut self, message: Value<'d>) {
        let text = |value: Option<Value<'d>>| value.and_then(|value| value.text());
        for (piece, plain) in message.members(PLAIN).map(text).into_iter().zip(&mut self.plain) {
            if let Some(more) = piece {
                plain.get_or_insert_default().push_str(&more);
            }
        }
        for (name, piece) in
            SIGNATURE_MEMBERS.into_iter().zip(message.members(SIGNATURE_MEMBERS).map(text))
        {
            let Some(more) = piece else { continue };
            match self.signatures.iter_mut().find(|(other, _)| *other == name) {
                Some((_, signature)) => signature.push_str(&more),
                None => self.signatures.push((name, more.into_owned())),
            }
        }
        let [details, extra, thinking, fields, object] = message.members([
            "reasoning_details",
            "extra_content",
            "thinking_blocks",
            "provider_specific_fields",
            "reasoning_content",
        ]);
        let inner = fields.and_then(|fields| fields.get("thinking_blocks"));
        for block in first([thinking, inner]).iter().flat_map(Value::items) {
            self.listed[1] += join(&mut self.thinking, parsed(block), &mut self.values);
        }
        for object in object.iter().filter(|object| object.kind() == Kind::Object) {
            self.listed[2] += join(&mut self.object, parsed(*object), &mut self.values);
        }
        for detail in details.iter().flat_map(Value::items) {
            if let Json::Object(detail) = parsed(detail) {
                self.detail(detail);
            }
        }
        if let Some(extra) = extra
            && let Some(signature) = signature(message)
        {
            let raw = String::from_utf8_lossy(extra.raw()).into();
            self.extra = Some((raw, signature.text().unwrap_or_default().into()));
        }
    }

    /// Adds a block of a content list.
    pub(super) fn block(&mut self, block: Value<'_>) {
        self.listed[0] += join(&mut self.content, parsed(block), &mut self.values);
    }

    /// Adds a detail. Text continues the previous entry if type and index are equal; encrypted entries are
    /// complete.
    fn detail(&mut self, detail: Map<String, Json>) {
        let same = |name: &str, other: &Map<String, Json>| detail.get(name) == other.get(name);
        let kind = detail.get("type").and_then(Json::as_str);
        let is_text = matches!(kind, Some("reasoning.text" | "reasoning.summary"));
        match self.details.last_mut() {
            Some(last) if is_text && same("type", last) && same("index", last) => {
                for (name, value) in detail {
                    join_member(last, name, value, &mut self.values);
                }
            }
            _ => {
                let detail = Json::Object(detail);
                if let (true, Json::Object(detail)) = (has_room(&detail, &mut self.values), detail)
                {
                    self.details.push(detail);
                }
            }
        }
    }

    /// The reasoning parts. `tagged`: the thinking in tags inside `content`. `whole`: nothing is missing, so it
    /// can be sent back. `calls`: there are tool calls, with which even an empty member must be sent back
    /// (DeepSeek).
    pub(super) fn parts(
        self,
        tagged: Option<&str>,
        content: &str,
        whole: bool,
        calls: bool,
    ) -> Vec<ReplyPart> {
        let part = |text: String, signature: Option<&str>, raw: Json| ReplyPart {
            text,
            signature: signature.map(Into::into),
            raw: Some(raw).filter(|raw| whole && !raw.is_null()).map(|raw| raw.to_string().into()),
            ..ReplyPart::of(PartKind::Reasoning)
        };
        let mut parts = Vec::new();
        let plain = PLAIN.iter().zip(&self.plain);
        let plain = plain.filter_map(|(name, text)| Some((*name, text.as_deref()?)));
        let nonempty = plain.clone().find(|(_, text)| !text.is_empty());
        let field = nonempty.or_else(|| plain.clone().next().filter(|_| calls));
        let signature = self.signatures.last().map(|(_, signature)| signature.as_str());
        let whole_text = field.map_or("", |(_, text)| text);
        let thinking = with_text(self.thinking, whole_text);
        let is_signed = thinking.iter().chain(&self.object).any(|block| seal(block).is_some());
        let is_repeated = self.plain[0].as_deref().is_some_and(|text| !text.is_empty())
            && !self.details.iter().any(is_more_than_text);
        if !self.details.is_empty() && !is_repeated {
            let text = self.details.iter().filter_map(text_of).collect();
            let signature = self.details.iter().rev().find_map(signature_of);
            let back: Vec<_> = self.details.iter().filter(|detail| is_welcome(detail)).collect();
            let raw =
                if back.is_empty() { Json::Null } else { json!({ "reasoning_details": back }) };
            parts.push(part(text, signature, raw));
        } else if !self.object.is_empty() {
            let mut raw = Map::new();
            let blocks: Vec<Json> = self.object.iter().filter_map(thinking_block).collect();
            let text = self.object.iter().map(all_text).collect();
            let signature = self.object.iter().rev().find_map(seal).map(str::to_owned);
            raw.extend(
                self.object.into_iter().next().map(|it| ("reasoning_content".to_owned(), it)),
            );
            if !blocks.is_empty() {
                raw.insert("thinking_blocks".into(), blocks.into());
            }
            parts.push(part(text, signature.as_deref(), Json::Object(raw)));
        } else if is_signed || !thinking.is_empty() && whole_text.is_empty() {
            let text = thinking.iter().map(all_text).collect();
            let signature = thinking.iter().rev().find_map(seal);
            parts.push(part(text, signature, json!({ "thinking_blocks": thinking })));
        } else if field.is_some() || signature.is_some() {
            let mut raw = Map::new();
            let text = field.map(|(name, text)| {
                raw.insert(name.into(), text.into());
                text.to_owned()
            });
            for (name, signature) in &self.signatures {
                raw.insert((*name).into(), signature.as_str().into());
            }
            parts.push(part(text.unwrap_or_default(), signature, Json::Object(raw)));
        } else if !self.content.is_empty() {
            let text = self.content.iter().map(all_text).collect();
            let signature = self.content.iter().rev().find_map(seal);
            parts.push(part(text, signature, json!({ "content": self.content })));
        } else if let Some(tagged) = tagged {
            parts.push(part(tagged.to_owned(), None, json!({ "content": content })));
        }
        if let Some((raw, signature)) = self.extra {
            parts.push(ReplyPart {
                signature: Some(signature),
                raw: whole.then(|| format!("{{\"extra_content\":{raw}}}").into()),
                ..ReplyPart::of(PartKind::Reasoning)
            });
        }
        parts
    }
}

/// A value to be kept; `null` if it is larger than all that is kept.
fn parsed(value: Value<'_>) -> Json {
    if value.values() > MOST_LISTED {
        return Json::Null;
    }
    serde_json::from_slice(value.raw()).unwrap_or_default()
}

/// Counts a value that becomes a new entry; returns whether there is room for it.
fn has_room(entry: &Json, values: &mut usize) -> bool {
    *values += values_in(entry);
    *values <= MOST_LISTED
}

fn values_in(value: &Json) -> usize {
    match value {
        Json::Array(list) => list.iter().map(values_in).sum::<usize>() + 1,
        Json::Object(members) => members.values().map(values_in).sum::<usize>() + 1,
        _ => 1,
    }
}

/// Members of a block that come in pieces: its text, and lists of texts.
const TEXTS: [&str; 4] = ["thinking", "text", "summary", "reasoningText"];

/// Adds a block to a list. It continues the last one if that is of the same type and has no signature yet, or if it brings
/// only the signature; encrypted blocks are complete. Returns the bytes of text that it brings.
fn join(list: &mut Vec<Json>, piece: Json, values: &mut usize) -> usize {
    let bytes = all_text(&piece).len();
    let last = list.last_mut().filter(|last| continues(last, &piece));
    let (Some(Json::Object(last)), Json::Object(piece)) = (last, &piece) else {
        if piece.is_object() && has_room(&piece, values) {
            list.push(piece);
        }
        return bytes;
    };
    for (name, value) in piece.clone() {
        join_member(last, name, value, values);
    }
    bytes
}

fn join_member(last: &mut Map<String, Json>, name: String, value: Json, values: &mut usize) {
    match (last.get_mut(&name), value) {
        (Some(Json::String(text)), Json::String(more)) if is_joined(&name) => text.push_str(&more),
        (Some(Json::Array(list)), Json::Array(more)) => {
            for piece in more {
                join(list, piece, values);
            }
        }
        (_, Json::Null) => {}
        (_, value) => {
            if has_room(&value, values) {
                last.insert(name, value);
            }
        }
    }
}

fn continues(last: &Json, piece: &Json) -> bool {
    let is_same = |name| last.get(name) == piece.get(name);
    let is_encrypted =
        |block: &Json| block.get("data").is_some() || block.get("redactedContent").is_some();
    let is_over = seal(last).is_some() && !all_text(piece).is_empty();
    let is_text = last.is_object() && piece.is_object() && is_same("type") && is_same("index");
    is_text && !is_encrypted(last) && !is_encrypted(piece) && !is_over
}

/// All text of a block, in any of its forms.
fn all_text(block: &Json) -> String {
    match block {
        Json::String(text) => text.clone(),
        Json::Array(list) => list.iter().map(all_text).collect(),
        Json::Object(members) => {
            let inner = members.get("reasoningContent").map(all_text).unwrap_or_default();
            TEXTS
                .iter()
                .filter_map(|name| members.get(*name))
                .map(all_text)
                .fold(inner, |a, b| a + &b)
        }
        _ => String::new(),
    }
}

/// The signature of a block, or the encrypted text that stands for it.
fn seal(block: &Json) -> Option<&str> {
    match block {
        Json::Array(list) => list.iter().rev().find_map(seal),
        Json::Object(members) => {
            let names = ["signature", "data", "redactedContent"];
            let own = names.iter().find_map(|name| members.get(*name)?.as_str());
            let inner = ["summary", "thinking", "reasoningContent", "reasoningText"];
            own.filter(|own| !own.is_empty())
                .or_else(|| inner.iter().find_map(|name| members.get(*name).and_then(seal)))
        }
        _ => None,
    }
}

/// `thinking_blocks` with the text that came beside them: some gateways stream only the signature in the block.
fn with_text(mut blocks: Vec<Json>, text: &str) -> Vec<Json> {
    if let [Json::Object(block)] = &mut blocks[..]
        && block.get("type").and_then(Json::as_str) == Some("thinking")
        && block.get("thinking").and_then(Json::as_str).is_none_or(str::is_empty)
    {
        block.insert("thinking".into(), text.into());
    }
    blocks
}

/// A reasoning object of Envoy's gateway as a thinking block, the form in which its requests have it.
fn thinking_block(object: &Json) -> Option<Json> {
    let inner = object.get("reasoningContent").unwrap_or(object);
    if let Some(data) = inner.get("redactedContent").and_then(Json::as_str) {
        return Some(json!({ "type": "redacted_thinking", "data": data }));
    }
    let signature = seal(inner)?;
    Some(json!({ "type": "thinking", "thinking": all_text(inner), "signature": signature }))
}

/// Whether a detail has more than `reasoning_content` also has, which is the member that models require if
/// they require reasoning: it has a signature, or its host reads details.
fn is_more_than_text(detail: &Map<String, Json>) -> bool {
    let format = detail.get("format").and_then(Json::as_str).unwrap_or_default();
    signature_of(detail).is_some_and(|signature| !signature.is_empty())
        || format.starts_with("MiniMax")
}

/// Whether a detail may be sent back: one from Claude or Gemini only with its signature.
fn is_welcome(detail: &Map<String, Json>) -> bool {
    let format = detail.get("format").and_then(Json::as_str);
    let needs_signature = matches!(format, Some("anthropic-claude-v1" | "google-gemini-v1"));
    !needs_signature || signature_of(detail).is_some_and(|signature| !signature.is_empty())
}

/// Members of a detail that come in pieces.
fn is_joined(name: &str) -> bool {
    matches!(name, "text" | "thinking" | "summary" | "signature")
}

fn text_of(detail: &Map<String, Json>) -> Option<&str> {
    detail.get("text").or_else(|| detail.get("summary"))?.as_str()
}

fn signature_of(detail: &Map<String, Json>) -> Option<&str> {
    detail.get("signature").or_else(|| detail.get("data"))?.as_str()
}
