//! HTTP/2 to one upstream: its connections, and the streams that they carry.
//!
//! [`Lanes`] makes the decisions; sockets and waiting are here. A stream is counted from its placement until
//! request and response have both ended, in whatever way. The peer's limit is read after each step of a
//! connection, so that decisions use the current one. A request that the peer did not process is sent again, so
//! three times at most, if its body is still available: it was not sent, the peer says so, or nothing comes on its
//! connection any more, so that it was almost certainly not read.

use std::fmt;
use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::ops::{Deref, DerefMut};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use http::{Request, Response, Uri, Version};
use hyper::client::conn::http2::{Builder, Connection, SendRequest};
use hyper::rt::Executor;
use hyper_util::client::legacy::connect::Connection as _;
use hyper_util::rt::TokioTimer;
use tokio::sync::oneshot;
use tower_service::Service;

use super::dial::{Connector, UpstreamTransport};
use super::error::{UpstreamError, unanswered, unprocessed};
use super::http1::SpareConnections;
use super::lanes::{LaneActions, LaneBounds, LaneId, LanePlacement, Lanes, Ticket};
use super::limits::{
    ATTEMPTS, DIAL_PAUSE, FIRST_SIGN, IDLE, KEEP_ALIVE_INTERVAL, KEEP_ALIVE_TIMEOUT, SIGN_OF_LIFE,
};
use crate::clock::since_boot;
use crate::proxy::http::arriving::{ArrivingBody, ConnectionError};
use crate::proxy::http::body::OutgoingBody;
use crate::proxy::http::peer_activity::PeerActivity;
use crate::proxy::http::upload::{SendingTask, StartingCall, UploadGuard};
use crate::telemetry::{GaugeGuard, RepeatCause, UpstreamMetrics};

/// Most bytes of a response that are buffered for a slow client.
const STREAM_WINDOW: u32 = 128 * 1024;
/// The window of a connection, which its streams share: one slow client must not use up the others' share.
const CONNECTION_WINDOW: u32 = 1 << 30;
/// Response headers, bytes. Real policies and cookies exceed hyper's own limit of 16 KB.
const HEADER_LIST: u32 = 256 * 1024;
/// Streams on one connection, as many as providers commonly allow. Past it, another connection is opened.
const STREAMS: usize = 100;
/// Connections to one upstream. Past it, requests wait.
const CONNECTIONS: usize = 128;
/// Idle connections that are kept.
const IDLE_CONNECTIONS: usize = 16;
/// Stands for the peer's limit until it has sent one; no peer can send this number.
const NO_LIMIT_YET: usize = usize::MAX - 1;

/// How long a placed request may wait for its peer to allow its stream.
const STREAM_START: Duration = Duration::from_secs(1);
/// Why a request is given up on a connection on which nothing comes.
const NO_SIGN_OF_LIFE: &str = "nothing came on its HTTP/2 connection, not even after a ping";
/// Why a request is given up then.
const NO_STREAM: &str = "it takes no more streams on its HTTP/2 connection";

type StreamWaiter = oneshot::Sender<Result<StreamPlacement, UpstreamError>>;
type Http2Connection = Connection<UpstreamTransport, OutgoingBody, LimitExecutor>;

/// An upstream that may speak HTTP/2.
pub(super) struct Http2 {
    to: Uri,
    connector: Connector,
    /// How long opening a connection may take.
    timeout: Duration,
    spares: SpareConnections,
    metrics: UpstreamMetrics,
    lanes: Mutex<Lanes<Sender, StreamWaiter>>,
    /// The number of idle connections, as last reported.
    idle: AtomicI64,
}

/// The result of sending a request.
pub(super) enum SendOutcome {
    Answered(Response<OutgoingBody>),
    /// It was not sent: the upstream speaks HTTP/1.1.
    Http1(Request<OutgoingBody>),
}

/// Where a request is sent.
enum StreamPlacement {
    Stream(CountedStream, Sender),
    Http1,
}

/// The sending side of a connection.
#[derive(Clone)]
struct Sender {
    requests: SendRequest<OutgoingBody>,
    /// Whether the peer is still there.
    activity: PeerActivity,
    watch: Arc<LimitWatch>,
}

impl Http2 {
    /// For the upstream at `to`. `connector` has a timeout of its own.
    pub(super) fn new(
        to: Uri,
        connector: Connector,
        timeout: Duration,
        spares: SpareConnections,
        metrics: UpstreamMetrics,
    ) -> Self {
        let bounds = LaneBounds {
            connections: CONNECTIONS,
            streams: STREAMS,
            idle: IDLE_CONNECTIONS,
            idle_time: IDLE,
            patience: timeout / 2,
        };
        let lanes = Mutex::new(Lanes::new(bounds));
        let idle = AtomicI64::default();
        Self { to, connector, timeout, spares, metrics, lanes, idle }
    }

    pub(super) fn forget_http1(&self) {
        // The next request asks for its protocol again.
        self.lanes().forget_http1();
    }

    /// Sends a request once there is a free stream; returns when the response's headers have arrived.
    pub(super) async fn send(
        self: &Arc<Self>,
        mut request: Request<OutgoingBody>,
    ) -> Result<SendOutcome, UpstreamError> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let (stream, sender) = match self.live_stream().await? {
                StreamPlacement::Stream(stream, sender) => (stream, sender),
                StreamPlacement::Http1 => return Ok(SendOutcome::Http1(request)),
            };
            let (head, body) = request.into_parts();
            let repeat = body.copy().map(|body| Request::from_parts(head.clone(), body));
            let Sender { mut requests, activity, watch } = sender;
            // The peer counts the stream until request and response have both ended.
            let mut body = body.of_stream(stream.0.clone());
            let sending_progress = body.begins();
            let task = SendingTask::default();
            let has_body = !http_body::Body::is_end_stream(&body);
            let starting = task.clone();
            let body = body.calling(StartingCall(Box::new(move || watch.sends_next(starting))));
            let sending = requests.try_send_request(Request::from_parts(head, body));
            // A request that is queued when its connection ends only fails once no sender is left, so ours is
            // dropped.
            drop(requests);
            let peer = if repeat.is_some() { Some(activity) } else { None };
            let (cause, repeat, error) = match started(sending, has_body, &task, peer).await {
                Sending::Ended(Ok(response)) => {
                    let guard = UploadGuard::new(sending_progress, task);
                    return Ok(SendOutcome::Answered(response.map(|body| {
                        let body = ArrivingBody::new(body, Version::HTTP_2);
                        OutgoingBody::through(body, Some(stream.0)).stopping(guard)
                    })));
                }
                Sending::Ended(Err(mut failed)) => {
                    let unsent = failed.take_message();
                    let error = failed.into_error();
                    let cause = match &unsent {
                        Some(_) => Some(RepeatCause::NotSent),
                        None => unprocessed(&error),
                    };
                    (cause, unsent.or(repeat), unanswered(&error))
                }
                Sending::NotStarted => {
                    let why = UpstreamError::TooSlow(NO_STREAM.into());
                    (Some(RepeatCause::NotSent), repeat, why)
                }
                Sending::NoSignOfLife => {
                    drop(UploadGuard::new(sending_progress, task));
                    let why = UpstreamError::TooSlow(NO_SIGN_OF_LIFE.into());
                    (Some(RepeatCause::WentSilent), repeat, why)
                }
            };
            let (Some(cause), Some(repeat), true) = (cause, repeat, attempts < ATTEMPTS) else {
                return Err(error);
            };
            self.metrics.repeats(cause);
            request = repeat;
            let actions = self.lanes().retire(stream.id());
            self.perform(actions);
        }
    }

    async fn live_stream(self: &Arc<Self>) -> Result<StreamPlacement, UpstreamError> {
        loop {
            let placement = self.free_stream().await?;
            let StreamPlacement::Stream(stream, sender) = &placement else { return Ok(placement) };
            if sender.activity.is_alive(SIGN_OF_LIFE).await {
                return Ok(placement);
            }
            // What silenced this one mostly silenced the other idle ones as well.
            let actions =
                self.lanes().retire_silent(stream.id(), |sender| sender.activity.is_silent());
            self.perform(actions);
        }
    }

    async fn free_stream(self: &Arc<Self>) -> Result<StreamPlacement, UpstreamError> {
        // The wait is counted, so that a full pool shows in the metrics.
        let since = Instant::now();
        let (waiting, mut placement) = {
            let mut lanes = self.lanes();
            if let Some(place) = lanes.take() {
                drop(lanes);
                return Ok(self.placement(place));
            }
            let (placed, placement) = oneshot::channel();
            let (ticket, actions) = lanes.wait(placed, since_boot());
            drop(lanes);
            let waiting = QueueEntry { upstream: self, ticket };
            self.perform(actions);
            (waiting, placement)
        };
        // Opening a connection has its own timeout; waiting for a free stream may take twice as long.
        let answer = tokio::time::timeout(self.timeout * 2, &mut placement).await;
        drop(waiting);
        self.metrics.waited(since.elapsed());
        match answer {
            Ok(Ok(placement)) => placement,
            Ok(Err(_)) => Err(UpstreamError::Failed("the connection could not be opened".into())),
            Err(_) => Err(UpstreamError::TooSlow(format!(
                "no HTTP/2 connection had room for another stream within {} s",
                self.timeout.as_secs() * 2
            ))),
        }
    }

    fn placement(self: &Arc<Self>, place: LanePlacement<Sender>) -> StreamPlacement {
        match place {
            LanePlacement::Http1 => StreamPlacement::Http1,
            LanePlacement::Stream(id, sender) => {
                StreamPlacement::Stream(CountedStream::new(self.clone(), id), sender)
            }
        }
    }

    fn perform(self: &Arc<Self>, actions: LaneActions<Sender, StreamWaiter>) {
        // Never under the lock of the lanes, because sending a placement may call this again.
        for (waiter, place) in actions.placed {
            drop(waiter.send(Ok(self.placement(place))));
        }
        for _ in 0..actions.open {
            let opening = ConnectionAttempt(Some(self.clone()));
            // Without a runtime, nobody waits any more.
            if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                runtime.spawn(opening.open());
            }
        }
    }

    fn failed(self: &Arc<Self>, why: &UpstreamError) {
        let (failed, actions) = self.lanes().failed(since_boot());
        for waiter in failed {
            drop(waiter.send(Err(why.clone())));
        }
        self.perform(actions);
    }

    fn lanes(&self) -> LanesGuard<'_> {
        LanesGuard { lanes: lock(&self.lanes), upstream: self }
    }
}

/// The connections, locked. Reports the number of idle ones when it is dropped.
struct LanesGuard<'a> {
    lanes: MutexGuard<'a, Lanes<Sender, StreamWaiter>>,
    upstream: &'a Http2,
}

impl Deref for LanesGuard<'_> {
    type Target = Lanes<Sender, StreamWaiter>;

    fn deref(&self) -> &Self::Target {
        &self.lanes
    }
}

impl DerefMut for LanesGuard<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.lanes
    }
}

impl Drop for LanesGuard<'_> {
    fn drop(&mut self) {
        let idle = self.lanes.idle() as i64;
        let reported = self.upstream.idle.swap(idle, Ordering::Relaxed);
        if idle != reported {
            self.upstream.metrics.idle_connections(idle - reported);
        }
    }
}

/// A place in the queue, until this is dropped.
struct QueueEntry<'a> {
    upstream: &'a Arc<Http2>,
    ticket: Ticket,
}

impl Drop for QueueEntry<'_> {
    fn drop(&mut self) {
        self.upstream.lanes().leave(self.ticket);
    }
}

/// What became of a request that was given to a connection.
enum Sending<T> {
    Ended(T),
    /// Its peer does not allow the stream, so it is not sent.
    NotStarted,
    /// Nothing came on the connection since then, nor after a ping.
    NoSignOfLife,
}

/// `peer`: if the request can be sent again.
async fn started<T>(
    sending: impl Future<Output = T>,
    has_body: bool,
    task: &SendingTask,
    peer: Option<PeerActivity>,
) -> Sending<T> {
    let mut sending = pin!(sending);
    match tokio::time::timeout(STREAM_START, sending.as_mut()).await {
        Ok(answer) => return Sending::Ended(answer),
        // Of a request without a body it is not known whether it was sent.
        Err(_) if has_body && task.revoke() => return Sending::NotStarted,
        Err(_) => {}
    }
    let Some(peer) = peer else { return Sending::Ended(sending.await) };
    tokio::select! {
        biased;
        answer = sending.as_mut() => return Sending::Ended(answer),
        is_alive = peer.is_alive_after_silence(FIRST_SIGN) => {
            if !is_alive {
                return Sending::NoSignOfLife;
            }
        }
    }
    Sending::Ended(sending.await)
}

/// A stream that its connection counts, until the last copy is dropped.
#[derive(Clone)]
struct CountedStream(Arc<StreamCount>);

struct StreamCount {
    upstream: Arc<Http2>,
    id: LaneId,
    _open: GaugeGuard,
}

impl CountedStream {
    fn new(upstream: Arc<Http2>, id: LaneId) -> Self {
        let open = upstream.metrics.stream();
        Self(Arc::new(StreamCount { upstream, id, _open: open }))
    }

    fn id(&self) -> LaneId {
        self.0.id
    }
}

impl fmt::Debug for StreamCount {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_tuple("Stream").field(&self.id).finish()
    }
}

impl Drop for StreamCount {
    fn drop(&mut self) {
        let mut lanes = self.upstream.lanes();
        let actions = lanes.release(self.id, since_boot());
        drop(lanes);
        self.upstream.perform(actions);
    }
}

/// A connection that is being opened; its result is reported in any case.
struct ConnectionAttempt(Option<Arc<Http2>>);

impl ConnectionAttempt {
    async fn open(mut self) {
        let Some(upstream) = self.0.clone() else { return };
        let connected = tokio::time::timeout(upstream.timeout, upstream.connect()).await;
        let protocol =
            connected.unwrap_or_else(|_| Err(io::Error::from(ErrorKind::TimedOut).into()));
        // From here on its result is reported below.
        self.0 = None;
        match protocol {
            Ok(Protocol::Http2(sender, connection, watch)) => {
                upstream.serve(sender, *connection, &watch);
            }
            Ok(Protocol::Http1(transport)) => {
                if let Some(authority) = upstream.to.authority() {
                    upstream.spares.put(authority.clone(), *transport);
                }
                let actions = upstream.lanes().opened_http1();
                upstream.perform(actions);
            }
            Err(error) => {
                upstream.failed(&unanswered(&*error));
                // Others may still wait, for a stream of another connection.
                tokio::time::sleep(DIAL_PAUSE).await;
                let actions = upstream.lanes().open_again();
                upstream.perform(actions);
            }
        }
    }
}

impl Drop for ConnectionAttempt {
    fn drop(&mut self) {
        if let Some(upstream) = self.0.take() {
            upstream.failed(&UpstreamError::Failed("opening the connection was aborted".into()));
        }
    }
}

/// The protocol of a new connection.
enum Protocol {
    Http2(Sender, Box<Http2Connection>, Arc<LimitWatch>),
    Http1(Box<UpstreamTransport>),
}

impl Http2 {
    async fn connect(&self) -> Result<Protocol, ConnectionError> {
        let mut connector = self.connector.clone();
        poll_fn(|cx| connector.poll_ready(cx)).await?;
        let transport = connector.call(self.to.clone()).await?;
        let connected = transport.connected();
        if !connected.is_negotiated_h2() {
            return Ok(Protocol::Http1(Box::new(transport)));
        }
        let watch = Arc::new(LimitWatch {
            lane: OnceLock::new(),
            seen: AtomicUsize::new(NO_LIMIT_YET),
            sending: Mutex::default(),
        });
        let activity = PeerActivity::default();
        let frames = activity.connection(transport.interim_allowance());
        let (requests, connection) = Builder::new(LimitExecutor(watch.clone()))
            .timer(TokioTimer::new())
            // A number that no peer sends: a change is seen even if the peer's limit is hyper's default.
            .initial_max_send_streams(NO_LIMIT_YET)
            .max_header_list_size(HEADER_LIST)
            .keep_alive_interval(KEEP_ALIVE_INTERVAL)
            .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .handshake(transport.counting(frames))
            .await?;
        let sender = Sender { requests, activity, watch: watch.clone() };
        Ok(Protocol::Http2(sender, Box::new(connection), watch))
    }

    fn serve(
        self: &Arc<Self>,
        sender: Sender,
        connection: Http2Connection,
        watch: &Arc<LimitWatch>,
    ) {
        let (id, actions) = self.lanes().opened(sender, since_boot());
        let connection = Arc::new(Mutex::new(connection));
        drop(watch.lane.set(WatchedLane {
            connection: Arc::downgrade(&connection),
            upstream: Arc::downgrade(self),
            id,
        }));
        tokio::spawn(drive(connection, Arc::downgrade(self), id));
        self.perform(actions);
        // The limit may have arrived before it was watched.
        watch.report_change();
    }
}

async fn drive(connection: Arc<Mutex<Http2Connection>>, upstream: Weak<Http2>, id: LaneId) {
    // The lock is held for one step at a time, so that the peer's limit can be read in between.
    let mut running = pin!(poll_fn(|cx| Pin::new(&mut *lock(&connection)).poll(cx)));
    let mut idle = Some(IDLE);
    while let Some(time) = idle {
        tokio::select! {
            _ = &mut running => {
                if let Some(upstream) = upstream.upgrade() {
                    let actions = upstream.lanes().retire(id);
                    upstream.perform(actions);
                }
                return;
            }
            () = tokio::time::sleep(time) => {
                let upstream = upstream.upgrade();
                idle = upstream.and_then(|upstream| upstream.lanes().expire(id, since_boot()));
            }
        }
    }
    // No new streams are opened on it: it ends with its last stream.
    let _ = running.await;
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connection that is in use.
struct WatchedLane {
    connection: Weak<Mutex<Http2Connection>>,
    upstream: Weak<Http2>,
    id: LaneId,
}

/// Watches the limit of streams that the peer sets for one connection.
struct LimitWatch {
    /// Set once the connection is in use.
    lane: OnceLock<WatchedLane>,
    /// The limit that was last seen.
    seen: AtomicUsize,
    /// The request whose body is being started.
    sending: Mutex<Option<SendingTask>>,
}

impl LimitWatch {
    fn sends_next(&self, task: SendingTask) -> bool {
        // What does not fit into the connection when hyper takes the first frame is sent by the task that hyper
        // starts next (`LimitExecutor`).
        // `false`: it must not be sent any more.
        let starts = task.start();
        *lock(&self.sending) = Some(task);
        starts
    }

    fn report_change(&self) {
        let Some(WatchedLane { connection, upstream, id }) = self.lane.get() else { return };
        let Some(connection) = connection.upgrade() else { return };
        {
            let connection = lock(&connection);
            let limit = connection.current_max_send_streams();
            if self.seen.swap(limit, Ordering::AcqRel) == limit {
                return;
            }
        }
        let Some(upstream) = upstream.upgrade() else { return };
        let actions = {
            let mut lanes = upstream.lanes();
            // Read under the lock, so that the last report has the newest limit.
            lanes.set_limit(*id, self.seen.load(Ordering::Acquire))
        };
        upstream.perform(actions);
    }
}

/// Runs the tasks of one connection, and checks the peer's limit after each step.
#[derive(Clone)]
struct LimitExecutor(Arc<LimitWatch>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for LimitExecutor {
    fn execute(&self, task: F) {
        let watch = self.0.clone();
        let sending = lock(&watch.sending).take();
        let task = tokio::spawn(async move {
            let mut task = pin!(task);
            poll_fn(|cx| {
                let polled = task.as_mut().poll(cx);
                watch.report_change();
                polled
            })
            .await;
        });
        if let Some(sending) = sending {
            sending.set(task.abort_handle());
        }
    }
}
