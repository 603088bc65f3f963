//! The binary as a child process, without this machine's configuration.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader, Lines};
use tokio::process::{Child, Command};
use tokio::sync::watch;

use super::support::http1::{Message, Wire};
use super::support::within;

/// A command that is killed if the test ends first.
pub fn plimsoll(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.args(arguments).env_clear().kill_on_drop(true);
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.env("HOME", std::env::temp_dir().join("plimsoll-no-home"));
    command.current_dir(std::env::temp_dir());
    command
}

pub struct Done {
    pub code: i32,
    pub out: String,
    pub err: String,
}

/// Runs it to its end.
pub async fn run(arguments: &[&str]) -> Done {
    let child = plimsoll(arguments).stdin(Stdio::null()).output();
    let done = within("the program to end", child).await.unwrap();
    Done {
        code: done.status.code().unwrap(),
        out: String::from_utf8(done.stdout).unwrap(),
        err: String::from_utf8(done.stderr).unwrap(),
    }
}

pub fn lines<R: AsyncRead + Unpin>(from: R) -> Lines<BufReader<R>> {
    BufReader::new(from).lines()
}

/// Sends a POST; the response can be read from the returned connection.
pub async fn post(to: SocketAddr, path: &str, body: &str, headers: &[(&str, &str)]) -> Wire {
    let mut wire = Wire::connect(to).await;
    let headers: String =
        headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let length = body.len();
    wire.send(format!(
        "POST {path} HTTP/1.1\r\nhost: {to}\r\ncontent-type: application/json\r\n{headers}content-length: {length}\r\n\r\n{body}"
    ))
    .await;
    wire
}

/// `plimsoll serve` in front of one provider for all dialects.
pub struct Serving {
    child: Child,
    pub clients: SocketAddr,
    pub admin: SocketAddr,
    /// The admin listener's token, from its file; empty if one is configured.
    pub token: String,
    /// What is printed after the ready line: the mode, the data folder, and on loopback an example.
    pub first_steps: Vec<String>,
    log: Arc<Mutex<String>>,
    grown: watch::Receiver<()>,
    pub data: tempfile::TempDir,
}

impl Serving {
    pub async fn start(base: &str, more: &[&str]) -> Self {
        let data = tempfile::tempdir().unwrap();
        let upstreams = ["anthropic", "openai", "gemini"].map(|name| format!("{name}={base}"));
        let mut arguments = vec!["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
        if !more.contains(&"--data") {
            arguments.extend(["--data", data.path().to_str().unwrap()]);
        }
        for upstream in &upstreams {
            arguments.extend(["--upstream", upstream.as_str()]);
        }
        arguments.extend(more);
        let mut child = plimsoll(&arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = lines(child.stdout.take().unwrap());
        let ready = within("the ready line", out.next_line()).await.unwrap();
        let ready = ready.expect("it ended before it was ready");
        let pieces: Vec<&str> = ready.split(['/', ' ', ')']).collect();
        let mut addresses = pieces.iter().filter_map(|word| word.parse().ok());
        let (clients, admin): (SocketAddr, SocketAddr) =
            (addresses.next().unwrap(), addresses.next().unwrap());
        let scheme = |before: &str| {
            if ready.contains(&format!("{before}https:")) { "https" } else { "http" }
        };
        let expected = format!(
            "plimsoll: listening on {}://{clients} (admin {}://{admin})",
            scheme("on "),
            scheme("(admin "),
        );
        assert_eq!(ready, expected);
        let folder = more.iter().skip_while(|word| **word != "--data").nth(1);
        let folder = folder.map_or(data.path(), |folder| Path::new(*folder));
        let token = std::fs::read_to_string(folder.join("admin.token")).unwrap_or_default();
        let token = token.trim().to_owned();
        let mut first_steps = Vec::new();
        for _ in 0..5 {
            let line = within("the lines after it", out.next_line()).await.unwrap();
            first_steps.push(line.expect("it ended before it said what it does"));
        }
        let (log, grown) = follow(child.stderr.take().unwrap());
        Self { child, clients, admin, token, first_steps, log, grown, data }
    }

    pub async fn post(&self, path: &str, body: &str, headers: &[(&str, &str)]) -> Wire {
        post(self.clients, path, body, headers).await
    }

    /// Sends a GET to the client listener.
    pub async fn get(&self, path: &str, headers: &[(&str, &str)]) -> Wire {
        let mut wire = Wire::connect(self.clients).await;
        let headers: String =
            headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        wire.send(format!("GET {path} HTTP/1.1\r\nhost: {}\r\n{headers}\r\n", self.clients)).await;
        wire
    }

    /// Sends a GET to the admin listener.
    pub async fn ask(&self, path: &str) -> Message {
        let mut wire = Wire::connect(self.admin).await;
        let head = format!("GET {path} HTTP/1.1\r\nhost: {}\r\n", self.admin);
        wire.send(format!("{head}authorization: Bearer {}\r\n\r\n", self.token)).await;
        wire.response().await
    }

    /// Sends another request to the admin listener, with this token, or without one if it is empty.
    pub async fn ask_as(&self, method: &str, path: &str, token: &str, body: &str) -> Message {
        let mut wire = Wire::connect(self.admin).await;
        let (host, length) = (self.admin, body.len());
        let head = format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {length}");
        let token = if token.is_empty() {
            String::new()
        } else {
            format!("\r\nauthorization: Bearer {token}")
        };
        wire.send(format!("{head}{token}\r\n\r\n{body}")).await;
        wire.response().await
    }

    /// Reads the metrics until they contain `text`.
    pub async fn wait_for_metrics(&self, text: &str) -> String {
        let saying = async {
            loop {
                let metrics = self.ask("/metrics").await;
                if metrics.text().contains(text) {
                    return metrics.text().to_owned();
                }
            }
        };
        within(text, saying).await
    }

    /// Reads the metrics until this series, which may begin at 0, is above 0.
    pub async fn counted(&self, series: &str) {
        let is_counted = |line: &str| {
            let value = line.strip_prefix(series).map(|rest| rest.trim().parse::<f64>());
            value.is_some_and(|value| value.is_ok_and(|value| value > 0.0))
        };
        let counting = async {
            while !self.ask("/metrics").await.text().lines().any(is_counted) {
                tokio::task::yield_now().await;
            }
        };
        within(series, counting).await;
    }

    /// Runs a sub-command that queries this server.
    pub async fn look(&self, arguments: &[&str]) -> Done {
        let data = self.data.path().to_str().unwrap();
        run(&[arguments, &["--data", data]].concat()).await
    }

    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Waits until the log contains `text`.
    pub async fn wait_for_log(&mut self, text: &str) {
        let (log, grown) = (self.log.clone(), &mut self.grown);
        let saying = async {
            while !log.lock().unwrap().contains(text) {
                grown.changed().await.expect("the log ended");
            }
        };
        within(text, saying).await;
    }

    /// The whole log, once the program has ended.
    #[allow(dead_code, reason = "the faults ask for it")]
    pub async fn log_to_its_end(&mut self) -> String {
        let ending = async { while self.grown.changed().await.is_ok() {} };
        within("the log's end", ending).await;
        self.log()
    }

    /// The process id.
    #[allow(dead_code, reason = "the attacks ask for it")]
    pub fn process(&self) -> u32 {
        self.child.id().unwrap()
    }

    pub async fn signal(&self, name: &str) {
        signal(&self.child, name).await;
    }

    /// Waits until the process has ended in any way.
    #[allow(dead_code, reason = "not every target that runs the program kills it")]
    pub async fn gone(&mut self) {
        within("the program to end", self.child.wait()).await.unwrap();
    }

    /// Its exit code, once it ends.
    pub async fn ended(&mut self) -> i32 {
        within("the program to end", self.child.wait()).await.unwrap().code().unwrap()
    }
}

pub async fn signal(child: &Child, name: &str) {
    let id = child.id().unwrap().to_string();
    let sent = Command::new("kill").args([&format!("-{name}"), &id]).status().await.unwrap();
    assert!(sent.success());
}

/// Reads a log while it is written.
fn follow(
    from: impl AsyncRead + Unpin + Send + 'static,
) -> (Arc<Mutex<String>>, watch::Receiver<()>) {
    let log = Arc::new(Mutex::new(String::new()));
    let (grow, grown) = watch::channel(());
    let (mut from, written) = (lines(from), log.clone());
    tokio::spawn(async move {
        while let Ok(Some(line)) = from.next_line().await {
            written.lock().unwrap().push_str(&format!("{line}\n"));
            let _ = grow.send(());
        }
    });
    (log, grown)
}
