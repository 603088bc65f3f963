//! The items of a reply: as they come in events, and found again in the response that ends the stream
//! (`docs/protocols.md` 3.1).
//!
//! Some servers list the same call with another id there, or stubs. Must not know the events.

use std::collections::{BTreeMap, VecDeque};

use foldhash::HashMap;

use super::items;
use crate::dialect::key::{Keyer, ToolArguments};
use crate::dialect::{PartKind, ReplyPart, Role};
use crate::wire::json::Value;

/// An item of a reply, as far as it has come.
#[derive(Default)]
pub(super) struct OutputItem {
    pub(super) index: Option<u64>,
    pub(super) id: Option<Box<str>>,
    /// Its type.
    pub(super) kind: Option<Box<str>>,
    /// The item as last received: kind, name, call id.
    pub(super) shown: Vec<ReplyPart>,
    /// What it costs beside tokens.
    pub(super) fee: ItemFee,
    /// It has arrived whole.
    pub(super) done: bool,
    /// The text of its deltas, by place: content or summary, with its index.
    pub(super) grown: BTreeMap<(DeltaTarget, u64), String>,
}

/// What an item costs beside its tokens ("Pricing", OpenAI's documentation).
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum ItemFee {
    /// Nothing.
    #[default]
    Free,
    /// A search of the web.
    Search,
    /// A search of uploaded files.
    FileSearch,
    /// The time of a container, or a picture: the reply does not tell how much.
    Untold,
}

impl ItemFee {
    pub(super) fn from_item(item: Value<'_>) -> Self {
        let action = item.path(&["action", "type"]).and_then(|action| action.text());
        match item.get_text("type").as_deref() {
            // Opening a page that was found, and looking for words in it, are free ("Web search", OpenAI's
            // documentation).
            Some("web_search_call") if action.is_none_or(|action| action == "search") => {
                Self::Search
            }
            Some("file_search_call") => Self::FileSearch,
            // Of a shell that the client runs, the result is in its next request.
            Some("code_interpreter_call" | "shell_call_output" | "image_generation_call") => {
                Self::Untold
            }
            _ => Self::Free,
        }
    }
}

/// The target of a delta.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DeltaTarget {
    Summary,
    Reasoning,
    Text,
    Arguments,
}

impl OutputItem {
    /// Bytes of text: of the item if it is complete, else of its deltas.
    pub(super) fn bytes(&self) -> usize {
        match self.done {
            true => self.shown.iter().map(|part| part.text.len()).sum(),
            false => self.grown.values().map(String::len).sum(),
        }
    }

    /// The item's parts; if it broke off, what was received of it. `whole`: the response is complete, so that its calls are
    /// whole.
    pub(super) fn finished(self, whole: bool, keyer: &mut Keyer) -> Vec<ReplyPart> {
        if self.done || self.grown.is_empty() {
            let mut parts = self.shown;
            if !self.done {
                for part in &mut parts {
                    forget_wholeness(part, whole);
                }
            }
            return parts;
        }
        let mut parts = Vec::new();
        // What the item had when it was opened belongs to its first part.
        let mut opened = self.shown.into_iter().next();
        for ((target, _), text) in self.grown {
            let mut part = ReplyPart::new(target.kind());
            part.key = match target {
                DeltaTarget::Text => keyer.text(Role::Assistant, &text),
                DeltaTarget::Summary | DeltaTarget::Reasoning | DeltaTarget::Arguments => None,
            };
            if let Some(opened) = opened.take() {
                part.id = opened.id;
                part.name = opened.name;
                part.other_ids = opened.other_ids;
                part.kind = if target == DeltaTarget::Arguments { opened.kind } else { part.kind };
            }
            if whole && part.kind == PartKind::ToolCall {
                let name = part.name.as_deref().unwrap_or_default();
                let id = part.id.as_deref().map(items::own_id);
                part.key = keyer.tool_call(id, name, ToolArguments::Text(&text));
            }
            part.text = text;
            parts.push(part);
        }
        parts
    }
}

impl DeltaTarget {
    fn kind(self) -> PartKind {
        match self {
            Self::Summary | Self::Reasoning => PartKind::Reasoning,
            Self::Text => PartKind::Text,
            Self::Arguments => PartKind::ToolCall,
        }
    }
}

fn forget_wholeness(part: &mut ReplyPart, whole: bool) {
    // An item that only opened cannot be sent back.
    part.raw = None;
    part.signature = None;
    if !whole {
        part.key = None;
    }
}

pub(super) fn is_empty_text(part: &ReplyPart) -> bool {
    part.kind == PartKind::Text && part.text.is_empty()
}

/// The items that were streamed, each to be found once in the final response: by its id or call id, else as the next one
/// of its type.
pub(super) struct StreamedItems {
    by_id: HashMap<(Option<Box<str>>, Box<str>), usize>,
    by_kind: HashMap<Option<Box<str>>, VecDeque<usize>>,
    is_taken: Vec<bool>,
}

impl StreamedItems {
    pub(super) fn new(slots: &[OutputItem]) -> Self {
        let mut by_id = HashMap::default();
        let mut by_kind = HashMap::<_, VecDeque<_>>::default();
        let mut order: Vec<usize> = (0..slots.len()).collect();
        order.sort_by_key(|at| slots[*at].index.unwrap_or(u64::MAX));
        for at in order {
            let slot = &slots[at];
            let ids = slot.shown.iter().filter_map(|part| part.id.clone());
            by_id.extend(ids.chain(slot.id.clone()).map(|id| ((slot.kind.clone(), id), at)));
            by_kind.entry(slot.kind.clone()).or_default().push_back(at);
        }
        Self { by_id, by_kind, is_taken: vec![false; slots.len()] }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.is_taken.is_empty()
    }

    pub(super) fn take(&mut self, item: Value<'_>) -> Option<usize> {
        if self.is_empty() {
            return None;
        }
        let [kind, id, call_id] =
            item.members(["type", "id", "call_id"]).map(|member| member?.text());
        let kind = Some(kind.as_deref().unwrap_or("message").into());
        let ids = [call_id, id].into_iter().flatten();
        let same_id = ids.filter_map(|id| self.by_id.get(&(kind.clone(), id.into()))).next();
        let mut slot = same_id.copied().filter(|slot| !self.is_taken[*slot]);
        // Without its id, an item is the next one of its kind, or of a kind that nobody named.
        for kind in [&kind, &None] {
            let Some(waiting) = self.by_kind.get_mut(kind) else { continue };
            while slot.is_none()
                && let Some(next) = waiting.pop_front()
            {
                slot = Some(next).filter(|slot| !self.is_taken[*slot]);
            }
        }
        let slot = slot?;
        self.is_taken[slot] = true;
        Some(slot)
    }
}
