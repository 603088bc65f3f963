//! The real program with the embedded store is killed while a summary is written, after it was written, and after it
//! was used. There is one summary or none, and never two different beginnings.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::play::{MODEL, Stage, WINDOW, send_summary};
use crate::support::http1::{Call, Provider, Wire};
use crate::support::within;

const SUMMARY: &str = "The person asks numbered questions.";
/// How long the claim of a process on a shared store lasts after it died: longer than this test may take.
const LASTS_S: u64 = 600;

/// Words of a turn that fills the window.
const MANY: usize = 120;

/// One process.
struct Replica {
    child: Child,
    clients: SocketAddr,
    admin: SocketAddr,
    token: String,
}

impl Replica {
    async fn start(data: &Path, provider: &str) -> Self {
        let config = data.join("plimsoll.toml");
        let settings = format!(
            "[model.\"{MODEL}\"]\nwindow_tokens = {WINDOW}\n\
             [limits]\nstore_ms = 10000\n\
             [compact]\nengine = \"summary\"\nthreshold = 0.6\nprepare = 0.6\nkeep_messages = 4\n\
             timeout_s = {LASTS_S}\ncool_down_s = 0\n"
        );
        std::fs::write(&config, settings).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
            .args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--config"])
            .arg(&config)
            .arg("--data")
            .arg(data)
            .args(["--upstream", &format!("anthropic={provider}")])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = async {
            while let Some(line) = lines.next_line().await.unwrap() {
                if let Some((_, rest)) = line.split_once("listening on http://") {
                    let (clients, rest) = rest.split_once(" (admin http://").unwrap();
                    let admin = rest.trim_end_matches(')');
                    return (clients.parse().unwrap(), admin.parse().unwrap());
                }
            }
            panic!("it ended before it was ready");
        };
        let (clients, admin) = within("a process that serves", ready).await;
        let token = std::fs::read_to_string(data.join("admin.token")).unwrap().trim().to_owned();
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Self { child, clients, admin, token }
    }

    async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    /// Whether a summary is written and will be used at the threshold.
    async fn has_one_ready(&self) -> bool {
        let mut wire = Wire::connect(self.admin).await;
        let path = "/api/v1/sessions/s/threads/latest/context";
        let head = format!("GET {path} HTTP/1.1\r\nhost: {}\r\n", self.admin);
        wire.send(format!("{head}authorization: Bearer {}\r\n\r\n", self.token)).await;
        let answer: Value = serde_json::from_str(wire.response().await.text()).unwrap();
        !answer["compactions"]["ready"].is_null()
    }
}

/// A client that sends its whole history each time, to either replica.
struct Talk {
    stage: Stage,
    history: Vec<Value>,
}

impl Talk {
    /// One turn with this many words; returns what the provider received.
    async fn turn(&mut self, replica: &Replica, count: usize) -> Value {
        let text = format!("Question {}: {}", self.history.len() / 2, "more ".repeat(count));
        self.history.push(json!({"role": "user", "content": text}));
        let body =
            json!({"model": MODEL, "max_tokens": 1000, "messages": self.history}).to_string();
        let mut client = Wire::connect(replica.clients).await;
        let head = format!(
            "POST /v1/messages HTTP/1.1\r\nhost: localhost\r\nx-api-key: k\r\nx-plimsoll-session: s\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        client.send(format!("{head}{body}")).await;
        let response = client.response().await;
        assert_eq!(response.status(), 200, "{}", response.text());
        let reply: Value = serde_json::from_str(response.text()).unwrap();
        self.history.push(json!({"role": "assistant", "content": reply["content"]}));
        let (_, sent) = self.stage.turns.lock().unwrap().last().unwrap().clone();
        serde_json::from_str(&sent).unwrap()
    }

    /// Plays turns until a summary is requested. None of them is compacted: the history is sent whole.
    async fn until_question(&mut self, replicas: &[&Replica], count: usize) -> Call {
        for number in 0..200 {
            let sent = self.turn(replicas[number % replicas.len()], count).await;
            assert_eq!(sent["messages"].as_array().unwrap().len() + 1, self.history.len());
            let receiving = self.stage.summaries.recv();
            if let Ok(call) = tokio::time::timeout(Duration::from_millis(100), receiving).await {
                return call.unwrap();
            }
        }
        panic!("nobody asked for a summary");
    }

    /// Plays turns until a summary is used; returns the first message of that request.
    async fn is_used(&mut self, replicas: &[&Replica]) -> Value {
        for number in 0..40 {
            let sent = self.turn(replicas[number % replicas.len()], MANY).await;
            if sent.to_string().contains(SUMMARY) {
                return sent["messages"][0].clone();
            }
        }
        panic!("it was never used");
    }
}

async fn talk(provider: Provider) -> Talk {
    Talk { stage: Stage::of(provider), history: Vec::new() }
}

#[tokio::test]
async fn killed_process_leaves_one_summary() {
    let (data, provider) = (tempfile::tempdir().unwrap(), Provider::start().await);
    let base = provider.base();
    let mut talk = talk(provider).await;
    let replica = Replica::start(data.path(), &base).await;
    let question = talk.until_question(&[&replica], MANY).await;
    replica.kill().await;
    drop(question);

    // The summary was never written: nothing is used. The claim of the killed process is dropped at the start, so the
    // next process asks again at once, and no request waits for the dead one.
    let replica = Replica::start(data.path(), &base).await;
    let question = talk.until_question(&[&replica], 1).await;
    send_summary(question, SUMMARY).await;
    let written = async {
        while !replica.has_one_ready().await {
            tokio::task::yield_now().await;
        }
    };
    within("a summary that is ready", written).await;
    replica.kill().await;

    // It was written and not used: the next process uses it without a new request.
    let replica = Replica::start(data.path(), &base).await;
    let first = talk.is_used(&[&replica]).await;
    replica.kill().await;

    // It was used: it is repeated.
    let replica = Replica::start(data.path(), &base).await;
    let sent = talk.turn(&replica, 1).await;
    assert_eq!(sent["messages"][0], first);
    // Later messages may need the next summary, whose request begins with this one.
    if let Ok(question) = talk.stage.summaries.try_recv() {
        let question = question.message.text().to_owned();
        assert!(question.contains(SUMMARY), "asked again for what was written: {question}");
    }
    replica.kill().await;
}
