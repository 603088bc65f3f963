//! Whether the provider's cache still has the prefix of a request (`docs/protocols.md` 7.4).
//!
//! Decides nothing itself: other modules ask it whether a cut is free and what it would save.

use super::plan::{PlanRequest, RecordedDecisions};

const LONG_TTL_S: u64 = 3600;
/// How long providers keep a cache entry at least, seconds; above, with the long marker (`docs/protocols.md`
/// 7).
const SHORT_TTL_S: u64 = 300;

/// Whether the provider's cache of the parent's request is cold: another model read it, its lifetime is over,
/// or the provider reported that nothing was cached.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::Turn;
    use crate::context::scene::{SessionFixture, messages};

    /// Whether it is cold so many seconds, and one millisecond more, after such a turn.
    fn cold_after(ttl_s: u64, seconds: u64, with: impl Fn(&mut Turn)) -> [bool; 2] {
        let mut scene = SessionFixture::of("claude-opus-4-6", &messages("ucr"));
        (scene.model.cache_ttl_s, scene.model.cache_min) = (ttl_s, 500);
        let known = scene.grown_from(with);
        [0, 1].map(|more| {
            scene.now = 1 + seconds * 1000 + more;
            is_cold(&scene.request(), &known)
        })
    }

    #[test]
    fn a_cache_is_cold_once_its_time_is_over() {
        assert_eq!(cold_after(600, 600, |_| {}), [false, true]);
        assert_eq!(cold_after(0, 300, |_| {}), [false, true], "nothing is promised");
        let long = |tokens| move |turn: &mut Turn| turn.usage.cache_write_long = tokens;
        assert_eq!(cold_after(300, 3600, long(Some(1))), [false, true], "the long marker");
        assert_eq!(cold_after(300, 300, long(Some(0))), [false, true]);
        assert!(!is_cold(
            &SessionFixture::of("claude-opus-4-6", &messages("u")).request(),
            &RecordedDecisions::default()
        ));
    }

    #[test]
    fn a_cache_is_cold_for_another_model() {
        assert_eq!(cold_after(300, 0, |turn| turn.model = "other".into()), [true, true]);
    }

    /// Of a prompt that is large enough to be kept, nothing was read and nothing was written.
    #[test]
    fn a_cache_is_cold_where_the_provider_said_that_it_holds_nothing() {
        let of = |input, read, write| {
            cold_after(300, 0, move |turn| {
                (turn.usage.input, turn.usage.cache_read) = (input, read);
                turn.usage.cache_write = write;
            })[0]
        };
        assert!(of(Some(500), Some(0), Some(0)) && of(Some(501), Some(0), None));
        assert!(!of(Some(499), Some(0), None), "too small to be kept");
        assert!(!of(None, Some(0), None), "nobody knows how large it is");
        assert!(!of(Some(500), None, None), "nothing was said");
        assert!(!of(Some(500), Some(1), Some(0)) && !of(Some(500), Some(0), Some(1)));
    }
}
