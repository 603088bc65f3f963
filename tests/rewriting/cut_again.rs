//! Results that are too large: which ones are trimmed, and what becomes of them later.

use plimsoll::context::plan::{Change, Decision, DecisionReason};
use plimsoll::context::policy::{Policy, SummaryEngine};
use serde_json::{Value, json};

use crate::play::{Play, anthropic_reply, anthropic_request, message};
use crate::pruned::{CLEARED, eager, history};

const MODEL: &str = "claude-sonnet-4-5";
const TOO_LONG: &str = r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 2600 tokens > 2000 maximum"}}"#;

fn reply() -> Value {
    anthropic_reply("m1", MODEL, json!([{"type": "text", "text": "Go on."}]))
}

fn content(sent: &Value, message: usize) -> &str {
    sent["messages"][message]["content"][0]["content"].as_str().unwrap()
}

/// A history of `count` calls whose first result is very large, and a policy that trims it.
fn large(count: usize) -> (Vec<Value>, Policy) {
    let mut policy = eager();
    policy.prune.max_result_tokens = Some(500);
    let mut history = history(count);
    history[2]["content"][0]["content"] = json!("begin ".to_owned() + &"middle ".repeat(5000));
    (history, policy)
}

#[tokio::test]
async fn trimmed_result_is_cleared_later_like_any_other() {
    let (first, policy) = large(1);
    let mut play = Play::of("/v1/messages", policy).await;
    let trimmed = play.exchange(&anthropic_request(MODEL, &first), &reply()).await;
    assert!(content(&trimmed.sent, 2).contains("left out"));
    let (long, _) = large(6);
    let cleared = play.exchange(&anthropic_request(MODEL, &long), &reply()).await;
    assert_eq!(content(&cleared.sent, 2), CLEARED, "{:?}", cleared.steps());
    assert!(cleared.exchange.done.tokens_removed > 5_000, "{:?}", cleared.exchange.done);
    for _ in 0..2 {
        let later = play.exchange(&anthropic_request(MODEL, &long), &reply()).await;
        assert_eq!(later.bytes, cleared.bytes.clone());
        assert_eq!(later.exchange.done.new.cut, 0);
        play.restart().await;
    }
    // A rewind to the point at which it was only trimmed.
    let back = play.exchange(&anthropic_request(MODEL, &first), &reply()).await;
    assert_eq!(back.bytes, trimmed.bytes);
}

#[tokio::test]
async fn trimmed_result_is_cleared_where_room_has_to_be_made() {
    let (first, mut policy) = large(1);
    policy.prune.gate = Vec::new();
    policy.compact.engine = SummaryEngine::Off;
    let mut play = Play::of("/v1/messages", policy).await;
    play.exchange(&anthropic_request(MODEL, &first), &reply()).await;
    let (long, _) = large(6);
    let mut client = play.send_request(&anthropic_request(MODEL, &long)).await;
    let mut call = play.provider.call().await;
    assert!(call.message.text().contains("left out"));
    call.answer("400 Bad Request", TOO_LONG).await;
    let mut call = call.wire.request().await;
    let sent: Value = serde_json::from_str(call.message.text()).unwrap();
    assert_eq!(content(&sent, 2), CLEARED);
    call.answer("200 OK", &reply().to_string()).await;
    assert_eq!(client.response().await.status(), 200);
}

/// A result that one branch cleared after it was read is not cleared in a branch that has not read it yet, even if it
/// is too large for the present policy.
#[tokio::test]
async fn result_cleared_in_another_branch_is_not_cleared_before_it_is_read() {
    let (long, policy) = large(6);
    let mut play = Play::of("/v1/messages", eager()).await;
    let cleared = play.exchange(&anthropic_request(MODEL, &long), &reply()).await;
    assert_eq!(content(&cleared.sent, 2), CLEARED, "{:?}", cleared.steps());
    play.config.policy = std::sync::Arc::new(policy);
    play.restart().await;
    let (first, _) = large(1);
    for _ in 0..2 {
        let back = play.exchange(&anthropic_request(MODEL, &first), &reply()).await;
        assert_eq!(back.bytes, anthropic_request(MODEL, &first).to_string(), "{:?}", back.steps());
    }
    let later = play.exchange(&anthropic_request(MODEL, &long), &reply()).await;
    assert_eq!(content(&later.sent, 2), CLEARED, "{:?}", later.steps());
}

/// A result is not trimmed if policy keeps its tool or errors, or if it is small.
#[tokio::test]
async fn kept_results_are_not_trimmed() {
    for (errs, except, limit, is_trimmed) in [
        (false, "", 500, true),
        (true, "", 500, false),
        (false, "Read", 500, false),
        (false, "", 50_000, false),
    ] {
        let (mut first, mut policy) = large(1);
        policy.prune.max_result_tokens = Some(limit);
        policy.prune.except_tools = vec![except.to_owned()];
        first[2]["content"][0]["is_error"] = json!(errs);
        let mut play = Play::of("/v1/messages", policy).await;
        let scene = play.exchange(&anthropic_request(MODEL, &first), &reply()).await;
        assert_eq!(content(&scene.sent, 2).contains("left out"), is_trimmed, "{errs} {except}");
    }
    // However little room there is, 96 bytes are not too large.
    let mut policy = Policy::default();
    policy.compact.engine = SummaryEngine::Off;
    let mut play = Play::of("/v1/messages", policy).await;
    let mut small = history(1);
    small[0]["content"] = json!("Words. ".repeat(2000));
    small[2]["content"][0]["content"] = json!("Deep water.".repeat(9));
    let mut client = play.send_request(&anthropic_request(MODEL, &small)).await;
    let mut call = play.provider.call().await;
    call.answer("400 Bad Request", TOO_LONG).await;
    assert_eq!(client.response().await.status(), 400);
    assert!(play.server.next_exchange().await.done.made.is_nothing());
}

/// If cuts in the same request make a result fit, it is not trimmed as well.
#[tokio::test]
async fn result_that_fits_after_other_cuts_is_not_trimmed() {
    let mut policy = eager();
    policy.compact.engine = SummaryEngine::Off;
    let mut play = Play::of("/v1/messages", policy).await;
    play.config.upstreams[0].window = Some(24_000);
    play.restart().await;
    let mut long = history(16);
    let last = long.len() - 1;
    long[last]["content"][0]["content"] = json!("water ".repeat(4_200));
    let mut request = anthropic_request(MODEL, &long);
    request["max_tokens"] = json!(200);
    let scene = play.exchange(&request, &reply()).await;
    let steps = scene.steps();
    assert!(steps.contains(&(Change::Cut, Decision::New, DecisionReason::Always)), "{steps:?}");
    assert!(!content(&scene.sent, last).contains("left out"), "{steps:?}");
}

/// If room has to be made, pictures in old results are cut with the text.
#[tokio::test]
async fn making_room_clears_pictures_too() {
    let mut policy = Policy::default();
    policy.compact.engine = SummaryEngine::Off;
    let play = Play::of("/v1/messages", policy).await;
    let mut long = history(8);
    let picture = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}});
    long[2]["content"][0]["content"] =
        json!([{"type": "text", "text": "Deep water. ".repeat(90)}, picture]);
    let mut client = play.send_request(&anthropic_request(MODEL, &long)).await;
    let mut call = play.provider.call().await;
    call.answer("400 Bad Request", TOO_LONG).await;
    let mut call = call.wire.request().await;
    assert!(!call.message.text().contains("image/png"));
    assert!(call.message.text().contains(CLEARED));
    call.answer("200 OK", &reply().to_string()).await;
    assert_eq!(client.response().await.status(), 200);
}

/// An overflow message that contradicts what was sent leads to no cut and no lesson: also if the request has a picture,
/// and also if the message has no numbers but the request would fit any window.
#[tokio::test]
async fn overflow_that_contradicts_estimate_cuts_nothing() {
    const WILD: &str = r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 210000 tokens > 200000 maximum"}}"#;
    const UNTOLD: &str = r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long"}}"#;
    let mut shown = history(6);
    let picture = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}});
    shown[0]["content"] = json!([{"type": "text", "text": "Look."}, picture]);
    // Results of some hundred tokens, two of which a cut would make shorter.
    let mut small = history(4);
    for at in [2, 4, 6, 8] {
        small[at]["content"][0]["content"] = json!("Deep water. ".repeat(15));
    }
    for (refusal, talk) in [(WILD, history(6)), (WILD, shown), (UNTOLD, small)] {
        let mut play = Play::of("/v1/messages", Policy::default()).await;
        let mut client = play.send_request(&anthropic_request(MODEL, &talk)).await;
        let mut call = play.provider.call().await;
        call.answer("400 Bad Request", refusal).await;
        let answer = client.response().await;
        assert_eq!(answer.status(), 400);
        assert_eq!(answer.text(), refusal);
        let exchange = play.server.next_exchange().await;
        assert!(exchange.done.made.is_nothing(), "{:?}", exchange.done);
        assert!(exchange.done.overflow.is_none(), "{:?}", exchange.done);
        drop(call);
        let mut longer = talk;
        longer.push(message("user", json!("And now?")));
        let next = play.exchange(&anthropic_request(MODEL, &longer), &reply()).await;
        assert_eq!(next.bytes, anthropic_request(MODEL, &longer).to_string());
    }
}
