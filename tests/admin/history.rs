//! What happened over time, and the turns of a session, are what the store has: the same sums as `spend`, in every range.

use plimsoll::context::plan::{ChangeCounts, RewriteSummary};
use plimsoll::context::policy::Mode;
use plimsoll::context::{Outcome, Turn};
use plimsoll::dialect::{Attempt, Purpose, Usage};
use plimsoll::telemetry::Exchange;
use plimsoll::tokens::learn::{CostPrediction, Expert};
use serde_json::Value;

use super::place::{self, Place, now, tenant};

const MINUTE: u64 = 60_000;

fn sum(steps: &Value, name: &str) -> f64 {
    steps.as_array().unwrap().iter().map(|step| step[name].as_f64().unwrap()).sum()
}

/// Several sessions, models and ends; among them a call that another model answered in part.
async fn filled() -> Place {
    let place = Place::new().await;
    let now = now();
    for minute in 1..=9 {
        let mut turn = place::turn(&format!("r{minute}"), "main", now - minute * MINUTE);
        turn.dollars = Some(0.25);
        if minute == 3 {
            turn.outcome = Outcome::Refused;
        }
        if minute == 6 {
            turn.outcome = Outcome::Interrupted;
        }
        if minute == 4 {
            turn.estimate.as_mut().unwrap().tokens = turn.usage.input.unwrap();
            turn.model = "gpt-5.1".into();
        }
        if minute == 7 {
            turn.model = "gpt-4.1".into();
            turn.usage.served_by = Some("gpt-4.1-mini".into());
        }
        if minute == 5 {
            let usage = Usage { input: Some(20), output: Some(1), ..Usage::default() };
            let model = Some("claude-opus-4-6".into());
            turn.usage.attempts.push(Attempt { kind: "advice".into(), model, usage });
        }
        place.keep(&tenant(minute % 3), "s", turn).await;
    }
    let day_old = Turn { dollars: Some(8.0), ..place::turn("old", "main", now - 25 * 60 * MINUTE) };
    place.keep(&tenant(7), "old", day_old).await;
    place
}

#[tokio::test]
async fn history_sums_are_those_of_spend() {
    let place = filled().await;
    for (range, calls) in [("15m", 9), ("24h", 9), ("7d", 10)] {
        let page = place.json(&format!("/api/v1/history?range={range}")).await;
        let total = &page["total"];
        assert_eq!(total["calls"], calls, "{range}");
        for name in ["calls", "failed", "input", "output", "cache_read", "dollars"] {
            let whole = total[name].as_f64().unwrap();
            assert!((sum(&page["steps"], name) - whole).abs() < 1e-9, "{range}: {name}");
            assert!((sum(&page["models"], name) - whole).abs() < 1e-9, "{range}: {name} by model");
        }
        let since = &page["since"];
        let spend = place.json(&format!("/api/v1/spend?by=upstream&since={since}")).await;
        let by_model = place.json(&format!("/api/v1/spend?by=model&since={since}")).await;
        for line in by_model["lines"].as_array().unwrap() {
            let mut models = page["models"].as_array().unwrap().iter();
            let model = models.find(|model| model["model"] == line["name"]).unwrap();
            assert_eq!(model["dollars"], line["dollars"], "{}", line["name"]);
            assert_ne!(line["calls"], 0, "{}", line["name"]);
        }
        for name in ["input", "output", "cache_read", "dollars", "calls"] {
            let (own, other) = (&total[name], &spend["total"][name]);
            assert!((own.as_f64().unwrap() - other.as_f64().unwrap()).abs() < 1e-9, "{name}");
        }
        assert_eq!((&page["complete_since"], &page["reading"]), (&0.into(), &false.into()));
    }
}

#[tokio::test]
async fn history_counts_ends_and_errors() {
    let place = filled().await;
    let page = place.json("/api/v1/history?range=1h").await;
    let total = &page["total"];
    assert_eq!(total["failed"], 1);
    assert_eq!(total["sessions"], 3);
    let estimates = &total["estimates"];
    assert_eq!(estimates["exact"], 1);
    let error = 310.0 / 51_790.0;
    assert!((estimates["median"].as_f64().unwrap() - error).abs() < 1e-12, "{estimates}");
    let models = page["models"].as_array().unwrap();
    let errors: u64 = models
        .iter()
        .flat_map(|model| model["errors"].as_array().unwrap())
        .map(|count| count.as_u64().unwrap())
        .sum();
    assert_eq!(Some(errors), estimates["compared"].as_u64());
    let only = place.json("/api/v1/history?range=1h&model=gpt-5.1").await;
    assert_eq!(only["total"]["calls"], 1);
    assert_eq!(only["models"][0]["model"], "gpt-5.1");
    let nobody = place.json(&format!("/api/v1/history?tenant={}", tenant(9))).await;
    assert_eq!(nobody["total"]["calls"], 0);
    assert_eq!(place.get("/api/v1/history?range=1s").await.status(), 400);
}

/// A model is calibrated for each upstream.
#[tokio::test]
async fn history_has_calibration_by_model_and_upstream() {
    let place = Place::new().await;
    let now = now();
    for (minute, (upstream, low, expert)) in [
        ("anthropic", 51_000, Expert::Regression),
        ("anthropic", 52_000, Expert::Counted),
        ("bedrock", 51_700, Expert::Tool),
    ]
    .into_iter()
    .enumerate()
    {
        let mut turn = place::turn(&format!("r{minute}"), "main", now - minute as u64 * MINUTE);
        turn.upstream = upstream.into();
        let estimate = turn.estimate.as_mut().unwrap();
        estimate.guess = CostPrediction {
            tokens: estimate.tokens,
            low,
            high: low + 2_000,
            expert,
            ..CostPrediction::default()
        };
        place.keep(&tenant(1), "s", turn).await;
    }
    let page = place.json("/api/v1/history?range=1h").await;
    let models = page["models"].as_array().unwrap();
    let of = |upstream: &str| {
        let model = models.iter().find(|model| model["upstream"] == upstream).unwrap();
        let estimates = &model["estimates"];
        let counts = ["compared", "banded", "in_band", "corrected"];
        let band = estimates["band"].as_f64().unwrap();
        assert!((band - 1_000.0 / 51_790.0).abs() < 1e-12, "{upstream}: {band}");
        counts.map(|name| estimates[name].as_u64().unwrap())
    };
    assert_eq!(of("anthropic"), [2, 2, 1, 1]);
    assert_eq!(of("bedrock"), [1, 1, 1, 1]);
}

/// A turn that ends, one that is replaced and a session that is deleted change the next answer.
#[tokio::test]
async fn history_follows_the_store() {
    let place = filled().await;
    let calls = async || {
        tokio::time::sleep(std::time::Duration::from_millis(450)).await;
        place.json("/api/v1/history?range=1h").await["total"]["calls"].as_u64().unwrap()
    };
    assert_eq!(calls().await, 9);
    place.turn(&tenant(1), "s", "main", now()).await;
    assert_eq!(calls().await, 10);
    let deleted = place.ask("DELETE", &format!("/api/v1/sessions/{}.s", tenant(2)), &[]).await;
    assert_eq!(deleted.status(), 200);
    assert_eq!(calls().await, 7);
}

#[tokio::test]
async fn turns_have_context_cost_and_changes() {
    let place = Place::new().await;
    let changes = ChangeCounts { cut: 2, ..ChangeCounts::default() };
    let done = RewriteSummary {
        made: changes,
        new: changes,
        tokens_removed: 900,
        mode: Mode::Active,
        ..RewriteSummary::default()
    };
    place.turn(&tenant(1), "s", "main", 1_000).await;
    let second = Turn { done, dollars: Some(0.5), ..place::turn("second", "main", 2_000) };
    place.keep(&tenant(1), "s", second).await;
    place.turn(&tenant(1), "s", "side", 3_000).await;
    let path = format!("/api/v1/sessions/{}.s/turns", tenant(1));
    let page = place.json(&path).await;
    assert_eq!(page["main_thread"], "main");
    let turns = page["turns"].as_array().unwrap();
    assert_eq!(turns.len(), 3);
    let turn = &turns[1];
    assert_eq!(turn["request"], "second");
    assert_eq!(turn["dollars"], 0.5);
    assert_eq!(turn["new"]["cut"], 2);
    assert_eq!(turn["sent"], true);
    assert_eq!(turn["removed"], 900);
    let context = &turn["context"];
    let parts =
        ["system", "tools", "messages", "reasoning"].map(|name| context[name].as_u64().unwrap());
    assert_eq!(parts.iter().sum::<u64>(), context["total"].as_u64().unwrap());
    let shown = place.json(&format!("/api/v1/sessions/{}.s/threads/main/context", tenant(1))).await;
    assert_eq!(context["total"], shown["total"]);
    assert_eq!(context["window"], shown["window"]);
    assert!((turn["estimate"]["error_ratio"].as_f64().unwrap() - 310.0 / 51_790.0).abs() < 1e-12);
    let later = place.json(&format!("{path}?since=3000")).await;
    assert_eq!(later["turns"].as_array().unwrap().len(), 1, "the others had ended before");
}

/// Refused calls are no turns, but they are calls that failed.
#[tokio::test]
async fn refused_calls_are_counted() {
    let place = filled().await;
    let at = now() - MINUTE;
    for (id, status) in [("f1", 500), ("f2", 429), ("f3", 429)] {
        place.telemetry.report(Exchange {
            at,
            status: Some(status),
            outcome: Outcome::Refused,
            purpose: Some(Purpose::Turn),
            tenant: Some(tenant(1).into()),
            session: Some("s".into()),
            tags: vec!["run=1".into()],
            ..place::exchange(id)
        });
    }
    let page = place.json("/api/v1/history?range=1h").await;
    assert_eq!(page["total"]["calls"], 12);
    assert_eq!(page["total"]["failed"], 4);
    assert_eq!(sum(&page["steps"], "failed"), 4.0);
    assert_eq!(page["total"]["sessions"], 3);
    let others = place.json(&format!("/api/v1/history?range=1h&tenant={}", tenant(2))).await;
    assert_eq!(others["total"]["failed"], 0);
    let listed = place.json("/api/v1/sessions").await;
    let mut lines = listed["sessions"].as_array().unwrap().iter();
    assert_eq!(lines.find(|line| line["tenant"] == *tenant(1)).unwrap()["failed"], 3);
    let failures = place.json("/api/v1/failures?tag=run%3D1").await;
    assert_eq!(failures["kinds"][0]["status"], 429);
    assert_eq!(failures["kinds"][0]["calls"], 2);
    assert_eq!(place.json("/api/v1/failures?tag=run%3D2").await["calls"], 0);
}
