//! Streams on which the upstream sends nothing: counted, kept open or ended, as configured.

use std::time::Duration;

use plimsoll::context::Outcome;

use crate::support::http1::{Call, Provider, Wire};
use crate::support::server::{TestServer, config};
use crate::support::wire::{self, Script};

/// A proxy with these limits in seconds, a client, and an upstream that has begun its response.
async fn begun(
    script: &Script,
    (silent_s, keep_alive_s): (u64, u64),
) -> (TestServer, Wire, Call, Provider) {
    let provider = Provider::start().await;
    let mut config = config(&provider.base());
    (config.limits.silent_stream_s, config.limits.keep_alive_s) = (silent_s, keep_alive_s);
    let server = TestServer::with(config).await;
    let mut client = Wire::connect(server.address).await;
    let (path, request) = (script.path, script.request);
    client
        .send(format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{request}",
            request.len()
        ))
        .await;
    let mut call = provider.call().await;
    call.begin_events().await;
    call.chunk(script.events[0]).await;
    client.head().await;
    assert_eq!(client.chunk().await, script.events[0].as_bytes());
    (server, client, call, provider)
}

/// In every dialect, the client gets an error event of its protocol, then a clean end.
#[tokio::test]
async fn silent_stream_is_ended_with_error_event_of_its_dialect() {
    for script in wire::all() {
        let (mut server, mut client, mut call, _provider) = begun(&script, (1, 0)).await;
        let event = String::from_utf8(client.chunk().await).unwrap();
        let (name, data) = event.split_once("data: ").unwrap();
        let has_name = ["/v1/messages", "/v1/responses"].contains(&script.path);
        assert_eq!(name, if has_name { "event: error\n" } else { "" }, "{}", script.path);
        let error: serde_json::Value = serde_json::from_str(data.trim_end()).unwrap();
        let text = error["error"]["message"].as_str().unwrap();
        assert!(text.contains("sent nothing in its stream for 1 s"), "{error}");
        assert_eq!(client.chunk().await, b"", "a clean end");
        call.wire.gone().await;
        let exchange = server.next_exchange().await;
        assert_eq!(exchange.outcome, Outcome::UpstreamFailed, "{}", script.path);
        assert!(exchange.timing.silent_stream);
        assert!(exchange.timing.longest_gap_us.is_some());
        let metrics = server.telemetry.render();
        assert!(metrics.contains("plimsoll_silent_streams_total{upstream=\"up\"} 1"), "{metrics}");
    }
}

/// An event that was cut in the middle cannot be completed: the connection breaks.
#[tokio::test]
async fn silence_within_event_breaks() {
    let script = wire::anthropic();
    let (mut server, mut client, mut call, _provider) = begun(&script, (1, 0)).await;
    call.chunk("event: content_block_start\ndata: {\"type\"").await;
    assert!(client.chunk().await.starts_with(b"event: content_block_start"));
    client.gone().await;
    let exchange = server.next_exchange().await;
    assert_eq!(exchange.outcome, Outcome::UpstreamFailed);
    assert!(exchange.timing.silent_stream);
}

/// In every dialect, comments are inserted between events, and the upstream's bytes are unchanged.
#[tokio::test]
async fn keep_alive_comments_are_inserted_into_silent_stream() {
    for script in wire::all() {
        let (mut server, mut client, mut call, _provider) = begun(&script, (0, 1)).await;
        for _ in 0..2 {
            assert_eq!(client.chunk().await, b": keep-alive\n\n", "{}", script.path);
        }
        let rest = script.events[1..].concat();
        call.chunk(&rest).await;
        call.end().await;
        let mut got = Vec::new();
        loop {
            match client.chunk().await {
                chunk if chunk.is_empty() => break,
                // A slow machine may have inserted more before the rest came.
                chunk if chunk == b": keep-alive\n\n" => {}
                chunk => got.extend(chunk),
            }
        }
        assert_eq!(String::from_utf8(got).unwrap(), rest, "{}", script.path);
        let exchange = server.next_exchange().await;
        assert_eq!(exchange.outcome, Outcome::Complete);
        assert_eq!(exchange.usage.output, Some(script.output));
        assert!(
            exchange.timing.longest_gap_us.is_some_and(|gap| gap >= 2_000_000),
            "{:?}",
            exchange.timing.longest_gap_us
        );
        let metrics = server.telemetry.render();
        let line = "plimsoll_stream_longest_gap_seconds_count{model=";
        assert!(metrics.contains(line), "{metrics}");
    }
}

/// By default nothing is inserted, no stream is ended, and the longest gap is measured.
#[tokio::test]
async fn without_silence_limits_stream_is_forwarded_unchanged() {
    for script in wire::all() {
        let (mut server, mut client, mut call, _provider) = begun(&script, (0, 0)).await;
        for event in &script.events[1..] {
            call.chunk(event).await;
            assert_eq!(client.chunk().await, event.as_bytes());
        }
        call.end().await;
        assert_eq!(client.chunk().await, b"");
        let exchange = server.next_exchange().await;
        assert_eq!(exchange.outcome, Outcome::Complete);
        assert!(!exchange.timing.silent_stream);
        assert!(exchange.timing.longest_gap_us.is_some());
    }
}

/// The longest gap of a stream before which the client took this long to upload, and its upstream to answer.
async fn longest_gap(body_bytes: usize, upload: Duration, thinking: Duration) -> Duration {
    let (script, provider) = (wire::anthropic(), Provider::start().await);
    let mut config = config(&provider.base());
    config.limits.body_bytes = body_bytes;
    let mut server = TestServer::with(config).await;
    let mut client = Wire::connect(server.address).await;
    let (begin, rest) = script.request.split_at(20);
    let length = script.request.len();
    client
        .send(format!(
            "POST {} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n{begin}",
            script.path
        ))
        .await;
    tokio::time::sleep(upload).await;
    client.send(rest).await;
    let mut call = provider.call().await;
    tokio::time::sleep(thinking).await;
    call.begin_events().await;
    for event in &script.events {
        call.chunk(event).await;
    }
    call.end().await;
    assert_eq!(client.response().await.status(), 200);
    Duration::from_micros(server.next_exchange().await.timing.longest_gap_us.unwrap())
}

/// Whether the body is collected, or streams through because it is too large.
#[tokio::test]
async fn slow_upload_is_no_silence() {
    let upload = Duration::from_secs(2);
    for body_bytes in [1 << 20, 16] {
        let gap = longest_gap(body_bytes, upload, Duration::ZERO).await;
        assert!(gap < upload / 2, "{gap:?} with {body_bytes}");
    }
}

#[tokio::test]
async fn wait_for_headers_is_silence() {
    let thinking = Duration::from_millis(300);
    for body_bytes in [1 << 20, 16] {
        let gap = longest_gap(body_bytes, Duration::ZERO, thinking).await;
        assert!(gap >= thinking, "{gap:?} with {body_bytes}");
    }
}
