//! Bodies that are forwarded: the part that was collected, then the part still to come.
//!
//! Collected bytes are sent as the allocations in which they were received (invariant 1). If a body exceeds
//! the limit, the part that was read is sent, followed by the rest. Trailers come last.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt as _;
use http::{HeaderMap, Response, response};
use http_body::{Body, Frame, SizeHint};
use tokio::time::sleep;

use super::arriving::{
    ArrivingBody, BodyRest, ClientBody, ConnectionError, CountedBody, NextFrame, UpstreamBody,
};
use super::headers;
use super::memory::{HeldMemory, MemoryBudget};
use super::pieces::SendWindow;
use super::upload::{
    SENT_ELSEWHERE, SendProgress, SentTime, StartingCall, TakenMark, UploadGuard, UploadProgress,
    UploadTimeout,
};
use crate::telemetry::MemoryKind;
use crate::wire::encoding::Decoder;
use crate::wire::memory::Memory as _;

/// A body to be forwarded: a request's, or a response's, whose start may have been read.
#[derive(Debug, Default)]
pub(crate) struct OutgoingBody {
    front: VecDeque<Bytes>,
    rest: Option<BodyRest>,
    /// The error that occurred while it was read.
    broken: Option<ConnectionError>,
    trailers: Option<HeaderMap>,
    /// For a request: counts its bytes, and limits how long it may stall.
    upload: Option<UploadTimeout>,
    /// For a request that streams through: how its bytes are sent.
    streaming: Option<StreamingBody>,
    /// For a request: the HTTP/2 stream to the upstream, counted until the body ends.
    stream: Option<CountedBody>,
    /// For a request: is told when the last byte was written.
    sent: Option<Arc<SentTime>>,
    /// For a request over HTTP/2: is called before the first frame is taken.
    starting: Option<StartingCall>,
    /// For a response that came before its request was written: stops sending the request once it ends.
    upload_guard: Option<UploadGuard>,
}

/// A request's body that streams through.
struct StreamingBody {
    window: SendWindow,
    taken: TakenMark,
}

impl std::fmt::Debug for StreamingBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Streaming")
    }
}

impl OutgoingBody {
    /// Counts a request's body as it is sent, and aborts it if it stalls for `timeout`.
    pub(crate) fn upload(mut self, progress: &Arc<UploadProgress>, timeout: Duration) -> Self {
        let front = self.front.iter().map(|slice| slice.len() as u64).sum();
        self.upload = Some(UploadTimeout::new(progress, front, timeout));
        self
    }

    /// The body of a request that tells `sent` when its last byte was written, each time it is sent.
    pub(crate) fn timed(mut self, sent: &Arc<SentTime>) -> Self {
        self.sent = Some(sent.clone());
        self
    }

    pub(super) fn begins(&mut self) -> SendProgress {
        // Without a body, the head is the last part of a request.
        let has_no_body = self.is_end_stream();
        let sent_time = self.sent.get_or_insert_default().clone();
        sent_time.begins(has_no_body);
        let streaming = self.streaming.as_ref().map(|body| body.taken.progress(&body.window));
        SendProgress { sent: sent_time, streaming }
    }

    /// The same request, carried by `stream`.
    pub(super) fn of_stream(mut self, stream: CountedBody) -> Self {
        self.stream = Some(stream);
        self
    }

    /// The same body, which calls `starting` before its first frame is taken.
    pub(super) fn calling(mut self, starting: StartingCall) -> Self {
        self.starting = Some(starting);
        self
    }

    /// The same response, which stops sending its request once it ends.
    pub(super) fn stopping(mut self, upload_guard: Option<UploadGuard>) -> Self {
        self.upload_guard = upload_guard;
        self
    }

    /// A response's body that streams through as it arrives, over HTTP/2 carried by `stream`.
    pub(super) fn through(rest: ArrivingBody, stream: Option<CountedBody>) -> Self {
        let rest = BodyRest::Upstream(UpstreamBody::new(rest, stream));
        Self { rest: Some(rest), ..Self::default() }
    }

    /// A request's body that streams through as it arrives.
    pub(crate) fn request(rest: ClientBody) -> Self {
        Self::through_from(VecDeque::new(), rest, None)
    }

    fn through_from(front: VecDeque<Bytes>, rest: ClientBody, trailers: Option<HeaderMap>) -> Self {
        let streaming =
            Some(StreamingBody { window: SendWindow::to_upstream(), taken: TakenMark::default() });
        Self { front, rest: Some(BodyRest::Client(rest)), trailers, streaming, ..Self::default() }
    }

    /// A copy of the body, if all of it has been received.
    pub(super) fn copy(&self) -> Option<Self> {
        let has_ended = self.rest.as_ref().is_none_or(BodyRest::is_end_stream);
        if !has_ended || self.broken.is_some() {
            return None;
        }
        Some(Self {
            front: self.front.clone(),
            trailers: self.trailers.clone(),
            sent: self.sent.clone(),
            ..Self::default()
        })
    }

    /// The whole body as one allocation, if all of it has been received.
    pub(crate) fn whole(&self) -> Option<Bytes> {
        if self.rest.is_some() {
            return None;
        }
        match self.front.len() {
            // The client's own allocation.
            1 => self.front.front().cloned(),
            _ => Some(self.front.iter().flatten().copied().collect()),
        }
    }

    pub(crate) fn slices(slices: Vec<Bytes>, trailers: Option<HeaderMap>) -> Self {
        let front = slices.into_iter().filter(|slice| !slice.is_empty()).collect();
        Self { front, trailers, ..Self::default() }
    }
}

impl OutgoingBody {
    fn end_rest(&mut self) {
        // What is held until the end must not outlive it: the stream's count, and the guard that stops the
        // upload.
        self.rest = None;
        self.streaming = None;
        self.stream = None;
        self.upload_guard = None;
    }

    fn poll_next(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ConnectionError>>> {
        if let Some(slice) = self.front.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(slice))));
        }
        if let Some(broken) = self.broken.take() {
            return Poll::Ready(Some(Err(broken)));
        }
        let this = &mut *self;
        if let Some(rest) = &mut this.rest {
            if let Some(streaming) = &mut this.streaming {
                ready!(streaming.window.poll_ready(cx));
            }
            let polled = rest.poll_frame(cx);
            let mut frame = match &mut this.upload {
                Some(upload) => ready!(upload.poll(polled, cx)),
                None => ready!(polled),
            };
            // The rest of a body that stalled or broke must not be waited for when its response ends.
            if let (Some(Err(_)), BodyRest::Client(body)) = (&frame, &*rest) {
                body.abandon();
            }
            if let Some(streaming) = &mut this.streaming {
                frame = frame.map(|frame| {
                    frame.map(|frame| frame.map_data(|data| streaming.window.pass(data)))
                });
            }
            if frame.is_none() {
                this.end_rest();
            }
            return Poll::Ready(frame);
        }
        Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))))
    }
}

impl Body for OutgoingBody {
    type Data = Bytes;
    type Error = ConnectionError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ConnectionError>>> {
        if let Some(StartingCall(starting)) = self.starting.take()
            && !starting()
        {
            return Poll::Ready(Some(Err(SENT_ELSEWHERE.into())));
        }
        let frame = ready!(self.as_mut().poll_next(cx));
        // This frame is the last one: its bytes tell when they are written.
        if self.is_end_stream()
            && let Some(sent_time) = self.sent.take()
        {
            return Poll::Ready(sent_time.last(frame));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.front.is_empty()
            && self.broken.is_none()
            && self.trailers.is_none()
            && self.rest.as_ref().is_none_or(BodyRest::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let front = self.front.iter().map(|slice| slice.len() as u64).sum::<u64>();
        let rest = match &self.rest {
            Some(rest) => rest.size_hint(),
            // It has no end, so it has no length.
            None if self.broken.is_some() => SizeHint::default(),
            None => SizeHint::with_exact(0),
        };
        let mut hint = SizeHint::new();
        hint.set_lower(front + rest.lower());
        if let Some(upper) = rest.upper() {
            hint.set_upper(front + upper);
        }
        hint
    }
}

/// The result of collecting a body.
pub(crate) enum CollectOutcome {
    /// It was received whole.
    Whole {
        /// The body: the client's own allocation, if it arrived in one piece.
        bytes: Bytes,
        /// Its trailers.
        trailers: Option<HeaderMap>,
    },
    /// It exceeds the limit: the part that was read, followed by the rest.
    TooLarge(OutgoingBody),
    /// There is no memory for the rest, or others need its memory; as [`CollectOutcome::TooLarge`].
    NoMemory(OutgoingBody),
    /// It does not have to be read.
    Unread(OutgoingBody),
    /// The client aborted it.
    Broken,
    /// It stalled for too long.
    TimedOut,
}

/// A response whose start was read, and which can still be forwarded whole.
pub(crate) struct StartedResponse {
    pub(crate) head: response::Parts,
    /// Its first bytes, decompressed.
    pub(crate) start: Vec<u8>,
    body: OutgoingBody,
    _held: HeldMemory,
}

impl StartedResponse {
    /// Reads at most `limit` bytes, for at most [`START`].
    pub(crate) async fn read(
        response: Response<OutgoingBody>,
        limit: usize,
        memory: &Arc<MemoryBudget>,
    ) -> Self {
        Self::until(response, limit, START, memory, |_, _| false).await
    }

    /// Reads until head and first bytes (as received) are `enough`, at most `limit` bytes, and for at most
    /// `timeout`. Reads nothing if there is no memory for it.
    pub(crate) async fn until(
        response: Response<OutgoingBody>,
        limit: usize,
        timeout: Duration,
        memory: &Arc<MemoryBudget>,
        mut enough: impl FnMut(&response::Parts, &[u8]) -> bool,
    ) -> Self {
        let (head, mut body) = response.into_parts();
        let mut start = Vec::new();
        let mut guard = memory.guard(MemoryKind::Reply);
        // Three copies: as received, copied, and decompressed.
        if !guard.hold(3 * limit) {
            return Self { head, start, body, _held: guard };
        }
        let begin = body.begin(&mut start, limit, |start| enough(&head, start));
        let _ = tokio::time::timeout(timeout, begin).await;
        let codings = headers::codings(&head.headers);
        let decoded = Decoder::new(codings, limit, || memory.boxed(MemoryKind::Reply))
            .ok()
            .and_then(|mut decoder| decoder.push(&start).ok().map(Cow::into_owned));
        Self { head, start: decoded.unwrap_or(start), body, _held: guard }
    }

    pub(crate) fn unread(response: Response<OutgoingBody>, memory: &Arc<MemoryBudget>) -> Self {
        let (head, body) = response.into_parts();
        Self { head, start: Vec::new(), body, _held: memory.guard(MemoryKind::Reply) }
    }

    pub(crate) fn into_response(self) -> Response<OutgoingBody> {
        Response::from_parts(self.head, self.body)
    }
}

impl OutgoingBody {
    async fn begin(
        &mut self,
        start: &mut Vec<u8>,
        limit: usize,
        mut enough: impl FnMut(&[u8]) -> bool,
    ) {
        let mut is_enough = false;
        while start.len() < limit {
            is_enough = is_enough || enough(start);
            let Some(rest) = &mut self.rest else { return };
            let next_frame = std::future::poll_fn(|cx| rest.poll_frame(cx));
            // Once it is enough, only what has already arrived is read. Often that is the end, and the
            // connection can be used again.
            let arrived = match is_enough {
                true => next_frame.now_or_never(),
                false => Some(next_frame.await),
            };
            let Some(frame) = arrived else { return };
            match frame {
                None => self.end_rest(),
                Some(Err(error)) => {
                    self.end_rest();
                    self.broken = Some(error);
                }
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => {
                        start.extend_from_slice(&data);
                        self.front.push_back(data);
                    }
                    Err(frame) => self.trailers = frame.into_trailers().ok(),
                },
            }
        }
    }
}

/// How long the start of a body is waited for.
const START: Duration = Duration::from_secs(2);

/// If memory is short, a body that stalls for this long releases its memory and streams through.
const STALL: Duration = Duration::from_millis(500);

/// A body of at most this many bytes waits for memory, because others will soon have been sent.
const SMALL: usize = 1 << 20;
/// How long it waits at most; then it streams through.
const WAIT: Duration = Duration::from_secs(1);

/// Collects a body of at most `limit` bytes, if there is memory.
pub(crate) async fn collect(
    mut body: ClientBody,
    limit: usize,
    timeout: Duration,
    memory: &Arc<MemoryBudget>,
) -> CollectOutcome {
    let expected = body.size_hint().lower();
    // Nothing of a body that says it is too large is held.
    if expected > limit as u64 {
        return CollectOutcome::TooLarge(OutgoingBody::request(body));
    }
    let mut large = None;
    let mut collecting = BodyCollector {
        expected: expected as usize,
        first: Bytes::new(),
        joined: BytesMut::new(),
        trailers: None,
        held: memory.guard(MemoryKind::Request),
        beside: 0,
        waited: false,
    };
    loop {
        let frame = match next(&mut body, timeout, memory).await {
            CollectStep::Came(None) => break,
            CollectStep::Came(Some(Err(_))) => return CollectOutcome::Broken,
            CollectStep::Came(Some(Ok(frame))) => frame,
            CollectStep::NoMemory => return CollectOutcome::NoMemory(collecting.through(body)),
            CollectStep::TimedOut => {
                body.abandon();
                return CollectOutcome::TimedOut;
            }
        };
        let data = match frame.into_data() {
            Ok(data) => data,
            Err(frame) => {
                collecting.trailers = frame.into_trailers().ok();
                continue;
            }
        };
        if let Err(data) = collecting.add(data).await {
            let mut through = collecting.through(body);
            // What was read is sent first, so that no byte is lost or changes its place.
            through.front.push_back(data);
            return CollectOutcome::NoMemory(through);
        }
        if collecting.length() >= LARGE_BODY {
            large.get_or_insert_with(|| body.large_reads());
        }
        if collecting.length() > limit {
            return CollectOutcome::TooLarge(collecting.through(body));
        }
        if body.is_end_stream() {
            break;
        }
    }
    let (bytes, trailers) = collecting.bytes();
    CollectOutcome::Whole { bytes, trailers }
}

/// The next step of a body.
enum CollectStep {
    /// A frame, or the end.
    Came(NextFrame),
    /// It stalls, and memory is short.
    NoMemory,
    /// It stalled for too long.
    TimedOut,
}

async fn next(body: &mut ClientBody, timeout: Duration, memory: &MemoryBudget) -> CollectStep {
    let mut frame = pin!(std::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)));
    if let Ok(frame) = tokio::time::timeout(STALL.min(timeout), frame.as_mut()).await {
        return CollectStep::Came(frame);
    }
    // While it stalls, it holds no memory that others need.
    tokio::select! {
        biased;
        came = frame => CollectStep::Came(came),
        () = memory.short() => CollectStep::NoMemory,
        () = sleep(timeout.saturating_sub(STALL)) => CollectStep::TimedOut,
    }
}

/// The part of a body that has arrived, with its memory.
struct BodyCollector {
    /// The declared length, bytes.
    expected: usize,
    /// The whole body, as long as it arrived in one piece.
    first: Bytes,
    joined: BytesMut,
    trailers: Option<HeaderMap>,
    held: HeldMemory,
    /// The share of the memory that is released once the body is complete.
    beside: usize,
    /// It has waited for memory, which it may do once.
    waited: bool,
}

/// A body of which this many bytes have come is read in large pieces. Its connection's buffer becomes as large, and stays
/// so while it stalls; thousands that begin a body must not each have one.
const LARGE_BODY: usize = 128 * 1024;
/// Memory beside the body while it arrives in pieces: the buffers of the pieces.
const BUFFERS: usize = 32 * 1024;
/// An allocation with more bytes than this has an overhead of [`LARGE_OVERHEAD`].
const LARGE: usize = 8 << 20;
const LARGE_OVERHEAD: usize = 32 * 1024;

impl BodyCollector {
    fn length(&self) -> usize {
        self.first.len() + self.joined.len()
    }

    /// Adds data; returns it if there is no memory.
    async fn add(&mut self, data: Bytes) -> Result<(), Bytes> {
        // Most bodies arrive in one piece, which is kept as it is.
        if self.length() == 0 {
            if !self.hold(data.len()).await {
                return Err(data);
            }
            self.first = data;
            return Ok(());
        }
        let length = self.length() + data.len();
        self.beside = BUFFERS + if self.expected > LARGE { LARGE_OVERHEAD } else { 0 };
        if length > self.joined.capacity() {
            // Reserved memory is only used when it is written; memory that grows is used at once.
            let capacity = length.max(length + length / 2).max(self.expected);
            let reserved = if capacity == self.expected { length } else { capacity };
            if !self.hold(reserved).await {
                return Err(data);
            }
            let mut joined = BytesMut::with_capacity(capacity);
            joined.extend_from_slice(&self.first);
            joined.extend_from_slice(&self.joined);
            self.first = Bytes::new();
            self.joined = joined;
        } else if self.held.bytes() < length + self.beside && !self.hold(length).await {
            return Err(data);
        }
        self.joined.extend_from_slice(&data);
        Ok(())
    }

    async fn hold(&mut self, bytes: usize) -> bool {
        let bytes = bytes + self.beside;
        if self.held.hold(bytes) {
            return true;
        }
        // Small bodies wait, once: others will soon have been sent. A large one would wait for long.
        let may_wait = self.length() <= SMALL && !std::mem::replace(&mut self.waited, true);
        may_wait && self.held.hold_within(bytes, WAIT).await
    }

    fn bytes(mut self) -> (Bytes, Option<HeaderMap>) {
        // Reducing what is held never fails.
        let _ = self.held.hold(self.held.bytes().saturating_sub(self.beside));
        let bytes = if self.joined.is_empty() { self.first } else { self.joined.freeze() };
        (self.held.with(bytes), self.trailers)
    }

    /// The part that has arrived, followed by the rest.
    fn through(self, rest: ClientBody) -> OutgoingBody {
        let (bytes, trailers) = self.bytes();
        let mut front = VecDeque::new();
        if !bytes.is_empty() {
            front.push_back(bytes);
        }
        OutgoingBody::through_from(front, rest, trailers)
    }
}
