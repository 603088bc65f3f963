//! The strict provider on a socket: HTTP/1.1, kept alive, each protocol with its own stream.
//!
//! Judges nothing itself; what a whole answer says in parts is written by the demo's speakers.

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

use super::{Answer, Call, Dialect, Provider, Purpose};
use crate::dialect::{Event, anthropic, gemini, openai_chat, openai_responses};
use crate::provider::{Body, json_response, paced, whole};

/// A strict provider that is listening. It stops when this is dropped.
#[derive(Debug)]
pub struct Serving {
    address: SocketAddr,
    accepting: tokio::task::JoinHandle<()>,
}

impl Serving {
    /// Its base URL: `http://127.0.0.1:PORT`.
    pub fn base(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Serves a provider on a free loopback port.
///
/// # Errors
/// Where no port can be bound.
pub async fn serve(provider: Provider) -> io::Result<Serving> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    let accepting = tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let provider = provider.clone();
            tokio::spawn(async move {
                let service = service_fn(move |request| respond(request, provider.clone()));
                // A connection that breaks is the other side's affair.
                let _ = http1::Builder::new().serve_connection(TokioIo::new(socket), service).await;
            });
        }
    });
    Ok(Serving { address, accepting })
}

async fn respond(
    request: Request<Incoming>,
    provider: Provider,
) -> Result<Response<Body>, Infallible> {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path_and_query().map_or("/", |all| all.as_str());
    let bytes = match body.collect().await {
        Ok(body) => body.to_bytes(),
        Err(_) => return Ok(trouble(StatusCode::BAD_REQUEST, "the body did not arrive whole")),
    };
    let call = match parts.method {
        http::Method::POST => Call::read(path, &parts.headers, bytes, provider.clock().now()),
        _ => None,
    };
    let Some(call) = call else {
        return Ok(trouble(StatusCode::NOT_FOUND, "no such path here"));
    };
    let answer = provider.answer(&call);
    let streams = call.stream && call.purpose == Purpose::Answer && answer.status == 200;
    let breaks_after = if streams { provider.state().breaks_after.take() } else { None };
    if let Some(after) = breaks_after.filter(|_| call.dialect != Dialect::Gemini) {
        let events = events(&call, &answer.body);
        let delivered = events.iter().take(after).filter(|event| brings_seal(&call, event)).count();
        provider.state().book.broke_off(delivered);
    }
    Ok(written(&call, &answer, breaks_after))
}

/// Whether a client has a seal once it read this event. Gemini's come with any part, and are not told apart.
fn brings_seal(call: &Call, event: &Event) -> bool {
    let has = |word: &str| event.data.contains(word);
    match call.dialect {
        Dialect::Anthropic => has("\"signature_delta\"") || has("\"redacted_thinking\""),
        Dialect::Responses => has("\"response.output_item.done\"") && has("\"encrypted_content\""),
        Dialect::Chat => has("\"reasoning_details\"") || has("\"thought_signature\""),
        Dialect::Gemini => false,
    }
}

fn trouble(status: StatusCode, message: &str) -> Response<Body> {
    json_response(status, &json!({"error": {"type": "not_found_error", "message": message}}))
}

fn written(call: &Call, answer: &Answer, breaks_after: Option<usize>) -> Response<Body> {
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::BAD_REQUEST);
    let streams = call.stream && call.purpose == Purpose::Answer && status.is_success();
    let mut response = match (streams, call.framed) {
        (false, _) => json_response(status, &answer.body),
        (true, true) => {
            let crlf = call.dialect == Dialect::Gemini;
            let frames = events(call, &answer.body);
            let mut frames: Vec<_> = frames.iter().map(|event| Ok(event.frame(crlf))).collect();
            if let Some(after) = breaks_after.filter(|after| *after < frames.len()) {
                frames.truncate(after);
                frames.push(Err(io::Error::other("broken off")));
            }
            paced(frames, Duration::ZERO)
        }
        (true, false) => array(&events(call, &answer.body)),
    };
    for (name, value) in &answer.headers {
        if let Ok(value) = HeaderValue::from_str(value) {
            response.headers_mut().insert(*name, value);
        }
    }
    response
}

fn events(call: &Call, answer: &Value) -> Vec<Event> {
    match call.dialect {
        Dialect::Anthropic => anthropic::stream(answer),
        Dialect::Chat => {
            let usage = call.body["stream_options"]["include_usage"] == true;
            openai_chat::stream(answer, usage)
        }
        Dialect::Responses => openai_responses::stream(answer),
        Dialect::Gemini => gemini::stream(answer),
    }
}

/// Gemini without `alt=sse`: one JSON array (`docs/protocols.md` 5.1).
fn array(events: &[Event]) -> Response<Body> {
    let all: Vec<&str> = events.iter().map(|event| event.data.as_str()).collect();
    let mut response = Response::new(whole(Bytes::from(format!("[{}]", all.join(",\r\n")))));
    let json = HeaderValue::from_static("application/json; charset=UTF-8");
    response.headers_mut().insert("content-type", json);
    response
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::*;
    use crate::strict::{Reply, Rule, Rules};

    /// Sends a request on a connection that stays open, and reads its answer by hand: status, headers
    /// in lower case, and the body out of its chunks.
    async fn ask(socket: &mut TcpStream, path: &str, body: &Value) -> (u16, String, String) {
        let body = body.to_string();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer k\r\nanthropic-version: 2023-06-01\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        socket.write_all((head + &body).as_bytes()).await.unwrap();
        let head = until(socket, "\r\n\r\n").await.to_ascii_lowercase();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let mut body = String::new();
        if let Some((_, length)) = head.split_once("content-length: ") {
            let mut whole = vec![0; length.lines().next().unwrap().parse().unwrap()];
            socket.read_exact(&mut whole).await.unwrap();
            return (status, head, String::from_utf8(whole).unwrap());
        }
        loop {
            let length = until(socket, "\r\n").await;
            let length = usize::from_str_radix(length.trim(), 16).unwrap();
            let mut chunk = vec![0; length + 2];
            socket.read_exact(&mut chunk).await.unwrap();
            if length == 0 {
                return (status, head, body);
            }
            body += std::str::from_utf8(&chunk[..length]).unwrap();
        }
    }

    async fn until(socket: &mut TcpStream, end: &str) -> String {
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
    async fn one_connection_carries_streams_whole_answers_counts_and_errors() {
        let provider = Provider::new(Rules::default(), 5);
        let serving = serve(provider.clone()).await.unwrap();
        let mut socket = TcpStream::connect(serving.address()).await.unwrap();
        let reply = || Reply::thinking("A greeting.", 12).saying("Hello to you, too, and more.");
        provider.say(reply());
        provider.say(reply());
        let path = "/v1/messages?beta=true";
        let (status, head, stream) =
            ask(&mut socket, path, &messages("claude-sonnet-4-5", true)).await;
        assert!(status == 200 && head.contains("content-type: text/event-stream"), "{head}");
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
        let said: String =
            events.iter().filter_map(|(_, data)| data["delta"]["text"].as_str()).collect();
        assert_eq!(said, "Hello to you, too, and more.");

        let (_, head, whole) = ask(&mut socket, path, &messages("claude-sonnet-4-5", false)).await;
        let whole: Value = serde_json::from_str(&whole).unwrap();
        assert!(
            head.contains("application/json") && whole["content"][1]["text"] == said,
            "{whole}"
        );
        assert_eq!(
            whole["usage"]["output_tokens"],
            events[events.len() - 2].1["usage"]["output_tokens"]
        );

        let (status, _, error) = ask(&mut socket, path, &json!({"model": "claude-opus-5"})).await;
        assert!(status == 400 && error.contains("max_tokens: Field required"), "{error}");
        let (_, _, broken) = ask(&mut socket, path, &json!([])).await;
        assert!(broken.contains("Input should be an object"), "{broken}");
        let count =
            json!({"model": "claude-opus-5", "messages": [{"role": "user", "content": "Hello?"}]});
        let (_, _, count) = ask(&mut socket, "/v1/messages/count_tokens", &count).await;
        assert_eq!(count, "{\"input_tokens\":9}");
        assert_eq!(ask(&mut socket, "/v1/embeddings", &json!({})).await.0, 404);
        let refused: Vec<Option<Rule>> =
            provider.take_log().iter().map(|one| one.verdict.refused()).collect();
        assert_eq!(refused, [None, None, Some(Rule::FieldRequired), Some(Rule::BadValue), None]);
    }

    #[tokio::test]
    async fn chat_streams_end_with_done_and_usage_where_asked() {
        let provider = Provider::new(Rules::default(), 5);
        let serving = serve(provider.clone()).await.unwrap();
        let mut socket = TcpStream::connect(serving.address()).await.unwrap();
        let mut body = json!({"model": "deepseek-v4", "stream": true, "messages": [{"role": "user", "content": "Hello?"}]});
        let reply = || {
            let reply = Reply::thinking("Think of it.", 9).saying("I look.");
            reply.calling("a", json!({"x": 1})).calling("b", json!({"y": 2}))
        };
        for usage in [false, true] {
            if usage {
                body["stream_options"] = json!({"include_usage": true});
            }
            provider.say(reply());
            let (status, _, stream) = ask(&mut socket, "/v1/chat/completions", &body).await;
            assert_eq!((status, stream.ends_with("data: [DONE]\n\n")), (200, true));
            let chunks: Vec<Value> = stream
                .split("\n\n")
                .filter_map(|event| serde_json::from_str(event.strip_prefix("data: ")?).ok())
                .collect();
            let joined = |field: &str| -> String {
                chunks.iter().filter_map(|c| c["choices"][0]["delta"][field].as_str()).collect()
            };
            assert_eq!(
                (joined("reasoning_content"), joined("content")),
                ("Think of it.".into(), "I look.".into())
            );
            let heads: Vec<&Value> = chunks
                .iter()
                .map(|chunk| &chunk["choices"][0]["delta"]["tool_calls"][0])
                .filter(|call| call["id"].is_string())
                .collect();
            assert_eq!((heads.len(), &heads[1]["index"]), (2, &json!(1)));
            let with_usage = chunks.iter().filter(|chunk| chunk["usage"].is_object()).count();
            assert_eq!(with_usage, usize::from(usage));
        }
    }

    #[tokio::test]
    async fn responses_and_gemini_stream_in_their_own_grammar() {
        let provider = Provider::new(Rules::default(), 5);
        let serving = serve(provider.clone()).await.unwrap();
        let mut socket = TcpStream::connect(serving.address()).await.unwrap();
        let reply = || Reply::thinking("Think of it.", 9).saying("Here it is, all of it.");
        let body = json!({"model": "gpt-5.5", "stream": true, "input": "Hello?"});
        provider.say(reply());
        let (_, _, stream) = ask(&mut socket, "/v1/responses", &body).await;
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
        provider.say(reply());
        let (_, head, stream) = ask(&mut socket, &format!("{path}?alt=sse"), &body).await;
        assert!(head.contains("text/event-stream") && stream.ends_with("\r\n\r\n"), "{stream}");
        let events: Vec<Value> = stream.trim_end().split("\r\n\r\n").map(data).collect();
        let parts = |events: &[Value]| -> Vec<Value> {
            events.iter().map(|e| e["candidates"][0]["content"]["parts"][0].clone()).collect()
        };
        let framed = parts(&events);
        let said: String = framed.iter().filter_map(|part| part["text"].as_str()).collect();
        assert_eq!(said, "Here it is, all of it.");
        assert!(framed[framed.len() - 1]["thoughtSignature"].is_string(), "an empty text, signed");
        provider.say(reply());
        let (_, head, array) = ask(&mut socket, path, &body).await;
        let array: Vec<Value> = serde_json::from_str(&array).unwrap();
        assert!(head.contains("application/json") && parts(&array).len() == framed.len());
    }
}
