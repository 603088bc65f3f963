//! Replies in the background: polled, resumed, and counted once.
//!
//! The inputs are in `tests/data/cases`.

use std::sync::Arc;

use hyper_util::client::proxy::matcher::Matcher;
use plimsoll::context::{Outcome, Turn};
use plimsoll::dialect::{Dialect, StopReason};
use plimsoll::store::ledgers::Ledgers;
use plimsoll::store::memory::MemoryStore;
use plimsoll::store::{ScopePage, Store};

use crate::support::http1::{Message, Provider, Wire};
use crate::support::server::{TestServer, config};

const REQUEST: &str = include_str!("../data/cases/background-responses/request.json");
const REQUEST_STREAM: &str = include_str!("../data/cases/background-responses/request-stream.json");
const QUEUED: &str = include_str!("../data/cases/background-responses/queued.json");
const COMPLETED: &str = include_str!("../data/cases/background-responses/completed.json");
const BEGUN: &str = include_str!("../data/cases/background-responses/stream-1.sse");
const RESUMED: &str = include_str!("../data/cases/background-responses/stream-2.sse");
const POST: &str = "/v1/responses";
const POLL: &str = "/v1/responses/resp_bg";
const RESUME: &str = "/v1/responses/resp_bg?stream=true&starting_after=4";

/// Each request comes on a connection of its own.
const HEAD: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: ";
const EVENTS: &str = "text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

/// A proxy in front of a provider, over a store that survives it.
struct Bench {
    provider: Provider,
    store: Arc<dyn Store>,
    server: TestServer,
}

impl Bench {
    async fn new() -> Self {
        let (provider, store) = (Provider::start().await, Arc::new(MemoryStore::default()));
        let server = serve(&provider, store.clone()).await;
        Self { provider, store, server }
    }

    /// The proxy starts again.
    async fn restart(&mut self) {
        self.server.stop();
        self.server = serve(&self.provider, self.store.clone()).await;
    }

    /// Sends a request with this credential; returns its connection.
    async fn send(&self, key: &str, path: &str, body: Option<&str>) -> Wire {
        let mut client = Wire::connect(self.server.address).await;
        let (method, body) = body.map_or(("GET", ""), |body| ("POST", body));
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n");
        let head = format!("{head}authorization: Bearer {key}\r\ncontent-length: {length}\r\n");
        client.send(format!("{head}\r\n{body}")).await;
        client
    }

    /// An exchange that is answered with a JSON body.
    async fn exchange(&self, key: &str, path: &str, body: Option<&str>, reply: &str) -> Message {
        let mut client = self.send(key, path, body).await;
        let mut call = self.provider.call().await;
        let length = reply.len();
        let head = format!("{HEAD}application/json\r\ncontent-length: {length}\r\n\r\n");
        call.send(head + reply).await;
        let response = client.response().await;
        assert_eq!(response.text(), reply, "the bytes pass unchanged");
        response
    }

    /// The reply is polled; the last of the replies is the completed one.
    async fn poll(&self, replies: &[&str]) {
        for reply in replies {
            self.exchange("key-one", POLL, None, reply).await;
        }
    }

    /// A stream of these events, which is broken off or ends.
    async fn stream(&self, path: &str, body: Option<&str>, events: &str, ends: bool) {
        let mut client = self.send("key-one", path, body).await;
        let mut call = self.provider.call().await;
        call.send(format!("{HEAD}{EVENTS}")).await;
        call.chunk(events).await;
        client.head().await;
        assert_eq!(client.chunk().await, events.as_bytes());
        if ends {
            call.end().await;
            assert_eq!(client.chunk().await, b"");
        } else {
            drop(call);
            client.rest().await.unwrap_or_default();
        }
    }

    /// All turns in the store, as after a restart.
    async fn turns(&self) -> Vec<Turn> {
        let fresh = Ledgers::new(self.store.clone());
        let mut turns = Vec::new();
        for line in fresh.sessions(ScopePage::first(10)).await.unwrap() {
            let look = |ledger: &plimsoll::context::ledger::Ledger| -> Vec<Turn> {
                ledger.turns().map(|turn| Turn::clone(turn)).collect()
            };
            turns.extend(fresh.look(&line.scope, look).await.unwrap());
            assert_eq!(self.server.ledgers.look(&line.scope, look).await.unwrap(), turns);
        }
        turns
    }

    /// The only turn has its whole reply, and the metrics say the same.
    async fn is_booked_once(&mut self, exchanges: usize) -> Turn {
        for _ in 0..exchanges {
            self.server.next_exchange().await;
        }
        let turns = self.turns().await;
        let [turn] = turns.as_slice() else { panic!("{turns:?}") };
        let usage = &turn.usage;
        assert_eq!(usage.input, Some(420));
        assert_eq!(usage.output, Some(60));
        assert_eq!(usage.reasoning, Some(30));
        assert_eq!(turn.outcome, Outcome::Complete);
        assert_eq!(turn.stop, Some(StopReason::End));
        // Interactions are metered only: no parts of them are kept.
        assert_eq!(turn.reply.len(), usize::from(turn.dialect != Dialect::Gemini));
        let lines = Ledgers::new(self.store.clone()).sessions(ScopePage::first(10)).await.unwrap();
        assert_eq!(lines[0].turns, 1);
        assert_eq!(lines[0].input, 420);
        assert_eq!(lines[0].output, 60);
        assert_eq!(self.tokens("input"), 420);
        assert_eq!(self.tokens("output"), 60);
        turn.clone()
    }

    fn tokens(&self, kind: &str) -> u64 {
        let metrics = self.server.telemetry.render();
        let name =
            format!("plimsoll_tokens_total{{kind=\"{kind}\",model=\"gpt-5\",upstream=\"up\"}} ");
        metrics.lines().find_map(|line| line.strip_prefix(&name)).map_or(0, |n| n.parse().unwrap())
    }
}

async fn serve(provider: &Provider, store: Arc<dyn Store>) -> TestServer {
    TestServer::over(store, config(&provider.base()), Matcher::builder().build()).await
}

#[tokio::test]
async fn polled_reply_completes_once() {
    let mut bench = Bench::new().await;
    bench.exchange("key-one", POST, Some(REQUEST), QUEUED).await;
    bench.poll(&[QUEUED, COMPLETED, COMPLETED]).await;
    let turn = bench.is_booked_once(4).await;

    // The thread goes on.
    let next =
        r#"{"model":"gpt-5","store":true,"previous_response_id":"resp_bg","input":"Go on."}"#;
    let reply = COMPLETED.replace("resp_bg", "resp_2").replace("msg_1", "msg_2");
    bench.exchange("key-one", POST, Some(next), &reply).await;
    bench.server.next_exchange().await;
    let turns = bench.turns().await;
    assert_eq!(turns.len(), 2);
    assert_eq!(turns[1].position.parent, Some(turn.exchange));
    assert_eq!(turns[1].position.thread, turn.position.thread);
}

#[tokio::test]
async fn reply_is_completed_after_restart() {
    let mut bench = Bench::new().await;
    bench.exchange("key-one", POST, Some(REQUEST), QUEUED).await;
    bench.server.next_exchange().await;
    let turns = bench.turns().await;
    assert_eq!(turns[0].outcome, Outcome::Interrupted, "not known yet");
    assert_eq!(turns[0].stop, None, "not known yet");
    bench.restart().await;
    bench.poll(&[COMPLETED]).await;
    bench.is_booked_once(1).await;
    bench.restart().await;
    bench.poll(&[COMPLETED]).await;
    bench.server.next_exchange().await;
    assert_eq!(bench.tokens("input"), 0, "it was booked before");
}

#[tokio::test]
async fn resumed_stream_completes_turn() {
    for restarts in [false, true] {
        let mut bench = Bench::new().await;
        bench.stream(POST, Some(REQUEST_STREAM), BEGUN, false).await;
        let broken = bench.server.next_exchange().await;
        assert_eq!(broken.outcome, Outcome::UpstreamFailed);
        if restarts {
            bench.restart().await;
        }
        bench.stream(RESUME, None, RESUMED, true).await;
        bench.poll(&[COMPLETED]).await;
        bench.is_booked_once(2).await;
    }
}

/// A provider says that it has ended before it says what it used; the requests may come in any order.
#[tokio::test]
async fn usage_may_come_after_end() {
    let uncounted = uncounted(COMPLETED);
    let mut bench = Bench::new().await;
    bench.exchange("key-one", POST, Some(REQUEST), QUEUED).await;
    bench.poll(&[&uncounted, QUEUED, &uncounted, COMPLETED, &uncounted, COMPLETED]).await;
    bench.is_booked_once(7).await;

    for ends_first in [false, true] {
        let mut bench = Bench::new().await;
        bench.stream(POST, Some(REQUEST_STREAM), BEGUN, false).await;
        if ends_first {
            bench.poll(&[&uncounted]).await;
            bench.restart().await;
        }
        bench.stream(RESUME, None, RESUMED, true).await;
        bench.poll(&[&uncounted]).await;
        bench.is_booked_once(if ends_first { 2 } else { 3 }).await;
    }
}

/// The reply without its usage is read while the first stream, which brings it, is still open.
#[tokio::test]
async fn open_stream_brings_usage() {
    let mut bench = Bench::new().await;
    let mut client = bench.send("key-one", POST, Some(REQUEST_STREAM)).await;
    let mut call = bench.provider.call().await;
    call.send(format!("{HEAD}{EVENTS}")).await;
    call.chunk(BEGUN).await;
    client.head().await;
    client.chunk().await;
    bench.poll(&[&uncounted(COMPLETED)]).await;
    call.chunk(RESUMED).await;
    call.end().await;
    while !client.chunk().await.is_empty() {}
    bench.is_booked_once(2).await;
}

/// A reply that never says what it used has ended all the same.
#[tokio::test]
async fn uncounted_reply_completes() {
    let bench = Bench::new().await;
    bench.exchange("key-one", POST, Some(REQUEST), QUEUED).await;
    bench.poll(&[&uncounted(COMPLETED)]).await;
    let turns = bench.turns().await;
    assert_eq!(turns[0].outcome, Outcome::Complete);
    assert_eq!(turns[0].usage.input, None);
}

/// The same reply without its usage.
fn uncounted(reply: &str) -> String {
    let mut reply: serde_json::Value = serde_json::from_str(reply).unwrap();
    reply["usage"] = serde_json::Value::Null;
    reply.to_string()
}

/// The client reads the completed reply while the first stream is still open; that one ends in whichever way.
#[tokio::test]
async fn reply_that_is_read_while_its_stream_is_open_is_booked_once() {
    for ends in [false, true] {
        let mut bench = Bench::new().await;
        let mut client = bench.send("key-one", POST, Some(REQUEST_STREAM)).await;
        let mut call = bench.provider.call().await;
        call.send(format!("{HEAD}{EVENTS}")).await;
        call.chunk(BEGUN).await;
        client.head().await;
        client.chunk().await;
        bench.poll(&[COMPLETED]).await;
        if ends {
            call.chunk(RESUMED).await;
            call.end().await;
        } else {
            drop(call);
        }
        if ends {
            while !client.chunk().await.is_empty() {}
        } else {
            client.rest().await.unwrap_or_default();
        }
        bench.is_booked_once(2).await;
    }
}

/// A reply that was not made in the background is stored by the provider, too, and can be fetched after its stream broke;
/// so can a cancelled one.
#[tokio::test]
async fn stored_reply_completes_turn_of_its_broken_stream() {
    let request = REQUEST_STREAM.replace("\"background\": true,", "");
    let mut bench = Bench::new().await;
    bench.stream(POST, Some(&request), BEGUN, false).await;
    bench.poll(&[COMPLETED]).await;
    bench.is_booked_once(2).await;

    let mut bench = Bench::new().await;
    bench.exchange("key-one", POST, Some(REQUEST), QUEUED).await;
    let cancelled = COMPLETED.replacen("completed", "cancelled", 1);
    bench.exchange("key-one", "/v1/responses/resp_bg/cancel", Some(""), &cancelled).await;
    bench.poll(&[&cancelled]).await;
    let turns = bench.turns().await;
    assert_eq!(turns[0].usage.input, Some(420));
    assert_eq!(turns[0].stop, Some(StopReason::Other));
    bench.server.next_exchange().await;
}

#[tokio::test]
async fn failed_reply_ends_its_turn() {
    let mut bench = Bench::new().await;
    bench.exchange("key-one", POST, Some(REQUEST), QUEUED).await;
    let failed = QUEUED
        .replace("\"queued\"", "\"failed\"")
        .replace("\"error\": null", r#""error": {"code": "server_error", "message": "m"}"#);
    bench.poll(&[&failed, &failed]).await;
    let turns = bench.turns().await;
    assert_eq!(turns.len(), 1);
    assert_eq!(turns[0].outcome, Outcome::UpstreamFailed);
    assert_eq!(turns[0].stop, Some(StopReason::Failed));
    for kind in [None, Some(()), None] {
        let exchange = bench.server.next_exchange().await;
        assert_eq!(exchange.error_kind.is_some(), kind.is_some(), "it is told once");
    }
}

/// An error in place of the reply says nothing of it.
#[tokio::test]
async fn error_of_poll_is_not_reply() {
    let mut bench = Bench::new().await;
    bench.exchange("key-one", POST, Some(REQUEST), QUEUED).await;
    bench.poll(&[r#"{"error": {"message": "try again"}}"#, "{}", "", COMPLETED]).await;
    bench.is_booked_once(5).await;
}

/// Chat Completions can be stored, too.
#[tokio::test]
async fn stored_completion_completes_turn_of_its_broken_stream() {
    let request = r#"{"model":"gpt-5","stream":true,"store":true,"messages":[{"role":"user","content":"Hi"}]}"#;
    let begun = "data: {\"id\":\"chatcmpl-1\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"I will\"},\"finish_reason\":null}]}\n\n";
    let whole = r#"{"id":"chatcmpl-1","object":"chat.completion","model":"gpt-5","choices":[{"index":0,"message":{"role":"assistant","content":"I will read."},"finish_reason":"stop"}],"usage":{"prompt_tokens":420,"completion_tokens":60,"total_tokens":480,"completion_tokens_details":{"reasoning_tokens":30}}}"#;
    let mut bench = Bench::new().await;
    bench.stream("/v1/chat/completions", Some(request), begun, false).await;
    for reply in [&uncounted(whole), whole, whole] {
        bench.exchange("key-one", "/v1/chat/completions/chatcmpl-1", None, reply).await;
    }
    bench.is_booked_once(4).await;
}

/// Gemini's Interactions are polled, and resumed, in the same way.
#[tokio::test]
async fn polled_interaction_completes() {
    const PATH: &str = "/v1beta/interactions";
    let request = r#"{"model":"gpt-5","background":true,"input":"Read it."}"#;
    let working = r#"{"id":"int_1","object":"interaction","status":"in_progress","model":"gpt-5"}"#;
    let whole = r#"{"id":"int_1","object":"interaction","status":"completed","model":"gpt-5","steps":[{"type":"model_output","content":[{"type":"text","text":"I read it."}]}],"usage":{"total_input_tokens":420,"total_output_tokens":30,"total_thought_tokens":30,"total_tokens":480}}"#;
    let mut bench = Bench::new().await;
    bench.exchange("key-one", PATH, Some(request), working).await;
    for reply in [working, &uncounted(whole), whole, whole] {
        bench.exchange("key-one", &format!("{PATH}/int_1"), None, reply).await;
    }
    bench.is_booked_once(5).await;

    let streamed = request.replacen('{', "{\"stream\":true,", 1);
    let begun =
        format!("data: {{\"event_type\":\"interaction.created\",\"interaction\":{working}}}\n\n");
    let ended = format!(
        "data: {{\"event_type\":\"interaction.completed\",\"interaction\":{whole}}}\n\ndata: [DONE]\n\n"
    );
    let mut bench = Bench::new().await;
    bench.stream(PATH, Some(&streamed), &begun, false).await;
    let resume = format!("{PATH}/int_1?stream=true&last_event_id=1");
    bench.stream(&resume, None, &ended, true).await;
    bench.is_booked_once(2).await;
}

/// Nobody else learns of a reply by polling its id, whatever the provider answers, and nothing is booked.
#[tokio::test]
async fn other_credential_completes_nothing() {
    let mut bench = Bench::new().await;
    bench.exchange("key-one", POST, Some(REQUEST), QUEUED).await;
    bench.exchange("key-two", POLL, None, COMPLETED).await;
    bench.server.next_exchange().await;
    let polled = bench.server.next_exchange().await;
    assert_eq!(polled.usage.input, None);
    assert_eq!(polled.model, None);
    assert_eq!(polled.thread, None);
    assert_eq!(bench.turns().await[0].usage.input, None);
    assert_eq!(bench.tokens("input"), 0);
    // Nor does the id at another upstream, or an id that nobody knows.
    bench.exchange("key-one", "/v1/responses/resp_other", None, COMPLETED).await;
    assert_eq!(bench.server.next_exchange().await.usage.input, None);
    bench.poll(&[COMPLETED]).await;
    bench.is_booked_once(1).await;
}

/// A client that names its session does so in the first request; a poll has only the id.
#[tokio::test]
async fn named_session_is_found_by_id() {
    let mut bench = Bench::new().await;
    let named = REQUEST.replacen('{', "{\"prompt_cache_key\": \"session-1\",", 1);
    bench.exchange("key-one", POST, Some(&named), QUEUED).await;
    bench.restart().await;
    bench.poll(&[COMPLETED]).await;
    bench.is_booked_once(1).await;
}

/// What waits or failed need not have an output, and what is not counted yet may say 0.
#[tokio::test]
async fn bare_replies_are_read() {
    let with = |members: serde_json::Value| {
        let mut reply: serde_json::Value = serde_json::from_str(QUEUED).unwrap();
        let reply = reply.as_object_mut().unwrap();
        reply.remove("output");
        reply.extend(members.as_object().unwrap().clone());
        serde_json::to_string(reply).unwrap()
    };
    let zeros = serde_json::json!({"input_tokens": 0, "output_tokens": 0, "total_tokens": 0});
    let waiting = with(serde_json::json!({}));
    let uncounted = with(serde_json::json!({"status": "completed", "output": [], "usage": zeros}));
    let mut bench = Bench::new().await;
    bench.exchange("key-one", POST, Some(REQUEST), &waiting).await;
    bench.poll(&[&waiting, &uncounted, COMPLETED, &uncounted]).await;
    bench.is_booked_once(5).await;

    let error = serde_json::json!({"code": "server_error", "message": "m"});
    let failed = with(serde_json::json!({"status": "failed", "error": error}));
    let bench = Bench::new().await;
    bench.exchange("key-one", POST, Some(REQUEST), &waiting).await;
    bench.poll(&[&failed]).await;
    assert_eq!(bench.turns().await[0].stop, Some(StopReason::Failed));
}

/// xAI's deferred completions have another id than the one by which they are read.
#[tokio::test]
async fn deferred_completion_completes() {
    let request =
        r#"{"model":"gpt-5","deferred":true,"messages":[{"role":"user","content":"Hi"}]}"#;
    let whole = r#"{"id":"c_1","object":"chat.completion","model":"gpt-5","choices":[{"index":0,"message":{"role":"assistant","content":"I will read."},"finish_reason":"stop"}],"usage":{"prompt_tokens":420,"completion_tokens":60,"total_tokens":480,"completion_tokens_details":{"reasoning_tokens":30}}}"#;
    let mut bench = Bench::new().await;
    let id = r#"{"request_id":"f15c114e-f47d"}"#;
    bench.exchange("key-one", "/v1/chat/completions", Some(request), id).await;
    for reply in ["", whole] {
        let path = "/v1/chat/deferred-completion/f15c114e-f47d";
        bench.exchange("key-one", path, None, reply).await;
    }
    bench.is_booked_once(3).await;
}
