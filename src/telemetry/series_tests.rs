//! How many series one model of one upstream has: each costs its scraper memory for as long as it lives.

use strum::IntoEnumIterator;

use super::tests::{classic, estimate, rewritten, sample_exchange, sample_timing};
use super::*;
use crate::context::cost::CostParts;
use crate::context::overflow::{OverflowReport, OverflowSign};
use crate::context::plan::{ChangeCounts, RewriteSummary};
use crate::context::policy::SummaryAuthor;
use crate::context::{Estimate, EstimateMethod, Outcome};
use crate::dialect::Usage;
use crate::dialect::cache::{CacheMiss, CacheMissCause};
use crate::dialect::editing::ClearingReport;
use crate::dialect::error_kind::ErrorKind;
use crate::dialect::hints::{ClientHints, RequestClass};
use crate::dialect::quota::QuotaKind;
use crate::dialect::repair::RepairCause;

const UPSTREAM: &str = "anthropic";
const MODEL: &str = "claude-sonnet-4-5";

/// Series of one model and one upstream, at most.
const MOST: usize = 400;
/// Of each sort of trouble, so many kinds come in the life of a process; there are up to 13.
const TROUBLES: usize = 4;

fn report_all(telemetry: &Telemetry, exchanges: impl IntoIterator<Item = Exchange>) {
    exchanges.into_iter().for_each(|exchange| telemetry.report(exchange));
}

/// Exchanges of every outcome, size, method, and with everything that can be said of one.
fn traffic(telemetry: &Telemetry) {
    let ends = [
        (Outcome::Complete, Some(200)),
        (Outcome::Refused, Some(400)),
        (Outcome::Refused, Some(529)),
        (Outcome::UpstreamFailed, None),
        (Outcome::UpstreamFailed, Some(200)),
        (Outcome::ClientLeft, Some(200)),
        (Outcome::EndedByProxy, Some(200)),
    ];
    report_all(
        telemetry,
        ends.map(|(outcome, status)| Exchange { outcome, status, ..sample_exchange() }),
    );
    for method in EstimateMethod::iter() {
        for input in [5_000, 50_000, 150_000] {
            let estimate = Some(Estimate { method, ..estimate(input) });
            let usage = Usage { input: Some(input), ..sample_exchange().usage };
            telemetry.report(Exchange { estimate, usage, ..sample_exchange() });
        }
    }
    report_all(
        telemetry,
        FailOpen::iter().map(|why| Exchange { fail_open: vec![why], ..sample_exchange() }),
    );
    report_all(
        telemetry,
        Note::iter().take(TROUBLES).map(|note| Exchange { notes: vec![note], ..sample_exchange() }),
    );
    let errors = ErrorKind::iter()
        .take(TROUBLES)
        .map(|kind| Exchange { error_kind: Some(kind), ..sample_exchange() });
    report_all(telemetry, errors);
    let classes = RequestClass::iter().take(TROUBLES).map(|class| {
        let hints = ClientHints { class: Some(class), ..ClientHints::default() };
        Exchange { hints: Some(Box::new(hints)), ..sample_exchange() }
    });
    report_all(telemetry, classes);
    let timing = ExchangeTiming {
        longest_gap_us: Some(1_000_000),
        silent_stream: true,
        compaction_wait_us: Some(1),
        ..sample_timing()
    };
    let parts = CostParts {
        input: 1.0,
        cache_read: 1.0,
        cache_write: 1.0,
        output: 1.0,
        ..CostParts::default()
    };
    telemetry.report(Exchange {
        timing,
        costs: vec![(MODEL.into(), parts)],
        served: Some("claude-opus-4-5".into()),
        classic: Some(classic("dexto")),
        repeated_calls: Some(4),
        count_estimated: Some(CountEstimate::Missing),
        notes: vec![Note::InputWithheld],
        ..sample_exchange()
    });
    let mut usage = Usage { served_by: Some("claude-opus-4-5".into()), ..sample_exchange().usage };
    usage.billing.stated = Some(1);
    let dollars_beside_stated = Some(1.0);
    telemetry.report(Exchange { usage, dollars_beside_stated, ..sample_exchange() });
}

fn rewriting(telemetry: &Telemetry) {
    telemetry.report(rewritten());
    let new = rewritten();
    let replayed = RewriteSummary { new: ChangeCounts::default(), ..new.done.clone() };
    telemetry.report(Exchange { done: replayed, ..new });
    for cause in CacheMissCause::iter().take(TROUBLES) {
        let cache_miss = Some(CacheMiss { cause, tokens: None });
        let cleared = Some(ClearingReport { tool_uses: 1, input_tokens: 1 });
        let usage = Usage { cache_miss, cleared, ..sample_exchange().usage };
        telemetry.report(Exchange { usage, ..sample_exchange() });
    }
    for cause in RepairCause::iter().take(TROUBLES) {
        let refusal = Some(RefusalReport { causes: vec![cause], outcome: RefusalOutcome::Healed });
        telemetry.report(Exchange { refusal, ..sample_exchange() });
    }
    for sign in OverflowSign::iter().take(TROUBLES / 2) {
        for saved in [true, false] {
            let overflow = Some(OverflowReport { sign, saved, reported: Default::default() });
            let done = RewriteSummary { overflow, ..RewriteSummary::default() };
            telemetry.report(Exchange { done, ..sample_exchange() });
        }
    }
    for engine in SummaryAuthor::iter() {
        for outcome in SummaryOutcome::iter() {
            let upstream = UPSTREAM.into();
            let usage = sample_exchange().usage;
            let (model, after) = (MODEL.into(), Some(100));
            let compaction = Compaction {
                upstream,
                model,
                engine,
                outcome,
                before: 1_000,
                after,
                seconds: 9.0,
                usage,
            };
            telemetry.compacted(&compaction);
        }
    }
}

fn process(telemetry: &Telemetry) {
    telemetry.name_preset("claude-code");
    telemetry.show_cap("daily", 0.5);
    telemetry.learned(UPSTREAM, MODEL, 64, 0.5);
    let kinds =
        [QuotaKind::FiveHours, QuotaKind::SevenDays, QuotaKind::Requests, QuotaKind::InputTokens];
    let quotas = kinds.map(|kind| Quota { kind, limit: None, used: 0.5, resets_at: None });
    telemetry.quotas_told(UPSTREAM, None, quotas.to_vec(), wall());
    for operation in StoreOperation::iter() {
        telemetry.store_took(operation, Duration::from_millis(1), false);
    }
    let state =
        StoreState { writes: 0, traffic: 0, admin: 0, restarts: 0, bytes: 1, is_failing: false };
    telemetry.set_store_state(Some(&state));
    for what in CacheKind::iter() {
        telemetry.set_cached(what, 1);
        telemetry.set_cache_limit(what, 1);
    }
    telemetry.client_timed_out(ClientTimeout::Idle);
    telemetry.count_warehouse(WarehouseOutcome::Written, 1);
    telemetry.session_loaded(Duration::from_millis(1));
    telemetry.upstream(UPSTREAM).waited(Duration::from_millis(1));
    telemetry.upstream(UPSTREAM).repeats(RepeatCause::WentAway);
    telemetry.counted_by_provider(UPSTREAM, CountOutcome::Answered);
    telemetry.lesson(UPSTREAM, LessonOutcome::Learned);
    telemetry.admin_refused(AdminRefusal::NoToken);
    for signal in [OtelSignal::Traces, OtelSignal::Metrics, OtelSignal::Logs] {
        telemetry.count_otel(signal, OtelOutcome::Sent, 1);
    }
}

/// Without those of the model that answered once in place of the requested one.
fn series(page: &str) -> Vec<&str> {
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    lines.filter(|line| !line.contains("model=\"claude-opus-4-5\"")).collect()
}

#[test]
fn model_of_upstream_has_few_series() {
    let telemetry = Telemetry::silent().unwrap();
    telemetry.begin_at_zero([UPSTREAM]);
    traffic(&telemetry);
    rewriting(&telemetry);
    process(&telemetry);
    let page = telemetry.render();
    let all = series(&page);
    for row in telemetry.table() {
        let is_of_tags = row.name.starts_with("plimsoll_tag_");
        let begins =
            [format!("{} ", row.name), format!("{}{{", row.name), format!("{}_count", row.name)];
        let is_there = |line: &&str| begins.iter().any(|begin| line.starts_with(begin));
        assert!(is_of_tags || all.iter().any(is_there), "no traffic for {}", row.name);
    }
    assert!(all.len() <= MOST, "{}:\n{page}", all.len());
}
