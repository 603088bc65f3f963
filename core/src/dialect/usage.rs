//! The tokens that a provider reports for a reply, in one form for all dialects (`docs/protocols.md` 0).
//!
//! Unknown is `None`, never 0, and so is a count that cannot be. The names of the members are stored.

use serde::{Deserialize, Serialize};

use super::billing::Billing;
use super::cache::CacheMiss;
use super::count::stored_count;
use super::editing::ClearingReport;
use crate::wire::json::Value;

/// How long providers keep a cache entry with the long marker, seconds (`docs/protocols.md` 7).
const LONG_CACHE_TTL_S: u64 = 3600;
/// How long they keep any entry at least, seconds.
const SHORT_CACHE_TTL_S: u64 = 300;

/// Usage as the provider reported it, normalised (`docs/protocols.md` 0): unknown is `None`, never 0. The counts are
/// those of the model that answered; those of other calls for the reply are in [`Usage::attempts`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Usage {
    /// The whole prompt, tokens, including cached and cache-written ones.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "stored_count")]
    pub input: Option<u64>,
    /// All output, tokens, including reasoning.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "stored_count")]
    pub output: Option<u64>,
    /// The share of `output` that was reasoning.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "stored_count")]
    pub reasoning: Option<u64>,
    /// The share of `input` that was read from a cache.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "stored_count")]
    pub cache_read: Option<u64>,
    /// The share of `input` that was written to a cache.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "stored_count")]
    pub cache_write: Option<u64>,
    /// The share of `cache_write` with the long lifetime (1 h, 12 h).
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "stored_count")]
    pub cache_write_long: Option<u64>,
    /// Billed calls of the same exchange whose tokens are in no other count: advice, compactions, and models that
    /// declined after they had written something (`docs/protocols.md` 1.4).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<Attempt>,
    /// The model that answered, if the provider fell back from the requested one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub served_by: Option<Box<str>>,
    /// It was refused before anything was written, which is not billed: its counts are in no sum.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unbilled: bool,
    /// If `input` sums several internal calls: input and output of the last one, which are the context's size
    /// after the exchange (`usage.iterations`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_call: Option<LastCall>,
    /// The stream broke off before the final numbers: these are a lower bound.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lower_bound: bool,
    /// Tools ran at the provider, so `input` does not measure the context, and is a poor anchor.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hosted_tools: bool,
    /// The reply holds a compaction by the provider: `input` includes instructions that no request has.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub compacted: bool,
    /// The share of `input` that was prompts of these tools, if reported (Gemini).
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "stored_count")]
    pub tool_use_prompt: Option<u64>,
    /// Why the cache was missed, if the client asked and the provider says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_miss: Option<CacheMiss>,
    /// What else decides about its price.
    #[serde(default, skip_serializing_if = "Billing::is_usual")]
    pub billing: Billing,
    /// What the provider cleared from the prompt before the model read it; not in `input`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cleared: Option<ClearingReport>,
}

/// A billed call inside an exchange, beside the one that answered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Attempt {
    /// What it was for, as the provider calls it: `advisor_message`, `compaction`, `message`.
    pub kind: Box<str>,
    /// The model that did it; `None` if it was the requested one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Box<str>>,
    /// Its tokens.
    pub usage: Usage,
}

/// Input and output of the last of several internal calls, tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[derive(Serialize, Deserialize, schemars::JsonSchema)]
pub struct LastCall {
    /// The whole prompt, as in [`Usage::input`].
    pub input: u64,
    /// All output, as in [`Usage::output`].
    pub output: u64,
}

/// Where a dialect's responses report usage, and what it calls the input tokens there.
#[derive(Debug)]
pub struct UsageSpelling {
    /// The member of an event whose value may report usage, too.
    pub(super) envelope: Option<&'static str>,
    /// The member that is the report. The first one that is there counts.
    pub(super) report: &'static [&'static str],
    /// The members of a report that grow with the input. Where cached tokens are not among them, sums remain correct.
    pub input: &'static [&'static str],
}

impl UsageSpelling {
    /// The reports in a response or an event: in the value itself, or in the message or response inside it.
    pub fn reports<'d>(
        &'static self,
        value: Value<'d>,
    ) -> impl Iterator<Item = Value<'d>> + use<'d> {
        let inside = self.envelope.and_then(|name| value.get(name));
        let values = std::iter::once(value).chain(inside);
        values.filter_map(|value| self.report.iter().find_map(|name| value.get_any(&[name])))
    }
}

/// The largest window of any model in the catalogue, tokens.
const LARGEST_WINDOW: u64 = 10_000_000;
/// Where tools ran at the provider, the counts are sums over at most this many calls.
const MOST_CALLS: u64 = 100;
/// A request may be this many times as large as it was estimated.
const UNDERESTIMATED: u64 = 2;

/// How many tokens one call can have.
#[derive(Clone, Copy, Debug)]
pub struct CountLimit(u64);

impl CountLimit {
    /// The limit if nothing is known of the request.
    pub const ANY: Self = Self(LARGEST_WINDOW);

    /// The limit of a request: its model's window, if that is known, or what it was estimated at if that is more,
    /// because a catalogue may be outdated.
    pub fn new(window: Option<u64>, estimate: Option<u64>) -> Self {
        let estimated = estimate.unwrap_or(0).saturating_mul(UNDERESTIMATED);
        Self(window.unwrap_or(LARGEST_WINDOW).max(estimated))
    }
}

/// Billed tokens of one call or of several, by kind. A kind that nothing was reported of counts as 0; sums saturate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct BilledTokens {
    /// Prompts, including what was read from caches or written to them.
    pub input: u64,
    /// Output, reasoning included.
    pub output: u64,
    /// The share of `output` that was reasoning.
    pub reasoning: u64,
    /// The share of `input` that was read from caches.
    pub cache_read: u64,
    /// The share of `input` that was written to caches.
    pub cache_write: u64,
}

impl BilledTokens {
    /// Everything that is billed of a call.
    pub fn from_usage(usage: &Usage) -> Self {
        let mut tokens = Self::default();
        for (_, usage) in usage.billed() {
            tokens.add(&Self {
                input: usage.input.unwrap_or(0),
                output: usage.output.unwrap_or(0),
                reasoning: usage.reasoning.unwrap_or(0),
                cache_read: usage.cache_read.unwrap_or(0),
                cache_write: usage.cache_write.unwrap_or(0),
            });
        }
        tokens
    }

    /// Adds those of other calls.
    pub fn add(&mut self, other: &Self) {
        self.input = self.input.saturating_add(other.input);
        self.output = self.output.saturating_add(other.output);
        self.reasoning = self.reasoning.saturating_add(other.reasoning);
        self.cache_read = self.cache_read.saturating_add(other.cache_read);
        self.cache_write = self.cache_write.saturating_add(other.cache_write);
    }
}

/// How far an estimate is from what was reported.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EstimateError {
    /// `estimated − reported`, tokens.
    pub tokens: i64,
    /// The same as a share of what was reported; `None` if that is 0.
    pub ratio: Option<f64>,
}

impl Usage {
    /// How far this many input tokens are from the reported input; `None` if none was reported.
    pub fn error_of(&self, estimated: u64) -> Option<EstimateError> {
        let actual = self.input?;
        let tokens = estimated as i64 - actual as i64;
        let ratio = if actual > 0 { Some(tokens as f64 / actual as f64) } else { None };
        Some(EstimateError { tokens, ratio })
    }

    /// Input and output, if they measure the context: not if the stream broke off, nor as a sum over several
    /// internal calls, nor if the model was not called (`docs/protocols.md` 12.1). An unreported output counts as 0.
    pub fn context(&self) -> Option<LastCall> {
        if self.lower_bound {
            return None;
        }
        if self.last_call.is_some() {
            return self.last_call;
        }
        // A sum over several internal calls does not measure the context.
        if self.hosted_tools {
            return None;
        }
        let input = self.input.filter(|input| *input > 0)?;
        Some(LastCall { input, output: self.output.unwrap_or(0) })
    }

    /// Input plus output, if both are known.
    #[cfg(test)]
    pub(super) fn total(&self) -> Option<u64> {
        Some(self.input?.saturating_add(self.output?))
    }

    /// How long the provider keeps what the call cached, ms. `ttl_s`: the model's lifetime of an entry, seconds.
    pub fn cache_ttl_ms(&self, ttl_s: u64) -> u64 {
        // What a call wrote with the long marker stays longer.
        let is_long = self.cache_write_long.map_or(self.billing.long_writes, |tokens| tokens > 0);
        1000 * if is_long { LONG_CACHE_TTL_S } else { ttl_s.max(SHORT_CACHE_TTL_S) }
    }

    /// Whether it cost something that nobody knows. What reports nothing, such as a call that failed, does not. `dollars`: what is known of its cost.
    pub fn is_unpriced(&self, dollars: Option<f64>) -> bool {
        self.input.is_some() && (dollars.is_none() || self.billing.is_lower_bound())
    }

    /// Everything that is billed: for each model (`None`: the requested one), its usage.
    pub fn billed(&self) -> impl Iterator<Item = (Option<&str>, &Self)> {
        let reply = if self.unbilled { None } else { Some((self.served_by.as_deref(), self)) };
        reply.into_iter().chain(self.attempts.iter().map(|one| (one.model.as_deref(), &one.usage)))
    }

    /// Forgets counts that cannot be, and returns whether there were any: more tokens than one call can have, or
    /// than a hundred calls where tools ran at the provider; more searches than one reply makes; a share that is
    /// larger than its whole. What is a share of such a count is unknown, too.
    pub fn forget_impossible(&mut self, limit: CountLimit) -> bool {
        let sums = self.hosted_tools || self.last_call.is_some();
        let maximum = if sums { limit.0.saturating_mul(MOST_CALLS) } else { limit.0 };
        let mut has_impossible = false;
        if self.input.take_if(|input| *input > maximum).is_some() {
            has_impossible = true;
            self.cache_read = None;
            self.cache_write = None;
            self.cache_write_long = None;
            self.tool_use_prompt = None;
            self.last_call = None;
        }
        if self.output.take_if(|output| *output > maximum).is_some() {
            has_impossible = true;
            self.reasoning = None;
            self.last_call = None;
        }
        let last_call = self.last_call.take_if(|call| call.input.max(call.output) > limit.0);
        has_impossible |= last_call.is_some();
        let shares = [
            &mut self.reasoning,
            &mut self.cache_read,
            &mut self.cache_write,
            &mut self.cache_write_long,
            &mut self.tool_use_prompt,
        ];
        for share in shares {
            has_impossible |= share.take_if(|count| *count > maximum).is_some();
        }
        has_impossible |= self.forget_large_shares();
        has_impossible |= self.billing.forget_impossible();
        // What was cleared may have been larger than the window.
        let most_cleared = limit.0.saturating_mul(MOST_CALLS);
        has_impossible |=
            self.cleared.take_if(|report| report.input_tokens > most_cleared).is_some();
        for attempt in &mut self.attempts {
            // Another model may have a larger window.
            has_impossible |= attempt.usage.forget_impossible(CountLimit::ANY);
        }
        has_impossible
    }

    fn forget_large_shares(&mut self) -> bool {
        let mut has_large = false;
        for (share, whole) in [
            (&mut self.reasoning, self.output),
            (&mut self.cache_read, self.input),
            (&mut self.cache_write, self.input),
            (&mut self.tool_use_prompt, self.input),
        ] {
            has_large |= share.take_if(|share| whole.is_some_and(|whole| *share > whole)).is_some();
        }
        let written = self.cache_write.or(self.input);
        let long = &mut self.cache_write_long;
        has_large | long.take_if(|long| written.is_some_and(|whole| *long > whole)).is_some()
    }
}

#[cfg(test)]
mod tests;
