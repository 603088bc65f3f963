//! The band of a first call: nothing of such a prompt was ever reported.
//!
//! What stands around parts and tools is the provider's own, and weighs most in small prompts. Measured on
//! recorded first calls; knows nothing of what was learned.

use crate::dialect::models::Family;

/// Nine times in ten no fewer and no more tokens than these: shares of the estimate, by tokenizer and size
/// (`docs/estimates.md`, "First calls").
pub(super) fn cold_band(family: Family, tokens: u64) -> (u64, u64) {
    let class = match tokens {
        ..200 => 0,
        200..1_000 => 1,
        _ => 2,
    };
    let (low, high) = match family {
        Family::O200k | Family::Cl100k => [(0.7, 2.3), (0.6, 1.25), (0.6, 1.4)],
        Family::Gemini => [(0.25, 1.5), (0.5, 1.5), (0.2, 1.5)],
        Family::Claude => [(0.9, 3.0), (0.65, 1.3), (0.55, 2.6)],
        Family::ClaudeNew => [(0.75, 1.5), (0.75, 1.3), (0.75, 1.5)],
        Family::Other => [(0.25, 6.0), (0.6, 3.5), (0.8, 1.8)],
    }[class];
    // A few tokens of structure are the half of a prompt of ten.
    let least = (tokens as f64 * low) as u64;
    let most = (tokens as f64 * high).ceil() as u64;
    (least.min(tokens.saturating_sub(3)), most.max(tokens.saturating_add(3)))
}
