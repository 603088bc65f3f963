//! A stream on which its upstream says nothing: how long, when that is too long, and what its client hears.
//!
//! Counts only the time in which the upstream is waited for: a client that reads slowly makes nobody silent.
//! Words of ours stand between two events and nowhere else.

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

/// What every client of event streams passes over (HTML, Server-sent events).
const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";

/// What is done because nothing came.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SilenceAction {
    /// The client gets this, and goes on waiting.
    KeepAlive(Bytes),
    /// It was too long. The client gets this error event; without one the stream breaks.
    Break(Option<Bytes>),
}

/// When a silent stream is broken, and when its client is told that it goes on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SilenceLimits {
    /// `None`: never.
    pub(crate) silent: Option<Duration>,
    /// `None`: never.
    pub(crate) keep_alive: Option<Duration>,
}

/// The silence on one stream of events.
pub(crate) struct StreamSilence {
    dialect: Dialect,
    upstream: Box<str>,
    limits: SilenceLimits,
    /// Whether words of ours can stand between its events.
    may_insert: bool,
    /// What went to the client last ended an event.
    between_events: SentTail,
    /// Since when the upstream is waited for.
    since: Option<Instant>,
    /// When the client last heard that it goes on.
    kept_alive: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
    /// What came before the first piece was waited for.
    before: Duration,
    pub(crate) gaps: StreamGaps,
}

impl StreamSilence {
    /// The silence on a response with these headers, as its client gets them; `None` where it is no stream of
    /// events. `before`: how long the upstream took for the headers.
    pub(crate) fn new(
        dialect: Option<Dialect>,
        upstream: &str,
        headers: &HeaderMap,
        limits: SilenceLimits,
        before: Duration,
    ) -> Option<Self> {
        let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok())?;
        if Framing::of(kind) != Framing::Events {
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

    /// The upstream said something, or has ended.
    pub(crate) fn heard(&mut self, is_data: bool) {
        let waited = self.since.take().map_or(Duration::ZERO, |since| since.elapsed());
        (self.kept_alive, self.timer) = (None, None);
        if is_data {
            self.gaps.add(waited + std::mem::take(&mut self.before));
        }
    }

    /// The client gets these bytes.
    pub(crate) fn passed(&mut self, bytes: &[u8]) {
        self.between_events.passed(bytes);
    }

    /// The upstream says nothing now: ready once something has to be done about that.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<SilenceAction> {
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

    /// What the provider would send in the middle of a stream that failed.
    fn error_event(&self) -> Bytes {
        let seconds = self.limits.silent.unwrap_or_default().as_secs();
        ProxyError::UpstreamSilent(self.upstream.clone(), seconds).event(self.dialect).into()
    }
}

/// The end of what went to a client.
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
