//! The body of a request on its way to the upstream: how much has come, whether it stalls, and when it was sent.
//!
//! Its last piece is dropped when it was written to the connection; since then the upstream is waited for.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::Frame;
use tokio::time::{Instant, Sleep, sleep};

use super::answer::ProxyError;

/// Why a body broke.
type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// Limits how long the body of a request may stall while it streams through.
#[derive(Debug)]
pub(super) struct UploadTimeout {
    progress: Arc<UploadProgress>,
    /// How long it may stall.
    timeout: Duration,
    /// The timer that runs while it stalls.
    stalled: Option<Pin<Box<Sleep>>>,
}

/// The progress of a request's body that streams through.
#[derive(Debug, Default)]
pub(crate) struct UploadProgress {
    bytes: AtomicU64,
    /// It stalled for too long and was aborted.
    timed_out: AtomicBool,
    /// Its client broke it off.
    broken: AtomicBool,
}

impl UploadProgress {
    /// Bytes received.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Why it did not end, if that was not the upstream's doing. Over HTTP/2 the error of the request does not say so.
    pub(crate) fn fault(&self) -> Option<ProxyError> {
        let is = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        let broken = is(&self.broken).then_some(ProxyError::RequestBroken);
        if is(&self.timed_out) { Some(ProxyError::BodyTooSlow) } else { broken }
    }
}

impl UploadTimeout {
    /// `begun`: how many bytes were received before.
    pub(super) fn new(progress: &Arc<UploadProgress>, begun: u64, timeout: Duration) -> Self {
        progress.bytes.store(begun, Ordering::Relaxed);
        Self { progress: progress.clone(), timeout, stalled: None }
    }

    /// Passes on a frame; an error if the body stalled for too long.
    pub(super) fn poll(
        &mut self,
        came: Poll<Option<Result<Frame<Bytes>, hyper::Error>>>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Poll::Ready(frame) = came {
            self.stalled = None;
            match &frame {
                Some(Ok(frame)) => {
                    let length = frame.data_ref().map_or(0, Bytes::len) as u64;
                    self.progress.bytes.fetch_add(length, Ordering::Relaxed);
                }
                Some(Err(_)) => self.progress.broken.store(true, Ordering::Relaxed),
                None => {}
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(BodyError::from)));
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(self.timeout)));
        ready!(stalled.as_mut().poll(cx));
        self.progress.timed_out.store(true, Ordering::Relaxed);
        Poll::Ready(Some(Err(io::Error::from(io::ErrorKind::TimedOut).into())))
    }
}

/// When the last byte of a request was written to its connection.
#[derive(Debug, Default)]
pub(crate) struct SentTime(Mutex<Option<Instant>>);

impl SentTime {
    /// How long ago that was; zero if it has not happened yet.
    pub(crate) fn elapsed(&self) -> Duration {
        let sent = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sent.map_or(Duration::ZERO, |sent| sent.elapsed())
    }

    /// Called when a request is about to be sent on a connection, also if it is sent again.
    pub(super) fn begins(&self, has_no_body: bool) {
        self.set(has_no_body.then(Instant::now));
    }

    /// The last frame of a request's body, or its end.
    pub(super) fn last<E>(
        self: Arc<Self>,
        frame: Option<Result<Frame<Bytes>, E>>,
    ) -> Option<Result<Frame<Bytes>, E>> {
        match frame {
            Some(Ok(frame)) if frame.is_data() => {
                let last = |bytes| Bytes::from_owner(LastPiece { bytes, sent: self });
                Some(Ok(frame.map_data(last)))
            }
            Some(Err(error)) => Some(Err(error)),
            frame => {
                self.set(Some(Instant::now()));
                frame
            }
        }
    }

    fn set(&self, sent: Option<Instant>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = sent;
    }
}

/// The last bytes of a request, until they are written.
struct LastPiece {
    bytes: Bytes,
    sent: Arc<SentTime>,
}

impl AsRef<[u8]> for LastPiece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for LastPiece {
    fn drop(&mut self) {
        self.sent.set(Some(Instant::now()));
    }
}

#[cfg(test)]
mod tests {
    use std::thread::sleep;

    use super::*;

    type Sent = Option<Result<Frame<Bytes>, ()>>;

    #[test]
    fn a_request_is_sent_when_its_last_piece_is_written() {
        let (sent, moment) = (Arc::new(SentTime::default()), Duration::from_millis(20));
        sent.begins(false);
        let data = Bytes::from_static(b"two");
        let piece: Sent = sent.clone().last(Some(Ok(Frame::data(data.clone()))));
        let piece = piece.unwrap().unwrap().into_data().unwrap();
        assert_eq!(piece.as_ptr(), data.as_ptr(), "the same allocation");
        sleep(moment);
        assert_eq!(sent.elapsed(), Duration::ZERO, "it is not written");
        drop(piece);
        sleep(moment);
        assert!(sent.elapsed() >= moment);
        // Sent again, the end of the body comes without data.
        sent.begins(false);
        assert_eq!(sent.elapsed(), Duration::ZERO);
        let end: Sent = sent.clone().last(None);
        assert!(end.is_none());
        sleep(moment);
        assert!(sent.elapsed() >= moment);
        // Without a body.
        sent.begins(true);
        sleep(moment);
        assert!(sent.elapsed() >= moment);
    }
}
