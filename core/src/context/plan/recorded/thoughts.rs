//! The reasoning that the parent turn sent, and with which replies.
//!
//! A model without signatures may think the same twice. Then the parts beside it tell with which reply it was sent.

use foldhash::{HashMap, HashSet, HashSetExt as _};

use super::reply::ReturnedReply;
use crate::context::{PromptSection, ReasoningBlock, ReasoningRecord, SketchPart, reasoning};
use crate::dialect::{Chain, PartKey};

#[derive(Debug, Default)]
pub(super) struct SentThoughts {
    keys: HashSet<PartKey>,
    /// Each with the part of the history before it, and with the one after it.
    beside: HashSet<(PartKey, PartKey)>,
}

impl SentThoughts {
    pub(super) fn new(sent: &[SketchPart]) -> Self {
        let mut thoughts = Self { keys: HashSet::new(), beside: HashSet::new() };
        let mut previous = None;
        let mut open: Vec<PartKey> = Vec::new();
        for part in sent {
            if is_reasoning(part) {
                thoughts.keys.insert(part.key);
                thoughts.beside.extend(previous.map(|previous| (part.key, previous)));
                open.push(part.key);
            } else if part.place == PromptSection::History {
                thoughts.beside.extend(open.drain(..).map(|thought| (thought, part.key)));
                previous = Some(part.key);
            }
        }
        thoughts
    }

    pub(super) fn has(&self, key: PartKey) -> bool {
        self.keys.contains(&key)
    }

    /// Whether the reasoning of a reply was sent. `repeats`: another reply has the same.
    pub(super) fn have(&self, reasoning: &ReasoningRecord, repeats: bool) -> bool {
        !self.keys.is_empty()
            && names(reasoning).any(|name| {
                self.keys.contains(&name)
                    && (!repeats
                        || reasoning.parts.iter().any(|part| self.beside.contains(&(name, *part))))
            })
    }
}

/// The replies whose reasoning is to the letter that of another one.
pub(super) fn repeated(replies: &[ReturnedReply]) -> HashSet<Chain> {
    let mut first: HashMap<&str, Chain> = HashMap::default();
    let mut repeated = HashSet::default();
    for returned in replies {
        let after = returned.reasoning.after;
        for block in &returned.reasoning.blocks {
            let other = *first.entry(&*block.raw).or_insert(after);
            if other != after {
                repeated.extend([other, after]);
            }
        }
    }
    repeated
}

pub(super) fn is_reasoning(part: &SketchPart) -> bool {
    matches!(
        part.place,
        PromptSection::Reasoning | PromptSection::SteeredReasoning | PromptSection::OldReasoning
    )
}

/// The keys that a reply's reasoning can have in a sketch: put back by us, or sent by its client.
pub(super) fn names(reasoning: &ReasoningRecord) -> impl Iterator<Item = PartKey> + '_ {
    let blocks = reasoning.blocks.iter().flat_map(block_names);
    blocks.chain(reasoning.signatures.iter().map(|one| PartKey::of_signature(&one.value)))
}

pub(super) fn block_names(block: &ReasoningBlock) -> impl Iterator<Item = PartKey> + '_ {
    let raw = PartKey::of_bytes(block.raw.as_bytes());
    reasoning::reasoning_key(&block.raw).into_iter().chain([raw])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same thought beside two calls, of which one was sent with it.
    #[test]
    fn equal_thought_counts_where_it_was_sent() {
        let part =
            |key, place| SketchPart { key: PartKey(key), tokens: 1, place, by_length: false };
        let mut reasoning = ReasoningRecord {
            at: 1,
            model: "m".into(),
            upstream: "u".into(),
            blocks: vec![ReasoningBlock {
                before: 0,
                hosted: 0,
                leads: false,
                raw: "{\"reasoning_content\":\"Hm.\"}".into(),
                partial: false,
            }],
            parts: vec![PartKey(1)],
            ..ReasoningRecord::default()
        };
        let name = names(&reasoning).next().unwrap();
        let sent = [
            part(1, PromptSection::History),
            part(2, PromptSection::History),
            part(name.0, PromptSection::Reasoning),
            part(3, PromptSection::History),
        ];
        let thoughts = SentThoughts::new(&sent);
        assert!(thoughts.have(&reasoning, false));
        assert!(!thoughts.have(&reasoning, true));
        reasoning.parts = vec![PartKey(3)];
        assert!(thoughts.have(&reasoning, true));
    }
}
