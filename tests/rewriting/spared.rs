//! A model's output limit is learned from a refusal, and other sessions are not refused for it (`docs/healing.md`).

use plimsoll::context::policy::{Policy, RepairPolicy};
use plimsoll::dialect::repair::RepairCause;
use plimsoll::telemetry::{RefusalOutcome, RefusalReport};
use scripted_provider::strict::{Rules, ScriptedReply};
use serde_json::{Value, json};

use crate::healed::{CHAT, CLAUDE, GEMINI, RESPONSES, chat, claude, gemini, healed, responses};
use crate::stage::Stage;

fn rules() -> Rules {
    Rules { max_output_tokens: Some(8_192), ..Rules::default() }
}

/// A request for more output than allowed in each protocol, and where its limit is.
fn bodies() -> [(&'static str, &'static str, Value); 4] {
    let messages = json!([{"role": "user", "content": "a"}]);
    let mut all = [
        (CLAUDE, "/max_tokens", claude(messages.clone())),
        (CHAT, "/max_completion_tokens", chat(messages.clone())),
        (RESPONSES, "/max_output_tokens", responses(messages)),
        (
            GEMINI,
            "/generationConfig/maxOutputTokens",
            gemini(json!([{"role": "user", "parts": [{"text": "a"}]}])),
        ),
    ];
    for (_, at, body) in &mut all {
        *body.pointer_mut(at).unwrap() = json!(64_000);
    }
    all
}

fn spared() -> Option<RefusalReport> {
    let causes = vec![RepairCause::MaxTokens];
    Some(RefusalReport { causes, outcome: RefusalOutcome::Spared })
}

#[tokio::test]
async fn output_limit_refused_once_is_lowered_for_other_sessions() {
    for (target, at, body) in bodies() {
        let mut stage = Stage::open(rules(), Policy::default()).await;
        let trip = stage.exchange(target, &body, ScriptedReply::text("Good.")).await;
        assert_eq!(trip.status, 200, "{target}: {}", trip.answer);
        assert_eq!(trip.log.len(), 2, "{target}: {}", trip.answer);
        assert_eq!(trip.exchange.refusal, healed(RepairCause::MaxTokens), "{target}");
        for restarts in [false, true] {
            if restarts {
                stage.restart().await;
            }
            stage.session = if restarts { "third" } else { "second" };
            let trip = stage.exchange(target, &body, ScriptedReply::text("Good.")).await;
            assert_eq!(trip.status, 200, "{target} {restarts}");
            assert_eq!(trip.log.len(), 1, "{target} {restarts}");
            assert_eq!(trip.sent().pointer(at), Some(&json!(8_192)), "{target} {restarts}");
            assert_eq!(trip.exchange.refusal, spared(), "{target} {restarts}");
            assert!(trip.head.contains("x-plimsoll-healed: max_tokens"), "{}", trip.head);
        }
        let metrics = stage.server.telemetry.render();
        let line = "plimsoll_healed_total{cause=\"max_tokens\"} 1";
        assert!(metrics.contains(line), "{target}: {metrics}");
    }
}

/// A request for no more than the limit, for another model, or under a policy without this cause is not changed.
#[tokio::test]
async fn learned_output_limit_changes_no_request_it_does_not_concern() {
    let (target, at, body) = bodies()[0].clone();
    let mut stage = Stage::open(rules(), Policy::default()).await;
    assert_eq!(stage.exchange(target, &body, ScriptedReply::text("Good.")).await.log.len(), 2);
    stage.session = "second";
    let mut less = body.clone();
    *less.pointer_mut(at).unwrap() = json!(8_000);
    let trip = stage.exchange(target, &less, ScriptedReply::text("Good.")).await;
    assert_eq!(trip.sent(), &less);
    assert_eq!(trip.exchange.refusal.clone(), None);
    stage.session = "third";
    let mut other = body.clone();
    other["model"] = json!("claude-sonnet-4-5");
    let trip = stage.exchange(target, &other, ScriptedReply::text("Good.")).await;
    assert_eq!(trip.log.len(), 2, "it is refused first");
    let heal = RepairPolicy { causes: vec![RepairCause::Media], ..RepairPolicy::default() };
    stage.config.policy = Policy { heal, ..Policy::default() }.into();
    stage.restart().await;
    stage.session = "fourth";
    let trip = stage.exchange(target, &body, ScriptedReply::text("Good.")).await;
    assert_eq!(trip.status, 400);
    assert_eq!(trip.log.len(), 1);
    assert_eq!(trip.sent().pointer(at), Some(&json!(64_000)));
}

/// A text that a client wrote teaches nothing.
#[tokio::test]
async fn dictated_limit_is_not_learned() {
    let mut stage = Stage::open(rules(), Policy::default()).await;
    let (target, at, mut body) = bodies()[0].clone();
    body["messages"][0]["content"] = json!(
        "max_tokens: 64000 > 8192, which is the maximum allowed number of output tokens for claude-sonnet-4-6"
    );
    let trip = stage.exchange(target, &body, ScriptedReply::text("Good.")).await;
    assert_eq!(trip.exchange.refusal, healed(RepairCause::MaxTokens), "its own is healed");
    stage.session = "second";
    let (_, _, body) = bodies()[0].clone();
    let trip = stage.exchange(target, &body, ScriptedReply::text("Good.")).await;
    assert_eq!(trip.log.len(), 2);
    assert_eq!(trip.sent().pointer(at), Some(&json!(8_192)));
}
