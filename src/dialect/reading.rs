//! Reading a response as it passes: bytes in, in any cuts, a [`Reply`] at the end.
//!
//! Whatever the cuts, the reply is the same; every strict prefix gives an incomplete reply, never
//! an error (invariant 10). Bounded: past its limit the reading gives up with a note.

use super::{Dialect, Reply};

/// How the bytes of a response body are framed. From `content-type`, else from the first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// `text/event-stream`.
    Events,
    /// One JSON value (or a JSON array streamed element by element, Gemini without `alt=sse`).
    Json,
    /// Not declared: the first bytes tell.
    Unknown,
}

/// One response being read.
pub struct Reading {
    dialect: Dialect,
    reply: Reply,
}

impl Reading {
    /// Starts reading a response. `limit`: most bytes kept for one event or body.
    pub fn new(dialect: Dialect, status: u16, framing: Framing, limit: usize) -> Self {
        let _ = (status, framing, limit);
        Self { dialect, reply: Reply::default() }
    }

    /// The next decoded bytes of the body, cut anywhere.
    pub fn push(&mut self, bytes: &[u8]) {
        let _ = (bytes, self.dialect);
    }

    /// Whether the dialect's terminal event has been seen: a client may leave now.
    pub fn is_complete(&self) -> bool {
        self.reply.complete
    }

    /// The body has ended; `whole` is false where it was cut. Gives what was understood.
    pub fn finish(self, whole: bool) -> Reply {
        let _ = whole;
        self.reply
    }
}
