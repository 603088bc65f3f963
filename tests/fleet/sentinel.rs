//! A primary with two replicas, which three sentinels watch, for one test.

use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use plimsoll::store::redis::RedisServer;
use tempfile::TempDir;

use crate::cluster::until;
use crate::server::{Engine, Server, free_port};

/// The name under which the sentinels know the primary.
const PRIMARY: &str = "main";

struct Sentinel {
    port: u16,
    process: Child,
    _folder: TempDir,
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub struct Watched {
    /// The first one began as the primary.
    pub servers: Vec<Server>,
    sentinels: Vec<Sentinel>,
}

impl Watched {
    pub async fn start(engine: Engine) -> Self {
        let mut servers = vec![Server::start(engine).await];
        let primary = servers[0].port.to_string();
        for _ in 0..2 {
            let options = ["--replicaof", "127.0.0.1", &primary, "--repl-diskless-sync-delay", "0"];
            servers.push(Server::with_options(engine, &options).await);
        }
        let sentinels = (0..3).map(|_| sentinel(engine, &primary)).collect();
        let watched = Self { servers, sentinels };
        for replica in &watched.servers[1..] {
            until("it follows", async || {
                replica.ask::<String>(&["INFO", "replication"]).await.contains("link_status:up")
            })
            .await;
        }
        for sentinel in &watched.sentinels {
            until("the sentinels know all", async || {
                let Some(state) = watched.state(sentinel).await else { return false };
                let has = |name: &str, value: &str| {
                    let at = state.iter().position(|word| word == name);
                    at.is_some_and(|at| state[at + 1] == value)
                };
                has("num-slaves", "2") && has("num-other-sentinels", "2") && has("flags", "master")
            })
            .await;
        }
        watched
    }

    async fn state(&self, sentinel: &Sentinel) -> Option<Vec<String>> {
        let url = format!("redis://127.0.0.1:{}", sentinel.port);
        let client = redis::Client::open(url).unwrap();
        let mut link = client.get_multiplexed_async_connection().await.ok()?;
        let mut ask = redis::cmd("SENTINEL");
        ask.arg("MASTER").arg(PRIMARY).query_async(&mut link).await.ok()
    }

    /// Waits until another server than this one is the primary; returns its number.
    pub async fn new_primary(&self, old: usize) -> usize {
        let found = AtomicUsize::new(old);
        until("another one takes over", async || {
            let Some(state) = self.state(&self.sentinels[0]).await else { return false };
            let at = state.iter().position(|word| word == "port").unwrap();
            for (number, server) in self.servers.iter().enumerate() {
                if number == old || state[at + 1] != server.port.to_string() {
                    continue;
                }
                let role = server.try_ask::<String>(&["INFO", "replication"]).await;
                if role.is_ok_and(|role| role.contains("role:master")) {
                    found.store(number, Ordering::Relaxed);
                }
            }
            found.load(Ordering::Relaxed) != old
        })
        .await;
        found.into_inner()
    }

    /// Stops a sentinel as a machine that hangs.
    pub fn freeze_sentinel(&self, number: usize) {
        let process = self.sentinels[number].process.id().to_string();
        assert!(Command::new("kill").args(["-STOP", &process]).status().unwrap().success());
    }

    pub fn settings(&self, prefix: &str) -> RedisServer {
        let hosts = self.sentinels.iter().map(|sentinel| ("127.0.0.1".into(), sentinel.port));
        let hosts = hosts.collect();
        RedisServer { hosts, sentinel: Some(PRIMARY.into()), ..self.servers[0].settings(prefix) }
    }
}

fn sentinel(engine: Engine, primary: &str) -> Sentinel {
    let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
    let file = folder.path().join("sentinel.conf");
    let text = format!(
        "bind 127.0.0.1\nport {port}\nsentinel monitor {PRIMARY} 127.0.0.1 {primary} 2\n\
         sentinel down-after-milliseconds {PRIMARY} 600\nsentinel failover-timeout {PRIMARY} 3000\n"
    );
    std::fs::write(&file, text).unwrap();
    let process = Command::new(engine.program())
        .env("LD_LIBRARY_PATH", engine.libraries())
        .arg(file)
        .arg("--sentinel")
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    Sentinel { port, process, _folder: folder }
}
