//! Whether the provider's cache still has the prefix of a request (`docs/protocols.md` 7.4).
//!
//! Decides nothing itself: other modules ask it whether a cut is free and what it would save.

use super::Turn;
use super::plan::{PlanRequest, RecordedDecisions};
use crate::dialect::Usage;
use crate::dialect::models::{Family, Model};

/// Whether the provider's cache of the parent's request is cold: another model read it, its lifetime is over,
/// or it holds nothing.
pub fn is_cold(request: &PlanRequest<'_>, known: &RecordedDecisions) -> bool {
    let Some(parent) = &known.parent else { return false };
    let idle = request.now.saturating_sub(parent.ended);
    *parent.model != *request.name
        || idle > parent.usage.cache_ttl_ms(request.model.cache_ttl_s)
        || is_empty(request, known, parent)
}

/// Whether nothing is cached after the parent's call, which read nothing from the cache (`docs/protocols.md`
/// 7.4).
fn is_empty(request: &PlanRequest<'_>, known: &RecordedDecisions, parent: &Turn) -> bool {
    let model = request.model;
    if !missed(model, &parent.usage) {
        return false;
    }
    // A provider that bills cache writes reports them, so none were made.
    let is_claude = matches!(model.family, Family::Claude | Family::ClaudeNew);
    let bills_writes =
        is_claude || model.price.is_some_and(|price| price.cache_write > price.input);
    if bills_writes && parent.usage.cache_write.is_some() {
        return true;
    }
    // An automatic cache is filled by the call that misses it, which no usage shows. So there is no cache
    // only if the parent's call missed what the call before had filled it with.
    let Some(repeated) = &known.repeated_prefix else { return false };
    let earlier = &repeated.of;
    let is_its = earlier.model == parent.model && earlier.upstream == parent.upstream;
    let idle = parent.at.checked_sub(earlier.ended);
    let was_alive = idle.is_some_and(|idle| idle <= earlier.usage.cache_ttl_ms(model.cache_ttl_s));
    missed(model, &earlier.usage) && is_its && was_alive && repeated.tokens >= model.cache_min
}

fn missed(model: &Model, usage: &Usage) -> bool {
    let is_large = usage.input.is_some_and(|input| input >= model.cache_min);
    usage.cache_read == Some(0) && usage.cache_write.unwrap_or(0) == 0 && is_large
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::Turn;
    use crate::context::ledger::RepeatedPrefix;
    use crate::context::scene::{SessionFixture, messages};

    /// Whether the cache is cold this many seconds after such a turn, and whether it is one millisecond later.
    fn cold_after(ttl_s: u64, seconds: u64, with: impl Fn(&mut Turn)) -> [bool; 2] {
        let mut scene = SessionFixture::new("claude-opus-4-6", &messages("ucr"));
        (scene.model.cache_ttl_s, scene.model.cache_min) = (ttl_s, 500);
        let known = scene.grown_from(with);
        [0, 1].map(|more| {
            scene.now = 1 + seconds * 1000 + more;
            is_cold(&scene.request(), &known)
        })
    }

    #[test]
    fn cache_is_cold_after_its_time() {
        assert_eq!(cold_after(600, 600, |_| {}), [false, true]);
        assert_eq!(cold_after(0, 300, |_| {}), [false, true], "nothing is promised");
        let long = |tokens| move |turn: &mut Turn| turn.usage.cache_write_long = tokens;
        assert_eq!(cold_after(300, 3600, long(Some(1))), [false, true], "the long marker");
        assert_eq!(cold_after(300, 300, long(Some(0))), [false, true]);
        assert!(!is_cold(
            &SessionFixture::new("claude-opus-4-6", &messages("u")).request(),
            &RecordedDecisions::default()
        ));
    }

    #[test]
    fn cache_is_cold_for_another_model() {
        assert_eq!(cold_after(300, 0, |turn| turn.model = "other".into()), [true, true]);
    }

    /// The prompt was large enough to be cached, and a provider that bills and reports cache writes reported that
    /// nothing was read or written. If it does not report writes, that proves nothing.
    #[test]
    fn cache_is_cold_where_provider_reported_that_it_holds_nothing() {
        let of = |input, read, write| {
            cold_after(300, 0, move |turn| {
                (turn.usage.input, turn.usage.cache_read) = (input, read);
                turn.usage.cache_write = write;
            })[0]
        };
        assert!(of(Some(500), Some(0), Some(0)));
        assert!(!of(Some(501), Some(0), None));
        assert!(!of(Some(499), Some(0), Some(0)), "too small to be kept");
        assert!(!of(None, Some(0), Some(0)), "nobody knows how large it is");
        assert!(!of(Some(500), None, Some(0)), "nothing was said");
        assert!(!of(Some(500), Some(1), Some(0)));
        assert!(!of(Some(500), Some(0), Some(1)));
    }

    /// A change of a turn, and of how many of its tokens the next one began with.
    type Change<'a> = &'a dyn Fn(&mut Turn, &mut u64);

    /// Whether a model's cache is cold after a call of 9,000 tokens that read nothing from it and reported `write`.
    /// `before` changes the call before it, which began with the same 1,500 tokens and ended 1 s before the later one
    /// began, at 400 s.
    fn cold_after_a_miss(
        model: &'static str,
        write: Option<u64>,
        before: Option<Change<'_>>,
    ) -> bool {
        let mut scene = SessionFixture::new(model, &messages("ucr"));
        let miss = |turn: &mut Turn| {
            (turn.usage.input, turn.usage.cache_read) = (Some(9_000), Some(0));
            turn.usage.cache_write = write;
            (turn.at, turn.ended) = (400_000, 401_000);
        };
        scene.now = 402_000;
        let mut known = scene.grown_from(miss);
        known.repeated_prefix = before.map(|with| {
            let mut turn = Turn::clone(known.parent.as_ref().unwrap());
            let mut tokens = 1_500;
            (turn.at, turn.ended) = (398_000, 399_000);
            with(&mut turn, &mut tokens);
            RepeatedPrefix { of: turn.into(), tokens }
        });
        is_cold(&scene.request(), &known)
    }

    /// If an automatic cache did not have a prompt, it has it afterwards, though usage does not report the write
    /// (OpenAI's Chat) or reports 0 because writes are free (its Responses).
    #[test]
    fn miss_that_filled_automatic_cache_leaves_it_warm() {
        for model in ["gpt-5.4", "gemini-2.5-pro", "somebodys-own"] {
            for write in [None, Some(0)] {
                assert!(!cold_after_a_miss(model, write, None), "{model} {write:?}");
            }
        }
        // Where writes are billed, they are reported.
        for model in ["gpt-5.6", "claude-opus-4-6"] {
            assert!(cold_after_a_miss(model, Some(0), None), "{model}");
            assert!(!cold_after_a_miss(model, None, None), "{model}");
        }
    }

    /// If a provider misses what it read a moment ago, it has no cache, whatever it reports.
    #[test]
    fn two_misses_in_row_show_that_there_is_no_cache() {
        let after = |with: Change<'_>| {
            ["gpt-5.4", "somebodys-own"].map(|model| cold_after_a_miss(model, None, Some(with)))
        };
        assert_eq!(after(&|_, _| {}), [true; 2]);
        let warm: [(&str, Change<'_>); 7] = [
            ("it was read before", &|turn, _| turn.usage.cache_read = Some(1_024)),
            ("it was too small to be kept", &|turn, _| turn.usage.input = Some(1_023)),
            ("too little of it was sent again", &|_, tokens| *tokens = 1_023),
            ("its time was over", &|turn, _| turn.ended = 99_999),
            ("it had not ended yet", &|turn, _| turn.ended = 400_001),
            ("another model read it", &|turn, _| turn.model = "other".into()),
            ("another upstream read it", &|turn, _| turn.upstream = "other".into()),
        ];
        for (why, with) in warm {
            assert_eq!(after(with), [false; 2], "{why}");
        }
    }
}
