//! Reasoning in Chat Completions replies, in whichever member a compatible API puts it (`docs/protocols.md`
//! 4.2).
//!
//! Kept in the form in which it would have to be sent back: the received member, or the most complete one of
//! several. Pieces of a list are joined as the provider's own clients do. Must not know requests.

use serde_json::{Map, Value as Json, json};

use super::signature;
use crate::dialect::reply::MOST_PARTS;
use crate::dialect::{PartKind, ReplyPart};
use crate::wire::json::{Kind, Value};
use crate::wire::member::first;

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
    details: Vec<Json>,
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
    pub(super) fn bytes(&self) -> usize {
        // Some APIs send the same text in several members, which is counted once.
        let longest = self.plain.iter().flatten().map(String::len).max();
        self.listed.into_iter().fold(longest.unwrap_or(0), usize::max)
    }

    /// Adds what a delta or message has.
    pub(super) fn take<'d>(&mut self, message: Value<'d>) {
        for (piece, plain) in message.members(PLAIN).into_iter().zip(&mut self.plain) {
            if let Some(more) = piece.and_then(|piece| piece.text()) {
                plain.get_or_insert_default().push_str(&more);
            }
        }
        for (name, piece) in SIGNATURE_MEMBERS.into_iter().zip(message.members(SIGNATURE_MEMBERS)) {
            let Some(more) = piece.and_then(|piece| piece.text()) else { continue };
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
            self.detail(parsed(detail));
        }
        if let Some(extra) = extra
            && let Some(signature) = signature(message)
        {
            let raw = String::from_utf8_lossy(extra.raw()).into();
            self.extra = Some((raw, signature.text().unwrap_or_default().into()));
        }
    }

    pub(super) fn block(&mut self, block: Value<'_>) {
        self.listed[0] += join(&mut self.content, parsed(block), &mut self.values);
    }

    fn detail(&mut self, detail: Json) {
        // Text comes in pieces; entries of all other types are complete.
        let kind = detail.get("type").and_then(Json::as_str);
        if matches!(kind, Some("reasoning.text" | "reasoning.summary")) {
            join(&mut self.details, detail, &mut self.values);
        } else if detail.is_object() && has_room(&detail, &mut self.values) {
            self.details.push(detail);
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
        let mut parts = Vec::new();
        let mut fields = PLAIN
            .iter()
            .zip(&self.plain)
            .filter_map(|(name, text)| Some((*name, text.as_deref()?)));
        let empty_field = if calls { fields.clone().next() } else { None };
        let field = fields.find(|(_, text)| !text.is_empty()).or(empty_field);
        let signature = self.signatures.last().map(|(_, signature)| signature.as_str());
        let whole_text = field.map_or("", |(_, text)| text);
        let thinking = with_text(self.thinking, whole_text);
        let is_signed = thinking.iter().chain(&self.object).any(|block| seal(block).is_some());
        let is_repeated = self.plain[0].as_deref().is_some_and(|text| !text.is_empty())
            && !self.details.iter().any(is_more_than_text);
        if !self.details.is_empty() && !is_repeated {
            let text = self.details.iter().filter_map(text_of).collect();
            let signature = self.details.iter().rev().find_map(signature_of);
            let details: Vec<_> = self.details.iter().filter(|detail| is_welcome(detail)).collect();
            let raw = match details.is_empty() {
                true => Json::Null,
                false => json!({ "reasoning_details": details }),
            };
            parts.push(reasoning_part(text, signature, raw, whole));
        } else if !self.object.is_empty() {
            let mut raw = Map::new();
            let blocks: Vec<Json> = self.object.iter().filter_map(thinking_block).collect();
            let text = self.object.iter().map(all_text).collect();
            let signature = self.object.iter().rev().find_map(seal).map(str::to_owned);
            if let Some(object) = self.object.into_iter().next() {
                raw.insert("reasoning_content".into(), object);
            }
            if !blocks.is_empty() {
                raw.insert("thinking_blocks".into(), blocks.into());
            }
            parts.push(reasoning_part(text, signature.as_deref(), Json::Object(raw), whole));
        } else if is_signed || !thinking.is_empty() && whole_text.is_empty() {
            let text = thinking.iter().map(all_text).collect();
            let signature = thinking.iter().rev().find_map(seal);
            let raw = json!({ "thinking_blocks": thinking });
            parts.push(reasoning_part(text, signature, raw, whole));
        } else if field.is_some() || signature.is_some() {
            let mut raw = Map::new();
            if let Some((name, text)) = field {
                raw.insert(name.into(), text.into());
            }
            for (name, signature) in &self.signatures {
                raw.insert((*name).into(), signature.as_str().into());
            }
            let text = whole_text.to_owned();
            parts.push(reasoning_part(text, signature, Json::Object(raw), whole));
        } else if !self.content.is_empty() {
            let text = self.content.iter().map(all_text).collect();
            let signature = self.content.iter().rev().find_map(seal);
            let raw = json!({ "content": self.content });
            parts.push(reasoning_part(text, signature, raw, whole));
        } else if let Some(tagged) = tagged {
            let raw = json!({ "content": content });
            parts.push(reasoning_part(tagged.to_owned(), None, raw, whole));
        }
        if let Some((raw, signature)) = self.extra {
            let raw = format!("{{\"extra_content\":{raw}}}").into();
            parts.push(ReplyPart {
                signature: Some(signature),
                raw: if whole { Some(raw) } else { None },
                ..ReplyPart::new(PartKind::Reasoning)
            });
        }
        parts
    }
}

fn reasoning_part(text: String, signature: Option<&str>, raw: Json, whole: bool) -> ReplyPart {
    // Incomplete reasoning cannot be sent back.
    let can_be_sent_back = whole && !raw.is_null();
    ReplyPart {
        text,
        signature: signature.map(Into::into),
        raw: if can_be_sent_back { Some(raw.to_string().into()) } else { None },
        ..ReplyPart::new(PartKind::Reasoning)
    }
}

fn parsed(value: Value<'_>) -> Json {
    // A value larger than all that is kept is not parsed at all.
    if value.values() > MOST_LISTED {
        return Json::Null;
    }
    serde_json::from_slice(value.raw()).unwrap_or_default()
}

fn has_room(entry: &Json, values: &mut usize) -> bool {
    *values += values_in(entry);
    *values <= MOST_LISTED
}

fn values_in(value: &Json) -> usize {
    match value {
        Json::Array(list) => list.iter().map(values_in).sum::<usize>() + 1,
        Json::Object(members) => values_in_members(members),
        _ => 1,
    }
}

fn values_in_members(members: &Map<String, Json>) -> usize {
    members.values().map(values_in).sum::<usize>() + 1
}

/// Members of a block that come in pieces: its text, and lists of texts.
const TEXTS: [&str; 4] = ["thinking", "text", "summary", "reasoningText"];

/// Adds a block to a list. It continues the last one if that is of the same type and has no signature yet; encrypted blocks
/// are complete. Returns the bytes of text that it brings.
fn join(list: &mut Vec<Json>, piece: Json, values: &mut usize) -> usize {
    let text = all_text(&piece);
    match (list.last_mut().filter(|block| continues(block, &piece)), piece) {
        // Some versions of LiteLLM repeat the whole text beside the signature.
        (Some(block), piece)
            if !text.is_empty() && seal(&piece).is_some() && all_text(block) == text =>
        {
            *block = piece;
            return 0;
        }
        (Some(Json::Object(block)), Json::Object(piece)) => {
            for (name, value) in piece {
                join_member(block, name, value, values);
            }
        }
        (_, piece) => {
            if piece.is_object() && has_room(&piece, values) {
                list.push(piece);
            }
        }
    }
    text.len()
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
    // A piece that brings only the signature still belongs to the last block, unless that has its own: Claude need not
    // show the text of its thinking.
    let is_complete =
        seal(last).is_some() && (seal(piece).is_some() || !all_text(piece).is_empty());
    let is_same_block = last.is_object()
        && piece.is_object()
        && last.get("type") == piece.get("type")
        && last.get("index") == piece.get("index");
    is_same_block && !is_encrypted(last) && !is_encrypted(piece) && !is_complete
}

fn is_encrypted(block: &Json) -> bool {
    block.get("data").is_some() || block.get("redactedContent").is_some()
}

fn all_text(block: &Json) -> String {
    // All text of a block, in any of its forms.
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

fn seal(block: &Json) -> Option<&str> {
    // Encrypted text stands for the signature.
    match block {
        Json::Array(list) => list.iter().rev().find_map(seal),
        Json::Object(members) => {
            let names = ["signature", "data", "redactedContent"];
            let signature = names.iter().find_map(|name| members.get(*name)?.as_str());
            let inner = ["summary", "thinking", "reasoningContent", "reasoningText"];
            signature
                .filter(|signature| !signature.is_empty())
                .or_else(|| inner.iter().find_map(|name| members.get(*name).and_then(seal)))
        }
        _ => None,
    }
}

/// Whether a client's copy of signed reasoning has no more of it than its text, or nothing: raw JSON of both.
pub(in crate::dialect) fn lacks_signature_of(copy: &[u8], reasoning: &[u8]) -> bool {
    let [copy, reasoning] =
        [copy, reasoning].map(|raw| serde_json::from_slice::<Json>(raw).unwrap_or_default());
    let text = all_text(&copy);
    let is_unsigned = seal(&reasoning).is_some() && seal(&copy).is_none();
    copy.is_null() || is_unsigned && (text.is_empty() || text == all_text(&reasoning))
}

fn with_text(mut blocks: Vec<Json>, text: &str) -> Vec<Json> {
    // Some gateways stream only the signature in the block, and the text beside it.
    if let [Json::Object(block)] = &mut blocks[..]
        && block.get("type").and_then(Json::as_str) == Some("thinking")
        && block.get("thinking").and_then(Json::as_str).is_none_or(str::is_empty)
    {
        block.insert("thinking".into(), text.into());
    }
    blocks
}

fn thinking_block(object: &Json) -> Option<Json> {
    // Requests to Envoy's gateway have its reasoning objects as thinking blocks.
    let inner = object.get("reasoningContent").unwrap_or(object);
    if let Some(data) = inner.get("redactedContent").and_then(Json::as_str) {
        return Some(json!({ "type": "redacted_thinking", "data": data }));
    }
    let signature = seal(inner)?;
    Some(json!({ "type": "thinking", "thinking": all_text(inner), "signature": signature }))
}

fn is_more_than_text(detail: &Json) -> bool {
    // `reasoning_content` is the member that models require if they require reasoning. A detail
    // adds to it if it has a signature, or if its host reads details.
    let format = detail.get("format").and_then(Json::as_str).unwrap_or_default();
    signature_of(detail).is_some_and(|signature| !signature.is_empty())
        || format.starts_with("MiniMax")
}

fn is_welcome(detail: &Json) -> bool {
    // Claude and Gemini refuse their details without the signature.
    let format = detail.get("format").and_then(Json::as_str);
    let needs_signature = matches!(format, Some("anthropic-claude-v1" | "google-gemini-v1"));
    !needs_signature || signature_of(detail).is_some_and(|signature| !signature.is_empty())
}

fn is_joined(name: &str) -> bool {
    matches!(name, "text" | "thinking" | "summary" | "signature")
}

fn text_of(detail: &Json) -> Option<&str> {
    detail.get("text").or_else(|| detail.get("summary"))?.as_str()
}

fn signature_of(detail: &Json) -> Option<&str> {
    detail.get("signature").or_else(|| detail.get("data"))?.as_str()
}
