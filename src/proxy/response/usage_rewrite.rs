//! Changes the usage that a client gets, if policy says so (`client_usage = "unpruned"`): adds the tokens
//! that were cut and compacted to the input. Hides why the cache was missed, if only Plimsoll asked.
//!
//! Only the bytes of the numbers change, and the hidden members. Events are forwarded as they come; only the
//! unfinished end of one waits for its rest. A body of one JSON value waits for its end. Unreadable data passes unchanged.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use memchr::memmem;

use super::event_data::{EventData, ends_an_event, first_block};
use super::usage_strip::{MOST_AT_ONCE, UsageStrip};
use crate::dialect::reading::usage_spelling;
use crate::dialect::{Dialect, rewrite};
use crate::proxy::http::memory::{HeldMemory, MemoryBudget};
use crate::telemetry::MemoryKind;
use crate::wire::encoding::{DecodeError, Decoder};
use crate::wire::json::{Document, Span};
use crate::wire::memory::Memory as _;
use crate::wire::splice::{Edit, splice};

/// Most bytes of an unfinished event that are held; past it, nothing more is changed.
const HOLD: usize = 1024 * 1024;

/// The edits of a response.
pub(crate) enum ResponseEdits {
    /// Removes what is there only because we requested it.
    Strips(UsageStrip),
    /// Changes the usage.
    Rewrites(UsageRewrite),
}

impl ResponseEdits {
    pub(super) fn pass(&mut self, data: Bytes) -> Result<Bytes, DecodeError> {
        match self {
            Self::Strips(strip) => strip.pass(data),
            Self::Rewrites(rewriting) => rewriting.pass(data),
        }
    }

    pub(super) fn rest(&mut self) -> Bytes {
        match self {
            Self::Strips(strip) => strip.rest(),
            Self::Rewrites(rewriting) => rewriting.rest(),
        }
    }

    pub(super) fn is_cut(&mut self) -> bool {
        // The client, which gets it decoded, could not see that.
        match self {
            Self::Strips(strip) => strip.decoder.is_cut(),
            Self::Rewrites(rewriting) => rewriting.decoder.is_cut(),
        }
    }
}

/// Tokens to add to the input of a dialect's usage, and whether the diagnosis of its cache is hidden.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UsageAddition {
    pub(crate) dialect: Dialect,
    /// Tokens that were cut and compacted.
    pub(crate) tokens: u64,
    pub(crate) hides_diagnosis: bool,
    /// Whether the client asked for a stream.
    pub(crate) streams: bool,
}

/// Adds tokens to the usage of one response.
pub(crate) struct UsageRewrite {
    addition: UsageAddition,
    /// Decompresses it: the client gets it uncompressed.
    decoder: Decoder,
    /// Whether it is an event stream.
    is_events: bool,
    /// Most bytes that are held.
    most: usize,
    held: BytesMut,
    /// The memory of the held bytes.
    memory: HeldMemory,
    /// Nothing more is changed; bytes pass.
    gave_up: bool,
}

impl UsageRewrite {
    /// For a response with this `content-type` and these `content-encoding` lines, of which `most` bytes may
    /// be held. `None` if it cannot be decompressed, or if it is a stream that would have to be held
    /// (Gemini's, if not framed as events).
    pub(crate) fn new<'h>(
        addition: UsageAddition,
        content_type: &str,
        codings: impl Iterator<Item = &'h str>,
        most: usize,
        memory: &Arc<MemoryBudget>,
    ) -> Option<Self> {
        let is_events = match content_type {
            "" => addition.streams,
            kind => kind.starts_with("text/event-stream"),
        };
        if !is_events && (addition.streams || !content_type.contains("json")) {
            return None;
        }
        let decoder = Decoder::new(codings, MOST_AT_ONCE, || memory.counting(MemoryKind::Reply));
        let decoder = decoder.ok()?;
        Some(Self {
            addition,
            decoder,
            is_events,
            most: if is_events { HOLD } else { most },
            held: BytesMut::new(),
            memory: memory.guard(MemoryKind::Reply),
            gave_up: false,
        })
    }

    fn pass(&mut self, data: Bytes) -> Result<Bytes, DecodeError> {
        let data = match self.decoder.is_identity() {
            true => data,
            false => Bytes::from(self.decoder.push(&data)?.into_owned()),
        };
        let is_plain = self.is_events && ends_an_event(&data) && !self.may_change(&data);
        if self.gave_up || self.held.is_empty() && is_plain {
            return Ok(data);
        }
        self.held.extend_from_slice(&data);
        let mut forwarded = BytesMut::new();
        while self.is_events
            && let Some(end) = first_block(&self.held)
        {
            let event = self.held.split_to(end).freeze();
            forwarded.extend_from_slice(&self.event(event));
        }
        // A body is held, copied and parsed at its end, so its memory is reserved in advance.
        let times = if self.is_events { 1 } else { 4 };
        if self.held.len() > self.most || !self.memory.hold(times * self.held.len()) {
            self.gave_up = true;
            forwarded.unsplit(self.held.split());
        }
        Ok(forwarded.freeze())
    }

    fn may_change(&self, bytes: &[u8]) -> bool {
        let UsageAddition { tokens, hides_diagnosis, .. } = self.addition;
        tokens > 0 && mentions_usage(bytes) || hides_diagnosis && rewrite::mentions_diagnosis(bytes)
    }

    fn rest(&mut self) -> Bytes {
        let body = self.held.split().freeze();
        // An event without its blank line passes as it is; a body of one value has come to its end.
        match self.is_events || self.gave_up {
            true => body,
            false => self.value(&body, &body, |at| vec![at]).unwrap_or(body),
        }
    }

    fn event(&self, event: Bytes) -> Bytes {
        let data = EventData::new(&event);
        let rewritten = self.value(&data.text, &event, |at| data.ranges(at));
        rewritten.unwrap_or(event)
    }

    /// `place` says where a range of the JSON value `text` is in `whole`.
    fn value(
        &self,
        text: &[u8],
        whole: &Bytes,
        place: impl Fn(Span) -> Vec<Span>,
    ) -> Option<Bytes> {
        if !self.may_change(text) {
            return None;
        }
        let document = Document::read(text).ok()?;
        let root = document.root(text)?;
        let mut edits: Vec<Edit> = Vec::new();
        if self.addition.hides_diagnosis {
            for Edit { at, mut with } in rewrite::hide_diagnosis(self.addition.dialect, text) {
                // On several lines, what replaces it is on the first one.
                for at in place(at) {
                    edits.push(Edit { at, with: std::mem::take(&mut with) });
                }
            }
        }
        let spelling = usage_spelling(self.addition.dialect);
        if self.addition.tokens > 0 {
            for usage in spelling.reports(root) {
                for name in spelling.input {
                    // A number is never on two lines.
                    if let Some(member) = usage.get(name)
                        && let Some(number) = member.as_u64()
                        && let Some(at) = place(member.span()).first().copied()
                    {
                        let sum = number.saturating_add(self.addition.tokens);
                        edits.push(Edit { at, with: sum.to_string().into() });
                    }
                }
            }
        }
        let slices = splice(whole, edits).ok()?;
        Some(slices.concat().into())
    }
}

fn mentions_usage(bytes: &[u8]) -> bool {
    memmem::find(bytes, b"\"usage").is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewriting(dialect: Dialect, streams: bool) -> UsageRewrite {
        let kind = if streams { "text/event-stream" } else { "application/json" };
        UsageRewrite::new(
            UsageAddition { dialect, tokens: 900, hides_diagnosis: true, streams },
            kind,
            [].into_iter(),
            1000,
            &crate::proxy::http::memory::MemoryBudget::ample(),
        )
        .unwrap()
    }

    fn whole(dialect: Dialect, body: &str) -> String {
        let mut rewriting = rewriting(dialect, false);
        let (one, two) = body.split_at(body.len() / 2);
        for part in [one, two] {
            assert_eq!(rewriting.pass(Bytes::from(part.to_owned())).unwrap(), "");
        }
        String::from_utf8(rewriting.rest().to_vec()).unwrap()
    }

    /// Cut anywhere, a stream gives the same result, and other events pass unchanged.
    fn stream(dialect: Dialect, events: &str, expected: &str) {
        for cut in 0..=events.len() {
            if !events.is_char_boundary(cut) {
                continue;
            }
            let mut rewriting = rewriting(dialect, true);
            let mut sent = Vec::new();
            for part in [&events[..cut], &events[cut..]] {
                sent.extend_from_slice(&rewriting.pass(Bytes::from(part.to_owned())).unwrap());
            }
            sent.extend_from_slice(&rewriting.rest());
            assert_eq!(String::from_utf8(sent).unwrap(), expected, "cut at {cut}");
        }
    }

    #[test]
    fn only_usage_numbers_change() {
        for (dialect, body, changed) in [
            (
                Dialect::Anthropic,
                r#"{"type":"message", "content":[{"text":"\"usage\": {\"input_tokens\":1}"}],"usage":{ "input_tokens" : 100,"cache_read_input_tokens":50,"output_tokens":7}}"#,
                r#"{"type":"message", "content":[{"text":"\"usage\": {\"input_tokens\":1}"}],"usage":{ "input_tokens" : 1000,"cache_read_input_tokens":50,"output_tokens":7}}"#,
            ),
            (
                Dialect::OpenaiChat,
                r#"{"choices":[],"usage":{"prompt_tokens":100,"completion_tokens":7,"total_tokens":107}}"#,
                r#"{"choices":[],"usage":{"prompt_tokens":1000,"completion_tokens":7,"total_tokens":1007}}"#,
            ),
            (
                Dialect::OpenaiResponses,
                r#"{"output":[],"usage":{"input_tokens":100,"output_tokens":7,"total_tokens":107}}"#,
                r#"{"output":[],"usage":{"input_tokens":1000,"output_tokens":7,"total_tokens":1007}}"#,
            ),
            (
                Dialect::Gemini,
                r#"{"candidates":[],"usageMetadata":{"promptTokenCount":100,"totalTokenCount":107}}"#,
                r#"{"candidates":[],"usageMetadata":{"promptTokenCount":1000,"totalTokenCount":1007}}"#,
            ),
        ] {
            assert_eq!(whole(dialect, body), changed);
        }
    }

    #[test]
    fn usage_changes_event_by_event() {
        let begins = "event: message_start\ndata: {\"message\":{\"usage\":{\"input_tokens\":100,\"output_tokens\":1}}}\n\n";
        let event =
            "data: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"\\\"usage\\\"\"}}\n\n";
        let ends = "event: message_delta\ndata: {\"usage\":{\"output_tokens\":7,\"input_tokens\":null}}\n\n";
        let anthropic = format!("{begins}: ping\n\n{event}{ends}");
        stream(Dialect::Anthropic, &anthropic, &anthropic.replace(":100,", ":1000,"));
        let chat = "data: {\"choices\":[{}],\"usage\":null}\r\n\r\ndata: {\"usage\":{\"prompt_tokens\":100,\"total_tokens\":107}}\r\n\r\ndata: [DONE]\r\n\r\n";
        stream(Dialect::OpenaiChat, chat, &chat.replace("100,", "1000,").replace("107", "1007"));
        let responses = "data: {\"response\":{\"usage\":null}}\n\ndata: {\"type\":\"response.completed\",\"response\":{\"usage\":{\"input_tokens\":100,\"total_tokens\":107}}}\n\n";
        let changed = responses.replace("100,", "1000,").replace("107", "1007");
        stream(Dialect::OpenaiResponses, responses, &changed);
        let gemini =
            "data: {\"usageMetadata\":{\"promptTokenCount\":100,\"totalTokenCount\":107}}\n\n";
        stream(Dialect::Gemini, gemini, &gemini.replace("100,", "1000,").replace("107", "1007"));
    }

    #[test]
    fn unreadable_bodies_pass_unchanged() {
        let mut html = rewriting(Dialect::Anthropic, false);
        assert_eq!(html.pass(Bytes::from_static(b"<html>\"usage\"")).unwrap(), "");
        assert_eq!(html.rest(), "<html>\"usage\"");
        let body = |length: usize| format!("{:length$}", r#"{"usage":{"input_tokens":1}}"#);
        let mut at = rewriting(Dialect::Anthropic, false);
        assert_eq!(at.pass(body(1000).into()).unwrap(), "", "at the limit");
        assert!(at.rest().starts_with(br#"{"usage":{"input_tokens":901}}"#));
        let mut past = rewriting(Dialect::Anthropic, false);
        assert_eq!(past.pass(body(1001).into()).unwrap(), body(1001));
        assert_eq!(past.pass(Bytes::from_static(b"x")).unwrap(), "x");
        assert_eq!(past.rest(), "");
    }

    #[test]
    fn unframed_streams_are_left_alone() {
        let of = |streams, kind, encoding| {
            let (dialect, hides_diagnosis) = (Dialect::Gemini, false);
            let addition = UsageAddition { dialect, tokens: 1, hides_diagnosis, streams };
            UsageRewrite::new(
                addition,
                kind,
                [encoding].into_iter(),
                10,
                &crate::proxy::http::memory::MemoryBudget::ample(),
            )
            .is_some()
        };
        assert!(!of(true, "application/json", ""), "Gemini's array");
        assert!(of(false, "application/json; charset=utf-8", "gzip"));
        assert!(of(true, "", ""));
        assert!(!of(false, "application/json", "unheard-of"));
        assert!(!of(false, "text/html", ""));
    }
}
