//! Removes the traces of usage that Plimsoll requested from a stream (`docs/protocols.md` 2.1).
//!
//! If a client of Chat Completions did not ask for usage, Plimsoll does, and hides the result: the extra
//! chunk, and the `"usage":null` members of hosts that send them only on request. The client gets what the
//! upstream would have sent. Everything else is forwarded at once; only the unfinished end of an event waits
//! for its rest.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use memchr::memmem;

use crate::proxy::http::memory::{HeldMemory, MemoryShare};
use crate::telemetry::MemoryKind;
use crate::wire::encoding::Decoder;
use crate::wire::json::{Document, Span, Value};
use crate::wire::memory::Memory as _;

/// Most bytes of an unfinished event that are held; past it, nothing more is hidden.
const HOLD: usize = 1024 * 1024;

/// Most bytes that one piece of a compressed stream may decompress to. Past it the stream breaks, because no
/// real one has so much at once.
pub(super) const MOST_AT_ONCE: usize = 16 * HOLD;

/// Hosts whose chunks have `"usage":null` only if usage was requested: OpenAI's and Azure's. Many others
/// always send it (`docs/protocols.md` 2.1).
const NULL_IF_REQUESTED: [&str; 3] =
    ["api.openai.com", ".openai.azure.com", ".services.ai.azure.com"];

/// Whether `"usage":null` in an upstream's chunks is there only because we requested usage.
fn adds_null_usage(host: &str) -> bool {
    let host = host.to_ascii_lowercase();
    NULL_IF_REQUESTED.iter().any(|known| match known.starts_with('.') {
        true => host.ends_with(known),
        false => host == *known || host.ends_with(&format!(".{known}")),
    })
}

/// Removes from a stream what is there only because we requested it.
pub(crate) struct UsageStrip {
    /// If the upstream compressed although asked not to, the client gets it uncompressed.
    decoder: Decoder,
    /// The unfinished end of the received data.
    held: BytesMut,
    /// The memory of the held bytes.
    memory: HeldMemory,
    document: Document,
    /// `"usage":null` is there only because we requested usage.
    adds_null: bool,
    /// Nothing more is hidden; bytes pass.
    gave_up: bool,
}

impl UsageStrip {
    /// For a response of this host with these `content-encoding` lines; `None` if it cannot be decompressed.
    pub(crate) fn new<'h>(
        host: &str,
        codings: impl Iterator<Item = &'h str>,
        memory: &Arc<MemoryShare>,
    ) -> Option<Self> {
        let decoder = Decoder::new(codings, MOST_AT_ONCE, || memory.counting(MemoryKind::Reply));
        let decoder = decoder.ok()?;
        let (held, document) = (BytesMut::new(), Document::default());
        let memory = memory.guard(MemoryKind::Reply);
        let adds_null = adds_null_usage(host);
        Some(Self { decoder, held, memory, document, adds_null, gave_up: false })
    }

    /// The data as the client gets it. `Err` if it does not have the declared encoding: the client would have
    /// had the same error.
    pub(super) fn pass(
        &mut self,
        data: Bytes,
    ) -> Result<Bytes, crate::wire::encoding::DecodeError> {
        let data = match self.decoder.is_identity() {
            true => data,
            false => Bytes::from(self.decoder.push(&data)?.into_owned()),
        };
        if self.gave_up {
            return Ok(data);
        }
        if self.held.is_empty() && ends_an_event(&data) && !mentions_usage(&data) {
            return Ok(data);
        }
        self.held.extend_from_slice(&data);
        let mut out = BytesMut::with_capacity(self.held.len());
        while let Some(end) = first_block(&self.held) {
            let event = self.held.split_to(end);
            self.keep(&event, &mut out);
        }
        if self.held.len() > HOLD || !self.memory.hold(self.held.len()) {
            self.gave_up = true;
            out.unsplit(self.held.split());
        }
        Ok(out.freeze())
    }

    /// The data that was held, at the end of the stream.
    pub(super) fn rest(&mut self) -> Bytes {
        self.held.split().freeze()
    }

    fn keep(&mut self, event: &[u8], out: &mut BytesMut) {
        match self.cut(event) {
            None => out.extend_from_slice(event),
            Some(cut) => {
                out.extend_from_slice(&event[..cut.start]);
                out.extend_from_slice(&event[cut.end..]);
            }
        }
    }

    /// The range of an event that is hidden from the client.
    fn cut(&mut self, event: &[u8]) -> Option<Span> {
        if !mentions_usage(event) {
            return None;
        }
        let data = only_data(event)?;
        let text = data.of(event);
        self.document.reread(text).ok()?;
        let root = self.document.root(text)?;
        let usage = root.get("usage")?;
        if usage.is_null() {
            if !self.adds_null {
                return None;
            }
            let cut = member(&root, "usage")?;
            return Some(Span::new(data.start + cut.start, data.start + cut.end));
        }
        let chosen = root.get("choices").is_some_and(|choices| choices.items().next().is_some());
        (!chosen).then_some(Span::new(0, event.len()))
    }
}

fn mentions_usage(bytes: &[u8]) -> bool {
    memmem::find(bytes, b"\"usage\"").is_some()
}

/// The value of the only `data:` line, without its line end; `None` if there are several.
pub(super) fn only_data(event: &[u8]) -> Option<Span> {
    let mut found = None;
    let mut start = 0;
    while start < event.len() {
        let LineEnd { end, next } = line_end(event, start)?;
        let line = &event[start..end];
        if line.starts_with(b"data:") {
            let value = Span::new(start + b"data:".len(), end);
            if found.replace(value).is_some() {
                return None;
            }
        }
        start = next;
    }
    found
}

/// The range of a member with its comma.
fn member(object: &Value<'_>, name: &str) -> Option<Span> {
    let mut before = None;
    let mut entries = object.entries();
    while let Some((key, value)) = entries.next() {
        if key.is(name) {
            return match (before, entries.next()) {
                (Some(end), _) => Some(Span::new(end, value.span().end)),
                (None, Some((next, _))) => Some(Span::new(key.span().start, next.span().start)),
                (None, None) => Some(Span::new(key.span().start, value.span().end)),
            };
        }
        before = Some(value.span().end);
    }
    None
}

/// Whether `bytes` end with the end of an event.
pub(super) fn ends_an_event(bytes: &[u8]) -> bool {
    bytes.ends_with(b"\n\n") || bytes.ends_with(b"\n\r\n")
}

/// The end of the first event, including its blank line.
pub(super) fn first_block(bytes: &[u8]) -> Option<usize> {
    let mut start = 0;
    loop {
        let LineEnd { end, next } = line_end(bytes, start)?;
        if end == start {
            return Some(next);
        }
        start = next;
    }
}

/// Where a line ends.
struct LineEnd {
    end: usize,
    /// The start of the next line.
    next: usize,
}

/// The end of the line at `start`. A CR at the end of the bytes may be half of a CRLF, unless lines end with CR
/// alone.
fn line_end(bytes: &[u8], start: usize) -> Option<LineEnd> {
    let end = start + memchr::memchr2(b'\n', b'\r', bytes.get(start..)?)?;
    let is_alone = end == start && start > 0 && bytes[start - 1] == b'\r';
    let next = match (bytes[end], bytes.get(end + 1)) {
        (b'\n', _) => end + 1,
        (_, Some(b'\n')) => end + 2,
        (_, Some(_)) => end + 1,
        (_, None) if is_alone => end + 1,
        (_, None) => return None,
    };
    Some(LineEnd { end, next })
}

#[cfg(test)]
mod tests;
