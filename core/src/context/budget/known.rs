//! The weights of an earlier request's parts: a part that is sent again keeps its own.
//!
//! Equal parts are matched one by one, in order. Counts no text.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;

use foldhash::HashMap;

use crate::context::{PromptSection, SketchPart, Turn};
use crate::dialect::PartKey;

/// Parts whose tokens are known.
#[derive(Default)]
pub(super) struct KnownCosts(HashMap<PartKey, KnownCost>);

struct KnownCost {
    /// The tokens of the first such part.
    tokens: u32,
    /// Whether they follow from the length of the text.
    by_length: bool,
    /// Whether the first one is not matched yet.
    is_left: bool,
    /// The tokens of the equal parts after it that are not matched yet: a reply shares its output among its
    /// parts, so that equal texts of several replies differ.
    more: VecDeque<u32>,
}

impl KnownCosts {
    pub(super) fn from_parts(parts: &[SketchPart]) -> Self {
        let mut costs = HashMap::with_capacity_and_hasher(parts.len(), Default::default());
        for &SketchPart { key, tokens, by_length, .. } in parts {
            match costs.entry(key) {
                Entry::Vacant(entry) => {
                    let more = VecDeque::new();
                    entry.insert(KnownCost { tokens, by_length, is_left: true, more });
                }
                Entry::Occupied(mut entry) => entry.get_mut().more.push_back(tokens),
            }
        }
        Self(costs)
    }

    pub(super) fn of_reply(turn: &Turn) -> Self {
        let mut costs = Self::from_parts(&turn.reply);
        for form in &turn.others {
            for (key, cost) in Self::from_parts(&form.parts).0 {
                match costs.0.entry(key) {
                    // Forms have the same parts; the one that repeats a part more often knows more of them.
                    Entry::Occupied(mut entry) if entry.get().more.len() < cost.more.len() => {
                        entry.get_mut().more = cost.more;
                    }
                    Entry::Occupied(_) => {}
                    Entry::Vacant(entry) => _ = entry.insert(cost),
                }
            }
        }
        costs
    }

    pub(super) fn tokens(&self, key: PartKey) -> Option<u32> {
        self.0.get(&key).map(|known| known.tokens)
    }

    pub(super) fn is_by_length(&self, key: PartKey) -> bool {
        self.0.get(&key).is_some_and(|known| known.by_length)
    }

    /// Tokens of the unmatched parts in the given prompt sections; matches them.
    pub(super) fn left(
        &mut self,
        sketch: &[SketchPart],
        is_there: fn(PromptSection) -> bool,
    ) -> u64 {
        let parts = sketch.iter().filter(|part| is_there(part.place));
        parts.filter_map(|part| self.take(part.key)).map(u64::from).sum()
    }

    /// The tokens of a part with this key if one is unmatched; matches it.
    pub(super) fn take(&mut self, key: PartKey) -> Option<u32> {
        let cost = self.0.get_mut(&key)?;
        match std::mem::take(&mut cost.is_left) {
            true => Some(cost.tokens),
            false => cost.more.pop_front(),
        }
    }
}
