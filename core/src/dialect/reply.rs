//! The content of a response in a form that is the same for all dialects, assembled from its events.
//!
//! What is not known is `None` or empty. Must not know how a dialect or a transport writes it.

use foldhash::HashMap;
use serde::{Deserialize, Serialize};
use strum::{AsRefStr, EnumIter};

use super::audience::Audience;
use super::key::{Chain, Keyer, PartKey, ToolArguments};
use super::kinds::PartKind;
use super::note::Note;
use super::provider_error::ProviderError;
use super::usage::Usage;
use crate::wire::json::Document;

/// Most bytes of deltas or parts, as in the stream, that are kept of one reply. A window of a million tokens
/// is 4 MB. Past it, text is dropped with [`Note::TooLong`]; usage is still read.
const MOST_KEPT: usize = 32 << 20;
/// Most parts that are kept of one reply. Each event looks for its part among them, so this also bounds how
/// long that takes.
pub(super) const MOST_PARTS: usize = 2_048;
/// Most JSON values that are kept as such of one reply: reasoning in lists, arguments that come by their places.
pub(super) const MOST_VALUES: usize = 1 << 16;
/// What a part takes besides its text, bytes.
const PART_BYTES: usize = 256;

/// How much is kept of one reply. Past its limits text is dropped with [`Note::TooLong`]; usage is still read.
#[derive(Clone, Copy, Default)]
pub(super) struct KeptSize {
    bytes: usize,
    parts: usize,
}

impl KeptSize {
    /// Counts bytes of the stream; returns whether they may be kept.
    pub(super) fn add(&mut self, bytes: usize) -> bool {
        self.bytes = self.bytes.saturating_add(bytes);
        self.bytes <= MOST_KEPT
    }

    /// Counts parts; returns whether they may be kept.
    pub(super) fn add_parts(&mut self, parts: usize) -> bool {
        self.parts = self.parts.saturating_add(parts);
        self.parts <= MOST_PARTS
    }

    /// Whether another part may be kept.
    pub(super) fn has_room(&self) -> bool {
        self.parts < MOST_PARTS
    }

    /// Bytes of the stream that something was kept from, and of the parts that were made of them.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.saturating_add(self.parts.saturating_mul(PART_BYTES))
    }

    /// Whether something was dropped.
    pub(super) fn is_exceeded(&self) -> bool {
        self.bytes > MOST_KEPT || self.parts > MOST_PARTS
    }
}

/// Why a reply ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[derive(AsRefStr, EnumIter, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
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
    /// Further ids of a call that its server changed between the events of the reply, in the order in which they came.
    pub other_ids: Vec<Box<str>>,
}

/// Most ids of one call that are kept.
const MOST_IDS: usize = 3;

impl ReplyPart {
    /// A part with nothing else known yet.
    pub fn new(kind: PartKind) -> Self {
        Self {
            kind,
            audience: Audience::Model,
            text: String::new(),
            id: None,
            name: None,
            signature: None,
            raw: None,
            key: None,
            other_ids: Vec::new(),
        }
    }

    pub(super) fn add_id(&mut self, id: &str) {
        if self.kind == PartKind::ToolCall {
            add_other_id(&mut self.other_ids, self.id.as_deref(), id);
        }
    }
}

/// Adds a further id of a call, whose first one is `first`, unless it is known or there are enough.
pub(super) fn add_other_id(others: &mut Vec<Box<str>>, first: Option<&str>, id: &str) {
    let is_known = first == Some(id) || others.iter().any(|other| **other == *id);
    if !is_known && others.len() < MOST_IDS - 1 {
        others.push(id.into());
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
    /// Further replies, if the request asks for several: its client continues with any of them.
    pub choices: Vec<Vec<ReplyPart>>,
    /// The same parts in other forms, in which its client may have them: with other ids of calls, or without calls that
    /// the provider repeated.
    pub variants: Vec<Vec<ReplyPart>>,
    /// The reported usage, as far as it came.
    pub usage: Usage,
    /// Why it ended; `None` while it has not.
    pub stop: Option<StopReason>,
    /// The dialect's terminal event (or the whole body) was seen: nothing more belongs to it.
    pub complete: bool,
    /// The provider still makes it, in the background: the client reads it later by its id (`docs/protocols.md` 3.7).
    pub pending: bool,
    /// An error instead of the reply, or after it.
    pub error: Option<ProviderError>,
    /// Input tokens, if this answers a count endpoint.
    pub counted: Option<u64>,
    /// What was unexpected.
    pub notes: Vec<Note>,
}

impl Reply {
    /// All forms of the reply that its client may send back, the one in [`Self::parts`] first.
    pub fn forms(&self) -> impl Iterator<Item = &[ReplyPart]> {
        let others = self.choices.iter().chain(&self.variants);
        std::iter::once(&self.parts).chain(others).map(Vec::as_slice)
    }

    /// The chain after this reply, if the request ended at `chain` and the client sends all of its parts back.
    pub fn chain_after(&self, chain: Chain) -> Chain {
        chain_after(&self.parts, chain)
    }

    /// The parts of an interrupted reply that its client can send back: without a call whose arguments are
    /// incomplete, and without a thought that was not signed yet, if others were.
    #[must_use]
    pub fn delivered(mut self) -> Self {
        if !self.complete {
            let others = self.choices.iter_mut().chain(&mut self.variants);
            for parts in std::iter::once(&mut self.parts).chain(others) {
                drop_half(parts);
            }
        }
        self
    }

    /// Finds the other forms of the reply, once all of its parts are known.
    pub(super) fn find_variants(&mut self) {
        let others = self.parts.iter().map(|part| part.other_ids.len()).max().unwrap_or(0);
        let mut keyer = Keyer::default();
        for nth in 0..others {
            let mut parts = self.parts.clone();
            for part in &mut parts {
                let Some(id) = part.other_ids.get(nth).or(part.other_ids.last()) else { continue };

                let name = part.name.as_deref().unwrap_or_default();
                if part.key.is_some() {
                    part.key = keyer.tool_call(Some(id), name, ToolArguments::Text(&part.text));
                }
                part.id = Some(id.clone());
            }
            self.variants.push(parts);
        }
        self.variants.extend(without_repeats(&self.parts));
    }
}

/// The chain after the parts of a reply, if the request ended at `chain` and the client sends all of them back.
pub fn chain_after(parts: &[ReplyPart], chain: Chain) -> Chain {
    parts.iter().filter_map(|part| part.key).fold(chain, Chain::then)
}

/// Each key with the parts that it stands for: one, or a run of texts that came in pieces, of which the
/// last has the key (Gemini signs pieces).
pub fn runs(parts: &[ReplyPart]) -> impl Iterator<Item = (PartKey, Vec<&ReplyPart>)> {
    let mut run = Vec::new();
    parts.iter().filter_map(move |part| match part.key {
        Some(key) => {
            let mut pieces = std::mem::take(&mut run);
            pieces.retain(|_| part.kind == PartKind::Text);
            pieces.push(part);
            Some((key, pieces))
        }
        None => {
            if part.kind == PartKind::Text {
                run.push(part);
            }
            None
        }
    })
}

/// Drops the last part of an interrupted reply if it cannot be sent back.
fn drop_half(parts: &mut Vec<ReplyPart>) {
    let Some(last) = parts.last() else { return };
    let is_half = match last.kind {
        PartKind::ToolCall => Document::read(last.text.as_bytes()).is_err(),
        // Where no thought is signed, none has to be.
        PartKind::Reasoning => !is_signed_thought(last) && parts.iter().any(is_signed_thought),
        _ => false,
    };
    if is_half {
        parts.pop();
    }
}

fn is_signed_thought(part: &ReplyPart) -> bool {
    part.kind == PartKind::Reasoning
        && part.signature.as_deref().is_some_and(|signature| !signature.is_empty())
}

fn without_repeats(parts: &[ReplyPart]) -> Option<Vec<ReplyPart>> {
    // Calls with ids of their own are several.
    let mut places: HashMap<PartKey, usize> = HashMap::default();
    let mut repeats: Vec<(usize, usize)> = Vec::new();
    let calls = parts.iter().enumerate().filter(|(_, part)| part.kind == PartKind::ToolCall);
    for (index, part) in calls {
        let Some(key) = part.key else { continue };
        let original = *places.entry(key).or_insert(index);
        let has_own_id =
            part.id.is_some() && parts[original].id.is_some() && part.id != parts[original].id;
        if original != index && !has_own_id {
            repeats.push((index, original));
        }
    }
    if repeats.is_empty() {
        return None;
    }
    let mut once = parts.to_vec();
    for (index, original) in repeats.into_iter().rev() {
        let repeated = once.remove(index);
        let call = &mut once[original];
        call.signature = call.signature.take().or(repeated.signature);
    }
    Some(once)
}
