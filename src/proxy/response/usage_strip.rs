//! Removes the traces of usage that Plimsoll requested from a stream (`docs/protocols.md` 2.1).
//!
//! If a client of Chat Completions did not ask for usage, Plimsoll does, and hides the result: the extra
//! chunk, usage in any other, and the `"usage":null` members of hosts that send them only on request. What else such
//! a chunk says reaches the client, and so does usage beside a choice at hosts that send it on their own.
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

/// Hosts whose streams have usage beside a choice also if nobody requested it (`docs/protocols.md` 2.1).
const UNREQUESTED: [&str; 7] = [
    "api.mistral.ai",
    "api.groq.com",
    "api.deepseek.com",
    "api.x.ai",
    "api.perplexity.ai",
    "api.fireworks.ai",
    "api.z.ai",
];

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
    /// Usage beside a choice is there also without our request.
    is_unrequested: bool,
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
        Some(Self {
            decoder: decoder.ok()?,
            held: BytesMut::new(),
            memory: memory.guard(MemoryKind::Reply),
            document: Document::default(),
            adds_null: adds_null_usage(host),
            is_unrequested: UNREQUESTED.iter().any(|known| host.eq_ignore_ascii_case(known)),
            finished: false,
            passing: None,
        })
    }

    pub(super) fn pass(
        &mut self,
        data: Bytes,
    ) -> Result<Bytes, crate::wire::encoding::DecodeError> {
        // Without Plimsoll, a wrong encoding would have been the client's error, too.
        let data = match self.decoder.is_identity() {
            true => data,
            false => Bytes::from(self.decoder.push(&data)?.into_owned()),
        };
        let mut forwarded = BytesMut::new();
        let data = self.pass_rest_of_long(data, &mut forwarded);
        if self.held.is_empty() && ends_an_event(&data) && !mentions_usage(&data) {
            self.finished |= has_finish_reason(&data);
            if forwarded.is_empty() {
                return Ok(data);
            }
            forwarded.extend_from_slice(&data);
            return Ok(forwarded.freeze());
        }
        self.held.extend_from_slice(&data);
        while let Some(end) = first_block(&self.held) {
            let event = self.held.split_to(end);
            self.keep(&event, &mut forwarded);
        }
        if self.held.len() > HOLD || !self.memory.hold(self.held.len()) {
            // Too long to be held: it passes as it is, up to its blank line.
            let long = self.held.split();
            self.passing = Some(BytesMut::from(last_bytes(&long)));
            forwarded.unsplit(long);
            self.memory.hold(0);
        }
        Ok(forwarded.freeze())
    }

    pub(super) fn rest(&mut self) -> Bytes {
        // At the end of the stream, the blank line of the last event may be missing.
        let event = self.held.split();
        let mut forwarded = BytesMut::new();
        self.keep(&event, &mut forwarded);
        forwarded.freeze()
    }

    /// Returns what comes after an event that is too long to be held.
    fn pass_rest_of_long(&mut self, data: Bytes, out: &mut BytesMut) -> Bytes {
        let Some(mut tail) = self.passing.take() else { return data };
        // A blank line may begin with bytes that were forwarded before.
        let forwarded = tail.len();
        tail.extend_from_slice(&data);
        match blank_line(&tail) {
            Some(end) => {
                out.extend_from_slice(&tail[forwarded..end]);
                Bytes::copy_from_slice(&tail[end..])
            }
            None => {
                out.extend_from_slice(&data);
                self.passing = Some(BytesMut::from(last_bytes(&tail)));
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
        match member(&root, "usage") {
            Some(usage) if is_hidden => data.ranges(usage),
            _ => Vec::new(),
        }
    }

    fn is_requested(&self, root: &Value<'_>) -> bool {
        if !self.is_unrequested {
            return true;
        }
        // There, the usage that we requested stands in a chunk for itself, without a choice or, after the finish
        // reason, with one that says nothing.
        let mut choices = root.get("choices").into_iter().flat_map(|choices| choices.items());
        match choices.next() {
            None => true,
            Some(first) => {
                self.finished && is_silent(&first) && choices.all(|choice| is_silent(&choice))
            }
        }
    }
}

fn is_bare(root: &Value<'_>) -> bool {
    let has_choice = root.get("choices").is_some_and(|choices| choices.items().next().is_some());
    !has_choice
        && root.entries().all(|(name, value)| is_one_of(&name, &ENVELOPE) || is_empty(&value))
}

fn is_silent(choice: &Value<'_>) -> bool {
    choice.entries().all(|(name, value)| match name.is("delta") {
        true => value.entries().all(|(name, value)| name.is("role") || is_empty(&value)),
        false => name.is("index") || is_empty(&value),
    })
}

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

fn has_finish_reason(events: &[u8]) -> bool {
    // By the bytes alone: it is looked for in every event, most of which are not parsed.
    const NAME: &[u8] = b"\"finish_reason\"";
    memmem::find_iter(events, NAME).any(|at| {
        let rest = events[at + NAME.len()..].trim_ascii_start();
        let value = rest.strip_prefix(b":").unwrap_or_default().trim_ascii_start();
        value.starts_with(b"\"") && !value.starts_with(b"\"\"")
    })
}

fn last_bytes(bytes: &[u8]) -> &[u8] {
    // A blank line may begin in them: `\n\r\n` has three.
    &bytes[bytes.len().saturating_sub(3)..]
}

/// The end of the first blank line.
fn blank_line(bytes: &[u8]) -> Option<usize> {
    let blank_lines = [&b"\n\n"[..], b"\n\r\n", b"\r\r"];
    blank_lines.iter().filter_map(|end| Some(memmem::find(bytes, end)? + end.len())).min()
}

fn mentions_usage(bytes: &[u8]) -> bool {
    memmem::find(bytes, b"\"usage\"").is_some()
}

/// The range of a member with its comma.
fn member(object: &Value<'_>, name: &str) -> Option<Span> {
    let mut previous_end = None;
    let mut entries = object.entries();
    while let Some((key, value)) = entries.next() {
        if key.is(name) {
            return match (previous_end, entries.next()) {
                (Some(end), _) => Some(Span::new(end, value.span().end)),
                (None, Some((next, _))) => Some(Span::new(key.span().start, next.span().start)),
                (None, None) => Some(Span::new(key.span().start, value.span().end)),
            };
        }
        previous_end = Some(value.span().end);
    }
    None
}

#[cfg(test)]
mod tests;
