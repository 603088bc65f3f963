//! Nothing is left of ended exchanges, however they ended: descriptors, tasks and memory of requests are what they were
//! before. `PLIMSOLL_EXCHANGES=10000` sets the number. It is alone in its process, because descriptors are counted.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, dead_code)]

#[path = "support/mod.rs"]
mod support;

use std::time::Duration;

use support::http1::{Provider, Wire};
use support::server::TestServer;
use support::within;
use tokio::runtime::Handle;

/// The number of exchanges by default.
const EXCHANGES: usize = 300;
/// Exchanges before the first measurement, so that what is allocated only once is allocated.
const WARM_UP: usize = 60;

/// Bytes.
const SLACK: f64 = 4096.0;

const REPLY: &str = r#"{"id":"m","type":"message","role":"assistant","model":"claude-sonnet-4-5","content":[{"type":"text","text":"Three metres."}],"stop_reason":"end_turn","usage":{"input_tokens":100,"output_tokens":5}}"#;

fn request(number: usize) -> String {
    let body = format!(
        r#"{{"model":"claude-sonnet-4-5","max_tokens":100,"messages":[{{"role":"user","content":"How deep is she, number {number}?"}}]}}"#
    );
    let session = number % 8;
    format!(
        "POST /v1/messages HTTP/1.1\r\nhost: localhost\r\nx-api-key: k\r\nx-plimsoll-session: s{session}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// One exchange: with a reply, refused, broken off by the upstream, or left by its client.
async fn exchange(server: &mut TestServer, provider: &Provider, number: usize) {
    let mut client = Wire::connect(server.address).await;
    client.send(request(number)).await;
    let mut call = provider.call().await;
    match number % 4 {
        0 => {
            call.answer("200 OK", REPLY).await;
            client.response().await;
        }
        1 => {
            call.answer("500 Internal Server Error", r#"{"error":{"message":"No."}}"#).await;
            client.response().await;
        }
        2 => {
            call.begin_events().await;
            call.chunk("data: 1\n\n").await;
            client.head().await;
            drop(call);
            client.rest().await.ok();
        }
        _ => {
            call.begin_events().await;
            call.chunk("data: 1\n\n").await;
            client.head().await;
            drop(client);
        }
    }
    server.next_exchange().await;
}

#[derive(Debug, PartialEq, PartialOrd)]
struct Held {
    descriptors: usize,
    tasks: usize,
    bytes: f64,
}

fn held(server: &TestServer) -> Held {
    let metrics = server.telemetry.render();
    let lines = metrics.lines().filter(|line| line.starts_with("plimsoll_memory_held_bytes"));
    let bytes = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum();
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
    Held { descriptors, tasks: Handle::current().metrics().num_alive_tasks(), bytes }
}

#[tokio::test]
async fn exchanges_leak_no_memory_tasks_or_descriptors_however_they_end() {
    let configured = std::env::var("PLIMSOLL_EXCHANGES").ok().and_then(|value| value.parse().ok());
    let exchanges = configured.unwrap_or(EXCHANGES);
    let provider = Provider::start().await;
    let mut server = TestServer::before(&provider.base()).await;
    for number in 0..WARM_UP {
        exchange(&mut server, &provider, number).await;
    }
    let calm = async |server: &TestServer, most: Option<&Held>| {
        // Resources of an exchange are released shortly after its event.
        let mut now = held(server);
        loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let next = held(server);
            // The latest request of each session stays in memory: a few bytes more if its number is longer.
            let is_enough = most.is_none_or(|most| {
                let is_bounded = next.bytes <= most.bytes + SLACK;
                next.descriptors <= most.descriptors && next.tasks <= most.tasks && is_bounded
            });
            if next == now && is_enough {
                return next;
            }
            now = next;
        }
    };
    let before = within("the warm-up to be over", calm(&server, None)).await;
    for number in 0..exchanges {
        exchange(&mut server, &provider, WARM_UP + number).await;
    }
    let after = tokio::time::timeout(Duration::from_secs(60), calm(&server, Some(&before))).await;
    assert!(after.is_ok(), "before: {before:?}; after {exchanges} more: {:?}", held(&server));
}
