//! Reading along: a decoded copy of what passes goes to the dialect's [`Reading`].
//!
//! In-line, bounded, under `catch_unwind`: past its limit, at a broken encoding or a panic the
//! reading gives up and says why; the stream does not notice.

use std::panic::{AssertUnwindSafe, catch_unwind};

use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderName};

use crate::dialect::reading::{Framing, Reading};
use crate::dialect::{Dialect, Note, Reply};
use crate::telemetry::FailOpen;
use crate::wire::encoding::Decoder;

/// One response being read as it passes.
pub(crate) struct Observation {
    state: State,
    streamed: bool,
    complete: bool,
}

enum State {
    Reading(Box<Reading>, Decoder),
    GaveUp(FailOpen, Option<Note>),
}

/// What an observation found out.
pub(crate) struct Observed {
    /// The reply; `None` where nothing can be said of it.
    pub(crate) reply: Option<Reply>,
    /// Whether it was a stream.
    pub(crate) streamed: bool,
    /// Why the reading gave up, if it did.
    pub(crate) gave_up: Option<FailOpen>,
    /// What was strange beyond the reply's own notes.
    pub(crate) note: Option<Note>,
}

impl Observation {
    /// Starts reading a response of `dialect`. `limit`: most bytes kept of it at once.
    pub(crate) fn new(dialect: Dialect, status: u16, headers: &HeaderMap, limit: usize) -> Self {
        let framing = value(headers, CONTENT_TYPE).map_or(Framing::Unknown, Framing::of);
        let encoding = value(headers, CONTENT_ENCODING).unwrap_or_default();
        let state = match Decoder::new(encoding, limit) {
            Some(decoder) => {
                State::Reading(Box::new(Reading::new(dialect, status, framing, limit)), decoder)
            }
            None => State::GaveUp(FailOpen::ReplyUnread, Some(Note::UnknownEncoding)),
        };
        Self { state, streamed: framing == Framing::Events, complete: false }
    }

    /// The next bytes as they came; answers whether the reply is complete with them.
    pub(crate) fn saw(&mut self, data: &[u8]) -> bool {
        let State::Reading(reading, decoder) = &mut self.state else { return false };
        let read = catch_unwind(AssertUnwindSafe(|| {
            decoder.push(data).map(|plain| {
                reading.push(&plain);
                reading.is_complete()
            })
        }));
        match read {
            Ok(Ok(complete)) => self.complete = complete,
            Ok(Err(_)) => self.state = State::GaveUp(FailOpen::ReplyUnread, None),
            Err(_) => self.state = State::GaveUp(FailOpen::Panicked, None),
        }
        self.complete
    }

    /// The body has ended; `whole` is false where it was cut.
    pub(crate) fn finish(self, whole: bool) -> Observed {
        let mut observed =
            Observed { reply: None, streamed: self.streamed, gave_up: None, note: None };
        match self.state {
            State::Reading(reading, _) => {
                let whole = whole || self.complete;
                let finished = catch_unwind(AssertUnwindSafe(|| {
                    let streamed = reading.is_stream();
                    (reading.finish(whole), streamed)
                }));
                match finished {
                    Ok((reply, streamed)) => {
                        observed.streamed |= streamed;
                        observed.reply = Some(reply);
                    }
                    Err(_) => observed.gave_up = Some(FailOpen::Panicked),
                }
            }
            State::GaveUp(why, note) => {
                observed.gave_up = Some(why);
                observed.note = note;
            }
        }
        observed
    }
}

fn value(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}
