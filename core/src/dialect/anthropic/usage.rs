//! Usage in Anthropic's spelling, and of each model call inside an exchange (`docs/protocols.md` 1.4).
//!
//! Repeated reports are cumulative. The three counts of the input belong together: what was input at first may have
//! been read from the cache. What was not reported stays unknown.

use std::borrow::Cow;

use crate::dialect::billing::Billing;
use crate::dialect::cache::CacheMiss;
use crate::dialect::count::Count;
use crate::dialect::editing::ClearingReport;
use crate::dialect::usage::Attempt;
use crate::dialect::{LastCall, Usage, UsageSpelling, size};
use crate::wire::json::{Value, members};

/// Most calls beside the one that answered that are kept of a reply, which has a few.
const MOST_ATTEMPTS: usize = 256;

/// How usage is spelled. The input excludes cached tokens.
pub const USAGE: UsageSpelling =
    UsageSpelling { envelope: Some("message"), report: &["usage"], input: &["input_tokens"] };

/// Anthropic's own usage fields, before they are normalised.
#[derive(Default)]
pub(super) struct UsageFields {
    calls: CallFields,
    /// The last reported output: at the start of a stream there is a placeholder.
    last_output: Option<u64>,
    thinking: Count,
    iterations: Option<Iterations>,
    has_impossible: bool,
    billing: Billing,
    /// Tools ran at the provider.
    pub(super) hosted: bool,
    pub(super) miss: Option<CacheMiss>,
    pub(super) cleared: Option<ClearingReport>,
}

/// The counts of one call, or of several.
#[derive(Clone, Copy, Default)]
struct CallFields {
    input: InputFields,
    created_long: Count,
    output: Count,
}

/// The parts of an input.
#[derive(Clone, Copy, Default)]
struct InputFields {
    fresh: Count,
    created: Count,
    read: Count,
}

/// What is reported of each model call (`iterations`).
struct Iterations {
    /// The sum over the calls of the model that answered.
    own: Usage,
    /// The last of these.
    last_call: Option<LastCall>,
    attempts: Vec<Attempt>,
    served_by: Option<Box<str>>,
}

members! {
    /// The members of the usage that are read.
    UsageMembers {
        input_tokens,
        output_tokens,
        cache_creation,
        cache_creation_input_tokens,
        cache_read_input_tokens,
        output_tokens_details,
        server_tool_use,
        service_tier,
        speed,
        inference_geo,
        iterations,
    }
}

impl UsageFields {
    pub(super) fn merge(&mut self, report: Value<'_>) {
        let usage = UsageMembers::from_value(report);
        let calls = CallFields::from_usage(&usage);
        let thinking = usage.output_tokens_details.and_then(|of| of.get("thinking_tokens"));
        let thinking = Count::from_member(thinking);
        self.has_impossible |= calls.has_impossible() || Count::any_impossible(&[thinking]);
        self.thinking.grow(thinking);
        self.last_output = calls.output.value().or(self.last_output);
        for (_, count) in usage.server_tool_use.iter().flat_map(Value::entries) {
            self.hosted |= count.as_u64().is_some_and(|count| count > 0);
        }
        self.billing.read_anthropic(usage.service_tier, usage.speed, usage.inference_geo);
        let searches = usage.server_tool_use.and_then(|tools| tools.get("web_search_requests"));
        self.billing.grow_searches(searches);
        // Containers are billed by the hour, beyond free hours ("Code execution tool", Anthropic's documentation).
        let runs = usage.server_tool_use.and_then(|tools| tools.get("code_execution_requests"));
        self.billing.grow_unmetered(runs.and_then(|runs| runs.as_u64()).unwrap_or(0));
        let iterations = usage.iterations.and_then(|calls| self.iterations(calls));
        // Calls stand for themselves, because the start of a stream may have reported a compaction,
        // which the end does not include.
        match iterations {
            Some(iterations) => {
                self.calls = calls.or(self.calls);
                self.iterations = Some(iterations);
            }
            None => self.calls.grow(calls),
        }
    }

    pub(super) fn has_impossible(&self) -> bool {
        self.has_impossible
    }

    /// The normalised usage. `refused_empty`: it was refused, and nothing came.
    pub(super) fn normalised(&self, refused_empty: bool) -> Usage {
        let total = self.calls.usage();
        let mut usage = match &self.iterations {
            Some(Iterations { own, last_call, attempts, served_by }) => Usage {
                last_call: *last_call,
                attempts: attempts.clone(),
                served_by: served_by.clone(),
                // The split is not always reported for each call.
                cache_write_long: own.cache_write_long.or(total.cache_write_long),
                ..if own.input.is_some() { own.clone() } else { total }
            },
            None => total,
        };
        let written = if self.iterations.is_some() { usage.output } else { self.last_output };
        if refused_empty && written == Some(0) {
            // What was refused before anything was written is not billed.
            usage.unbilled = true;
            usage.output = written;
        }
        Usage {
            reasoning: self.thinking.value(),
            hosted_tools: self.hosted,
            cache_miss: self.miss,
            cleared: self.cleared,
            billing: self.billing.clone(),
            ..usage
        }
    }

    fn iterations(&mut self, all: Value<'_>) -> Option<Iterations> {
        let answer = AnsweringModel::from_iterations(all);
        let mut own_usage = Usage::default();
        let mut calls = 0;
        let mut last_call = None;
        let mut attempts = Vec::new();
        for one in all.items() {
            // A model may decline, and another one answer: those calls are attempts, not the
            // reply's own.
            let fields = CallFields::from_usage(&UsageMembers::from_value(one));
            self.has_impossible |= fields.has_impossible();
            let (kind, model, usage) = (kind(one), model(one), fields.usage());
            if answer.made(&kind, model.as_deref()) {
                calls += 1;
                let output = usage.output.unwrap_or(0);
                last_call = usage.input.map(|input| LastCall { input, output });
                add(&mut own_usage, &usage, calls == 1);
                continue;
            }
            // A model that declined before it wrote anything is not billed.
            let is_answer = matches!(&*kind, "message" | "fallback_message");
            let is_billed = !is_answer || usage.output.is_some_and(|output| output > 0);
            if !is_billed || usage == Usage::default() {
                continue;
            }
            // They are stored with the turn.
            if attempts.len() < MOST_ATTEMPTS {
                attempts.push(Attempt { kind: size::name(kind.into()), model, usage });
            } else {
                self.has_impossible = true;
            }
        }
        let served_by = answer.other_than_requested();
        // A single call of the requested model: the total is enough.
        let is_single = calls == 1 && attempts.is_empty() && served_by.is_none();
        let last_call = if is_single { None } else { last_call };
        let is_counted = own_usage != Usage::default() || !attempts.is_empty();
        is_counted.then_some(Iterations { own: own_usage, last_call, attempts, served_by })
    }
}

/// The model whose reply it is, by the calls.
struct AnsweringModel {
    model: Option<Box<str>>,
    /// The model of the first call, which is the requested one if it answered or declined.
    first: Option<Box<str>>,
    /// Another model than the requested one answered.
    is_fallback: bool,
}

impl AnsweringModel {
    fn from_iterations(all: Value<'_>) -> Self {
        let fallback = all.items().filter(|call| kind(*call) == "fallback_message").last();
        let mut messages = all.items().filter(|call| kind(*call) == "message");
        let first_message = messages.next();
        let answer = fallback.or_else(|| messages.last().or(first_message));
        Self {
            model: answer.and_then(model),
            first: first_message.and_then(model),
            is_fallback: fallback.is_some(),
        }
    }

    fn made(&self, kind: &str, model: Option<&str>) -> bool {
        match (kind, model) {
            // One of several fallbacks may decline, too.
            ("message" | "fallback_message", Some(model)) => self.model.as_deref() == Some(model),
            // Without a name it is the requested model's.
            ("message", None) => !self.is_fallback,
            (kind, _) => kind == "fallback_message",
        }
    }

    fn other_than_requested(self) -> Option<Box<str>> {
        let is_other = self.is_fallback || self.first.is_some() && self.first != self.model;
        if is_other { self.model } else { None }
    }
}

impl CallFields {
    fn from_usage(usage: &UsageMembers<'_>) -> Self {
        const SPLIT: [&str; 2] = ["ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens"];
        let split = usage.cache_creation.map(|split| split.members(SPLIT)).unwrap_or_default();
        let [short, long] = split.map(Count::from_member);
        let mut created = Count::from_member(usage.cache_creation_input_tokens);
        if created == Count::default() {
            // Some servers report only the split.
            created = short.plus(long);
        }
        let input = Count::from_member(usage.input_tokens);
        let read = Count::from_member(usage.cache_read_input_tokens);
        Self {
            input: InputFields { fresh: input, created, read },
            created_long: long,
            output: Count::from_member(usage.output_tokens),
        }
    }

    fn has_impossible(&self) -> bool {
        let InputFields { fresh, created, read } = self.input;
        Count::any_impossible(&[fresh, created, read, self.created_long, self.output])
    }

    fn or(self, before: Self) -> Self {
        // A report that lacks a number does not take back an earlier one.
        let has_input = self.input.fresh != Count::default();
        Self {
            input: if has_input { self.input } else { before.input },
            created_long: self.created_long.or(before.created_long),
            output: self.output.or(before.output),
        }
    }

    fn grow(&mut self, later: Self) {
        self.input.grow(later.input);
        self.created_long.grow(later.created_long);
        if later.output.is_unknown() {
            // What was reported before is only the beginning of the output.
            self.output = later.output;
        }
        self.output.grow(later.output);
    }

    fn usage(&self) -> Usage {
        Usage {
            input: self.input.total(),
            output: self.output.value(),
            cache_read: self.input.read.value(),
            cache_write: self.input.created.value(),
            cache_write_long: self.created_long.value(),
            ..Usage::default()
        }
    }
}

impl InputFields {
    fn grow(&mut self, later: Self) {
        // As a whole, else without its zeros, unless the input is smaller then: a late report may
        // lack its cached part.
        let reported = self.replaced(later, |count| count.value().is_none());
        if reported.sum() >= self.sum() {
            *self = reported;
            return;
        }
        let without_zeros = self.replaced(later, |count| count.value().unwrap_or(0) == 0);
        if without_zeros.sum() >= self.sum() {
            *self = without_zeros;
        }
    }

    /// The fields of a later report, except those that say nothing by `is_silent`.
    fn replaced(self, later: Self, is_silent: fn(Count) -> bool) -> Self {
        let Self { mut fresh, mut created, mut read } = self;
        for (count, later) in
            [(&mut fresh, later.fresh), (&mut created, later.created), (&mut read, later.read)]
        {
            if is_silent(later) {
                count.grow(later);
            } else {
                *count = later;
            }
        }
        Self { fresh, created, read }
    }

    fn sum(&self) -> u64 {
        [self.fresh, self.created, self.read].into_iter().filter_map(Count::value).sum()
    }

    fn total(&self) -> Option<u64> {
        // A part that cannot be makes the whole unknown.
        self.fresh.value()?;
        let is_known = !self.created.is_unknown() && !self.read.is_unknown();
        is_known.then(|| self.sum())
    }
}

fn kind(one: Value<'_>) -> Cow<'_, str> {
    one.get_text("type").unwrap_or(Cow::Borrowed("message"))
}

fn model(one: Value<'_>) -> Option<Box<str>> {
    one.get_text("model").filter(|model| !model.is_empty()).map(|model| size::name(model.into()))
}

/// Adds the counts of a call to a sum. Input and output are unknown if those of a call are.
fn add(sum: &mut Usage, one: &Usage, is_first: bool) {
    for (sum, one) in [(&mut sum.input, one.input), (&mut sum.output, one.output)] {
        *sum = if is_first { one } else { sum.zip(one).map(|(sum, one)| sum + one) };
    }
    for (sum, one) in [
        (&mut sum.cache_read, one.cache_read),
        (&mut sum.cache_write, one.cache_write),
        (&mut sum.cache_write_long, one.cache_write_long),
    ] {
        *sum = one.map(|one| sum.unwrap_or(0) + one).or(*sum);
    }
}

#[cfg(test)]
mod tests;
