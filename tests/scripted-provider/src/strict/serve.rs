//! The strict provider on a socket: HTTP/1.1, kept alive, each protocol with its own stream.
//!
//! Checks nothing itself; `demo_provider::dialect` makes the events of a stream from the whole body.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::miscount::{self, Miscount};
use super::odd_reply::{self, OddReply};
use super::prompt::items;
use super::{
    Dialect, HttpResponse, Operation, ReceivedRequest, ReplyEnding, State, StrictProvider, endings,
};
use demo_provider::dialect::{Event, anthropic, gemini, openai_chat, openai_responses};
use demo_provider::{Body, event_stream, full_body, json_response};

/// A strict provider that is listening. It stops when this is dropped.
#[derive(Debug)]
pub struct StrictServer {
    address: SocketAddr,
    accepting: tokio::task::JoinHandle<()>,
}

impl StrictServer {
    /// Its base URL: `http://127.0.0.1:PORT`.
    pub fn base(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for StrictServer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Serves a provider on a free loopback port.
///
/// # Errors
/// If no port can be bound.
pub async fn serve(provider: StrictProvider) -> io::Result<StrictServer> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    let accepting = tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            // Else the body of a reply waits up to 40 ms for the client's system to acknowledge the head.
            let _ = socket.set_nodelay(true);
            let provider = provider.clone();
            tokio::spawn(async move {
                let service = service_fn(move |request| respond(request, provider.clone()));
                // If a connection breaks, the client knows.
                let _ = http1::Builder::new().serve_connection(TokioIo::new(socket), service).await;
            });
        }
    });
    Ok(StrictServer { address, accepting })
}

async fn respond(
    request: Request<Incoming>,
    provider: StrictProvider,
) -> Result<Response<Body>, Infallible> {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path_and_query().map_or("/", |all| all.as_str());
    if parts.method == http::Method::GET {
        return Ok(provider.state().stored.read(path));
    }
    let bytes = match body.collect().await {
        Ok(body) => body.to_bytes(),
        Err(_) => {
            return Ok(error_response(StatusCode::BAD_REQUEST, "the body did not arrive whole"));
        }
    };
    let request = match parts.method {
        http::Method::POST => {
            ReceivedRequest::parse(path, &parts.headers, bytes, provider.clock().now())
        }
        _ => None,
    };
    let Some(request) = request else {
        return Ok(error_response(StatusCode::NOT_FOUND, "no such path here"));
    };
    let (response, delivery) = respond_once(&request, &mut provider.state());
    Ok(http_response(&request, &response, delivery))
}

/// How a stream is delivered.
#[derive(Clone, Copy, Default)]
struct Delivery {
    /// It is cut after this many events.
    cut_after: Option<usize>,
    ending: Option<ReplyEnding>,
    miscount: Option<Miscount>,
    odd_reply: Option<OddReply>,
}

/// The response, and how its stream is delivered.
fn respond_once(request: &ReceivedRequest, state: &mut State) -> (HttpResponse, Delivery) {
    // The state stays locked meanwhile: another reply would be the last one then.
    let mut response = state.respond(request);
    // Not the reply to a request for a summary, which is none of the client's.
    let is_summary = state.matched_replies.iter().any(|reply| body_has(request, &reply.text))
        || request.body["compaction"].is_object();
    let is_reply = request.operation == Operation::Reply && response.status == 200;
    let miscount = if is_reply && !is_summary { state.miscount.take() } else { None };
    if let Some(kind) = miscount {
        miscount::change(kind, request.dialect, &mut response.body);
    }
    let odd_reply = state
        .odd_reply
        .filter(|odd| is_reply && !is_summary && odd.applies(request, &response.body));
    if let Some(odd) = odd_reply {
        state.odd_reply = None;
        odd.change_body(request.dialect, &mut response.body);
        if odd == OddReply::Declined {
            state.store.truncate_last_reply(0);
        }
    }
    let streams = request.stream && request.operation == Operation::Reply && response.status == 200;
    let cut_after = if streams { state.cut_after.take() } else { None };
    if let Some(after) = cut_after
        && request.dialect != Dialect::Gemini
    {
        let events = events(request, &response.body);
        let delivered =
            events.iter().take(after).filter(|event| carries_signature(request, event)).count();
        state.store.truncate_last_reply(delivered);
    }
    let ending = if streams { state.ending.take() } else { None };
    if is_reply {
        response.body = state.stored.keep(request, response.body);
    }
    (response, Delivery { cut_after, ending, miscount, odd_reply })
}

fn body_has(request: &ReceivedRequest, text: &str) -> bool {
    String::from_utf8_lossy(&request.bytes).contains(text)
}

/// Whether an event delivers a signature.
fn carries_signature(request: &ReceivedRequest, event: &Event) -> bool {
    // Gemini's come with any part, and are not distinguished.
    let has = |text: &str| event.data.contains(text);
    match request.dialect {
        Dialect::Anthropic => has("\"signature_delta\"") || has("\"redacted_thinking\""),
        Dialect::Responses => has("\"response.output_item.done\"") && has("\"encrypted_content\""),
        Dialect::Chat => has("\"reasoning_details\"") || has("\"thought_signature\""),
        Dialect::Gemini => false,
    }
}

fn error_response(status: StatusCode, message: &str) -> Response<Body> {
    json_response(status, &json!({"error": {"type": "not_found_error", "message": message}}))
}

fn http_response(
    request: &ReceivedRequest,
    response: &HttpResponse,
    delivery: Delivery,
) -> Response<Body> {
    let status = StatusCode::from_u16(response.status).unwrap_or(StatusCode::BAD_REQUEST);
    let streams = request.stream && request.operation == Operation::Reply && status.is_success();
    let mut http_response = match (streams, request.is_sse) {
        (false, _) => json_response(status, &response.body),
        (true, true) => {
            let crlf = request.dialect == Dialect::Gemini;
            let events = odd_events(request, &response.body, delivery);
            let frames = endings::frames(delivery.ending, events, crlf);
            let mut frames: Vec<_> = frames.into_iter().map(Ok).collect();
            if let Some(after) = delivery.cut_after.filter(|after| *after < frames.len()) {
                frames.truncate(after);
                frames.push(Err(io::Error::other("broken off")));
            }
            event_stream(frames, Duration::ZERO)
        }
        (true, false) => json_array(&odd_events(request, &response.body, delivery)),
    };
    for (name, value) in &response.headers {
        if let Ok(value) = HeaderValue::from_str(value) {
            http_response.headers_mut().insert(*name, value);
        }
    }
    http_response
}

fn odd_events(request: &ReceivedRequest, response: &Value, delivery: Delivery) -> Vec<Event> {
    let mut events = events(request, response);
    if let Some(odd) = delivery.odd_reply {
        odd.change_events(request.dialect, &mut events);
    }
    if delivery.miscount == Some(Miscount::Zeros) {
        miscount::add_zeros(request, &mut events);
    }
    events
}

fn events(request: &ReceivedRequest, response: &Value) -> Vec<Event> {
    let choices = ["choices", "candidates"].map(|name| items(&response[name]).len());
    if choices.into_iter().any(|count| count > 1) {
        return odd_reply::events_of_choices(request, response);
    }
    match request.dialect {
        Dialect::Anthropic => anthropic::stream_events(response),
        Dialect::Chat => {
            let usage = request.body["stream_options"]["include_usage"] == true;
            openai_chat::stream_events(response, usage)
        }
        Dialect::Responses => openai_responses::stream_events(response),
        Dialect::Gemini => gemini::stream_events(response),
    }
}

fn json_array(events: &[Event]) -> Response<Body> {
    // Gemini without `alt=sse`: one JSON array (`docs/protocols.md` 5.1).
    let all: Vec<&str> = events.iter().map(|event| event.data.as_str()).collect();
    let mut response = Response::new(full_body(Bytes::from(format!("[{}]", all.join(",\r\n")))));
    let json = HeaderValue::from_static("application/json; charset=UTF-8");
    response.headers_mut().insert("content-type", json);
    response
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::*;
    use crate::strict::{Rule, Rules, ScriptedReply};

    /// Posts a request on a connection that stays open, and reads the response by hand: status, headers
    /// in lower case, and the body out of its chunks.
    async fn post(socket: &mut TcpStream, path: &str, body: &Value) -> (u16, String, String) {
        let body = body.to_string();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer k\r\nanthropic-version: 2023-06-01\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        socket.write_all((head + &body).as_bytes()).await.unwrap();
        let head = read_until(socket, "\r\n\r\n").await.to_ascii_lowercase();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let mut body = String::new();
        if let Some((_, length)) = head.split_once("content-length: ") {
            let mut whole = vec![0; length.lines().next().unwrap().parse().unwrap()];
            socket.read_exact(&mut whole).await.unwrap();
            return (status, head, String::from_utf8(whole).unwrap());
        }
        loop {
            let length = read_until(socket, "\r\n").await;
            let length = usize::from_str_radix(length.trim(), 16).unwrap();
            let mut chunk = vec![0; length + 2];
            socket.read_exact(&mut chunk).await.unwrap();
            if length == 0 {
                return (status, head, body);
            }
            body += std::str::from_utf8(&chunk[..length]).unwrap();
        }
    }

    async fn read_until(socket: &mut TcpStream, end: &str) -> String {
        let mut read = Vec::new();
        while !read.ends_with(end.as_bytes()) {
            read.push(socket.read_u8().await.unwrap());
        }
        String::from_utf8(read).unwrap()
    }

    fn messages(model: &str, stream: bool) -> Value {
        json!({
            "model": model, "max_tokens": 9000, "stream": stream, "thinking": {"type": "enabled", "budget_tokens": 2000},
            "messages": [{"role": "user", "content": "Hello?"}],
        })
    }

    #[tokio::test]
    async fn one_connection_carries_streams_whole_replies_counts_and_errors() {
        let provider = StrictProvider::new(Rules::default(), 5);
        let server = serve(provider.clone()).await.unwrap();
        let mut socket = TcpStream::connect(server.address()).await.unwrap();
        let reply =
            || ScriptedReply::thinking("A greeting.", 12).with_text("Hello to you, too, and more.");
        provider.queue_reply(reply());
        provider.queue_reply(reply());
        let path = "/v1/messages?beta=true";
        let (status, head, stream) =
            post(&mut socket, path, &messages("claude-sonnet-4-5", true)).await;
        assert!(status == 200, "{head}");
        assert!(head.contains("content-type: text/event-stream"), "{head}");
        assert!(stream.ends_with("\n\n"));
        let events: Vec<(&str, Value)> = stream
            .trim_end()
            .split("\n\n")
            .map(|event| {
                let (name, data) = event.split_once('\n').unwrap();
                let data = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
                (name.strip_prefix("event: ").unwrap(), data)
            })
            .collect();
        assert!(events.iter().all(|(name, data)| data["type"] == *name));
        let mut names: Vec<&str> = events.iter().map(|(name, _)| *name).collect();
        names.dedup();
        let block = ["content_block_start", "content_block_delta", "content_block_stop"];
        let expected =
            [&["message_start"][..], &block, &["ping"], &block, &["message_delta", "message_stop"]];
        assert_eq!(names, expected.concat());
        let text: String =
            events.iter().filter_map(|(_, data)| data["delta"]["text"].as_str()).collect();
        assert_eq!(text, "Hello to you, too, and more.");

        let (_, head, whole) = post(&mut socket, path, &messages("claude-sonnet-4-5", false)).await;
        let whole: Value = serde_json::from_str(&whole).unwrap();
        assert!(head.contains("application/json"), "{whole}");
        assert!(whole["content"][1]["text"] == text, "{whole}");
        assert_eq!(
            whole["usage"]["output_tokens"],
            events[events.len() - 2].1["usage"]["output_tokens"]
        );

        let (status, _, error) = post(&mut socket, path, &json!({"model": "claude-opus-5"})).await;
        assert!(status == 400, "{error}");
        assert!(error.contains("max_tokens: Field required"), "{error}");
        let (_, _, broken) = post(&mut socket, path, &json!([])).await;
        assert!(broken.contains("Input should be an object"), "{broken}");
        let count =
            json!({"model": "claude-opus-5", "messages": [{"role": "user", "content": "Hello?"}]});
        let (_, _, count) = post(&mut socket, "/v1/messages/count_tokens", &count).await;
        assert_eq!(count, "{\"input_tokens\":9}");
        assert_eq!(post(&mut socket, "/v1/embeddings", &json!({})).await.0, 404);
        let refused: Vec<Option<Rule>> =
            provider.take_log().iter().map(|entry| entry.verdict.broken_rule()).collect();
        assert_eq!(refused, [None, None, Some(Rule::FieldRequired), Some(Rule::BadValue), None]);
    }

    #[tokio::test]
    async fn chat_streams_end_with_done_and_usage_where_asked() {
        let provider = StrictProvider::new(Rules::default(), 5);
        let server = serve(provider.clone()).await.unwrap();
        let mut socket = TcpStream::connect(server.address()).await.unwrap();
        let mut body = json!({"model": "deepseek-v4", "stream": true, "messages": [{"role": "user", "content": "Hello?"}]});
        let reply = || {
            let reply = ScriptedReply::thinking("Think of it.", 9).with_text("I look.");
            reply.with_call("a", json!({"x": 1})).with_call("b", json!({"y": 2}))
        };
        for usage in [false, true] {
            if usage {
                body["stream_options"] = json!({"include_usage": true});
            }
            provider.queue_reply(reply());
            let (status, _, stream) = post(&mut socket, "/v1/chat/completions", &body).await;
            assert_eq!(status, 200);
            assert!(stream.ends_with("data: [DONE]\n\n"));
            let chunks: Vec<Value> = stream
                .split("\n\n")
                .filter_map(|event| serde_json::from_str(event.strip_prefix("data: ")?).ok())
                .collect();
            let joined = |field: &str| -> String {
                chunks.iter().filter_map(|c| c["choices"][0]["delta"][field].as_str()).collect()
            };
            assert_eq!(joined("reasoning_content"), "Think of it.");
            assert_eq!(joined("content"), "I look.");
            let heads: Vec<&Value> = chunks
                .iter()
                .map(|chunk| &chunk["choices"][0]["delta"]["tool_calls"][0])
                .filter(|call| call["id"].is_string())
                .collect();
            assert_eq!(heads.len(), 2);
            assert_eq!(heads[1]["index"], json!(1));
            let with_usage = chunks.iter().filter(|chunk| chunk["usage"].is_object()).count();
            assert_eq!(with_usage, usize::from(usage));
        }
    }

    #[tokio::test]
    async fn responses_and_gemini_stream_in_their_own_grammar() {
        let provider = StrictProvider::new(Rules::default(), 5);
        let server = serve(provider.clone()).await.unwrap();
        let mut socket = TcpStream::connect(server.address()).await.unwrap();
        let reply =
            || ScriptedReply::thinking("Think of it.", 9).with_text("Here it is, all of it.");
        let body = json!({"model": "gpt-5.5", "stream": true, "input": "Hello?"});
        provider.queue_reply(reply());
        let (_, _, stream) = post(&mut socket, "/v1/responses", &body).await;
        let data = |event: &str| -> Value {
            let data = event.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
            serde_json::from_str(data).unwrap()
        };
        let events: Vec<Value> = stream.trim_end().split("\n\n").map(data).collect();
        for (at, event) in events.iter().enumerate() {
            assert_eq!(event["sequence_number"], at);
            assert!(stream.contains(&format!("event: {}\n", event["type"].as_str().unwrap())));
        }
        let done = &events[events.len() - 1];
        assert_eq!(done["type"], "response.completed");
        assert_eq!(done["response"]["output"][1]["content"][0]["text"], "Here it is, all of it.");
        assert!(!stream.contains("[DONE]"));

        let body = json!({"contents": [{"parts": [{"text": "Hello?"}]}]});
        let path = "/v1beta/models/gemini-3-pro:streamGenerateContent";
        provider.queue_reply(reply());
        let (_, head, stream) = post(&mut socket, &format!("{path}?alt=sse"), &body).await;
        assert!(head.contains("text/event-stream"), "{stream}");
        assert!(stream.ends_with("\r\n\r\n"), "{stream}");
        let events: Vec<Value> = stream.trim_end().split("\r\n\r\n").map(data).collect();
        let parts = |events: &[Value]| -> Vec<Value> {
            events.iter().map(|e| e["candidates"][0]["content"]["parts"][0].clone()).collect()
        };
        let is_sse = parts(&events);
        let text: String = is_sse.iter().filter_map(|part| part["text"].as_str()).collect();
        assert_eq!(text, "Here it is, all of it.");
        assert!(is_sse[is_sse.len() - 1]["thoughtSignature"].is_string(), "an empty text, signed");
        provider.queue_reply(reply());
        let (_, head, array) = post(&mut socket, path, &body).await;
        let array: Vec<Value> = serde_json::from_str(&array).unwrap();
        assert!(head.contains("application/json"));
        assert!(parts(&array).len() == is_sse.len());
    }
}
