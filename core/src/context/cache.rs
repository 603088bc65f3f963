//! Whether the provider's cache still holds what a request grew from (`docs/protocols.md` 7.4).
//!
//! Decides nothing: whether a cut is free, and what it would save, is asked of it.

use super::plan::{PlanRequest, RecordedDecisions};

const LONG_TTL_S: u64 = 3600;
/// What providers keep at least, and with the long marker (`docs/protocols.md` 7).
const SHORT_TTL_S: u64 = 300;

/// Whether the provider's cache of what the request grew from is cold: another model read it, its
/// time is over, or the provider said that it holds nothing.
pub fn is_cold(request: &PlanRequest<'_>, known: &RecordedDecisions) -> bool {
    let Some(parent) = &known.parent else { return false };
    let usage = &parent.usage;
    let long = usage.cache_write_long.is_some_and(|tokens| tokens > 0);
    let ttl = if long { LONG_TTL_S } else { request.model.cache_ttl_s.max(SHORT_TTL_S) };
    let idle = request.now.saturating_sub(parent.ended);
    let large = usage.input.is_some_and(|input| input >= request.model.cache_min);
    let empty = usage.cache_read == Some(0) && usage.cache_write.unwrap_or(0) == 0 && large;
    *parent.model != *request.name || idle > ttl * 1000 || empty
}
