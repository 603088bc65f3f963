//! Reading a response as it passes: bytes in, in any cuts, a [`Reply`] at the end.
//!
//! Whatever the cuts, the reply is the same; every strict prefix gives an incomplete reply, never
//! an error (invariant 10). Bounded: past its limit the reading gives up with a note. Knows framing;
//! what events mean is each dialect's own.

use super::error_kind::ErrorKind;
use super::note::note_once;
use super::{
    Dialect, Note, ProviderError, Reply, ReplyProgress, StopReason, anthropic, gemini, openai_chat,
    openai_responses,
};

#[cfg(any(test, fuzzing))]
use crate::wire::cuts::InputCuts;
use crate::wire::json::{Document, Value};
use crate::wire::sse::{Framer, SseEvent};

/// Most bytes of deltas or parts, as they stand in the stream, from which one reply is kept. A window
/// of a million tokens is 4 MB. Past it words are dropped with [`Note::TooLong`]; usage is still read.
pub(super) const MOST_KEPT: usize = 32 << 20;

/// How the bytes of a response body are framed. The first bytes tell; `content-type` says what is
/// expected, and servers name all kinds of types for JSON and for streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// `text/event-stream`, unless the body begins as JSON or HTML: errors often do.
    Events,
    /// One JSON value (or a JSON array streamed element by element, Gemini without `alt=sse`).
    Json,
    /// Not declared: the first bytes tell.
    Unknown,
}

impl Framing {
    /// From a `content-type` value.
    pub fn of(content_type: &str) -> Self {
        let essence = content_type.split(';').next().unwrap_or_default().trim();
        if essence.eq_ignore_ascii_case("text/event-stream") {
            Framing::Events
        } else {
            Framing::Unknown
        }
    }
}

const BOM: &[u8] = b"\xef\xbb\xbf";

/// One response being read.
pub struct ResponseReader {
    framing: Framing,
    /// The first bytes have confirmed or corrected the framing.
    settled: bool,
    status: u16,
    limit: usize,
    framer: Framer,
    /// A JSON body so far, or the first bytes while the framing is not known.
    body: Vec<u8>,
    elements: ArrayElements,
    document: Document,
    told: ReplyBuilder,
}

/// What the events have told: the dialect's own state, and the reply it fills.
struct ReplyBuilder {
    stream: DialectStream,
    reply: Reply,
    /// Whether anything has been told at all.
    any: bool,
    /// The reading is over at its limit. (A dialect that only keeps no more words goes on.)
    gave_up: bool,
}

enum DialectStream {
    Anthropic(anthropic::ReplyStream),
    OpenaiChat(Box<openai_chat::ReplyStream>),
    OpenaiResponses(openai_responses::ReplyStream),
    Gemini(gemini::ReplyStream),
}

/// What the last frame of the OpenAI dialects says.
const DONE: &[u8] = b"[DONE]";

impl ResponseReader {
    /// Starts reading a response. `limit`: most bytes kept for one event or body.
    pub fn new(dialect: Dialect, status: u16, framing: Framing, limit: usize) -> Self {
        let stream = match dialect {
            Dialect::Anthropic => DialectStream::Anthropic(anthropic::ReplyStream::default()),
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
            elements: ArrayElements::default(),
            document: Document::default(),
            told: ReplyBuilder { stream, reply: Reply::default(), any: false, gave_up: false },
        }
    }

    /// The next decoded bytes of the body, cut anywhere.
    pub fn push(&mut self, bytes: &[u8]) {
        if !self.settled {
            return self.settle(bytes);
        }
        match self.framing {
            Framing::Events => {
                let (told, document) = (&mut self.told, &mut self.document);
                self.framer.push(bytes, |event| told.event(event, document));
                if self.framer.gave_up() {
                    told.give_up();
                }
            }
            Framing::Json | Framing::Unknown => self.push_json(bytes),
        }
    }

    /// Holds the first bytes until one of them tells the framing. Keep-alive padding and a BOM may
    /// stand before it.
    fn settle(&mut self, bytes: &[u8]) {
        self.body.extend_from_slice(bytes);
        let plain = self.body.strip_prefix(BOM).unwrap_or(&self.body);
        let first = plain.iter().find(|byte| !byte.is_ascii_whitespace());
        self.framing = match first {
            _ if BOM.starts_with(&self.body) => return,
            None if self.body.len() <= self.limit => return,
            Some(b'{' | b'[' | b'<') => Framing::Json,
            None | Some(_) => Framing::Events,
        };
        self.settled = true;
        if self.framing == Framing::Json {
            let begins = if self.body.starts_with(BOM) { BOM.len() } else { 0 };
            self.body.drain(..begins);
            return self.take_elements();
        }
        let first = std::mem::take(&mut self.body);
        self.push(&first);
    }

    /// One message of a transport that frames by itself (WebSocket): a JSON event.
    pub fn message(&mut self, data: &[u8]) {
        let event = SseEvent { name: "", data, start: 0, end: 0 };
        self.told.event(event, &mut self.document);
    }

    /// Bytes that it holds, about: unfinished events, a body that is no stream, and what was kept.
    pub fn holds(&self) -> usize {
        let waiting = self.framer.holds() + self.body.capacity() + self.document.bytes();
        // Parts of a reply are larger than what they are made from where they say little.
        waiting + 3 * self.told.kept()
    }

    /// Bytes that came and are not read yet: those of an event, or of a body, without its end. Their end has
    /// them read at once.
    pub fn unread(&self) -> usize {
        self.framer.holds() + self.body.len()
    }

    /// Bytes that [`ResponseReader::finish`] takes beside what it holds: those of a body that is no stream, which
    /// is read as a whole then.
    pub fn needs_to_finish(&self) -> usize {
        6 * self.body.len()
    }

    /// Whether the dialect's terminal event has been seen: a client may leave now.
    pub fn is_complete(&self) -> bool {
        self.told.reply.complete
    }

    /// How far the reply has come.
    pub fn progress(&self) -> ReplyProgress {
        let reply = &self.told.reply;
        let usage = match &self.told.stream {
            DialectStream::Anthropic(stream) => stream.usage_so_far(),
            DialectStream::OpenaiChat(stream) => stream.usage_so_far(reply),
            DialectStream::OpenaiResponses(stream) => stream.usage_so_far(reply),
            DialectStream::Gemini(stream) => stream.usage_so_far(),
        };
        ReplyProgress { id: reply.id.clone(), usage, said: self.said_bytes() }
    }

    /// Bytes of text, reasoning and arguments so far.
    pub fn said_bytes(&self) -> usize {
        match &self.told.stream {
            DialectStream::Anthropic(stream) => stream.said_bytes(),
            DialectStream::OpenaiChat(stream) => stream.said_bytes(),
            DialectStream::OpenaiResponses(stream) => stream.said_bytes(),
            DialectStream::Gemini(stream) => stream.said_bytes(),
        }
    }

    /// Whether the response is a stream of events, as far as is known.
    pub fn is_stream(&self) -> bool {
        self.framing == Framing::Events || self.elements.started
    }

    /// The body has ended; `whole` is false where it was cut. Gives what was understood.
    pub fn finish(mut self, whole: bool) -> Reply {
        let (told, document) = (&mut self.told, &mut self.document);
        let gave_up = told.gave_up;
        if self.framing == Framing::Events && self.settled {
            if whole {
                self.framer.finish(|event| told.last_event(event, document));
                if !told.any && !gave_up {
                    told.note(Note::NotJson); // plain text, or nothing but comments
                }
            }
        } else if !self.elements.started {
            match document.read_again(&self.body).ok().and_then(|()| document.root(&self.body)) {
                Some(value) => told.body(value, self.status),
                None if whole && !gave_up && !self.body.is_empty() => told.note(Note::NotJson),
                None => {}
            }
        }
        told.finish(whole);
        if self.status >= 400 {
            told.reply.complete = whole;
        } else {
            told.failed();
        }
        self.told.reply
    }

    fn push_json(&mut self, bytes: &[u8]) {
        if self.told.gave_up {
            return;
        }
        self.body.extend_from_slice(bytes);
        self.take_elements();
    }

    /// Reads what has arrived whole of a streamed array; any other body waits for its end.
    fn take_elements(&mut self) {
        let (told, document) = (&mut self.told, &mut self.document);
        let (limit, status) = (self.limit, self.status);
        self.elements.take(&mut self.body, |element, taken| {
            if taken > limit || told.gave_up {
                return told.give_up();
            }
            match document.read_again(element).ok().and_then(|()| document.root(element)) {
                Some(value) if status >= 400 => told.body(value, status),
                Some(value) => told.value("", value),
                None => told.note(Note::BrokenEvent),
            }
        });
        // An element that has filled the limit without an end is past it.
        if self.body.len() > limit - usize::from(self.elements.started).min(limit) {
            self.body = Vec::new();
            told.give_up();
        }
    }
}

impl ReplyBuilder {
    /// Bytes of the stream from which something was kept.
    fn kept(&self) -> usize {
        match &self.stream {
            DialectStream::Anthropic(stream) => stream.kept,
            DialectStream::OpenaiChat(stream) => stream.kept,
            DialectStream::OpenaiResponses(stream) => stream.kept,
            DialectStream::Gemini(stream) => stream.kept,
        }
    }

    fn event(&mut self, event: SseEvent<'_>, document: &mut Document) {
        self.any = true;
        let data = event.data.trim_ascii();
        if data == DONE {
            return self.done();
        }
        match document.read_again(data).ok().and_then(|()| document.root(data)) {
            Some(value) => self.value(event.name, value),
            None => self.note(Note::BrokenEvent),
        }
    }

    /// An event without its end, as the body ended in it. Who leaves in the middle of `[DONE]` has all that
    /// there is.
    fn last_event(&mut self, event: SseEvent<'_>, document: &mut Document) {
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

    /// `data: [DONE]`: the OpenAI dialects' last frame, which look-alikes of others send too.
    fn done(&mut self) {
        self.reply.complete = true;
    }

    fn finish(&mut self, whole: bool) {
        let reply = &mut self.reply;
        match &mut self.stream {
            DialectStream::Anthropic(stream) => stream.finish(whole, reply),
            DialectStream::OpenaiChat(stream) => stream.finish(whole, reply),
            DialectStream::OpenaiResponses(stream) => stream.finish(whole, reply),
            DialectStream::Gemini(stream) => stream.finish(whole, reply),
        }
    }

    /// An error inside a success ended the answer, whatever dialect told it.
    fn failed(&mut self) {
        let Reply { error, stop, .. } = &mut self.reply;
        if let (Some(error), None | Some(StopReason::End | StopReason::Failed)) = (error, *stop) {
            let is_filter = ErrorKind::of(error) == ErrorKind::Filter;
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

/// The error that a value holds, in any of the shapes that providers use: `{"error": {…}}`,
/// `{"error": "…"}`, `[{"error": {…}}]` (Gemini), or the members themselves. A code that is a name
/// says more than the type beside it: `context_length_exceeded` is an `invalid_request_error` too
/// (`docs/protocols.md` 2.5, 3.6).
pub fn error_in(value: Value<'_>) -> ProviderError {
    let value = value.items().next().unwrap_or(value);
    let inner = value.get("error").filter(|error| !error.is_null()).unwrap_or(value);
    let words = |names: &[&str]| names.iter().find_map(|name| word(inner.get(name)?));
    let code = inner.get("code").or_else(|| value.get("code")).and_then(|code| code.text());
    ProviderError {
        kind: code
            .filter(|code| is_name(code))
            .map(Into::into)
            .or_else(|| words(&["type", "status", "code"])),
        message: inner.text().map(Into::into).or_else(|| words(&["message", "detail"])),
    }
}

/// Whether a code names an error: some servers put a status there, or a sentence.
fn is_name(code: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    code.bytes().all(is_plain) && code.bytes().any(|byte| byte.is_ascii_alphabetic())
}

/// A string, or a number as one.
fn word(value: Value<'_>) -> Option<Box<str>> {
    let number = || value.as_u64().map(|number| number.to_string().into());
    value.text().map(Into::into).or_else(number)
}

/// Takes complete elements off the front of a streamed JSON array.
#[derive(Default)]
struct ArrayElements {
    /// The body is an array, and its bracket is off.
    started: bool,
    /// How far into the buffer the scan has come, and in what state.
    at: usize,
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl ArrayElements {
    /// `each` gets an element, and how many bytes were taken off with it.
    fn take(&mut self, body: &mut Vec<u8>, mut each: impl FnMut(&[u8], usize)) {
        if !self.started {
            match body.iter().position(|byte| !byte.is_ascii_whitespace()) {
                Some(first) if body[first] == b'[' => {
                    self.started = true;
                    body.drain(..=first);
                }
                _ => return,
            }
        }
        let mut taken = 0;
        while let Some(&byte) = body.get(self.at) {
            self.at += 1;
            if self.ends_element(byte) {
                let element = body[taken..self.at].trim_ascii_start();
                each(element.strip_prefix(b",").unwrap_or(element).trim_ascii(), self.at - taken);
                taken = self.at;
            }
        }
        body.drain(..taken);
        self.at -= taken;
    }

    fn ends_element(&mut self, byte: u8) -> bool {
        if self.in_string {
            let escaped = std::mem::take(&mut self.escaped);
            match byte {
                b'\\' if !escaped => self.escaped = true,
                b'"' if !escaped => self.in_string = false,
                _ => {}
            }
            return false;
        }
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' if self.depth > 0 => {
                self.depth -= 1;
                return self.depth == 0;
            }
            _ => {}
        }
        false
    }
}

/// Fuzz: no bytes make the reading of a response panic, cuts do not change the reply, and a prefix is
/// no more complete and no more of an error than the whole (invariant 10). It is read in four ways, and
/// cut in one of them.
#[cfg(any(test, fuzzing))]
pub fn fuzz(dialect: Dialect, bytes: &[u8]) {
    const WAYS: [(Framing, u16); 4] = [
        (Framing::Events, 200),
        (Framing::Json, 200),
        (Framing::Unknown, 200),
        (Framing::Unknown, 500),
    ];
    let cuts = InputCuts::of(bytes);
    for (way, (framing, status)) in WAYS.into_iter().enumerate() {
        let read = |chunks: &mut dyn Iterator<Item = &[u8]>, whole: bool| {
            let mut reading = ResponseReader::new(dialect, status, framing, 1 << 20);
            chunks.for_each(|chunk| reading.push(chunk));
            (reading.is_stream(), reading.finish(whole))
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
            // (A JSON body followed by more is no body, but was one. Of several replies in one stream
            // the last counts, and a prefix may end with one before it.)
            let is_one = is_stream && !whole.notes.contains(&Note::SeveralReplies);
            assert!(!is_one || whole.complete || !prefix.complete, "complete at {at}");
            assert!(!is_one || whole.error.is_some() || prefix.error.is_none(), "error at {at}");
        }
    }
}

#[cfg(test)]
mod tests;
