//! Bodies on their way out: what was collected, then what still comes.
//!
//! Collected bytes leave as the allocations they came in (invariant 1); a body that outgrew the
//! limit leaves as what was read of it, chained with the rest. Trailers follow.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt as _;
use http::header::CONTENT_ENCODING;
use http::{HeaderMap, Response, response};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use crate::wire::encoding::Decoder;

/// A body as it is passed on: a request's, or an answer's of which the start may have been read.
#[derive(Debug, Default)]
pub struct Outgoing {
    front: VecDeque<Bytes>,
    rest: Option<Incoming>,
    /// It broke while it was read.
    broken: Option<hyper::Error>,
    trailers: Option<HeaderMap>,
    /// Counts what streams through, bytes.
    counted: Option<Arc<AtomicU64>>,
}

impl Outgoing {
    /// The same body, counted as it goes.
    pub(crate) fn counted(mut self, by: &Arc<AtomicU64>) -> Self {
        let front = self.front.iter().map(|slice| slice.len() as u64).sum();
        by.store(front, Ordering::Relaxed);
        self.counted = Some(by.clone());
        self
    }

    /// A body that streams through as it comes.
    pub(crate) fn through(rest: Incoming) -> Self {
        Self { rest: Some(rest), ..Self::default() }
    }

    /// The same body once more, where all of it is here.
    pub(crate) fn copy(&self) -> Option<Self> {
        let (front, trailers) = (self.front.clone(), self.trailers.clone());
        let is_here = self.rest.is_none() && self.broken.is_none();
        is_here.then_some(Self { front, trailers, ..Self::default() })
    }

    /// All of it as one, where all of it is here.
    pub(crate) fn whole(&self) -> Option<Bytes> {
        let slices = || self.front.iter();
        let join = || slices().flatten().copied().collect();
        match (&self.rest, self.front.len()) {
            (Some(_), _) => None,
            (None, 1) => slices().next().cloned(),
            (None, _) => Some(join()),
        }
    }

    /// A body of these slices, in order.
    pub(crate) fn slices(slices: Vec<Bytes>, trailers: Option<HeaderMap>) -> Self {
        let front = slices.into_iter().filter(|slice| !slice.is_empty()).collect();
        Self { front, trailers, ..Self::default() }
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if let Some(slice) = self.front.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(slice))));
        }
        if let Some(broken) = self.broken.take() {
            return Poll::Ready(Some(Err(broken)));
        }
        if let Some(rest) = &mut self.rest {
            let frame = ready!(Pin::new(rest).poll_frame(cx));
            match &frame {
                None => self.rest = None,
                Some(Ok(frame)) => {
                    let length = frame.data_ref().map_or(0, Bytes::len) as u64;
                    if let Some(counted) = &self.counted {
                        counted.fetch_add(length, Ordering::Relaxed);
                    }
                }
                Some(Err(_)) => {}
            }
            return Poll::Ready(frame);
        }
        Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.front.is_empty()
            && self.broken.is_none()
            && self.trailers.is_none()
            && self.rest.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let front = self.front.iter().map(|slice| slice.len() as u64).sum::<u64>();
        let rest = self.rest.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint);
        let mut hint = SizeHint::new();
        hint.set_lower(front + rest.lower());
        if let Some(upper) = rest.upper() {
            hint.set_upper(front + upper);
        }
        hint
    }
}

/// What became of collecting a body.
pub(crate) enum Collected {
    /// All of it.
    Whole {
        /// The body: the client's own allocation where it came in one piece.
        bytes: Bytes,
        /// What followed it.
        trailers: Option<HeaderMap>,
    },
    /// It is larger than the limit: as much as was read, to be sent ahead of the rest.
    TooLarge(Outgoing),
    /// Nobody wants to read it.
    Unread(Outgoing),
    /// The client broke off.
    Broken,
}

/// An answer of which the start was read, and which can still be passed on whole.
pub(crate) struct Begun {
    pub(crate) head: response::Parts,
    /// Its first bytes, without their encoding.
    pub(crate) start: Vec<u8>,
    body: Outgoing,
}

impl Begun {
    /// Reads `limit` bytes at most, and waits no longer than [`START`].
    pub(crate) async fn read(response: Response<Incoming>, limit: usize) -> Self {
        Self::until(response, limit, START, |_, _| false).await
    }

    /// Reads until head and first bytes, as they came, are `enough`; `limit` bytes at most, and no longer
    /// than `patience`.
    pub(crate) async fn until(
        response: Response<Incoming>,
        limit: usize,
        patience: Duration,
        enough: impl FnMut(&response::Parts, &[u8]) -> bool,
    ) -> Self {
        let (head, rest) = response.into_parts();
        let mut body = Outgoing::through(rest);
        let (mut start, mut enough) = (Vec::new(), enough);
        let begin = body.begin(&mut start, limit, |start| enough(&head, start));
        let _ = tokio::time::timeout(patience, begin).await;
        let encoding = head.headers.get(CONTENT_ENCODING).and_then(|value| value.to_str().ok());
        let plain = Decoder::new(encoding.unwrap_or_default(), limit)
            .and_then(|mut decoder| decoder.push(&start).ok().map(Cow::into_owned));
        Self { head, start: plain.unwrap_or(start), body }
    }

    /// The whole answer, as it came.
    pub(crate) fn into_response(self) -> Response<Outgoing> {
        Response::from_parts(self.head, self.body)
    }
}

impl Outgoing {
    /// Takes in what still comes, until it is `enough` or `limit` bytes, and copies it to `start`.
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
            let next = std::future::poll_fn(|cx| Pin::new(&mut *rest).poll_frame(cx));
            // Past what is enough, only what is here already: often the end, after which the connection
            // can be used again.
            let next = match is_enough {
                true => next.now_or_never(),
                false => Some(next.await),
            };
            let Some(next) = next else { return };
            match next {
                None => self.rest = None,
                Some(Err(error)) => (self.rest, self.broken) = (None, Some(error)),
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

/// Collects a body of at most `limit` bytes.
pub(crate) async fn collect(mut body: Incoming, limit: usize) -> Collected {
    let expected = body.size_hint().lower();
    if expected > limit as u64 {
        return Collected::TooLarge(Outgoing::through(body));
    }
    let mut first = Bytes::new();
    let mut joined = BytesMut::new();
    let mut trailers = None;
    loop {
        let frame = match std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            None => break,
            Some(Err(_)) => return Collected::Broken,
            Some(Ok(frame)) => frame,
        };
        let data = match frame.into_data() {
            Ok(data) => data,
            Err(frame) => {
                trailers = frame.into_trailers().ok();
                continue;
            }
        };
        if first.is_empty() && joined.is_empty() {
            first = data;
        } else {
            if joined.is_empty() {
                joined.reserve((expected as usize).max(first.len() + data.len()));
                joined.extend_from_slice(&std::mem::take(&mut first));
            }
            joined.extend_from_slice(&data);
        }
        if first.len() + joined.len() > limit {
            let front = VecDeque::from([if joined.is_empty() { first } else { joined.freeze() }]);
            let rest = Some(body);
            return Collected::TooLarge(Outgoing { front, rest, trailers, ..Outgoing::default() });
        }
        if body.is_end_stream() {
            break;
        }
    }
    let bytes = if joined.is_empty() { first } else { joined.freeze() };
    Collected::Whole { bytes, trailers }
}
