//! Responses over WebSocket (`docs/protocols.md` 3.1): many requests and replies on one connection.
//!
//! Text messages go in, conversations and replies come out; `wire::websocket` reads the frames. Requests
//! continue each other by `previous_response_id`, so they are only metered. Nothing here can fail the
//! connection: what is not understood is skipped.

use super::{BodyEnd, Framing, ResponseReader};
use crate::dialect::{Dialect, Reply};
use crate::wire::json::Document;

/// Most requests that wait for their reply; past it, the oldest is dropped.
const MAX_OPEN: usize = 16;

/// Reads requests and replies of one WebSocket connection.
pub struct SocketReader {
    limit: usize,
    open: Vec<OpenRequest>,
    next: u64,
}

/// A request that waits for its reply.
struct OpenRequest {
    number: u64,
    /// Several conversations can share a connection.
    stream_id: Option<Box<str>>,
    reading: ResponseReader,
}

impl SocketReader {
    /// A new connection. `limit`: most bytes that are held of one message.
    pub fn new(limit: usize) -> Self {
        Self { limit, open: Vec::new(), next: 0 }
    }

    /// A message of the client: its number on this connection and what `read` makes of it, if it is a request.
    pub fn request<T>(
        &mut self,
        message: &[u8],
        read: impl FnOnce(&[u8]) -> T,
    ) -> Option<(u64, T)> {
        let (kind, stream_id) = head(message)?;
        if &*kind != "response.create" {
            return None;
        }
        if self.open.len() >= MAX_OPEN {
            // The oldest one never ended, or its end was not understood.
            self.open.remove(0);
        }
        let number = self.next;
        self.next += 1;
        let reading =
            ResponseReader::new(Dialect::OpenaiResponses, 200, Framing::Events, self.limit);
        self.open.push(OpenRequest { number, stream_id, reading });
        Some((number, read(message)))
    }

    /// Reads a message of the server: if it ends a reply, the number of its request, and the reply.
    pub fn event(&mut self, message: &[u8]) -> Option<(u64, Reply)> {
        let (_, stream_id) = head(message)?;
        let position = self.open.iter().position(|open| open.stream_id == stream_id)?;
        self.open[position].reading.message(message);
        if !self.open[position].reading.is_complete() {
            return None;
        }
        let open = self.open.remove(position);
        Some((open.number, open.reading.finish(BodyEnd::Whole)))
    }

    /// The memory of its open replies, bytes, roughly.
    pub fn holds(&self) -> usize {
        self.open.iter().map(|open| open.reading.holds()).sum()
    }

    /// Called at the end of the connection: the open replies, as far as they were received.
    pub fn finish(self) -> Vec<(u64, Reply)> {
        self.open.into_iter().map(|open| (open.number, open.reading.finish(BodyEnd::Cut))).collect()
    }
}

fn head(message: &[u8]) -> Option<(Box<str>, Option<Box<str>>)> {
    let document = Document::read(message).ok()?;
    let root = document.root(message)?;
    Some((root.get_text("type")?.into(), root.get_text("stream_id").map(Into::into)))
}
