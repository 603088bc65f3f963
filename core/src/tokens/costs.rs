//! What a token of o200k costs with tokenizers that are not public.
//!
//! The costs are the fitted ones (`docs/estimates.md` 1.3) or given ones: a fit is measured with given ones,
//! on sessions that it left out. A [`Tokenizer`](super::Tokenizer) holds one or the other. Knows no text.

use std::sync::OnceLock;

use super::bpe::{self, Encoding};
use super::features::CLASSES;
use super::fitted;
use crate::dialect::models::Family;

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
    fn by_rank(self, encoding: &Encoding) -> Box<Costs> {
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

    fn is_sane(self) -> bool {
        let more = self.frequent.iter().map(|(_, more)| more);
        self.classes.iter().chain(more).all(|cost| cost.abs() < 1_000.0)
    }
}

/// Costs of a family's tokens that replace the fitted ones.
#[derive(Clone, Copy, Debug)]
pub struct FamilyCosts {
    pub(super) family: Family,
    pub(super) costs: &'static Costs,
}

impl FamilyCosts {
    /// `None` if the values cannot be costs, or the family has no fitted costs. They are never freed.
    pub fn new(family: Family, costs: TokenCosts<'_>) -> Option<Self> {
        let encoding = bpe::load(family).filter(|_| costs.is_sane())?;
        fitted(family, encoding)?;
        Some(Self { family, costs: Box::leak(costs.by_rank(encoding)) })
    }
}

/// The fitted costs of a family whose tokens are estimated with `encoding`.
pub(super) fn fitted(family: Family, encoding: &Encoding) -> Option<&'static Costs> {
    static BY_RANK: [OnceLock<Box<Costs>>; 3] = [const { OnceLock::new() }; 3];
    let (at, costs) = match family {
        Family::Claude => (0, fitted::CLAUDE),
        Family::ClaudeNew => (1, fitted::CLAUDE_NEW),
        Family::Gemini if !bpe::is_exact(family) => (2, fitted::GEMINI),
        Family::Gemini | Family::O200k | Family::Cl100k | Family::Other => return None,
    };
    Some(BY_RANK[at].get_or_init(|| costs.by_rank(encoding)))
}
