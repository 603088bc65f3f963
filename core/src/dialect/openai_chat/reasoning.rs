//! Reasoning in Chat Completions replies, in whichever member a compatible API puts it (`docs/protocols.md`
//! 4.2).
//!
//! Kept in the form in which it would have to be sent back: the received member, or the most complete one of
//! several. Pieces of a list are joined as the provider's own clients do. Must not know requests.

use serde_json::{Map, Value as Json, json};

use super::signature;
use crate::dialect::{PartKind, ReplyPart};
use crate::wire::json::{Kind, Value};

/// Members with plain text, the most certain first.
const PLAIN: [&str; 3] = ["reasoning_content", "reasoning", "reasoning_text"];

/// Members with a signature and no text.
const SIGNATURE_MEMBERS: [&str; 3] =
    ["reasoning_opaque", "reasoning_signature", "reasoning_encrypted"];

/// The reasoning of a reply so far.
#[derive(Default)]
pub(super) struct ReplyReasoning {
    /// In the order of [`PLAIN`]; an empty text counts as received.
    plain: [Option<String>; 3],
    signatures: Vec<(&'static str, String)>,
    /// `reasoning_details` (OpenRouter, MiniMax), with pieces joined.
    details: Vec<Map<String, Json>>,
    /// The texts of Mistral's `thinking` blocks, joined.
    blocks: String,
    /// The message's `extra_content`, raw, and Google's signature in it.
    extra: Option<(Box<str>, Box<str>)>,
}

impl ReplyReasoning {
    /// Bytes of text, counted once: some APIs send the same text in several members.
    pub(super) fn bytes(&self) -> usize {
        let plain = self.plain.iter().flatten().map(String::len).max();
        plain.unwrap_or(0).max(self.blocks.len())
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
        let [details, extra] = message.members(["reasoning_details", "extra_content"]);
        for detail in details.iter().flat_map(Value::items) {
            if let Ok(Json::Object(detail)) = serde_json::from_slice(detail.raw()) {
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

    /// Adds a `thinking` block of a content list: `thinking` is a string or a list of text blocks.
    pub(super) fn block(&mut self, block: Value<'_>) {
        let Some(thinking) = block.get("thinking") else { return };
        match thinking.kind() {
            Kind::String => self.blocks.push_str(&thinking.text().unwrap_or_default()),
            _ => {
                for text in thinking.items().filter_map(|text| text.get("text")?.text()) {
                    self.blocks.push_str(&text);
                }
            }
        }
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
                    match (last.get_mut(&name), value) {
                        (Some(Json::String(text)), Json::String(more)) if is_joined(&name) => {
                            text.push_str(&more);
                        }
                        (_, Json::Null) => {}
                        (_, value) => {
                            last.insert(name, value);
                        }
                    }
                }
            }
            _ => self.details.push(detail),
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
        let is_repeated = self.plain[0].as_deref().is_some_and(|text| !text.is_empty())
            && !self.details.iter().any(is_more_than_text);
        if !self.details.is_empty() && !is_repeated {
            let text = self.details.iter().filter_map(text_of).collect();
            let signature = self.details.iter().rev().find_map(signature_of);
            let back: Vec<_> = self.details.iter().filter(|detail| is_welcome(detail)).collect();
            let raw =
                if back.is_empty() { Json::Null } else { json!({ "reasoning_details": back }) };
            parts.push(part(text, signature, raw));
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
        } else if !self.blocks.is_empty() {
            let thinking = json!([{ "type": "text", "text": self.blocks }]);
            let raw = json!({ "content": [{ "type": "thinking", "thinking": thinking }] });
            parts.push(part(self.blocks, None, raw));
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
    matches!(name, "text" | "summary" | "signature")
}

fn text_of(detail: &Map<String, Json>) -> Option<&str> {
    detail.get("text").or_else(|| detail.get("summary"))?.as_str()
}

fn signature_of(detail: &Map<String, Json>) -> Option<&str> {
    detail.get("signature").or_else(|| detail.get("data"))?.as_str()
}
