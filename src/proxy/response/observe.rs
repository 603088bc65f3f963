//! Reading along: a decoded copy of what passes goes to the dialect's [`ResponseReader`].
//!
//! In-line, bounded, under `catch_unwind`: past its limit, at a broken encoding or a panic the
//! reading gives up and says why; the stream does not notice.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use http::HeaderMap;
use http::header::CONTENT_TYPE;

use super::request_body::RequestBody;
use crate::dialect::reading::{Framing, ResponseReader};
use crate::dialect::{Dialect, Note, Reply};
use crate::proxy::http::headers;
use crate::proxy::http::memory::{HeldMemory, MemoryShare};
use crate::proxy::offload::OFF_THREAD;
use crate::store::ledgers::DraftProgress;
use crate::telemetry::{FailOpen, MemoryKind};
use crate::wire::encoding::{DecodeError, Decoder, UnsupportedEncoding};
use crate::wire::memory::Memory as _;

/// How much reading what was left for the end takes, in its lengths.
const TO_READ: usize = 6;
/// It is decoded in pieces of so many bytes.
const PIECE: usize = 64 << 10;

/// One response being read as it passes.
pub(crate) struct ResponseObserver {
    state: ObserverState,
    /// What is held of it.
    memory: HeldMemory,
    /// Most bytes kept of it at once.
    limit: usize,
    /// What is read at its end, because it is too much to be read while it passes.
    later: Option<PendingObservation>,
    streamed: bool,
    complete: bool,
    /// Where is noted how far the reply is.
    latest: Option<Arc<DraftProgress>>,
    /// What stays of its request until it has begun to speak.
    request: Option<Arc<RequestBody>>,
}

/// What came of a response, and is not read yet.
#[derive(Default)]
struct PendingObservation {
    /// Decoded already; it stands before the rest.
    plain: Vec<u8>,
    /// As it came.
    rest: Vec<u8>,
}

impl PendingObservation {
    fn len(&self) -> usize {
        self.plain.capacity() + self.rest.capacity()
    }
}

enum ObserverState {
    Reading(Box<ResponseReader>, Decoder),
    GaveUp(FailOpen, Option<Note>),
}

/// What an observation found out.
pub(crate) struct ObservedReply {
    /// The reply; `None` where nothing can be said of it.
    pub(crate) reply: Option<Reply>,
    /// Whether it was a stream.
    pub(crate) streamed: bool,
    /// Why the reading gave up, if it did.
    pub(crate) gave_up: Option<FailOpen>,
    /// What was strange beyond the reply's own notes.
    pub(crate) note: Option<Note>,
    /// What the reply takes, to be held as long as it.
    pub(crate) memory: HeldMemory,
}

impl ResponseObserver {
    /// Starts reading a response of `dialect`. `limit`: most bytes kept of it at once.
    pub(crate) fn new(
        dialect: Dialect,
        status: u16,
        headers: &HeaderMap,
        limit: usize,
        memory: &Arc<MemoryShare>,
    ) -> Self {
        let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let framing = kind.map_or(Framing::Unknown, Framing::of);
        let codings = headers::codings(headers);
        let state = match Decoder::new(codings, limit, || memory.boxed(MemoryKind::Reply)) {
            Ok(decoder) => ObserverState::Reading(
                Box::new(ResponseReader::new(dialect, status, framing, limit)),
                decoder,
            ),
            Err(UnsupportedEncoding::Unknown) => {
                ObserverState::GaveUp(FailOpen::ReplyUnread, Some(Note::UnknownEncoding))
            }
            Err(UnsupportedEncoding::TooMany) => {
                ObserverState::GaveUp(FailOpen::TooManyCodings, Some(Note::UnknownEncoding))
            }
        };
        let memory = memory.guard(MemoryKind::Reply);
        let streamed = framing == Framing::Events;
        Self {
            state,
            memory,
            limit,
            later: None,
            streamed,
            complete: false,
            latest: None,
            request: None,
        }
    }

    /// The same, noting how far the reply is where somebody wants to know, and letting go of its request.
    pub(crate) fn noting(self, progress: Option<(Arc<DraftProgress>, Arc<RequestBody>)>) -> Self {
        let (latest, request) = progress.unzip();
        Self { latest, request, ..self }
    }

    /// The next bytes as they came; answers whether the reply is complete with them. Once a large part of it
    /// would have to be read at once, the rest is read at its end.
    pub(crate) fn saw(&mut self, data: &[u8]) -> bool {
        let ObserverState::Reading(reading, decoder) = &mut self.state else { return false };
        if let Some(later) = &mut self.later {
            later.rest.extend_from_slice(data);
            if later.rest.len() > self.limit {
                self.give_up(FailOpen::ReplyUnread);
            } else if !self.memory.hold(reading.holds() + later.len()) {
                self.give_up(FailOpen::MemoryBudget);
            }
            return false;
        }
        let read = catch_unwind(AssertUnwindSafe(|| {
            decoder.push(data).map(|plain| {
                let later = match plain.len() > OFF_THREAD {
                    true => Some(PendingObservation {
                        plain: plain.into_owned(),
                        ..PendingObservation::default()
                    }),
                    false => {
                        reading.push(&plain);
                        if let Some(latest) = &self.latest {
                            latest.note(reading);
                        }
                        if reading.said_bytes() > 0
                            && let Some(request) = self.request.take()
                        {
                            request.release();
                        }
                        (reading.unread() > OFF_THREAD).then(PendingObservation::default)
                    }
                };
                let bytes = reading.holds() + later.as_ref().map_or(0, PendingObservation::len);
                (reading.is_complete(), later, bytes)
            })
        }));
        match read {
            Ok(Ok((complete, later, bytes))) if self.memory.hold(bytes) => {
                (self.complete, self.later) = (complete, later);
            }
            Ok(Ok(_) | Err(DecodeError::NoMemory)) => self.give_up(FailOpen::MemoryBudget),
            Ok(Err(DecodeError::Broken | DecodeError::TooLong)) => {
                self.give_up(FailOpen::ReplyUnread);
            }
            Err(_) => self.give_up(FailOpen::Panicked),
        }
        self.complete
    }

    /// Whether reading what is left takes long.
    pub(crate) fn is_long(&self) -> bool {
        matches!(self.state, ObserverState::Reading(..)) && self.later.is_some()
    }

    fn give_up(&mut self, why: FailOpen) {
        if let Some(request) = self.request.take() {
            request.release();
        }
        self.state = ObserverState::GaveUp(why, None);
        self.later = None;
        self.memory.hold(0);
    }

    /// The body has ended; `whole` is false where it was cut.
    pub(crate) fn finish(mut self, whole: bool) -> ObservedReply {
        if let ObserverState::Reading(reading, _) = &self.state {
            let later = self.later.as_ref().map_or(0, PendingObservation::len);
            let needs = reading.holds() + reading.needs_to_finish() + TO_READ * later;
            if !self.memory.hold(needs) {
                self.give_up(FailOpen::MemoryBudget);
            }
        }
        let Self { state, memory, later, streamed, complete, .. } = self;
        let mut observed =
            ObservedReply { reply: None, streamed, gave_up: None, note: None, memory };
        match state {
            ObserverState::Reading(mut reading, mut decoder) => {
                let finished = catch_unwind(AssertUnwindSafe(|| {
                    if let Some(PendingObservation { plain, rest }) = later {
                        reading.push(&plain);
                        drop(plain);
                        for piece in rest.chunks(PIECE) {
                            reading.push(&decoder.push(piece).ok()?);
                        }
                    }
                    let whole = whole || complete || reading.is_complete();
                    let streamed = reading.is_stream();
                    Some((reading.finish(whole), streamed))
                }));
                match finished {
                    Ok(Some((reply, streamed))) => {
                        observed.streamed |= streamed;
                        observed.reply = Some(reply);
                    }
                    Ok(None) => observed.gave_up = Some(FailOpen::ReplyUnread),
                    Err(_) => observed.gave_up = Some(FailOpen::Panicked),
                }
            }
            ObserverState::GaveUp(why, note) => {
                observed.gave_up = Some(why);
                observed.note = note;
            }
        }
        observed
    }
}
