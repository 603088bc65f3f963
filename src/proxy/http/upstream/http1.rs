//! HTTP/1.1 to upstreams: keeps connections between requests, and decides which requests are sent again.
//!
//! A request is sent again only if it was never sent, or if a kept connection closed so soon after it, without a byte
//! of a response, that the two crossed. A connection that was opened to find out an upstream's protocol is used, not
//! dropped.

use std::collections::VecDeque;
use std::error::Error as _;
use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use foldhash::HashMap;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Request, Response, Uri, Version};
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper::ext::on_informational;
use hyper_util::client::legacy::connect::Connection as _;
use tokio::task::JoinHandle;
use tower_service::Service as _;

use super::dial::{Connector, UpstreamGauges, UpstreamTransport};
use super::error::{UpstreamError, unanswered};
use super::limits::{ATTEMPTS, IDLE};
use crate::clock::since_boot;
use crate::proxy::http::arriving::{ArrivingBody, ConnectionError};
use crate::proxy::http::body::OutgoingBody;
use crate::proxy::http::interim::InterimAllowance;
use crate::proxy::http::transport::BUFFER;
use crate::proxy::http::upload::{SendingTask, UploadGuard};
use crate::telemetry::{GaugeGuard, RepeatCause, UpstreamMetrics};

/// Idle connections kept to one upstream; further ones are closed.
const IDLE_CONNECTIONS: usize = 128;
/// How soon after a request a kept connection closes if its upstream had closed it before the request arrived: longer
/// than most round trips, and shorter than providers work on a request.
const CROSSING: Duration = Duration::from_millis(100);
/// How many connections are kept that were opened but not used yet.
const SPARES: usize = 16;
/// How long they are kept.
const SPARE_LIFE: Duration = Duration::from_secs(5);

/// Connections that speak HTTP/1.1.
pub(super) struct Http1 {
    connector: Connector,
    spares: SpareConnections,
    idle: Arc<IdleConnections>,
    gauges: UpstreamGauges,
}

/// Why there is no response.
pub(super) enum SendError {
    /// No connection could be opened.
    Connect(ConnectionError),
    /// A connection failed.
    Send(hyper::Error),
}

impl SendError {
    pub(super) fn unanswered(&self) -> UpstreamError {
        match self {
            Self::Connect(error) => unanswered(&**error),
            Self::Send(error) => unanswered(error),
        }
    }
}

/// An open connection.
struct Http1Connection {
    requests: SendRequest<OutgoingBody>,
    /// Set when bytes come; cleared when a request is sent on it once more.
    has_read: Arc<AtomicBool>,
    /// How many 1xx it may still bring.
    interim: InterimAllowance,
    /// A plain HTTP proxy reads its requests.
    is_relayed: bool,
    /// The task that reads and writes on it, until it ends.
    task: JoinHandle<hyper::Result<()>>,
}

impl Http1 {
    pub(super) fn new(connector: Connector, gauges: UpstreamGauges) -> Self {
        Self { connector, spares: SpareConnections::default(), idle: Arc::default(), gauges }
    }

    /// Where to put connections that were opened and speak HTTP/1.1.
    pub(super) fn spares(&self) -> SpareConnections {
        self.spares.clone()
    }

    pub(super) async fn send(
        &self,
        mut request: Request<OutgoingBody>,
    ) -> Result<Response<OutgoingBody>, SendError> {
        let uri = request.uri().clone();
        let origin = Origin::new(&uri);
        // Only one kept connection is tried: if it is closed, others may be, too.
        let mut idle_connection = self.idle.take(&origin);
        let mut attempt = 1;
        loop {
            let is_kept = idle_connection.is_some();
            let connection = match idle_connection.take() {
                Some(connection) => connection,
                // Boxed, because few requests open a connection and the future is large.
                None => Box::pin(self.open(&uri)).await.map_err(SendError::Connect)?,
            };
            let Http1Connection { mut requests, has_read, interim, is_relayed, mut task } =
                connection;
            *request.uri_mut() = target(&uri, is_relayed);
            let (head, mut body) = request.into_parts();
            let copy = body.copy().map(|body| Request::from_parts(head.clone(), body));
            let send_time = Instant::now();
            let sending_progress = body.begins();
            has_read.store(false, Ordering::Release);
            let mut sent_request = Request::from_parts(head, body);
            interim.add_request(0);
            let counted = interim.clone();
            on_informational(&mut sent_request, move |_| counted.use_one());
            let sending = requests.try_send_request(sent_request);
            let (answer, requests) = outcome(sending, requests, &mut task).await;
            let mut failed = match answer {
                Ok(response) => {
                    let sending_task = SendingTask::default();
                    sending_task.set(task.abort_handle());
                    let guard = UploadGuard::new(sending_progress, sending_task);
                    if let Some(requests) = requests {
                        let connection =
                            Http1Connection { requests, has_read, interim, is_relayed, task };
                        let metrics = uri.authority().and_then(|to| self.gauges.get(to));
                        self.idle.keep(origin, connection, metrics.cloned());
                    }
                    return Ok(response.map(|body| {
                        let body = ArrivingBody::new(body, Version::HTTP_11);
                        OutgoingBody::through(body, None).stopping(guard)
                    }));
                }
                Err(failed) => failed,
            };
            let unsent = failed.take_message();
            let error = failed.into_error();
            // Closed so soon, without a byte: the upstream closed it before the request arrived.
            let is_unread = is_kept
                && !has_read.load(Ordering::Acquire)
                && send_time.elapsed() < CROSSING
                && is_close(&error);
            let (cause, repeat) = match (unsent, copy) {
                (Some(unsent), _) => (RepeatCause::NotSent, unsent),
                (None, Some(copy)) if is_unread => (RepeatCause::ClosedWhileIdle, copy),
                _ => return Err(SendError::Send(error)),
            };
            if attempt == ATTEMPTS {
                return Err(SendError::Send(error));
            }
            attempt += 1;
            if let Some(metrics) = uri.authority().and_then(|to| self.gauges.get(to)) {
                metrics.repeats(cause);
            }
            request = repeat;
        }
    }

    async fn open(&self, to: &Uri) -> Result<Http1Connection, ConnectionError> {
        let mut connector = self.connector.clone();
        // A connection that was opened to find out the protocol is used first.
        let transport = match self.spares.take(to) {
            Some(transport) => transport,
            None => {
                poll_fn(|cx| connector.poll_ready(cx)).await?;
                connector.call(to.clone()).await?
            }
        };
        let connected = transport.connected();
        let interim = transport.interim_allowance();
        let has_read = transport.has_read();
        let (requests, connection) = Builder::new()
            .preserve_header_case(true)
            .max_buf_size(BUFFER)
            .handshake(transport)
            .await?;
        let task = tokio::spawn(connection.with_upgrades());
        let is_relayed = connected.is_proxied();
        Ok(Http1Connection { requests, has_read, interim, is_relayed, task })
    }
}

async fn outcome<T, S, E>(
    sending: impl Future<Output = T>,
    sender: S,
    task: &mut JoinHandle<E>,
) -> (T, Option<S>) {
    // A request that is queued at the moment when the connection ends could wait in the queue for ever, as long
    // as a sender exists; so the sender is dropped at that end. It is returned for the next request otherwise.
    let mut sending = pin!(sending);
    tokio::select! {
        biased;
        answer = &mut sending => return (answer, Some(sender)),
        _ = task => drop(sender),
    }
    (sending.await, None)
}

fn target(uri: &Uri, is_relayed: bool) -> Uri {
    // A proxy that reads the request needs the absolute form (RFC 9112, 3.2.2).
    if is_relayed && uri.scheme() != Some(&Scheme::HTTPS) {
        return uri.clone();
    }
    let path = uri.path_and_query().filter(|path| !path.as_str().is_empty());
    Uri::from(path.cloned().unwrap_or_else(|| PathAndQuery::from_static("/")))
}

fn is_close(error: &hyper::Error) -> bool {
    // Whether an error means that the connection ended, not that a message was invalid.
    if error.is_incomplete_message() || error.is_closed() || error.is_canceled() {
        return true;
    }
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
            let ends = [BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof];
            return ends.contains(&error.kind());
        }
        cause = error.source();
    }
    false
}

/// Scheme and address that connections lead to.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Origin(Option<Scheme>, Option<Authority>);

impl Origin {
    fn new(uri: &Uri) -> Self {
        Self(uri.scheme().cloned(), uri.authority().cloned())
    }
}

/// Idle connections, the newest last.
#[derive(Default)]
struct IdleConnections(Mutex<IdleState>);

#[derive(Default)]
struct IdleState {
    connections: HashMap<Origin, VecDeque<IdleConnection>>,
    /// A task closes those that are kept for too long.
    is_swept: bool,
}

struct IdleConnection {
    /// The time since the machine started.
    since: Duration,
    connection: Http1Connection,
    _counted: Option<GaugeGuard>,
}

impl IdleConnections {
    fn take(&self, to: &Origin) -> Option<Http1Connection> {
        let mut idle = self.lock();
        let connections = idle.connections.get_mut(to)?;
        // The newest one first: it is the least likely to have been closed.
        while let Some(IdleConnection { since, connection, .. }) = connections.pop_back() {
            if connection.requests.is_ready() && age(since) < IDLE {
                return Some(connection);
            }
        }
        None
    }

    fn keep(
        self: &Arc<Self>,
        origin: Origin,
        mut connection: Http1Connection,
        metrics: Option<UpstreamMetrics>,
    ) {
        if connection.requests.is_ready() {
            return self.put(origin, connection, metrics.as_ref());
        }
        // It is idle once the response's body has been read.
        let idle = Arc::downgrade(self);
        tokio::spawn(async move {
            if connection.requests.ready().await.is_ok()
                && let Some(idle) = idle.upgrade()
            {
                idle.put(origin, connection, metrics.as_ref());
            }
        });
    }

    fn put(
        self: &Arc<Self>,
        origin: Origin,
        connection: Http1Connection,
        metrics: Option<&UpstreamMetrics>,
    ) {
        let mut idle = self.lock();
        let connections = idle.connections.entry(origin).or_default();
        if connections.len() >= IDLE_CONNECTIONS {
            // Closed ones make room first.
            connections.retain(|idle| !idle.connection.requests.is_closed());
        }
        if connections.len() < IDLE_CONNECTIONS {
            let _counted = metrics.map(UpstreamMetrics::idle_connection);
            connections.push_back(IdleConnection { since: since_boot(), connection, _counted });
        }
        if !std::mem::replace(&mut idle.is_swept, true) {
            tokio::spawn(sweep(Arc::downgrade(self)));
        }
    }

    /// Closes connections that were kept for too long; returns when to check again, as long as there are any.
    fn expire(&self) -> Option<Duration> {
        let mut idle = self.lock();
        idle.connections.retain(|_, connections| {
            connections
                .retain(|idle| age(idle.since) < IDLE && !idle.connection.requests.is_closed());
            !connections.is_empty()
        });
        let oldest_of_each =
            idle.connections.values().filter_map(|connections| connections.front());
        let oldest = oldest_of_each.map(|idle| age(idle.since)).max();
        idle.is_swept = oldest.is_some();
        oldest.map(|elapsed| IDLE.saturating_sub(elapsed))
    }

    fn lock(&self) -> MutexGuard<'_, IdleState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `since`: a time since the machine started.
fn age(since: Duration) -> Duration {
    since_boot().saturating_sub(since)
}

async fn sweep(idle: Weak<IdleConnections>) {
    let mut next = Some(IDLE);
    while let Some(wait) = next {
        tokio::time::sleep(wait.max(SWEEP)).await;
        next = idle.upgrade().and_then(|idle| idle.expire());
    }
}

/// How often idle connections are checked, at most.
const SWEEP: Duration = Duration::from_secs(1);

/// Connections that were opened but not used yet, with their address.
#[derive(Clone, Default)]
pub(super) struct SpareConnections(Arc<Mutex<VecDeque<SpareConnection>>>);

struct SpareConnection {
    to: Authority,
    since: Duration,
    transport: UpstreamTransport,
}

impl SpareConnections {
    pub(super) fn put(&self, to: Authority, transport: UpstreamTransport) {
        let mut spares = self.lock();
        spares.push_back(SpareConnection { to, since: since_boot(), transport });
        if spares.len() > SPARES {
            spares.pop_front();
        }
    }

    fn take(&self, to: &Uri) -> Option<UpstreamTransport> {
        let mut spares = self.lock();
        let position = spares.iter().position(|spare| Some(&spare.to) == to.authority())?;
        spares.remove(position).map(|spare| spare.transport)
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<SpareConnection>> {
        let mut spares = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Their peers may have closed those that are older.
        spares.retain(|spare| age(spare.since) < SPARE_LIFE);
        spares
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    /// The queue of a connection took a request while the connection ended: the request fails once the last sender is
    /// dropped.
    #[tokio::test]
    async fn request_that_was_queued_as_its_connection_ended_fails() {
        let (queue, lost) = oneshot::channel::<()>();
        let mut ended = tokio::spawn(async {});
        let answered = outcome(lost, queue, &mut ended);
        let answered = tokio::time::timeout(Duration::from_secs(20), answered);
        let (answer, sender) = answered.await.expect("it is waited for");
        assert!(answer.is_err());
        assert!(sender.is_none());
    }

    #[tokio::test]
    async fn open_connections_are_reused() {
        let mut task = tokio::spawn(std::future::pending::<()>());
        let (answer, sender) = outcome(async { 7 }, "the next", &mut task).await;
        assert_eq!(answer, 7);
        assert_eq!(sender, Some("the next"));
        task.abort();
    }
}
