//! The weights of an earlier request's parts: a part that is sent again keeps its own.
//!
//! Equal parts are matched one by one. Counts no text.

use foldhash::HashMap;

use crate::context::{PromptSection, SketchPart, Turn};
use crate::dialect::PartKey;

/// Parts whose tokens are known.
#[derive(Default)]
pub(super) struct KnownCosts(HashMap<PartKey, KnownCost>);

struct KnownCost {
    tokens: u32,
    /// Whether they follow from the length of the text.
    by_length: bool,
    /// How many equal parts are not matched yet.
    left: u32,
}

impl KnownCosts {
    pub(super) fn of(parts: &[SketchPart]) -> Self {
        let mut known: HashMap<PartKey, KnownCost> =
            HashMap::with_capacity_and_hasher(parts.len(), Default::default());
        for &SketchPart { key, tokens, by_length, .. } in parts {
            known.entry(key).or_insert(KnownCost { tokens, by_length, left: 0 }).left += 1;
        }
        Self(known)
    }

    /// The parts of a turn's reply, in whichever form it comes back.
    pub(super) fn of_reply(turn: &Turn) -> Self {
        let mut known = Self::of(&turn.reply);
        for form in &turn.others {
            for (key, cost) in Self::of(&form.parts).0 {
                let left = cost.left;
                let known = known.0.entry(key).or_insert(cost);
                known.left = known.left.max(left);
            }
        }
        known
    }

    /// The tokens of a part with this key.
    pub(super) fn tokens(&self, key: PartKey) -> Option<u32> {
        self.0.get(&key).map(|known| known.tokens)
    }

    /// Whether the tokens of such parts follow from the length of the text.
    pub(super) fn is_by_length(&self, key: PartKey) -> bool {
        self.0.get(&key).is_some_and(|known| known.by_length)
    }

    /// Tokens of the unmatched parts in the given prompt sections; matches them.
    pub(super) fn left(
        &mut self,
        sketch: &[SketchPart],
        is_there: fn(PromptSection) -> bool,
    ) -> u64 {
        let there = sketch.iter().filter(|part| is_there(part.place));
        there.filter_map(|part| self.take(part.key)).map(u64::from).sum()
    }

    /// The tokens of a part with this key if one is unmatched; matches it.
    pub(super) fn take(&mut self, key: PartKey) -> Option<u32> {
        let known = self.0.get_mut(&key)?;
        known.left = known.left.checked_sub(1)?;
        Some(known.tokens)
    }
}
