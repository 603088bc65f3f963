//! A Redis or Valkey server of its own for a test, on a free port of loopback, with its data in a temporary folder.
//!
//! It is killed when it is dropped.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use plimsoll::store::redis::RedisServer;
use tempfile::TempDir;

/// How long sessions live that nobody uses.
pub const LIFE: Duration = Duration::from_secs(3600);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    Redis,
    Valkey,
}

impl Engine {
    pub fn program(self) -> PathBuf {
        let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join(".tools/fleet");
        let program = match self {
            Self::Redis => tools.join("redis/usr/bin/redis-server"),
            Self::Valkey => tools.join("valkey/valkey-server"),
        };
        assert!(program.exists(), "{} is missing: run scripts/tools", program.display());
        program
    }

    /// Where its libraries are.
    pub fn libraries(self) -> PathBuf {
        let folder = format!(".tools/fleet/redis/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
        Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)
    }
}

pub struct Server {
    engine: Engine,
    pub port: u16,
    pub folder: TempDir,
    options: Vec<String>,
    process: Child,
}

impl Server {
    pub async fn start(engine: Engine) -> Self {
        Self::with_options(engine, &[]).await
    }

    /// `PORT` in an option stands for its port.
    pub async fn with_options(engine: Engine, options: &[&str]) -> Self {
        let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
        for _ in 0..20 {
            let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
            let process = launch(engine, port, folder.path(), &options);
            let options = options.clone();
            let mut server = Self { engine, port, folder, options, process };
            if server.answers().await {
                return server;
            }
            // Another process was faster to take the port.
        }
        panic!("{engine:?} does not start");
    }

    /// Whether it answers, soon.
    async fn answers(&mut self) -> bool {
        for _ in 0..600 {
            if self.process.try_wait().unwrap().is_some() {
                return false;
            }
            if tokio::net::TcpStream::connect(("127.0.0.1", self.port)).await.is_ok() {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        false
    }

    /// Kills it as `kill -9` does.
    pub fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Starts it again after it was killed, with the data that it had on its disk.
    pub async fn restart(&mut self) {
        self.process = launch(self.engine, self.port, self.folder.path(), &self.options);
        assert!(self.answers().await, "it does not start again");
    }

    pub fn settings(&self, prefix: &str) -> RedisServer {
        RedisServer {
            hosts: vec![("127.0.0.1".into(), self.port)],
            prefix: prefix.into(),
            ..RedisServer::default()
        }
    }
}

impl Server {
    /// Stops it as a machine that hangs: connections stay open, and nothing is answered.
    pub fn freeze(&self) {
        self.signal("STOP");
    }

    pub fn thaw(&self) {
        self.signal("CONT");
    }

    fn signal(&self, signal: &str) {
        let process = self.process.id().to_string();
        let sent = Command::new("kill").args([&format!("-{signal}"), &process]).status();
        assert!(sent.unwrap().success());
    }

    pub async fn connect(&self) -> redis::aio::MultiplexedConnection {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.port)).unwrap();
        client.get_multiplexed_async_connection().await.unwrap()
    }

    /// Runs one command.
    pub async fn ask<T: redis::FromRedisValue>(&self, command: &[&str]) -> T {
        self.try_ask(command).await.unwrap()
    }

    /// Runs one command that may fail.
    pub async fn try_ask<T: redis::FromRedisValue>(
        &self,
        command: &[&str],
    ) -> redis::RedisResult<T> {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.port))?;
        let mut link = client.get_multiplexed_async_connection().await?;
        let mut asked = redis::cmd(command[0]);
        asked.arg(&command[1..]).query_async(&mut link).await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A port below those that the system gives to connections: another test's client could have one of those before its
/// server starts.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = std::process::id() as u16;
    loop {
        let port = 20_000 + first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % 12_000;
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

fn launch(engine: Engine, port: u16, folder: &Path, options: &[String]) -> Child {
    Command::new(engine.program())
        .env("LD_LIBRARY_PATH", engine.libraries())
        .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", ""])
        .args(["--appendonly", "yes", "--appendfsync", "everysec", "--dir"])
        .arg(folder)
        .args(options.iter().map(|option| option.replace("PORT", &port.to_string())))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}
