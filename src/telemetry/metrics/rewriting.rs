//! How rewriting counts: what was changed and why not, what it saved, and what it cost.
//!
//! Modes `shadow` and `active` share one metric name and differ by the label `mode`. A replayed change has no
//! reason here: it was counted with its reason when it was new.

use prometheus::{Counter, IntCounter};
use strum::AsRefStr;

use super::family::{MetricFamily, ModelLabels, NONE, OrNone, UpstreamLabels, families, labels};
use crate::context::overflow::{OverflowReport, OverflowSign};
use crate::context::plan::{Change, ChangeCounts, Decision, DecisionReason, RewriteSummary};
use crate::context::policy::Mode;
use crate::context::savings::ExchangeSavings;
use crate::dialect::Note;
use crate::dialect::cache::CacheMissCause;
use crate::dialect::refusal::RefusalCause;
use crate::dialect::repair::RepairCause;
use crate::telemetry::event::Exchange;
use crate::telemetry::labels::RefusalOutcome;

/// Whether and how an exchange was edited; a metric label.
#[derive(Clone, Copy, AsRefStr)]
#[strum(serialize_all = "snake_case")]
enum RewriteLabel {
    /// It was sent as it came.
    No,
    /// With changes that were decided for an earlier request.
    Replayed,
    /// With new changes: a new cut breaks the cache this once.
    New,
}

impl RewriteLabel {
    fn new(done: &RewriteSummary) -> Self {
        match (done.is_sent(), done.new.is_nothing()) {
            (false, _) => RewriteLabel::No,
            (true, true) => RewriteLabel::Replayed,
            (true, false) => RewriteLabel::New,
        }
    }
}

/// A count of tokens that checks a saving; a metric label.
#[derive(Clone, Copy, AsRefStr)]
#[strum(serialize_all = "snake_case")]
enum CheckedCount {
    Claimed,
    Came,
    Sent,
}

/// Whether room could be made; a metric label.
#[derive(Clone, Copy, AsRefStr)]
#[strum(serialize_all = "snake_case")]
enum OverflowEnd {
    Saved,
    Lost,
}

labels! {
    EditLabels { kind: Change, reason: OrNone<DecisionReason>, decision: Decision, mode: Mode }
    PrunedLabels<'a> { upstream: &'a str, model: &'a str, mode: Mode }
    CheckedLabels<'a> { upstream: &'a str, model: &'a str, kind: CheckedCount }
    pub(super) RefusedLabels<'a> { upstream: &'a str, cause: RefusalCause }
    HealedLabels { cause: RepairCause }
    RefusalLabels<'a> { upstream: &'a str, status: &'a str, cause: &'a str, outcome: RefusalOutcome }
    EditedLabels<'a> { upstream: &'a str, model: &'a str, edited: RewriteLabel }
    MissLabels<'a> { upstream: &'a str, model: &'a str, cause: CacheMissCause, edited: RewriteLabel }
    OverflowLabels<'a> { upstream: &'a str, model: &'a str, sign: OverflowSign, end: OverflowEnd }
}

families! {
    /// All metrics of rewriting.
    pub(super) struct RewriteMetrics {
        edits: MetricFamily<EditLabels, IntCounter> = "plimsoll_edits_total",
            "Edits of requests; in mode `shadow` none was sent. A batch of refused cuts counts once; replayed edits have no reason.";
        pruned: MetricFamily<PrunedLabels<'static>, IntCounter> = "plimsoll_pruned_tokens_total",
            "Tokens of tool results that were not sent (estimated), on every turn again; in mode `shadow`, that would not have been.";
        reprocessed: MetricFamily<ModelLabels<'static>, IntCounter> = "plimsoll_cache_broken_tokens_total",
            "Cached tokens behind a new cut that had to be processed again, as reported.";
        checked: MetricFamily<CheckedLabels<'static>, IntCounter> = "plimsoll_savings_checked_tokens_total",
            "Of sampled exchanges: tokens `claimed` as saved, and the provider's count of the request as it `came` and as it was `sent`.";
        saved: MetricFamily<ModelLabels<'static>, Counter> = "plimsoll_pruned_dollars_total",
            "What the pruned tokens would have cost at catalogue prices, as cache reads where the cache was read; without broken caches.";
        broken: MetricFamily<ModelLabels<'static>, Counter> = "plimsoll_cache_broken_dollars_total",
            "Cost at catalogue prices of the caches that new cuts broke.";
        pub(super) refused: MetricFamily<RefusedLabels<'static>, IntCounter> = "plimsoll_rewrites_refused_total",
            "Requests refused as rewritten and accepted in another form, by what the refusal named.";
        pub(super) set_aside: MetricFamily<UpstreamLabels<'static>, IntCounter> = "plimsoll_threads_set_aside_total",
            "Threads in which nothing new is rewritten for a while, because a rewrite was refused.";
        healed: MetricFamily<HealedLabels, IntCounter> = "plimsoll_healed_total",
            "Requests that were answered after what was refused, in them or earlier, was changed.";
        refusals: MetricFamily<RefusalLabels<'static>, IntCounter> = "plimsoll_refusals_total",
            "Refusals that blame the request: `healed`, `refused_again`, `unanswered`, `no_repair`, `misplaced` (it names a place that does not exist), `not_kept`, `possible` (in mode `active`), `unknown`.";
        withheld: MetricFamily<EditedLabels<'static>, IntCounter> = "plimsoll_reasoning_withheld_total",
            "Exchanges whose provider dropped reasoning unread (`input_transformations`).";
        input: MetricFamily<EditedLabels<'static>, IntCounter> = "plimsoll_cache_input_tokens_total",
            "Input tokens of exchanges that reported cache reads. `edited`: `no`, `replayed` (earlier decisions alone), `new`.";
        read: MetricFamily<EditedLabels<'static>, IntCounter> = "plimsoll_cache_read_tokens_total",
            "The part of these that was read from the cache.";
        misses: MetricFamily<MissLabels<'static>, IntCounter> = "plimsoll_cache_misses_total",
            "Cache misses that the provider explained, if client or `cache.diagnose` asks.";
        overflows: MetricFamily<OverflowLabels<'static>, IntCounter> = "plimsoll_overflows_total",
            "Requests that did not fit the window, by how that showed: `saved` (room was made and the provider answered) or `lost`.";
        cleared_tokens: MetricFamily<ModelLabels<'static>, IntCounter> = "plimsoll_provider_cleared_tokens_total",
            "Input tokens that the provider cleared; in no other count.";
    }
}

impl RewriteMetrics {
    /// Counts one exchange.
    pub(super) fn count(&self, exchange: &Exchange, of: ModelLabels<'_>) {
        let ModelLabels { upstream, model } = of;
        let edited = EditedLabels { upstream, model, edited: RewriteLabel::new(&exchange.done) };
        self.count_edits(&exchange.done);
        if let Some(saved) = &exchange.saved {
            self.count_savings(saved, exchange.done.mode, of);
        }
        if let Some(cause) = exchange.refused {
            self.refused.get(RefusedLabels { upstream, cause }).inc();
        }
        self.count_refusal(exchange, upstream);
        if exchange.suspends_branch() {
            self.set_aside.get(UpstreamLabels { upstream }).inc();
        }
        if let Some(OverflowReport { sign, saved, .. }) = exchange.done.overflow {
            let end = if saved { OverflowEnd::Saved } else { OverflowEnd::Lost };
            self.overflows.get(OverflowLabels { upstream, model, sign, end }).inc();
        }
        if exchange.notes.contains(&Note::InputWithheld) {
            self.withheld.get(edited).inc();
        }
        if let Some(miss) = exchange.usage.cache_miss {
            let EditedLabels { upstream, model, edited } = edited;
            self.misses.get(MissLabels { upstream, model, cause: miss.cause, edited }).inc();
        }
        if let Some(cleared) = exchange.usage.cleared {
            self.cleared_tokens.get(of).inc_by(cleared.input_tokens);
        }
        if let (Some(read), Some(input)) = (exchange.usage.cache_read, exchange.actual()) {
            self.input.get(edited).inc_by(input);
            self.read.get(edited).inc_by(read);
        }
    }

    fn count_refusal(&self, exchange: &Exchange, upstream: &str) {
        let Some(refusal) = &exchange.refusal else { return };
        if refusal.healed().is_some() {
            for &cause in &refusal.causes {
                self.healed.get(HealedLabels { cause }).inc();
            }
        }
        // The request itself was not refused.
        if refusal.outcome == RefusalOutcome::Spared {
            return;
        }
        // A repaired request has a successful status; the status of its refusal is not reported.
        let status = match exchange.status {
            Some(400) => "400",
            Some(413) => "413",
            Some(422) => "422",
            _ => NONE,
        };
        let cause = refusal.causes.last().map_or("unknown", AsRef::as_ref);
        let outcome = refusal.outcome;
        self.refusals.get(RefusalLabels { upstream, status, cause, outcome }).inc();
    }

    fn count_edits(&self, done: &RewriteSummary) {
        let mut listed = ChangeCounts::default();
        for step in &done.steps {
            if step.decision == Decision::New {
                *listed.counter(step.change) += 1;
            }
            self.count_edit(done.mode, step.change, Some(step.why), step.decision, 1);
        }
        let (mut made, mut new) = (done.made, done.new);
        for kind in [
            Change::Cut,
            Change::PutBack,
            Change::Removed,
            Change::Compacted,
            Change::Injected,
            Change::Repaired,
        ] {
            let (made, new) = (*made.counter(kind), *new.counter(kind));
            let replayed = made.saturating_sub(new);
            self.count_edit(done.mode, kind, None, Decision::Replayed, replayed);
            // The new changes beyond those that are listed individually.
            let unlisted = new.saturating_sub(*listed.counter(kind));
            self.count_edit(done.mode, kind, None, Decision::New, unlisted);
        }
    }

    fn count_edit(
        &self,
        mode: Mode,
        kind: Change,
        reason: Option<DecisionReason>,
        decision: Decision,
        times: u32,
    ) {
        if times > 0 {
            let labels = EditLabels { kind, reason: OrNone(reason), decision, mode };
            self.edits.get(labels).inc_by(times.into());
        }
    }

    fn count_savings(&self, saved: &ExchangeSavings, mode: Mode, of: ModelLabels<'_>) {
        let ModelLabels { upstream, model } = of;
        let pruned = saved.removed + saved.in_shadow;
        if pruned > 0 {
            self.pruned.get(PrunedLabels { upstream, model, mode }).inc_by(pruned);
        }
        if saved.reprocessed > 0 {
            self.reprocessed.get(of).inc_by(saved.reprocessed);
        }
        if let Some(came) = saved.came {
            for (kind, tokens) in [
                (CheckedCount::Claimed, saved.gone()),
                (CheckedCount::Came, came),
                (CheckedCount::Sent, saved.sent),
            ] {
                self.checked.get(CheckedLabels { upstream, model, kind }).inc_by(tokens);
            }
        }
        if let Some(money) = saved.money.filter(|money| money.saved > 0.0 || money.broken > 0.0) {
            self.saved.get(of).inc_by(money.saved);
            self.broken.get(of).inc_by(money.broken);
        }
    }
}
