//! A line of a recording, as it is stored: one call, the parts that it added, and the usage that its provider reported.
//!
//! Says what a line is good for. Knows nothing of other lines.

use plimsoll_core::context::Estimate;
use plimsoll_core::dialect::Dialect;
use serde::Deserialize;
use serde_json::Value;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// One call.
#[derive(Debug, Deserialize)]
pub struct TranscriptLine {
    /// The session it belongs to.
    pub session: String,
    /// Where the session comes from.
    #[serde(default)]
    pub source: String,
    /// The model name that the client sent.
    pub model: String,
    /// `anthropic`, `openai` or `gemini`.
    pub provider: String,
    #[serde(default)]
    ts: Value,
    #[serde(default)]
    flags: Vec<String>,
    pub(super) new_parts: Vec<AddedPart>,
    pub(super) usage: TranscriptUsage,
    /// The estimate for live traffic, in an export of our own that has no text to measure again.
    #[serde(default)]
    pub estimate: Option<Estimate>,
}

/// A part that was added to the conversation.
#[derive(Debug, Deserialize)]
pub(super) struct AddedPart {
    pub(super) role: String,
    pub(super) kind: String,
    #[serde(default)]
    pub(super) text: String,
    #[serde(default)]
    pub(super) reply: bool,
    pub(super) name: Option<String>,
    #[serde(default)]
    pub(super) cont: bool,
    /// For an image: whether it came as a tool's result.
    #[serde(default)]
    pub(super) in_tool_result: bool,
    /// For a result: whether its client cleared it before the session ended.
    #[serde(default)]
    pub(super) cleared_later: bool,
    #[serde(default)]
    pub(super) redacted: u64,
    pub(super) attachment: Option<Value>,
    pub(super) tool_reference: Option<Value>,
    #[serde(default)]
    pub(super) mime: Option<String>,
    #[serde(default)]
    pub(super) w: u32,
    #[serde(default)]
    pub(super) h: u32,
}

impl AddedPart {
    fn has_content(&self) -> bool {
        !self.text.is_empty()
            || self.redacted > 0
            || self.mime.is_some()
            || self.attachment.is_some()
    }
}

/// The usage that the provider reported, in tokens.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(super) struct TranscriptUsage {
    #[serde(default)]
    pub(super) input_total: u64,
    #[serde(default)]
    pub(super) cache_read: u64,
    #[serde(default)]
    pub(super) cache_write: u64,
    #[serde(default)]
    pub(super) output: u64,
    pub(super) reasoning: Option<u64>,
}

impl TranscriptLine {
    /// When the call was made, in ms since 1970; 0 if that cannot be read.
    pub fn at(&self) -> u64 {
        match &self.ts {
            Value::Number(ms) => ms.as_u64().unwrap_or(0),
            Value::String(text) => {
                let since = humantime::parse_rfc3339_weak(text).ok();
                let since = since.and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
                since.map_or(0, |since| since.as_millis() as u64)
            }
            _ => 0,
        }
    }

    /// Whether a flag is set.
    pub(super) fn is(&self, flag: &str) -> bool {
        self.flags.iter().any(|set| set.split('=').next() == Some(flag))
    }

    /// Whether the line has content: our own exports contain only sizes, unless content was requested.
    pub fn has_text(&self) -> bool {
        self.estimate.is_none() || self.new_parts.iter().any(AddedPart::has_content)
    }

    /// Whether the reported usage measures the context: then later estimates can be based on the call.
    pub(crate) fn is_measured(&self) -> bool {
        let poor = ["output_unreliable", "no_usage", "aborted"];
        self.usage.input_total > 0 && !poor.iter().any(|flag| self.is(flag))
    }

    /// The reported input tokens, if they can be compared with an estimate.
    pub fn actual(&self) -> Option<u64> {
        let poor = ["no_usage", "aborted", "dup", "fork", "usage_gap", "server_tool"];
        if self.usage.input_total == 0 || self.is_reset() || poor.iter().any(|flag| self.is(flag)) {
            return None;
        }
        Some(self.usage.input_total)
    }

    /// Whether the history was replaced before this call.
    pub(super) fn is_reset(&self) -> bool {
        self.flags.iter().any(|flag| flag.starts_with("reset"))
    }

    /// The texts that the line adds, without those of the reply before it.
    pub(crate) fn new_texts(&self) -> impl Iterator<Item = &str> {
        let texts = self
            .new_parts
            .iter()
            .filter(|part| !part.reply && matches!(part.kind.as_str(), "text" | "tool_result"));
        texts.map(|part| &*part.text)
    }

    /// The tool calls in the line.
    pub(crate) fn calls(&self) -> impl Iterator<Item = CallKey> {
        self.new_parts.iter().filter(|part| part.kind == "tool_use").map(CallKey::new)
    }

    /// The protocol that its client speaks to this provider.
    pub fn dialect(&self) -> Option<Dialect> {
        match self.provider.as_str() {
            "anthropic" => Some(Dialect::Anthropic),
            "openai" => Some(Dialect::OpenaiResponses),
            "gemini" => Some(Dialect::Gemini),
            _ => None,
        }
    }
}

/// A digest of a call's tool and arguments: the same for every call that requests the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct CallKey(u64);

impl CallKey {
    pub(super) fn new(part: &AddedPart) -> Self {
        let name = xxh3_64(part.name.as_deref().unwrap_or_default().as_bytes());
        Self(xxh3_64_with_seed(part.text.as_bytes(), name))
    }
}
