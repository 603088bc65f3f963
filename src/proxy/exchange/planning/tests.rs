use http::Request;
use hyper_util::client::proxy::matcher::Matcher;
use tokio::sync::watch;

use super::*;
use crate::dialect::Dialect;
use crate::proxy::exchange::client_request::ClientRequest;
use crate::proxy::offload::AllPermits;
use crate::proxy::state::ServingPhase;
use crate::proxy::tests::{config, upstream};
use crate::store::ledgers::Ledgers;
use crate::store::memory::MemoryStore;
use crate::telemetry::Telemetry;

/// A body that is planned off the async threads.
fn large_body() -> Bytes {
    let text = "all is well ".repeat(30_000);
    let message = serde_json::json!({"role": "user", "content": text});
    let request = serde_json::json!({"model": "claude-sonnet-4-5", "messages": [message]});
    request.to_string().into()
}

/// The request may be changed, or not any more, as on a WebSocket.
#[tokio::test]
async fn late_plans_are_no_panics() {
    let telemetry = Telemetry::silent().unwrap();
    let ledgers = Arc::new(Ledgers::new(Arc::new(MemoryStore::default())));
    let (config, matcher) = (Arc::new(config(20)), Matcher::builder().build());
    let proxy = Proxy::through(config, ledgers, telemetry.clone(), matcher).await.unwrap();
    let upstream = Arc::new(upstream("up", "http://127.0.0.1:1", &[Dialect::Anthropic]));
    let (_phase, watching) = watch::channel(ServingPhase::Serving);
    for can_change in [true, false] {
        let mut reported = telemetry.subscribe();
        let request = Request::post("/v1/messages").header("x-api-key", "k").body(()).unwrap();
        let recorder = ExchangeRecorder::open(&proxy, &request, &Arc::default(), watching.clone());
        let (head, ()) = request.into_parts();
        let head = Arc::new(head);
        let client = Arc::new(ClientRequest::new(&head));
        let upstream = upstream.clone();
        let mut exchange = LiveExchange { recorder, client, upstream, phase: Received };
        let target = exchange.client.target();
        let parsed = ParsedBody::parse(&proxy, Dialect::Anthropic, target, None, large_body());
        let parsed = parsed.map_err(|why| panic!("{why:?}")).unwrap();
        let permits = AllPermits::take().await;
        let head = can_change.then_some(&head);
        assert!(exchange.place_and_plan(parsed, head).await.is_ok());
        drop((permits, exchange));
        let event = reported.recv().await.unwrap();
        assert_eq!(event.fail_open, [FailOpen::AnalysisBudget], "{can_change}");
        assert_eq!(event.estimate, None);
    }
}

/// The large bodies of one key are not all read before that of another.
#[tokio::test]
async fn large_bodies_of_one_key_are_not_all_read_before_anothers() {
    let telemetry = Telemetry::silent().unwrap();
    let ledgers = Arc::new(Ledgers::new(Arc::new(MemoryStore::default())));
    let (config, matcher) = (Arc::new(config(20)), Matcher::builder().build());
    let proxy = Proxy::through(config, ledgers, telemetry, matcher).await.unwrap();
    let mut permits = AllPermits::take().await;
    let done = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut reading = tokio::task::JoinSet::new();
    for key in ["a", "a", "a", "a", "a", "a", "a", "b"] {
        let request = Request::post("/v1/messages").header("x-api-key", key).body(()).unwrap();
        let (head, ()) = request.into_parts();
        let client_request = ClientRequest::new(&head);
        let done = done.clone();
        let proxy = proxy.clone();
        reading.spawn(async move {
            let tenant = client_request.tenant(&proxy).ok();
            let target = client_request.target();
            let (dialect, body) = (Dialect::Anthropic, large_body());
            let read =
                ParsedBody::read(&proxy, dialect, target, tenant, &head.headers, &body).await;
            // On a slow machine the last of the others wait too long, and pass unread.
            assert!(read.is_ok() || key == "a");
            done.lock().unwrap().push(key);
        });
        tokio::task::yield_now().await;
    }
    // One after the other: all others stay taken.
    permits.release_one();
    reading.join_all().await;
    let order = done.lock().unwrap().clone();
    // It is second; tasks may be told of their results in another order.
    assert!(order[..4].contains(&"b"), "{order:?}");
}
