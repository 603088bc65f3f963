//! A scripted provider: four protocols on one port, with real streams, tool calls, reasoning, and usage
//! that adds up.
//!
//! For the demo and for tests that must not need a key or a network. Knows nothing of the proxy.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::dialect::{Event, anthropic, gemini, openai_chat, openai_responses};
use crate::script::{self, ScriptState, TokenizerFn};
use crate::websocket;

/// A provider that is listening. It stops when this is dropped.
#[derive(Debug)]
pub struct ScriptedProvider {
    address: SocketAddr,
    accepting: tokio::task::JoinHandle<()>,
}

impl ScriptedProvider {
    /// Listens on `address` (port 0: any free one), and counts prompts with `tokenizer`.
    ///
    /// # Errors
    /// If the address cannot be bound.
    pub async fn start(address: SocketAddr, tokenizer: TokenizerFn) -> io::Result<Self> {
        Self::listen(address, ServerState::new(tokenizer, None)).await
    }

    /// The same, but each request is judged first: what `judge` refuses gets no reply of the script.
    ///
    /// # Errors
    /// If the address cannot be bound.
    pub async fn judged(
        address: SocketAddr,
        tokenizer: TokenizerFn,
        judge: Box<dyn Judge>,
    ) -> io::Result<Self> {
        Self::listen(address, ServerState::new(tokenizer, Some(judge))).await
    }

    async fn listen(address: SocketAddr, state: ServerState) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let accepting = tokio::spawn(accept(listener, Arc::new(state)));
        Ok(Self { address, accepting })
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for ScriptedProvider {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Decides which requests are replied to.
pub trait Judge: Send + Sync {
    /// Judges a request. An accepted one may want to know the whole body of its reply.
    ///
    /// # Errors
    /// With the status and body that refuse the request.
    fn judge(&self, head: &Parts, body: &Bytes) -> Result<Option<OnReply>, (StatusCode, Value)>;
}

/// Is called with the whole body of a reply, before it is sent.
pub type OnReply = Box<dyn FnOnce(&Value) + Send>;

/// What all connections share.
pub(crate) struct ServerState {
    pub(crate) tokenizer: TokenizerFn,
    script: Mutex<ScriptState>,
    judge: Option<Box<dyn Judge>>,
}

impl ServerState {
    fn new(tokenizer: TokenizerFn, judge: Option<Box<dyn Judge>>) -> Self {
        Self { tokenizer, script: Mutex::default(), judge }
    }

    pub(crate) fn script(&self) -> MutexGuard<'_, ScriptState> {
        self.script.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) type SharedState = Arc<ServerState>;
/// The body of a response.
pub type Body = BoxBody<Bytes, io::Error>;

/// The request header after which a stream breaks off halfway.
const CUT: &str = "x-demo-cut";

async fn accept(listener: TcpListener, state: SharedState) {
    while let Ok((socket, _)) = listener.accept().await {
        // Else the body of a reply waits up to 40 ms for the client's system to acknowledge the head.
        let _ = socket.set_nodelay(true);
        let state = state.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| serve(request, state.clone()));
            let connection = auto::Builder::new(TokioExecutor::new());
            // If a connection breaks, the client knows.
            let _ = connection.serve_connection_with_upgrades(TokioIo::new(socket), service).await;
        });
    }
}

/// The API behind a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ApiRoute<'p> {
    Messages,
    CountMessages,
    Chat,
    Responses,
    CountResponses,
    Gemini { model: &'p str, stream: bool },
    CountGemini { model: &'p str },
    Models,
    WebSocket,
    Unknown,
}

impl<'p> ApiRoute<'p> {
    fn new(method: &Method, path: &'p str) -> Self {
        if method == Method::GET {
            return match path {
                path if path.ends_with("/responses") => Self::WebSocket,
                path if path.contains("/models") => Self::Models,
                _ => Self::Unknown,
            };
        }
        match path.rsplit('/').next().unwrap_or_default() {
            "messages" => Self::Messages,
            "count_tokens" => Self::CountMessages,
            "completions" if path.ends_with("/chat/completions") => Self::Chat,
            "responses" => Self::Responses,
            "input_tokens" => Self::CountResponses,
            last => match last.split_once(':') {
                Some((model, "generateContent")) => Self::Gemini { model, stream: false },
                Some((model, "streamGenerateContent")) => Self::Gemini { model, stream: true },
                Some((model, "countTokens")) => Self::CountGemini { model },
                _ => Self::Unknown,
            },
        }
    }
}

async fn serve(
    mut request: Request<Incoming>,
    state: SharedState,
) -> Result<Response<Body>, Infallible> {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let route = ApiRoute::new(&method, &path);
    if route == ApiRoute::WebSocket {
        return Ok(match websocket::upgrade(&mut request, state) {
            Some(response) => response.map(|()| full_body(Bytes::new())),
            None => json_response(
                StatusCode::UPGRADE_REQUIRED,
                &json!({"error": {"message": "upgrade to WebSocket, or POST"}}),
            ),
        });
    }
    let (parts, body) = request.into_parts();
    let Ok(bytes) = body.collect().await.map(http_body_util::Collected::to_bytes) else {
        return Ok(json_response(
            StatusCode::BAD_REQUEST,
            &json!({"error": {"message": "the body did not arrive whole"}}),
        ));
    };
    // Before it is parsed: a judge has an error of its own for a body that is no JSON.
    let on_reply = match state.judge.as_ref().map(|judge| judge.judge(&parts, &bytes)) {
        Some(Err((status, error))) => return Ok(json_response(status, &error)),
        Some(Ok(on_reply)) => on_reply,
        None => None,
    };
    let Some(body) = parse_body(&bytes) else {
        return Ok(json_response(
            StatusCode::BAD_REQUEST,
            &json!({"error": {"type": "invalid_request_error", "message": "the body is not JSON"}}),
        ));
    };
    Ok(respond(route, &parts.headers, &body, &state, on_reply))
}

fn parse_body(bytes: &[u8]) -> Option<Value> {
    if bytes.is_empty() {
        return Some(Value::Null);
    }
    serde_json::from_slice(bytes).ok()
}

fn respond(
    route: ApiRoute<'_>,
    headers: &HeaderMap,
    body: &Value,
    state: &SharedState,
    on_reply: Option<OnReply>,
) -> Response<Body> {
    let request = match route {
        ApiRoute::Messages | ApiRoute::CountMessages => {
            anthropic::parse_request(state.tokenizer, body)
        }
        ApiRoute::Chat => openai_chat::parse_request(state.tokenizer, body),
        ApiRoute::Responses | ApiRoute::CountResponses => {
            openai_responses::parse_request(state.tokenizer, body)
        }
        ApiRoute::Gemini { model, stream } => {
            gemini::parse_request(state.tokenizer, model, stream, body)
        }
        ApiRoute::CountGemini { model } => {
            let wrapped = &body["generateContentRequest"];
            gemini::parse_request(
                state.tokenizer,
                model,
                false,
                if wrapped.is_object() { wrapped } else { body },
            )
        }
        ApiRoute::Models => return json_response(StatusCode::OK, &model_list(headers)),
        ApiRoute::WebSocket | ApiRoute::Unknown => {
            return json_response(
                StatusCode::NOT_FOUND,
                &json!({"error": {"type": "not_found_error", "message": "no such path here"}}),
            );
        }
    };
    match route {
        ApiRoute::CountMessages => {
            return json_response(StatusCode::OK, &json!({"input_tokens": request.input_tokens()}));
        }
        ApiRoute::CountResponses => {
            return json_response(
                StatusCode::OK,
                &json!({"object": "response.input_tokens", "input_tokens": request.input_tokens()}),
            );
        }
        ApiRoute::CountGemini { .. } => {
            return json_response(StatusCode::OK, &json!({"totalTokens": request.input_tokens()}));
        }
        _ => {}
    }
    let reply = script::reply(&request, &mut state.script());
    let response = match route {
        ApiRoute::Messages => anthropic::response_body(&request, &reply),
        ApiRoute::Chat => openai_chat::response_body(&request, &reply),
        ApiRoute::Gemini { .. } => gemini::response_body(&request, &reply),
        _ => openai_responses::response_body(&request, &reply),
    };
    if let Some(on_reply) = on_reply {
        on_reply(&response);
    }
    if request.stream {
        // Gemini's lines end with CRLF.
        let crlf = matches!(route, ApiRoute::Gemini { .. });
        let events = events(route, body, &response);
        let mut frames: Vec<io::Result<String>> =
            events.iter().map(|event| Ok(event.frame(crlf))).collect();
        if headers.get(CUT).is_some() {
            frames.truncate(frames.len() / 2);
            frames.push(Err(io::Error::other("cut, as asked")));
        }
        return event_stream(frames, Duration::ZERO);
    }
    json_response(StatusCode::OK, &response)
}

fn events(route: ApiRoute<'_>, request: &Value, response: &Value) -> Vec<Event> {
    match route {
        ApiRoute::Messages => anthropic::stream_events(response),
        ApiRoute::Chat => {
            openai_chat::stream_events(response, request["stream_options"]["include_usage"] == true)
        }
        ApiRoute::Gemini { .. } => gemini::stream_events(response),
        _ => openai_responses::stream_events(response),
    }
}

fn model_list(headers: &HeaderMap) -> Value {
    let names = ["claude-sonnet-4-5", "gpt-5.5", "gemini-3-pro-preview", "demo-model"];
    if headers.contains_key("x-goog-api-key") {
        let all: Vec<Value> = names.iter().map(|name| json!({"name": format!("models/{name}"), "inputTokenLimit": 1_048_576, "outputTokenLimit": 65_536})).collect();
        return json!({"models": all});
    }
    let all: Vec<Value> = names.iter().map(|name| json!({"id": name, "object": "model", "type": "model", "display_name": name, "created": 1_795_000_000_u64, "owned_by": "demo"})).collect();
    json!({"object": "list", "data": all, "has_more": false})
}

/// A body of these bytes.
pub fn full_body(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never| match never {}).boxed()
}

/// A response whose body is JSON.
pub fn json_response(status: StatusCode, body: &Value) -> Response<Body> {
    let mut response = Response::new(full_body(Bytes::from(body.to_string())));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert("content-type", http::HeaderValue::from_static("application/json"));
    headers.insert("request-id", http::HeaderValue::from_static("req_demo"));
    response
}

/// Streams frames one by one, each after the delay.
pub fn event_stream(frames: Vec<io::Result<String>>, delay: Duration) -> Response<Body> {
    let frames = stream::unfold(frames.into_iter(), move |mut frames| async move {
        let frame = frames.next()?;
        if delay.is_zero() {
            tokio::task::yield_now().await;
        } else {
            tokio::time::sleep(delay).await;
        }
        Some((frame.map(|text| Frame::data(Bytes::from(text))), frames))
    });
    let mut response = Response::new(BodyExt::boxed(StreamBody::new(frames)));
    let headers = response.headers_mut();
    headers
        .insert("content-type", http::HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert("cache-control", http::HeaderValue::from_static("no-cache"));
    headers.insert("request-id", http::HeaderValue::from_static("req_demo"));
    response
}
