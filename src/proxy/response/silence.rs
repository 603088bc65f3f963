//! Silence in a stream: how long it lasts, when it is too long, and what the client gets then.
//!
//! Only the time spent waiting for the upstream counts, not a client that reads slowly. Our own data is
//! inserted only between two events.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::dialect::Dialect;
use crate::dialect::reading::Framing;
use crate::proxy::http::answer::ProxyError;
use crate::telemetry::StreamGaps;

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
    timer: Option<Pin<Box<Sleep>>>,
    /// How long the headers took once the request was sent, which counts as part of the first gap.
    before: Duration,
    pub(crate) gaps: StreamGaps,
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
            gaps: StreamGaps::default(),
        })
    }

    /// Called when the upstream sent data, or has ended.
    pub(super) fn heard(&mut self, is_data: bool) {
        let waited = self.since.take().map_or(Duration::ZERO, |since| since.elapsed());
        (self.kept_alive, self.timer) = (None, None);
        if is_data {
            self.gaps.add(waited + std::mem::take(&mut self.before));
        }
    }

    /// Records bytes sent to the client.
    pub(super) fn passed(&mut self, bytes: &[u8]) {
        self.between_events.passed(bytes);
    }

    /// Called while the upstream is silent: ready once something has to be done.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<SilenceAction> {
        let since = *self.since.get_or_insert_with(Instant::now);
        let may_insert = self.may_insert && self.between_events.is_end();
        loop {
            let breaks = self.limits.silent.map(|silent| since + silent);
            let keeps = self.limits.keep_alive.filter(|_| may_insert);
            let keeps = keeps.map(|keeps| self.kept_alive.unwrap_or(since) + keeps);
            let Some(next) = breaks.into_iter().chain(keeps).min() else { return Poll::Pending };
            let now = Instant::now();
            if breaks.is_some_and(|at| at <= now) {
                self.timer = None;
                return Poll::Ready(SilenceAction::Break(may_insert.then(|| self.error_event())));
            }
            if keeps.is_some_and(|at| at <= now) {
                self.kept_alive = Some(now);
                self.timer = None;
                return Poll::Ready(SilenceAction::KeepAlive(Bytes::from_static(KEEP_ALIVE)));
            }
            let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(next)));
            if timer.deadline() != next {
                timer.as_mut().reset(next);
            }
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }

    /// The error event that the provider would send in a failed stream.
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
        let kept = bytes.len().min(4);
        self.has_begun |= kept > 0;
        self.last.rotate_left(kept);
        self.last[4 - kept..].copy_from_slice(&bytes[bytes.len() - kept..]);
    }

    /// Whether an event ends here, or none has begun.
    fn is_end(&self) -> bool {
        let ends = |with: &[u8]| self.last.ends_with(with);
        !self.has_begun || ends(b"\n\n") || ends(b"\r\n\r\n") || ends(b"\r\r")
    }
}

#[cfg(test)]
mod tests;
