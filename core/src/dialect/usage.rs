//! The tokens that a provider reports for a reply, in one form for all dialects (`docs/protocols.md` 0).
//!
//! Unknown is `None`, never 0. The names of the members are stored.

use serde::{Deserialize, Serialize};

use super::cache::CacheMiss;
use super::editing::ClearingReport;
use crate::wire::json::Value;

/// Usage as the provider reported it, normalised (`docs/protocols.md` 0): unknown is `None`, never 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// The whole prompt, tokens, including cached and cache-written ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<u64>,
    /// All output, tokens, including reasoning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<u64>,
    /// The share of `output` that was reasoning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<u64>,
    /// The share of `input` that was read from a cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_read: Option<u64>,
    /// The share of `input` that was written to a cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write: Option<u64>,
    /// The share of `cache_write` with the long lifetime (1 h, 12 h).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write_long: Option<u64>,
    /// Tokens of other internal calls of the same exchange (compaction, advisor), which are billed but not in
    /// `input` and `output`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aside: Option<u64>,
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_use_prompt: Option<u64>,
    /// Why the cache was missed, if the client asked and the provider says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_miss: Option<CacheMiss>,
    /// What the provider cleared from the prompt before the model read it; not in `input`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cleared: Option<ClearingReport>,
}

/// Input and output of the last of several internal calls, tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
        let report = |value: Value<'d>| self.report.iter().find_map(|name| value.get_any(&[name]));
        std::iter::once(value).chain(inside).filter_map(report)
    }
}

impl Usage {
    /// Input plus output, if both are known.
    pub(super) fn total(&self) -> Option<u64> {
        Some(self.input?.saturating_add(self.output?))
    }

    /// Input and output, if they measure the context: not if the stream broke off, nor as a sum over several
    /// internal calls, nor if the model was not called (`docs/protocols.md` 12.1). An unreported output counts as 0.
    pub fn context(&self) -> Option<LastCall> {
        let whole = self
            .input
            .filter(|input| *input > 0)
            .map(|input| LastCall { input, output: self.output.unwrap_or(0) });
        let measured = self.last_call.or(whole.filter(|_| !self.hosted_tools));
        measured.filter(|_| !self.lower_bound)
    }
}
