//! After a restart, the first request of a session waits longer for its stored cuts than later requests wait for the
//! store.

use std::sync::Arc;
use std::time::{Duration, Instant};

use plimsoll::config::Mode;
use plimsoll::telemetry::FailOpen;
use serde_json::{Value, json};

use crate::play::{Play, Scene, anthropic_reply, anthropic_request, message};
use crate::pruned::{eager, history};
use crate::support::held::Held;

const MODEL: &str = "claude-sonnet-4-5";
/// By how much the store is late: more than `store_ms`, less than `first_load_ms`.
const LATE: Duration = Duration::from_secs(1);
const LOAD_MS: u64 = 150;
/// More than a busy machine takes, and less than a first load that does not end.
const AT_ONCE: Duration = Duration::from_secs(8);

fn reply() -> Value {
    anthropic_reply("m1", MODEL, json!([{"type": "text", "text": "Go on."}]))
}

/// A thread with a cut, then another process over the same store, whose reads are held. Also returns the exchange with
/// the cut.
async fn restarted(session: &'static str, mode: Mode) -> (Play, Arc<Held>, Scene) {
    let store = Held::new();
    let mut play = Play::over(store.clone(), "/v1/messages", Mode::Active, eager()).await;
    play.session = session;
    let before = play.exchange(&anthropic_request(MODEL, &history(6)), &reply()).await;
    assert!(before.exchange.done.made.cut > 0);
    play.config.mode = mode;
    play.config.limits.store_ms = LOAD_MS;
    play.config.limits.first_load_ms = 60_000;
    play.restart().await;
    store.hold_reads(true);
    (play, store, before)
}

/// The client's next request.
fn next() -> Value {
    let mut messages = history(6);
    messages.push(message("assistant", json!([{"type": "text", "text": "Go on."}])));
    messages.push(message("user", json!("And now?")));
    anthropic_request(MODEL, &messages)
}

/// What was sent of the history, without its newest result, which may be cut by now.
fn sent(scene: &Scene) -> &[Value] {
    &scene.sent["messages"].as_array().unwrap()[..history(6).len() - 1]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_request_after_restart_waits_for_its_stored_cuts() {
    const NAMED: &str = "11111111-2222-3333-4444-555555555555";
    // Cuts that were sent before are repeated even in modes that decide nothing new.
    for (session, mode) in
        [(NAMED, Mode::Active), ("", Mode::Active), (NAMED, Mode::Observe), (NAMED, Mode::Shadow)]
    {
        let (mut play, store, before) = restarted(session, mode).await;
        play.config.limits.first_load_ms = 20_000;
        play.restart().await;
        let let_go = tokio::spawn(async move {
            tokio::time::sleep(LATE).await;
            store.hold_reads(false);
        });
        let first = play.exchange(&next(), &reply()).await;
        let_go.await.unwrap();
        assert_eq!(sent(&first), sent(&before), "{session:?}: the same bytes are in the cache");
        assert_eq!(first.exchange.session, before.exchange.session);
        assert!(!first.exchange.fail_open.contains(&FailOpen::SessionLate));
        let waited = Duration::from_micros(first.exchange.timing.session_load_us.unwrap());
        assert!(waited > Duration::from_millis(LOAD_MS), "{waited:?}");
        let page = play.server.telemetry.render();
        assert!(page.contains("plimsoll_session_load_seconds_count 1\n"), "{page}");
        let second = play.exchange(&next(), &reply()).await;
        assert_eq!(second.exchange.timing.session_load_us, None, "it is in memory");
    }
}

/// A store that never answers delays each session once by `first_load_ms`. Its later requests wait as long as for
/// anything else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_store_delays_each_session_once_by_first_load() {
    for session in ["11111111-2222-3333-4444-555555555555", ""] {
        let (mut play, _store, _) = restarted(session, Mode::Active).await;
        play.config.limits.first_load_ms = 1_000;
        play.restart().await;
        let first = play.exchange(&next(), &reply()).await;
        assert_eq!(first.bytes, next().to_string(), "nothing is known of it");
        assert!(first.exchange.timing.session_load_us.unwrap() >= 1_000_000);
        let mut quickest = u64::MAX;
        for _ in 0..5 {
            let exchange = play.exchange(&next(), &reply()).await.exchange;
            quickest = quickest.min(exchange.timing.session_load_us.unwrap_or(0));
        }
        assert!(quickest < 1_000_000, "{session:?}: {quickest} µs");
    }
}

/// A request without an earlier reply waits only for lessons.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_request_with_earlier_reply_waits_for_first_load() {
    let begins = anthropic_request(MODEL, &[message("user", json!("Read them all."))]);
    for mode in [Mode::Observe, Mode::Shadow, Mode::Active] {
        let (mut play, _store, _) = restarted("", mode).await;
        let began = Instant::now();
        let scene = play.exchange(&begins, &reply()).await;
        assert_eq!(scene.bytes, begins.to_string());
        assert!(began.elapsed() < AT_ONCE, "{mode:?}: {:?}", began.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_ignores_first_load() {
    let (mut play, _store, _) = restarted("", Mode::Active).await;
    let client = play.send_request(&next()).await;
    tokio::time::sleep(Duration::from_millis(LOAD_MS)).await;
    let began = Instant::now();
    play.server.stop();
    let call = play.provider.call().await;
    assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
    assert_eq!(call.message.text(), next().to_string());
    drop((client, call));
}
