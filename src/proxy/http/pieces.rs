//! Pieces of a body that are being sent: few at once, so that a reader who is slow slows its sender down.
//!
//! A piece counts until the connection has written it. Must not know what the bytes are.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::task::AtomicWaker;

/// If this many bytes of a response are not written yet, its next piece waits: several events may be written at once.
const MOST_UNSENT: usize = 16 * 1024;

/// Decides when the next piece of one body may be sent.
#[derive(Clone, Debug)]
pub(crate) struct SendWindow(Arc<UnsentBytes>);

/// Bytes that are not written yet.
#[derive(Debug)]
struct UnsentBytes {
    count: AtomicUsize,
    /// If there are as many, the next piece waits.
    most: usize,
    /// Wakes the body when some are written.
    body: AtomicWaker,
}

impl SendWindow {
    /// For a response.
    pub(crate) fn to_client() -> Self {
        Self::new(MOST_UNSENT)
    }

    /// For a request that streams through: one piece after the other.
    pub(super) fn to_upstream() -> Self {
        Self::new(1)
    }

    fn new(most: usize) -> Self {
        Self(Arc::new(UnsentBytes { count: AtomicUsize::new(0), most, body: AtomicWaker::new() }))
    }

    pub(super) fn unsent(&self) -> usize {
        self.0.count.load(Ordering::Acquire)
    }

    /// Ready if another piece may be sent.
    pub(crate) fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.unsent() < self.0.most {
            return Poll::Ready(());
        }
        self.0.body.register(cx.waker());
        // It may have been written before the waker was there.
        if self.unsent() < self.0.most { Poll::Ready(()) } else { Poll::Pending }
    }

    /// The same bytes, counted until they are written.
    pub(crate) fn pass(&self, bytes: Bytes) -> Bytes {
        if bytes.is_empty() {
            return bytes;
        }
        // Counted before they are handed over, because the connection may write and drop them at once.
        self.0.count.fetch_add(bytes.len(), Ordering::AcqRel);
        Bytes::from_owner(UnsentPiece { bytes, unsent: self.0.clone() })
    }
}

/// A piece that is not written yet.
struct UnsentPiece {
    bytes: Bytes,
    unsent: Arc<UnsentBytes>,
}

impl AsRef<[u8]> for UnsentPiece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for UnsentPiece {
    fn drop(&mut self) {
        self.unsent.count.fetch_sub(self.bytes.len(), Ordering::AcqRel);
        self.unsent.body.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[test]
    fn pieces_wait_for_earlier_ones() {
        let window = SendWindow::to_client();
        let cx = &mut Context::from_waker(Waker::noop());
        let large = window.pass(Bytes::from(vec![0; MOST_UNSENT]));
        assert!(window.poll_ready(cx).is_pending());
        drop(large);
        assert!(window.poll_ready(cx).is_ready());
        let _small = window.pass(Bytes::from_static(b"small"));
        assert!(window.poll_ready(cx).is_ready());
    }
}
