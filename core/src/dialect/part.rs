//! One part of a request: what it is, where it is in the body, and its key.
//!
//! Ranges point into the body that was read. Must not know how a dialect writes a part.

use serde::{Deserialize, Serialize};

use super::audience::{Audience, ServerStep};
use super::key::{Chain, Keyer, PartKey};
use super::kinds::{PartKind, Role};
use crate::wire::json::{Span, Value, text_of};

/// The place of a part in the history. Written as a pair of numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[derive(Serialize, Deserialize, schemars::JsonSchema)]
#[serde(from = "(usize, usize)", into = "(usize, usize)")]
pub struct PartIndex {
    /// The index among the messages of the history.
    pub message: usize,
    /// The index among the parts of that message.
    pub part: usize,
}

impl PartIndex {
    /// The place of a part within a message.
    pub fn new(message: usize, part: usize) -> Self {
        Self { message, part }
    }

    pub(crate) fn after(self) -> Self {
        Self { part: self.part + 1, ..self }
    }
}

impl From<(usize, usize)> for PartIndex {
    fn from((message, part): (usize, usize)) -> Self {
        Self { message, part }
    }
}

impl From<PartIndex> for (usize, usize) {
    fn from(at: PartIndex) -> Self {
        (at.message, at.part)
    }
}

/// The smallest unit with a meaning.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// What it is to the model.
    pub kind: PartKind,
    /// Who speaks in it.
    pub role: Role,
    /// Who reads it.
    pub audience: Audience,
    /// The range of the whole block in the body.
    pub span: Span,
    /// The JSON values whose content the model reads, in order: string literals (with quotes), or objects
    /// (tool input, schemas). Empty for images.
    pub texts: Vec<Span>,
    /// The range of the content that a cut replaces, for tool results whose content may be replaced. Not for
    /// those of the provider's own tools, those that a program reads, nor for unknown structures.
    pub content: Option<Span>,
    /// The call id of a tool call or tool result.
    pub id: Option<Box<str>>,
    /// The tool's name, in definitions, calls, and results that have it.
    pub name: Option<Box<str>>,
    /// A result that reports a failure.
    pub is_error: bool,
    /// The names of the tools that it loads: their definitions are in the context from here on.
    pub loads: Vec<Box<str>>,
    /// It begins or ends something that runs at the provider.
    pub server_step: Option<ServerStep>,
    /// Reasoning's signature, encrypted content or redacted data (Gemini: `thoughtSignature`): a string literal.
    pub signature: Option<Span>,
    /// The data of an image or document.
    pub media: Option<Media>,
    /// For system prompt and tools: it was sent as an item of the history (Responses), so a provider that
    /// holds the history holds it, too. Others are sent with each request.
    pub in_history: bool,
    /// For tools: it is not a tool but the response format. It comes without instructions for tool calls.
    pub is_schema: bool,
    /// The part key: role, kind, normalised content and ids. `None` if the part is not in the chain
    /// (reasoning, empty text, text that changes with every request).
    pub key: Option<PartKey>,
    /// The key of a client's own reasoning: the hash of its signature, else of its text.
    pub reasoning_key: Option<u128>,
    /// The hash of its signature, which a call of Gemini may have, too.
    pub signature_key: Option<PartKey>,
    /// How many parts of the history before it have the same reasoning key.
    pub repeats: u32,
}

impl Part {
    pub(super) fn at(kind: PartKind, role: Role, value: Value<'_>) -> Self {
        Self {
            kind,
            role,
            audience: Audience::Model,
            span: value.span(),
            texts: Vec::new(),
            content: None,
            id: None,
            name: None,
            is_error: false,
            loads: Vec::new(),
            server_step: None,
            signature: None,
            media: None,
            in_history: false,
            is_schema: false,
            key: None,
            reasoning_key: None,
            signature_key: None,
            repeats: 0,
        }
    }

    /// The key that a decision to remove this reasoning is stored under: its own, and a later key for each time that
    /// equal reasoning came before it. Without a signature a model's reasoning can repeat to the letter.
    pub(crate) fn removal_key(&self) -> Option<u128> {
        let key = self.reasoning_key?;
        match self.repeats {
            0 => Some(key),
            repeats => Some(Chain(key).then(PartKey(u128::from(repeats))).0),
        }
    }

    pub(super) fn hash_reasoning(&mut self, body: &[u8]) {
        // Its element may have been read before.
        if self.reasoning_key.is_some() || self.signature_key.is_some() {
            return;
        }
        self.signature_key = self.signature.map(|span| {
            let written = span.slice(body);
            let text = text_of(written);
            text.map_or_else(|| PartKey::of_bytes(written), |text| PartKey::of_signature(&text))
        });
        // By its signature, else by its text.
        if self.kind == PartKind::Reasoning {
            let span = self.texts.first().copied().unwrap_or(self.span);
            let key = self.signature_key.unwrap_or_else(|| PartKey::of_literal(span.slice(body)));
            self.reasoning_key = Some(key.0);
        }
    }

    /// A text part: `value` is the string literal, which is also its range.
    pub(super) fn text(role: Role, value: Value<'_>, keyer: &mut Keyer) -> Self {
        Self {
            texts: vec![value.span()],
            key: keyer.text(role, value),
            ..Self::at(PartKind::Text, role, value)
        }
    }

    pub(super) fn opaque(role: Role, value: Value<'_>, keyer: &mut Keyer) -> Self {
        // Its bytes are counted, whatever they mean.
        Self {
            texts: vec![value.span()],
            key: keyer.value(PartKind::Opaque, role, value),
            ..Self::at(PartKind::Opaque, role, value)
        }
    }

    /// A tool's definition, or another part of the prompt's head.
    pub(super) fn tool(value: Value<'_>, name: Option<Box<str>>, keyer: &mut Keyer) -> Self {
        Self {
            texts: vec![value.span()],
            name,
            key: keyer.value(PartKind::Tool, Role::System, value),
            ..Self::at(PartKind::Tool, Role::System, value)
        }
    }

    /// A deferred tool, of which the model reads nothing until it is loaded.
    pub(super) fn deferred_tool(
        value: Value<'_>,
        name: Option<Box<str>>,
        keyer: &mut Keyer,
    ) -> Self {
        Self { audience: Audience::Nobody, ..Self::tool(value, name, keyer) }
    }

    /// The response format.
    pub(super) fn schema(value: Value<'_>, name: Option<Box<str>>, keyer: &mut Keyer) -> Self {
        Self { is_schema: true, ..Self::tool(value, name, keyer) }
    }
}

/// The data of an image or document.
#[derive(Clone, Debug, PartialEq)]
pub struct Media {
    /// The string literal with base64 (or a `data:` URL); `None` if it is elsewhere (URL, file id).
    pub data: Option<Span>,
    /// The type that the client declared.
    pub mime: Option<Box<str>>,
    /// How finely the client wants it to be read; `None`: as the model does by default.
    pub detail: Option<PictureDetail>,
}

/// How finely a picture is read, if a client says so: OpenAI's `detail`, Gemini's `mediaResolution`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PictureDetail {
    /// `low`.
    Low,
    /// `medium` (Gemini).
    Medium,
    /// `high`.
    High,
    /// `original` (OpenAI), `ULTRA_HIGH` (Gemini).
    Original,
}

impl PictureDetail {
    /// The detail in this member; `None` for `auto` and what is not known.
    pub(super) fn from_member(value: Option<Value<'_>>) -> Option<Self> {
        let written = value?.text()?.to_ascii_lowercase();
        match written.strip_prefix("media_resolution_").unwrap_or(&written) {
            "low" => Some(Self::Low),
            "medium" => Some(Self::Medium),
            "high" => Some(Self::High),
            "original" | "ultra_high" => Some(Self::Original),
            _ => None,
        }
    }
}
