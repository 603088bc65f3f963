//! The body of a request on its way to the upstream: how much has come, whether it stalls, and when it was sent.
//!
//! Its last piece is dropped when it was written to the connection; since then the upstream is waited for.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::Frame;
use tokio::task::AbortHandle;
use tokio::time::{Instant, Sleep, sleep};

use super::answer::ProxyError;
use super::arriving::NextFrame;
use super::pieces::SendWindow;

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

    /// Why it did not end, if that was not the upstream's doing.
    pub(crate) fn fault(&self) -> Option<ProxyError> {
        // Over HTTP/2 the error of the request does not say whose doing it was.
        if self.timed_out.load(Ordering::Relaxed) {
            return Some(ProxyError::BodyTooSlow);
        }
        if self.broken.load(Ordering::Relaxed) {
            return Some(ProxyError::RequestBroken);
        }
        None
    }
}

impl UploadTimeout {
    /// `begun`: how many bytes were received before.
    pub(super) fn new(progress: &Arc<UploadProgress>, begun: u64, timeout: Duration) -> Self {
        progress.bytes.store(begun, Ordering::Relaxed);
        Self { progress: progress.clone(), timeout, stalled: None }
    }

    pub(super) fn poll(
        &mut self,
        polled: Poll<NextFrame>,
        cx: &mut Context<'_>,
    ) -> Poll<NextFrame> {
        if let Poll::Ready(frame) = polled {
            self.stalled = None;
            match &frame {
                Some(Ok(frame)) => {
                    let length = frame.data_ref().map_or(0, Bytes::len) as u64;
                    self.progress.bytes.fetch_add(length, Ordering::Relaxed);
                }
                Some(Err(_)) => self.progress.broken.store(true, Ordering::Relaxed),
                None => {}
            }
            return Poll::Ready(frame);
        }
        // The clock starts when nothing is there, and stops with the next frame.
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
        let sent_at = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sent_at.map_or(Duration::ZERO, |instant| instant.elapsed())
    }

    pub(super) fn is_past(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    pub(super) fn begins(&self, has_no_body: bool) {
        // Of a request that is sent again, only the last time counts.
        self.set(if has_no_body { Some(Instant::now()) } else { None });
    }

    pub(super) fn last<E>(
        self: Arc<Self>,
        frame: Option<Result<Frame<Bytes>, E>>,
    ) -> Option<Result<Frame<Bytes>, E>> {
        // Data is written later than it is taken, so its bytes carry the mark until they are dropped.
        match frame {
            Some(Ok(frame)) if frame.is_data() => {
                Some(Ok(frame.map_data(|bytes| Bytes::from_owner(LastPiece { bytes, sent: self }))))
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

/// The error of a body that is sent on another connection.
pub(super) const SENT_ELSEWHERE: &str = "the request was sent on another connection";

/// Called when a body begins to be sent; `false` if it must not be sent any more.
pub(super) struct StartingCall(pub(super) Box<dyn FnOnce() -> bool + Send + Sync>);

impl std::fmt::Debug for StartingCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StartingCall")
    }
}

/// A request's body on its way into an HTTP/2 connection, and the task that sends it.
#[derive(Clone, Debug, Default)]
pub(super) struct SendingTask(Arc<SendingState>);

#[derive(Debug, Default)]
struct SendingState {
    stage: AtomicU8,
    task: OnceLock<AbortHandle>,
}

/// The peer allows no stream for it yet.
const WAITING: u8 = 0;
const STARTED: u8 = 1;
const REVOKED: u8 = 2;

impl SendingTask {
    pub(super) fn set(&self, task: AbortHandle) {
        let _ = self.0.task.set(task);
    }

    pub(super) fn start(&self) -> bool {
        self.becomes(STARTED)
    }

    pub(super) fn revoke(&self) -> bool {
        self.becomes(REVOKED)
    }

    fn becomes(&self, stage: u8) -> bool {
        let stage_is = &self.0.stage;
        // Only one of them happens: the first.
        stage_is.compare_exchange(WAITING, stage, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// Stops sending a request once its response has ended, because nobody reads the rest (RFC 9112, 9.5; RFC 9113,
/// 8.1): an upstream that answered may never read on.
#[derive(Debug)]
pub(super) struct UploadGuard {
    sending: SendProgress,
    task: SendingTask,
}

/// How far a request has been written.
#[derive(Clone, Debug)]
pub(super) struct SendProgress {
    pub(super) sent: Arc<SentTime>,
    /// If its body streams through.
    pub(super) streaming: Option<StreamingProgress>,
}

/// How far a body that streams through has been written.
#[derive(Clone, Debug)]
pub(super) struct StreamingProgress {
    /// What was taken and is not written yet.
    window: SendWindow,
    is_taken: Arc<AtomicBool>,
}

/// Tells, when it is dropped, that all of a body was taken: hyper takes no end of one whose length it knows.
#[derive(Default)]
pub(super) struct TakenMark(Arc<AtomicBool>);

impl TakenMark {
    pub(super) fn progress(&self, window: &SendWindow) -> StreamingProgress {
        StreamingProgress { window: window.clone(), is_taken: self.0.clone() }
    }
}

impl Drop for TakenMark {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl SendProgress {
    fn is_written(&self) -> bool {
        // hyper takes no end of a body whose length it knows, so the last byte of one that streams is not seen.
        match &self.streaming {
            Some(StreamingProgress { window, is_taken }) => {
                is_taken.load(Ordering::Relaxed) && window.unsent() == 0
            }
            None => self.sent.is_past(),
        }
    }
}

impl UploadGuard {
    /// For a response that has begun; `None` if its request was written.
    pub(super) fn new(sending: SendProgress, task: SendingTask) -> Option<Self> {
        if sending.is_written() { None } else { Some(Self { sending, task }) }
    }
}

impl Drop for UploadGuard {
    fn drop(&mut self) {
        if !self.sending.is_written()
            && let Some(task) = self.task.0.task.get()
        {
            task.abort();
        }
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
    fn sent_when_last_piece_is_written() {
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
