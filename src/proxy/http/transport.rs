//! The socket of a connection, client's or upstream's: reads from it are small, unless a large body is being collected.
//!
//! hyper's buffers grow with the reads that fill them, so small reads bound what a connection holds. Must not know the
//! content.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::rt::{Read, ReadBuf, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};

use super::interim::InterimAllowance;
use super::peer_activity::ConnectionFrames;

/// Most bytes that hyper buffers per HTTP/1 connection and direction; its default is 408 KiB. Headers above
/// `limits.header_bytes` must fit, so that the refusal can be our own.
pub(crate) const BUFFER: usize = 64 * 1024;
/// Most header lines of an HTTP/1 message: hyper's default, and that of Apache and HAProxy. For more, hyper allocates and
/// fills 64 bytes for each whenever it parses a message.
pub(crate) const MOST_HEADERS: usize = 100;
/// Most bytes of one read: about a TLS record. A byte less than a power of two, because hyper doubles the buffer of a
/// connection whenever a read fills it.
pub(crate) const READ: usize = 16 * 1024 - 1;
/// The same while a body is being collected: its memory is reserved.
const LARGE_READ: usize = 32 * 1024;

/// How much is read at once from a client's connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReadSize(Arc<AtomicUsize>);

impl ReadSize {
    pub(super) fn large(&self) -> LargeReads {
        self.0.fetch_add(1, Ordering::Relaxed);
        LargeReads(self.0.clone())
    }

    fn bytes(&self) -> usize {
        if self.0.load(Ordering::Relaxed) > 0 { LARGE_READ } else { READ }
    }
}

/// While this lives, reads are large.
pub(super) struct LargeReads(Arc<AtomicUsize>);

impl Drop for LargeReads {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A socket with small reads, and what is to be known of its peer.
pub(crate) struct ConnectionSocket<S> {
    inner: S,
    /// Bytes that were read before; they are returned first.
    first: Bytes,
    reads: ReadSize,
    /// The peer is an upstream over HTTP/1, which may answer and close before it has read the request.
    may_answer_first: bool,
    /// Set whenever bytes are read.
    has_read: Arc<AtomicBool>,
    /// An upstream over HTTP/1 has closed its side: what is written is dropped.
    is_unread: bool,
    /// How many 1xx an upstream may still send.
    interim: InterimAllowance,
    /// For an upstream over HTTP/2: what its frames show.
    activity: Option<ConnectionFrames>,
}

thread_local! {
    /// A buffer for reads that may not fill the caller's whole buffer.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl<S> ConnectionSocket<S> {
    /// A client's socket, from which `first` has already been read.
    pub(crate) fn of_client(inner: S, first: Bytes, reads: ReadSize) -> Self {
        Self { first, reads, ..Self::new(inner) }
    }

    pub(super) fn of_upstream(inner: S, is_http2: bool) -> Self {
        Self { may_answer_first: !is_http2, ..Self::new(inner) }
    }

    fn new(inner: S) -> Self {
        Self {
            inner,
            first: Bytes::new(),
            reads: ReadSize::default(),
            may_answer_first: false,
            has_read: Arc::default(),
            is_unread: false,
            interim: InterimAllowance::default(),
            activity: None,
        }
    }

    pub(super) fn interim_allowance(&self) -> InterimAllowance {
        self.interim.clone()
    }

    pub(super) fn has_read(&self) -> Arc<AtomicBool> {
        self.has_read.clone()
    }

    pub(super) fn counting(mut self, activity: ConnectionFrames) -> Self {
        self.activity = Some(activity);
        self
    }

    fn record_read(&mut self, bytes: &[u8]) {
        self.has_read.store(true, Ordering::Release);
        if let Some(activity) = &mut self.activity {
            activity.read(bytes);
        }
    }

    fn written(&mut self, result: io::Result<usize>, length: usize) -> io::Result<usize> {
        match result {
            // An upstream that closes may have answered before: hyper would drop the answer if it heard of the
            // failed write first, so it hears of the end when it reads.
            Err(error) if self.may_answer_first && is_closed(&error) => {
                self.is_unread = true;
                Ok(length)
            }
            result => result,
        }
    }
}

fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset)
}

impl<S: Read + Write + Unpin> Read for ConnectionSocket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut into: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        this.interim.check()?;
        if !this.first.is_empty() {
            let length = this.first.len().min(into.remaining());
            let opening = this.first.split_to(length);
            into.put_slice(&opening);
            this.record_read(&opening);
            return Poll::Ready(Ok(()));
        }
        if let Some(activity) = &mut this.activity {
            // hyper reads whether or not the ping could be written.
            let _ = activity.poll_ping(&mut this.inner, cx);
        }
        // hyper's own buffer grows with the reads that fill it, so a read never gets all of it.
        SCRATCH.with_borrow_mut(|scratch| {
            let most = this.reads.bytes().min(into.remaining());
            if scratch.len() < most {
                scratch.resize(most, 0);
            }
            let mut buffer = ReadBuf::new(&mut scratch[..most]);
            ready!(Pin::new(&mut this.inner).poll_read(cx, buffer.unfilled()))?;
            let filled = buffer.filled();
            into.put_slice(filled);
            if !filled.is_empty() {
                this.record_read(filled);
            }
            Poll::Ready(Ok(()))
        })
    }
}

impl<S: Write + Unpin> Write for ConnectionSocket<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.is_unread {
            return Poll::Ready(Ok(bytes.len()));
        }
        let this = &mut *self;
        if let Some(activity) = &mut this.activity {
            ready!(activity.poll_ping(&mut this.inner, cx));
        }
        let written = ready!(Pin::new(&mut this.inner).poll_write(cx, bytes));
        if let (Some(activity), Ok(length)) = (&mut this.activity, &written) {
            activity.wrote(&bytes[..*length]);
        }
        Poll::Ready(self.written(written, bytes.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_unread {
            return Poll::Ready(Ok(()));
        }
        let this = &mut *self;
        if let Some(activity) = &mut this.activity {
            ready!(activity.poll_ping(&mut this.inner, cx));
        }
        let flushed = ready!(Pin::new(&mut this.inner).poll_flush(cx));
        Poll::Ready(self.written(flushed.map(|()| 0), 0).map(drop))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let length = slices.iter().map(|slice| slice.len()).sum();
        if self.is_unread {
            return Poll::Ready(Ok(length));
        }
        let this = &mut *self;
        if let Some(activity) = &mut this.activity {
            ready!(activity.poll_ping(&mut this.inner, cx));
        }
        let written = ready!(Pin::new(&mut this.inner).poll_write_vectored(cx, slices));
        if let (Some(activity), Ok(length)) = (&mut this.activity, &written) {
            let mut unseen = *length;
            for slice in slices {
                let (bytes, _) = slice.split_at(unseen.min(slice.len()));
                activity.wrote(bytes);
                unseen -= bytes.len();
            }
        }
        Poll::Ready(self.written(written, length))
    }
}

impl<S: Connection> Connection for ConnectionSocket<S> {
    fn connected(&self) -> Connected {
        self.inner.connected()
    }
}
