//! Pieces of a body that are being sent: each holds memory until it has been written to the socket.
//!
//! One piece may always be sent. More are sent if there is memory; else they wait, which slows the sender
//! down.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Sleep, sleep};

use super::memory::{HeldMemory, MemoryShare, PIECE};
use super::progress::InFlight;
use crate::telemetry::MemoryKind;
use crate::wire::memory::Memory as _;

/// How long until memory is requested again, if no piece was written meanwhile.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// Decides when the next piece of one body may be sent.
pub(crate) struct SendWindow {
    share: Arc<MemoryShare>,
    /// Bytes that are not written yet.
    unsent: Arc<AtomicUsize>,
    /// Memory for the next piece.
    next: HeldMemory,
    /// Whether they go to a client.
    to_client: bool,
    retry_timer: Option<Pin<Box<Sleep>>>,
}

impl SendWindow {
    /// For the pieces of a response.
    pub(crate) fn to_client(share: &Arc<MemoryShare>) -> Self {
        Self::new(share, true)
    }

    /// For the pieces of a request.
    pub(super) fn to_upstream(share: &Arc<MemoryShare>) -> Self {
        Self::new(share, false)
    }

    fn new(share: &Arc<MemoryShare>, to_client: bool) -> Self {
        let next = share.guard(MemoryKind::Buffer);
        Self { share: share.clone(), unsent: Arc::default(), next, to_client, retry_timer: None }
    }

    /// The number of bytes that are not written yet.
    pub(super) fn unsent(&self) -> Arc<AtomicUsize> {
        self.unsent.clone()
    }

    /// Ready if another piece may be sent.
    pub(crate) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.unsent.load(Ordering::Relaxed) > 0 && !self.next.demand(PIECE) {
            let retry_timer = self.retry_timer.get_or_insert_with(|| Box::pin(sleep(RETRY_PAUSE)));
            ready!(retry_timer.as_mut().poll(cx));
            self.retry_timer = None;
        }
        self.retry_timer = None;
        Poll::Ready(())
    }

    /// The same bytes, holding their memory until they are written.
    pub(crate) fn pass(&mut self, bytes: Bytes) -> Bytes {
        if bytes.is_empty() {
            return bytes;
        }
        let mut held = self.share.guard(MemoryKind::Buffer);
        std::mem::swap(&mut held, &mut self.next);
        // One piece is sent even without memory. A short piece keeps a larger buffer alive.
        let _ = held.hold(bytes.len() + PIECE);
        self.unsent.fetch_add(bytes.len(), Ordering::Relaxed);
        if self.to_client {
            self.share.progress().begin(InFlight::Piece);
        }
        let (share, unsent) = (self.share.clone(), self.unsent.clone());
        Bytes::from_owner(UnsentPiece {
            bytes,
            share,
            unsent,
            to_client: self.to_client,
            _held: held,
        })
    }
}

/// A piece that is not written yet.
struct UnsentPiece {
    bytes: Bytes,
    share: Arc<MemoryShare>,
    unsent: Arc<AtomicUsize>,
    to_client: bool,
    _held: HeldMemory,
}

impl AsRef<[u8]> for UnsentPiece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for UnsentPiece {
    fn drop(&mut self) {
        self.unsent.fetch_sub(self.bytes.len(), Ordering::Relaxed);
        if self.to_client {
            self.share.progress().end(InFlight::Piece);
        }
    }
}
