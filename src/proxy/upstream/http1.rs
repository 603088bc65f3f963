//! HTTP/1.1 to upstreams: hyper-util's pool, and once more where a kept connection turns out closed.
//!
//! A connection that was opened to learn what an upstream speaks is used here, not thrown away.

use std::collections::VecDeque;
use std::error::Error as _;
use std::io::{self, ErrorKind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http::uri::Authority;
use http::{Request, Response, Uri};
use hyper_util::client::legacy::{Client, Error};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tower_service::Service;

use super::dial::{Answered, Connecting, Connector, Transport};
use super::{CLOSED_WHILE_IDLE, IDLE, Trouble};
use crate::proxy::body::Outgoing;
use crate::proxy::{BUFFER, LEAST_HEADER};

/// Idle connections that are kept to one upstream; more are closed.
const IDLE_CONNECTIONS: usize = 128;
/// Connections that are open and not used yet, at most and for how long.
const SPARES: (usize, Duration) = (16, Duration::from_secs(5));

/// Pooled connections that speak HTTP/1.1.
pub(super) struct Http1 {
    client: Client<SpareConnector, Outgoing>,
    spares: Spares,
}

impl Http1 {
    pub(super) fn new(connector: Connector) -> Self {
        let spares = Spares::default();
        let mut builder = Client::builder(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(IDLE_CONNECTIONS)
            .http1_preserve_header_case(true)
            .http1_max_buf_size(BUFFER)
            .http1_max_headers(BUFFER / LEAST_HEADER);
        let client = builder.build(SpareConnector { spares: spares.clone(), connector });
        Self { client, spares }
    }

    /// Where connections go that were opened and speak HTTP/1.1.
    pub(super) fn spares(&self) -> Spares {
        self.spares.clone()
    }

    /// Asks, and asks once more where a connection that was kept idle turns out to be closed: a
    /// client of its own would have opened another one. What streams through cannot be sent twice.
    pub(super) async fn send(
        &self,
        request: Request<Outgoing>,
    ) -> Result<Response<Outgoing>, Error> {
        let (head, body) = request.into_parts();
        let again = body.copy().map(|body| Request::from_parts(head.clone(), body));
        let sent = Instant::now();
        let failed = match self.client.request(Request::from_parts(head, body)).await {
            Ok(response) => {
                if let Some(Answered(before)) = response.extensions().get() {
                    before.store(true, Ordering::Relaxed);
                }
                return Ok(response.map(Outgoing::through));
            }
            Err(failed) => failed,
        };
        match again.filter(|_| sent.elapsed() < CLOSED_WHILE_IDLE && was_idle(&failed)) {
            Some(again) => Ok(self.client.request(again).await?.map(Outgoing::through)),
            None => Err(failed),
        }
    }
}

/// Whether a connection that had answered before closed without a byte of this answer.
fn was_idle(failed: &Error) -> bool {
    let mut extras = http::Extensions::new();
    if let Some(connection) = failed.connect_info() {
        connection.get_extras(&mut extras);
    }
    let reused = extras.get::<Answered>().is_some_and(|it| it.0.load(Ordering::Relaxed));
    let mut cause = failed.source();
    while let Some(error) = cause.filter(|_| reused) {
        let closed = error.downcast_ref::<hyper::Error>().is_some_and(|error| {
            error.is_incomplete_message() || error.is_closed() || error.is_canceled()
        });
        let broken = error.downcast_ref::<io::Error>().map(io::Error::kind);
        if closed || matches!(broken, Some(ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Connections that are open and not used yet, by where they lead.
#[derive(Clone, Default)]
pub(super) struct Spares(Arc<Mutex<VecDeque<(Authority, Instant, Transport)>>>);

impl Spares {
    pub(super) fn put(&self, to: Authority, transport: Transport) {
        let mut kept = self.kept();
        kept.push_back((to, Instant::now(), transport));
        if kept.len() > SPARES.0 {
            kept.pop_front();
        }
    }

    fn take(&self, to: &Uri) -> Option<Transport> {
        let mut kept = self.kept();
        let at = kept.iter().position(|(authority, ..)| Some(authority) == to.authority())?;
        kept.remove(at).map(|(_, _, transport)| transport)
    }

    /// Without those that are too old: their peers may have closed them.
    fn kept(&self) -> MutexGuard<'_, VecDeque<(Authority, Instant, Transport)>> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|(_, since, _)| since.elapsed() < SPARES.1);
        kept
    }
}

/// Uses what is open already, else opens another.
#[derive(Clone)]
struct SpareConnector {
    spares: Spares,
    connector: Connector,
}

impl Service<Uri> for SpareConnector {
    type Response = Transport;
    type Error = Trouble;
    type Future = Connecting;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Trouble>> {
        self.connector.poll_ready(cx)
    }

    fn call(&mut self, to: Uri) -> Connecting {
        match self.spares.take(&to) {
            Some(transport) => Box::pin(async move { Ok(transport) }),
            None => self.connector.call(to),
        }
    }
}
