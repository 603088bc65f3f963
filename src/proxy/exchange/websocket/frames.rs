//! Responses over WebSocket: reads the messages in a tunnel, and reports and stores them as exchanges.
//!
//! Bytes are forwarded before they are read here, and nothing found in them can change, delay or end the
//! tunnel. A large message, and what arrives while it is read, is read off the async threads. Each request on
//! the connection is an exchange of its own. They are only metered, because the provider holds the history
//! (`docs/protocols.md` 3.1).

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderMap, Request, StatusCode};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot, watch};

use crate::config::Upstream;
use crate::context::Outcome;
use crate::dialect::reading::SocketReader;
use crate::dialect::{Dialect, Reply};
use crate::proxy::exchange::client_request::ClientRequest;
use crate::proxy::exchange::live_exchange::{LiveExchange, Received};
use crate::proxy::http::connection::ClientConnection;
use crate::proxy::http::memory::HeldMemory;
use crate::proxy::offload::{OFF_THREAD, long_work};
use crate::proxy::plan::parsed_body::ParsedBody;
use crate::proxy::plan::placed_request::PlacedRequest;
use crate::proxy::state::exchange_recorder::ExchangeRecorder;
use crate::proxy::state::{Proxy, ServingPhase};
use crate::telemetry::{FailOpen, GaugeGuard, MemoryKind, TRACEPARENT, TRACESTATE};
use crate::wire::memory::Memory as _;
use crate::wire::websocket::{FrameError, MessageDecoder, negotiated};

/// Most requests without a reply that are remembered; past it, the oldest is dropped.
const MAX_OPEN: usize = 16;
/// Most requests that are being placed, wait for their reply, or are being stored. Past it, requests pass
/// unread, because the store is too slow for them.
const MAX_READ: usize = 32;

/// The direction of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// To the upstream.
    Up,
    /// To the client.
    Down,
}

/// Reads the messages of one connection.
pub(crate) struct FrameObserver(Arc<FrameObserverState>);

struct FrameObserverState {
    reading: Mutex<SocketObservation>,
    /// Notified when a reply ends, or when waiting messages have been read.
    answered: Notify,
    connection: Arc<SocketConnection>,
}

/// What the exchanges of one connection share.
struct SocketConnection {
    proxy: Arc<Proxy>,
    client: Arc<ClientConnection>,
    phase: watch::Receiver<ServingPhase>,
    /// The request that opened it.
    client_request: Arc<ClientRequest>,
    upstream: Arc<Upstream>,
    /// That of the connection's own request: requests on it have none.
    provider_request_id: Option<Box<str>>,
    /// See [`MAX_READ`].
    permits: Arc<Semaphore>,
}

/// Whether messages are still read.
#[expect(clippy::large_enum_variant, reason = "there is one per connection, and most are active")]
enum SocketObservation {
    Active(MessageState),
    /// Reading has stopped; the reason, if it is ours.
    Stopped(Option<FailOpen>),
}

struct MessageState {
    up: MessageDecoder,
    down: MessageDecoder,
    /// Who sent a close frame first.
    closed_by: Option<Direction>,
    reader: MessageReader,
}

/// Where messages are read; they are always read in order.
enum MessageReader {
    /// In line: each message as it passes.
    InLine(Box<SocketConversation>),
    /// In a task, because a message was large: later messages wait in the backlog.
    InTask(Backlog),
}

/// Messages that wait to be read.
struct Backlog {
    messages: VecDeque<(Direction, Vec<u8>)>,
    /// Their memory.
    memory: HeldMemory,
    bytes: usize,
    /// How open replies end, once the tunnel has ended.
    ended: Option<Outcome>,
}

/// The requests and replies of a connection.
struct SocketConversation {
    socket: SocketReader,
    open: BTreeMap<u64, oneshot::Sender<(Reply, Outcome)>>,
    /// The memory of the open replies.
    replies: HeldMemory,
}

/// Memory is reserved before a message with more bytes than this is parsed.
const SMALL: usize = 64 << 10;
/// Parsing an event takes this many times its length in memory.
const TO_PARSE: usize = 5;
/// Finding out whether a message is a request takes this many times its length. What reading it takes is counted as for
/// any other request.
const TO_RECOGNISE: usize = 2;

impl FrameObserver {
    /// Reads a connection that was upgraded by a response with these headers.
    pub(crate) fn new(
        client_request: Arc<ClientRequest>,
        upstream: Arc<Upstream>,
        provider_request_id: Option<Box<str>>,
        answered: &HeaderMap,
        recorder: &ExchangeRecorder,
    ) -> Self {
        let limit = recorder.proxy.config.limits.body_bytes;
        let memory = &recorder.proxy.memory;
        let lines = answered.get_all("sec-websocket-extensions").iter();
        let lines: Vec<&str> = lines.filter_map(|line| line.to_str().ok()).collect();
        let (up, down) = negotiated(&lines.join(","));
        let conversation = SocketConversation {
            socket: SocketReader::new(limit),
            open: BTreeMap::new(),
            replies: memory.guard(MemoryKind::Reply),
        };
        let state = MessageState {
            up: MessageDecoder::new(limit, up, memory.boxed(MemoryKind::Message)),
            down: MessageDecoder::new(limit, down, memory.boxed(MemoryKind::Message)),
            closed_by: None,
            reader: MessageReader::InLine(Box::new(conversation)),
        };
        let connection = SocketConnection {
            proxy: recorder.proxy.clone(),
            client: recorder.connection.clone(),
            phase: recorder.phase.clone(),
            client_request,
            upstream,
            provider_request_id,
            permits: Arc::new(Semaphore::new(MAX_READ)),
        };
        Self(Arc::new(FrameObserverState {
            reading: Mutex::new(SocketObservation::Active(state)),
            answered: Notify::new(),
            connection: Arc::new(connection),
        }))
    }

    pub(super) fn observe(&self, direction: Direction, bytes: &[u8]) {
        let mut state = self.0.state();
        let SocketObservation::Active(MessageState { up, down, closed_by, reader }) = &mut *state
        else {
            return;
        };
        let messages = match direction {
            Direction::Up => &mut *up,
            Direction::Down => &mut *down,
        };
        // The bytes have been forwarded: a panic in here costs only what is recorded.
        let read = catch_unwind(AssertUnwindSafe(|| {
            let mut may_read = true;
            messages.push(bytes, |message| {
                may_read = may_read && self.0.read(reader, direction, message);
            });
            may_read
        }));
        if messages.is_closed() {
            closed_by.get_or_insert(direction);
        }
        let fault = up.fault().or(down.fault());
        match (read, fault) {
            (Ok(true), None) => {}
            (Ok(false), None) | (Ok(_), Some(FrameError::NoMemory)) => {
                *state = SocketObservation::Stopped(Some(FailOpen::MemoryBudget));
            }
            // A frame that cannot be read is no fault of ours. The tunnel goes on.
            (Ok(_), Some(_)) => *state = SocketObservation::Stopped(None),
            (Err(_), _) => *state = SocketObservation::Stopped(Some(FailOpen::Panicked)),
        }
    }

    pub(super) async fn idle(&self) {
        // If the connection cannot be read, it is never ready.
        loop {
            let answered = self.0.answered.notified();
            if self.is_idle() {
                return;
            }
            answered.await;
        }
    }

    fn is_idle(&self) -> bool {
        let state = self.0.state();
        let SocketObservation::Active(MessageState {
            reader: MessageReader::InLine(conversation),
            ..
        }) = &*state
        else {
            return false;
        };
        conversation.open.is_empty()
    }

    /// Ends the exchanges of a tunnel that has ended, with the parts of replies received so far. `first`: whose bytes
    /// ended first. Returns why reading had stopped, if the reason is ours.
    pub(super) fn end(&self, outcome: Outcome, first: Option<Direction>) -> Option<FailOpen> {
        let mut state = self.0.state();
        // A close frame says it earlier than the end of the connection.
        let first = match &*state {
            SocketObservation::Active(state) => state.closed_by.or(first),
            SocketObservation::Stopped(_) => first,
        };
        let open_outcome = match (outcome, first) {
            (_, Some(Direction::Down)) => Outcome::UpstreamFailed,
            (Outcome::Complete | Outcome::Refused | Outcome::ClientLeft, _) => Outcome::ClientLeft,
            (Outcome::UpstreamFailed | Outcome::EndedByProxy | Outcome::Interrupted, _) => outcome,
        };
        if let SocketObservation::Active(MessageState {
            reader: MessageReader::InTask(backlog),
            ..
        }) = &mut *state
        {
            // The task ends them once it has read what waits.
            backlog.ended = Some(open_outcome);
            return None;
        }
        match std::mem::replace(&mut *state, SocketObservation::Stopped(None)) {
            SocketObservation::Active(MessageState {
                reader: MessageReader::InLine(conversation),
                ..
            }) => {
                conversation.end(open_outcome);
            }
            SocketObservation::Active(MessageState {
                reader: MessageReader::InTask(_), ..
            }) => {}
            SocketObservation::Stopped(why) => return why,
        }
        None
    }
}

impl FrameObserverState {
    fn state(&self) -> MutexGuard<'_, SocketObservation> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(
        self: &Arc<Self>,
        reader: &mut MessageReader,
        direction: Direction,
        message: Cow<'_, [u8]>,
    ) -> bool {
        match reader {
            MessageReader::InLine(conversation) if message.len() <= OFF_THREAD => {
                conversation.read(direction, message.into_owned(), self)
            }
            MessageReader::InTask(backlog) => backlog.add(direction, message),
            MessageReader::InLine(_) => {
                let mut backlog = Backlog::new(&self.connection);
                let may_read = backlog.add(direction, message);
                // From now on messages wait for this one, so that they are read in order.
                let in_task = MessageReader::InTask(Backlog::new(&self.connection));
                if let MessageReader::InLine(conversation) = std::mem::replace(reader, in_task) {
                    tokio::spawn(self.clone().catch_up(conversation, backlog));
                }
                may_read
            }
        }
    }

    async fn catch_up(
        self: Arc<Self>,
        mut conversation: Box<SocketConversation>,
        mut backlog: Backlog,
    ) {
        loop {
            let shared = self.clone();
            let SocketConnection { proxy, client_request, .. } = &*self.connection;
            let tenant = client_request.tenant(proxy).ok();
            let reading = long_work(tenant.as_ref(), move || {
                while let Some((direction, message)) = backlog.take() {
                    if !conversation.read(direction, message, &shared) {
                        return (conversation, false);
                    }
                }
                (conversation, true)
            });
            let read = reading.await;
            let mut state = self.state();
            // Reading has stopped meanwhile.
            let SocketObservation::Active(MessageState { reader, .. }) = &mut *state else {
                return;
            };
            conversation = match read {
                Ok((conversation, true)) => conversation,
                Ok((_, false)) => {
                    *state = SocketObservation::Stopped(Some(FailOpen::MemoryBudget));
                    return;
                }
                Err(_) => {
                    *state = SocketObservation::Stopped(Some(FailOpen::Panicked));
                    return;
                }
            };
            let MessageReader::InTask(waiting) = reader else { return };
            if waiting.messages.is_empty() {
                match waiting.ended {
                    Some(left) => {
                        *state = SocketObservation::Stopped(None);
                        conversation.end(left);
                    }
                    // Nothing waits any more: the next messages need no task.
                    None => *reader = MessageReader::InLine(conversation),
                }
                self.answered.notify_one();
                return;
            }
            let empty_backlog = Backlog { ended: waiting.ended, ..Backlog::new(&self.connection) };
            backlog = std::mem::replace(waiting, empty_backlog);
        }
    }

    fn parse(&self, message: Bytes) -> Result<ParsedBody, FailOpen> {
        let SocketConnection { proxy, client_request, .. } = &*self.connection;
        let tenant = client_request.tenant(proxy).ok();
        let target = client_request.target();
        ParsedBody::parse(proxy, Dialect::OpenaiResponses, target, tenant.as_ref(), message)
    }

    fn recorder(&self) -> Box<ExchangeRecorder> {
        let SocketConnection { proxy, client, phase, client_request, upstream, .. } =
            &*self.connection;
        let mut request = Request::new(());
        *request.uri_mut() = client_request.path().parse().unwrap_or_default();
        // It continues the trace of the connection's request.
        for name in [TRACEPARENT, TRACESTATE] {
            if let Some(value) = client_request.headers.get(&name) {
                request.headers_mut().insert(name, value.clone());
            }
        }
        let mut recorder = ExchangeRecorder::open(proxy, &request, client, phase.clone());
        recorder.record_forwarded();
        recorder.event.dialect = client_request.dialect;
        recorder.event.upstream = Some(upstream.name.clone());
        recorder.event.provider_request_id.clone_from(&self.connection.provider_request_id);
        recorder.event.status = Some(StatusCode::SWITCHING_PROTOCOLS.as_u16());
        recorder.event.streamed = true;
        recorder
    }
}

impl Backlog {
    fn new(connection: &SocketConnection) -> Self {
        let memory = connection.proxy.memory.guard(MemoryKind::Message);
        Self { messages: VecDeque::new(), memory, bytes: 0, ended: None }
    }

    /// Returns `false` if there is no memory for it.
    fn add(&mut self, direction: Direction, message: Cow<'_, [u8]>) -> bool {
        self.bytes += message.len();
        let has_room = self.memory.hold(self.bytes);
        if has_room {
            self.messages.push_back((direction, message.into_owned()));
        }
        has_room
    }

    fn take(&mut self) -> Option<(Direction, Vec<u8>)> {
        // Whoever takes it reserves its memory anew.
        let (direction, message) = self.messages.pop_front()?;
        self.bytes -= message.len();
        self.memory.hold(self.bytes);
        Some((direction, message))
    }
}

impl SocketConversation {
    /// Reads a message; `false` if there is no memory for parsing it, or for its content.
    fn read(
        &mut self,
        direction: Direction,
        message: Vec<u8>,
        shared: &Arc<FrameObserverState>,
    ) -> bool {
        let memory = &shared.connection.proxy.memory;
        let mut parse_memory = memory.guard(MemoryKind::Message);
        let times = match direction {
            Direction::Up => TO_RECOGNISE,
            Direction::Down => TO_PARSE,
        };
        if message.len() > SMALL && !parse_memory.hold(times * message.len()) {
            return false;
        }
        if direction == Direction::Down {
            return self.observe_event(&message, shared);
        }
        let mut body = memory.guard(MemoryKind::Request);
        if !body.hold(message.len()) {
            return false;
        }
        self.observe_request(body.with(message.into()), parse_memory, shared);
        true
    }

    fn observe_request(
        &mut self,
        message: Bytes,
        recognising: HeldMemory,
        shared: &Arc<FrameObserverState>,
    ) {
        let permit = shared.connection.permits.clone().try_acquire_owned().ok();
        let request = self.socket.request(&message, |_| {
            // It is known to be a request; what reading it takes is reserved by its reader.
            drop(recognising);
            match &permit {
                Some(_) => shared.parse(message.clone()),
                // Others are being read: it was forwarded all the same, and only its turn is missing.
                None => Err(FailOpen::AnalysisBudget),
            }
        });
        let Some((number, parsed)) = request else { return };
        let mut recorder = shared.recorder();
        recorder.event.timing.request_bytes = message.len() as u64;
        let Some(permit) = permit else {
            return recorder.event.add_fail_open(FailOpen::AnalysisBudget);
        };
        if self.open.len() >= MAX_OPEN {
            // Requests that never get a reply must not fill the memory.
            self.open.pop_first();
        }
        let (answer, answered) = oneshot::channel();
        self.open.insert(number, answer);
        let guards = (permit, recorder.proxy.telemetry.stream());
        let connection = shared.connection.clone();
        tokio::spawn(record_exchange(connection, parsed, recorder, guards, answered));
    }

    fn observe_event(&mut self, message: &[u8], shared: &FrameObserverState) -> bool {
        if let Some((number, reply)) = self.socket.event(message)
            && let Some(waiting) = self.open.remove(&number)
        {
            let _ = waiting.send((reply, Outcome::Complete));
            shared.answered.notify_one();
        }
        self.replies.hold(self.socket.holds())
    }

    fn end(mut self, outcome: Outcome) {
        let socket = self.socket;
        let partial = catch_unwind(AssertUnwindSafe(|| socket.finish())).unwrap_or_default();
        for (number, reply) in partial {
            if let Some(waiting) = self.open.remove(&number) {
                let _ = waiting.send((reply, outcome));
            }
        }
        // Nothing of their replies came.
        for waiting in self.open.into_values() {
            let _ = waiting.send((Reply::default(), outcome));
        }
    }
}

async fn record_exchange(
    connection: Arc<SocketConnection>,
    read: Result<ParsedBody, FailOpen>,
    recorder: Box<ExchangeRecorder>,
    _guards: (OwnedSemaphorePermit, GaugeGuard),
    answered: oneshot::Receiver<(Reply, Outcome)>,
) {
    let mut exchange = LiveExchange {
        recorder,
        client: connection.client_request.clone(),
        upstream: connection.upstream.clone(),
        phase: Received,
    };
    let mut placed = None;
    match read {
        Ok(parsed) => {
            exchange.recorder.event.add_notes(parsed.conversation.notes.iter().copied());
            // It was forwarded before it was read, so nothing of it can be changed.
            let placing = exchange.place_and_plan(parsed, None);
            match AssertUnwindSafe(placing).catch_unwind().await {
                Ok(Ok(planned)) => placed = planned.placed,
                // Nothing that is on its way is refused.
                Ok(Err(_)) => {}
                Err(_) => exchange.recorder.event.add_fail_open(FailOpen::Panicked),
            }
        }
        Err(why) => exchange.recorder.event.add_fail_open(why),
    }
    let mut recorder = exchange.recorder;
    let proxy = recorder.proxy.clone();
    let settle = placed.and_then(PlacedRequest::open).map(|turn| turn.settle(proxy));
    // Dropped: treated as if the client had left before any reply.
    let Ok((reply, outcome)) = answered.await else { return };
    recorder.event.outcome = outcome;
    let telemetry = recorder.proxy.telemetry.clone();
    recorder.event.add_reply(&reply, &telemetry);
    let commit = settle.map(|settle| settle(&mut recorder.event, Some(reply)));
    if let Some(commit) = commit
        && let Some(why) = commit.await.why
    {
        recorder.event.add_fail_open(why);
    }
}
