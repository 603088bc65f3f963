//! Silence in a stream: how long it lasts, when it is too long, and what the client gets then.
//!
//! Only the time spent waiting for the upstream counts, not a client that reads slowly. Our own data is
//! inserted only between two events.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::dialect::Dialect;
use crate::dialect::reading::Framing;
use crate::proxy::http::answer::ProxyError;
use crate::telemetry::ChunkTimes;

/// A comment, which every client of event streams ignores (HTML, Server-sent events).
const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";

/// What to do because nothing has arrived.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SilenceAction {
    /// Send this to the client, and keep waiting.
    KeepAlive(Bytes),
    /// It took too long. Send this error event to the client; without one, break the stream.
    Break(Option<Bytes>),
}

/// After how long a silent stream is broken, and after how long a comment is sent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SilenceLimits {
    /// `None`: never.
    pub(crate) silent: Option<Duration>,
    /// `None`: never.
    pub(crate) keep_alive: Option<Duration>,
}

/// The silence of one event stream.
pub(crate) struct StreamSilence {
    dialect: Dialect,
    upstream: Box<str>,
    limits: SilenceLimits,
    /// Whether our data can be inserted between its events.
    may_insert: bool,
    /// Whether the last data sent to the client ended an event.
    between_events: SentTail,
    /// Since when the upstream has been silent.
    since: Option<Instant>,
    /// When the client last got a comment.
    kept_alive: Option<Instant>,
    /// It runs on through data, so it may end early and is then set again: a stream sets it a few times, not per event.
    timer: Option<Pin<Box<Sleep>>>,
    /// How long the headers took once the request was sent, which counts as part of the first gap.
    before: Duration,
    /// The longest time before data came; `None` if none came.
    pub(crate) longest_gap: Option<Duration>,
    /// The time before each chunk but the first; `None` if nobody wants to know.
    pub(crate) chunks: Option<Box<ChunkTimes>>,
}

impl StreamSilence {
    /// Watches a response with these headers (as the client gets them); `None` if it is not an event stream.
    /// `before`: how long the upstream took for the headers, once the request was sent.
    pub(crate) fn new(
        dialect: Option<Dialect>,
        upstream: &str,
        headers: &HeaderMap,
        limits: SilenceLimits,
        before: Duration,
    ) -> Option<Self> {
        let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok())?;
        if Framing::from_content_type(kind) != Framing::Events {
            return None;
        }
        // Inserted bytes would exceed a declared length, and be no part of an encoding.
        let is_bound =
            headers.contains_key(CONTENT_LENGTH) || headers.contains_key(CONTENT_ENCODING);
        Some(Self {
            dialect: dialect?,
            upstream: upstream.into(),
            limits,
            may_insert: !is_bound,
            between_events: SentTail::default(),
            since: None,
            kept_alive: None,
            timer: None,
            before,
            longest_gap: None,
            chunks: None,
        })
    }

    /// Called when the upstream sent data, or has ended.
    pub(super) fn heard(&mut self, is_data: bool) {
        let waited = self.since.take().map_or(Duration::ZERO, |since| since.elapsed());
        self.kept_alive = None;
        if is_data {
            let gap = waited + std::mem::take(&mut self.before);
            if let (Some(chunks), Some(_)) = (&mut self.chunks, self.longest_gap) {
                chunks.add(gap);
            }
            self.longest_gap = self.longest_gap.max(Some(gap));
        }
    }

    pub(super) fn passed(&mut self, bytes: &[u8]) {
        self.between_events.passed(bytes);
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<SilenceAction> {
        let since = *self.since.get_or_insert_with(Instant::now);
        let may_insert = self.may_insert && self.between_events.is_end();
        loop {
            let breaks = self.limits.silent.map(|silent| since + silent);
            let keeps = match self.limits.keep_alive {
                Some(interval) if may_insert => Some(self.kept_alive.unwrap_or(since) + interval),
                _ => None,
            };
            let Some(deadline) = breaks.into_iter().chain(keeps).min() else {
                return Poll::Pending;
            };
            let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
            if timer.deadline() > deadline {
                timer.as_mut().reset(deadline);
            }
            ready!(timer.as_mut().poll(cx));
            let now = Instant::now();
            if breaks.is_some_and(|at| at <= now) {
                // Within an event of the upstream's, ours would be read as part of it.
                let event = if may_insert { Some(self.error_event()) } else { None };
                return Poll::Ready(SilenceAction::Break(event));
            }
            if keeps.is_some_and(|at| at <= now) {
                self.kept_alive = Some(now);
                return Poll::Ready(SilenceAction::KeepAlive(Bytes::from_static(KEEP_ALIVE)));
            }
            timer.as_mut().reset(deadline);
        }
    }

    fn error_event(&self) -> Bytes {
        let seconds = self.limits.silent.unwrap_or_default().as_secs();
        let upstream = self.upstream.clone();
        ProxyError::UpstreamSilent { upstream, seconds }.event(self.dialect).into()
    }
}

/// The last bytes sent to a client.
#[derive(Default)]
struct SentTail {
    last: [u8; 4],
    has_begun: bool,
}

impl SentTail {
    fn passed(&mut self, bytes: &[u8]) {
        let count = bytes.len().min(4);
        self.has_begun |= count > 0;
        self.last.rotate_left(count);
        self.last[4 - count..].copy_from_slice(&bytes[bytes.len() - count..]);
    }

    /// Whether an event ends here, or none has begun.
    fn is_end(&self) -> bool {
        let ends = [&b"\n\n"[..], b"\r\n\r\n", b"\r\r"];
        !self.has_begun || ends.iter().any(|end| self.last.ends_with(end))
    }
}

#[cfg(test)]
mod tests;
