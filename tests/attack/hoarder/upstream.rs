//! An upstream whose response is selected by the request's `x-flood` header.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::header::{CONNECTION, CONTENT_ENCODING, CONTENT_TYPE, UPGRADE};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;

use crate::support::h2::{self, Body};

const ANSWER: &str = r#"{"id":"c","object":"chat.completion","model":"m","choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant","content":"Hi"}}],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}"#;
/// The size of the response for a slow reader, bytes.
const LONG: usize = 8 << 20;

/// An encoded response, and whether it stays open.
#[derive(Clone)]
struct Encoded {
    bytes: Bytes,
    stays_open: bool,
}

#[derive(Default)]
struct State {
    /// By their content coding.
    answers: Mutex<HashMap<String, Encoded>>,
    tunnelled: AtomicU64,
}

pub(super) struct Upstream {
    address: std::net::SocketAddr,
    state: Arc<State>,
}

impl Upstream {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State::default());
        let shared = state.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let state = shared.clone();
                let service = service_fn(move |request| {
                    answer(state.clone(), request).map(Ok::<_, Infallible>)
                });
                let serving = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .with_upgrades();
                tokio::spawn(serving);
            }
        });
        Self { address, state }
    }

    pub(super) fn base(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Responds to `x-flood: CODING` with these bytes.
    pub(super) fn holds(&self, coding: &str, bytes: Vec<u8>) {
        self.keep(coding, Encoded { bytes: bytes.into(), stays_open: false });
    }

    /// Responds to `x-flood: CODING` with a stream that begins with these bytes and does not end.
    pub(super) fn streams(&self, coding: &str, bytes: Vec<u8>) {
        self.keep(coding, Encoded { bytes: bytes.into(), stays_open: true });
    }

    fn keep(&self, coding: &str, encoded: Encoded) {
        self.state.answers.lock().unwrap().insert(coding.to_owned(), encoded);
    }

    /// Waits until this many bytes came through tunnels.
    pub(super) async fn has_tunnelled(&self, bytes: u64) {
        let coming = async {
            while self.state.tunnelled.load(Ordering::Relaxed) < bytes {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(super::TIMEOUT, coming).await.unwrap();
    }
}

async fn answer(state: Arc<State>, mut request: Request<Incoming>) -> Response<Body> {
    let header = |name: &str| request.headers().get(name)?.to_str().ok().map(str::to_owned);
    let (flood, wants_digest) = (header("x-flood"), header("x-digest").is_some());
    if request.headers().contains_key(UPGRADE) {
        return tunnel(state, &mut request).await;
    }
    let digest = read(request.into_body(), wants_digest).await;
    let response = Response::builder().header("x-digest", digest);
    let encoded = flood.as_ref().and_then(|it| state.answers.lock().unwrap().get(it).cloned());
    let response = match (flood.as_deref(), encoded) {
        (Some(coding), Some(encoded)) => {
            let kind = if encoded.stays_open { "text/event-stream" } else { "application/json" };
            let response = response.header(CONTENT_TYPE, kind).header(CONTENT_ENCODING, coding);
            let (mut feed, body) = h2::body();
            tokio::spawn(async move {
                let _ = feed.send_data(encoded.bytes).await;
                if encoded.stays_open {
                    tokio::time::sleep(super::TIMEOUT).await;
                }
            });
            response.body(body)
        }
        (Some("codings"), None) => {
            let response = response.header(CONTENT_ENCODING, "br,".repeat(20_000));
            response.header(CONTENT_TYPE, "application/json").body(h2::whole(ANSWER).await)
        }
        (Some("long"), None) => {
            let event = Bytes::from(": nothing\n\n".repeat(6_000));
            let (mut feed, body) = h2::body();
            tokio::spawn(async move {
                for _ in 0..LONG / event.len() {
                    if feed.send_data(event.clone()).await.is_err() {
                        return;
                    }
                }
            });
            response.header(CONTENT_TYPE, "text/event-stream").body(body)
        }
        _ => response.header(CONTENT_TYPE, "application/json").body(h2::whole(ANSWER).await),
    };
    response.unwrap()
}

/// Reads a body to its end; returns its digest if that is requested.
async fn read(mut body: Incoming, wants_digest: bool) -> String {
    let mut hasher = blake3::Hasher::new();
    while let Some(Ok(frame)) = body.frame().await {
        if let (true, Some(data)) = (wants_digest, frame.data_ref()) {
            hasher.update(data);
        }
    }
    hasher.finalize().to_hex().to_string()
}

/// Accepts a tunnel and reads whatever comes.
async fn tunnel(state: Arc<State>, request: &mut Request<Incoming>) -> Response<Body> {
    let upgrade = hyper::upgrade::on(request);
    tokio::spawn(async move {
        let Ok(upgraded) = upgrade.await else { return };
        let (mut stream, mut buffer) = (TokioIo::new(upgraded), vec![0; 1 << 16]);
        while let Ok(read @ 1..) = stream.read(&mut buffer).await {
            state.tunnelled.fetch_add(read as u64, Ordering::Relaxed);
        }
    });
    let (_, body) = h2::body();
    Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header(CONNECTION, "Upgrade")
        .header(UPGRADE, "websocket")
        .header("sec-websocket-accept", "a")
        .header("sec-websocket-extensions", "permessage-deflate")
        .body(body)
        .unwrap()
}
