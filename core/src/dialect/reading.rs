//! Reads a response as it passes: bytes go in, cut anywhere, and a [`Reply`] comes out at the end.
//!
//! The reply does not depend on the cuts; every strict prefix gives an incomplete reply, never an error
//! (invariant 10). Bounded: at its limit, reading stops with a note. Knows framing; each dialect knows the
//! meaning of its events.

mod socket;

pub use socket::SocketReader;

use super::billing::ServiceTier;
use super::error_kind::ErrorKind;
use super::note::note_once;
use super::provider_error::error_in;
use super::{
    CountLimit, Dialect, Note, Reply, ReplyProgress, StopReason, UsageSpelling, anthropic, gemini,
    openai_chat, openai_responses,
};

#[cfg(any(test, fuzzing))]
use crate::wire::cuts::InputCuts;
use crate::wire::json::{Document, Nesting, Value};
use crate::wire::sse::{Framer, SseEvent};
use crate::wire::steps;

/// How the bytes of a response body are framed. The first bytes decide; `content-type` only says what to
/// expect, because servers use all kinds of types for JSON and for streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// `text/event-stream`, unless the body begins as JSON or HTML, as errors often do.
    Events,
    /// One JSON value (or a JSON array streamed element by element, Gemini without `alt=sse`).
    Json,
    /// Not declared: the first bytes decide.
    Unknown,
}

impl Framing {
    /// The framing for a `content-type` value.
    pub fn from_content_type(content_type: &str) -> Self {
        let essence = content_type.split(';').next().unwrap_or_default().trim();
        if essence.eq_ignore_ascii_case("text/event-stream") {
            Framing::Events
        } else {
            Framing::Unknown
        }
    }
}

/// How the body of a response ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyEnd {
    /// It came to its end.
    Whole,
    /// It broke off.
    Cut,
}

impl BodyEnd {
    /// The end of a body that came to its end, or did not.
    pub fn new(is_whole: bool) -> Self {
        if is_whole { BodyEnd::Whole } else { BodyEnd::Cut }
    }
}

const BOM: &[u8] = b"\xef\xbb\xbf";

/// A response that is being read.
pub struct ResponseReader {
    framing: Framing,
    /// The first bytes have confirmed or corrected the framing.
    settled: bool,
    status: u16,
    limit: usize,
    framer: Framer,
    /// A JSON body so far, or the first bytes while the framing is unknown.
    body: Vec<u8>,
    /// How many of the first bytes are a BOM or white space.
    blank: usize,
    elements: ArrayElements,
    document: Document,
    builder: ReplyBuilder,
}

/// The result of the events so far: the dialect's state, and the reply.
struct ReplyBuilder {
    stream: DialectStream,
    reply: Reply,
    /// Bytes of text, reasoning and arguments so far.
    content_bytes: usize,
    /// Whether there was any event.
    any: bool,
    /// `[DONE]` was seen: nothing more comes, whatever did.
    done: bool,
    /// Reading stopped at its limit. (A dialect that only drops text continues.)
    gave_up: bool,
    /// The tier that the response's headers say.
    tier: Option<ServiceTier>,
}

enum DialectStream {
    Anthropic(Box<anthropic::ReplyStream>),
    OpenaiChat(Box<openai_chat::ReplyStream>),
    OpenaiResponses(openai_responses::ReplyStream),
    Gemini(gemini::ReplyStream),
}

/// The content of the last frame in the OpenAI dialects.
const DONE: &[u8] = b"[DONE]";

impl ResponseReader {
    /// Starts reading a response. `limit`: most bytes held of one event or body.
    pub fn new(dialect: Dialect, status: u16, framing: Framing, limit: usize) -> Self {
        let stream = match dialect {
            Dialect::Anthropic => DialectStream::Anthropic(Box::default()),
            Dialect::OpenaiChat => DialectStream::OpenaiChat(Box::default()),
            Dialect::OpenaiResponses => {
                DialectStream::OpenaiResponses(openai_responses::ReplyStream::default())
            }
            Dialect::Gemini => DialectStream::Gemini(gemini::ReplyStream::default()),
        };
        Self {
            framing,
            settled: framing == Framing::Json,
            status,
            limit,
            framer: Framer::new(limit),
            body: Vec::new(),
            blank: 0,
            elements: ArrayElements::default(),
            document: Document::default(),
            builder: ReplyBuilder {
                stream,
                reply: Reply::default(),
                content_bytes: 0,
                any: false,
                done: false,
                gave_up: false,
                tier: None,
            },
        }
    }

    /// Sets the tier that the response's headers say: it counts if the reply itself names none.
    pub fn set_tier(&mut self, tier: Option<ServiceTier>) {
        self.builder.tier = tier;
    }

    /// Sets whether its request asks for several replies, one in each choice.
    pub fn set_several(&mut self, several: bool) {
        match &mut self.builder.stream {
            DialectStream::OpenaiChat(stream) => stream.several = several,
            DialectStream::Gemini(stream) => stream.several = several,
            DialectStream::Anthropic(_) | DialectStream::OpenaiResponses(_) => {}
        }
    }

    /// Reads the next decompressed bytes of the body, cut anywhere.
    pub fn push(&mut self, bytes: &[u8]) {
        if !self.settled {
            return self.settle(bytes);
        }
        match self.framing {
            Framing::Events => {
                let builder = &mut self.builder;
                let document = &mut self.document;
                self.framer.push(bytes, |event| builder.event(event, document));
                if self.framer.gave_up() {
                    builder.give_up();
                }
            }
            Framing::Json | Framing::Unknown => self.push_json(bytes),
        }
    }

    fn settle(&mut self, bytes: &[u8]) {
        // Holds the first bytes until one of them decides the framing. White space as keep-alive
        // and a BOM may come first.
        self.body.extend_from_slice(bytes);
        if BOM.starts_with(&self.body) {
            return;
        }
        let begins = if self.body.starts_with(BOM) { BOM.len() } else { 0 };
        self.blank = self.blank.max(begins);
        let blank = self.body[self.blank..].iter().take_while(|byte| byte.is_ascii_whitespace());
        let blank = blank.count();
        steps::count(blank);
        self.blank += blank;
        self.framing = match self.body.get(self.blank) {
            None if self.body.len() <= self.limit => return,
            Some(b'{' | b'[' | b'<') => Framing::Json,
            None | Some(_) => Framing::Events,
        };
        self.settled = true;
        if self.framing == Framing::Json {
            self.body.drain(..begins);
            return self.take_elements();
        }
        let body = std::mem::take(&mut self.body);
        self.push(&body);
    }

    fn message(&mut self, data: &[u8]) {
        let event = SseEvent { name: "", data, start: 0, end: 0 };
        self.builder.event(event, &mut self.document);
    }

    /// Its memory, bytes, roughly: unfinished events, a body that is not a stream, and what was kept.
    pub fn holds(&self) -> usize {
        let waiting = self.framer.holds() + self.body.capacity() + self.document.bytes();
        // If parts have little text, they take more memory than the data that they are made from.
        waiting + 3 * self.builder.kept()
    }

    /// Bytes received but not parsed yet, of an unfinished event or body. They are parsed at once at its end.
    pub fn unread(&self) -> usize {
        self.framer.holds() + self.body.len()
    }

    /// Additional memory for [`ResponseReader::finish`], bytes: for a body that is not a stream, which is
    /// parsed as a whole.
    pub fn needs_to_finish(&self) -> usize {
        6 * self.body.len()
    }

    /// Whether the dialect's terminal event was seen, after which a client may leave.
    pub fn is_complete(&self) -> bool {
        self.builder.reply.complete || self.builder.done
    }

    /// Whether the reply says why it stopped: what may still come is usage.
    pub fn is_finished(&self) -> bool {
        self.is_complete() || self.builder.reply.stop.is_some()
    }

    /// What has come of the reply so far.
    pub fn progress(&self) -> ReplyProgress {
        let reply = &self.builder.reply;
        let mut usage = match &self.builder.stream {
            DialectStream::Anthropic(stream) => stream.usage_so_far(),
            DialectStream::OpenaiChat(stream) => stream.usage_so_far(reply),
            DialectStream::OpenaiResponses(stream) => stream.usage_so_far(reply),
            DialectStream::Gemini(stream) => stream.usage_so_far(reply),
        };
        usage.forget_impossible(CountLimit::ANY);
        ReplyProgress { id: reply.id.clone(), usage, content_bytes: self.content_bytes() }
    }

    /// Bytes of text, reasoning and arguments so far.
    pub fn content_bytes(&self) -> usize {
        self.builder.content_bytes
    }

    /// Whether the response is a stream of events, as far as is known.
    pub fn is_stream(&self) -> bool {
        self.framing == Framing::Events || self.elements.started
    }

    /// Called at the end of the body. Returns what was understood.
    pub fn finish(mut self, end: BodyEnd) -> Reply {
        let is_whole = end == BodyEnd::Whole;
        let builder = &mut self.builder;
        let document = &mut self.document;
        let gave_up = builder.gave_up;
        if self.framing == Framing::Events && self.settled {
            if is_whole {
                self.framer.finish(|event| builder.last_event(event, document));
                if !builder.any && !gave_up {
                    builder.note(Note::NotJson); // plain text, or only comments
                }
            }
        } else if !self.elements.started {
            match document.reread(&self.body).ok().and_then(|()| document.root(&self.body)) {
                Some(value) => builder.body(value, self.status),
                None if is_whole && !gave_up && !self.body.is_empty() => {
                    builder.note(Note::NotJson);
                }
                None => {}
            }
        }
        builder.finish(is_whole);
        let billing = &mut builder.reply.usage.billing;
        if let Some(tier) = builder.tier
            && billing.tier == ServiceTier::Standard
        {
            billing.tier = tier;
        }
        // An error has no end of its own: it is complete if its body is.
        if self.status >= 400 {
            builder.reply.complete = is_whole;
        } else {
            builder.failed();
        }
        self.builder.reply
    }

    fn push_json(&mut self, bytes: &[u8]) {
        if self.builder.gave_up {
            return;
        }
        self.body.extend_from_slice(bytes);
        self.take_elements();
    }

    fn take_elements(&mut self) {
        let builder = &mut self.builder;
        let document = &mut self.document;
        let limit = self.limit;
        let status = self.status;
        self.elements.take(&mut self.body, |element, consumed| {
            if consumed > limit || builder.gave_up {
                return builder.give_up();
            }
            match document.reread(element).ok().and_then(|()| document.root(element)) {
                Some(value) if status >= 400 => builder.body(value, status),
                Some(value) => builder.value("", value),
                None => builder.note(Note::BrokenEvent),
            }
        });
        // An unfinished element that fills the limit exceeds it.
        if self.body.len() > limit - usize::from(self.elements.started).min(limit) {
            self.body = Vec::new();
            builder.give_up();
        }
    }
}

impl ReplyBuilder {
    /// Bytes of the stream that something was kept from.
    fn kept(&self) -> usize {
        match &self.stream {
            DialectStream::Anthropic(stream) => stream.kept.bytes(),
            DialectStream::OpenaiChat(stream) => stream.kept.bytes(),
            DialectStream::OpenaiResponses(stream) => stream.kept.bytes(),
            DialectStream::Gemini(stream) => stream.kept.bytes(),
        }
    }

    fn event(&mut self, event: SseEvent<'_>, document: &mut Document) {
        self.any = true;
        let data = event.data.trim_ascii();
        if data == DONE {
            return self.done();
        }
        match document.reread(data).ok().and_then(|()| document.root(data)) {
            Some(value) => self.value(event.name, value),
            None => self.note(Note::BrokenEvent),
        }
    }

    fn last_event(&mut self, event: SseEvent<'_>, document: &mut Document) {
        // A client that leaves in the middle of `[DONE]` has the whole reply.
        if DONE.starts_with(event.data.trim_ascii()) && event.data.trim_ascii() != DONE {
            self.any = true;
            return;
        }
        self.event(event, document);
    }

    fn value(&mut self, name: &str, value: Value<'_>) {
        let reply = &mut self.reply;
        match &mut self.stream {
            DialectStream::Anthropic(stream) => stream.event(name, value, reply),
            DialectStream::OpenaiChat(stream) => stream.event(name, value, reply),
            DialectStream::OpenaiResponses(stream) => stream.event(name, value, reply),
            DialectStream::Gemini(stream) => stream.event(name, value, reply),
        }
        self.content_bytes = match &self.stream {
            DialectStream::Anthropic(stream) => stream.content_bytes(),
            DialectStream::OpenaiChat(stream) => stream.content_bytes(),
            DialectStream::OpenaiResponses(stream) => stream.content_bytes(),
            DialectStream::Gemini(stream) => stream.content_bytes(),
        };
    }

    fn body(&mut self, value: Value<'_>, status: u16) {
        if status >= 400 {
            self.reply.error = Some(error_in(value));
            return;
        }
        let reply = &mut self.reply;
        match &mut self.stream {
            DialectStream::Anthropic(stream) => stream.body(value, reply),
            DialectStream::OpenaiChat(stream) => stream.body(value, reply),
            DialectStream::OpenaiResponses(stream) => stream.body(value, reply),
            DialectStream::Gemini(stream) => stream.body(value, reply),
        }
    }

    fn done(&mut self) {
        // The last frame of the OpenAI dialects; APIs of other dialects send it, too. It ends the
        // stream, and does not say that the reply is whole.
        self.done = true;
    }

    fn finish(&mut self, whole: bool) {
        let done = self.done;
        let reply = &mut self.reply;
        // What follows the last frame is not missed.
        let is_whole = whole || done;
        match &mut self.stream {
            DialectStream::Anthropic(stream) => stream.finish(is_whole, reply),
            DialectStream::OpenaiChat(stream) => stream.finish(is_whole, done, reply),
            DialectStream::OpenaiResponses(stream) => stream.finish(reply),
            DialectStream::Gemini(stream) => stream.finish(is_whole, reply),
        }
        reply.find_variants();
        if reply.usage.forget_impossible(CountLimit::ANY) {
            note_once(&mut reply.notes, Note::ImpossibleCount);
        }
    }

    fn failed(&mut self) {
        // An error inside a success ended the reply, in any dialect.
        let Reply { error, stop, .. } = &mut self.reply;
        if let (Some(error), None | Some(StopReason::End | StopReason::Failed)) = (error, *stop) {
            let is_filter = ErrorKind::from_error(error) == ErrorKind::Filter;
            *stop = Some(if is_filter { StopReason::Refused } else { StopReason::Failed });
        }
    }

    fn give_up(&mut self) {
        self.gave_up = true;
        self.note(Note::TooLong);
    }

    fn note(&mut self, note: Note) {
        note_once(&mut self.reply.notes, note);
    }
}

/// Takes complete elements from the front of a streamed JSON array.
#[derive(Default)]
struct ArrayElements {
    /// The body is an array, and its opening bracket was removed.
    started: bool,
    /// How far the buffer was scanned, and what is open there.
    at: usize,
    nesting: Nesting,
}

impl ArrayElements {
    /// Calls `each` with every complete element and the number of bytes removed with it.
    fn take(&mut self, body: &mut Vec<u8>, mut each: impl FnMut(&[u8], usize)) {
        if !self.started {
            let blank =
                body[self.at..].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            steps::count(blank);
            self.at += blank;
            // No list: the body is read as a whole, at its end.
            if body.get(self.at) != Some(&b'[') {
                return;
            }
            self.started = true;
            body.drain(..=self.at);
            self.at = 0;
        }
        let mut consumed = 0;
        while let Some(&byte) = body.get(self.at) {
            steps::count(1);
            self.at += 1;
            if self.nesting.closes(byte) {
                let element = body[consumed..self.at].trim_ascii_start();
                each(
                    element.strip_prefix(b",").unwrap_or(element).trim_ascii(),
                    self.at - consumed,
                );
                consumed = self.at;
            }
        }
        body.drain(..consumed);
        self.at -= consumed;
    }
}

/// How a dialect's responses report usage.
pub fn usage_spelling(dialect: Dialect) -> &'static UsageSpelling {
    match dialect {
        Dialect::Anthropic => &anthropic::USAGE,
        Dialect::OpenaiChat => &openai_chat::USAGE,
        Dialect::OpenaiResponses => &openai_responses::USAGE,
        Dialect::Gemini => &gemini::USAGE,
    }
}

/// Fuzz target: no bytes make reading a response panic, cuts do not change the reply, and a prefix is not
/// more complete than the whole, nor more of an error (invariant 10). The input is read in four ways, and cut
/// in one of them.
#[cfg(any(test, fuzzing))]
pub fn fuzz(dialect: Dialect, bytes: &[u8]) {
    const WAYS: [(Framing, u16); 4] = [
        (Framing::Events, 200),
        (Framing::Json, 200),
        (Framing::Unknown, 200),
        (Framing::Unknown, 500),
    ];
    let cuts = InputCuts::new(bytes);
    for (way, (framing, status)) in WAYS.into_iter().enumerate() {
        let read = |chunks: &mut dyn Iterator<Item = &[u8]>, whole: bool| {
            let mut reading = ResponseReader::new(dialect, status, framing, 1 << 20);
            chunks.for_each(|chunk| reading.push(chunk));
            (reading.is_stream(), reading.finish(BodyEnd::new(whole)))
        };
        let (is_stream, whole) = read(&mut std::iter::once(bytes), true);
        if way != cuts.way(WAYS.len()) {
            continue;
        }
        for size in cuts.sizes() {
            assert_eq!(read(&mut bytes.chunks(*size), true).1, whole, "by {size}");
        }
        for at in cuts.places() {
            let (first, second) = bytes.split_at(at);
            assert_eq!(read(&mut [first, second].into_iter(), true).1, whole, "cut at {at}");
            let (_, prefix) = read(&mut std::iter::once(first), false);
            // (A JSON body with more data after it is invalid, although its prefix was valid. Of several
            // replies in one stream the last one counts, and a prefix may end with an earlier one.)
            let is_one = is_stream && !whole.notes.contains(&Note::SeveralReplies);
            assert!(!is_one || whole.complete || !prefix.complete, "complete at {at}");
            assert!(!is_one || whole.error.is_some() || prefix.error.is_none(), "error at {at}");
        }
    }
}

#[cfg(test)]
mod linear_tests;
#[cfg(test)]
mod tests;
