//! Large replies and messages are not read on the threads that serve streams.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use plimsoll::context::Outcome;
use plimsoll::dialect::reading::{BodyEnd, Framing, ResponseReader, SocketReader};
use plimsoll::dialect::{Dialect, Reply};

use crate::support::http1::{Provider, Wire};
use crate::support::server::TestServer;

/// The fastest try counts, because a busy machine can delay anything.
const TRIES: usize = 4;
const LIMIT: usize = 8 << 20;

/// Values that take long to read.
fn many_values() -> String {
    vec!["\"ab\""; 200_000].join(",")
}

/// How long the thread was blocked at most.
struct Gaps {
    longest_us: Arc<AtomicU64>,
    ticking: tokio::task::JoinHandle<()>,
}

impl Gaps {
    fn watch() -> Self {
        let longest_us = Arc::<AtomicU64>::default();
        let longest = longest_us.clone();
        let ticking = tokio::spawn(async move {
            loop {
                let began = Instant::now();
                tokio::task::yield_now().await;
                longest.fetch_max(began.elapsed().as_micros() as u64, Ordering::Relaxed);
            }
        });
        Self { longest_us, ticking }
    }

    fn longest(self) -> Duration {
        self.ticking.abort();
        Duration::from_micros(self.longest_us.load(Ordering::Relaxed))
    }
}

fn reply(body: &str) -> Reply {
    let mut reading = ResponseReader::new(Dialect::OpenaiChat, 200, Framing::Json, LIMIT);
    reading.push(body.as_bytes());
    reading.finish(BodyEnd::Whole)
}

/// The whole test has one thread, so reading there would block everything.
#[tokio::test(flavor = "current_thread")]
async fn large_reply_is_read_off_async_thread_and_recorded() {
    let body = format!(
        "{{\"id\":\"c\",\"object\":\"chat.completion\",\"model\":\"m\",\"choices\":[{{\"index\":0,\
         \"finish_reason\":\"stop\",\"message\":{{\"role\":\"assistant\",\"content\":\"Hm.\"}}}}],\
         \"usage\":{{\"prompt_tokens\":7,\"completion_tokens\":1}},\"more\":[{}]}}",
        many_values()
    );
    let began = Instant::now();
    assert_eq!(reply(&body).usage.input, Some(7));
    let here = began.elapsed();
    let provider = Provider::start().await;
    let mut server = TestServer::before(&provider.base()).await;
    let mut shortest = Duration::MAX;
    for _ in 0..TRIES {
        let mut client = Wire::connect(server.address).await;
        let ask = r#"{"model":"m","messages":[{"role":"user","content":"Hm?"}]}"#;
        let length = ask.len();
        client
            .send(format!(
                "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n{ask}"
            ))
            .await;
        let mut call = provider.call().await;
        let gaps = Gaps::watch();
        let (_, response) = tokio::join!(call.answer("200 OK", &body), client.response());
        assert_eq!(response.body.len(), body.len());
        drop(client);
        let exchange = server.next_exchange().await;
        shortest = shortest.min(gaps.longest());
        let aside = &exchange.fail_open;
        let seen = (exchange.outcome, exchange.usage.input);
        assert_eq!(seen, (Outcome::Complete, Some(7)), "{aside:?}, read here in {here:?}");
    }
    assert!(shortest < here / 2, "{shortest:?}, where reading it takes {here:?}");
}

/// A text frame of a server.
fn frame(text: &str) -> Vec<u8> {
    let mut frame = vec![0x81, 127];
    frame.extend_from_slice(&(text.len() as u64).to_be_bytes());
    frame.extend_from_slice(text.as_bytes());
    frame
}

const UPGRADE: &str = "GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n\
    Upgrade: websocket\r\nSec-WebSocket-Key: k\r\nSec-WebSocket-Version: 13\r\n\r\n";
const SWITCHED: &str = "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\n\
    upgrade: websocket\r\nsec-websocket-accept: a\r\n\r\n";
const CREATE: &str = r#"{"type":"response.create","model":"gpt-5","input":[]}"#;
const COMPLETED: &str = r#"{"type":"response.completed","response":{"id":"r","status":"completed","model":"gpt-5","output":[],"usage":{"input_tokens":31,"output_tokens":2,"total_tokens":33}}}"#;

#[tokio::test(flavor = "current_thread")]
async fn large_websocket_messages_are_read_off_thread_and_in_order() {
    let event = format!("{{\"type\":\"response.in_progress\",\"more\":[{}]}}", many_values());
    let began = Instant::now();
    assert!(SocketReader::new(LIMIT).event(event.as_bytes()).is_none());
    let here = began.elapsed();
    let provider = Provider::start().await;
    let mut server = TestServer::before(&provider.base()).await;
    let mut shortest = Duration::MAX;
    for _ in 0..TRIES {
        let mut client = Wire::connect(server.address).await;
        client.send(UPGRADE).await;
        let mut call = provider.call().await;
        call.send(SWITCHED).await;
        client.head().await;
        // A mask of zeros leaves the bytes unchanged.
        let mut create = vec![0x81, 0x80 | CREATE.len() as u8, 0, 0, 0, 0];
        create.extend_from_slice(CREATE.as_bytes());
        client.send(&create).await;
        call.wire.exactly(create.len()).await;
        let (large, last) = (frame(&event), frame(COMPLETED));
        let gaps = Gaps::watch();
        let all = [&large[..], &last[..]].concat();
        let (_, came) = tokio::join!(call.send(&all), client.exactly(all.len()));
        assert!(came == all, "it is forwarded unchanged");
        let exchange = server.next_exchange().await;
        shortest = shortest.min(gaps.longest());
        assert_eq!(exchange.outcome, Outcome::Complete);
        assert_eq!(exchange.usage.input, Some(31));
        drop((client, call));
        server.next_exchange().await;
    }
    assert!(shortest < here / 2, "{shortest:?}, where reading it takes {here:?}");
}
