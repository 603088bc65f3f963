//! Weights that were counted by length are counted again once the vocabulary is there.
//!
//! A part keeps its weight from request to request, so a guess would stay for ever: what a cut saves and what
//! is shown of each part would be wrong. Only a part that is sent again can be counted again. Pure.

use foldhash::{HashMap, HashSet};

use crate::context::SketchPart;
use crate::dialect::models::Model;
use crate::dialect::{Conversation, Part, PartKey, PartKind};
use crate::tokens::Tokenizer;

/// A `sketch` in which the parts of `conversation` that had been counted by length are counted with the
/// vocabulary; `None` if there are none, or still no vocabulary. It is counted by a counter of its own: none of
/// this is new text.
pub(super) fn recounted(
    conversation: &Conversation,
    body: &[u8],
    model: &Model,
    tokenizer: Tokenizer,
    sketch: &[SketchPart],
) -> Option<Vec<SketchPart>> {
    tokenizer.encoding?;
    let guessed = sketch.iter().filter(|part| part.by_length).map(|part| part.key);
    let guessed: HashSet<PartKey> = guessed.collect();
    if guessed.is_empty() {
        return None;
    }
    // A counter of its own: none of this is new text.
    let mut counter = tokenizer.counter(conversation, body, model);
    let mut counted: HashMap<PartKey, u32> = HashMap::default();
    let tools = conversation.tools.iter().enumerate();
    let loaded = first_loaded(conversation);
    let tools = tools.map(|(index, tool)| match loaded == Some(index) {
        true => (tool, counter.structure.loading),
        false => (tool, 0),
    });
    let tools: Vec<(&Part, u32)> = tools.collect();
    let messages = conversation.messages.iter().flat_map(|message| &message.parts);
    let parts = conversation.system.iter().chain(messages).map(|part| (part, 0));
    for (part, extra) in tools.into_iter().chain(parts) {
        let key = key_of(part, body);
        // A repeated part is counted once: the counter's work is bounded.
        if guessed.contains(&key) && !counted.contains_key(&key) {
            counted.insert(key, counter.part(part).saturating_add(extra));
        }
    }
    let mut recounted = sketch.to_vec();
    for part in recounted.iter_mut().filter(|part| part.by_length) {
        if let Some(&tokens) = counted.get(&part.key) {
            part.tokens = tokens;
            part.by_length = false;
        }
    }
    Some(recounted)
}

fn key_of(part: &Part, body: &[u8]) -> PartKey {
    let key = match part.kind {
        PartKind::Reasoning => part.reasoning_key.map(PartKey),
        _ => part.key,
    };
    key.unwrap_or_else(|| PartKey::of_bytes(part.span.slice(body)))
}

/// The first tool that appears in the history: with it comes the namespace that such tools are declared in.
pub(super) fn first_loaded(conversation: &Conversation) -> Option<usize> {
    conversation.tools.iter().position(|tool| tool.in_history)
}
