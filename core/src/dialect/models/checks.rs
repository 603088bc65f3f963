//! Which numbers of a table of models can be: the others are refused by name, never used.
//!
//! Whoever adds up money relies on it that a price is a finite number of 0 or more.

use super::price::{OffPeak, Price, PriceChange, TierFactor, TierFactors};
use super::price_steps::Rates;

/// Nothing costs more, US dollars a million tokens or a call; and no tier that many times as much.
const MOST: f64 = 100_000.0;
/// No model has more tokens, and no cache lives more seconds.
const MOST_TOKENS: u64 = 100_000_000;

/// What a price is, in words.
pub(super) const AMOUNT: &str = "is not a number from 0 to 100,000";
/// What a number of tokens is, in words.
pub(super) const COUNT: &str = "is not a whole number from 1 to 100,000,000";

/// Whether a number can be a price, or a factor of one.
pub(super) fn is_amount(value: f64) -> bool {
    // NaN is in no range.
    (0.0..=MOST).contains(&value)
}

/// Whether a number can be a window, or a limit.
pub(super) fn is_count(value: u64) -> bool {
    (1..=MOST_TOKENS).contains(&value)
}

impl Price {
    /// The key and the value of the first number in it that cannot be; `None` if all can be.
    pub fn impossible_number(&self) -> Option<(String, f64)> {
        let Self { long, audio, search, tiers, regional, off_peak, change, .. } = self;
        let Self { search_prompt, file_search, call, cached_audio, .. } = self;
        let mut numbers = named("", &self.base());
        for step in long.iter() {
            numbers.extend(named("long.", &step.rates));
        }
        if let Some(PriceChange { rates, .. }) = change {
            numbers.extend(named("change.", rates));
        }
        let factor = off_peak.map(|OffPeak { factor, .. }| factor);
        let single = [
            ("audio", audio),
            ("search", search),
            ("search_prompt", search_prompt),
            ("file_search", file_search),
            ("call", call),
            ("cached_audio", cached_audio),
            ("regional", regional),
            ("off_peak.factor", &factor),
        ];
        for (key, number) in single {
            numbers.extend(number.map(|number| (key.to_owned(), number)));
        }
        numbers.extend(tiers.numbers());
        numbers.into_iter().find(|(_, number)| !is_amount(*number))
    }
}

fn named(start: &str, rates: &Rates) -> Vec<(String, f64)> {
    let Rates { input, output, cache_read, cache_write } = *rates;
    [("input", input), ("output", output), ("cache_read", cache_read), ("cache_write", cache_write)]
        .map(|(key, number)| (format!("{start}{key}"), number))
        .to_vec()
}

impl TierFactors {
    fn numbers(&self) -> Vec<(String, f64)> {
        let mut numbers = Vec::new();
        for (tier, factor) in self.named() {
            match factor {
                TierFactor::All(factor) => numbers.push((format!("tiers.{tier}"), factor)),
                TierFactor::Apart { other, cache_read } => {
                    numbers.push((format!("tiers.{tier}.other"), other));
                    numbers.push((format!("tiers.{tier}.cache_read"), cache_read));
                }
            }
        }
        numbers
    }

    /// Each tier that has a factor, by its key.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, TierFactor)> + use<> {
        let Self { priority, flex, batch, fast, ultrafast } = *self;
        let all = [
            ("priority", priority),
            ("flex", flex),
            ("batch", batch),
            ("fast", fast),
            ("ultrafast", ultrafast),
        ];
        all.into_iter().filter_map(|(tier, factor)| Some((tier, factor?)))
    }
}
