//! Bodies as they arrive on a connection, and what becomes of a request's body that nobody reads.
//!
//! A stream that was reset has not ended. When the response to a request has ended, the rest of the request's
//! body is read and dropped: a client that sends all of it before it reads would otherwise wait for ever, and
//! closing a connection with unread data discards the response (RFC 9112, 9.6).

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::Version;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::transport::{LargeReads, ReadSize};

/// The error of any part of a connection.
pub(crate) type ConnectionError = Box<dyn std::error::Error + Send + Sync>;

/// The next frame of a body, or its end.
pub(crate) type NextFrame = Option<Result<Frame<Bytes>, ConnectionError>>;

/// The error of an HTTP/2 stream that was reset before its end.
const RESET: &str = "the stream was reset before its end";
/// The error of a request's body after its response has ended.
const UNWANTED: &str = "the response ended before the request";

/// A body as it arrives.
#[derive(Debug)]
pub(crate) struct ArrivingBody {
    body: Incoming,
    is_http2: bool,
}

impl ArrivingBody {
    pub(crate) fn new(body: Incoming, version: Version) -> Self {
        Self { body, is_http2: version == Version::HTTP_2 }
    }
}

impl Body for ArrivingBody {
    type Data = Bytes;
    type Error = ConnectionError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<NextFrame> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        // hyper takes NO_ERROR, of a reset or of the connection's end, for the end of a body.
        if frame.is_none() && self.is_http2 && !self.body.is_end_stream() {
            return Poll::Ready(Some(Err(RESET.into())));
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Held while a body streams, so that its HTTP/2 stream is counted.
pub(super) type CountedBody = Arc<dyn std::fmt::Debug + Send + Sync>;

/// How long the end of a response is waited for after its last byte.
const END: Duration = Duration::from_secs(1);

/// The body of a response, and its HTTP/2 stream.
#[derive(Debug)]
pub(super) struct UpstreamBody {
    /// `None` once this is dropped.
    body: Option<ArrivingBody>,
    stream: Option<CountedBody>,
}

impl UpstreamBody {
    pub(super) fn new(body: ArrivingBody, stream: Option<CountedBody>) -> Self {
        Self { body: Some(body), stream }
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<NextFrame> {
        match &mut self.body {
            Some(body) => Pin::new(body).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }
}

impl Drop for UpstreamBody {
    fn drop(&mut self) {
        // Over HTTP/2 the end may come in a frame of its own, and a client that was told the length leaves before. To
        // drop the stream would reset it, as if the response were not wanted.
        if let Some(mut body) = self.body.take()
            && body.is_http2
            && !body.is_end_stream()
            && body.size_hint().exact() == Some(0)
            && let Ok(runtime) = Handle::try_current()
        {
            let stream = self.stream.take();
            runtime.spawn(async move {
                let _ = timeout(END, body.frame()).await;
                drop(stream);
            });
        }
    }
}

/// The body of a request, for whoever reads it, and for [`UnreadRest`].
#[derive(Clone, Debug)]
pub(crate) struct ClientBody {
    state: Arc<Mutex<ClientBodyState>>,
    /// How much is read at once from its connection.
    reads: ReadSize,
    drops_trailers: bool,
}

#[derive(Debug)]
enum ClientBodyState {
    Arriving(ArrivingBody),
    Ended,
    /// Its response has ended, or it stalled.
    Unwanted,
}

impl ClientBody {
    pub(crate) fn new(body: ArrivingBody, reads: ReadSize) -> Self {
        let state = match body.is_end_stream() {
            true => ClientBodyState::Ended,
            false => ClientBodyState::Arriving(body),
        };
        Self { state: Arc::new(Mutex::new(state)), reads, drops_trailers: false }
    }

    pub(crate) fn without_trailers(self) -> Self {
        Self { drops_trailers: true, ..self }
    }

    pub(super) fn large_reads(&self) -> LargeReads {
        self.reads.large()
    }

    pub(super) fn abandon(&self) {
        // hyper closes a connection with an unread request after the response.
        *self.state() = ClientBodyState::Unwanted;
    }

    fn state(&self) -> MutexGuard<'_, ClientBodyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = ConnectionError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<NextFrame> {
        let mut state = self.state();
        let body = match &mut *state {
            ClientBodyState::Arriving(body) => body,
            ClientBodyState::Ended => return Poll::Ready(None),
            ClientBodyState::Unwanted => return Poll::Ready(Some(Err(UNWANTED.into()))),
        };
        let mut frame = ready!(Pin::new(body).poll_frame(cx));
        if self.drops_trailers {
            frame = frame.filter(|frame| !frame.as_ref().is_ok_and(Frame::is_trailers));
        }
        match &frame {
            Some(Ok(_)) => {}
            Some(Err(_)) => *state = ClientBodyState::Unwanted,
            None => *state = ClientBodyState::Ended,
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &*self.state() {
            ClientBodyState::Arriving(body) => body.is_end_stream(),
            ClientBodyState::Ended => true,
            ClientBodyState::Unwanted => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &*self.state() {
            ClientBodyState::Arriving(body) => body.size_hint(),
            ClientBodyState::Ended => SizeHint::with_exact(0),
            ClientBodyState::Unwanted => SizeHint::default(),
        }
    }
}

/// The part of a body that is still to come.
#[derive(Debug)]
pub(super) enum BodyRest {
    /// Of a request.
    Client(ClientBody),
    /// Of a response.
    Upstream(UpstreamBody),
}

impl BodyRest {
    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<NextFrame> {
        match self {
            Self::Client(body) => Pin::new(body).poll_frame(cx),
            Self::Upstream(body) => body.poll_frame(cx),
        }
    }

    pub(super) fn is_end_stream(&self) -> bool {
        match self {
            Self::Client(body) => body.is_end_stream(),
            Self::Upstream(UpstreamBody { body, .. }) => {
                body.as_ref().is_none_or(ArrivingBody::is_end_stream)
            }
        }
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        match self {
            Self::Client(body) => body.size_hint(),
            Self::Upstream(UpstreamBody { body, .. }) => {
                body.as_ref().map_or_else(|| SizeHint::with_exact(0), ArrivingBody::size_hint)
            }
        }
    }
}

/// What is left of a request's body; read and dropped once this is dropped, which is when the response has
/// ended.
pub(crate) struct UnreadRest {
    body: ClientBody,
    /// How long it may stall; then the connection is closed.
    stall: Duration,
}

impl UnreadRest {
    pub(crate) fn new(body: &ClientBody, stall: Duration) -> Self {
        Self { body: body.clone(), stall }
    }
}

impl Drop for UnreadRest {
    fn drop(&mut self) {
        let state = std::mem::replace(&mut *self.body.state(), ClientBodyState::Unwanted);
        // Without a runtime, the process is ending.
        let (ClientBodyState::Arriving(mut body), Ok(runtime)) = (state, Handle::try_current())
        else {
            return;
        };
        // As of nearly all requests: a task would wake another thread for nothing.
        if body.is_end_stream() {
            return;
        }
        let stall = self.stall;
        runtime.spawn(async move {
            // hyper may report the end of a body only with the next request, but its length is known before.
            while !body.is_end_stream()
                && let Ok(Some(Ok(_))) = timeout(stall, body.frame()).await
            {}
        });
    }
}
