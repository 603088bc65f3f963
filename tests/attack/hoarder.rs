//! The stranger here is a client that takes more memory than its share, or an upstream that does.
//!
//! Each flood runs against a process of its own that may use 256 MiB, and is otherwise configured by default. Afterwards
//! the process must never have had more resident, and must respond as before.

mod connections;
mod streams;
mod tls;
mod upstream;

use std::io::Write as _;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use flate2::Compression;
use futures_util::future::join_all;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::program::Serving;
use super::support::digest;
use super::support::h2;
use upstream::Upstream;

/// What the shipped manifests allow, and what is promised.
const PROMISED: u64 = 256 << 20;
/// As many connections as fit into it, and some more for honest clients.
const MANY: usize = 1500;
/// The longest time for a flood; it takes far less.
const TIMEOUT: Duration = Duration::from_secs(120);
/// How long a process has nothing to do before what it holds is held for good.
const IDLE: Duration = Duration::from_secs(60);
/// One that works for so long after a flood never ends it.
const ENDLESS: Duration = Duration::from_secs(600);
/// As much work as one that has nothing to do may do in half a second.
const A_LITTLE: Duration = Duration::from_millis(20);
const PATH: &str = "/v1/chat/completions";
/// A path whose responses are not read by the observer.
const FILE: &str = "/openai/v1/files/f/content";

/// A flooded process, and its upstream.
struct Flooded {
    serving: Serving,
    upstream: Upstream,
    /// Resident bytes before the flood, after some requests.
    before: u64,
}

impl Flooded {
    async fn start() -> Self {
        let upstream = Upstream::start().await;
        let serving = serving_in_256_mib(&upstream, "").await;
        // What is allocated only once, by the first requests, is allocated before the measurement.
        let body = conversation("m", "How heavy is a ship?");
        ask_at_once(serving.clients, 20, "", body.as_bytes()).await;
        let before = resident_of(&serving);
        Self { serving, upstream, before }
    }

    fn to(&self) -> SocketAddr {
        self.serving.clients
    }

    /// The most bytes that were resident since the process began.
    fn peak(&self) -> u64 {
        status_of(&self.serving, "VmHWM:")
    }

    /// The promise: the peak is within the limit, and an honest client's request is forwarded unchanged and gets its
    /// response.
    async fn holds_its_promise(&self, flood: &str) {
        self.answers_unchanged(flood).await;
        let peak = self.peak();
        println!("{flood}: {} MiB at most", peak >> 20);
        assert!(peak <= PROMISED, "{flood}: {} MiB were resident", peak >> 20);
    }

    /// An honest client's request is forwarded unchanged and gets its response.
    async fn answers_unchanged(&self, flood: &str) {
        let body = conversation("m", "How heavy is a ship?");
        let answer = ask(self.to(), "x-digest: yes\r\n", body.as_bytes()).await;
        let text = String::from_utf8_lossy(&answer);
        assert!(text.starts_with("HTTP/1.1 200"), "{flood}: {text}");
        assert!(text.contains(&digest(body.as_bytes())), "{flood}: the body was changed");
    }

    /// Waits until the metrics count that something was skipped for this reason.
    async fn failed_open_for(&self, reason: &str) {
        let counted = format!("plimsoll_fail_open_total{{reason=\"{reason}\"}}");
        self.serving.counted(&counted).await;
    }
}

/// A process that may use 256 MiB.
async fn serving_in_256_mib(upstream: &Upstream, config: &str) -> Serving {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plimsoll.toml");
    std::fs::write(&file, format!("[limits]\nprocess_bytes = {PROMISED}\n{config}")).unwrap();
    Serving::start(&upstream.base(), &["--config", file.to_str().unwrap()]).await
}

/// Resident bytes.
fn resident_of(serving: &Serving) -> u64 {
    status_of(serving, "VmRSS:")
}

/// An entry of the process's status in /proc, in bytes.
fn status_of(serving: &Serving, name: &str) -> u64 {
    let file = format!("/proc/{}/status", serving.process());
    let status = std::fs::read_to_string(file).unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// Waits until the process has at most this many resident bytes, or has had nothing to do for a while: on a busy machine it
/// takes long to end what a flood began. Returns how many it has.
async fn settled(serving: &Serving, most: u64) -> u64 {
    let began = Instant::now();
    let mut worked = (processor_time_of(serving), Instant::now());
    loop {
        let resident = resident_of(serving);
        if resident <= most || worked.1.elapsed() > IDLE || began.elapsed() > ENDLESS {
            return resident;
        }
        sleep(Duration::from_millis(500)).await;
        let time = processor_time_of(serving);
        if time > worked.0 + A_LITTLE {
            worked = (time, Instant::now());
        }
    }
}

/// The time that processors have worked for the process.
fn processor_time_of(serving: &Serving) -> Duration {
    let line = std::fs::read_to_string(format!("/proc/{}/stat", serving.process())).unwrap();
    // Behind the name, which may have spaces: user and system time are the twelfth and thirteenth, in hundredths of a second.
    let (_, words) = line.rsplit_once(')').unwrap();
    let words = words.split_whitespace().skip(11).take(2);
    Duration::from_millis(words.map(|word| word.parse::<u64>().unwrap() * 10).sum())
}

/// A chat request.
fn conversation(model: &str, text: &str) -> String {
    format!(r#"{{"model":"{model}","messages":[{{"role":"user","content":"{text}"}}]}}"#)
}

fn head(to: SocketAddr, headers: &str, length: usize) -> String {
    format!(
        "POST {PATH} HTTP/1.1\r\nhost: {to}\r\ncontent-type: application/json\r\n\
         connection: close\r\n{headers}content-length: {length}\r\n\r\n"
    )
}

/// Sends a request on a connection of its own, and reads the whole response.
async fn ask(to: SocketAddr, headers: &str, body: &[u8]) -> Vec<u8> {
    let asking = async {
        let mut stream = TcpStream::connect(to).await.unwrap();
        stream.write_all(head(to, headers, body.len()).as_bytes()).await.unwrap();
        stream.write_all(body).await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        answer
    };
    timeout(TIMEOUT, asking).await.unwrap()
}

/// Sends this many requests at once; each must get a response from the upstream.
async fn ask_at_once(to: SocketAddr, times: usize, headers: &str, body: &[u8]) {
    for answer in join_all((0..times).map(|_| ask(to, headers, body))).await {
        let start = String::from_utf8_lossy(&answer[..answer.len().min(200)]).into_owned();
        assert!(start.starts_with("HTTP/1.1 200"), "{start}");
    }
}

/// A conversation of this many bytes, compressed to a few kB.
fn bomb(coding: &str, bytes: usize) -> Vec<u8> {
    let body = conversation("m", &"a".repeat(bytes));
    encoded(coding, body.as_bytes())
}

fn encoded(coding: &str, body: &[u8]) -> Vec<u8> {
    match coding {
        "gzip" => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(body).unwrap();
            encoder.finish().unwrap()
        }
        "deflate" => {
            let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(body).unwrap();
            encoder.finish().unwrap()
        }
        "br" => {
            let mut out = Vec::new();
            let mut encoder = brotli::CompressorWriter::new(&mut out, 1 << 16, 1, 24);
            encoder.write_all(body).unwrap();
            drop(encoder);
            out
        }
        _ => {
            let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
            encoder.window_log(23).unwrap();
            encoder.write_all(body).unwrap();
            encoder.finish().unwrap()
        }
    }
}

#[tokio::test]
async fn requests_with_many_content_codings_stay_within_memory() {
    let flooded = Flooded::start().await;
    let body = conversation("m", "hello");
    for length in [20_000, 31_000] {
        let line = format!("content-encoding: {}gzip\r\n", "br, ".repeat(length / 4));
        ask_at_once(flooded.to(), 4, &line, body.as_bytes()).await;
    }
    // One header line each: hyper accepts no more of them.
    ask_at_once(flooded.to(), 4, &"content-encoding: zstd\r\n".repeat(90), body.as_bytes()).await;
    flooded.holds_its_promise("many codings of requests").await;
    flooded.failed_open_for("too_many_codings").await;
}

#[tokio::test]
async fn responses_with_many_content_codings_stay_within_memory() {
    let flooded = Flooded::start().await;
    let body = conversation("m", "hello");
    ask_at_once(flooded.to(), 4, "x-flood: codings\r\n", body.as_bytes()).await;
    flooded.holds_its_promise("many codings of answers").await;
    flooded.failed_open_for("too_many_codings").await;
}

#[tokio::test]
async fn compressed_request_bombs_share_one_memory_budget() {
    let flooded = Flooded::start().await;
    let mut requests = Vec::new();
    for coding in ["gzip", "deflate", "br", "zstd"] {
        // One just below the body limit, one past it.
        for bytes in [30 << 20, 40 << 20] {
            requests.push((format!("content-encoding: {coding}\r\n"), bomb(coding, bytes)));
        }
    }
    let twice = encoded("gzip", &bomb("zstd", 30 << 20));
    requests.push(("content-encoding: zstd\r\ncontent-encoding: gzip\r\n".to_owned(), twice));
    let to = flooded.to();
    let asking = requests.iter().flat_map(|one| [one, one, one]);
    let asking = asking.map(|(headers, body)| ask_at_once(to, 1, headers, body));
    join_all(asking).await;
    flooded.holds_its_promise("requests that unfold").await;
}

#[tokio::test]
async fn compressed_response_bombs_share_one_memory_budget() {
    let flooded = Flooded::start().await;
    let body = conversation("m", "hello");
    let to = flooded.to();
    let codings = ["gzip", "deflate", "br", "zstd"].map(|coding| {
        flooded.upstream.holds(coding, bomb(coding, 15 << 20));
        format!("x-flood: {coding}\r\n")
    });
    let asking = codings.iter().map(|headers| ask_at_once(to, 12, headers, body.as_bytes()));
    join_all(asking).await;
    flooded.holds_its_promise("answers that unfold").await;
}

/// Small streams that declare the largest possible compression window and never end.
async fn windows(coding: &str) {
    let flooded = Flooded::start().await;
    let events = ": nothing is kept of a comment\n\n".repeat((9 << 20) / 32);
    flooded.upstream.streams(coding, encoded(coding, events.as_bytes()));
    let asking = (0..60).map(async |_| {
        let mut stream = TcpStream::connect(flooded.to()).await.unwrap();
        let (headers, body) = (format!("x-flood: {coding}\r\n"), conversation("m", "hello"));
        let head = head(flooded.to(), &headers, body.len());
        stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
        let mut start = [0; 256];
        assert!(timeout(TIMEOUT, stream.read(&mut start)).await.unwrap().unwrap() > 0);
        stream
    });
    let open = join_all(asking).await;
    sleep(Duration::from_secs(1)).await;
    drop(open);
    flooded.holds_its_promise(&format!("{coding} windows of open streams")).await;
    flooded.failed_open_for("memory_budget").await;
}

#[tokio::test]
async fn zstd_windows_of_streams_that_stay_open_are_counted() {
    windows("zstd").await;
}

#[tokio::test]
async fn brotli_windows_of_streams_that_stay_open_are_counted() {
    windows("br").await;
}

#[tokio::test]
async fn websocket_messages_that_inflate_share_one_memory_budget() {
    let flooded = Flooded::start().await;
    let text = vec![b'a'; 30 << 20];
    let mut deflate = flate2::Compress::new(Compression::fast(), false);
    let mut payload = Vec::with_capacity(1 << 20);
    deflate.compress_vec(&text, &mut payload, flate2::FlushCompress::Sync).unwrap();
    // The first of several frames: the message is not complete.
    let mut frame = vec![0x41, 0x80 | 127];
    frame.extend_from_slice(&(payload.len() as u64).to_be_bytes());
    frame.extend_from_slice(&[0; 4]);
    frame.extend_from_slice(&payload);
    let upgrade = format!(
        "GET /v1/responses HTTP/1.1\r\nhost: {}\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\nsec-websocket-version: 13\r\n\
         sec-websocket-extensions: permessage-deflate\r\n\r\n",
        flooded.to()
    );
    let asking = (0..16).map(async |_| {
        let mut stream = TcpStream::connect(flooded.to()).await.unwrap();
        stream.write_all(upgrade.as_bytes()).await.unwrap();
        let mut head = [0; 12];
        timeout(TIMEOUT, stream.read_exact(&mut head)).await.unwrap().unwrap();
        assert_eq!(&head, b"HTTP/1.1 101");
        stream.write_all(&frame).await.unwrap();
        stream
    });
    let open = join_all(asking).await;
    flooded.upstream.has_tunnelled(16 * frame.len() as u64).await;
    sleep(Duration::from_secs(2)).await;
    drop(open);
    flooded.holds_its_promise("messages that inflate").await;
    flooded.failed_open_for("memory_budget").await;
}

/// Uploads that stop before their end. The one that continues arrives unchanged.
async fn stalled(uploads: usize) {
    let flooded = Flooded::start().await;
    let to = flooded.to();
    let body = conversation("m", &"word ".repeat(6 << 20)).into_bytes();
    let (most, rest) = body.split_at(body.len() - 100);
    let begun = (0..uploads).map(async |_| {
        let mut stream = TcpStream::connect(to).await.unwrap();
        stream.write_all(head(to, "x-digest: yes\r\n", body.len()).as_bytes()).await.unwrap();
        timeout(TIMEOUT, stream.write_all(most)).await.unwrap().unwrap();
        stream
    });
    let mut open = join_all(begun).await;
    sleep(Duration::from_secs(1)).await;
    // Uploads that hold memory give way to a new request, which is read.
    let honest = conversation("m", &"word ".repeat(100_000));
    ask_at_once(to, 1, "", honest.as_bytes()).await;
    let first = &mut open[0];
    first.write_all(rest).await.unwrap();
    let mut answer = Vec::new();
    let _ = timeout(TIMEOUT, first.read_to_end(&mut answer)).await.unwrap();
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.contains(&digest(&body)), "{answer}");
    drop(open);
    flooded.holds_its_promise(&format!("{uploads} stalled uploads")).await;
}

#[tokio::test]
async fn eight_uploads_share_one_budget() {
    stalled(8).await;
}

#[tokio::test]
async fn forty_uploads_share_one_budget() {
    stalled(40).await;
}

/// One connection with many stalled uploads.
#[tokio::test]
async fn stalled_streams_of_one_connection_share_budget() {
    let flooded = Flooded::start().await;
    let mut client = h2::Client::connect(flooded.to()).await;
    let mut open = Vec::new();
    for _ in 0..300 {
        let (mut feed, body) = h2::body();
        let request = http::Request::post(format!("http://{}{PATH}", flooded.to()))
            .header("content-type", "application/json")
            .body(body)
            .unwrap();
        let answer = tokio::spawn(client.sender.send_request(request));
        let piece = bytes::Bytes::from(vec![b' '; 1 << 20]);
        let _ = timeout(Duration::from_secs(2), feed.send_data(piece)).await;
        open.push((feed, answer));
        client.sender.ready().await.unwrap();
    }
    sleep(Duration::from_secs(2)).await;
    drop(open);
    flooded.holds_its_promise("stalled streams of one connection").await;
}

#[tokio::test]
async fn slow_readers_hold_little_each() {
    let flooded = Flooded::start().await;
    let to = flooded.to();
    let asking = (0..200).map(async |_| {
        let mut stream = TcpStream::connect(to).await.unwrap();
        let body = conversation("m", "hello");
        let head = head(to, "x-flood: long\r\n", body.len()).replace(PATH, FILE);
        stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
        stream
    });
    let open = join_all(asking).await;
    let mut client = h2::Client::connect(to).await;
    let mut streams = Vec::new();
    for _ in 0..100 {
        let request = http::Request::post(format!("http://{to}{FILE}"))
            .header("x-flood", "long")
            .header("content-type", "application/json")
            .body(h2::whole(conversation("m", "hello")).await)
            .unwrap();
        streams.push(client.request(request).await);
    }
    sleep(Duration::from_secs(2)).await;
    drop((open, streams));
    flooded.holds_its_promise("slow readers").await;
}

/// A conversation with this many messages, each as short as possible.
fn small_parts(messages: usize) -> String {
    let all = vec![r#"{"role":"user","content":"a"}"#; messages].join(",");
    format!(r#"{{"model":"m","messages":[{all}]}}"#)
}

#[tokio::test]
async fn many_small_parts_pass_unread() {
    let flooded = Flooded::start().await;
    let (million, many) = (small_parts(1_000_000), small_parts(100_000));
    // Two at once do not fit the budget, so that neither would be parsed.
    ask_at_once(flooded.to(), 1, "", million.as_bytes()).await;
    flooded.failed_open_for("analysis_budget").await;
    ask_at_once(flooded.to(), 2, "", million.as_bytes()).await;
    ask_at_once(flooded.to(), 6, "", many.as_bytes()).await;
    let commas = format!(r#"{{"model":"m","messages":[{}1]}}"#, "1,".repeat(10 << 20));
    ask_at_once(flooded.to(), 2, "", commas.as_bytes()).await;
    flooded.holds_its_promise("many small parts").await;
}

/// If one client sends such bodies one after the other, each costs less than several together may.
#[tokio::test]
async fn many_small_parts_fit_200_mb() {
    for (messages, times) in [(1_000_000, 1), (100_000, 12)] {
        let flooded = Flooded::start().await;
        let body = small_parts(messages);
        for _ in 0..times {
            ask_at_once(flooded.to(), 1, "", body.as_bytes()).await;
        }
        let (peak, bytes) = (flooded.peak(), body.len());
        println!("{messages} messages in {bytes} bytes: {} MB at most", peak / 1_000_000);
        assert!(peak <= 200_000_000, "{messages} messages: {peak} bytes were resident");
        flooded.holds_its_promise("small parts of one body").await;
    }
}

#[tokio::test]
async fn long_model_names_fit_memory() {
    let flooded = Flooded::start().await;
    for number in 0..150 {
        let name = format!("{number}{}", "m".repeat(1 << 20));
        ask_at_once(flooded.to(), 1, "", conversation(&name, "hello").as_bytes()).await;
    }
    flooded.holds_its_promise("long names of models").await;
}

#[tokio::test]
async fn sessions_of_large_bodies_are_kept_within_bounds() {
    let flooded = Flooded::start().await;
    let messages = r#"{"role":"user","content":"Some words that say little."},"#.repeat(10_000);
    for session in 0..20 {
        let body = format!(
            r#"{{"model":"m","messages":[{messages}{{"role":"user","content":"{session}"}}]}}"#
        );
        let headers = format!("x-plimsoll-session: s{session}\r\n");
        ask_at_once(flooded.to(), 1, &headers, body.as_bytes()).await;
    }
    flooded.holds_its_promise("sessions of large bodies").await;
}

#[tokio::test]
async fn many_requests_share_one_budget() {
    let flooded = Flooded::start().await;
    let body = conversation("m", &"word ".repeat(200_000));
    ask_at_once(flooded.to(), 300, "", body.as_bytes()).await;
    flooded.holds_its_promise("300 requests of 1 MB at once").await;
}
