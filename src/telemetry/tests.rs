//! Exchanges become metrics, log lines and live events, without anything private in them.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use serde::Serialize;
use strum::IntoEnumIterator;

use super::log::{BACKLOG, Log, LogFormat};
use super::metrics::MODELS;
use super::*;
use crate::config::LogLevel;
use crate::context::budget::{ClassicEstimate, HiddenInput};
use crate::context::overflow::OverflowSign;
use crate::context::plan::{
    Change, Decision, DecisionReason, PlanStep, RemovedTokens, RewriteSummary,
};
use crate::context::policy::{Mode, SummaryAuthor};
use crate::context::savings::{ExchangeSavings, Money};
use crate::context::{
    Breakdown, CostPrediction, CountingMethod, Estimate, EstimateMethod, Outcome, PromptSection,
    SessionWitness,
};
use crate::dialect::cache::{CacheMiss, CacheMissCause};
use crate::dialect::error_kind::ErrorKind;
use crate::dialect::hints::{AgentType, CompactionCause, RequestClass};
use crate::dialect::models::Family;
use crate::dialect::refusal::RefusalCause;
use crate::dialect::repair::RepairCause;
use crate::dialect::{Dialect, Note, PartIndex, Purpose, Span, StopReason, Usage};
use crate::tokens::learn::Expert;

/// A log whose lines the test can read.
#[derive(Clone, Default)]
struct Page(Arc<Mutex<Vec<u8>>>);

impl Write for Page {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Page {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

pub(super) fn estimate(tokens: u64) -> Estimate {
    let breakdown =
        Breakdown { system: 100, tools: 200, messages: tokens - 300, ..Breakdown::default() };
    let counting = CountingMethod::Exact;
    let guess = CostPrediction {
        tokens,
        low: tokens - 200,
        high: tokens + 200,
        ..CostPrediction::default()
    };
    let method = EstimateMethod::Anchored;
    Estimate {
        tokens,
        method,
        counting,
        new: 10,
        gone: 0,
        gone_history: 0,
        encrypted_compaction: false,
        breakdown,
        guess,
    }
}

/// What an agent's rules count.
pub(super) fn classic(rules: &str) -> ClassicEstimate {
    ClassicEstimate {
        rules: rules.into(),
        tokens: 56_969,
        method: EstimateMethod::Anchored,
        new: 4_979,
        gone: 0,
        system: 0,
        tools: 0,
        before: 51_990,
        weight: 4_979.0,
        removed: RemovedTokens::default(),
    }
}

pub(super) fn sample_exchange() -> Exchange {
    Exchange {
        upstream: Some("anthropic".into()),
        dialect: Some(Dialect::Anthropic),
        purpose: Some(Purpose::Turn),
        model: Some("claude-sonnet-4-5".into()),
        family: Some(Family::Claude),
        session: Some("a-session".into()),
        thread: Some("0123456789abcdef".into()),
        status: Some(200),
        outcome: Outcome::Complete,
        stop: Some(StopReason::ToolUse),
        estimate: Some(estimate(52_100)),
        usage: Usage {
            input: Some(51_790),
            output: Some(2_000),
            cache_read: Some(50_000),
            ..Usage::default()
        },
        window: Some(200_000),
        streamed: true,
        timing: sample_timing(),
        ..blank()
    }
}

pub(super) fn sample_timing() -> ExchangeTiming {
    ExchangeTiming {
        request_bytes: 1_000,
        response_bytes: 5_000,
        frames: 50,
        request_side_us: 400,
        response_side_us: 100,
        headers_us: Some(300_000),
        first_byte_us: Some(321_000),
        duration_us: 1_234_000,
        ..ExchangeTiming::default()
    }
}

fn blank() -> Exchange {
    let id = "6920f0a100000001".into();
    let begun = Exchange::begun(id, 1_763_700_000_123, "POST", "/v1/messages");
    let timing = ExchangeTiming { duration_us: 2_000, ..ExchangeTiming::default() };
    Exchange { timing, ..begun }
}

fn logged(form: LogFormat, exchange: Exchange) -> String {
    let page = Page::default();
    let telemetry = Telemetry::new(Log::to(form, page.clone()).unwrap()).unwrap();
    telemetry.report(exchange);
    telemetry.flush();
    page.text()
}

/// The value of one series.
fn value(rendered: &str, series: &str) -> f64 {
    let line = rendered.lines().find(|line| line.starts_with(&format!("{series} ")));
    let line = line.unwrap_or_else(|| panic!("{series} is not there:\n{rendered}"));
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

#[test]
fn exchange_is_logged_as_text_line() {
    assert_eq!(
        logged(LogFormat::Text, sample_exchange()),
        "2025-11-21T04:40:00.123Z anthropic POST /v1/messages 200 complete id=6920f0a100000001 \
         model=claude-sonnet-4-5 session=a-session thread=0123456789abcdef stop=tool_use \
         input=51790 output=2000 cache_read=50000 estimated=52100 (51900–52300) actual=51790 error=+310 (+0.6%) \
         method=anchored first_byte=321.0ms duration=1234.0ms overhead=0.40ms\n"
    );
}

/// Computed with integers; the expected text is that of `{:+} ({:+.1}%)`.
#[test]
fn estimate_error_is_logged_with_its_sign_and_in_tenths_of_percent() {
    let actual = sample_exchange().usage.input.unwrap();
    for error in [-51_000, -12_345, -517, -52, -5, 0, 5, 52, 517, 12_345, 123_456, 9_999_999] {
        let estimate = Some(estimate((actual as i64 + error) as u64));
        let line = logged(LogFormat::Text, Exchange { estimate, ..sample_exchange() });
        let percent = error as f64 / actual as f64 * 100.0;
        let wanted = format!(" error={error:+} ({percent:+.1}%) ");
        assert!(line.contains(&wanted), "{wanted} is not in {line}");
    }
}

/// Prometheus sees no increase in a counter that first appears at 1, so the counters that alerts use start at 0.
#[test]
fn alert_counters_start_at_zero() {
    let telemetry = Telemetry::silent().unwrap();
    telemetry.begin_at_zero(["anthropic", "mine"]);
    let page = telemetry.render();
    for series in [
        r#"plimsoll_fail_open_total{reason="store"}"#,
        r#"plimsoll_fail_open_total{reason="rewrite_refused"}"#,
        r#"plimsoll_store_failures_total{operation="put"}"#,
        r#"plimsoll_store_failures_total{operation="expire"}"#,
        r#"plimsoll_rewrites_refused_total{cause="signature",upstream="mine"}"#,
        r#"plimsoll_threads_set_aside_total{upstream="anthropic"}"#,
        r#"plimsoll_compactions_total{outcome="timed_out",upstream="mine"}"#,
        r#"plimsoll_connections_turned_total{end="closed"}"#,
        "plimsoll_retention_failures_total",
    ] {
        assert_eq!(value(&page, series), 0.0, "{series}");
    }
    telemetry.retention_failed();
    telemetry.connection_refused(RejectedConnection::Closed);
    let page = telemetry.render();
    assert_eq!(value(&page, "plimsoll_retention_failures_total"), 1.0);
    assert_eq!(value(&page, r#"plimsoll_connections_turned_total{end="closed"}"#), 1.0);
}

/// Several processes can be compared by their presets.
#[test]
fn preset_is_label() {
    let telemetry = Telemetry::silent().unwrap();
    telemetry.name_preset("llxprt");
    assert_eq!(value(&telemetry.render(), r#"plimsoll_preset_info{preset="llxprt"}"#), 1.0);
}

/// The waits for a count and for a summary are fields of their own, not part of the overhead.
#[test]
fn waits_have_fields() {
    let waits = [("count_wait", Some(310_000), None), ("summary_wait", None, Some(310_000))];
    for (name, count_wait_us, compaction_wait_us) in waits {
        let timing = ExchangeTiming { count_wait_us, compaction_wait_us, ..sample_timing() };
        let waited = Exchange { timing, ..sample_exchange() };
        let line = logged(LogFormat::Text, waited);
        assert!(line.contains(&format!(" overhead=0.40ms {name}=310.0ms")), "{line}");
        assert!(!logged(LogFormat::Text, sample_exchange()).contains(name));
    }
}

/// So is a long wait for a session.
#[test]
fn long_first_load_has_a_field() {
    let timing = ExchangeTiming { session_load_us: Some(1_004_000), ..sample_timing() };
    let waited = Exchange { timing, ..sample_exchange() };
    let line = logged(LogFormat::Text, waited);
    assert!(line.contains(" overhead=0.40ms session_load=1004.0ms"), "{line}");
    assert!(!logged(LogFormat::Text, sample_exchange()).contains("session_load"));
}

/// The prediction by an agent's rules is counted beside ours, each with its error.
#[test]
fn classic_estimate_is_logged_and_measured_beside_estimate() {
    let exchange = Exchange { classic: Some(classic("micro-compact")), ..sample_exchange() };
    let line = logged(LogFormat::Text, exchange.clone());
    let both = "error=+310 (+0.6%) method=anchored classic=56969 (micro-compact) \
                classic_error=+5179 (+10.0%) ";
    assert!(line.contains(both), "{line}");
    let line: serde_json::Value =
        serde_json::from_str(&logged(LogFormat::Json, exchange.clone())).unwrap();
    assert_eq!(line["error"], 310);
    assert_eq!(line["classic_error"], 5_179);
    assert_eq!(line["classic"]["rules"], "micro-compact");

    let telemetry = Telemetry::silent().unwrap();
    telemetry.report(exchange.clone());
    // Without reported input there is nothing to compare.
    let usage = Usage { input: None, ..exchange.usage.clone() };
    telemetry.report(Exchange { usage, ..exchange });
    let rendered = telemetry.render();
    let by = "context=\"10k_to_100k\",family=\"claude\"";
    let under = |name: &str, by: &str, le: &str| {
        value(&rendered, &format!("plimsoll_{name}_error_ratio_bucket{{{by},le=\"{le}\"}}"))
    };
    let classic = "family=\"claude\",rules=\"micro-compact\"";
    assert_eq!(under("estimate", by, "0.001"), 0.0);
    assert_eq!(under("estimate", by, "0.01"), 1.0);
    assert_eq!(under("classic", classic, "0.05"), 0.0);
    assert_eq!(under("classic", classic, "0.25"), 1.0);
}

/// Where an agent's rules decide, each metric has the error of its own count.
#[test]
fn plimsolls_own_error_is_measured_where_agents_rules_decide() {
    let telemetry = Telemetry::silent().unwrap();
    let classic = classic("dexto");
    let decided = Estimate { tokens: classic.tokens, new: classic.new, ..estimate(52_100) };
    let (classic, estimate) = (Some(classic), Some(decided));
    telemetry.report(Exchange { classic, estimate, ..sample_exchange() });
    let page = telemetry.render();
    let by = "context=\"10k_to_100k\",family=\"claude\"";
    let under = |name: &str, by: &str, le: &str| {
        value(&page, &format!("plimsoll_{name}_error_ratio_bucket{{{by},le=\"{le}\"}}"))
    };
    let classic = "family=\"claude\",rules=\"dexto\"";
    assert_eq!(under("estimate", by, "0.001"), 0.0);
    assert_eq!(under("estimate", by, "0.01"), 1.0);
    assert_eq!(under("classic", classic, "0.05"), 0.0);
    assert_eq!(under("classic", classic, "0.25"), 1.0);
    // Exact and within the band: of one estimate, 310 too high with a band of 200.
    let by = "family=\"claude\",method=\"anchored\"";
    let of = |name: &str| value(&page, &format!("plimsoll_{name}{{{by}}}"));
    assert_eq!(of("estimates_exact_total"), 0.0);
    assert_eq!(of("estimates_within_band_total"), 0.0);
    let total = |name: &str| {
        let begins = format!("plimsoll_estimate_{name}_tokens_total{{");
        let line = page.lines().find(|line| line.starts_with(&begins)).unwrap();
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    assert_eq!(total("missed"), 310.0);
}

#[test]
fn text_line_omits_unknown_fields() {
    assert_eq!(
        logged(LogFormat::Text, Exchange { status: Some(404), ..blank() }),
        "2025-11-21T04:40:00.123Z - POST /v1/messages 404 client_left id=6920f0a100000001 \
         duration=2.0ms overhead=0.00ms\n"
    );
}

#[test]
fn exchange_is_logged_as_json_line() {
    let line = logged(LogFormat::Json, sample_exchange());
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(line["timestamp"], "2025-11-21T04:40:00.123Z");
    assert_eq!(line["usage"]["input"], 51_790);
    assert_eq!(line["estimate"]["tokens"], 52_100);
    assert_eq!(line["estimate"]["method"], "anchored");
    assert_eq!(line["actual"], 51_790);
    assert_eq!(line["error"], 310);
    assert_eq!(line["outcome"], "complete");
}

/// A client chooses the names of sessions and models. It must not be able to write log lines with them.
#[test]
fn client_cannot_forge_lines() {
    let forged = "x\n2025-11-21T04:40:00.123Z anthropic POST / 200";
    let session = Some(forged.into());
    let path = format!("/v1/{}", "long".repeat(500));
    let exchange =
        Exchange { session, model: Some(forged.into()), path: path.into(), ..sample_exchange() };
    let text = logged(LogFormat::Text, exchange.clone());
    assert_eq!(text.lines().count(), 1);
    assert!(text.len() < 1_000, "{text}");
    assert_eq!(logged(LogFormat::Json, exchange).lines().count(), 1);
}

#[test]
fn each_metric_counts_exchange_once() {
    let telemetry = Telemetry::silent().unwrap();
    telemetry.report(sample_exchange());
    telemetry.report(Exchange {
        estimate: Some(estimate(51_790)),
        fail_open: vec![FailOpen::CommitLate],
        notes: vec![Note::UnknownPart],
        ..sample_exchange()
    });
    telemetry.report(Exchange { status: Some(529), outcome: Outcome::Refused, ..blank() });
    let page = telemetry.render();
    let counted = |series: &str| value(&page, series);
    let complete = r#"dialect="anthropic",outcome="complete",status="2xx",upstream="anthropic""#;
    assert_eq!(counted(&format!("plimsoll_requests_total{{{complete}}}")), 2.0);
    let refused = r#"dialect="none",outcome="refused",status="5xx",upstream="none""#;
    assert_eq!(counted(&format!("plimsoll_requests_total{{{refused}}}")), 1.0);
    let of = r#"model="claude-sonnet-4-5",upstream="anthropic""#;
    let tokens = |kind: &str| counted(&format!("plimsoll_tokens_total{{kind=\"{kind}\",{of}}}"));
    assert_eq!(tokens("input"), 103_580.0);
    assert_eq!(tokens("output"), 4_000.0);
    assert_eq!(tokens("cache_read"), 100_000.0);
    assert_eq!(tokens("reasoning"), 0.0);
    assert_eq!(counted(&format!("plimsoll_cache_hits_total{{{of}}}")), 2.0);
    assert_eq!(counted(&format!("plimsoll_context_fill_ratio_bucket{{{of},le=\"0.5\"}}")), 2.0);
    let model = |what: &str| counted(&format!("plimsoll_estimate_{what}_tokens_total{{{of}}}"));
    assert_eq!(model("missed"), 310.0);
    assert_eq!(model("compared"), 103_580.0);
    let by = r#"family="claude",method="anchored""#;
    assert_eq!(counted(&format!("plimsoll_estimates_comparable_total{{{by}}}")), 2.0);
    assert_eq!(counted(&format!("plimsoll_estimates_exact_total{{{by}}}")), 1.0);
    assert_eq!(counted(&format!("plimsoll_estimated_input_tokens_total{{{by}}}")), 103_890.0);
    assert_eq!(counted(&format!("plimsoll_actual_input_tokens_total{{{by}}}")), 103_580.0);
    assert_eq!(counted(&format!("plimsoll_estimate_error_tokens_bucket{{{by},le=\"0\"}}")), 1.0);
    assert_eq!(counted(&format!("plimsoll_estimates_within_band_total{{{by}}}")), 1.0);
    let nobody = r#"expert="counted",family="claude""#;
    assert_eq!(counted(&format!("plimsoll_estimates_corrected_total{{{nobody}}}")), 2.0);
    let sized = r#"context="10k_to_100k",family="claude""#;
    assert_eq!(counted(&format!("plimsoll_estimate_error_ratio_bucket{{{sized},le=\"0\"}}")), 1.0);
    assert_eq!(
        counted(&format!("plimsoll_estimate_error_ratio_bucket{{{sized},le=\"0.01\"}}")),
        2.0
    );
    assert_eq!(counted("plimsoll_fail_open_total{reason=\"commit_late\"}"), 1.0);
    assert_eq!(counted("plimsoll_notes_total{note=\"unknown_part\"}"), 1.0);
    assert_eq!(counted("plimsoll_overhead_event_seconds_bucket{le=\"0.000002\"}"), 2.0);
}

/// Only a sampled exchange has a trace to show, and only OpenMetrics a place for it.
#[test]
fn sampled_exchange_is_exemplar_of_its_bucket() {
    let telemetry = Telemetry::silent().unwrap();
    let trace = ExchangeTrace {
        trace: [0xab; 16],
        parent: None,
        state: None,
        span: [0xcd; 8],
        upstream_span: [0xef; 8],
        steps: Vec::new(),
    };
    telemetry.report(Exchange { trace: Some(Box::new(trace)), ..sample_exchange() });
    telemetry.report(sample_exchange());
    let page = telemetry.render_as(MetricsFormat::OpenMetrics);
    let of = r#"model="claude-sonnet-4-5",upstream="anthropic""#;
    let (trace, span) = ("ab".repeat(16), "cd".repeat(8));
    let exemplar = format!("# {{trace_id=\"{trace}\",span_id=\"{span}\"}} 1.234 1763700000.123");
    let line =
        format!("plimsoll_request_duration_seconds_bucket{{{of},le=\"3.0\"}} 2 {exemplar}\n");
    assert!(page.contains(&line), "{page}");
    let below = format!("plimsoll_request_duration_seconds_bucket{{{of},le=\"1.0\"}} 0\n");
    assert!(page.contains(&below), "{page}");
    assert_eq!(page.matches("trace_id=").count(), 2, "duration, first byte: {page}");
    assert!(!telemetry.render().contains("trace_id="));
}

#[test]
fn openmetrics_names_families() {
    let telemetry = Telemetry::silent().unwrap();
    telemetry.report(sample_exchange());
    let page = telemetry.render_as(MetricsFormat::OpenMetrics);
    assert!(page.ends_with("\n# EOF\n"), "{page}");
    assert!(page.contains("# TYPE plimsoll_tokens counter\n"), "{page}");
    assert!(page.contains("\nplimsoll_tokens_total{kind=\"input\""), "{page}");
    assert!(page.contains("\nplimsoll_connections 0\n"), "{page}");
    // A sum of signed errors may fall, so it is no counter.
    assert!(page.contains("\nplimsoll_estimate_error_ratio_bucket{"), "{page}");
    assert!(!page.contains("plimsoll_estimate_error_ratio_sum"), "{page}");
    assert!(page.contains("\nplimsoll_estimate_error_tokens_sum{"), "{page}");
    // Both formats have the same series otherwise.
    let series = |page: &str, skip: &str| {
        let lines = page.lines().filter(|line| !line.starts_with('#') && !line.contains(skip));
        lines.count()
    };
    let signed = "plimsoll_estimate_error_ratio";
    assert_eq!(series(&page, signed), series(&telemetry.render(), signed));
}

#[test]
fn calibration_of_model_is_shown() {
    let telemetry = Telemetry::silent().unwrap();
    telemetry.learned("anthropic", "claude-opus-5", 64, 0.5);
    telemetry.learned("anthropic", "claude-opus-5", 65, 0.75);
    let page = telemetry.render();
    let of = r#"model="claude-opus-5",upstream="anthropic""#;
    assert_eq!(value(&page, &format!("plimsoll_calibration_lessons{{{of}}}")), 65.0);
    assert_eq!(value(&page, &format!("plimsoll_calibration_band{{{of}}}")), 0.75);
}

#[test]
fn low_estimate_has_negative_error() {
    let telemetry = Telemetry::silent().unwrap();
    telemetry.report(Exchange { estimate: Some(estimate(50_000)), ..sample_exchange() });
    let page = telemetry.render();
    let ratio = "plimsoll_estimate_error_ratio";
    let by = r#"context="10k_to_100k",family="claude""#;
    assert_eq!(value(&page, &format!("{ratio}_bucket{{{by},le=\"-0.01\"}}")), 1.0);
    assert!(value(&page, &format!("{ratio}_sum{{{by}}}")) < -0.03);
}

/// Without reported usage an estimate is not compared. A stream that broke off may have reported its input before.
#[test]
fn estimate_is_compared_with_reported_input_of_broken_stream() {
    let telemetry = Telemetry::silent().unwrap();
    telemetry.report(Exchange { usage: Usage::default(), ..sample_exchange() });
    assert!(!telemetry.render().contains("plimsoll_estimates_comparable_total{"));
    let cut = Usage { input: Some(52_000), lower_bound: true, ..Usage::default() };
    telemetry.report(Exchange { usage: cut.clone(), ..sample_exchange() });
    let page = telemetry.render();
    let by = "{family=\"claude\",method=\"anchored\"}";
    assert_eq!(value(&page, &format!("plimsoll_estimates_comparable_total{by}")), 1.0);
    let line = logged(LogFormat::Text, Exchange { usage: cut, ..sample_exchange() });
    assert!(line.contains(" actual=52000 error=+100 (+0.2%) "), "{line}");
}

/// A band is logged only with the estimate that it belongs to.
#[test]
fn estimate_by_agents_rules_is_logged_without_band() {
    let mut ruled = sample_exchange();
    ruled.estimate.as_mut().unwrap().tokens = 51_000;
    let line = logged(LogFormat::Text, ruled);
    assert!(line.contains(" estimated=51000 actual="), "{line}");
}

/// If the messages would have fewer than 0 tokens, they are shown as 0, and the log says so.
#[test]
fn breakdown_that_is_capped_is_logged() {
    let mut capped = sample_exchange();
    capped.estimate.as_mut().unwrap().breakdown.capped = true;
    assert!(logged(LogFormat::Text, capped).contains(" breakdown=capped"));
    // The view after a first call shows it at once.
    let shown = Exchange { shown_capped: true, ..sample_exchange() };
    assert!(logged(LogFormat::Text, shown).contains(" breakdown=capped"));
    assert!(!logged(LogFormat::Text, sample_exchange()).contains(" breakdown="));
}

/// A provider that counts with another tokenizer would else cause a warning on each request.
#[test]
fn capped_breakdown_is_told_once_per_model_and_hour() {
    let telemetry = Telemetry::silent().unwrap();
    let mut capped = Exchange { at: 0, ..sample_exchange() };
    let told = |exchange: &Exchange| telemetry.is_capped_first(exchange);
    assert!(told(&capped), "the first");
    assert!(!told(&capped), "the second");
    capped.at = HOUR_MS - 1;
    assert!(!told(&capped), "in the same hour");
    capped.model = Some("other".into());
    assert!(told(&capped), "another model");
    capped.at = HOUR_MS;
    assert!(told(&capped), "in the next hour");
}

#[test]
fn models_past_limit_are_other() {
    let telemetry = Telemetry::silent().unwrap();
    let asked = |model: String| {
        telemetry.report(Exchange { model: Some(model.into()), ..sample_exchange() });
    };
    (0..MODELS + 7).for_each(|number| asked(format!("model-{number}")));
    asked("model-0".into());
    asked("x".repeat(300));
    let page = telemetry.render();
    let hits = |model: &str| {
        value(
            &page,
            &format!("plimsoll_cache_hits_total{{model=\"{model}\",upstream=\"anthropic\"}}"),
        )
    };
    assert_eq!(hits("model-0"), 2.0);
    assert_eq!(hits("model-49"), 1.0);
    assert_eq!(hits("other"), 8.0);
    assert!(!page.contains("model-50"));
}

#[test]
fn odd_model_names_are_labelled_other() {
    let telemetry = Telemetry::silent().unwrap();
    for odd in ["tell me a secret", "a\"b", "a\nb", &"x".repeat(81)] {
        telemetry.report(Exchange { model: Some(odd.into()), ..sample_exchange() });
    }
    let page = telemetry.render();
    assert!(!page.contains("secret"));
    assert!(page.contains("model=\"other\""));
}

/// An exchange with a new cut, a replayed one, reasoning put back, and a refusal to cut more.
pub(super) fn rewritten() -> Exchange {
    let step = |change, decision, why, before, after| PlanStep {
        decision,
        tokens_after: after,
        ..PlanStep::declined(change, why, PartIndex::new(3, 0), Span::new(10, 20), before)
    };
    let steps = [
        step(Change::Cut, Decision::Replayed, DecisionReason::Pressure, 6_000, 100),
        step(Change::Cut, Decision::New, DecisionReason::ColdCache, 6_600, 100),
        step(Change::StandIn, Decision::New, DecisionReason::Demanded, 0, 0),
        step(Change::PutBack, Decision::Declined, DecisionReason::OtherModel, 0, 0),
    ];
    let money = Some(Money { spent: 1.0, saved: 0.25, broken: 0.125 });
    let saved = ExchangeSavings {
        removed: 12_400,
        compacted: 600,
        came: Some(64_800),
        sent: 51_790,
        reprocessed: 7,
        money,
        ..ExchangeSavings::default()
    };
    let done = RewriteSummary::from_steps(&steps, Mode::Active);
    Exchange { done, saved: Some(saved), ..sample_exchange() }
}

#[test]
fn edits_counted_by_kind_and_reason() {
    let telemetry = Telemetry::silent().unwrap();
    telemetry.report(rewritten());
    let mut shadow = rewritten();
    shadow.done.mode = Mode::Shadow;
    shadow.saved = Some(ExchangeSavings { in_shadow: 12_400, ..ExchangeSavings::default() });
    telemetry.report(shadow);
    telemetry.report(sample_exchange());
    let miss = Some(CacheMiss { cause: CacheMissCause::Messages, tokens: None });
    let mut resent = rewritten();
    (resent.refused, resent.done.resent) =
        (Some(RefusalCause::Signature), Some(RefusalCause::Signature));
    resent.usage.cache_miss = miss;
    resent.notes = vec![Note::InputWithheld];
    resent.saved = None;
    telemetry.report(resent);
    let page = telemetry.render();
    let edits = |decision: &str, kind: &str, mode: &str, reason: &str| {
        let of = format!(r#"decision="{decision}",kind="{kind}",mode="{mode}",reason="{reason}""#);
        value(&page, &format!("plimsoll_edits_total{{{of}}}"))
    };
    assert_eq!(edits("new", "cut", "active", "cold_cache"), 2.0);
    assert_eq!(edits("new", "cut", "shadow", "cold_cache"), 1.0);
    assert_eq!(edits("replayed", "cut", "active", "none"), 2.0);
    assert_eq!(edits("new", "stand_in", "active", "demanded"), 2.0);
    assert_eq!(edits("refused", "put_back", "shadow", "other_model"), 1.0);
    let edits = page.lines().filter(|line| line.starts_with("plimsoll_edits_total{"));
    assert_eq!(edits.count(), 8, "four steps in two modes, and nothing else");
    let of = r#"model="claude-sonnet-4-5",upstream="anthropic""#;
    let counted = |name: &str, labels: &str| value(&page, &format!("plimsoll_{name}{{{labels}}}"));
    let mode = |mode: &str| format!(r#"mode="{mode}",{of}"#);
    assert_eq!(counted("pruned_tokens_total", &mode("active")), 12_400.0);
    assert_eq!(counted("pruned_tokens_total", &mode("shadow")), 12_400.0);
    assert_eq!(counted("cache_broken_tokens_total", of), 7.0);
    let checked = ["claimed", "came", "sent"]
        .map(|kind| counted("savings_checked_tokens_total", &format!(r#"kind="{kind}",{of}"#)));
    assert_eq!(checked, [13_000.0, 64_800.0, 51_790.0]);
    assert_eq!(counted("pruned_dollars_total", of), 0.25);
    assert_eq!(counted("cache_broken_dollars_total", of), 0.125);
    assert_eq!(counted("rewrites_refused_total", r#"cause="signature",upstream="anthropic""#), 1.0);
    assert_eq!(counted("threads_set_aside_total", r#"upstream="anthropic""#), 1.0);
    let edited = |edited: &str| format!(r#"edited="{edited}",{of}"#);
    assert_eq!(counted("reasoning_withheld_total", &edited("no")), 1.0);
    assert_eq!(counted("cache_input_tokens_total", &edited("new")), 51_790.0);
    // Shadow mode, unchanged and resent: the original was sent in all three.
    assert_eq!(counted("cache_read_tokens_total", &edited("no")), 150_000.0);
    let missed = r#"cause="messages",edited="no",model="claude-sonnet-4-5",upstream="anthropic""#;
    assert_eq!(counted("cache_misses_total", missed), 1.0);
}

#[test]
fn log_line_names_edits_of_request() {
    let line = logged(LogFormat::Text, rewritten());
    assert!(
        line.contains(" method=anchored cut=2 (-12,400 tokens) put_back=1 first_byte="),
        "{line}"
    );
    let mut shadow = rewritten();
    shadow.done.mode = Mode::Shadow;
    assert!(logged(LogFormat::Text, shadow).contains(" put_back=1 mode=shadow first_byte="));
    let mut resent = rewritten();
    resent.done.resent = Some(RefusalCause::Structure);
    assert!(logged(LogFormat::Text, resent).contains(" put_back=1 resent=structure first_byte="));
}

#[test]
fn connections_and_streams_are_counted_while_they_are_open() {
    let telemetry = Telemetry::silent().unwrap();
    let (first, second) = (telemetry.connection(), telemetry.connection());
    let stream = telemetry.stream();
    assert_eq!(value(&telemetry.render(), "plimsoll_connections"), 2.0);
    assert_eq!(value(&telemetry.render(), "plimsoll_active_streams"), 1.0);
    drop((first, second, stream));
    assert_eq!(value(&telemetry.render(), "plimsoll_connections"), 0.0);
}

#[test]
fn last_exchanges_can_be_asked_for() {
    let telemetry = Telemetry::silent().unwrap();
    for number in 0..=RECENT {
        telemetry.report(Exchange { id: number.to_string().into(), ..sample_exchange() });
    }
    assert!(telemetry.recent(&"0".into()).is_none(), "the oldest has left");
    assert_eq!(telemetry.recent(&"1".into()).unwrap().id, "1");
    assert!(telemetry.recent(&RECENT.to_string().into()).is_some());
}

#[test]
fn subscribers_get_every_exchange() {
    let telemetry = Telemetry::silent().unwrap();
    let mut heard = telemetry.subscribe();
    telemetry.report(sample_exchange());
    assert_eq!(heard.try_recv().unwrap().id, "6920f0a100000001");
}

/// Invariant 9: an event has no field for a prompt, reply or key, so metrics and log lines have none. The types ensure
/// that; this test notices a new field.
#[test]
fn exchange_event_has_no_field_for_private_data() {
    let json = serde_json::to_value(sample_exchange()).unwrap();
    let fields: Vec<_> = json.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(
        fields,
        [
            "id",
            "at",
            "upstream",
            "dialect",
            "purpose",
            "method",
            "path",
            "model",
            "family",
            "tenant",
            "session",
            "thread",
            "status",
            "outcome",
            "stop",
            "estimate",
            "classic",
            "done",
            "usage",
            "saved",
            "window",
            "streamed",
            "request_bytes",
            "response_bytes",
            "frames",
            "request_side_us",
            "response_side_us",
            "headers_us",
            "first_byte_us",
            "duration_us",
            "refused",
            "fail_open",
            "notes"
        ],
        "a new field of an exchange: can it hold a prompt, a reply or a key?"
    );
}

/// A log whose reader has stopped.
struct Stuck(std::sync::mpsc::Receiver<()>);

impl Write for Stuck {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = self.0.recv();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn log_that_nobody_reads_drops_lines_and_says_so() {
    let (let_go, stuck) = std::sync::mpsc::channel();
    let telemetry = Telemetry::new(Log::to(LogFormat::Json, Stuck(stuck)).unwrap()).unwrap();
    let line = logged(LogFormat::Json, sample_exchange()).len();
    for _ in 0..2 * BACKLOG / line {
        telemetry.report(sample_exchange());
    }
    assert!(value(&telemetry.render(), "plimsoll_log_lines_dropped_total") > 0.0);
    drop(let_go);
    telemetry.flush();
}

/// A metric, a log line and `plimsoll explain` have the words of the API and of the store.
#[test]
fn labels_are_serialised_names() {
    fn check<T: AsRef<str> + IntoEnumIterator + Serialize>() {
        for variant in T::iter() {
            assert_eq!(serde_json::to_value(&variant).unwrap(), variant.as_ref());
        }
    }
    check::<AgentType>();
    check::<CacheMissCause>();
    check::<Change>();
    check::<CompactionCause>();
    check::<CountEstimate>();
    check::<CountingMethod>();
    check::<Decision>();
    check::<DecisionReason>();
    check::<Dialect>();
    check::<ErrorKind>();
    check::<EstimateMethod>();
    check::<Expert>();
    check::<FailOpen>();
    check::<Family>();
    check::<HiddenInput>();
    check::<LogLevel>();
    check::<Mode>();
    check::<Note>();
    check::<Outcome>();
    check::<OverflowSign>();
    check::<PromptSection>();
    check::<Purpose>();
    check::<RefusalCause>();
    check::<RefusalOutcome>();
    check::<RepairCause>();
    check::<RequestClass>();
    check::<SessionWitness>();
    check::<StopReason>();
    check::<SummaryAuthor>();
}

/// `docs/metrics.md` lists all metrics.
#[test]
fn list_of_metrics_is_current() {
    let telemetry = Telemetry::silent().unwrap();
    let mut page = String::from(
        "# Metrics\n\n\
         At `/metrics` on the admin listener, in Prometheus' text format; OpenMetrics for scrapers that name it, with the trace\n\
         of a sampled exchange beside its times. gzip if accepted. A scraper needs the read token (`read.token` in the data\n\
         folder, or `admin_read_token`), unless `metrics_open` is set. Names that end in `_total` are counters. Label values come\n\
         from closed sets, configured upstreams and at most 50 model names; any further models are `other`. Unknown is `none`.\n\
         One model of one upstream has at most 400 series. No metric holds a prompt, a reply or a key.\n\n",
    );
    for row in telemetry.table() {
        let mut labels = row.labels.join(",");
        if !labels.is_empty() {
            labels = format!("{{{labels}}}");
        }
        let kind = match row.kind {
            "counter" => String::new(),
            kind => format!(" ({kind})"),
        };
        page += &format!("* `{}{labels}`{kind}: {}\n", row.name, row.help);
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/metrics.md");
    if std::env::var_os("PLIMSOLL_BLESS").is_some() {
        return std::fs::write(path, page).unwrap();
    }
    assert_eq!(std::fs::read_to_string(path).unwrap_or_default(), page, "PLIMSOLL_BLESS=1");
}

/// Prometheus' conventions, as `promtool check metrics` has them.
#[test]
fn metric_names_follow_prometheus() {
    let telemetry = Telemetry::silent().unwrap();
    assert!(telemetry.table().len() > 20);
    for row in telemetry.table() {
        assert!(row.name.starts_with("plimsoll_"), "{row:?}");
        assert!(row.help.ends_with('.'), "{row:?}");
        assert_eq!(row.kind == "counter", row.name.ends_with("_total"), "{row:?}");
        for unit in ["_ms", "_us", "milliseconds", "kilobytes", "percent", "_count", "_bucket"] {
            assert!(!row.name.contains(unit), "{row:?}");
        }
    }
}
