//! How rewriting counts: what was changed and why not, what it saved, and what it cost.
//!
//! Modes `shadow` and `active` share one metric name and differ by the label `mode`. A replayed change has no
//! reason here: it was counted with its reason when it was new.

use prometheus::{CounterVec, IntCounterVec};
use serde::Serialize;

use super::handles::ModelHandles;
use super::make::{MetricRegistrar, NONE};
use super::traffic::CacheHandles;
use crate::context::overflow::OverflowReport;
use crate::context::plan::{Change, ChangeCounts, Decision, RewriteSummary};
use crate::dialect::Note;
use crate::telemetry::event::Exchange;
use crate::telemetry::labels::RefusalOutcome;
use crate::telemetry::log::variant_name;

/// Whether and how an exchange was edited; a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
enum RewriteLabel {
    /// It was sent as it came.
    No,
    /// With changes that were decided for an earlier request.
    Replayed,
    /// With new changes: a new cut breaks the cache this once.
    New,
}

impl RewriteLabel {
    fn of(done: &RewriteSummary) -> Self {
        match (done.is_sent(), done.new.is_nothing()) {
            (false, _) => RewriteLabel::No,
            (true, true) => RewriteLabel::Replayed,
            (true, false) => RewriteLabel::New,
        }
    }
}

/// All metrics of rewriting.
pub(super) struct RewriteMetrics {
    edits: IntCounterVec,
    pruned: IntCounterVec,
    reprocessed: IntCounterVec,
    checked: IntCounterVec,
    saved: CounterVec,
    broken: CounterVec,
    pub(super) refused: IntCounterVec,
    pub(super) set_aside: IntCounterVec,
    healed: IntCounterVec,
    refusals: IntCounterVec,
    withheld: IntCounterVec,
    input: IntCounterVec,
    read: IntCounterVec,
    misses: IntCounterVec,
    overflows: IntCounterVec,
    cleared_uses: IntCounterVec,
    cleared_tokens: IntCounterVec,
}

impl RewriteMetrics {
    #[rustfmt::skip] // A table: one metric a line or two.
    pub(super) fn new(make: &mut MetricRegistrar) -> Result<Self, prometheus::Error> {
        let of = &["upstream", "model"];
        let edited = &["upstream", "model", "edited"];
        Ok(Self {
            edits: make.counters("plimsoll_edits_total", &["kind", "reason", "decision", "mode"],
                "Edits of requests by kind, reason, decision (`new`, `replayed`, `refused`) and mode; in mode `shadow` none of them was sent. A batch of refused cuts counts once; replayed edits have no reason (`none`).")?,
            pruned: make.counters("plimsoll_pruned_tokens_total", &["upstream", "model", "mode"],
                "Tokens of tool results that were not sent (estimated), counted again on every turn without them; in mode `shadow`, that would not have been sent.")?,
            reprocessed: make.counters("plimsoll_cache_broken_tokens_total", of,
                "Tokens that were in the provider's cache after the place of a new cut and had to be processed again, as the provider reported.")?,
            checked: make.counters("plimsoll_savings_checked_tokens_total", &["upstream", "model", "kind"],
                "For exchanges whose saving was checked by a sample: tokens that Plimsoll says were not sent (`claimed`: cut results, and what summaries replaced), and the provider's own count of the request as it came (`came`) and as it was sent (`sent`).")?,
            saved: make.dollars("plimsoll_pruned_dollars_total", of,
                "What the pruned tokens would have cost at catalogue prices, as cache reads where the exchange read from the cache. The cost of broken caches is not subtracted.")?,
            broken: make.dollars("plimsoll_cache_broken_dollars_total", of,
                "Cost at catalogue prices of the caches that new cuts broke; subtract it from the pruned dollars for the net.")?,
            refused: make.counters("plimsoll_rewrites_refused_total", &["upstream", "cause"],
                "Requests that the provider refused as rewritten, and then accepted in the original form or in the last accepted form, by what the refusal named.")?,
            set_aside: make.counters("plimsoll_threads_set_aside_total", &["upstream"],
                "Threads in which nothing new is rewritten, because the provider refused a rewritten request and accepted it without the rewrite.")?,
            healed: make.counters("plimsoll_healed_total", &["cause"],
                "Requests that the provider refused, and answered after Plimsoll changed them and sent them once more, and requests that Plimsoll changed before it sent them because another request was refused, by what was refused.")?,
            refusals: make.counters("plimsoll_refusals_total", &["upstream", "status", "cause", "outcome"],
                "Refusals that blame the request, by the HTTP status that the client saw (`none`: another), by what is refused (`unknown`: an unknown message) and by outcome: `healed`, `refused_again`, `unanswered`, `no_repair`, `misplaced` (it names a place that does not exist), `not_kept`, `possible` (a repair was possible in mode `active`), `unknown`.")?,
            withheld: make.counters("plimsoll_reasoning_withheld_total", edited,
                "Exchanges in which the provider removed reasoning from the request before the model read it (`input_transformations`), by whether the request was changed.")?,
            input: make.counters("plimsoll_cache_input_tokens_total", edited,
                "Input tokens of exchanges that reported what was read from the cache, by whether the request was changed: `no`, `replayed` (earlier decisions alone), `new`.")?,
            read: make.counters("plimsoll_cache_read_tokens_total", edited,
                "Those of plimsoll_cache_input_tokens_total that were read from the cache.")?,
            misses: make.counters("plimsoll_cache_misses_total", &["upstream", "model", "cause", "edited"],
                "Cache misses that the provider explained, by what differed; only if the client asks for the explanation, or `cache.diagnose` does.")?,
            overflows: make.counters("plimsoll_overflows_total", &["upstream", "model", "sign", "end"],
                "Requests that did not fit the window, by how that was detected (`refused`, `in_reply`, `window_full`, `empty`, `truncated`) and outcome: `saved` (Plimsoll made room and the provider answered) or `lost`.")?,
            cleared_uses: make.counters("plimsoll_provider_cleared_results_total", of,
                "Tool results that the provider cleared before the model read them (Anthropic's context editing), as reported; counted again on every turn without them.")?,
            cleared_tokens: make.counters("plimsoll_provider_cleared_tokens_total", of,
                "Input tokens that the provider cleared, as it reported; they are in no other count.")?,
        })
    }

    /// Counts one exchange.
    pub(super) fn count(&self, exchange: &Exchange, upstream: &str, of_model: &ModelHandles) {
        let model = &*of_model.label;
        let edited = RewriteLabel::of(&exchange.done);
        self.count_edits(&exchange.done);
        self.count_savings(exchange, upstream, model);
        if let Some(cause) = exchange.refused {
            self.refused.with_label_values(&[upstream, &variant_name(cause)]).inc();
        }
        self.count_refusal(exchange, upstream);
        if exchange.suspends_branch() {
            self.set_aside.with_label_values(&[upstream]).inc();
        }
        if let Some(OverflowReport { sign, saved, .. }) = exchange.done.overflow {
            let end = if saved { "saved" } else { "lost" };
            self.overflows.with_label_values(&[upstream, model, &variant_name(sign), end]).inc();
        }
        if exchange.notes.contains(&Note::InputWithheld) {
            self.withheld.with_label_values(&[upstream, model, &variant_name(edited)]).inc();
        }
        if let Some(miss) = exchange.usage.cache_miss {
            let labels = [upstream, model, &variant_name(miss.cause), &variant_name(edited)];
            self.misses.with_label_values(&labels).inc();
        }
        if let Some(cleared) = exchange.usage.cleared {
            self.cleared_uses.with_label_values(&[upstream, model]).inc_by(cleared.tool_uses);
            self.cleared_tokens.with_label_values(&[upstream, model]).inc_by(cleared.input_tokens);
        }
        if let (Some(read), Some(input)) = (exchange.usage.cache_read, exchange.actual()) {
            let cached = of_model.cached[edited as usize].get_or_init(|| {
                let labels = &[upstream, model, &variant_name(edited)];
                let input = self.input.with_label_values(labels);
                CacheHandles { input, read: self.read.with_label_values(labels) }
            });
            cached.input.inc_by(input);
            cached.read.inc_by(read);
        }
    }

    fn count_refusal(&self, exchange: &Exchange, upstream: &str) {
        let Some(refusal) = &exchange.refusal else { return };
        if refusal.healed().is_some() {
            for cause in &refusal.causes {
                self.healed.with_label_values(&[cause.word()]).inc();
            }
        }
        // The request itself was not refused.
        if refusal.outcome == RefusalOutcome::Spared {
            return;
        }
        // A repaired request has a successful status; the status of its refusal is not reported.
        let status = exchange.status.filter(|status| matches!(status, 400 | 413 | 422));
        let status = status.map_or_else(|| NONE.to_owned(), |status| status.to_string());
        let cause = refusal.causes.last().map_or("unknown", |cause| cause.word());
        let labels = [upstream, &*status, cause, &variant_name(refusal.outcome)];
        self.refusals.with_label_values(&labels).inc();
    }

    fn count_edits(&self, done: &RewriteSummary) {
        let count = |kind: Change, reason: &str, decision: Decision, times: u32| {
            if times > 0 {
                let labels = [
                    &variant_name(kind),
                    reason,
                    &variant_name(decision),
                    &variant_name(done.mode),
                ];
                self.edits.with_label_values(&labels).inc_by(times.into());
            }
        };
        let mut counted = ChangeCounts::default();
        for step in &done.steps {
            if step.decision == Decision::New {
                *counted.of(step.change) += 1;
            }
            count(step.change, &variant_name(step.why), step.decision, 1);
        }
        let (mut made, mut new) = (done.made, done.new);
        let kinds = [
            Change::Cut,
            Change::PutBack,
            Change::Removed,
            Change::Compacted,
            Change::Injected,
            Change::Repaired,
        ];
        for kind in kinds {
            let (made, new) = (*made.of(kind), *new.of(kind));
            count(kind, NONE, Decision::Replayed, made.saturating_sub(new));
            // The new changes beyond those that are listed individually.
            count(kind, NONE, Decision::New, new.saturating_sub(*counted.of(kind)));
        }
    }

    fn count_savings(&self, exchange: &Exchange, upstream: &str, model: &str) {
        let Some(saved) = &exchange.saved else { return };
        let pruned = saved.removed + saved.in_shadow;
        if pruned > 0 {
            let labels = [upstream, model, &variant_name(exchange.done.mode)];
            self.pruned.with_label_values(&labels).inc_by(pruned);
        }
        if saved.reprocessed > 0 {
            self.reprocessed.with_label_values(&[upstream, model]).inc_by(saved.reprocessed);
        }
        if let Some(came) = saved.came {
            for (kind, tokens) in [("claimed", saved.gone()), ("came", came), ("sent", saved.sent)]
            {
                self.checked.with_label_values(&[upstream, model, kind]).inc_by(tokens);
            }
        }
        if let Some(money) = saved.money.filter(|money| money.saved > 0.0 || money.broken > 0.0) {
            self.saved.with_label_values(&[upstream, model]).inc_by(money.saved);
            self.broken.with_label_values(&[upstream, model]).inc_by(money.broken);
        }
    }
}
