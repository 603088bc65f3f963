//! The built program as a child process, and what the kernel reports of it: memory, threads, descriptors, files. Also
//! queries the admin listener as a user would.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::Plan;

pub struct Running {
    child: Child,
    pub clients: SocketAddr,
    admin: SocketAddr,
    token: String,
    pub data: PathBuf,
}

/// How long each admin query took.
pub struct Look {
    pub list: Duration,
    /// `/healthz` just before, which needs no store: how long this machine takes for any response.
    pub health: Duration,
    /// The longest time that the store took for a list so far, seconds: a bucket of the histogram.
    pub in_store: f64,
    pub savings: Duration,
    pub export: Duration,
    pub sessions: usize,
    /// Sessions deleted so far.
    pub forgotten: u64,
}

impl Running {
    pub async fn start(data: &Path, provider: SocketAddr, plan: &Plan) -> Self {
        let data = data.join("data");
        let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
        command
            .args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data"])
            .arg(&data)
            .args(["--upstream", &format!("anthropic=http://{provider}")])
            .env_clear()
            .env("PLIMSOLL_RETENTION_BYTES", plan.bound.to_string())
            // A busy machine may exceed the wait for a commit, which is tested elsewhere. Here turns that were waited
            // for are looked up.
            .env("PLIMSOLL_LIMITS_STORE_MS", "10000")
            .env("PLIMSOLL_LOG_FILTER", "warn")
            .current_dir("/")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = tokio::time::timeout(Duration::from_secs(60), lines.next_line()).await;
        let ready = ready.unwrap().unwrap().expect("it ended before it was ready");
        let pieces: Vec<&str> = ready.split(['/', ' ', ')']).collect();
        let mut addresses = pieces.iter().filter_map(|word| word.parse().ok());
        let (clients, admin) = (addresses.next().unwrap(), addresses.next().unwrap());
        let token = std::fs::read_to_string(data.join("admin.token")).unwrap().trim().to_owned();
        Self { child, clients, admin, token, data }
    }

    pub async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }

    /// Bytes of all files in the data folder, the log included.
    pub fn bytes_on_disk(&self) -> u64 {
        let files = std::fs::read_dir(&self.data).into_iter().flatten().flatten();
        files.filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum()
    }

    /// Resident memory, KiB.
    pub fn memory(&self) -> u64 {
        self.status("VmRSS:")
    }

    pub fn threads(&self) -> u64 {
        self.status("Threads:")
    }

    pub fn descriptors(&self) -> u64 {
        std::fs::read_dir(format!("/proc/{}/fd", self.id())).map_or(0, |all| all.count() as u64)
    }

    fn id(&self) -> u32 {
        self.child.id().expect("it ended")
    }

    fn status(&self, line: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap();
        let found = status.lines().find(|it| it.starts_with(line)).expect("a line of the status");
        found.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// Lists sessions, sums up savings and exports a session, as a user would.
    pub async fn look_in(&self) -> Look {
        let (_, health) = self.ask("/healthz").await;
        let (listed, list) = self.ask("/api/v1/sessions?limit=100").await;
        let listed: Value = serde_json::from_str(&listed).unwrap();
        let sessions = listed["sessions"].as_array().expect("a list of sessions");
        let (_, savings) = self.ask("/api/v1/savings?limit=50").await;
        let newest = sessions.first().expect("a session")["id"].as_str().unwrap();
        let (_, export) = self.ask(&format!("/api/v1/sessions/{newest}/export")).await;
        let (metrics, _) = self.ask("/metrics").await;
        let forgotten = metrics
            .lines()
            .find_map(|line| line.strip_prefix("plimsoll_store_forgotten_sessions_total "));
        let forgotten = forgotten.expect("a count of forgotten sessions").parse().unwrap();
        let in_store = longest_list(&metrics);
        Look { list, health, in_store, savings, export, sessions: sessions.len(), forgotten }
    }

    pub async fn ask(&self, path: &str) -> (String, Duration) {
        let began = Instant::now();
        let client = Client::builder(TokioExecutor::new()).build(HttpConnector::new());
        let request = http::Request::get(format!("http://{}{path}", self.admin))
            .header("authorization", format!("Bearer {}", self.token))
            .body(Full::<Bytes>::default())
            .unwrap();
        let answer = async {
            let response = client.request(request).await.unwrap();
            assert_eq!(response.status(), 200, "{path}");
            response.into_body().collect().await.unwrap().to_bytes()
        };
        let answer = tokio::time::timeout(Duration::from_secs(60), answer).await.expect(path);
        (String::from_utf8_lossy(&answer).into_owned(), began.elapsed())
    }
}

/// The limit of the first bucket that contains all lists.
fn longest_list(metrics: &str) -> f64 {
    let buckets = metrics.lines().filter_map(|line| {
        let (labels, count) =
            line.strip_prefix("plimsoll_store_operation_seconds_bucket{")?.split_once("} ")?;
        let bound = labels.split("le=\"").nth(1)?.split('"').next()?.parse::<f64>().ok()?;
        let count = count.parse::<u64>().ok()?;
        labels.contains("access=\"list\"").then_some((bound, count))
    });
    let buckets: Vec<(f64, u64)> = buckets.collect();
    let all = buckets.last().expect("no time of a list").1;
    let first = buckets.iter().find(|(_, count)| *count == all);
    first.map_or(f64::INFINITY, |(bound, _)| *bound)
}
