//! Floods of connections: thousands that stall in headers or bodies, read slowly, or leave HTTP.
//!
//! Each connection stalls and stays. During the flood an honest request gets its response; after it, memory is freed.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::{FILE, Flooded, MANY, PATH, PROMISED, TIMEOUT, bomb, conversation, head, settled};
use crate::support::digest;
use crate::support::h2;

/// How many are opened at once.
const AT_ONCE: usize = 200;
/// How long an honest client keeps trying, on a machine that is busy with the flood.
const TRIES: Duration = Duration::from_secs(60);
/// How much more may be resident then than before the flood: this fraction of it, and this many bytes for caches.
const MORE: u64 = 5;
const CACHES: u64 = 4 << 20;
/// Of stalled bodies below large headers the process may take more than it should, as docs/limits.md says: hyper keeps a
/// request's headers twice.
const BELOW_LARGE_HEADERS: u64 = 288 << 20;

/// Opens this many connections, writes as much of `opening` as is accepted within a second, and leaves them open.
async fn stall(flooded: &Flooded, many: usize, opening: &[u8]) -> Vec<TcpStream> {
    let to = flooded.to();
    let open = async |_| {
        let mut stream = TcpStream::connect(to).await.ok()?;
        // A refused connection may be closed during the write.
        let _ = timeout(Duration::from_secs(1), stream.write_all(opening)).await;
        Some(stream)
    };
    let opened: Vec<_> = stream::iter(0..many).map(open).buffer_unordered(AT_ONCE).collect().await;
    opened.into_iter().flatten().collect()
}

impl Flooded {
    /// An honest client retries as real clients do; its request arrives unchanged.
    async fn answers_while_it_stands(&self, flood: &str) {
        let body = conversation("m", "How heavy is a ship?");
        let began = Instant::now();
        loop {
            let asking = async {
                let mut stream = TcpStream::connect(self.to()).await.ok()?;
                let head = head(self.to(), "x-digest: yes\r\n", body.len());
                stream.write_all(format!("{head}{body}").as_bytes()).await.ok()?;
                let mut answer = Vec::new();
                stream.read_to_end(&mut answer).await.ok()?;
                Some(String::from_utf8_lossy(&answer).into_owned())
            };
            let answer = timeout(TIMEOUT, asking).await.unwrap().unwrap_or_default();
            if answer.starts_with("HTTP/1.1 200") {
                assert!(answer.contains(&digest(body.as_bytes())), "{flood}: the body was changed");
                return;
            }
            // On a slow machine, the upstream of the test may be busy with the flood for longer than a connection may take.
            let is_upstream_busy = answer.contains("x-plimsoll-error: upstream_too_slow");
            assert!(
                answer.is_empty() || answer.starts_with("HTTP/1.1 503") || is_upstream_busy,
                "{flood}: {answer}"
            );
            assert!(began.elapsed() < TRIES, "{flood}: other clients get no response: {answer}");
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// The promise: the peak during the flood is within the limit, and memory is freed after it.
    async fn withstands<T>(&self, flood: &str, open: T) {
        self.withstands_within(PROMISED, flood, open).await;
    }

    async fn withstands_within<T>(&self, most: u64, flood: &str, open: T) {
        self.answers_while_it_stands(flood).await;
        let peak = self.peak();
        println!("{flood}: {} MiB at most", peak >> 20);
        assert!(peak <= most, "{flood}: {} MiB were resident", peak >> 20);
        drop(open);
        let began = Instant::now();
        // The proxy soon notices that the other connections have ended.
        self.answers_while_it_stands(flood).await;
        // Without further requests, memory is freed.
        let most = self.before + self.before / MORE + CACHES;
        let now = settled(&self.serving, most).await;
        let (before, after) = (self.before >> 20, began.elapsed().as_secs());
        println!("{flood}: {before} MiB before, {} after {after} s", now >> 20);
        assert!(now <= most, "{flood}: {} MiB, and {before} before", now >> 20);
        self.answers_unchanged(flood).await;
    }
}

fn unfinished(headers: &str) -> String {
    format!(
        "POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{headers}"
    )
}

#[tokio::test]
async fn thousands_that_stall_in_large_headers_share_one_budget() {
    let flooded = Flooded::start().await;
    let opening = unfinished(&format!("x: {}", "a".repeat(30_000)));
    let open = stall(&flooded, MANY, opening.as_bytes()).await;
    flooded.withstands("stalled in headers of 30 kB", open).await;
}

#[tokio::test]
async fn thousands_that_stall_in_bodies_share_one_budget() {
    let flooded = Flooded::start().await;
    let start = format!(r#"{{"model":"m","messages":["{}"#, "a".repeat(200_000));
    let opening = unfinished(&format!("content-length: 30000000\r\n\r\n{start}"));
    let open = stall(&flooded, MANY, opening.as_bytes()).await;
    flooded.withstands("stalled in bodies", open).await;
}

#[tokio::test]
async fn thousands_that_stall_in_bodies_that_nobody_reads_share_one_budget() {
    let flooded = Flooded::start().await;
    let headers = format!("x: {}\r\ncontent-length: 900000000\r\n\r\n", "a".repeat(30_000));
    let opening = unfinished(&(headers + &"a".repeat(400_000))).replace(PATH, FILE);
    let open = stall(&flooded, MANY, opening.as_bytes()).await;
    flooded
        .withstands_within(BELOW_LARGE_HEADERS, "stalled in bodies that stream through", open)
        .await;
}

#[tokio::test]
async fn slow_readers_share_one_budget() {
    let flooded = Flooded::start().await;
    let body = conversation("m", "hello");
    let opening = head(flooded.to(), "x-flood: long\r\n", body.len()).replace(PATH, FILE) + &body;
    let open = stall(&flooded, MANY, opening.as_bytes()).await;
    sleep(Duration::from_secs(2)).await;
    flooded.withstands("slow readers by the thousand", open).await;
}

/// All floods at the same time, and bodies that decompress to much more: the limit applies to their sum.
#[tokio::test]
async fn floods_of_every_kind_at_once_share_one_budget() {
    let flooded = Flooded::start().await;
    let (to, request) = (flooded.to(), conversation("m", "hello"));
    let start = format!(r#"{{"model":"m","messages":["{}"#, "a".repeat(200_000));
    let stalled = unfinished(&format!("content-length: 30000000\r\n\r\n{start}"));
    let headers = unfinished(&format!("x: {}", "a".repeat(30_000)));
    let unread = head(to, "x-flood: long\r\n", request.len()).replace(PATH, FILE) + &request;
    let unfolds = ["gzip", "zstd"].map(|coding| {
        let bomb = bomb(coding, 30 << 20);
        let head = head(to, &format!("content-encoding: {coding}\r\n"), bomb.len());
        [head.into_bytes(), bomb].concat()
    });
    let upgrade = upgrade();
    let [gzip, zstd] = &unfolds;
    let kinds =
        [stalled.as_bytes(), headers.as_bytes(), unread.as_bytes(), upgrade.as_bytes(), gzip, zstd];
    let open = join_all(kinds.map(|opening| stall(&flooded, MANY / 6, opening))).await;
    flooded.withstands("every kind at once", open).await;
}

/// Connections over HTTP/2 whose streams have each sent a full flow-control window.
#[tokio::test]
async fn many_http2_connections_with_full_windows_share_one_budget() {
    let flooded = Flooded::start().await;
    let to = flooded.to();
    let open = async |_| {
        let stream = TcpStream::connect(to).await.ok()?;
        let builder =
            hyper::client::conn::http2::Builder::new(hyper_util::rt::TokioExecutor::new());
        let io = hyper_util::rt::TokioIo::new(stream);
        let (mut sender, connection) = timeout(TIMEOUT, builder.handshake(io)).await.ok()?.ok()?;
        // Dropped with the rest, so that the client leaves and does not go on sending.
        let mut tasks = JoinSet::new();
        tasks.spawn(async {
            let _ = connection.await;
        });
        let mut streams = Vec::new();
        for _ in 0..8 {
            let (mut feed, body) = h2::body();
            let request = http::Request::post(format!("http://{to}{FILE}")).body(body).unwrap();
            timeout(Duration::from_secs(1), sender.ready()).await.ok()?.ok()?;
            let answer = tokio::spawn(sender.send_request(request));
            let piece = bytes::Bytes::from(vec![b' '; 1 << 20]);
            let _ = timeout(Duration::from_millis(300), feed.send_data(piece)).await;
            streams.push((feed, answer));
        }
        Some((sender, streams, tasks))
    };
    let opened: Vec<_> = stream::iter(0..300).map(open).buffer_unordered(50).collect().await;
    flooded.withstands("HTTP/2 connections with full windows", opened).await;
}

#[tokio::test]
async fn idle_tunnels_share_one_budget() {
    let flooded = Flooded::start().await;
    let opening = upgrade();
    let open = stall(&flooded, MANY, opening.as_bytes()).await;
    drop(join_all((0..10).map(|_| flooded.serving.ask("/metrics"))).await);
    println!("{} MiB", flooded.peak() >> 20);
    assert!(flooded.peak() <= PROMISED, "{} MiB were resident", flooded.peak() >> 20);
    drop(open);
    flooded.answers_while_it_stands("idle tunnels").await;
}

fn upgrade() -> String {
    "GET /v1/responses HTTP/1.1\r\nhost: localhost\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
     sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\nsec-websocket-version: 13\r\n\r\n"
        .to_owned()
}

/// With a limit of four connections, four tunnels are possible. When one ends, its place is free again.
#[tokio::test]
async fn tunnel_keeps_its_place() {
    let upstream = super::Upstream::start().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plimsoll.toml");
    std::fs::write(&file, "[limits]\nconnections = 4\n").unwrap();
    let more = ["--config", file.to_str().unwrap()];
    let serving = super::Serving::start(&upstream.base(), &more).await;
    let mut tunnels = Vec::new();
    let open = async || {
        let mut stream = TcpStream::connect(serving.clients).await.unwrap();
        stream.write_all(upgrade().as_bytes()).await.unwrap();
        let mut status = [0; 12];
        timeout(TIMEOUT, stream.read_exact(&mut status)).await.unwrap().unwrap();
        (status, stream)
    };
    for _ in 0..4 {
        let (status, stream) = open().await;
        assert_eq!(&status, b"HTTP/1.1 101");
        tunnels.push(stream);
    }
    for _ in 0..3 {
        assert_eq!(&open().await.0, b"HTTP/1.1 503", "a fifth");
    }
    tunnels.pop();
    let began = Instant::now();
    while &open().await.0 != b"HTTP/1.1 101" {
        assert!(began.elapsed() < TIMEOUT, "the place of a tunnel that ended is never free");
        sleep(Duration::from_millis(50)).await;
    }
}
