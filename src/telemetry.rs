//! Events in, metrics and log lines out: the only file that counts.
//!
//! Logic tells what happened, once per exchange; nothing is emitted per chunk. Labels come from
//! enums and configured names, so cardinality is bounded by types; unknown model names fold into
//! `other` past a limit. No prompt, reply or credential reaches an event (invariant 9).

use serde::Serialize;

use crate::context::{Estimate, Millis, Outcome};
use crate::dialect::models::Family;
use crate::dialect::{Dialect, Note, Purpose, Stop, Usage};

/// Why we stood aside (design §7); a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FailOpen {
    /// The request body is larger than what is analysed.
    BodyTooLarge,
    /// The request body could not be read as its dialect.
    BodyUnread,
    /// Reading or estimating panicked.
    Panicked,
    /// The store did not answer in time, or failed.
    Store,
    /// The response could not be read.
    ReplyUnread,
    /// The turn was not durable when its terminal event left.
    CommitLate,
}

/// Everything that is told of one exchange, at its end.
#[derive(Clone, Debug, Serialize)]
pub struct Exchange {
    /// Its id, unique.
    pub id: Box<str>,
    /// When the request arrived.
    pub at: Millis,
    /// The configured upstream, if the route found one.
    pub upstream: Option<Box<str>>,
    /// The wire protocol, where the path told one.
    pub dialect: Option<Dialect>,
    /// What it was for.
    pub purpose: Option<Purpose>,
    /// HTTP method.
    pub method: Box<str>,
    /// The path without its query (keys can stand there).
    pub path: Box<str>,
    /// The model, as the client named it.
    pub model: Option<Box<str>>,
    /// Its tokenizer.
    pub family: Option<Family>,
    /// Keyed hash of the credential.
    pub tenant: Option<Box<str>>,
    /// The session.
    pub session: Option<Box<str>>,
    /// The thread.
    pub thread: Option<Box<str>>,
    /// The status the client saw; `None` where it saw none.
    pub status: Option<u16>,
    /// How it ended.
    pub outcome: Outcome,
    /// Why the reply ended.
    pub stop: Option<Stop>,
    /// What was predicted.
    pub estimate: Option<Estimate>,
    /// What was reported.
    pub usage: Usage,
    /// The window that was believed, tokens.
    pub window: Option<u64>,
    /// Whether a stream was answered.
    pub streamed: bool,
    /// Bytes of the request body.
    pub request_bytes: u64,
    /// Bytes of the response body.
    pub response_bytes: u64,
    /// Frames of the response body.
    pub frames: u64,
    /// Time spent here before the request was forwarded, µs.
    pub request_side_us: u64,
    /// Time spent here on the response's frames, all together, µs.
    pub response_side_us: u64,
    /// From request to response headers, µs.
    pub headers_us: Option<u64>,
    /// From request to first body byte, µs.
    pub first_byte_us: Option<u64>,
    /// From request to the end, µs.
    pub duration_us: u64,
    /// Where we stood aside.
    pub fail_open: Vec<FailOpen>,
    /// What was strange.
    pub notes: Vec<Note>,
}

impl Exchange {
    /// The input that the estimate predicted, where it can be compared: reported and exact.
    pub fn actual(&self) -> Option<u64> {
        self.usage.input.filter(|_| !self.usage.lower_bound)
    }

    /// `estimate − actual`, tokens.
    pub fn error(&self) -> Option<i64> {
        let estimate = self.estimate.as_ref()?.tokens;
        Some(estimate as i64 - self.actual()? as i64)
    }
}
