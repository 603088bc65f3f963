//! The content of a response in a form that is the same for all dialects, assembled from its events.
//!
//! What is not known is `None` or empty. Must not know how a dialect or a transport writes it.

use serde::{Deserialize, Serialize};

use super::audience::Audience;
use super::key::{Chain, PartKey};
use super::kinds::PartKind;
use super::note::Note;
use super::provider_error::ProviderError;
use super::usage::Usage;
use crate::wire::json::Document;

/// Most bytes of deltas or parts, as in the stream, that are kept of one reply. A window of a million tokens
/// is 4 MB. Past it, text is dropped with [`Note::TooLong`]; usage is still read.
pub(super) const MOST_KEPT: usize = 32 << 20;

/// Why a reply ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The model had finished.
    End,
    /// The model waits for tool results.
    ToolUse,
    /// The output limit was reached.
    MaxTokens,
    /// The context window was full.
    WindowFull,
    /// Refused or filtered.
    Refused,
    /// The provider stopped for a compaction, or paused a long turn.
    Paused,
    /// The provider failed.
    Failed,
    /// Another reason.
    Other,
}

/// One part of a reply, assembled.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplyPart {
    /// What it is to the client.
    pub kind: PartKind,
    /// Who wrote it and will read it: calls of a program are not the model's.
    pub audience: Audience,
    /// Text, reasoning text, or a tool call's arguments as the provider wrote them.
    pub text: String,
    /// The call id of a tool call.
    pub id: Option<Box<str>>,
    /// The name of the called tool.
    pub name: Option<Box<str>>,
    /// Signature, encrypted content or redacted data. For reasoning without [`Self::raw`], it may be
    /// incomplete.
    pub signature: Option<Box<str>>,
    /// The block as a client would have to send it back, raw JSON. Only for reasoning, and only if it arrived
    /// whole. For APIs compatible with Chat Completions: `{"reasoning_content": …}`, the received field.
    pub raw: Option<Box<str>>,
    /// The key that the part will have in the next request.
    pub key: Option<PartKey>,
}

impl ReplyPart {
    /// A part with nothing else known yet.
    pub fn of(kind: PartKind) -> Self {
        Self {
            kind,
            audience: Audience::Model,
            text: String::new(),
            id: None,
            name: None,
            signature: None,
            raw: None,
            key: None,
        }
    }
}

/// The content of a response.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reply {
    /// The id that the provider gave the response.
    pub id: Option<Box<str>>,
    /// The model that answered.
    pub model: Option<Box<str>>,
    /// Text, calls and reasoning, in the order of the response.
    pub parts: Vec<ReplyPart>,
    /// The reported usage, as far as it came.
    pub usage: Usage,
    /// Why it ended; `None` while it has not.
    pub stop: Option<StopReason>,
    /// The dialect's terminal event (or the whole body) was seen: nothing more belongs to it.
    pub complete: bool,
    /// An error instead of the reply, or after it.
    pub error: Option<ProviderError>,
    /// Input tokens, if this answers a count endpoint.
    pub counted: Option<u64>,
    /// What was unexpected.
    pub notes: Vec<Note>,
}

impl Reply {
    /// The chain after this reply, if the request ended at `chain` and the client sends the whole reply back.
    pub fn chain_after(&self, chain: Chain) -> Chain {
        self.parts.iter().filter_map(|part| part.key).fold(chain, Chain::then)
    }

    /// The parts of an interrupted reply that its client can send back: without a call whose arguments are
    /// incomplete, and without a thought that was not signed yet, if others were.
    #[must_use]
    pub fn delivered(mut self) -> Self {
        let is_signed =
            |part: &ReplyPart| part.signature.as_deref().is_some_and(|it| !it.is_empty());
        let is_thought = |part: &&ReplyPart| part.kind == PartKind::Reasoning;
        let has_signed_thought = self.parts.iter().filter(is_thought).any(is_signed);
        let is_half = |part: &ReplyPart| match part.kind {
            PartKind::ToolCall => Document::read(part.text.as_bytes()).is_err(),
            PartKind::Reasoning => has_signed_thought && !is_signed(part),
            _ => false,
        };
        if !self.complete && self.parts.last().is_some_and(is_half) {
            self.parts.pop();
        }
        self
    }

    /// Each key with the parts that it stands for: one, or a run of texts that came in pieces, of which the
    /// last has the key (Gemini signs pieces).
    pub(crate) fn runs(&self) -> impl Iterator<Item = (PartKey, Vec<&ReplyPart>)> {
        let mut run = Vec::new();
        self.parts.iter().filter_map(move |part| match part.key {
            Some(key) => {
                let mut pieces = std::mem::take(&mut run);
                pieces.retain(|_| part.kind == PartKind::Text);
                pieces.push(part);
                Some((key, pieces))
            }
            None => {
                run.extend((part.kind == PartKind::Text).then_some(part));
                None
            }
        })
    }
}
