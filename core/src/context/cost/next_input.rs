//! What the input of a thread's next call will cost, told before it is paid: with the provider's cache and without it.
//!
//! It prices the context as it is. What the client adds, and the output, come on top. Pure.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{millionths, terms, write_price};
use crate::context::{Millis, Turn};
use crate::dialect::models::{CallTerms, Model, Price};
use crate::dialect::{Dialect, Usage};

/// What the input of the next call will cost, US dollars.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct NextInput {
    /// What is expected now: `warm` until `cached_until`, then `cold`.
    pub dollars: f64,
    /// While the provider's cache has what the last call read and wrote.
    pub warm: f64,
    /// Once that is gone: the price of resuming the session later.
    pub cold: f64,
    /// When that is expected, ms since 1970; `None` if nothing of it is cached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_until: Option<Millis>,
}

impl NextInput {
    /// The price of `tokens`, which is what the next call has of a thread whose last call with a reported input is `last`.
    /// `model` and `price`: of the model that it will be sent to. `None` if the price is unknown on the last call's terms.
    pub fn after(
        last: &Turn,
        tokens: u64,
        model: &Model,
        price: &Price,
        now: Millis,
    ) -> Option<Self> {
        let Turn { usage, dialect, .. } = last;
        let terms = CallTerms { prompt: tokens, ..terms(usage, &usage.billing, now) };
        let rates = price.rates(terms)?;
        let cached = cached(usage, *dialect, model, price).min(tokens);
        // Where no cache was used, nothing is written to one.
        let uncached_rate =
            if cached > 0 { write_price(usage, rates, *dialect) } else { rates.input };
        let cold = millionths(tokens, uncached_rate);
        let warm =
            millionths(cached, rates.cache_read) + millionths(tokens - cached, uncached_rate);
        let end = last.ended.saturating_add(usage.cache_ttl_ms(model.cache_ttl_s));
        let cached_until = if cached > 0 { Some(end) } else { None };
        let dollars = if now <= end { warm } else { cold };
        Some(Self { dollars, warm, cold, cached_until })
    }
}

/// How much of a call's input is in the provider's cache after it, tokens.
fn cached(usage: &Usage, dialect: Dialect, model: &Model, price: &Price) -> u64 {
    let bills_writes = dialect == Dialect::Anthropic || price.cache_write > price.input;
    let input = usage.context().map_or(0, |call| call.input);
    // An automatic cache is filled by the call that misses it, which no usage shows.
    if !bills_writes && usage.cache_read.is_some() && input >= model.cache_min {
        return input;
    }
    usage.cache_read.unwrap_or(0).saturating_add(usage.cache_write.unwrap_or(0))
}

impl fmt::Display for NextInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dollars, warm, cold, cached_until } = self;
        write!(f, "Next call's input: ${dollars:.4}")?;
        let end = cached_until.and_then(|end| Timestamp::from_millisecond(end as i64).ok());
        match end {
            None => write!(f, " (nothing of it is cached)"),
            Some(end) if dollars == warm => {
                write!(f, " (cached until {}, then ${cold:.4})", end.strftime("%H:%M UTC"))
            }
            Some(end) => {
                let end = end.strftime("%Y-%m-%d %H:%M UTC");
                write!(f, " (its cache ended {end}; with it ${warm:.4})")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::scene::{SessionFixture, messages};

    const MINUTE: Millis = 60_000;

    /// The next input of 110,000 tokens, `after` so long, of a thread whose last call had this usage.
    fn next_input(model: &'static str, usage: Usage, after: Millis) -> NextInput {
        let scene = SessionFixture::new(model, &messages("u"));
        let reply = scene.reply(&serde_json::json!([{"type": "text", "text": "Aye."}]));
        let dialect =
            if model.starts_with("claude") { Dialect::Anthropic } else { Dialect::OpenaiResponses };
        let turn = Turn { usage, dialect, ended: MINUTE, ..scene.turn(&reply) };
        let price = scene.model.price.expect("a price");
        NextInput::after(&turn, 110_000, &scene.model, &price, MINUTE + after).expect("known")
    }

    fn usage(read: u64, written: u64) -> Usage {
        Usage {
            input: Some(100_000),
            output: Some(1_000),
            cache_read: Some(read),
            cache_write: Some(written),
            ..Usage::default()
        }
    }

    #[track_caller]
    fn near(dollars: f64, expected: f64) {
        assert!((dollars - expected).abs() < 1e-9, "{dollars} is not {expected}");
    }

    // Opus 5: $5 input, $0.50 read, $6.25 written, a million tokens.
    #[test]
    fn claude_reads_what_was_read_and_written() {
        let next = next_input("claude-opus-5", usage(80_000, 19_000), 0);
        near(next.warm, 99_000.0 * 0.5e-6 + 11_000.0 * 6.25e-6);
        near(next.cold, 110_000.0 * 6.25e-6);
        assert_eq!(next.dollars, next.warm);
        assert_eq!(next.cached_until, Some(6 * MINUTE));
    }

    #[test]
    fn resuming_after_five_minutes_costs_whole_input() {
        let next = next_input("claude-opus-5", usage(80_000, 19_000), 5 * MINUTE + 1);
        assert_eq!(next.dollars, next.cold);
        let text =
            "Next call's input: $0.6875 (its cache ended 1970-01-01 00:06 UTC; with it $0.1183)";
        assert_eq!(next.to_string(), text);
    }

    #[test]
    fn cache_of_hour_is_kept_for_hour() {
        let long = Usage { cache_write_long: Some(19_000), ..usage(80_000, 19_000) };
        let next = next_input("claude-opus-5", long, 59 * MINUTE);
        assert_eq!(next.dollars, next.warm);
        near(next.cold, 110_000.0 * 10e-6);
    }

    #[test]
    fn claude_without_cache_marks_writes_nothing() {
        let next = next_input("claude-opus-5", usage(0, 0), 0);
        near(next.dollars, 0.55);
        assert_eq!(next.warm, next.cold);
        assert_eq!(next.cached_until, None);
        assert!(next.to_string().ends_with("$0.5500 (nothing of it is cached)"), "{next}");
    }

    // GPT-5.1: $1.25 input, $0.125 read; writing to the cache is free.
    #[test]
    fn automatic_cache_has_what_missed_it() {
        let missed = Usage { cache_write: None, ..usage(0, 0) };
        let next = next_input("gpt-5.1", missed, 0);
        near(next.warm, 100_000.0 * 0.125e-6 + 10_000.0 * 1.25e-6);
        near(next.cold, 110_000.0 * 1.25e-6);
    }

    // Gemini 2.5 Pro costs twice as much above 200,000 tokens: the length of the next prompt decides.
    #[test]
    fn next_prompt_may_be_long_one() {
        let scene = SessionFixture::new("gemini-2.5-pro", &messages("u"));
        let reply = scene.reply(&serde_json::json!([{"type": "text", "text": "Aye."}]));
        let turn = Turn { usage: usage(0, 0), dialect: Dialect::Gemini, ..scene.turn(&reply) };
        let price = scene.model.price.expect("a price");
        let next = NextInput::after(&turn, 200_001, &scene.model, &price, MINUTE).expect("known");
        near(next.cold, 200_001.0 * 2.5e-6);
    }
}
