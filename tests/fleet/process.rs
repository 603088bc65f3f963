//! The program itself as a replica, before a scripted provider.

use std::process::Stdio;

use scripted_provider::strict::{self, Clock, Rules, StrictProvider, StrictServer};
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::{Child, ChildStderr, Command};

use crate::fleet::MODEL;
use crate::support::http1::Wire;
use crate::support::within;

/// The program, with a folder of its own.
pub struct Replica {
    pub process: Child,
    pub address: std::net::SocketAddr,
    pub admin: std::net::SocketAddr,
    pub data: tempfile::TempDir,
}

pub fn program(data: &std::path::Path, variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command
        .env_clear()
        .env("PLIMSOLL_LISTEN", "127.0.0.1:0")
        .env("PLIMSOLL_ADMIN", "127.0.0.1:0")
        .env("PLIMSOLL_METRICS_OPEN", "true")
        .env("PLIMSOLL_DATA", data)
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

impl Replica {
    pub async fn start(provider: &StrictServer, variables: &[(&str, &str)]) -> Self {
        let data = tempfile::tempdir().unwrap();
        let mut process = program(data.path(), variables)
            .args(["serve", "--upstream", &format!("anthropic={}", provider.base())])
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let ready = within("the ready line", lines.next_line()).await.unwrap().unwrap();
        let ports: Vec<u16> = ready
            .split("127.0.0.1:")
            .skip(1)
            .map(|rest| {
                let digits = rest.find(|it: char| !it.is_ascii_digit()).unwrap_or(rest.len());
                rest[..digits].parse().unwrap()
            })
            .collect();
        let [address, admin] = [ports[0], ports[1]].map(|port| ([127, 0, 0, 1], port).into());
        Self { process, address, admin, data }
    }

    /// One turn of a session.
    pub async fn say(&self, session: &str, text: &str) {
        assert_eq!(self.status_of(session, text).await, 200);
    }

    /// The status of one turn of a session.
    pub async fn status_of(&self, session: &str, text: &str) -> u16 {
        let messages = json!([{"role": "user", "content": text}]);
        let body = json!({"model": MODEL, "max_tokens": 100, "messages": messages}).to_string();
        let mut client = Wire::connect(self.address).await;
        client
            .send(format!(
                "POST /v1/messages HTTP/1.1\r\nhost: localhost\r\nx-api-key: k\r\n\
                 anthropic-version: 2023-06-01\r\nx-plimsoll-session: {session}\r\n\
                 content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            ))
            .await;
        client.response().await.status()
    }

    /// Sends a request line, and headers, to the admin listener.
    pub async fn view(&self, request: &str) -> String {
        let mut client = Wire::connect(self.admin).await;
        client.send(format!("{request}\r\nhost: localhost\r\n\r\n")).await;
        client.response().await.text().to_owned()
    }

    pub async fn command(&self, arguments: &[&str]) -> String {
        let output = program(self.data.path(), &[]).args(arguments).output().await.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Ends it as an orchestrator does; returns its log.
    pub async fn end(mut self) -> String {
        let id = self.process.id().unwrap().to_string();
        let sent = Command::new("kill").args(["-TERM", &id]).status().await;
        assert!(sent.unwrap().success());
        within("its end", self.process.wait()).await.unwrap();
        rest(self.process.stderr.take().unwrap()).await
    }
}

pub async fn rest(mut stderr: ChildStderr) -> String {
    let mut log = String::new();
    stderr.read_to_string(&mut log).await.unwrap();
    log
}

pub async fn provider() -> StrictServer {
    let provider = StrictProvider::with_clock(Rules::default(), 7, Clock::manual());
    strict::serve(provider).await.unwrap()
}
