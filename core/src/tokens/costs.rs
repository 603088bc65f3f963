//! What a token of each class of o200k costs with tokenizers that are not public.
//!
//! As they were fitted (`docs/estimates.md` 1.3), or as they are given: so a fit is measured on sessions that it left
//! out. A [`Tokenizer`](super::Tokenizer) holds one or the other. Knows no text.

use super::features::CLASSES;
use super::fitted;
use crate::dialect::models::Family;

/// A cost for each class, tokens.
pub type Costs = [f32; CLASSES];

/// What a family's tokens cost in place of what was fitted.
#[derive(Clone, Copy, Debug)]
pub struct FamilyCosts {
    pub(super) family: Family,
    pub(super) costs: &'static Costs,
}

impl FamilyCosts {
    /// `None` where they cannot be costs, or the family has none.
    pub fn new(family: Family, costs: &'static Costs) -> Option<Self> {
        let is_sane = costs.iter().all(|cost| (0.0..1_000.0).contains(cost));
        (is_sane && fitted(family).is_some()).then_some(Self { family, costs })
    }
}

/// What a family's tokens cost, where that was fitted.
pub(super) fn fitted(family: Family) -> Option<&'static Costs> {
    match family {
        Family::Claude => Some(&fitted::CLAUDE),
        Family::ClaudeNew => Some(&fitted::CLAUDE_NEW),
        Family::Gemini => Some(&fitted::GEMINI),
        Family::O200k | Family::Cl100k | Family::Other => None,
    }
}
