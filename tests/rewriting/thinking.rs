//! With `reasoning.display = "summarized"`, a client that requested thinking gets summaries of it from models that hide
//! it by default, from a thread's first request on (`docs/rewriting.md` "Thinking summaries").

use plimsoll::config::Mode;
use plimsoll::context::policy::{Policy, ReasoningPolicy, ThinkingDisplay};
use plimsoll::dialect::refusal::RefusalCause;
use scripted_provider::strict::{Loss, Rules, ScriptedReply};
use serde_json::{Value, json};

use crate::healed::{CLAUDE, GEMINI, RESPONSES, goes_on};
use crate::play::Play;
use crate::stage::Stage;

fn shows() -> Policy {
    let display = ThinkingDisplay::Summarized;
    let reasoning = ReasoningPolicy { display, ..ReasoningPolicy::default() };
    Policy { reasoning, ..Policy::default() }
}

fn claude() -> Value {
    json!({"model": "claude-opus-5", "max_tokens": 9000, "thinking": {"type": "adaptive"},
        "messages": [{"role": "user", "content": "Look."}]})
}

fn responses() -> Value {
    json!({"model": "gpt-5.5", "store": false, "reasoning": {"effort": "high"},
        "input": [{"role": "user", "content": "Look."}]})
}

fn gemini() -> Value {
    json!({"contents": [{"role": "user", "parts": [{"text": "Look."}]}],
        "generationConfig": {"thinkingConfig": {"thinkingBudget": -1}}})
}

/// A request for thinking in each protocol, the member that requests summaries, and its value.
fn clients() -> [(&'static str, Value, &'static str, Value); 3] {
    [
        (CLAUDE, claude(), "/thinking/display", json!("summarized")),
        (RESPONSES, responses(), "/reasoning/summary", json!("auto")),
        (GEMINI, gemini(), "/generationConfig/thinkingConfig/includeThoughts", json!(true)),
    ]
}

fn thinks() -> ScriptedReply {
    ScriptedReply::thinking("I looked.", 40).with_text("Seen.")
}

/// The summary is shown, sent back unchanged, read by the model, and costs no cache: neither signatures nor prefixes
/// depend on it.
#[tokio::test]
async fn requested_thinking_is_shown_and_sent_back_without_loss() {
    for (target, body, at, expected) in clients() {
        let mut stage = Stage::open(Rules::default(), shows()).await;
        let mut next = body;
        for turn in 0..4 {
            if turn == 2 {
                stage.restart().await;
            }
            let trip = stage.exchange(target, &next, thinks()).await;
            assert_eq!(trip.status, 200, "{target}: {}", trip.answer);
            assert_eq!(trip.log.len(), 1, "{target}: {}", trip.answer);
            assert_eq!(trip.sent().pointer(at), Some(&expected), "{target} {turn}");
            assert!(trip.answer.to_string().contains("I looked."), "{target}: {}", trip.answer);
            let losses: &[Loss] = trip.log[0].verdict.losses();
            assert!(losses.is_empty(), "{target} {turn}: {losses:?}");
            next = goes_on(&next, &trip.answer);
        }
    }
}

/// A thread keeps what its first request decided, whatever is configured later.
#[tokio::test]
async fn threads_first_request_decides_if_thinking_is_shown() {
    for (target, body, at, expected) in clients() {
        let mut stage = Stage::open(Rules::default(), Policy::default()).await;
        let trip = stage.exchange(target, &body, thinks()).await;
        assert_eq!(trip.sent().pointer(at), None, "{target}: nobody asked for it");
        let old = goes_on(&body, &trip.answer);
        stage.config.policy = shows().into();
        stage.restart().await;
        let trip = stage.exchange(target, &old, thinks()).await;
        assert_eq!(trip.sent().pointer(at), None, "{target}: an old thread");
        stage.session = "second";
        let trip = stage.exchange(target, &body, thinks()).await;
        assert_eq!(trip.sent().pointer(at), Some(&expected), "{target}: a new one");
        let new = goes_on(&body, &trip.answer);
        stage.config.policy = Policy::default().into();
        stage.restart().await;
        let trip = stage.exchange(target, &new, thinks()).await;
        assert_eq!(trip.sent().pointer(at), Some(&expected), "{target}: it stays shown");
    }
}

#[tokio::test]
async fn request_without_thinking_or_with_display_is_left_alone() {
    let with = |mut body: Value, at: &str, value: Value| {
        *body.pointer_mut(at).unwrap() = value;
        body
    };
    for (what, target, body) in [
        ("none", CLAUDE, with(claude(), "/thinking", json!({"type": "disabled"}))),
        (
            "left out",
            CLAUDE,
            with(claude(), "/thinking", json!({"type": "adaptive", "display": "omitted"})),
        ),
        (
            "an older model shows it by itself",
            CLAUDE,
            with(claude(), "/model", json!("claude-sonnet-4-6")),
        ),
        (
            "said",
            GEMINI,
            with(
                gemini(),
                "/generationConfig/thinkingConfig",
                json!({"thinkingBudget": 100, "includeThoughts": false}),
            ),
        ),
        (
            "none",
            GEMINI,
            with(gemini(), "/generationConfig/thinkingConfig", json!({"thinkingBudget": 0})),
        ),
    ] {
        let mut stage = Stage::open(Rules::default(), shows()).await;
        let trip = stage.exchange(target, &body, ScriptedReply::text("Seen.")).await;
        assert_eq!(trip.status, 200, "{what}: {}", trip.answer);
        assert_eq!(trip.sent(), &body, "{what}: {}", trip.answer);
    }
    for mode in [Mode::Observe, Mode::Shadow] {
        let mut stage = Stage::open(Rules::default(), shows()).await;
        stage.config.mode = mode;
        stage.restart().await;
        let trip = stage.exchange(CLAUDE, &claude(), thinks()).await;
        assert_eq!(trip.sent(), &claude(), "{mode:?}");
    }
}

/// If the provider refuses it, the original is sent, and it is not requested again, in other sessions neither.
#[tokio::test]
async fn refused_display_is_learned() {
    for (target, body, refusal) in [
        (CLAUDE, claude(), "thinking.adaptive.display: Extra inputs are not permitted"),
        (
            RESPONSES,
            responses(),
            "Your organization must be verified to generate reasoning summaries. Please go to: https://platform.openai.com/settings/organization/general and click on Verify Organization. If you just verified, it can take up to 15 minutes for access to propagate.",
        ),
        (GEMINI, gemini(), "Thinking is not enabled for models/gemini-2.5-pro"),
    ] {
        let mut play = Play::of(target, shows()).await;
        let mut client = play.send_request(&body).await;
        let mut call = play.provider.call().await;
        assert_ne!(call.message.text(), body.to_string());
        call.answer("400 Bad Request", &json!({"error": {"message": refusal}}).to_string()).await;
        let mut call = call.wire.request().await;
        assert_eq!(call.message.text(), body.to_string(), "{target}");
        call.answer("200 OK", "{}").await;
        assert_eq!(client.response().await.status(), 200);
        drop(call);
        assert_eq!(
            play.server.next_exchange().await.refused,
            Some(RefusalCause::Display),
            "{target}"
        );
        play.restart().await;
        play.session = "22222222-2222-3333-4444-555555555555";
        let scene = play.exchange(&body, &json!({})).await;
        assert!(!scene.bytes.contains("summarized"));
        assert!(!scene.bytes.contains("\"summary\""));
        assert!(!scene.bytes.contains("includeThoughts"), "{target}: {}", scene.bytes);
    }
}
