//! An admin listener on a port of its own, and turns for its store.

use std::net::SocketAddr;
use std::sync::Arc;

use plimsoll::admin::view::ServerInfo;
use plimsoll::admin::{self, Admin, AdminAccess};
use plimsoll::config::PriceList;
use plimsoll::context::{
    Breakdown, CountingMethod, Estimate, EstimateMethod, Fact, Outcome, Position, Turn,
};
use plimsoll::dialect::models::Family;
use plimsoll::dialect::{Chain, Dialect, PartKey, StopReason, Usage};
use plimsoll::store::ledgers::Ledgers;
use plimsoll::store::memory::MemoryStore;
use plimsoll::store::{Record, RecordKind, Scope, Store};
use plimsoll::telemetry::{Exchange, Telemetry};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::support::http1::{Message, Wire};
use super::support::looking::{TOKEN, access};
use super::support::within;

/// The value of a header that is not sent.
pub const ABSENT: &str = "absent";

pub struct Place {
    pub address: SocketAddr,
    pub telemetry: Arc<Telemetry>,
    pub draining: watch::Sender<bool>,
    store: Arc<dyn Store>,
    stop: watch::Sender<bool>,
    serving: Option<JoinHandle<()>>,
}

impl Place {
    pub async fn new() -> Self {
        Self::open_to(access()).await
    }

    pub async fn open_to(access: AdminAccess) -> Self {
        Self::over(Arc::new(MemoryStore::default()), access).await
    }

    pub async fn over(store: Arc<dyn Store>, access: AdminAccess) -> Self {
        let telemetry = Telemetry::silent().unwrap();
        let ledgers = Arc::new(Ledgers::new(store.clone()));
        let (draining, watching) = watch::channel(false);
        let admin = Admin::new(
            None,
            ledgers,
            telemetry.clone(),
            about(),
            PriceList::default(),
            access,
            watching,
        );
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, mut stopped) = watch::channel(false);
        let serving = tokio::spawn(admin::serve(admin, listener, async move {
            drop(stopped.wait_for(|stop| *stop).await);
        }));
        Self { address, telemetry, draining, store, stop, serving: Some(serving) }
    }

    /// Stops it, and waits until it has ended.
    pub async fn stop(&mut self) {
        self.stop.send_replace(true);
        within("the listener to end", self.serving.take().unwrap()).await.unwrap();
    }

    /// Stores a turn of a thread.
    pub async fn turn(&self, tenant: &str, session: &str, thread: &str, at: u64) {
        let request = format!("{session}-{thread}-{at}");
        self.keep(tenant, session, turn(&request, thread, at)).await;
    }

    pub async fn keep(&self, tenant: &str, session: &str, turn: Turn) {
        let (exchange, at) = (turn.exchange.clone(), turn.at);
        let value = serde_json::to_vec(&Fact::Turn(Arc::new(turn))).unwrap();
        self.keep_record((tenant, session), RecordKind::Turn, exchange.as_str(), (value, at)).await;
    }

    /// Stores another record of an exchange.
    pub async fn keep_record(
        &self,
        (tenant, session): (&str, &str),
        kind: RecordKind,
        request: &str,
        (value, at): (Vec<u8>, u64),
    ) {
        let key = xxhash_rust::xxh3::xxh3_128(request.as_bytes());
        let record = Record { kind, key, value: value.into(), at, turn: None };
        let scope = Scope { tenant: tenant.into(), session: session.into() };
        self.store.put_if_absent(scope, vec![record]).await.unwrap();
    }

    /// Sends a request, with the full token unless `headers` has another. The response can be read from the returned
    /// connection.
    pub async fn open(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Wire {
        let mut wire = Wire::connect(self.address).await;
        let mut head = format!("{method} {path} HTTP/1.1\r\n");
        if !headers.iter().any(|(name, _)| *name == "host") {
            head += &format!("host: {}\r\n", self.address);
        }
        if !headers.iter().any(|(name, _)| *name == "authorization") {
            head += &format!("authorization: Bearer {TOKEN}\r\n");
        }
        for (name, value) in headers.iter().filter(|(_, value)| *value != ABSENT) {
            head += &format!("{name}: {value}\r\n");
        }
        wire.send(format!("{head}\r\n")).await;
        wire
    }

    pub async fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Message {
        self.open(method, path, headers).await.response().await
    }

    pub async fn get(&self, path: &str) -> Message {
        self.ask("GET", path, &[]).await
    }

    /// Sends a request with a body.
    pub async fn post(&self, path: &str, body: &str) -> Message {
        let mut wire = Wire::connect(self.address).await;
        let (host, length) = (self.address, body.len());
        let head = format!("POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {length}");
        wire.send(format!("{head}\r\nauthorization: Bearer {TOKEN}\r\n\r\n{body}")).await;
        wire.response().await
    }

    /// The JSON of a response with status 200.
    pub async fn json(&self, path: &str) -> Value {
        let answer = self.get(path).await;
        assert_eq!(answer.status(), 200, "{path}: {}", answer.text());
        json(&answer)
    }
}

fn about() -> ServerInfo {
    let config = super::support::server::config("http://127.0.0.1:1/base/");
    ServerInfo::new(&config, "127.0.0.1:2".parse().unwrap(), "127.0.0.1:3".parse().unwrap(), 4)
}

pub fn json(answer: &Message) -> Value {
    assert_eq!(answer.header("content-type"), Some("application/json"));
    serde_json::from_slice(&answer.body).unwrap()
}

/// Milliseconds since 1970.
pub fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    u64::try_from(since.as_millis()).unwrap()
}

/// A tenant id, in the form of hashed credentials.
pub fn tenant(number: u64) -> String {
    format!("{number:016x}")
}

fn estimate() -> Estimate {
    let breakdown =
        Breakdown { system: 4_000, tools: 8_000, messages: 40_100, ..Breakdown::default() };
    Estimate {
        tokens: 52_100,
        method: EstimateMethod::Anchored,
        counting: CountingMethod::default(),
        new: 100,
        gone: 0,
        gone_history: 0,
        encrypted_compaction: false,
        breakdown,
        guess: Default::default(),
    }
}

fn usage() -> Usage {
    Usage { input: Some(51_790), output: Some(2_000), cache_read: Some(50_000), ..Usage::default() }
}

pub fn turn(request: &str, thread: &str, at: u64) -> Turn {
    Turn {
        exchange: request.into(),
        position: Position {
            thread: thread.into(),
            chain: Chain(u128::from(at)),
            system: PartKey(1),
            tools: PartKey(2),
            ..Position::default()
        },
        after: Chain(u128::from(at) + 1),
        at,
        ended: at + 100,
        upstream: "anthropic".into(),
        model: "claude-sonnet-4-5".into(),
        estimate: Some(estimate()),
        usage: usage(),
        stop: Some(StopReason::ToolUse),
        outcome: Outcome::Complete,
        window: 200_000,
        reserve: 16_000,
        ..Turn::empty(Dialect::Anthropic, Family::Claude)
    }
}

pub fn exchange(id: &str) -> Exchange {
    Exchange {
        upstream: Some("anthropic".into()),
        dialect: Some(Dialect::Anthropic),
        model: Some("claude-sonnet-4-5".into()),
        family: Some(Family::Claude),
        status: Some(200),
        outcome: Outcome::Complete,
        estimate: Some(estimate()),
        usage: usage(),
        ..Exchange::begun(id.into(), 1_763_700_000_123, "POST", "/v1/messages")
    }
}
