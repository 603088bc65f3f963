//! The keyed parts of a request, each with the key that decisions about it are stored under.
//!
//! Reads the request alone: what was decided before is not needed for it.

use foldhash::HashMap;

use crate::context::ledger;
use crate::context::lineage::Placement;
use crate::context::plan::about;
use crate::dialect::{Chain, Conversation, Dialect, PartIndex, PartKey, Role};

/// A part of the history with its key, and the key that decisions about it are stored under.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyedPart {
    /// Message and part.
    pub(super) at: PartIndex,
    pub(super) key: PartKey,
    /// The key that decisions about it are stored under.
    pub(super) about: u128,
    pub(super) role: Role,
}

pub(super) fn head(conversation: &Conversation) -> Chain {
    let parts = conversation.system.iter().chain(&conversation.tools);
    parts.filter_map(|part| part.key).fold(Chain::START, Chain::then)
}

pub(super) fn keyed_parts(conversation: &Conversation) -> Vec<KeyedPart> {
    // Ids in Gemini requests are made up by clients and identify nothing.
    let ids_count = conversation.dialect != Dialect::Gemini;
    let mut unique_ids: HashMap<&str, bool> = HashMap::default();
    let mut chains = conversation.chains().iter();
    let mut keyed_parts = Vec::with_capacity(conversation.chains().len());
    for (number, message) in conversation.messages.iter().enumerate() {
        for (index, part) in message.parts.iter().enumerate() {
            let Some(key) = part.key else { continue };
            let Some(chain) = chains.next() else { continue };
            let has_own_id = match part.id.as_deref() {
                Some(id) if ids_count && !id.is_empty() => {
                    let name = part.name.as_deref().unwrap_or_default();
                    // A result rarely names its tool; its call, which came earlier, does.
                    *unique_ids.entry(id).or_insert_with(|| ledger::is_own(id, name))
                }
                _ => false,
            };
            let about = about(key, *chain, has_own_id);
            keyed_parts.push(KeyedPart {
                at: PartIndex::new(number, index),
                key,
                about,
                role: part.role,
            });
        }
    }
    keyed_parts
}

/// The message at which a prefill begins: words at the end that the client wrote for the model to go on from. Without a
/// parent turn they may as well be a reply; the parent's own may be sent back to be continued.
pub(super) fn prefill(
    conversation: &Conversation,
    keyed_parts: &[KeyedPart],
    placed: &Placement,
) -> Option<usize> {
    placed.parent.as_ref()?;
    let messages = &conversation.messages;
    let written = messages.iter().rev().take_while(|message| message.role == Role::Assistant);
    let reply_start = messages.len() - written.count();
    let parts_before = keyed_parts.partition_point(|keyed| keyed.at.message < reply_start);
    let is_reply = placed.covers > parts_before;
    if parts_before < keyed_parts.len() && !is_reply { Some(reply_start) } else { None }
}
