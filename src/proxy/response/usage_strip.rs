//! Removes the traces of usage that Plimsoll requested from a stream (`docs/protocols.md` 2.1).
//!
//! If a client of Chat Completions did not ask for usage, Plimsoll does, and hides the result: the extra
//! chunk, and the `"usage":null` members of hosts that send them only on request. What else such a chunk says
//! reaches the client, and so does usage beside content or a finish reason, which the upstream sends on its own.
//! Everything else is forwarded at once; only the unfinished end of an event waits for its rest.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use memchr::memmem;

use super::event_data::{EventData, ends_an_event, first_block};
use crate::proxy::http::memory::{HeldMemory, MemoryBudget};
use crate::telemetry::MemoryKind;
use crate::wire::encoding::Decoder;
use crate::wire::json::{Document, Kind, ObjectKey, Span, Value};
use crate::wire::memory::Memory as _;

/// Most bytes of an unfinished event that are held; a longer one passes as it is.
const HOLD: usize = 1024 * 1024;

/// Most bytes that one piece of a compressed stream may decompress to. Past it the stream breaks, because no
/// real one has so much at once.
pub(super) const MOST_AT_ONCE: usize = 16 * HOLD;

/// Hosts whose chunks have `"usage":null` only if usage was requested: OpenAI's and Azure's. Many others
/// always send it (`docs/protocols.md` 2.1).
const NULL_IF_REQUESTED: [&str; 3] =
    ["api.openai.com", ".openai.azure.com", ".services.ai.azure.com"];

/// The members that each chunk has, whatever it is about.
const ENVELOPE: [&str; 11] = [
    "id",
    "object",
    "created",
    "model",
    "system_fingerprint",
    "service_tier",
    "provider",
    "obfuscation",
    "request_id",
    "choices",
    "usage",
];

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
    pub(super) decoder: Decoder,
    /// The unfinished end of the received data.
    held: BytesMut,
    /// The memory of the held bytes.
    memory: HeldMemory,
    document: Document,
    /// `"usage":null` is there only because we requested usage.
    adds_null: bool,
    /// A finish reason was seen: the usage that we requested comes after it.
    finished: bool,
    /// The last bytes of an event that is too long, whose beginning was forwarded.
    passing: Option<BytesMut>,
}

impl UsageStrip {
    /// For a response of this host with these `content-encoding` lines; `None` if it cannot be decompressed.
    pub(crate) fn new<'h>(
        host: &str,
        codings: impl Iterator<Item = &'h str>,
        memory: &Arc<MemoryBudget>,
    ) -> Option<Self> {
        let decoder = Decoder::new(codings, MOST_AT_ONCE, || memory.counting(MemoryKind::Reply));
        let decoder = decoder.ok()?;
        let (held, document) = (BytesMut::new(), Document::default());
        let memory = memory.guard(MemoryKind::Reply);
        let adds_null = adds_null_usage(host);
        let (finished, passing) = Default::default();
        Some(Self { decoder, held, memory, document, adds_null, finished, passing })
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
        let mut out = BytesMut::new();
        let data = self.pass_rest_of_long(data, &mut out);
        if self.held.is_empty() && ends_an_event(&data) && !mentions_usage(&data) {
            self.finished |= has_finish_reason(&data);
            if out.is_empty() {
                return Ok(data);
            }
            out.extend_from_slice(&data);
            return Ok(out.freeze());
        }
        self.held.extend_from_slice(&data);
        while let Some(end) = first_block(&self.held) {
            let event = self.held.split_to(end);
            self.keep(&event, &mut out);
        }
        if self.held.len() > HOLD || !self.memory.hold(self.held.len()) {
            let long = self.held.split();
            self.passing = Some(BytesMut::from(last_bytes(&long)));
            out.unsplit(long);
            self.memory.hold(0);
        }
        Ok(out.freeze())
    }

    /// The data that was held, at the end of the stream: an event whose blank line is missing.
    pub(super) fn rest(&mut self) -> Bytes {
        let (event, mut out) = (self.held.split(), BytesMut::new());
        self.keep(&event, &mut out);
        out.freeze()
    }

    /// Forwards what belongs to an event that is too long to be held; returns what comes after it.
    fn pass_rest_of_long(&mut self, data: Bytes, out: &mut BytesMut) -> Bytes {
        let Some(mut seen) = self.passing.take() else { return data };
        let before = seen.len();
        seen.extend_from_slice(&data);
        match blank_line(&seen) {
            Some(end) => {
                out.extend_from_slice(&seen[before..end]);
                Bytes::copy_from_slice(&seen[end..])
            }
            None => {
                out.extend_from_slice(&data);
                self.passing = Some(BytesMut::from(last_bytes(&seen)));
                Bytes::new()
            }
        }
    }

    fn keep(&mut self, event: &[u8], out: &mut BytesMut) {
        let mut from = 0;
        for hidden in self.hidden(event) {
            out.extend_from_slice(&event[from..hidden.start]);
            from = hidden.end;
        }
        out.extend_from_slice(&event[from..]);
        self.finished |= has_finish_reason(event);
    }

    /// The ranges of an event that are hidden from the client, in order.
    fn hidden(&mut self, event: &[u8]) -> Vec<Span> {
        if !mentions_usage(event) {
            return Vec::new();
        }
        let data = EventData::new(event);
        if self.document.reread(&data.text).is_err() {
            return Vec::new();
        }
        let Some(root) = self.document.root(&data.text) else { return Vec::new() };
        let is_hidden = match root.get("usage") {
            None => false,
            Some(usage) if usage.is_null() => self.adds_null,
            Some(_) if is_bare(&root) => return vec![Span::new(0, event.len())],
            Some(_) => self.is_requested(&root),
        };
        match member(&root, "usage").filter(|_| is_hidden) {
            Some(usage) => data.ranges(usage),
            None => Vec::new(),
        }
    }

    /// Whether the usage of this chunk is the one that we requested: it stands in a chunk for itself, without a choice or,
    /// after the finish reason, with one that says nothing.
    fn is_requested(&self, root: &Value<'_>) -> bool {
        let mut choices = root.get("choices").into_iter().flat_map(|choices| choices.items());
        match choices.next() {
            None => true,
            Some(first) => self.finished && is_silent(&first) && choices.all(|it| is_silent(&it)),
        }
    }
}

/// Whether a chunk has nothing but usage.
fn is_bare(root: &Value<'_>) -> bool {
    let has_choice = root.get("choices").is_some_and(|choices| choices.items().next().is_some());
    !has_choice
        && root.entries().all(|(name, value)| is_one_of(&name, &ENVELOPE) || is_empty(&value))
}

/// Whether a choice has neither content nor a finish reason.
fn is_silent(choice: &Value<'_>) -> bool {
    choice.entries().all(|(name, value)| match name.is("delta") {
        true => value.entries().all(|(name, value)| name.is("role") || is_empty(&value)),
        false => name.is("index") || is_empty(&value),
    })
}

/// Whether a value says nothing: null, an empty text or list, an object of such values.
fn is_empty(value: &Value<'_>) -> bool {
    match value.kind() {
        Kind::Null => true,
        Kind::String => value.span().len() <= 2,
        Kind::Array => value.items().next().is_none(),
        Kind::Object => value.entries().all(|(_, value)| is_empty(&value)),
        _ => false,
    }
}

fn is_one_of(name: &ObjectKey<'_>, names: &[&str]) -> bool {
    names.iter().any(|known| name.is(known))
}

/// Whether these events have a finish reason that is not empty, by their bytes alone.
fn has_finish_reason(events: &[u8]) -> bool {
    const NAME: &[u8] = b"\"finish_reason\"";
    memmem::find_iter(events, NAME).any(|at| {
        let after = events[at + NAME.len()..].trim_ascii_start();
        let value = after.strip_prefix(b":").unwrap_or_default().trim_ascii_start();
        value.starts_with(b"\"") && !value.starts_with(b"\"\"")
    })
}

/// The bytes that may be the beginning of a blank line.
fn last_bytes(bytes: &[u8]) -> &[u8] {
    &bytes[bytes.len().saturating_sub(3)..]
}

/// The end of the first blank line.
fn blank_line(bytes: &[u8]) -> Option<usize> {
    let ends = [&b"\n\n"[..], b"\n\r\n", b"\r\r"];
    let ends = ends.iter().filter_map(|end| Some(memmem::find(bytes, end)? + end.len()));
    ends.min()
}

fn mentions_usage(bytes: &[u8]) -> bool {
    memmem::find(bytes, b"\"usage\"").is_some()
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

#[cfg(test)]
mod tests;
