//! What responses teach about counting is used at once, in other sessions, and after a restart.

use std::time::Duration;

use plimsoll::context::policy::Policy;
use plimsoll::store::Scope;
use serde_json::{Value, json};

use crate::play::{Play, anthropic_reply, anthropic_request, message};

const MODEL: &str = "claude-sonnet-4-5";

#[tokio::test]
async fn second_session_starts_from_what_first_one_cost() {
    let mut play = Play::of("/v1/messages", Policy::default()).await;
    let request = anthropic_request(MODEL, &[message("user", json!("How deep is she?"))]);
    let reply = anthropic_reply("m1", MODEL, json!([{"type": "text", "text": "Deep."}]));
    let first = play.exchange(&request, &reply).await;
    let estimate = first.exchange.estimate.clone().unwrap();
    assert!(estimate.tokens < 200, "{estimate:?}");
    play.session = "another";
    let second = play.exchange(&request, &reply).await;
    assert_eq!(second.exchange.estimate.as_ref().unwrap().tokens, 1800);
    assert_eq!(second.exchange.error(), Some(0));
    // It is saved in the background: a process that starts later knows it.
    let upstream = first.exchange.upstream.clone().unwrap();
    let session = format!("~learned counting {MODEL} behind {upstream}").into();
    let scope = Scope { tenant: "".into(), session };
    let saved = async {
        while play.store.scan(scope.clone(), 1).await.unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), saved).await.expect("what was learned is saved");
    play.restart().await;
    play.session = "a third";
    let third = play.exchange(&request, &reply).await;
    assert_eq!(third.exchange.error(), Some(0));
    // Other instructions have another cost, which is not known.
    let mut other = request.clone();
    other["system"] = json!("You are anything but calm.");
    play.session = "a fourth";
    let fourth = play.exchange(&other, &reply).await;
    assert!(fourth.exchange.estimate.as_ref().unwrap().tokens < 200);
}

/// A reply over Chat Completions whose reasoning is hidden, so the client cannot send it back.
fn reasoned(id: usize, input: u64) -> Value {
    json!({
        "id": format!("c{id}"), "object": "chat.completion", "model": "grok-4",
        "choices": [{"index": 0, "finish_reason": "stop",
            "message": {"role": "assistant", "content": format!("{id} metres, at low tide.")}}],
        "usage": {"prompt_tokens": input, "completion_tokens": 520, "total_tokens": input + 520,
            "completion_tokens_details": {"reasoning_tokens": 500}},
    })
}

/// Plays calls of one session that report these inputs; returns the error of each estimate.
async fn errors(play: &mut Play, session: &'static str, inputs: &[u64]) -> Vec<i64> {
    play.session = session;
    let mut history = vec![message("user", json!("How deep is she?"))];
    let mut errors = Vec::new();
    for (id, input) in inputs.iter().enumerate() {
        let request = json!({"model": "grok-4", "messages": history});
        let reply = reasoned(id, *input);
        errors.push(play.exchange(&request, &reply).await.exchange.error().unwrap());
        history.push(reply["choices"][0]["message"].clone());
        history.push(message("user", json!("And at high tide?")));
    }
    errors
}

#[tokio::test]
async fn one_pair_of_calls_teaches_whether_unsent_reasoning_is_counted() {
    let mut play = Play::of("/v1/chat/completions", Policy::default()).await;
    // Each call costs its text, some 30 tokens, and the 500 of the earlier reasoning.
    let first = errors(&mut play, "first", &[1_000, 1_530, 2_060]).await;
    assert!(first[1].abs_diff(-500) < 30, "{first:?}");
    assert!(first[2].abs() < 30, "{first:?}");
    let another = errors(&mut play, "another", &[1_000, 1_530]).await;
    assert!(another[1].abs() < 30, "another session knows it: {another:?}");
    // It is unlearned as fast: here the reasoning is not counted.
    let third = errors(&mut play, "third", &[1_000, 1_030, 1_060]).await;
    assert!(third[1].abs_diff(500) < 30, "{third:?}");
    assert!(third[2].abs() < 30, "{third:?}");
}
