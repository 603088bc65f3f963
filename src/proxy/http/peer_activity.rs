//! Whether an HTTP/2 upstream is still there, and how many interim responses its frames bring.
//!
//! hyper pings by a timer only; so that no request is sent on a dead connection, a ping is
//! written here, between two of its frames. h2 ignores the answer to a ping that is not its own. Must not know
//! what the frames contain.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use hyper::rt::Write;
use tokio::sync::Notify;

use super::interim::InterimAllowance;
use crate::clock::since_boot;

/// The length of a frame's head (RFC 9113, 4.1).
const HEAD: usize = 9;
/// What a client sends before its first frame (RFC 9113, 3.4), bytes.
const PREFACE: usize = 24;
/// The type of the frame with which a response begins (RFC 9113, 6.2).
const HEADERS: u8 = 1;
/// Whether a frame of headers is the last of its stream (RFC 9113, 6.2).
const END_STREAM: u8 = 1;
/// A ping (RFC 9113, 6.7).
const PING: &[u8] = b"\0\0\x08\x06\0\0\0\0\0plimsoll";
/// How long a sign of life counts.
const FRESH: Duration = Duration::from_secs(5);

/// What the frames of one connection show of its peer.
#[derive(Clone, Debug, Default)]
pub(super) struct PeerActivity(Arc<SeenFrames>);

#[derive(Debug, Default)]
struct SeenFrames {
    /// When a byte last came, ms since the machine started.
    last_heard: AtomicU64,
    /// Notified when a byte comes.
    heard: Notify,
    /// A ping is to be written.
    ping_wanted: AtomicBool,
    /// Wakes the connection, so that it writes the ping.
    connection: AtomicWaker,
}

impl PeerActivity {
    pub(super) fn is_silent(&self) -> bool {
        let last_heard = Duration::from_millis(self.0.last_heard.load(Ordering::Relaxed));
        since_boot().saturating_sub(last_heard) >= FRESH
    }

    /// Waits until it could be silent, and then whether it is there ([`Self::is_alive`]).
    pub(super) async fn is_alive_after_silence(&self, timeout: Duration) -> bool {
        tokio::time::sleep(FRESH).await;
        self.is_alive(timeout).await
    }

    /// Whether it is there: it was heard of just now, or answers a ping within `timeout`.
    pub(super) async fn is_alive(&self, timeout: Duration) -> bool {
        if !self.is_silent() {
            return true;
        }
        let mut heard = std::pin::pin!(self.0.heard.notified());
        // Enabled first, so that an answer that comes at once is seen.
        heard.as_mut().enable();
        self.0.ping_wanted.store(true, Ordering::Release);
        self.0.connection.wake();
        tokio::time::timeout(timeout, heard).await.is_ok()
    }

    pub(super) fn connection(&self, interim: InterimAllowance) -> ConnectionFrames {
        let activity = self.clone();
        // A connection that was just opened needs no ping.
        activity.heard();
        let written = FrameCutter { left: PREFACE, ..FrameCutter::default() };
        ConnectionFrames { activity, read: FrameCutter::default(), written, ping: &[], interim }
    }

    fn heard(&self) {
        self.0.last_heard.store(since_boot().as_millis() as u64, Ordering::Relaxed);
        self.0.heard.notify_waiters();
    }
}

/// The connection's side of a [`PeerActivity`].
pub(super) struct ConnectionFrames {
    activity: PeerActivity,
    read: FrameCutter,
    written: FrameCutter,
    /// The part of a ping that is not written yet.
    ping: &'static [u8],
    /// How many 1xx the peer may still send. Final responses count, too: a frame does not show which it is.
    interim: InterimAllowance,
}

impl ConnectionFrames {
    /// Called with all bytes that are read, in order.
    pub(super) fn read(&mut self, bytes: &[u8]) {
        self.read.advance(bytes, |kind, flags| {
            // Trailers end the stream.
            if kind == HEADERS && flags & END_STREAM == 0 {
                self.interim.use_one();
            }
        });
        self.activity.heard();
    }

    /// Called with all bytes that were written, in order.
    pub(super) fn wrote(&mut self, bytes: &[u8]) {
        self.written.advance(bytes, |kind, _| {
            if kind == HEADERS {
                self.interim.add_request(1);
            }
        });
    }

    pub(super) fn poll_ping<S: Write + Unpin>(
        &mut self,
        to: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        let SeenFrames { ping_wanted, connection, .. } = &*self.activity.0;
        connection.register(cx.waker());
        // Within a frame of hyper's, the ping would be taken for its payload.
        if self.written.is_between_frames() && ping_wanted.swap(false, Ordering::AcqRel) {
            self.ping = PING;
        }
        let has_ping = !self.ping.is_empty();
        while !self.ping.is_empty() {
            // What is wrong with the connection, hyper learns from its own reads and writes.
            match ready!(Pin::new(&mut *to).poll_write(cx, self.ping)) {
                Ok(written @ 1..) => self.ping = &self.ping[written..],
                Ok(0) | Err(_) => self.ping = &[],
            }
        }
        if has_ping {
            let _ = Pin::new(to).poll_flush(cx);
        }
        Poll::Ready(())
    }
}

/// Finds the frames in a stream of bytes.
#[derive(Default)]
struct FrameCutter {
    /// The head of the next frame, as far as it came.
    head: [u8; HEAD],
    filled: usize,
    /// How many bytes of the current frame are to come.
    left: usize,
}

impl FrameCutter {
    fn is_between_frames(&self) -> bool {
        self.left == 0 && self.filled == 0
    }

    /// Called with all bytes, in order; calls `found` with type and flags of each frame that begins.
    fn advance(&mut self, mut bytes: &[u8], mut found: impl FnMut(u8, u8)) {
        while !bytes.is_empty() {
            let (payload, rest) = bytes.split_at(self.left.min(bytes.len()));
            self.left -= payload.len();
            let (head, rest) = rest.split_at((HEAD - self.filled).min(rest.len()));
            self.head[self.filled..self.filled + head.len()].copy_from_slice(head);
            self.filled += head.len();
            bytes = rest;
            if self.filled == HEAD {
                let [high, middle, low, kind, flags, ..] = self.head;
                self.left = u32::from_be_bytes([0, high, middle, low]) as usize;
                self.filled = 0;
                found(kind, flags);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        [&[0, 0, payload.len() as u8, kind, 0, 0, 0, 0, stream], payload].concat()
    }

    /// What looks like a frame inside another one is none.
    #[test]
    fn frames_are_found_in_any_split() {
        let ping = frame(6, 0, &frame(HEADERS, 1, &[]));
        let bytes =
            [frame(4, 0, &[]), ping, frame(HEADERS, 1, &[0x88]), frame(7, 0, &[0; 8])].concat();
        for cut in 0..bytes.len() {
            let mut frames = FrameCutter::default();
            let mut kinds = Vec::new();
            let (one, two) = bytes.split_at(cut);
            frames.advance(one, |kind, _| kinds.push(kind));
            frames.advance(two, |kind, _| kinds.push(kind));
            assert_eq!(kinds, [4, 6, HEADERS, 7], "cut at {cut}");
        }
    }
}
