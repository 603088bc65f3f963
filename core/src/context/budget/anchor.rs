//! The turn that an estimate is based on, and what it says about its model.
//!
//! The provider reported what it cost, so an estimate has to count only what changed since.

use crate::context::{SketchPart, Turn};
use crate::dialect::models::Family;
use crate::tokens::learn;
use crate::tokens::retention::{ByRetention, CacheBlocks};

/// The turn that an estimate is based on, and all parts of its request (`Ledger::anchor_at`,
/// `Ledger::sketch`).
#[derive(Clone, Copy, Debug)]
pub struct Anchor<'a> {
    /// The turn; its usage must be known.
    pub turn: &'a Turn,
    /// All parts of its request, in order.
    pub sketch: &'a [SketchPart],
}

/// What a thread's first turn of Gemini read from its cache; `None` for other turns and models.
pub(super) fn cache_blocks(turn: &Turn) -> Option<CacheBlocks> {
    let is_first = turn.sketch.base.is_none();
    match turn.family {
        Family::Gemini if is_first => {
            Some(CacheBlocks::from_cache_read(turn.usage.cache_read.unwrap_or(0)))
        }
        _ => None,
    }
}

pub(super) fn evidence_of(turn: &Turn) -> ByRetention<f32> {
    let guess = turn.estimate.as_ref().map(|estimate| &estimate.guess);
    let context = turn.context();
    guess
        .zip(context)
        .map(|(guess, context)| learn::evidence_after(guess, context.input))
        .unwrap_or_default()
}

/// How much of each reply's reasoning does not count, as the thread showed up to this turn.
pub(super) fn uncounted(turn: &Turn) -> u64 {
    // Gemini reports only a part of it in some sessions; where else this was measured, all or nothing counts.
    if turn.family != Family::Gemini {
        return 0;
    }
    let guess = turn.estimate.as_ref().map(|estimate| &estimate.guess);
    let context = turn.context();
    guess.zip(context).map_or(0, |(guess, context)| learn::uncounted_after(guess, context.input))
}

pub(super) fn sum(parts: &[SketchPart]) -> u64 {
    parts.iter().map(|part| u64::from(part.tokens)).sum()
}
