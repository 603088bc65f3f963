//! The costs of tokens as they are fitted: by class, with a correction for frequent tokens.
//!
//! Below the fitted values and what looks them up. Knows no text.

use super::bpe::Encoding;
use super::features::CLASSES;

/// What tokens cost: most of them as much as their class, frequent ones more or less.
#[derive(Clone, Copy, Debug)]
pub struct TokenCosts<'c> {
    /// The cost of each class, tokens.
    pub classes: &'c [f32; CLASSES],
    /// How much more frequent tokens cost than their class, by rank.
    pub frequent: &'c [(u32, f32)],
}

/// A cost for each token, by rank.
pub(super) type Costs = [f32];

/// The lowest cost of a token.
const LEAST: f32 = 0.1;

impl TokenCosts<'_> {
    /// The cost of each token of `encoding`.
    pub(super) fn by_rank(self, encoding: &Encoding) -> Box<Costs> {
        let classes = encoding.classes().iter().map(|class| usize::from(*class));
        let mut costs: Box<Costs> =
            classes.map(|class| self.classes.get(class).copied().unwrap_or(1.0)).collect();
        for (rank, more) in self.frequent {
            if let Some(cost) = costs.get_mut(*rank as usize) {
                *cost += more;
            }
        }
        for cost in &mut costs {
            *cost = cost.max(LEAST);
        }
        costs
    }

    /// Whether no cost is out of all proportion.
    pub(super) fn is_sane(self) -> bool {
        let more = self.frequent.iter().map(|(_, more)| more);
        self.classes.iter().chain(more).all(|cost| cost.abs() < 1_000.0)
    }
}
