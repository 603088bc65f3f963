//! How an exchange counts whatever its request was about: how it ended, how long it took, what the provider reported, and
//! what Plimsoll could not do.

use prometheus::{Counter, Gauge, Histogram, IntCounter};
use strum::IntoEnumIterator as _;

use super::family::{
    LONG_SECONDS, MetricFamily, ModelLabels, NONE, OrNone, SECONDS, UpstreamLabels, families,
    labels, seconds,
};
use crate::context::Outcome;
use crate::context::caps::Spending;
use crate::context::cost::{CostKind, CostParts};
use crate::dialect::error_kind::ErrorKind;
use crate::dialect::hints::{AgentType, RequestClass};
use crate::dialect::quota::QuotaKind;
use crate::dialect::{Dialect, Note, Usage};
use crate::telemetry::event::Exchange;
use crate::telemetry::labels::{
    CountEstimate, CountOutcome, FailOpen, LessonOutcome, PriceSource, UsageKind, tokens_by_kind,
};

/// From 0.1 ms to 0.25 s: our own time.
const OWN_TIME: &[f64] = &[1e-4, 5e-4, 1e-3, 5e-3, 2.5e-2, 0.25];
/// From 2 to 10 µs, and outliers: our own time per event.
const EVENT: &[f64] = &[2e-6, 1e-5, 1e-4];
/// Shares of the window.
const FILL: &[f64] = &[0.25, 0.5, 0.75, 0.9, 1.0];

labels! {
    EndLabels<'a> { upstream: &'a str, dialect: OrNone<Dialect>, outcome: Outcome, status: &'a str }
    pub(super) TokenLabels<'a> { upstream: &'a str, model: &'a str, kind: UsageKind }
    CostLabels<'a> { upstream: &'a str, model: &'a str, kind: CostKind }
    StatedLabels<'a> { upstream: &'a str, model: &'a str, price: PriceSource }
    TagLabels<'a> { tag: &'a str, value: &'a str }
    QuotaLabels<'a> { upstream: &'a str, kind: QuotaKind }
    CapLabels<'a> { cap: &'a str }
    ServedLabels<'a> { upstream: &'a str, model: &'a str, served: &'a str }
    pub(super) FailOpenLabels { reason: FailOpen }
    ErrorLabels<'a> { upstream: &'a str, kind: ErrorKind }
    NoteLabels { note: Note }
    ClientLabels<'a> { upstream: &'a str, class: RequestClass, agent_type: OrNone<AgentType> }
    pub(super) QuestionLabels<'a> { upstream: &'a str, outcome: CountOutcome }
    CountEstimateLabels<'a> { upstream: &'a str, reason: CountEstimate }
    pub(super) LessonLabels<'a> { upstream: &'a str, outcome: LessonOutcome }
}

families! {
    /// All metrics of traffic.
    pub(in crate::telemetry) struct TrafficMetrics {
        requests: MetricFamily<EndLabels<'static>, IntCounter> = "plimsoll_requests_total",
            "Exchanges by how they ended, and the class of the client's status.";
        first_byte: MetricFamily<ModelLabels<'static>, Histogram> = "plimsoll_first_byte_seconds" in SECONDS,
            "From a request's arrival to the first byte of the response body.";
        duration: MetricFamily<ModelLabels<'static>, Histogram> = "plimsoll_request_duration_seconds" in SECONDS,
            "From a request's arrival to the end of the exchange.";
        overhead: MetricFamily<UpstreamLabels<'static>, Histogram> = "plimsoll_overhead_request_seconds" in OWN_TIME,
            "Time that Plimsoll added before forwarding, without waits for a summary.";
        event: Histogram = "plimsoll_overhead_event_seconds" in EVENT,
            "Time spent on one frame of a response body: the mean of each exchange.";
        tokens: MetricFamily<TokenLabels<'static>, IntCounter> = "plimsoll_tokens_total",
            "Reported tokens, under the billed model. `input` includes `cache_read` and `cache_write`, `output` includes `reasoning`. Unbilled refusals do not count.";
        cost: MetricFamily<CostLabels<'static>, Counter> = "plimsoll_cost_dollars_total",
            "What exchanges cost, under the billed model, at the prices of their time; of what has none, by the provider's word (`stated`).";
        stated: MetricFamily<StatedLabels<'static>, Counter> = "plimsoll_stated_cost_dollars_total",
            "Exchanges whose provider says their price: by its word, and at ours (`catalogue`).";
        tag_cost: MetricFamily<TagLabels<'static>, Counter> = "plimsoll_tag_cost_dollars_total",
            "What exchanges cost, by tags that `metrics_tags` names.";
        tag_tokens: MetricFamily<TagLabels<'static>, IntCounter> = "plimsoll_tag_tokens_total",
            "Their tokens.";
        unpriced: MetricFamily<ModelLabels<'static>, IntCounter> = "plimsoll_unpriced_total",
            "Exchanges whose price is not wholly known.";
        served: MetricFamily<ServedLabels<'static>, IntCounter> = "plimsoll_model_served_total",
            "Exchanges whose reply names another model (`served`) than the request, dates aside.";
        quota_used: MetricFamily<QuotaLabels<'static>, Gauge> = "plimsoll_quota_fill_ratio",
            "Used share of a provider's limit, as last said: the largest of all credentials; 0 once it is whole again.";
        cap_used: MetricFamily<CapLabels<'static>, Gauge> = "plimsoll_cap_fill_ratio",
            "Spent share of a cap in the running period: the largest of all whom it limits.";
        cache_reported: MetricFamily<ModelLabels<'static>, IntCounter> = "plimsoll_cache_reported_total",
            "Exchanges whose provider reported cache reads, 0 included.";
        cache_hits: MetricFamily<ModelLabels<'static>, IntCounter> = "plimsoll_cache_hits_total",
            "Exchanges with some of the prompt from the cache.";
        fill: MetricFamily<ModelLabels<'static>, Histogram> = "plimsoll_context_fill_ratio" in FILL,
            "Input tokens (reported, else estimated) divided by the window.";
        longest_gap: MetricFamily<ModelLabels<'static>, Histogram> = "plimsoll_stream_longest_gap_seconds" in LONG_SECONDS,
            "Longest time between two chunks of a stream, or before the first.";
        silent: MetricFamily<UpstreamLabels<'static>, IntCounter> = "plimsoll_silent_streams_total",
            "Streams ended because nothing came for `limits.silent_stream_s`.";
        repeated_calls: MetricFamily<ModelLabels<'static>, IntCounter> = "plimsoll_repeated_calls_total",
            "Requests of agents in a loop: the newest call had the same result in four of ten turns.";
        pub(super) fail_open: MetricFamily<FailOpenLabels, IntCounter> = "plimsoll_fail_open_total",
            "Exchanges in which the client got what it would have got without Plimsoll. With `unknown_credential` (see `tenant_headers`) and `no_credential` nothing was stored.";
        errors: MetricFamily<ErrorLabels<'static>, IntCounter> = "plimsoll_provider_errors_total",
            "Errors of providers, also inside a success.";
        notes: MetricFamily<NoteLabels, IntCounter> = "plimsoll_notes_total",
            "Unexpected things in requests and replies.";
        clients: MetricFamily<ClientLabels<'static>, IntCounter> = "plimsoll_client_requests_total",
            "Requests whose client says their purpose (Claude Code).";
        pub(super) questions: MetricFamily<QuestionLabels<'static>, IntCounter> = "plimsoll_estimate_questions_total",
            "Calls of counting endpoints for `estimate.count`.";
        counts_estimated: MetricFamily<CountEstimateLabels<'static>, IntCounter> = "plimsoll_token_estimates_total",
            "Counting requests answered with an estimate: as `configured`, or because the upstream has no such endpoint (`missing`; `learned`: asked before).";
        pub(super) lessons: MetricFamily<LessonLabels<'static>, IntCounter> = "plimsoll_lessons_total",
            "Lessons of refusals: `learned`, or not because the request contains the text (`quoted`), the window contradicts what was sent (`implausible`), the message is `unknown` or the list `full`.";
    }
}

impl TrafficMetrics {
    /// Counts one exchange. Its model is the requested one, or `none`.
    pub(super) fn count(&self, exchange: &Exchange, of: ModelLabels<'_>) {
        let upstream = of.upstream;
        self.count_end(exchange, of);
        for &reason in &exchange.fail_open {
            self.fail_open.get(FailOpenLabels { reason }).inc();
        }
        for &note in &exchange.notes {
            self.notes.get(NoteLabels { note }).inc();
        }
        if exchange.timing.silent_stream {
            self.silent.get(UpstreamLabels { upstream }).inc();
        }
        if let Some(reason) = exchange.count_estimated {
            self.counts_estimated.get(CountEstimateLabels { upstream, reason }).inc();
        }
        if let Some(kind) = exchange.error_kind {
            self.errors.get(ErrorLabels { upstream, kind }).inc();
        }
        if let Some(hints) = &exchange.hints
            && let Some(class) = hints.class
        {
            let agent_type = OrNone(hints.agent_type);
            self.clients.get(ClientLabels { upstream, class, agent_type }).inc();
        }
    }

    fn count_end(&self, exchange: &Exchange, of: ModelLabels<'_>) {
        let (upstream, dialect) = (of.upstream, OrNone(exchange.dialect));
        let (outcome, status) = (exchange.outcome, status_class(exchange.status));
        self.requests.get(EndLabels { upstream, dialect, outcome, status }).inc();
        let timing = &exchange.timing;
        self.duration.get(of).observe(seconds(timing.duration_us));
        if let Some(us) = timing.first_byte_us {
            self.first_byte.get(of).observe(seconds(us));
        }
        // An exchange that was never forwarded has no request side.
        if timing.request_side_us > 0 {
            let request_side = seconds(timing.request_side_us);
            self.overhead.get(UpstreamLabels { upstream }).observe(request_side);
        }
        if timing.frames > 0 {
            self.event.observe(seconds(timing.response_side_us) / timing.frames as f64);
        }
    }

    /// Counts one exchange for the model that was requested.
    pub(super) fn count_model(&self, exchange: &Exchange, model: ModelLabels<'_>) {
        if let Some(read) = exchange.usage.cache_read {
            self.cache_reported.get(model).inc();
            self.cache_hits.get(model).inc_by(u64::from(read > 0));
        }
        let filled =
            exchange.actual().or(exchange.estimate.as_ref().map(|estimate| estimate.tokens));
        if let (Some(filled), Some(window)) = (filled, exchange.window.filter(|window| *window > 0))
        {
            self.fill.get(model).observe(filled as f64 / window as f64);
        }
        if let Some(us) = exchange.timing.longest_gap_us {
            self.longest_gap.get(model).observe(seconds(us));
        }
        if exchange.repeated_calls.is_some() {
            self.repeated_calls.get(model).inc();
        }
    }

    /// Counts what the calls of one model cost.
    pub(super) fn count_cost(&self, parts: &CostParts, of: ModelLabels<'_>) {
        let ModelLabels { upstream, model } = of;
        for kind in CostKind::iter() {
            let dollars = parts.part(kind);
            if dollars > 0.0 {
                self.cost.get(CostLabels { upstream, model, kind }).inc_by(dollars);
            }
        }
    }

    /// Counts what an exchange cost by the provider's word and at our prices, if both are known.
    pub(super) fn count_stated(&self, exchange: &Exchange, of: ModelLabels<'_>) {
        let ModelLabels { upstream, model } = of;
        let theirs = exchange.usage.billing.stated_dollars();
        let Some((theirs, ours)) = theirs.zip(exchange.dollars_beside_stated) else { return };
        for (price, dollars) in [(PriceSource::Stated, theirs), (PriceSource::Catalogue, ours)] {
            self.stated.get(StatedLabels { upstream, model, price }).inc_by(dollars);
        }
    }

    /// Counts what an exchange with this tag spent.
    pub(super) fn count_tag(&self, exchange: &Exchange, tag: &str, value: &str) {
        let Spending { dollars, tokens } = Spending::new(&exchange.usage, exchange.dollars);
        let labels = TagLabels { tag, value };
        self.tag_cost.get(labels).inc_by(dollars);
        self.tag_tokens.get(labels).inc_by(tokens);
    }

    /// Counts an exchange whose price is not known.
    pub(super) fn count_unpriced(&self, exchange: &Exchange, model: ModelLabels<'_>) {
        if exchange.usage.is_unpriced(exchange.dollars) {
            self.unpriced.get(model).inc();
        }
    }

    /// Counts which model answered. `served`: its label.
    pub(super) fn count_served(&self, of: ModelLabels<'_>, served: &str) {
        let ModelLabels { upstream, model } = of;
        self.served.get(ServedLabels { upstream, model, served }).inc();
    }

    /// Shows how much of a spending cap is spent.
    pub(in crate::telemetry) fn show_cap(&self, cap: &str, used: f64) {
        self.cap_used.get(CapLabels { cap }).set(used);
    }

    /// Shows how much is used of a limit.
    pub(in crate::telemetry) fn show_quota(&self, upstream: &str, kind: QuotaKind, used: f64) {
        self.quota_used.get(QuotaLabels { upstream, kind }).set(used);
    }

    /// Counts the tokens of one call under its model.
    pub(super) fn count_tokens(&self, usage: &Usage, of: ModelLabels<'_>) {
        let ModelLabels { upstream, model } = of;
        for (kind, tokens) in tokens_by_kind(usage) {
            self.tokens.get(TokenLabels { upstream, model, kind }).inc_by(tokens.unwrap_or(0));
        }
    }
}

/// `2xx` of 200.
fn status_class(status: Option<u16>) -> &'static str {
    match status.map(|status| status / 100) {
        Some(1) => "1xx",
        Some(2) => "2xx",
        Some(3) => "3xx",
        Some(4) => "4xx",
        Some(5) => "5xx",
        _ => NONE,
    }
}
