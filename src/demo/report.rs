//! What the admin listener reports to the demo: exchanges as they end, and contexts as text for people.
//!
//! A plain client of the admin API; it trusts the responses and calculates nothing.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use serde_json::Value;

use super::session::{Http, fetch};
use crate::wire::sse::Framer;

/// How long it may take until an exchange is reported. After that the demo fails.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The delay before a failed request is repeated.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// The longest event that is read, in bytes: far longer than the report of any exchange.
const EVENT_BYTES: usize = 4 << 20;

/// Live events from the moment of subscription on.
pub(super) struct DemoReport {
    http: Http,
    admin: SocketAddr,
    token: String,
    stream: Incoming,
    framer: Framer,
    /// Exchanges that were received but not consumed yet.
    exchanges: VecDeque<Value>,
}

impl DemoReport {
    pub(super) async fn from(http: &Http, admin: SocketAddr, token: &str) -> io::Result<Self> {
        let request = get(&format!("http://{admin}/api/v1/events"), token)?;
        let response = http.request(request).await.map_err(io::Error::other)?;
        Ok(Self {
            http: http.clone(),
            admin,
            token: token.to_owned(),
            stream: response.into_body(),
            framer: Framer::new(EVENT_BYTES),
            exchanges: VecDeque::new(),
        })
    }

    pub(super) async fn next(&mut self, session: &str) -> io::Result<Value> {
        tokio::time::timeout(TIMEOUT, self.find(session)).await.unwrap_or_else(|_| {
            Err(io::Error::other("the admin listener did not tell of an exchange in time"))
        })
    }

    async fn find(&mut self, session: &str) -> io::Result<Value> {
        loop {
            while let Some(exchange) = self.exchanges.pop_front() {
                if exchange["session"] == session {
                    return Ok(exchange);
                }
            }
            let frame = self.stream.frame().await;
            let frame = frame.ok_or_else(|| io::Error::other("the live events ended"))?;
            let data = frame.map_err(io::Error::other)?.into_data().unwrap_or_default();
            let exchanges = &mut self.exchanges;
            self.framer.push(&data, |event| {
                if event.name == "exchange" {
                    exchanges.extend(serde_json::from_slice::<Value>(event.data));
                }
            });
        }
    }

    pub(super) async fn context(&self, session: &str, thread: &str) -> io::Result<String> {
        self.text(&format!("sessions/{session}/threads/{thread}/context")).await
    }

    /// What was done to an exchange and why, as text.
    pub(super) async fn explained(&self, id: &str) -> io::Result<String> {
        self.text(&format!("requests/{id}/explain")).await
    }

    /// The sums of all calls, once so many are stored.
    pub(super) async fn history(&self, calls: u64) -> io::Result<Value> {
        let until = Instant::now() + TIMEOUT;
        loop {
            let history: Value = serde_json::from_str(&self.text("history?range=15m").await?)?;
            if history["total"]["calls"] == calls || Instant::now() > until {
                return Ok(history);
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    pub(super) async fn savings(&self) -> io::Result<String> {
        self.text("savings").await
    }

    /// Fetches a view as text.
    async fn text(&self, of: &str) -> io::Result<String> {
        // On a slow disk an exchange is reported before its turn is stored, so the request is repeated for a
        // while.
        let query = if of.contains('?') { "" } else { "?format=text" };
        let url = format!("http://{}/api/v1/{of}{query}", self.admin);
        let until = Instant::now() + TIMEOUT;
        loop {
            match fetch(&self.http, get(&url, &self.token)?).await {
                Ok(text) => return Ok(String::from_utf8_lossy(&text).into_owned()),
                Err(trouble) if Instant::now() > until => return Err(trouble),
                Err(_) => tokio::time::sleep(RETRY_PAUSE).await,
            }
        }
    }
}

fn get(url: &str, token: &str) -> io::Result<Request<Full<Bytes>>> {
    let request = Request::get(url).header("authorization", format!("Bearer {token}"));
    request.body(Full::default()).map_err(io::Error::other)
}
