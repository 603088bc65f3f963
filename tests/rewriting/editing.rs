//! The provider cuts instead of Plimsoll: its own context editing is requested, its report is read, and it is no longer
//! requested if it was refused.

use plimsoll::context::plan::{Change, Decision, DecisionReason};
use plimsoll::context::policy::{Policy, PruneMethod};
use plimsoll::dialect::editing::ClearingReport;
use plimsoll::dialect::refusal::RefusalCause;
use plimsoll::telemetry::FailOpen;
use serde_json::{Value, json};

use crate::play::{Play, Scene, anthropic_reply, anthropic_request, message};
use crate::pruned::{eager, history};

const FREE: &str = "claude-sonnet-4-5";
const BOUND: &str = "claude-sonnet-5-5";
const BETA: &str = "context-management-2025-06-27";
const REFUSED: &str = r#"{"type":"error","error":{"type":"invalid_request_error","message":"context_management: Extra inputs are not permitted"}}"#;

/// The eager policy, with this method.
fn by(method: PruneMethod) -> Policy {
    let mut policy = eager();
    policy.prune.method = method;
    policy
}

/// A reply that reports this input after `tokens` were cleared.
fn cleared(id: &str, input: u64, uses: u64, tokens: u64) -> Value {
    let mut reply = anthropic_reply(id, FREE, json!([{"type": "text", "text": "Go on."}]));
    reply["usage"] = json!({"input_tokens": input, "output_tokens": 3});
    reply["context_management"] = json!({"applied_edits": [{"type": "clear_tool_uses_20250919",
        "cleared_tool_uses": uses, "cleared_input_tokens": tokens}]});
    reply
}

fn betas(scene: &Scene) -> Vec<&str> {
    let lines = scene.head.lines().filter_map(|line| line.split_once(": "));
    lines.filter(|(name, _)| name.eq_ignore_ascii_case("anthropic-beta")).map(|it| it.1).collect()
}

fn grown(by: &str) -> Vec<Value> {
    let mut history = history(6);
    history.push(message("assistant", json!([{"type": "text", "text": "Go on."}])));
    history.push(message("user", json!(by)));
    history
}

#[tokio::test]
async fn requesting_provider_clearing_changes_nothing_else() {
    let mut play = Play::of("/v1/messages", by(PruneMethod::Provider)).await;
    play.headers = "anthropic-beta: b-1,a-2\r\nanthropic-beta: c-3\r\n".to_owned();
    let request = anthropic_request(FREE, &history(6));
    let scene = play.exchange(&request, &anthropic_reply("m1", FREE, json!([]))).await;
    let mut sent = scene.sent.clone();
    let editing = sent.as_object_mut().unwrap().remove("context_management").unwrap();
    assert_eq!(
        editing,
        json!({"edits": [{"type": "clear_tool_uses_20250919",
        "trigger": {"type": "input_tokens", "value": 150}, "keep": {"type": "tool_uses", "value": 3},
        "clear_at_least": {"type": "input_tokens", "value": 50}}]})
    );
    assert_eq!(sent, request);
    assert!(scene.bytes.ends_with(&request.to_string()[1..]), "all else byte for byte");
    assert_eq!(betas(&scene), ["b-1,a-2", &format!("c-3,{BETA}")]);
    // What we would have cut is left to the provider.
    assert_eq!(scene.steps(), [(Change::Cut, Decision::Declined, DecisionReason::Provider)]);
    assert!(scene.exchange.done.made.is_nothing());

    // The same policy requests the same edit in the same bytes, after a restart too. A beta is listed once.
    play.headers = format!("anthropic-beta: {BETA}\r\n");
    play.restart().await;
    let later = play
        .exchange(
            &anthropic_request(FREE, &grown("And now?")),
            &anthropic_reply("m2", FREE, json!([])),
        )
        .await;
    let until = scene.bytes.find("\"max_tokens\"").unwrap();
    assert_eq!(later.bytes[..until], scene.bytes[..until]);
    assert_eq!(betas(&later), [BETA]);
}

#[tokio::test]
async fn missing_beta_header_is_added() {
    let mut play = Play::of("/v1/messages", by(PruneMethod::Provider)).await;
    let request = anthropic_request(FREE, &history(6));
    let scene = play.exchange(&request, &anthropic_reply("m1", FREE, json!([]))).await;
    assert_eq!(betas(&scene), [BETA]);
}

#[tokio::test]
async fn context_management_sent_by_client_is_left_unchanged() {
    let mut play = Play::of("/v1/messages", by(PruneMethod::Provider)).await;
    let mut request = anthropic_request(FREE, &history(6));
    request["context_management"] =
        json!({"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]});
    let scene = play.exchange(&request, &anthropic_reply("m1", FREE, json!([]))).await;
    assert_eq!(scene.bytes, request.to_string());
    assert_eq!(betas(&scene), [""; 0]);
}

/// With `auto`, the provider cuts if our own cut would invalidate reasoning; otherwise we cut.
#[tokio::test]
async fn auto_lets_provider_clear_if_reasoning_is_bound() {
    let mut play = Play::of("/v1/messages", by(PruneMethod::Auto)).await;
    let reply = anthropic_reply("m1", BOUND, json!([]));
    let scene = play.exchange(&anthropic_request(BOUND, &history(6)), &reply).await;
    assert!(scene.sent["context_management"].is_object());
    assert!(scene.exchange.done.made.is_nothing());
    play.session = "free";
    let scene = play.exchange(&anthropic_request(FREE, &history(6)), &reply).await;
    assert!(scene.sent["context_management"].is_null());
    assert!(scene.exchange.done.made.cut >= 3);
    // A thread of another dialect, or in another mode, does not request it.
    play.session = "shadow";
    play.headers = "x-plimsoll-mode: shadow\r\n".to_owned();
    let request = anthropic_request(BOUND, &history(6));
    assert_eq!(play.exchange(&request, &reply).await.bytes, request.to_string());
}

#[tokio::test]
async fn with_provider_clearing_oversized_result_is_cut_at_birth() {
    let mut policy = by(PruneMethod::Provider);
    policy.prune.max_result_tokens = Some(500);
    let mut play = Play::of("/v1/messages", policy).await;
    let mut history = history(1);
    history[2]["content"][0]["content"] = json!("deep ".repeat(5000));
    let scene = play
        .exchange(&anthropic_request(FREE, &history), &anthropic_reply("m1", FREE, json!([])))
        .await;
    assert_eq!(scene.steps(), [(Change::Cut, Decision::New, DecisionReason::TooLarge)]);
    assert!(scene.sent["context_management"].is_object());
}

#[tokio::test]
async fn refusal_of_provider_clearing_is_learned_per_model() {
    let mut play = Play::of("/v1/messages", by(PruneMethod::Provider)).await;
    let request = anthropic_request(FREE, &history(6));
    let reply = anthropic_reply("m1", FREE, json!([{"type": "text", "text": "Go on."}]));
    let mut client = play.send_request(&request).await;
    let mut call = play.provider.call().await;
    assert!(call.message.text().contains("context_management"));
    call.answer("400 Bad Request", REFUSED).await;
    let mut call = call.wire.request().await;
    assert_eq!(call.message.text(), request.to_string());
    assert_eq!(call.message.header("anthropic-beta"), None);
    call.answer("200 OK", &reply.to_string()).await;
    assert_eq!(client.response().await.status(), 200);
    drop(call);
    let exchange = play.server.next_exchange().await;
    assert_eq!(exchange.refused, Some(RefusalCause::Editing));
    assert!(exchange.fail_open.contains(&FailOpen::RewriteRefused));
    assert!(!exchange.suspends_branch(), "the history was not to blame");
    assert!(exchange.done.resent.is_none(), "the history was not to blame");

    // It is not tried again, after a restart neither, and we do not cut instead.
    for _ in 0..2 {
        let longer = anthropic_request(FREE, &grown("And now?"));
        assert_eq!(play.exchange(&longer, &reply).await.bytes, longer.to_string());
        play.restart().await;
    }
    // For another model it is requested: support depends on the model.
    let other = anthropic_request(BOUND, &history(6));
    assert!(play.exchange(&other, &reply).await.sent["context_management"].is_object());
}

/// A refusal that names the requested editing does not suspend a thread with other rewrites.
#[tokio::test]
async fn refusal_of_provider_clearing_does_not_suspend_branch() {
    let mut play = Play::of("/v1/messages", eager()).await;
    let reply = anthropic_reply("m1", FREE, json!([{"type": "text", "text": "Go on."}]));
    let cut =
        play.exchange(&anthropic_request(FREE, &history(6)), &reply).await.exchange.done.made.cut;
    play.config.policy = by(PruneMethod::Provider).into();
    play.restart().await;
    let longer = anthropic_request(FREE, &grown("And now?"));
    let mut client = play.send_request(&longer).await;
    let mut call = play.provider.call().await;
    call.answer("400 Bad Request", REFUSED).await;
    let mut call = call.wire.request().await;
    assert_eq!(call.message.text(), longer.to_string());
    call.answer("200 OK", &reply.to_string()).await;
    client.response().await;
    drop(call);
    assert!(!play.server.next_exchange().await.suspends_branch());
    // What was cut before the provider was to cut stays cut.
    let scene = play.exchange(&longer, &reply).await;
    assert_eq!(scene.exchange.done.made.cut, cut);
    assert!(scene.sent["context_management"].is_null());
}

#[tokio::test]
async fn tokens_cleared_by_provider_are_recorded_and_counted() {
    let mut play = Play::of("/v1/messages", by(PruneMethod::Provider)).await;
    let scene =
        play.exchange(&anthropic_request(FREE, &history(6)), &cleared("m1", 700, 3, 900)).await;
    let expected = ClearingReport { tool_uses: 3, input_tokens: 900 };
    assert_eq!(scene.exchange.usage.cleared, Some(expected));
    let metrics = play.server.telemetry.render();
    let line =
        "plimsoll_provider_cleared_tokens_total{model=\"claude-sonnet-4-5\",upstream=\"up\"} 900";
    assert!(metrics.contains(line), "{metrics}");
}

#[tokio::test]
async fn cleared_tokens_come_at_stream_end() {
    let mut play = Play::of("/v1/messages", by(PruneMethod::Provider)).await;
    let mut request = anthropic_request(FREE, &history(6));
    request["stream"] = json!(true);
    let mut client = play.send_request(&request).await;
    let mut call = play.provider.call().await;
    call.begin_events().await;
    call.chunk(
        "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m1\",\
         \"usage\":{\"input_tokens\":700,\"output_tokens\":1}}}\n\n\
         event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\
         \"end_turn\"},\"usage\":{\"output_tokens\":3},\"context_management\":{\"applied_edits\":\
         [{\"type\":\"clear_tool_uses_20250919\",\"cleared_tool_uses\":2,\"cleared_input_tokens\":\
         80}]}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
    )
    .await;
    call.end().await;
    client.response().await;
    let expected = ClearingReport { tool_uses: 2, input_tokens: 80 };
    assert_eq!(play.server.next_exchange().await.usage.cleared, Some(expected));
}

/// While the provider goes on clearing, the next estimate starts from the input after clearing. Once clearing is no
/// longer requested, the cleared tokens count again.
#[tokio::test]
async fn estimate_knows_cleared_tokens() {
    let mut play = Play::of("/v1/messages", by(PruneMethod::Provider)).await;
    play.exchange(&anthropic_request(FREE, &history(6)), &cleared("m1", 700, 3, 5_000)).await;
    let next = anthropic_request(FREE, &grown("And now?"));
    let exchange = play.exchange(&next, &cleared("m2", 715, 3, 5_000)).await.exchange;
    let estimate = exchange.estimate.clone().unwrap();
    assert!((700..740).contains(&estimate.tokens), "{estimate:?}");
    assert!(exchange.error().unwrap().abs() < 20, "{:?}", exchange.error());

    play.config.policy = Policy::default().into();
    play.restart().await;
    let mut last = grown("And now?");
    last.push(message("assistant", json!([{"type": "text", "text": "Go on."}])));
    last.push(message("user", json!("On.")));
    let exchange = play
        .exchange(&anthropic_request(FREE, &last), &anthropic_reply("m3", FREE, json!([])))
        .await
        .exchange;
    let estimate = exchange.estimate.clone().unwrap();
    assert!((5_715..5_760).contains(&estimate.tokens), "{estimate:?}");
    // Input, output and new content still add up to the estimate.
    assert_eq!(estimate.tokens, 715 + 3 + estimate.new - estimate.gone);
}
