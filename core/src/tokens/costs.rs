//! What a token of o200k costs with tokenizers that are not public.
//!
//! The costs are the fitted ones (`docs/estimates.md` 1.3) or given ones: a fit is measured with given ones,
//! on sessions that it left out. A [`Tokenizer`](super::Tokenizer) holds one or the other. Knows no text.

use std::sync::OnceLock;

use super::bpe::{self, Encoding};
use super::fitted;
use super::token_costs::Costs;
pub use super::token_costs::TokenCosts;
use crate::dialect::models::Family;

/// Costs of a family's tokens that replace the fitted ones.
#[derive(Clone, Copy, Debug)]
pub struct FamilyCosts {
    pub(super) family: Family,
    pub(super) costs: &'static Costs,
}

impl FamilyCosts {
    /// `None` if the values cannot be costs, or the family has no fitted costs. They are never freed.
    pub fn new(family: Family, costs: TokenCosts<'_>) -> Option<Self> {
        if !costs.is_sane() {
            return None;
        }
        let encoding = bpe::load(family)?;
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
