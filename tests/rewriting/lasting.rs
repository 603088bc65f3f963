//! Decisions are permanent: the sent prefix is stable across forks, edits, replicas and store failures.

use plimsoll::context::plan::Decision;
use plimsoll::context::policy::Policy;
use serde_json::json;

use crate::play::{Play, anthropic_reply, anthropic_request, message};
use crate::pruned::{eager, history};

const MODEL: &str = "claude-sonnet-4-5";

#[tokio::test]
async fn fork_sends_same_prefix() {
    let mut play = Play::of("/v1/messages", eager()).await;
    let reply = anthropic_reply("m1", MODEL, json!([{"type": "text", "text": "Go on."}]));
    let first = play.exchange(&anthropic_request(MODEL, &history(6)), &reply).await;
    let prefix = first.bytes.rfind("]}").unwrap();
    play.config.policy = Policy::default().into(); // nothing more is cut
    play.restart().await;
    for text in ["This way.", "That way."] {
        let mut fork = history(6);
        fork.push(message("assistant", json!([{"type": "text", "text": "Go on."}])));
        fork.push(message("user", json!(text)));
        let scene = play.exchange(&anthropic_request(MODEL, &fork), &reply).await;
        assert_eq!(scene.bytes[..prefix], first.bytes[..prefix], "{text}");
        // A replica knows only what is in the store.
        play.restart().await;
    }
}

#[tokio::test]
async fn rewind_keeps_earlier_cuts() {
    let mut play = Play::of("/v1/messages", eager()).await;
    let reply = anthropic_reply("m1", MODEL, json!([]));
    let first = play.exchange(&anthropic_request(MODEL, &history(8)), &reply).await;
    let scene = play.exchange(&anthropic_request(MODEL, &history(7)), &reply).await;
    let sent = scene.sent["messages"].as_array().unwrap();
    let before = first.sent["messages"].as_array().unwrap();
    // The newest result has no reply in this branch, so it was not cut yet.
    let newest = sent.len() - 1;
    assert_eq!(sent[..newest], before[..newest]);
    assert_eq!(sent[newest], history(7)[newest]);
    assert!(scene.exchange.done.steps.iter().all(|step| step.decision == Decision::Declined));
}
