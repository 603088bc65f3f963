//! The strict provider, the proxy before it, and the wire between client and proxy.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use hyper_util::client::proxy::matcher::Matcher;
use plimsoll::config::Config;
use plimsoll::store::Store;
use plimsoll::store::redis::{RedisServer, RedisStore};
use scripted_provider::strict::{StrictProvider, StrictServer};
use serde_json::Value;
use tokio::io::AsyncReadExt as _;

use crate::number;
use crate::support::http1::{Message, Wire};
use crate::support::server::TestServer;
use crate::support::within;

/// Time limit for each store operation, ms.
const STORE_TIMEOUT_MS: u64 = 10_000;

/// The provider, and the proxy before it.
pub struct Stage {
    pub provider: StrictProvider,
    _serving: StrictServer,
    pub config: Config,
    store: Box<dyn Fn() -> Arc<dyn Store> + Send + Sync>,
    pub server: TestServer,
    /// The client says what its requests are for, as Claude Code does.
    pub gives_hints: bool,
    /// The client names its session.
    pub names_session: bool,
    client: Wire,
    /// More replicas on the store, each with a connection of the client.
    others: Vec<(TestServer, Wire)>,
    /// Requests so far.
    requests: u64,
}

/// The same configuration, in which a busy machine causes no timeouts of the store. They are tested with a controlled
/// clock (`tests/rewriting/trouble.rs`).
pub fn patient(mut config: Config) -> Config {
    config.limits.store_ms = STORE_TIMEOUT_MS;
    config.limits.commit_ms = STORE_TIMEOUT_MS;
    config
}

/// Opens one replica.
async fn open(store: Arc<dyn Store>, config: &Config) -> TestServer {
    TestServer::over(store, config.clone(), Matcher::builder().build()).await
}

/// What each replica opens: this store, or, with `PLIMSOLL_HARMLESS_REDIS=PORT`, a store of its own on that server, where
/// the stage has keys of its own.
fn stores(store: Arc<dyn Store>) -> Box<dyn Fn() -> Arc<dyn Store> + Send + Sync> {
    let Some(port) = number("PLIMSOLL_HARMLESS_REDIS") else {
        return Box::new(move || store.clone());
    };
    static STAGES: AtomicU64 = AtomicU64::new(0);
    let stage = STAGES.fetch_add(1, Ordering::Relaxed);
    let server = RedisServer {
        hosts: vec![("127.0.0.1".into(), port as u16)],
        prefix: format!("stage {stage}:").into(),
        ..RedisServer::default()
    };
    let life = Duration::from_secs(3600);
    Box::new(move || Arc::new(RedisStore::new(server.clone(), life)))
}

impl Stage {
    pub async fn open(
        provider: StrictProvider,
        serving: StrictServer,
        config: Config,
        store: Arc<dyn Store>,
    ) -> Self {
        let config = patient(config);
        let store = stores(store);
        let server = open(store(), &config).await;
        let client = Wire::connect(server.address).await;
        let mut others = Vec::new();
        for _ in 1..number("PLIMSOLL_HARMLESS_REPLICAS").unwrap_or(1) {
            let server = open(store(), &config).await;
            let client = Wire::connect(server.address).await;
            others.push((server, client));
        }
        Self {
            provider,
            _serving: serving,
            config,
            store,
            server,
            gives_hints: false,
            names_session: true,
            client,
            others,
            requests: 0,
        }
    }

    /// Turns to the replica that gets the next request.
    fn choose_replica(&mut self) {
        self.requests += 1;
        // No dice of the play: it is the same with one replica.
        let chosen = xxhash_rust::xxh3::xxh3_64(&self.requests.to_le_bytes()) as usize;
        let chosen = chosen % (self.others.len() + 1);
        if let Some((server, client)) = self.others.get_mut(chosen) {
            std::mem::swap(server, &mut self.server);
            std::mem::swap(client, &mut self.client);
        }
    }

    /// Restarts the proxy with the same store.
    pub async fn restart(&mut self) {
        self.server = open((self.store)(), &self.config).await;
        self.client = Wire::connect(self.server.address).await;
    }

    pub fn replica_count(&self) -> usize {
        1 + self.others.len()
    }

    /// Restarts all replicas: they have one configuration.
    pub async fn restart_all(&mut self) {
        for (server, client) in &mut self.others {
            *server = open((self.store)(), &self.config).await;
            *client = Wire::connect(server.address).await;
        }
        self.restart().await;
    }

    pub async fn send(&mut self, target: &str, body: &Value) -> (u16, String) {
        self.send_with_mode(None, target, body).await
    }

    /// The same with a header that names a mode.
    pub async fn send_with_mode(
        &mut self,
        mode: Option<&str>,
        target: &str,
        body: &Value,
    ) -> (u16, String) {
        self.choose_replica();
        let headers = mode_header(mode) + &self.says("main");
        self.client.send(request_text(target, body, &headers)).await;
        let response = self.client.response().await;
        (response.status(), response.text().to_owned())
    }

    /// Sends two requests at once, on two connections, and returns both answers.
    pub async fn send_both(
        &mut self,
        target: &str,
        body: &Value,
        beside: &Value,
    ) -> ((u16, String), (u16, String)) {
        self.choose_replica();
        let mut other = Wire::connect(self.server.address).await;
        self.client.send(request_text(target, body, &self.says("main"))).await;
        other.send(request_text(target, beside, &self.says("auxiliary"))).await;
        let (response, beside) = tokio::join!(self.client.response(), other.response());
        let read = |response: Message| (response.status(), response.text().to_owned());
        (read(response), read(beside))
    }

    /// The headers that say which session a request belongs to, and what it is for.
    fn says(&self, class: &str) -> String {
        let name = if self.names_session { "x-plimsoll-session: s\r\n" } else { "" };
        match self.gives_hints {
            true => format!("{name}x-claude-code-request-class: {class}\r\n"),
            false => name.to_owned(),
        }
    }

    /// The same on a connection of its own, whose answer breaks off after so many events, if it has more.
    pub async fn send_until_break(
        &mut self,
        mode: Option<&str>,
        target: &str,
        body: &Value,
        events: usize,
    ) -> (u16, String) {
        self.choose_replica();
        self.provider.cut_next_stream_after(events);
        let mut client = Wire::connect(self.server.address).await;
        client
            .send(request_text(
                target,
                body,
                &(mode_header(mode) + &self.says("main") + "connection: close\r\n"),
            ))
            .await;
        let mut read = Vec::new();
        // It ends with an error where the answer breaks off.
        let _ = within("the answer to end", client.stream.read_to_end(&mut read)).await;
        // Where nothing was streamed, the next answer does not break off.
        self.provider.cut_next_stream_after(usize::MAX);
        let end = read.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap();
        let head = String::from_utf8_lossy(&read[..end]).to_ascii_lowercase();
        let body = match head.contains("\r\ntransfer-encoding: chunked") {
            true => without_chunks(&read[end + 4..]),
            false => read[end + 4..].to_vec(),
        };
        // It may break off in the middle of a character; what is not whole of an event is not read.
        let body = String::from_utf8_lossy(&body).into_owned();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body)
    }
}

/// A chunked body without its framing, as far as it came.
fn without_chunks(mut framed: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = framed.windows(2).position(|bytes| bytes == b"\r\n") {
        let size = usize::from_str_radix(str::from_utf8(&framed[..end]).unwrap(), 16).unwrap();
        let rest = &framed[end + 2..];
        body.extend_from_slice(&rest[..size.min(rest.len())]);
        framed = rest.get(size + 2..).unwrap_or_default();
    }
    body
}

/// An event may be split between two chunks.
#[test]
fn body_that_breaks_off_is_read_without_its_chunks() {
    let framed = b"8\r\ndata: {}\r\n2\r\n\n\n\r\n10\r\ndata: {\"a";
    assert_eq!(without_chunks(framed), b"data: {}\n\ndata: {\"a");
    assert_eq!(without_chunks(b"2\r\nab\r\n0\r\n\r\n"), b"ab");
    assert_eq!(without_chunks(b"1"), b"");
}

/// What a client sends beside its body, as far as the provider reads it.
pub fn client_headers() -> HeaderMap {
    let names = [("x-api-key", "k"), ("anthropic-version", "2023-06-01")];
    names
        .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
        .into_iter()
        .collect()
}

fn mode_header(mode: Option<&str>) -> String {
    mode.map(|mode| format!("x-plimsoll-mode: {mode}\r\n")).unwrap_or_default()
}

/// A request as it stands on the wire, with more header lines.
fn request_text(target: &str, body: &Value, headers: &str) -> String {
    let body = body.to_string();
    format!(
        "POST {target} HTTP/1.1\r\nhost: localhost\r\nx-api-key: k\r\nanthropic-version: 2023-06-01\r\n\
         {headers}content-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}
