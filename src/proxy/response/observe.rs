//! Observes a response: a decompressed copy of it goes to the dialect's [`ResponseReader`].
//!
//! Runs in-line, bounded, and under `catch_unwind`. At its limit, an invalid encoding or a panic, it stops
//! and gives the reason; the stream is not affected.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use http::HeaderMap;
use http::header::CONTENT_TYPE;

use super::request_body::RequestBody;
use crate::dialect::billing::ServiceTier;
use crate::dialect::reading::{BodyEnd, Framing, ResponseReader};
use crate::dialect::{Dialect, Note, Reply};
use crate::proxy::http::headers;
use crate::proxy::http::memory::{HeldMemory, MemoryBudget};
use crate::proxy::offload::OFF_THREAD;
use crate::store::ledgers::DraftProgress;
use crate::telemetry::{FailOpen, MemoryKind};
use crate::wire::encoding::{DecodeError, Decoder, UnsupportedEncoding};
use crate::wire::memory::Memory as _;

/// Reading the deferred part takes this many times its length in memory.
const TO_READ: usize = 6;
/// The deferred part is decompressed in pieces of this many bytes.
const PIECE: usize = 64 << 10;

/// A response that is read as it passes, and what was read of it once it has ended.
pub(crate) struct ResponseObserver {
    /// `None` once it has ended, or reading has stopped.
    reading: Option<(Box<ResponseReader>, Decoder)>,
    /// The reply, once it has ended; `None` if it could not be read.
    pub(crate) reply: Option<Reply>,
    /// Why reading stopped, if it did.
    pub(super) gave_up: Option<FailOpen>,
    /// A note beyond the reply's own.
    pub(super) note: Option<Note>,
    /// The memory that it holds, also for the reply.
    pub(super) memory: HeldMemory,
    /// Most bytes of it that are held at once.
    limit: usize,
    /// Data to be read at the end, because there is too much to read while it passes.
    later: Option<PendingObservation>,
    pub(super) streamed: bool,
    complete: bool,
    /// Where the progress of the reply is recorded.
    progress: Option<Arc<DraftProgress>>,
    /// The request's body, held until the reply has begun.
    request: Option<Arc<RequestBody>>,
}

/// Data of a response that is not read yet.
#[derive(Default)]
struct PendingObservation {
    /// Decompressed data, which comes before the rest.
    plain: Vec<u8>,
    /// Data as received.
    rest: Vec<u8>,
}

impl PendingObservation {
    fn len(&self) -> usize {
        self.plain.capacity() + self.rest.capacity()
    }
}

impl ResponseObserver {
    /// `limit`: most bytes of it that are held at once.
    pub(crate) fn new(
        dialect: Dialect,
        status: u16,
        headers: &HeaderMap,
        limit: usize,
        memory: &Arc<MemoryBudget>,
    ) -> Self {
        let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let framing = kind.map_or(Framing::Unknown, Framing::from_content_type);
        let codings = headers::codings(headers);
        let mut reading = None;
        let mut gave_up = None;
        match Decoder::new(codings, limit, || memory.boxed(MemoryKind::Reply)) {
            Ok(decoder) => {
                let mut reader = Box::new(ResponseReader::new(dialect, status, framing, limit));
                reader.set_tier(ServiceTier::from_headers(headers));
                reading = Some((reader, decoder));
            }
            Err(UnsupportedEncoding::Unknown) => gave_up = Some(FailOpen::ReplyUnread),
            Err(UnsupportedEncoding::TooMany) => gave_up = Some(FailOpen::TooManyCodings),
        }
        Self {
            reading,
            reply: None,
            gave_up,
            note: gave_up.map(|_| Note::UnknownEncoding),
            memory: memory.guard(MemoryKind::Reply),
            limit,
            later: None,
            streamed: framing == Framing::Events,
            complete: false,
            progress: None,
            request: None,
        }
    }

    pub(crate) fn with_several(mut self, several: bool) -> Self {
        if let Some((reading, _)) = &mut self.reading {
            reading.set_several(several);
        }
        self
    }

    pub(crate) fn with_progress(
        self,
        progress: Arc<DraftProgress>,
        request: Arc<RequestBody>,
    ) -> Self {
        Self { progress: Some(progress), request: Some(request), ..self }
    }

    /// Reads the next bytes as received; returns whether the reply is complete.
    pub(crate) fn observe(&mut self, data: &[u8]) -> bool {
        let Some((reading, decoder)) = &mut self.reading else { return false };
        if let Some(later) = &mut self.later {
            // Once a part waits, what follows waits behind it.
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
                // A large part would keep other streams waiting: it is read at the end, off the async threads.
                let later = match plain.len() > OFF_THREAD {
                    true => Some(PendingObservation {
                        plain: plain.into_owned(),
                        ..PendingObservation::default()
                    }),
                    false => {
                        reading.push(&plain);
                        if let Some(progress) = &self.progress {
                            progress.note(reading);
                        }
                        if reading.content_bytes() > 0
                            && let Some(request) = self.request.take()
                        {
                            request.release();
                        }
                        match reading.unread() > OFF_THREAD {
                            true => Some(PendingObservation::default()),
                            false => None,
                        }
                    }
                };
                let bytes = reading.holds() + later.as_ref().map_or(0, PendingObservation::len);
                (reading.is_complete(), later, bytes)
            })
        }));
        match read {
            Ok(Ok((complete, later, bytes))) if self.memory.hold(bytes) => {
                self.complete = complete;
                self.later = later;
            }
            Ok(Ok(_) | Err(DecodeError::NoMemory)) => self.give_up(FailOpen::MemoryBudget),
            Ok(Err(DecodeError::Broken | DecodeError::TooLong)) => {
                self.give_up(FailOpen::ReplyUnread);
            }
            Err(_) => self.give_up(FailOpen::Panicked),
        }
        self.complete
    }

    pub(super) fn is_finished(&self) -> bool {
        // Only its usage and its end may still come.
        self.reading.as_ref().is_some_and(|(reading, _)| reading.is_finished())
    }

    pub(super) fn is_long(&self) -> bool {
        self.reading.is_some() && self.later.is_some()
    }

    fn give_up(&mut self, why: FailOpen) {
        if let Some(request) = self.request.take() {
            request.release();
        }
        self.reading = None;
        self.gave_up = Some(why);
        self.later = None;
        self.memory.hold(0);
    }

    /// Reads what is left, and makes the reply.
    pub(crate) fn finish(mut self, end: BodyEnd) -> Self {
        if let Some((reading, _)) = &self.reading {
            let later = self.later.as_ref().map_or(0, PendingObservation::len);
            let needs = reading.holds() + reading.needs_to_finish() + TO_READ * later;
            if !self.memory.hold(needs) {
                self.give_up(FailOpen::MemoryBudget);
            }
        }
        let Some((mut reading, mut decoder)) = self.reading.take() else { return self };
        let later = self.later.take();
        let complete = self.complete;
        let finished = catch_unwind(AssertUnwindSafe(|| {
            if let Some(PendingObservation { plain, rest }) = later {
                reading.push(&plain);
                drop(plain);
                // In pieces, so that what they decompress to is not held all at once.
                for piece in rest.chunks(PIECE) {
                    reading.push(&decoder.push(piece).ok()?);
                }
            }
            // A reply that says that it is complete is, however its body ended.
            let is_complete = complete || reading.is_complete();
            let end = if is_complete { BodyEnd::Whole } else { end };
            let streamed = reading.is_stream();
            Some((reading.finish(end), streamed))
        }));
        match finished {
            Ok(Some((reply, streamed))) => {
                self.streamed |= streamed;
                self.reply = Some(reply);
            }
            Ok(None) => self.gave_up = Some(FailOpen::ReplyUnread),
            Err(_) => self.gave_up = Some(FailOpen::Panicked),
        }
        self
    }
}
