//! A scripted provider: four protocols on one port, with real streams, tool calls, reasoning, usage
//! that adds up, and failures on demand.
//!
//! For the demo and for tests that must not need a key or a network. Knows nothing of the proxy.
//! A failure is asked for in the model's name or the header `x-demo-fault` (see [`Fault`]).

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
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
use crate::script::{self, Ask, Memory, Tokenizer};
use crate::strict;
use crate::websocket;

/// A provider that is listening. It stops when this is dropped.
#[derive(Debug)]
pub struct Provider {
    address: SocketAddr,
    accepting: tokio::task::JoinHandle<()>,
}

impl Provider {
    /// Listens on `address` (port 0: any free one), and counts what it reads with `tokenizer`.
    ///
    /// # Errors
    /// Where the address cannot be bound.
    pub async fn start(address: SocketAddr, tokenizer: Tokenizer) -> io::Result<Self> {
        Self::listen(address, Kept { tokenizer, memory: Mutex::default(), judge: None }).await
    }

    /// The same, and each request is judged first as real providers do (see [`strict`]), by `rules`: what
    /// they would refuse is refused in their words.
    ///
    /// # Errors
    /// Where the address cannot be bound.
    pub async fn strict(
        address: SocketAddr,
        tokenizer: Tokenizer,
        rules: strict::Rules,
    ) -> io::Result<Self> {
        let judge = Some(strict::Provider::new(rules, 0));
        Self::listen(address, Kept { tokenizer, memory: Mutex::default(), judge }).await
    }

    async fn listen(address: SocketAddr, kept: Kept) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let accepting = tokio::spawn(accept(listener, Arc::new(kept)));
        Ok(Self { address, accepting })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// What all connections share.
pub(crate) struct Kept {
    pub(crate) tokenizer: Tokenizer,
    memory: Mutex<Memory>,
    judge: Option<strict::Provider>,
}

impl Kept {
    /// What the script remembers.
    pub(crate) fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) type Shared = Arc<Kept>;
pub(crate) type Body = BoxBody<Bytes, io::Error>;

async fn accept(listener: TcpListener, shared: Shared) {
    while let Ok((socket, _)) = listener.accept().await {
        let shared = shared.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| serve(request, shared.clone()));
            let connection = auto::Builder::new(TokioExecutor::new());
            // A connection that breaks is the other side's affair.
            let _ = connection.serve_connection_with_upgrades(TokioIo::new(socket), service).await;
        });
    }
}

/// A failure that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// 429 with `retry-after: 1`.
    RateLimit,
    /// 529, or 503 where the protocol has no 529.
    Overloaded,
    /// 400 in the provider's own words: the prompt is too long.
    Overflow,
    /// The stream breaks off halfway.
    Cut,
    /// A stream of nothing.
    Empty,
    /// 502 with a page of HTML.
    Html,
}

impl Fault {
    /// By header, or by a model called `demo-…`.
    fn asked(headers: &HeaderMap, model: &str) -> Option<Self> {
        let header = headers.get("x-demo-fault").and_then(|value| value.to_str().ok());
        match header.or_else(|| model.split_once("demo-").map(|(_, fault)| fault))? {
            "rate-limit" => Some(Self::RateLimit),
            "overloaded" => Some(Self::Overloaded),
            "overflow" => Some(Self::Overflow),
            "cut" => Some(Self::Cut),
            "empty" => Some(Self::Empty),
            "html" => Some(Self::Html),
            _ => None,
        }
    }
}

/// What a path asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route<'p> {
    Messages,
    CountMessages,
    Chat,
    Responses,
    CountResponses,
    Gemini { model: &'p str, stream: bool },
    CountGemini { model: &'p str },
    Models,
    Socket,
    Unknown,
}

impl<'p> Route<'p> {
    fn of(method: &Method, path: &'p str) -> Self {
        if method == Method::GET {
            return match path {
                path if path.ends_with("/responses") => Self::Socket,
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
    shared: Shared,
) -> Result<Response<Body>, Infallible> {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let route = Route::of(&method, &path);
    if route == Route::Socket {
        return Ok(match websocket::upgrade(&mut request, shared) {
            Some(response) => response.map(|()| whole(Bytes::new())),
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
    // It has words of its own for what is no JSON.
    let admitted = match admit(&shared, &parts, bytes.clone()) {
        Ok(admitted) => admitted,
        Err(refusal) => return Ok(refused(&refusal)),
    };
    let Some(body) = parse(&bytes) else {
        return Ok(json_response(
            StatusCode::BAD_REQUEST,
            &json!({"error": {"type": "invalid_request_error", "message": "the body is not JSON"}}),
        ));
    };
    let delay = number(&parts.headers, "x-demo-delay-ms").map(Duration::from_millis);
    let delay = delay.unwrap_or_default();
    Ok(respond(route, &parts.headers, &body, &shared, admitted.as_ref(), delay))
}

/// A request that the strict provider let through.
struct Admitted {
    judge: strict::Provider,
    call: strict::Call,
    accepted: strict::Accepted,
}

/// Asks the strict provider, where there is one; `None` for what it does not know.
fn admit(
    shared: &Shared,
    parts: &http::request::Parts,
    bytes: Bytes,
) -> Result<Option<Admitted>, Box<strict::Refusal>> {
    let Some(judge) = shared.judge.clone() else { return Ok(None) };
    let path = parts.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    let call = strict::Call::read(path, &parts.headers, bytes, judge.clock().now());
    let Some(call) = call.filter(|_| parts.method == Method::POST) else { return Ok(None) };
    match judge.judge(&call) {
        strict::Verdict::Refused(refusal) => Err(Box::new(refusal)),
        strict::Verdict::Accepted(accepted) => Ok(Some(Admitted { judge, call, accepted })),
    }
}

fn refused(refusal: &strict::Refusal) -> Response<Body> {
    let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::BAD_REQUEST);
    json_response(status, &refusal.body)
}

fn parse(bytes: &[u8]) -> Option<Value> {
    if bytes.is_empty() {
        return Some(Value::Null);
    }
    serde_json::from_slice(bytes).ok()
}

fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}

fn respond(
    route: Route<'_>,
    headers: &HeaderMap,
    body: &Value,
    shared: &Shared,
    admitted: Option<&Admitted>,
    delay: Duration,
) -> Response<Body> {
    let ask = match route {
        Route::Messages | Route::CountMessages => anthropic::ask(shared.tokenizer, body),
        Route::Chat => openai_chat::ask(shared.tokenizer, body),
        Route::Responses | Route::CountResponses => openai_responses::ask(shared.tokenizer, body),
        Route::Gemini { model, stream } => gemini::ask(shared.tokenizer, model, stream, body),
        Route::CountGemini { model } => {
            let wrapped = &body["generateContentRequest"];
            gemini::ask(
                shared.tokenizer,
                model,
                false,
                if wrapped.is_object() { wrapped } else { body },
            )
        }
        Route::Models => return json_response(StatusCode::OK, &models(headers)),
        Route::Socket | Route::Unknown => {
            return json_response(
                StatusCode::NOT_FOUND,
                &json!({"error": {"type": "not_found_error", "message": "no such path here"}}),
            );
        }
    };
    match route {
        Route::CountMessages => {
            return json_response(StatusCode::OK, &json!({"input_tokens": ask.input()}));
        }
        Route::CountResponses => {
            return json_response(
                StatusCode::OK,
                &json!({"object": "response.input_tokens", "input_tokens": ask.input()}),
            );
        }
        Route::CountGemini { .. } => {
            return json_response(StatusCode::OK, &json!({"totalTokens": ask.input()}));
        }
        _ => {}
    }
    let fault = Fault::asked(headers, &ask.model);
    if let Some(refusal) = refuse(route, fault, &ask, number(headers, "x-demo-window")) {
        return refusal;
    }
    let answer = script::answer(&ask, &mut shared.memory());
    let whole = match route {
        Route::Messages => anthropic::whole(&ask, &answer),
        Route::Chat => openai_chat::whole(&ask, &answer),
        Route::Gemini { .. } => gemini::whole(&ask, &answer),
        _ => openai_responses::whole(&ask, &answer),
    };
    if let Some(Admitted { judge, call, accepted }) = admitted {
        judge.remember(call, accepted, &whole);
    }
    if ask.stream {
        return stream_response(route, events(route, body, &whole), fault, delay);
    }
    json_response(StatusCode::OK, &whole)
}

fn events(route: Route<'_>, body: &Value, whole: &Value) -> Vec<Event> {
    match route {
        Route::Messages => anthropic::stream(whole),
        Route::Chat => openai_chat::stream(whole, body["stream_options"]["include_usage"] == true),
        Route::Gemini { .. } => gemini::stream(whole),
        _ => openai_responses::stream(whole),
    }
}

/// The refusal that was asked for, in the provider's shape and words; also where the prompt is
/// larger than the window that the test set.
fn refuse(
    route: Route<'_>,
    fault: Option<Fault>,
    ask: &Ask,
    window: Option<u64>,
) -> Option<Response<Body>> {
    let window = window.filter(|window| ask.input() > *window);
    match fault {
        Some(Fault::RateLimit) => {
            let mut response = json_response(
                StatusCode::TOO_MANY_REQUESTS,
                &error(
                    route,
                    429,
                    "rate_limit_error",
                    "rate_limit_exceeded",
                    "Rate limit reached: try again in 1s.",
                ),
            );
            response.headers_mut().insert("retry-after", http::HeaderValue::from_static("1"));
            Some(response)
        }
        Some(Fault::Overloaded) => {
            let status = if route == Route::Messages { 529 } else { 503 };
            let body =
                error(route, status, "overloaded_error", "server_is_overloaded", "Overloaded");
            Some(json_response(
                StatusCode::from_u16(status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE),
                &body,
            ))
        }
        Some(Fault::Html) => {
            let mut response = Response::new(whole(Bytes::from_static(
                b"<html><body><h1>502 Bad Gateway</h1></body></html>\n",
            )));
            *response.status_mut() = StatusCode::BAD_GATEWAY;
            response
                .headers_mut()
                .insert("content-type", http::HeaderValue::from_static("text/html"));
            Some(response)
        }
        Some(Fault::Overflow) => Some(overflow(route, ask.input().max(200_001), 200_000)),
        _ => window.map(|window| overflow(route, ask.input(), window)),
    }
}

fn overflow(route: Route<'_>, prompt: u64, window: u64) -> Response<Body> {
    let message = match route {
        Route::Messages => format!("prompt is too long: {prompt} tokens > {window} maximum"),
        Route::Chat => format!("This model's maximum context length is {window} tokens. However, your messages resulted in {prompt} tokens. Please reduce the length of the messages."),
        Route::Gemini { .. } => format!("The input token count ({prompt}) exceeds the maximum number of tokens allowed ({window})."),
        _ => "Your input exceeds the context window of this model. Please adjust your input and try again.".to_owned(),
    };
    json_response(
        StatusCode::BAD_REQUEST,
        &error(route, 400, "invalid_request_error", "context_length_exceeded", &message),
    )
}

fn error(route: Route<'_>, status: u16, kind: &str, code: &str, message: &str) -> Value {
    let google = match status {
        429 => "RESOURCE_EXHAUSTED",
        503 => "UNAVAILABLE",
        _ => "INVALID_ARGUMENT",
    };
    match route {
        Route::Messages => {
            json!({"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_demo"})
        }
        Route::Gemini { .. } => {
            json!({"error": {"code": status, "message": message, "status": google}})
        }
        _ => json!({"error": {"message": message, "type": kind, "param": null, "code": code}}),
    }
}

fn models(headers: &HeaderMap) -> Value {
    let names = ["claude-sonnet-4-5", "gpt-5.5", "gemini-3-pro-preview", "demo-model"];
    if headers.contains_key("x-goog-api-key") {
        let all: Vec<Value> = names.iter().map(|name| json!({"name": format!("models/{name}"), "inputTokenLimit": 1_048_576, "outputTokenLimit": 65_536})).collect();
        return json!({"models": all});
    }
    let all: Vec<Value> = names.iter().map(|name| json!({"id": name, "object": "model", "type": "model", "display_name": name, "created": 1_795_000_000_u64, "owned_by": "demo"})).collect();
    json!({"object": "list", "data": all, "has_more": false})
}

pub(crate) fn whole(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never| match never {}).boxed()
}

pub(crate) fn json_response(status: StatusCode, body: &Value) -> Response<Body> {
    let mut response = Response::new(whole(Bytes::from(body.to_string())));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert("content-type", http::HeaderValue::from_static("application/json"));
    headers.insert("request-id", http::HeaderValue::from_static("req_demo"));
    response
}

/// Sends events one by one, each a frame of its own; Gemini's lines end with CRLF.
fn stream_response(
    route: Route<'_>,
    events: Vec<Event>,
    fault: Option<Fault>,
    delay: Duration,
) -> Response<Body> {
    let crlf = matches!(route, Route::Gemini { .. });
    let mut frames: Vec<io::Result<String>> =
        events.iter().map(|event| Ok(event.frame(crlf))).collect();
    match fault {
        Some(Fault::Cut) => {
            frames.truncate(frames.len() / 2);
            frames.push(Err(io::Error::other("cut, as asked")));
        }
        Some(Fault::Empty) => frames.clear(),
        _ => {}
    }
    paced(frames, delay)
}

/// A stream of these frames, each after a delay and on its own, as from a model.
pub(crate) fn paced(frames: Vec<io::Result<String>>, delay: Duration) -> Response<Body> {
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
