//! Floor 4: whether a connection is still in use.
//!
//! Knows neither requests nor responses: it counts requests in flight, each until the last byte of its
//! response is sent. A connection without any for a while is idle, whichever version of HTTP it uses.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, sleep_until};

/// The requests in flight on one connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Activity(Arc<RequestCounts>);

#[derive(Debug)]
struct RequestCounts {
    since: Instant,
    begun: AtomicU64,
    in_flight: AtomicU64,
    /// When a request last ended: nanoseconds since `since`.
    ended: AtomicU64,
}

impl Default for RequestCounts {
    fn default() -> Self {
        Self {
            since: Instant::now(),
            begun: AtomicU64::default(),
            in_flight: AtomicU64::default(),
            ended: AtomicU64::default(),
        }
    }
}

impl Activity {
    /// Begins a request, which is in flight as long as the returned guard or its body lives.
    pub(crate) fn begin(&self) -> RequestGuard {
        self.0.begun.fetch_add(1, Ordering::Relaxed);
        self.0.in_flight.fetch_add(1, Ordering::Relaxed);
        RequestGuard(self.clone())
    }

    /// Whether there was no request at all.
    pub(crate) fn is_silent(&self) -> bool {
        self.0.begun.load(Ordering::Relaxed) == 0
    }

    /// Ready once there was no request in flight for `timeout`.
    pub(crate) async fn idle(&self, timeout: Duration) {
        let mut due = Instant::now() + timeout;
        loop {
            // Requests do not wake it: there may be thousands before it is due.
            sleep_until(due).await;
            let now = Instant::now();
            due = self.quiet_since().unwrap_or(now) + timeout;
            if due <= now {
                return;
            }
        }
    }

    /// When the last request ended; `None` while one is in flight.
    fn quiet_since(&self) -> Option<Instant> {
        if self.0.in_flight.load(Ordering::Acquire) > 0 {
            return None;
        }
        Some(self.0.since + Duration::from_nanos(self.0.ended.load(Ordering::Relaxed)))
    }
}

/// Counts a request as in flight while it lives.
#[derive(Debug)]
pub(crate) struct RequestGuard(Activity);

impl RequestGuard {
    /// Wraps the body of the response: the request ends with the end of the body.
    pub(crate) fn answer<B>(self, body: B) -> ActivityBody<B> {
        ActivityBody { body, _request: self }
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        let counts = &*self.0.0;
        counts.ended.store(counts.since.elapsed().as_nanos() as u64, Ordering::Relaxed);
        counts.in_flight.fetch_sub(1, Ordering::Release);
    }
}

/// A body that ends its request when it ends or is dropped.
#[derive(Debug)]
pub(crate) struct ActivityBody<B> {
    body: B,
    _request: RequestGuard,
}

impl<B: Body + Unpin> Body for ActivityBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(50);

    #[tokio::test]
    async fn connection_is_idle_after_time_without_requests_in_flight() {
        let activity = Activity::default();
        assert!(activity.is_silent());
        activity.idle(SHORT).await;
        let answer = activity.begin().answer(String::from("words"));
        assert!(!activity.is_silent());
        let waiting = tokio::time::timeout(SHORT * 4, activity.idle(SHORT));
        assert!(waiting.await.is_err(), "its answer is under way");
        let again = activity.clone();
        let began = Instant::now();
        drop(answer);
        let short = tokio::spawn(async move {
            tokio::time::sleep(SHORT / 2).await;
            drop(again.begin());
            Instant::now()
        });
        activity.idle(SHORT).await;
        let idle = Instant::now();
        let ended = short.await.unwrap();
        // A short activity starts the wait again; on a busy machine it may come too late.
        assert!(idle + SHORT / 10 >= ended + SHORT || ended >= began + SHORT);
    }
}
