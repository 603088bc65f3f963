//! Usage in Anthropic's spelling, and of each model call inside an exchange (`docs/protocols.md` 1.4).
//!
//! Repeated reports are cumulative. The three counts of the input belong together: what was input at first may have
//! been read from the cache. What was not reported stays unknown.

use std::borrow::Cow;

use crate::dialect::cache::CacheMiss;
use crate::dialect::count::Count;
use crate::dialect::editing::ClearingReport;
use crate::dialect::usage::Attempt;
use crate::dialect::{LastCall, Usage, UsageSpelling};
use crate::wire::json::{Value, members};

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
        iterations,
    }
}

impl UsageFields {
    /// Merges a report. One with `iterations` stands for itself, because the start of a stream may have reported a
    /// compaction, which the end does not include.
    pub(super) fn merge(&mut self, report: Value<'_>) {
        let usage = UsageMembers::of(report);
        let calls = CallFields::of(&usage);
        let thinking = usage.output_tokens_details.and_then(|of| of.get("thinking_tokens"));
        let thinking = Count::of(thinking);
        self.has_impossible |= calls.has_impossible() || Count::any_impossible(&[thinking]);
        self.thinking.grow(thinking);
        self.last_output = calls.output.value().or(self.last_output);
        for (_, count) in usage.server_tool_use.iter().flat_map(Value::entries) {
            self.hosted |= count.as_u64().is_some_and(|count| count > 0);
        }
        let found = usage.iterations.and_then(|all| self.iterations(all));
        match found {
            Some(iterations) => {
                (self.calls, self.iterations) = (calls.or(self.calls), Some(iterations));
            }
            None => self.calls.grow(calls),
        }
    }

    /// Whether a reported count cannot be.
    pub(super) fn has_impossible(&self) -> bool {
        self.has_impossible
    }

    /// The normalised usage. `refused_empty`: it was refused, and nothing came.
    pub(super) fn normalised(&self, refused_empty: bool) -> Usage {
        let whole = self.calls.usage();
        let mut usage = match &self.iterations {
            Some(Iterations { own, last_call, attempts, served_by }) => Usage {
                last_call: *last_call,
                attempts: attempts.clone(),
                served_by: served_by.clone(),
                // The split is not always reported for each call.
                cache_write_long: own.cache_write_long.or(whole.cache_write_long),
                ..if own.input.is_some() { own.clone() } else { whole }
            },
            None => whole,
        };
        let written = if self.iterations.is_some() { usage.output } else { self.last_output };
        if refused_empty && written == Some(0) {
            (usage.unbilled, usage.output) = (true, written);
        }
        Usage {
            reasoning: self.thinking.value(),
            hosted_tools: self.hosted,
            cache_miss: self.miss,
            cleared: self.cleared,
            ..usage
        }
    }

    /// Reads the model calls; `None` if there are none, or without counts.
    fn iterations(&mut self, all: Value<'_>) -> Option<Iterations> {
        let answer = AnsweringModel::of(all);
        let (mut own, mut calls) = (Usage::default(), 0);
        let (mut last_call, mut attempts) = (None, Vec::new());
        for one in all.items() {
            let fields = CallFields::of(&UsageMembers::of(one));
            self.has_impossible |= fields.has_impossible();
            let (kind, model, usage) = (kind(one), model(one), fields.usage());
            if answer.made(&kind, model.as_deref()) {
                calls += 1;
                let output = usage.output.unwrap_or(0);
                last_call = usage.input.map(|input| LastCall { input, output });
                add(&mut own, &usage, calls == 1);
                continue;
            }
            // A model that declined before it wrote anything is not billed.
            let is_billed = kind != "message" || usage.output.is_some_and(|output| output > 0);
            if is_billed && usage != Usage::default() {
                attempts.push(Attempt { kind: kind.into(), model, usage });
            }
        }
        let served_by = answer.other_than_requested();
        // A single call of the requested model: the total is enough.
        let is_single = calls == 1 && attempts.is_empty() && served_by.is_none();
        let last_call = last_call.filter(|_| !is_single);
        let is_counted = own != Usage::default() || !attempts.is_empty();
        is_counted.then_some(Iterations { own, last_call, attempts, served_by })
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
    fn of(all: Value<'_>) -> Self {
        let of_kind = |wanted| all.items().filter(move |one| kind(*one) == wanted);
        let fallback = of_kind("fallback_message").last();
        Self {
            model: fallback.or_else(|| of_kind("message").last()).and_then(model),
            first: of_kind("message").next().and_then(model),
            is_fallback: fallback.is_some(),
        }
    }

    /// Whether it made this call.
    fn made(&self, kind: &str, model: Option<&str>) -> bool {
        match kind {
            "fallback_message" => true,
            // Without a name it is the requested model's.
            "message" => match model {
                Some(model) => self.model.as_deref() == Some(model),
                None => !self.is_fallback,
            },
            _ => false,
        }
    }

    fn other_than_requested(self) -> Option<Box<str>> {
        let is_other = self.is_fallback || self.first.is_some() && self.first != self.model;
        self.model.filter(|_| is_other)
    }
}

impl CallFields {
    fn of(usage: &UsageMembers<'_>) -> Self {
        const SPLIT: [&str; 2] = ["ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens"];
        let split = usage.cache_creation.map(|split| split.members(SPLIT)).unwrap_or_default();
        let [short, long] = split.map(Count::of);
        let mut created = Count::of(usage.cache_creation_input_tokens);
        if created == Count::default() {
            created = short.plus(long);
        }
        let fresh = Count::of(usage.input_tokens);
        let read = Count::of(usage.cache_read_input_tokens);
        Self {
            input: InputFields { fresh, created, read },
            created_long: long,
            output: Count::of(usage.output_tokens),
        }
    }

    fn has_impossible(&self) -> bool {
        let InputFields { fresh, created, read } = self.input;
        Count::any_impossible(&[fresh, created, read, self.created_long, self.output])
    }

    /// Where nothing was reported, what was reported before.
    fn or(self, before: Self) -> Self {
        let one = |now: Count, before: Count| if now == Count::default() { before } else { now };
        let has_input = self.input.fresh != Count::default();
        Self {
            input: if has_input { self.input } else { before.input },
            created_long: one(self.created_long, before.created_long),
            output: one(self.output, before.output),
        }
    }

    fn grow(&mut self, later: Self) {
        self.input.grow(later.input);
        self.created_long.grow(later.created_long);
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
    /// Takes over a later report as a whole, else without its zeros, unless the input is smaller then.
    fn grow(&mut self, later: Self) {
        let kept = |is_kept: fn(Count) -> bool| {
            let one = |later: Count, mut now: Count| {
                now.grow(later);
                if is_kept(later) { now } else { later }
            };
            Self {
                fresh: one(later.fresh, self.fresh),
                created: one(later.created, self.created),
                read: one(later.read, self.read),
            }
        };
        let reported = kept(|later| later.value().is_none());
        let without_zeros = kept(|later| later.value().unwrap_or(0) == 0);
        let now = self.sum();
        if let Some(grown) = [reported, without_zeros].into_iter().find(|it| it.sum() >= now) {
            *self = grown;
        }
    }

    fn sum(&self) -> u64 {
        [self.fresh, self.created, self.read].into_iter().filter_map(Count::value).sum()
    }

    /// The whole input; unknown if a part of it is.
    fn total(&self) -> Option<u64> {
        self.fresh.value()?;
        let is_known = !self.created.is_unknown() && !self.read.is_unknown();
        is_known.then(|| self.sum())
    }
}

fn kind(one: Value<'_>) -> Cow<'_, str> {
    one.get_text("type").unwrap_or(Cow::Borrowed("message"))
}

fn model(one: Value<'_>) -> Option<Box<str>> {
    one.get_text("model").filter(|model| !model.is_empty()).map(Into::into)
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
