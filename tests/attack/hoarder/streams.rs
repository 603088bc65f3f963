//! Open streams, as agents have them while a model writes.
//!
//! While a response is on its way, most of what was read of its request is no longer needed. None of these requests is
//! forwarded unread, though together they are several times larger than the budget.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{Flooded, MANY, PROMISED, TIMEOUT, head, resident_of, settled};

/// The number of open streams.
const STREAMS: usize = 300;
/// What each may hold besides its connections: what is needed at its end.
const EACH: u64 = 16 << 10;
/// What two connections and a request in flight take, as `docs/limits.md` says.
const CONNECTIONS: u64 = 64 << 10;
/// The latest requests, and the sessions in memory.
const KEPT: u64 = 16 << 20;
/// What the allocator keeps, and what is loaded at the first request.
const SLACK: u64 = 24 << 20;

const BEGUN: &str = "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"Hi\"}}]}\n\n";

/// A conversation of its own, with this many messages of this many bytes.
fn body(number: usize, messages: usize, bytes: usize) -> String {
    let text = "word ".repeat(bytes / 5);
    let all: Vec<String> = (0..messages)
        .map(|at| {
            let role = if at % 2 == 0 { "user" } else { "assistant" };
            format!(r#"{{"role":"{role}","content":"{number} {at} {text}"}}"#)
        })
        .collect();
    format!(r#"{{"model":"m","stream":true,"messages":[{}]}}"#, all.join(","))
}

/// A stream that has begun and continues.
async fn begun(flooded: &Flooded, body: &str) -> TcpStream {
    let opening = async {
        let mut stream = TcpStream::connect(flooded.to()).await.unwrap();
        let head = head(flooded.to(), "x-flood: identity\r\n", body.len());
        stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
        let mut seen = Vec::new();
        while !seen.windows(2).any(|two| two == b"Hi") {
            let mut piece = [0; 1024];
            let length = stream.read(&mut piece).await.unwrap();
            assert!(length > 0, "{}", String::from_utf8_lossy(&seen));
            seen.extend_from_slice(&piece[..length]);
        }
        stream
    };
    timeout(TIMEOUT, opening).await.unwrap()
}

impl Flooded {
    /// The value of one series in the metrics.
    async fn gauge(&self, series: &str) -> u64 {
        let metrics = self.serving.ask("/metrics").await;
        let value = metrics.text().lines().find_map(|line| line.strip_prefix(series));
        value.expect(series).trim().parse::<f64>().unwrap() as u64
    }
}

/// Opens the streams, whose turns record so many bytes each. No more is resident than that and what streams hold.
async fn hold_open_streams(streams: usize, messages: usize, bytes: usize, recorded: u64) {
    let flooded = Flooded::start().await;
    flooded.upstream.streams("identity", BEGUN.into());
    let first = begun(&flooded, &body(streams, messages, bytes)).await;
    let before = resident_of(&flooded.serving);
    let mut open = vec![first];
    for number in 0..streams {
        open.push(begun(&flooded, &body(number, messages, bytes)).await);
    }
    let most = streams as u64 * (EACH + CONNECTIONS + recorded) + KEPT + SLACK;
    let more = settled(&flooded.serving, before + most).await.saturating_sub(before);
    for reason in ["memory_budget", "analysis_budget"] {
        let series = format!("plimsoll_fail_open_total{{reason=\"{reason}\"}}");
        assert_eq!(flooded.gauge(&series).await, 0, "{reason}: not every request was read");
    }
    let of = |kind| format!("plimsoll_memory_held_bytes{{kind=\"{kind}\"}}");
    let held = flooded.gauge(&of("request")).await + flooded.gauge(&of("analysis")).await;
    println!("{streams} open streams: {} MiB more, {} MiB counted", more >> 20, held >> 20);
    assert!(held <= KEPT, "{} MiB are counted for requests", held >> 20);
    assert!(more <= most, "{} MiB more than with one stream", more >> 20);
    drop(open);
}

#[tokio::test]
async fn open_stream_does_not_keep_its_request_in_memory() {
    hold_open_streams(STREAMS, 201, 2000, 0).await;
}

/// As many agents as one gateway may serve, each with a stream and connections of its own on both sides.
#[tokio::test]
async fn many_streams_fit_256_mib() {
    let flooded = Flooded::start().await;
    flooded.upstream.streams("identity", BEGUN.into());
    let mut open = Vec::new();
    for number in 0..MANY {
        open.push(begun(&flooded, &body(number, 3, 2000)).await);
    }
    assert_eq!(flooded.gauge("plimsoll_active_streams").await, MANY as u64);
    let peak = flooded.peak();
    println!("{MANY} streams: {} MiB at most", peak >> 20);
    assert!(peak <= PROMISED, "{} MiB were resident", peak >> 20);
}

#[tokio::test]
async fn open_stream_of_many_small_parts_keeps_no_more_than_is_recorded() {
    // Its turn stores key and tokens of each part, 32 bytes.
    hold_open_streams(STREAMS / 3, 3_001, 60, 3_001 * 32).await;
}
