//! What a token of each o200k class costs with tokenizers that are not public.
//!
//! The costs are the fitted ones (`docs/estimates.md` 1.3) or given ones: a fit is measured with given ones,
//! on sessions that it left out. A [`Tokenizer`](super::Tokenizer) holds one or the other. Knows no text.

use super::features::CLASSES;
use super::fitted;
use crate::dialect::models::Family;

/// A cost for each class, tokens.
pub(super) type Costs = [f32; CLASSES];

/// Costs of a family's tokens that replace the fitted ones.
#[derive(Clone, Copy, Debug)]
pub struct FamilyCosts {
    pub(super) family: Family,
    pub(super) costs: &'static Costs,
}

impl FamilyCosts {
    /// `None` if the values cannot be costs, or the family has no fitted costs.
    pub fn new(family: Family, costs: &'static Costs) -> Option<Self> {
        let is_sane = costs.iter().all(|cost| (0.0..1_000.0).contains(cost));
        if is_sane && fitted(family).is_some() { Some(Self { family, costs }) } else { None }
    }
}

pub(super) fn fitted(family: Family) -> Option<&'static Costs> {
    match family {
        Family::Claude => Some(&fitted::CLAUDE),
        Family::ClaudeNew => Some(&fitted::CLAUDE_NEW),
        Family::Gemini => Some(&fitted::GEMINI),
        Family::O200k | Family::Cl100k | Family::Other => None,
    }
}
