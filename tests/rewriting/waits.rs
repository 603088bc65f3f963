//! How long the start of a refusal is held back for the rest of it: not at all if nothing could be sent again.

use std::time::{Duration, Instant};

use plimsoll::config::Mode;
use plimsoll::context::overflow::OverflowSign;
use plimsoll::context::policy::{Policy, SummaryEngine};
use serde_json::{Value, json};

use crate::play::{Play, anthropic_reply, anthropic_request};
use crate::pruned::history;

const MODEL: &str = "claude-sonnet-4-5";
const BEGINS: &str = "{\"type\":\"error\",\"error\":{";
const TOO_LONG: &str = r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 2600 tokens > 2000 maximum"}}"#;
/// Less than any wait, and more than a busy machine takes in the fastest of [`TRIES`].
const AT_ONCE: Duration = Duration::from_millis(150);
/// More than the longest wait, by the same margin.
const SHORTLY: Duration = Duration::from_millis(800);
const TRIES: usize = 5;

async fn play(mode: Mode, hold_out: f64) -> Play {
    let mut policy = Policy::default();
    policy.compact.engine = SummaryEngine::Off;
    policy.prune.hold_out = hold_out;
    let mut play = Play::of("/v1/messages", policy).await;
    play.config.mode = mode;
    play.restart().await;
    play
}

/// How long the client waits for the first bytes of a refusal, if no more arrives until it has them: the fastest of a
/// few tries.
async fn quickest(play: &mut Play, request: &Value, first: &str) -> Duration {
    let mut quickest = Duration::MAX;
    for _ in 0..TRIES {
        let mut client = play.send_request(request).await;
        let mut call = play.provider.call().await;
        let began = Instant::now();
        call.send("HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n").await;
        call.chunk(first).await;
        let head = client.head().await;
        assert!(head.starts_with("HTTP/1.1 400"), "{head}");
        assert_eq!(client.chunk().await, first.as_bytes());
        quickest = quickest.min(began.elapsed());
        call.end().await;
        drop(client);
        play.server.next_exchange().await;
    }
    quickest
}

#[tokio::test]
async fn refusal_is_forwarded_at_once_if_no_retry_is_possible() {
    for (mode, hold_out) in [(Mode::Observe, 0.0), (Mode::Shadow, 0.0), (Mode::Active, 1.0)] {
        let mut play = play(mode, hold_out).await;
        let took = quickest(&mut play, &anthropic_request(MODEL, &history(8)), BEGINS).await;
        assert!(took < AT_ONCE, "{mode:?}, held out {hold_out}: {took:?}");
    }
}

#[tokio::test]
async fn in_active_mode_slow_refusal_is_held_back_only_shortly() {
    let mut play = play(Mode::Active, 0.0).await;
    let took = quickest(&mut play, &anthropic_request(MODEL, &history(8)), BEGINS).await;
    assert!(took < SHORTLY, "{took:?}");
}

/// The body is complete as JSON, and only the end of the response is missing: there is nothing left to wait for.
#[tokio::test]
async fn refusal_is_forwarded_as_soon_as_its_json_is_complete() {
    let mut play = play(Mode::Active, 0.0).await;
    let whole = r#"{"type":"error","error":{"type":"invalid_request_error","message":"No."}}"#;
    let took = quickest(&mut play, &anthropic_request(MODEL, &history(8)), whole).await;
    assert!(took < AT_ONCE, "{took:?}");
}

/// Nor is the start of an accepted response to a large request held back.
#[tokio::test]
async fn observe_delays_no_answer() {
    let mut play = play(Mode::Observe, 0.0).await;
    play.config.upstreams[0].window = Some(3000);
    play.restart().await;
    let mut quickest = Duration::MAX;
    for _ in 0..TRIES {
        let mut request = anthropic_request(MODEL, &history(8));
        request["stream"] = json!(true);
        let mut client = play.send_request(&request).await;
        let mut call = play.provider.call().await;
        let began = Instant::now();
        call.begin_events().await;
        call.chunk(": wait\n\n").await;
        client.head().await;
        assert_eq!(client.chunk().await, b": wait\n\n");
        quickest = quickest.min(began.elapsed());
        call.end().await;
        drop(client);
        play.server.next_exchange().await;
    }
    assert!(quickest < AT_ONCE, "{quickest:?}");
}

/// The window that a refusal names is learned while the refusal is forwarded.
#[tokio::test]
async fn window_is_learned_from_refusal_forwarded_in_observe_mode() {
    let mut play = play(Mode::Observe, 0.0).await;
    let request = anthropic_request(MODEL, &history(8));
    let mut client = play.send_request(&request).await;
    let mut call = play.provider.call().await;
    call.answer("400 Bad Request", TOO_LONG).await;
    assert_eq!(client.response().await.text(), TOO_LONG);
    drop(call);
    let exchange = play.server.next_exchange().await;
    let overflow = exchange.done.overflow.unwrap();
    assert_eq!(overflow.sign, OverflowSign::Refused);
    assert!(!overflow.saved);
    assert_eq!(overflow.reported.window, Some(2000));
    assert_eq!(exchange.window, Some(2000));
    let reply = anthropic_reply("m1", MODEL, json!([{"type": "text", "text": "Go on."}]));
    assert_eq!(play.exchange(&request, &reply).await.exchange.window, Some(2000));
}
