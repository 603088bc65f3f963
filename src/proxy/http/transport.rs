//! The socket of a connection, client's or upstream's: how much is read from it depends on the memory left.
//!
//! Reads start small and grow as memory is granted. Headers that outgrow a small buffer wait for memory. How
//! much of it hyper holds follows from its rules: headers until they end, and of a body a few reads at most.
//! Must not know the content, except where headers end.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::rt::{Read, ReadBuf, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use tokio::time::{Sleep, sleep};

use super::close::CloseTimer;
use super::interim::InterimAllowance;
use super::memory::{HeldMemory, MemoryShare};
use super::peer_activity::ConnectionFrames;
use crate::telemetry::MemoryKind;
use crate::wire::memory::Memory as _;

/// Most bytes that hyper buffers per connection and direction; its default is 408 KiB. Headers above
/// `limits.header_bytes` must fit, so that the refusal can be our own.
pub(crate) const BUFFER: usize = 128 * 1024;
/// Most header lines of an HTTP/1 message; hyper, Apache and HAProxy take about 100 by default. hyper fills 64
/// bytes for each of them whenever it parses a message: with 4,096 for a request and 8,192 for its response, a
/// small request took 30 to 55 µs more.
pub(crate) const MOST_HEADERS: usize = 256;
/// The memory reserved for a connection: its task, and a small buffer each way.
const OPEN: usize = 16 * 1024;
/// Additional memory for TLS: a record each way, and its state.
const TLS: usize = 40 * 1024;
/// What every connection may read at once, bytes. [`OPEN`] includes it.
const LEAST: usize = 8 * 1024;
/// Most bytes of one read.
const MOST: usize = BUFFER;
/// How many reads are held at once: the current one, the previous one, and one being forwarded.
const READS: usize = 3;
/// Headers are held in a buffer that grows by doubling.
const DOUBLED: usize = 2;
/// How long until memory is requested again.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransportPeer {
    /// A client over HTTP/1: its headers arrive while no exchange is in progress.
    Client,
    /// An upstream over HTTP/1: its headers arrive after a request, and end with an empty line.
    Upstream,
    /// Either one over HTTP/2, where headers have a limit of their own.
    Framed,
}

/// A socket, and the memory of its buffers.
pub(crate) struct MeteredSocket<S> {
    inner: S,
    peer: TransportPeer,
    share: Arc<MemoryShare>,
    /// Bytes that were read before; they are returned first.
    first: Bytes,
    reads: ReadBuffers,
    /// Bytes of headers so far.
    head: usize,
    /// How many bytes of the empty line after headers were seen; if all, the headers have ended.
    ended: usize,
    heads: HeldMemory,
    /// The head of the current message was written.
    has_written_head: bool,
    /// The largest head that was written: hyper keeps its buffer.
    written: usize,
    writes: HeldMemory,
    retry_timer: Option<Pin<Box<Sleep>>>,
    /// The memory reserved for the connection.
    reserved: Option<HeldMemory>,
    /// For an upstream over HTTP/1: whether it had read the request when it closes.
    close: Option<CloseTimer>,
    /// An upstream over HTTP/1 has closed its side: what is written is dropped.
    is_unread: bool,
    /// How many 1xx an upstream may still send.
    interim: InterimAllowance,
    /// For an upstream over HTTP/2: what its frames show.
    activity: Option<ConnectionFrames>,
}

/// Reserves memory for a connection; `None` if there is none.
pub(crate) fn reserve(share: &Arc<MemoryShare>, is_tls: bool) -> Option<HeldMemory> {
    let mut held = share.guard(MemoryKind::Connection);
    held.hold(OPEN + if is_tls { TLS } else { 0 }).then_some(held)
}

/// The memory of a connection's reads, which grow while much arrives.
#[derive(Clone)]
pub(crate) struct ReadBuffers(Arc<Mutex<ReadBuffersState>>);

struct ReadBuffersState {
    /// Most bytes of the next read.
    most: usize,
    held: HeldMemory,
}

impl ReadBuffers {
    fn new(held: HeldMemory) -> Self {
        Self(Arc::new(Mutex::new(ReadBuffersState { most: LEAST, held })))
    }

    /// Gives it back, because the connection is idle.
    pub(crate) fn release(&self) {
        let mut state = self.state();
        if state.most > LEAST {
            state.most = LEAST;
            state.held.hold(0);
        }
    }

    fn most(&self) -> usize {
        self.state().most
    }

    /// Adapts the next read to the length of one.
    fn record(&self, length: usize) {
        let ReadBuffersState { most, held } = &mut *self.state();
        if length >= *most && *most < MOST {
            if held.hold(READS * 2 * *most) {
                *most *= 2;
            }
        } else if length < *most / 2 {
            *most = LEAST.max(*most / 2);
            held.hold(if *most == LEAST { 0 } else { READS * *most });
        }
    }

    fn state(&self) -> MutexGuard<'_, ReadBuffersState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

thread_local! {
    /// A buffer for reads that may not fill the caller's whole buffer.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl<S> MeteredSocket<S> {
    /// A socket from which `first` has already been read.
    pub(crate) fn new(
        inner: S,
        peer: TransportPeer,
        share: &Arc<MemoryShare>,
        first: Bytes,
    ) -> Self {
        let guard = || share.guard(MemoryKind::Buffer);
        Self {
            inner,
            peer,
            share: share.clone(),
            first,
            reads: ReadBuffers::new(guard()),
            head: 0,
            ended: 0,
            heads: guard(),
            has_written_head: false,
            written: 0,
            writes: guard(),
            retry_timer: None,
            reserved: None,
            close: None,
            is_unread: false,
            interim: InterimAllowance::default(),
            activity: None,
        }
    }

    /// The memory of its reads.
    pub(crate) fn read_buffers(&self) -> ReadBuffers {
        self.reads.clone()
    }

    /// How many 1xx its upstream may still send.
    pub(super) fn interim_allowance(&self) -> InterimAllowance {
        self.interim.clone()
    }

    /// Attaches the memory reserved for the connection.
    pub(crate) fn holding(mut self, held: HeldMemory) -> Self {
        self.reserved = Some(held);
        self
    }

    /// Attaches the timer that judges a close.
    pub(super) fn watched(mut self, close: CloseTimer) -> Self {
        self.close = Some(close);
        self
    }

    /// Attaches what sees the frames.
    pub(super) fn counting(mut self, activity: ConnectionFrames) -> Self {
        self.activity = Some(activity);
        self
    }

    /// Whether the next bytes are headers, which are held until they end.
    fn is_in_head(&self) -> bool {
        match self.peer {
            TransportPeer::Client => self.share.progress().is_between_exchanges(),
            TransportPeer::Upstream => self.ended < END.len(),
            TransportPeer::Framed => false,
        }
    }

    /// Ready if there is memory for the next read.
    fn poll_memory(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.is_in_head() {
            if self.head > 0 {
                self.head = 0;
                self.heads.hold(0);
            }
            return Poll::Ready(());
        }
        if self.head == 0 {
            self.reads.release();
        }
        loop {
            let needs = self.head + LEAST;
            if self.head < LEAST || self.heads.demand(DOUBLED * needs) {
                self.retry_timer = None;
                return Poll::Ready(());
            }
            let retry_timer = self.retry_timer.get_or_insert_with(|| Box::pin(sleep(RETRY_PAUSE)));
            ready!(retry_timer.as_mut().poll(cx));
            self.retry_timer = None;
        }
    }

    /// Records bytes that were read.
    fn record_read(&mut self, bytes: &[u8]) {
        let length = bytes.len();
        self.share.progress().record_activity();
        if let Some(close) = &mut self.close {
            close.read();
        }
        if let Some(activity) = &mut self.activity {
            activity.read(bytes);
        }
        if self.is_in_head() {
            self.head += length;
            if self.peer == TransportPeer::Upstream {
                self.ended = end_seen(self.ended, bytes);
            }
        }
        self.reads.record(length);
    }

    /// What a write of `length` bytes comes to. An upstream that closes may have answered before: hyper would drop the
    /// answer if it heard of the failed write first, so it hears of the end when it reads.
    fn written(&mut self, result: io::Result<usize>, length: usize) -> io::Result<usize> {
        match result {
            Err(error) if self.peer == TransportPeer::Upstream && is_closed(&error) => {
                self.is_unread = true;
                Ok(length)
            }
            result => result,
        }
    }

    /// Records a write, of which these are the bytes of its first piece.
    fn record_write(&mut self, first: &[u8], cx: &mut Context<'_>) {
        if let Some(close) = &mut self.close {
            close.wrote(cx);
        }
        if self.peer == TransportPeer::Upstream && self.ended == END.len() {
            (self.ended, self.head, self.has_written_head) = (0, 0, false);
        }
        let is_head = match self.peer {
            TransportPeer::Client => first.starts_with(b"HTTP/1."),
            TransportPeer::Upstream => !std::mem::replace(&mut self.has_written_head, true),
            TransportPeer::Framed => false,
        };
        if is_head && first.len() > self.written.max(LEAST) && self.writes.hold(first.len()) {
            self.written = first.len();
        }
    }
}

/// Whether a write failed because the other side has closed.
fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset)
}

/// The end of headers.
const END: &[u8] = b"\r\n\r\n";

/// How many bytes of [`END`] have been seen after `bytes`, if `seen` were before.
fn end_seen(mut seen: usize, bytes: &[u8]) -> usize {
    for byte in bytes {
        if seen == END.len() {
            break;
        }
        seen = match *byte {
            b'\r' if seen == 2 => 3,
            b'\r' => 1,
            // A single line feed ends a line, too.
            b'\n' if seen == 1 || seen == 3 => seen + 1,
            b'\n' if seen == 2 => END.len(),
            b'\n' => 2,
            _ => 0,
        };
    }
    seen
}

impl<S: Read + Write + Unpin> Read for MeteredSocket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut into: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        this.interim.check()?;
        if !this.first.is_empty() {
            let length = this.first.len().min(into.remaining());
            let first = this.first.split_to(length);
            into.put_slice(&first);
            this.record_read(&first);
            return Poll::Ready(Ok(()));
        }
        if let Some(activity) = &mut this.activity {
            // hyper reads whether or not the ping could be written.
            let _ = activity.poll_ping(&mut this.inner, cx);
        }
        ready!(this.poll_memory(cx));
        SCRATCH.with_borrow_mut(|scratch| {
            let most = this.reads.most().min(into.remaining());
            if scratch.len() < most {
                scratch.resize(most, 0);
            }
            let mut buffer = ReadBuf::new(&mut scratch[..most]);
            let read = Pin::new(&mut this.inner).poll_read(cx, buffer.unfilled());
            if let (Poll::Pending, Some(close)) = (&read, &mut this.close) {
                close.poll(cx);
            }
            ready!(read)?;
            let filled = buffer.filled();
            into.put_slice(filled);
            if !filled.is_empty() {
                this.record_read(filled);
            }
            Poll::Ready(Ok(()))
        })
    }
}

impl<S: Write + Unpin> Write for MeteredSocket<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.is_unread {
            return Poll::Ready(Ok(bytes.len()));
        }
        self.record_write(bytes, cx);
        let this = &mut *self;
        if let Some(activity) = &mut this.activity {
            ready!(activity.poll_ping(&mut this.inner, cx));
        }
        let written = ready!(Pin::new(&mut this.inner).poll_write(cx, bytes));
        if let (Some(activity), Ok(length)) = (&mut this.activity, &written) {
            activity.wrote(&bytes[..*length]);
        }
        self.share.progress().record_activity();
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
        self.record_write(slices.first().map_or(&[], |slice| slice), cx);
        let this = &mut *self;
        if let Some(activity) = &mut this.activity {
            ready!(activity.poll_ping(&mut this.inner, cx));
        }
        let written = ready!(Pin::new(&mut this.inner).poll_write_vectored(cx, slices));
        if let (Some(activity), Ok(length)) = (&mut this.activity, &written) {
            let mut left = *length;
            for slice in slices {
                let (bytes, _) = slice.split_at(left.min(slice.len()));
                activity.wrote(bytes);
                left -= bytes.len();
            }
        }
        self.share.progress().record_activity();
        Poll::Ready(self.written(written, length))
    }
}

impl<S: Connection> Connection for MeteredSocket<S> {
    fn connected(&self) -> Connected {
        self.inner.connected()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_headers_is_found_however_the_bytes_are_split() {
        for (text, ends) in [
            ("HTTP/1.1 200 OK\r\na: b\r\n\r\n", true),
            ("HTTP/1.1 200 OK\n\n", true),
            ("HTTP/1.1 200 OK\r\na: b\r\n", false),
            ("\r\r\n\r\r\n", false),
        ] {
            for cut in 0..text.len() {
                let (one, two) = text.as_bytes().split_at(cut);
                assert_eq!(end_seen(end_seen(0, one), two) == END.len(), ends, "{text:?} at {cut}");
            }
        }
    }
}
