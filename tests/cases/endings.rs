//! How replies end, and usage that the client did not ask for.
//!
//! The inputs are in `tests/data/cases`.

use std::sync::Arc;
use std::time::Duration;

use http::Request;
use plimsoll::context::{EstimateMethod, Outcome};
use plimsoll::dialect::StopReason;
use plimsoll::telemetry::Exchange;

use crate::support::http1::{Call, Provider, Wire};
use crate::support::server::TestServer;
use crate::support::{h2, within};

const NO_FINISH_REASON: [&str; 3] = [
    include_str!("../data/cases/no-finish-reason/request.json"),
    include_str!("../data/cases/no-finish-reason/unfinished.sse"),
    include_str!("../data/cases/no-finish-reason/empty-reasons.sse"),
];
const HIDDEN_USAGE: [&str; 3] = [
    include_str!("../data/cases/hidden-usage/request.json"),
    include_str!("../data/cases/hidden-usage/beside-a-choice.sse"),
    include_str!("../data/cases/hidden-usage/several-lines.sse"),
];
const EARLY_CLOSE: [&str; 2] = [
    include_str!("../data/cases/early-close/request.json"),
    include_str!("../data/cases/early-close/reply.sse"),
];
const CHAT: &str = "/v1/chat/completions";

/// Sends a request on a connection of its own.
async fn ask(server: &TestServer, path: &str, body: &str) -> Wire {
    let mut client = Wire::connect(server.address).await;
    let length = body.len();
    let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}");
    client.send(format!("{head}\r\n\r\n{body}")).await;
    client
}

/// Plays one exchange with a chunked event stream, sent in pieces of this size; returns what the client got.
async fn play(request: &str, stream: &str, size: usize) -> (String, Arc<Exchange>) {
    let provider = Provider::start().await;
    let mut server = TestServer::before(&provider.base()).await;
    let mut client = ask(&server, CHAT, request).await;
    let mut call = provider.call().await;
    call.begin_events().await;
    for piece in stream.as_bytes().chunks(size) {
        call.chunk(piece).await;
    }
    call.end().await;
    (client.response().await.text().to_owned(), server.next_exchange().await)
}

fn booked(exchange: &Exchange) -> (Option<u64>, Option<u64>) {
    (exchange.usage.input, exchange.usage.output)
}

#[tokio::test]
async fn done_without_reason_is_broken() {
    let [request, unfinished, empty_reasons] = NO_FINISH_REASON;
    let (got, exchange) = play(request, unfinished, 1000).await;
    assert_eq!(got, unfinished, "the bytes and their end are the provider's");
    assert_eq!(exchange.outcome, Outcome::UpstreamFailed);
    assert_eq!(exchange.stop, None);
    let (got, exchange) = play(request, empty_reasons, 1000).await;
    assert_eq!(got, empty_reasons);
    assert_eq!(exchange.outcome, Outcome::Complete);
    assert_eq!(exchange.stop, Some(StopReason::End));
}

#[tokio::test]
async fn usage_at_empty_choice_is_hidden() {
    let [request, stream, _] = HIDDEN_USAGE;
    let usage =
        r#", "usage": {"prompt_tokens": 420, "completion_tokens": 60, "total_tokens": 480}"#;
    let expected = stream.replace(usage, "");
    assert_ne!(expected, stream);
    for size in [13, 100_000] {
        let (got, exchange) = play(request, stream, size).await;
        assert_eq!(got, expected);
        assert_eq!(booked(&exchange), (Some(420), Some(60)));
        assert_eq!(exchange.outcome, Outcome::Complete);
    }
}

#[tokio::test]
async fn usage_over_several_lines_is_hidden() {
    let [request, _, stream] = HIDDEN_USAGE;
    let events: Vec<&str> = stream.split_inclusive("\r\n\r\n").collect();
    let shown: String =
        events.iter().filter(|event| !event.contains("\"usage\"")).copied().collect();
    assert_ne!(shown, stream);
    let (got, exchange) = play(request, stream, 13).await;
    assert_eq!(got, shown);
    assert_eq!(booked(&exchange), (Some(420), Some(60)));
}

/// What else a chunk with usage says reaches the client.
#[tokio::test]
async fn only_requested_usage_is_hidden() {
    let [request, ..] = HIDDEN_USAGE;
    let finish = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
    let usage = r#""usage":{"prompt_tokens":420,"completion_tokens":60}"#;
    for also in [
        r#""error":{"message":"late"}"#,
        r#""citations":["https://example.com"]"#,
        r#""cost":0.25"#,
        r#""timings":{"prompt_n":3}"#,
    ] {
        let chunk =
            |usage: &str| format!("data: {{\"id\":\"c\",\"choices\":[],{also}{usage}}}\n\n");
        let sent = format!("{finish}{}data: [DONE]\n\n", chunk(&format!(",{usage}")));
        let (got, exchange) = play(request, &sent, 1000).await;
        assert_eq!(got, format!("{finish}{}data: [DONE]\n\n", chunk("")));
        assert_eq!(booked(&exchange), (Some(420), Some(60)), "{also}");
    }
    // Beside content, beside the finish reason, and before any.
    for sent in [
        format!(
            "data: {{\"choices\":[{{\"delta\":{{\"role\":\"assistant\"}}}}],{usage}}}\n\n{finish}data: [DONE]\n\n"
        ),
        format!(
            "data: {{\"choices\":[{{\"delta\":{{\"content\":\"a\"}}}}],{usage}}}\n\n{finish}data: [DONE]\n\n"
        ),
        finish.replace("}]}", &format!("}}],{usage}}}")) + "data: [DONE]\n\n",
    ] {
        let shown = sent.replace(&format!(",{usage}"), "");
        assert_ne!(shown, sent);
        assert_eq!(play(request, &sent, 1000).await.0, shown);
    }
    let asked = request.replacen('{', "{\"stream_options\":{\"include_usage\":true},", 1);
    let [_, stream, lines] = HIDDEN_USAGE;
    for sent in [stream, lines] {
        assert_eq!(play(&asked, sent, 13).await.0, sent, "the client asked for it");
    }
}

/// The client closes at the finish reason. The usage comes later, and the next request is estimated from it.
#[tokio::test]
async fn usage_is_read_after_client_left() {
    let [request, reply] = EARLY_CLOSE;
    let events: Vec<&str> = reply.split_inclusive("\n\n").collect();
    let provider = Provider::start().await;
    let mut server = TestServer::before(&provider.base()).await;
    let mut client = ask(&server, CHAT, request).await;
    let mut call = provider.call().await;
    call.begin_events().await;
    client.head().await;
    for event in &events[..2] {
        call.chunk(event).await;
        assert_eq!(client.chunk().await, event.as_bytes());
    }
    drop(client);
    tokio::time::sleep(Duration::from_millis(300)).await;
    for event in &events[2..] {
        call.chunk(event).await;
    }
    call.end().await;
    let exchange = server.next_exchange().await;
    assert_eq!(booked(&exchange), (Some(420), Some(9)));
    assert_eq!(exchange.outcome, Outcome::Complete);
    assert_eq!(exchange.stop, Some(StopReason::End));

    let answer =
        r#"{"role":"assistant","content":"Hello there."},{"role":"user","content":"Thanks."}"#;
    let next =
        request.replace("Say hello, please.\"}", &format!("Say hello, please.\"}},{answer}"));
    assert_ne!(next, request);
    let mut client = ask(&server, CHAT, &next).await;
    let mut call = call.wire.request().await;
    call.begin_events().await;
    call.chunk(reply).await;
    call.end().await;
    client.response().await;
    let estimate = server.next_exchange().await.estimate.clone().unwrap();
    assert_eq!(estimate.method, EstimateMethod::Anchored);
    assert!((429..=449).contains(&estimate.tokens), "{}", estimate.tokens);
}

/// A client that leaves earlier, or that asked for the usage itself, takes its upstream with it.
#[tokio::test]
async fn only_requested_usage_is_waited_for() {
    let [request, reply] = EARLY_CLOSE;
    let events: Vec<&str> = reply.split_inclusive("\n\n").collect();
    let asked = request.replacen('{', "{\"stream_options\":{\"include_usage\":true},", 1);
    for (request, sent) in [(request, 1), (asked.as_str(), 2)] {
        let provider = Provider::start().await;
        let mut server = TestServer::before(&provider.base()).await;
        let mut client = ask(&server, CHAT, request).await;
        let mut call = provider.call().await;
        call.begin_events().await;
        client.head().await;
        for event in &events[..sent] {
            call.chunk(event).await;
            assert_eq!(client.chunk().await, event.as_bytes());
        }
        drop(client);
        call.wire.gone().await;
        assert_eq!(server.next_exchange().await.outcome, Outcome::ClientLeft);
    }
}

/// A provider that never sends its usage is not kept for long.
#[tokio::test]
async fn usage_is_not_waited_for_long() {
    let [request, reply] = EARLY_CLOSE;
    let events: Vec<&str> = reply.split_inclusive("\n\n").collect();
    let provider = Provider::start().await;
    let mut server = TestServer::before(&provider.base()).await;
    let mut client = ask(&server, CHAT, request).await;
    let mut call = provider.call().await;
    call.begin_events().await;
    client.head().await;
    for event in &events[..2] {
        call.chunk(event).await;
        assert_eq!(client.chunk().await, event.as_bytes());
    }
    drop(client);
    let left = tokio::time::Instant::now();
    call.wire.gone().await;
    assert!((3..10).contains(&left.elapsed().as_secs()));
    assert_eq!(server.next_exchange().await.outcome, Outcome::ClientLeft);
}

/// A path with its request, a stream that breaks off in each dialect, and one that says why it stopped and has no last
/// event.
fn half_streams() -> Vec<(&'static str, &'static str, String, Option<Outcome>)> {
    let ask =
        r#"{"model":"m","max_tokens":9,"stream":true,"messages":[{"role":"user","content":"Hi"}]}"#;
    let asks = r#"{"model":"m","stream":true,"input":"Hi"}"#;
    let contents = r#"{"contents":[{"role":"user","parts":[{"text":"Hi"}]}]}"#;
    let start = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"type\":\"message\",\"role\":\"assistant\",\"content\":[],\"model\":\"m\",\"usage\":{\"input_tokens\":1,\"output_tokens\":1}}}\n\n";
    let stop = "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":5}}\n\n";
    let chunk = "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"},\"finish_reason\":null}]}\n\n";
    let created = "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"r\",\"status\":\"in_progress\",\"model\":\"m\",\"output\":[]}}\n\n";
    let part = "data: {\"candidates\":[{\"content\":{\"role\":\"model\",\"parts\":[{\"text\":\"x\"}]},\"index\":0}],\"responseId\":\"g\"}\n\n";
    let gemini = "/v1beta/models/gemini-2.5-flash:streamGenerateContent?alt=sse";
    let (whole, broken) = (Some(Outcome::Complete), Some(Outcome::UpstreamFailed));
    vec![
        ("/v1/messages", ask, start.to_owned(), broken),
        ("/v1/messages", ask, [start, stop].concat(), whole),
        (CHAT, ask, chunk.to_owned(), broken),
        ("/v1/responses", asks, created.to_owned(), broken),
        (gemini, contents, part.to_owned(), broken),
    ]
}

/// Begins a response over HTTP/1.1 with this framing, sends the stream, and ends it properly.
async fn answer(mut call: Call, framing: &str, stream: &str) {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n";
    match framing {
        "chunked" => {
            call.begin_events().await;
            call.chunk(stream).await;
            call.end().await;
        }
        "length" => {
            let length = stream.len();
            call.send(format!("{head}content-length: {length}\r\n\r\n{stream}")).await;
        }
        _ => call.send(format!("{head}connection: close\r\n\r\n{stream}")).await,
    }
}

/// A body that ended properly for its transport ends properly at the client, whatever its dialect says.
#[tokio::test]
async fn proper_end_stays_proper_end() {
    for (path, request, stream, outcome) in half_streams() {
        for framing in ["chunked", "length", "close"] {
            let provider = Provider::start().await;
            let mut server = TestServer::before(&provider.base()).await;
            let mut client = ask(&server, path, request).await;
            answer(provider.call().await, framing, &stream).await;
            let response = client.response().await;
            assert_eq!(response.text(), stream, "{path} {framing}");
            assert_eq!(Some(server.next_exchange().await.outcome), outcome, "{path} {framing}");
        }
        let mut provider = h2::Provider::start().await;
        let mut server = TestServer::with(provider.config()).await;
        let mut client = ask(&server, path, request).await;
        let mut feed = provider.call().await.begin();
        feed.send_data(stream.clone().into()).await.unwrap();
        drop(feed);
        assert_eq!(client.response().await.text(), stream, "{path} over HTTP/2");
        assert_eq!(Some(server.next_exchange().await.outcome), outcome, "{path} over HTTP/2");

        let mut client = h2::Client::connect(server.address).await;
        let to = format!("http://localhost{path}");
        let sent = Request::post(to).body(h2::whole(request).await).unwrap();
        let answering = async {
            let mut feed = provider.call().await.begin();
            feed.send_data(stream.clone().into()).await.unwrap();
        };
        let (response, ()) =
            within("an answer", async { tokio::join!(client.request(sent), answering) }).await;
        assert_eq!(h2::read(response.into_body()).await.0, stream, "{path} to HTTP/2");
    }
}
