//! Each thing that a request may wait for is blocked in turn under many streams: no request waits longer than
//! `docs/waits.md` says, and no request waits because of others. `PLIMSOLL_STALL` sets the number of streams.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../support/mod.rs"]
mod support;

mod learned;
mod long;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use hyper_util::client::proxy::matcher::Matcher;
use plimsoll::config::{Config, Mode};
use plimsoll::context::Outcome;
use plimsoll::proxy::DrainOutcome;
use plimsoll::telemetry::FailOpen;
use serde_json::json;
use support::held::Held;
use support::http1::{Call, Provider, Wire};
use support::server::{TestServer, config};
use support::within;
use tokio::io::AsyncWriteExt as _;

const MODEL: &str = "claude-sonnet-4-5";
const EVENTS: [&str; 5] = [
    "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"model\":\"claude-sonnet-4-5\",\"usage\":{\"input_tokens\":7,\"output_tokens\":1}}}\n\n",
    "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n",
    "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Aye.\"}}\n\n",
    "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":3}}\n\n",
    "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
];
/// What a busy machine may need for all streams of a test, in addition to the waits.
const SLACK: Duration = Duration::from_secs(8);

/// If a socket accepts nothing for this long, it is full.
const FULL: Duration = Duration::from_millis(200);

fn streams() -> usize {
    std::env::var("PLIMSOLL_STALL").map_or(20, |n| n.parse().unwrap())
}

/// The configurable waits in the table, ms.
struct Table {
    store: u64,
    first_load: u64,
    commit: u64,
    drain: u64,
    broken: u64,
}

impl Table {
    fn read() -> Self {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/waits.md");
        let text = std::fs::read_to_string(path).unwrap();
        let wait = |of: &dyn Fn(&[&str]) -> bool| {
            let mut rows = text.lines().map(|line| line.split('|').map(str::trim).collect());
            let row: Vec<&str> = rows.find(|row: &Vec<&str>| row.len() > 4 && of(row)).unwrap();
            let (number, unit) = row[2].split_once(' ').unwrap();
            let number: u64 = number.parse().unwrap();
            if unit.starts_with("ms") { number } else { number * 1000 }
        };
        let keyed = |key: &str| wait(&|row| row[3] == format!("`limits.{key}`"));
        Self {
            store: keyed("store_ms"),
            first_load: wait(&|row| row[1].contains("the first load of its session")),
            commit: wait(&|row| row[1].starts_with("the end of a reply")),
            drain: keyed("drain_s"),
            broken: wait(&|row| row[1].starts_with("aborted streams")),
        }
    }

    /// The table's sum for a small request without decisions.
    fn before_it_is_sent(&self) -> Duration {
        Duration::from_millis(2 * self.store)
    }

    /// The same for the first request of a session that can be rewritten.
    fn before_the_first_is_sent(&self) -> Duration {
        Duration::from_millis(self.first_load + self.store)
    }
}

/// A proxy with the waits of the table.
async fn server(provider: &Provider, store: Arc<Held>, table: &Table) -> TestServer {
    server_in(Mode::Observe, provider, store, table).await
}

async fn server_in(mode: Mode, provider: &Provider, store: Arc<Held>, table: &Table) -> TestServer {
    let mut config: Config = config(&provider.base());
    config.mode = mode;
    config.limits.first_load_ms = table.first_load;
    config.limits.connections = Some(4 * streams());
    config.limits.store_ms = table.store;
    config.limits.commit_ms = table.commit;
    config.limits.drain_s = 1;
    TestServer::over(store, config, Matcher::builder().build()).await
}

/// Sends a request on a connection of its own: a conversation with some history and without a session name.
async fn send_request(server: &TestServer, name: usize) -> Wire {
    send_conversation(server, name, &["Go on."]).await
}

/// The same conversation with these messages of the user; all but the last have replies.
async fn send_conversation(server: &TestServer, name: usize, texts: &[&str]) -> Wire {
    let mut client = Wire::connect(server.address).await;
    let message = |role: &str, text: String| json!({"role": role, "content": text});
    let mut messages = vec![
        message("user", format!("Question {name}.")),
        message(
            "assistant",
            format!("Answer {name}, which is long enough to be told from others."),
        ),
    ];
    for (index, text) in texts.iter().enumerate() {
        if index > 0 {
            messages.push(message("assistant", "Aye.".to_owned()));
        }
        messages.push(message("user", (*text).to_owned()));
    }
    let body = json!({"model": MODEL, "max_tokens": 9, "stream": true, "messages": messages});
    let body = body.to_string();
    let length = body.len();
    client
        .send(format!(
            "POST /v1/messages HTTP/1.1\r\nhost: localhost\r\nx-api-key: k\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        ))
        .await;
    client
}

/// Sends all requests at once; returns the clients, the calls at the provider, and how long the last one took.
async fn all_ask(server: &TestServer, provider: &Provider) -> (Vec<Wire>, Vec<Call>, Duration) {
    let began = Instant::now();
    let clients = join_all((0..streams()).map(|name| send_request(server, name))).await;
    let mut calls = Vec::new();
    for _ in 0..streams() {
        calls.push(provider.call().await);
    }
    (clients, calls, began.elapsed())
}

/// The provider replies to all; every client gets its whole response.
async fn all_are_answered(clients: &mut [Wire], calls: &mut [Call]) {
    for call in calls {
        send_reply(call).await;
    }
    for client in clients {
        assert_eq!(client.response().await.text(), EVENTS.concat());
    }
}

async fn send_reply(call: &mut Call) {
    call.begin_events().await;
    for event in EVENTS {
        call.chunk(event).await;
    }
    call.end().await;
}

/// Another client gets its response, whatever is blocked.
async fn a_stranger_is_answered(server: &TestServer, provider: &Provider) {
    let mut client = send_request(server, usize::MAX).await;
    let mut call = provider.call().await;
    send_reply(&mut call).await;
    assert_eq!(client.response().await.text(), EVENTS.concat());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocked_store_reads_delay_each_request_within_limit() {
    let (provider, store, table) = (Provider::start().await, Held::new(), Table::read());
    let mut server = server(&provider, store.clone(), &table).await;
    store.hold_reads(true);
    let (mut clients, mut calls, took) = all_ask(&server, &provider).await;
    assert!(took < table.before_it_is_sent() + SLACK, "{took:?}");
    all_are_answered(&mut clients, &mut calls).await;
    for _ in 0..streams() {
        let recorded = server.next_exchange().await;
        assert!(recorded.fail_open.contains(&FailOpen::Store), "{:?}", recorded.fail_open);
        assert!(recorded.fail_open.contains(&FailOpen::SessionLate), "{:?}", recorded.fail_open);
        assert_eq!(recorded.outcome, Outcome::Complete);
        assert_eq!(recorded.session, None);
        assert!(recorded.estimate.is_some(), "it is measured all the same");
        let waited = Duration::from_micros(recorded.timing.request_side_us);
        assert!(waited < table.before_it_is_sent() + SLACK, "{waited:?}");
    }
    store.hold_reads(false);
    let kept = server.ledgers.sessions(plimsoll::store::ScopePage::first(9)).await.unwrap();
    assert_eq!(kept, [], "no new session was begun where one may exist");
}

/// The first load of a session is waited for longer, only once, and by all requests at the same time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocked_store_reads_delay_first_load_within_its_own_limit() {
    let (provider, store, table) = (Provider::start().await, Held::new(), Table::read());
    let mut server = server_in(Mode::Active, &provider, store.clone(), &table).await;
    store.hold_reads(true);
    let most = table.before_the_first_is_sent();
    for most in [most, table.before_it_is_sent()] {
        let (mut clients, mut calls, took) = all_ask(&server, &provider).await;
        assert!(took < most + SLACK, "{took:?}");
        all_are_answered(&mut clients, &mut calls).await;
        for _ in 0..streams() {
            let recorded = server.next_exchange().await;
            assert!(
                recorded.fail_open.contains(&FailOpen::SessionLate),
                "{:?}",
                recorded.fail_open
            );
            let waited = Duration::from_micros(recorded.timing.session_load_us.unwrap());
            assert!(waited < most + SLACK, "{waited:?}");
        }
    }
    store.hold_reads(false);
}

/// A late session is not an unknown one: once the store answers again, each conversation is found in its session.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn session_that_loaded_late_is_found_by_later_request() {
    let (provider, table) = (Provider::start().await, Table::read());
    let inner: Arc<dyn plimsoll::store::Store> =
        Arc::new(plimsoll::store::memory::MemoryStore::default());
    let mut before = server(&provider, Held::over(inner.clone()), &table).await;
    let exchange = async |server: &mut TestServer, name: usize, texts: &[&str]| {
        let mut client = send_conversation(server, name, texts).await;
        let mut call = provider.call().await;
        send_reply(&mut call).await;
        client.response().await;
        server.next_exchange().await
    };
    let mut sessions = Vec::new();
    for name in 0..streams() {
        sessions.push(exchange(&mut before, name, &["Go on."]).await.session.clone());
    }
    // A restart, and a store that is slow for a while.
    let store = Held::over(inner);
    let mut after = server(&provider, store.clone(), &table).await;
    store.hold_reads(true);
    for name in 0..streams() {
        assert_eq!(exchange(&mut after, name, &["Go on.", "And?"]).await.session, None);
    }
    store.hold_reads(false);
    for (name, session) in sessions.iter().enumerate() {
        let found = async {
            loop {
                let recorded = exchange(&mut after, name, &["Go on.", "And?", "Then?"]).await;
                if recorded.session.is_some() {
                    return recorded.session.clone();
                }
            }
        };
        assert_eq!(&within("the session", found).await, session);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocked_store_writes_delay_end_of_replies_within_limit() {
    let (provider, store, table) = (Provider::start().await, Held::new(), Table::read());
    let mut server = server(&provider, store.clone(), &table).await;
    store.hold_writes(true);
    let (mut clients, mut calls, _) = all_ask(&server, &provider).await;
    let began = Instant::now();
    all_are_answered(&mut clients, &mut calls).await;
    let took = began.elapsed();
    assert!(took < Duration::from_millis(table.commit) + SLACK, "{took:?}");
    store.hold_writes(false);
    for _ in 0..streams() {
        let recorded = server.next_exchange().await;
        assert!(recorded.fail_open.contains(&FailOpen::CommitLate), "{:?}", recorded.fail_open);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn provider_that_does_not_answer_holds_up_its_own_clients_alone() {
    let (provider, store, table) = (Provider::start().await, Held::new(), Table::read());
    let mut server = server(&provider, store, &table).await;
    let (clients, calls, _) = all_ask(&server, &provider).await;
    a_stranger_is_answered(&server, &provider).await;
    assert_eq!(server.next_exchange().await.outcome, Outcome::Complete);
    drop(clients);
    for _ in 0..streams() {
        assert_eq!(server.next_exchange().await.outcome, Outcome::ClientLeft);
    }
    drop(calls);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reply_that_stands_still_holds_up_its_own_client_alone() {
    let (provider, store, table) = (Provider::start().await, Held::new(), Table::read());
    let mut server = server(&provider, store, &table).await;
    let (mut clients, mut calls, _) = all_ask(&server, &provider).await;
    for call in &mut calls {
        call.begin_events().await;
        call.chunk(EVENTS[0]).await;
    }
    for client in &mut clients {
        client.head().await;
        assert_eq!(client.chunk().await, EVENTS[0].as_bytes(), "what came was forwarded");
    }
    a_stranger_is_answered(&server, &provider).await;
    assert_eq!(server.next_exchange().await.outcome, Outcome::Complete);
    drop(clients);
    for _ in 0..streams() {
        assert_eq!(server.next_exchange().await.outcome, Outcome::ClientLeft);
    }
}

/// A shutdown does not wait longer for it than the table says, either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_that_does_not_read_holds_up_nobody_else() {
    let (provider, store, table) = (Provider::start().await, Held::new(), Table::read());
    let mut server = server(&provider, store, &table).await;
    let (clients, mut calls, _) = all_ask(&server, &provider).await;
    let filler = format!(": {}\n\n", "x".repeat(16 << 10));
    for call in &mut calls {
        call.begin_events().await;
        let framed = format!("{:x}\r\n{filler}\r\n", filler.len());
        // Until nothing more is accepted, because the client does not read.
        while let Ok(sent) =
            tokio::time::timeout(FULL, call.wire.stream.write_all(framed.as_bytes())).await
        {
            sent.unwrap();
        }
    }
    a_stranger_is_answered(&server, &provider).await;
    assert_eq!(server.next_exchange().await.outcome, Outcome::Complete);
    assert!(table.drain >= 1000, "the test stops sooner than that");
    let began = Instant::now();
    server.stop();
    assert!(matches!(server.drained().await, DrainOutcome::Broken(left) if left >= streams()));
    let took = began.elapsed();
    assert!(took < Duration::from_millis(1000 + table.broken) + SLACK, "{took:?}");
    drop(clients);
}

/// The disk hangs: nothing is read and nothing is written. Requests are forwarded, and a shutdown is not delayed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_store_delays_requests_and_shutdown_within_limits() {
    let (provider, store, table) = (Provider::start().await, Held::new(), Table::read());
    let mut server = server(&provider, store.clone(), &table).await;
    store.hold_reads(true);
    store.hold_writes(true);
    let (mut clients, mut calls, took) = all_ask(&server, &provider).await;
    assert!(took < table.before_it_is_sent() + SLACK, "{took:?}");
    all_are_answered(&mut clients, &mut calls).await;
    drop(clients);
    let began = Instant::now();
    server.stop();
    server.drained().await;
    let took = began.elapsed();
    assert!(took < Duration::from_millis(1000 + table.broken) + SLACK, "{took:?}");
}
