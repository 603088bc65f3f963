//! Attacks that never worked, kept so that they never will: requests hidden in requests, names that contain SQL,
//! recordings that are bombs, plain HTTP on a TLS port.

use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::program::{self, Serving};
use super::support::http1::{Message, Provider, Wire};
use super::support::{h2, within};

/// A provider that responds to every request with its target, and stores the requests.
#[derive(Clone, Default)]
struct Echo {
    requests: Arc<Mutex<Vec<Message>>>,
}

impl Echo {
    async fn start() -> (Self, String) {
        let (echo, provider) = (Self::default(), Provider::start().await);
        let (base, received) = (provider.base(), echo.clone());
        tokio::spawn(async move {
            loop {
                let wire = provider.accept().await;
                tokio::spawn(received.clone().serve(wire));
            }
        });
        (echo, base)
    }

    async fn serve(self, mut wire: Wire) {
        loop {
            let request = wire.message(true).await;
            let target = request.first_line().split(' ').nth(1).unwrap_or_default().to_owned();
            self.requests.lock().unwrap().push(request);
            let length = target.len();
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{target}");
            wire.send(head).await;
        }
    }

    fn received(&self) -> Vec<Message> {
        self.requests.lock().unwrap().clone()
    }
}

/// A body that is itself a request, if the request around it is taken to end too early.
const HIDDEN: &str = "GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n";

/// Requests that two servers could end at different places.
fn disagreements() -> Vec<String> {
    let length = HIDDEN.len();
    let chunked = format!("0\r\n\r\n{HIDDEN}");
    let after = |lines: &str, body: &str| {
        format!("POST /v1/messages HTTP/1.1\r\nhost: 127.0.0.1\r\n{lines}\r\n\r\n{body}")
    };
    let both = format!("content-length: {}\r\ntransfer-encoding: chunked", chunked.len());
    let mut forms = vec![
        after(&both, &chunked),
        after(&format!("transfer-encoding: chunked\r\ncontent-length: {length}"), &chunked),
        after(&format!("content-length: 0\r\ncontent-length: {length}"), HIDDEN),
        after(&format!("content-length: 0, {length}"), HIDDEN),
        after("content-length: +0", HIDDEN),
        after("content-length: 0x0", HIDDEN),
        after(&format!("content-length : 0\r\ncontent-length: {length}"), HIDDEN),
        after(&format!("content-length: 0\r\n content-length: {length}"), HIDDEN),
        after(&format!("x: y\r\n\tcontent-length: 0\r\ncontent-length: {length}"), HIDDEN),
        after("transfer-encoding: chunked", &format!("0;x={}\r\n\r\n{HIDDEN}", "y".repeat(99))),
        after("transfer-encoding: chunked", &format!("0\n\r\n{HIDDEN}")),
        after("transfer-encoding: chunked", &format!("ffffffffffffffff1\r\n{HIDDEN}")),
        after("transfer-encoding: chunked", &format!("0\r\nx: y\r\n\r\n{HIDDEN}")),
        after("x: y\nx-hidden: GET /smuggled", ""),
        after("x: y\r\ncontent-length: 0\0", HIDDEN),
        format!(
            "POST /v1/messages%0d%0ahost:%20x%0d%0a%0d%0aGET%20/smuggled HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 0\r\n\r\n"
        ),
        format!(
            "POST /v1/messages HTTP/1.0\r\ntransfer-encoding: chunked\r\ncontent-length: {length}\r\n\r\n{chunked}"
        ),
    ];
    for coding in [
        "xchunked",
        "chunked, identity",
        "identity, chunked",
        "\x0bchunked",
        "chunked\t",
        "chu\0nked",
    ] {
        let lines = format!("content-length: {}\r\ntransfer-encoding: {coding}", chunked.len());
        forms.push(after(&lines, &chunked));
        forms.push(after(&format!("transfer-encoding: {coding}"), &chunked));
    }
    forms
}

async fn response_to(clients: SocketAddr, target: &str) -> Message {
    let mut wire = Wire::connect(clients).await;
    let request =
        format!("POST {target} HTTP/1.1\r\nhost: {clients}\r\ncontent-length: 2\r\n\r\n{{}}");
    wire.send(request).await;
    wire.response().await
}

#[tokio::test]
async fn no_request_is_smuggled() {
    let (echo, base) = Echo::start().await;
    let serving = Serving::start(&base, &[]).await;
    for (at, form) in disagreements().into_iter().enumerate() {
        let mut stream = TcpStream::connect(serving.clients).await.unwrap();
        stream.write_all(form.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answers = Vec::new();
        // It does not matter here how the request is answered or refused.
        let _ = within("an end", stream.read_to_end(&mut answers)).await;
        let target = format!("/v1/messages?after={at}");
        assert_eq!(response_to(serving.clients, &target).await.text(), target, "after {form:?}");
        let answers = String::from_utf8_lossy(&answers).into_owned();
        assert!(!answers.contains("\r\n\r\n/smuggled"), "{form:?} was answered {answers:?}");
    }
    let received = echo.received();
    assert!(received.len() > disagreements().len(), "the provider got hardly any request");
    for request in received {
        assert!(request.first_line().starts_with("POST /v1/messages"), "{request:?}");
        let framings = ["content-length", "transfer-encoding"].map(|name| {
            request.lines().iter().filter(|line| line.to_lowercase().starts_with(name)).count()
        });
        assert!(
            framings.iter().sum::<usize>() <= 1,
            "two lengths were forwarded: {}",
            request.head
        );
    }
}

#[tokio::test]
async fn sql_in_names_is_never_executed() {
    let (_, base) = Echo::start().await;
    let serving = Serving::start(&base, &[]).await;
    let body = r#"{"model":"m'; DROP TABLE facts; --","max_tokens":1,"messages":[{"role":"user","content":"Hi."}]}"#;
    for name in ["x'--", "x\"; DROP TABLE facts; --", "' OR '1'='1", "%", "_"] {
        let headers = [("x-api-key", name), ("x-plimsoll-session", name)];
        let answer = serving.post("/v1/messages", body, &headers).await.response().await;
        assert_eq!(answer.status(), 200);
    }
    let listed = serving.look(&["sessions", "--json"]).await;
    assert_eq!(listed.code, 0, "{}", listed.err);
    for name in ["x%27%20OR%20%271%27=%271", "%25", "_", "%27%3BDROP%20TABLE%20facts"] {
        let shown = serving.look(&["context", name]).await;
        assert_eq!(shown.code, 1, "{name} found something: {}", shown.out);
    }
    let later = serving.look(&["sessions", "--json"]).await;
    assert_eq!(later.code, 0, "{}", later.err);
}

/// A user looks at files that a stranger sent: the result is an error or a table, in limited time, never a crash.
#[tokio::test]
async fn hostile_replay_never_crashes() {
    let folder = tempfile::tempdir().unwrap();
    let deep = "[".repeat(1_000_000);
    let digits = format!("{{\"usage\":{{\"input\":{}}}}}\n", "9".repeat(100_000));
    let long = format!("{{\"type\":\"{}\"}}\n", "x".repeat(4_000_000));
    let files: [(&str, Vec<u8>); 6] = [
        ("deep", deep.into_bytes()),
        ("digits", digits.into_bytes()),
        ("long", long.into_bytes()),
        ("noise", super::support::noise(7, 1 << 20)),
        ("nul", vec![0; 1 << 20]),
        ("surrogate", br#"{"type":"user","message":{"content":"\ud800"}}"#.to_vec()),
    ];
    for (name, bytes) in files {
        let file = folder.path().join(format!("{name}.jsonl"));
        std::fs::write(&file, bytes).unwrap();
        let done = program::run(&["replay", file.to_str().unwrap()]).await;
        assert!(matches!(done.code, 0 | 1), "{name}: {} {}", done.code, done.err);
        assert!(!done.err.contains("panicked"), "{name}: {}", done.err);
    }
}

/// A few kilobytes become megabytes of short values, which take gigabytes once they are parsed.
#[tokio::test]
async fn recording_that_inflates_without_end_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bomb.jsonl.zst");
    let mut bomb = zstd::Encoder::new(std::fs::File::create(&file).unwrap(), 1).unwrap();
    let attachment = "0,".repeat(1 << 20);
    let line = format!(
        r#"{{"session":"s","model":"gpt-5","provider":"openai","usage":{{}},"new_parts":[{{"role":"user","kind":"text","attachment":[{attachment}0]}}]}}"#
    );
    for _ in 0..9 {
        std::io::Write::write_all(&mut bomb, line.as_bytes()).unwrap();
        std::io::Write::write_all(&mut bomb, b"\n").unwrap();
    }
    bomb.finish().unwrap();
    assert!(std::fs::metadata(&file).unwrap().len() < 1 << 16);
    let done = program::run(&["replay", file.to_str().unwrap()]).await;
    assert_eq!(done.code, 1);
    assert!(done.err.contains("decompresses to more than 64 times its size"), "{}", done.err);
}

#[tokio::test]
async fn plain_http_on_tls_port_gets_no_http_response() {
    let (echo, base) = Echo::start().await;
    let certificates = h2::certificates();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plimsoll.toml");
    let config = format!(
        "[tls]\ncertificate = {:?}\nkey = {:?}\n",
        certificates.certificate.display().to_string(),
        certificates.key.display().to_string()
    );
    std::fs::write(&file, config).unwrap();
    let upstream = format!("anthropic={base}");
    let listening = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--upstream", &upstream];
    let kept = ["--data", folder.path().to_str().unwrap(), "--config", file.to_str().unwrap()];
    let mut child = program::plimsoll(&[&["serve"], &listening[..], &kept[..]].concat())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut out = program::lines(child.stdout.take().unwrap());
    let ready = within("the ready line", out.next_line()).await.unwrap().unwrap();
    let address = ready.split("https://").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream
        .write_all(b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n")
        .await
        .unwrap();
    let mut answer = Vec::new();
    let _ = within("an end", stream.read_to_end(&mut answer)).await;
    assert!(!answer.starts_with(b"HTTP/"), "{}", String::from_utf8_lossy(&answer));
    assert!(echo.received().is_empty());
}
