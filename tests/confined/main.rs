//! A long session is complete after `kill -9`, wherever the program runs.
//!
//! `tests/confined/run` runs this, and the store's own tests, as the container image does: with a read-only root, as
//! another user, without a folder for temporary files, and with a data folder (`PLIMSOLL_TEST_DATA`) as the only
//! writable one.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use plimsoll::store::sqlite::SqliteStore;
use plimsoll::store::{Record, RecordKind, ScopePage, Store};
use scripted_provider::ScriptedProvider;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

const SESSION: &str = "a-long-session";
/// The number of facts in the session, and their length: three times as much as SQLite sorts in memory before it needs
/// a temporary file.
const FACTS: u64 = 120;
const LENGTH: usize = 50_000;

fn folder() -> tempfile::TempDir {
    let data = std::env::var_os("PLIMSOLL_TEST_DATA").map_or_else(std::env::temp_dir, Into::into);
    tempfile::tempdir_in(data).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn long_session_survives_kill_9() {
    let provider =
        ScriptedProvider::start(([127, 0, 0, 1], 0).into(), plimsoll::demo::count_tokens)
            .await
            .unwrap();
    let folder = folder();
    let data = folder.path().join("data");
    let first = Running::start(&data, provider.address()).await;
    first.turn("one").await;
    first.kill().await;
    lengthen(&data.join("plimsoll.db")).await;

    for (text, turns) in [("two", 2), ("three", 3)] {
        let running = Running::start(&data, provider.address()).await;
        running.turn(text).await;
        let metrics = running.ask("/metrics").await;
        let none = "plimsoll_fail_open_total{reason=\"store\"} 0\n";
        assert!(metrics.contains(none), "the session was not loaded:\n{metrics}");
        assert!(running.ask("/readyz").await.starts_with("ready\n"));
        let session = running.ask(&format!("/api/v1/sessions/{SESSION}")).await;
        let session: Value = serde_json::from_str(&session).unwrap();
        assert_eq!(session["turns"], turns, "{session}");
        running.kill().await;
    }
    let store = SqliteStore::open(&data.join("plimsoll.db")).unwrap();
    let scope = store.scopes(ScopePage::first(1)).await.unwrap().remove(0).scope;
    let facts = store.scan(scope, 9999).await.unwrap();
    let long = facts.iter().filter(|fact| fact.value.len() > LENGTH).count();
    assert_eq!(long as u64, FACTS);
}

/// A volume fills while the program runs: requests continue, it is reported, and facts are stored again as soon as
/// there is room. The script makes the volume (`PLIMSOLL_TEST_SMALL`), because only root can.
#[tokio::test(flavor = "multi_thread")]
#[allow(clippy::print_stdout, reason = "what is left out is told")]
async fn full_volume_does_not_block_requests_and_storing_resumes() {
    let Some(volume) = std::env::var_os("PLIMSOLL_TEST_SMALL") else {
        println!("left out: there is no small volume (tests/confined/run makes one)");
        return;
    };
    let volume = Path::new(&volume);
    let provider =
        ScriptedProvider::start(([127, 0, 0, 1], 0).into(), plimsoll::demo::count_tokens)
            .await
            .unwrap();
    let running = Running::start(&volume.join("data"), provider.address()).await;
    running.turn("one").await;
    // First nearly all of the room is taken, and then all of it.
    let ballast = volume.join("ballast");
    let mut file = std::fs::File::create(&ballast).unwrap();
    let block = vec![1u8; 64 << 10];
    while std::io::Write::write_all(&mut file, &block).is_ok() {}
    let until = std::time::Instant::now() + Duration::from_secs(60);
    let mut turns = 1;
    // Emptying the log frees a little room now and then.
    let state = loop {
        let ready = running.ask("/readyz").await;
        if ready != "ready\n" {
            break ready;
        }
        assert!(std::time::Instant::now() < until, "the volume does not fill");
        running.turn(&format!("{turns} {}", "long words ".repeat(2_000))).await;
        turns += 1;
    };
    assert!(state.starts_with("ready, degraded: nothing is stored: the disk is full"), "{state}");
    // Turns so far may have found room in the journal; from now on none is stored, and that is counted.
    running.turn("one that is not stored").await;
    let metrics = running.ask("/metrics").await;
    assert!(!metrics.contains("plimsoll_store_failures_total{operation=\"put\"} 0\n"), "{metrics}");
    std::fs::remove_file(&ballast).unwrap();
    drop(file);
    // The next successful write shows that there is room again.
    while running.ask("/readyz").await != "ready\n" {
        assert!(std::time::Instant::now() < until, "it does not come back");
        running.turn("is there room?").await;
    }
    let before = kept(&running).await;
    running.turn("there is room again").await;
    assert_eq!(kept(&running).await, before + 1);
    running.kill().await;
}

/// The number of turns of the session in the store.
async fn kept(running: &Running) -> u64 {
    let session = running.ask("/api/v1/sessions?limit=1").await;
    let session: Value = serde_json::from_str(&session).unwrap();
    session["sessions"][0]["turns"].as_u64().unwrap()
}

/// Adds reasoning to the session, as if an agent had worked for hours.
async fn lengthen(file: &Path) {
    let store = SqliteStore::open(file).unwrap();
    let scope = store.scopes(ScopePage::first(1)).await.unwrap().remove(0).scope;
    assert_eq!(scope.session, SESSION);
    for n in 0..FACTS {
        let value = json!({
            "kind": "reasoning", "after": format!("{n:032x}"), "at": 5, "prefix": format!("{n:032x}"),
            "model": "m", "upstream": "anthropic", "parts": [],
            "blocks": [{"before": 0, "raw": "x".repeat(LENGTH)}],
        });
        let value = value.to_string().into();
        let record =
            Record { kind: RecordKind::Reasoning, key: n.into(), value, at: 5, turn: None };
        store.put_if_absent(scope.clone(), vec![record]).await.unwrap();
    }
    store.close().await.unwrap();
}

/// The built program.
struct Running {
    child: Child,
    clients: SocketAddr,
    admin: SocketAddr,
    /// The admin listener's token, from the link in the ready line.
    token: String,
}

impl Running {
    async fn start(data: &Path, provider: SocketAddr) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
            .args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data"])
            .arg(data)
            .args(["--upstream", &format!("anthropic=http://{provider}")])
            .env_clear()
            // On a busy machine, too, this test must wait for the store.
            .env("PLIMSOLL_LIMITS_STORE_MS", "10000")
            .current_dir("/")
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = tokio::time::timeout(Duration::from_secs(30), lines.next_line()).await;
        let ready = ready.unwrap().unwrap().expect("it ended before it was ready");
        let pieces: Vec<&str> = ready.split(['/', ' ', ')']).collect();
        let mut addresses = pieces.iter().filter_map(|word| word.parse().ok());
        let (clients, admin) = (addresses.next().unwrap(), addresses.next().unwrap());
        let token = std::fs::read_to_string(data.join("admin.token")).unwrap().trim().to_owned();
        Self { child, clients, admin, token }
    }

    async fn turn(&self, text: &str) {
        let body = json!({
            "model": "claude-sonnet-4-5", "max_tokens": 512, "stream": true,
            "messages": [{"role": "user", "content": text}],
        });
        let request = http::Request::post(format!("http://{}/v1/messages", self.clients))
            .header("content-type", "application/json")
            .header("x-api-key", "sk-confined")
            .header("x-claude-code-session-id", SESSION)
            .body(Full::from(body.to_string()))
            .unwrap();
        assert!(self.answer(request).await.contains("message_stop"));
    }

    async fn ask(&self, path: &str) -> String {
        let request = http::Request::get(format!("http://{}{path}", self.admin))
            .header("authorization", format!("Bearer {}", self.token));
        self.answer(request.body(Full::default()).unwrap()).await
    }

    async fn answer(&self, request: http::Request<Full<Bytes>>) -> String {
        let client = Client::builder(TokioExecutor::new()).build(HttpConnector::new());
        let answer = async {
            let response = client.request(request).await.unwrap();
            response.into_body().collect().await.unwrap().to_bytes()
        };
        let answer = tokio::time::timeout(Duration::from_secs(30), answer).await.unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    }

    async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }
}
