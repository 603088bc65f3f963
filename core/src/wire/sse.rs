//! Event streams by framing: takes bytes in any cuts, and yields events with their position in the stream.
//!
//! Follows the WHATWG event-stream rules, with two extensions that real providers need: white space before a
//! field name is skipped, and a bare `error:` line is an event of its own, as recorded streams have it.
//! Bounded: an event past the limit ends the reading, not the stream. Must not know what the data means.

use memchr::{memchr, memchr2};

#[cfg(any(test, fuzzing))]
use super::cuts::InputCuts;

/// One event of a stream, without its framing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SseEvent<'a> {
    /// The `event:` field; empty if there was none.
    pub name: &'a str,
    /// The `data:` lines, joined by `\n`.
    pub data: &'a [u8],
    /// The stream offset of its first line. Comments before it do not belong to it.
    pub start: u64,
    /// The stream offset after its blank line. Of a final CRLF only the CR is included.
    pub end: u64,
}

/// An event as a server sends it. `name` may be empty. Data of several lines becomes several `data:` lines.
pub fn write_event(name: &str, data: &str) -> String {
    let mut text = String::with_capacity(name.len() + data.len() + 16);
    if !name.is_empty() {
        text.extend(["event: ", name, "\n"]);
    }
    for line in data.split('\n') {
        text.extend(["data: ", line, "\n"]);
    }
    text.push('\n');
    text
}

/// Cuts a byte stream into events.
#[derive(Debug, Default)]
pub struct Framer {
    limit: usize,
    /// The unfinished line at the end of the last push.
    line: Vec<u8>,
    name: String,
    data: Vec<u8>,
    has_data: bool,
    /// Whether a line that is not a comment has been seen since the last event.
    begun: bool,
    /// The offset of the next byte.
    at: u64,
    start: u64,
    after_cr: bool,
    gave_up: bool,
}

impl Framer {
    /// A framer at the start of a stream. `limit` is the most bytes of one event, all of its lines included.
    pub fn new(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

    pub(crate) fn gave_up(&self) -> bool {
        self.gave_up
    }

    pub(crate) fn holds(&self) -> usize {
        self.line.capacity() + self.name.capacity() + self.data.capacity()
    }

    fn is_inside(&self) -> bool {
        self.begun || !self.line.is_empty()
    }

    /// Takes the next bytes, cut anywhere; `each` receives every event that they complete.
    pub fn push(&mut self, mut bytes: &[u8], mut each: impl FnMut(SseEvent<'_>)) {
        while !bytes.is_empty() && !self.gave_up {
            if std::mem::take(&mut self.after_cr) && bytes[0] == b'\n' {
                self.step_over(1);
                bytes = &bytes[1..];
            } else if let Some(plain) = self.plain_event(bytes) {
                let start = self.at;
                let end = start + plain.len as u64;
                each(SseEvent { name: plain.name, data: plain.data, start, end });
                self.at = end;
                self.start = end;
                self.after_cr = plain.ends_in_cr;
                bytes = &bytes[plain.len..];
            } else {
                bytes = self.line(bytes, &mut each);
            }
        }
    }

    /// The stream has ended: an event without its final blank line counts too, because some providers omit
    /// that line.
    pub fn finish(&mut self, mut each: impl FnMut(SseEvent<'_>)) {
        let line = std::mem::take(&mut self.line);
        if !line.is_empty() && !self.gave_up {
            self.take_line(&line, &mut each);
        }
        self.dispatch(&mut each);
    }

    fn plain_event<'b>(&self, bytes: &'b [u8]) -> Option<PlainEvent<'b>> {
        // Without a copy: the next event lies entirely in these bytes.
        if self.is_inside() || self.at == 0 {
            return None; // the stream's first line may begin with a BOM
        }
        PlainEvent::read(bytes).filter(|plain| plain.len <= self.limit)
    }

    /// Takes one line, or the part of it that has arrived; returns the bytes after it.
    fn line<'b>(&mut self, bytes: &'b [u8], each: &mut impl FnMut(SseEvent<'_>)) -> &'b [u8] {
        let Some(end) = memchr2(b'\n', b'\r', bytes) else {
            self.at += bytes.len() as u64;
            if !self.is_too_long() {
                self.line.extend_from_slice(bytes);
            }
            return &[];
        };
        self.after_cr = bytes[end] == b'\r';
        self.at += end as u64 + 1;
        if self.is_too_long() {
            return &[];
        }
        if self.line.is_empty() {
            self.take_line(&bytes[..end], each);
        } else {
            let mut line = std::mem::take(&mut self.line);
            line.extend_from_slice(&bytes[..end]);
            self.take_line(&line, each);
            line.clear();
            // The buffer is kept for the next line that arrives in pieces.
            self.line = line;
        }
        &bytes[end + 1..]
    }

    fn step_over(&mut self, count: u64) {
        // If no event has begun, the next one starts after them.
        let between = self.start == self.at;
        self.at += count;
        if between {
            self.start = self.at;
        }
    }

    fn take_line(&mut self, line: &[u8], each: &mut impl FnMut(SseEvent<'_>)) {
        let is_first = self.at <= line.len() as u64 + 1;
        let line = if is_first { line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line) } else { line };
        if line.is_empty() {
            return self.dispatch(each);
        }
        let (field, value) = field(line.trim_ascii_start());
        if field.is_empty() && !self.begun {
            self.start = self.at; // a comment before an event is not part of it
            return;
        }
        self.begun = true;
        match field {
            b"data" => {
                if self.has_data {
                    self.data.push(b'\n');
                }
                self.has_data = true;
                self.data.extend_from_slice(value);
            }
            b"event" => {
                self.name.clear();
                self.name.push_str(&String::from_utf8_lossy(value));
            }
            // Not in the standard: some servers send an error as a field of its own.
            b"error" => {
                each(SseEvent { name: "error", data: value, start: self.start, end: self.at });
            }
            _ => {}
        }
    }

    fn dispatch(&mut self, each: &mut impl FnMut(SseEvent<'_>)) {
        // An event without data is not dispatched, as the standard has it.
        if self.has_data && !self.gave_up {
            each(SseEvent { name: &self.name, data: &self.data, start: self.start, end: self.at });
        }
        self.name.clear();
        self.data.clear();
        self.has_data = false;
        self.begun = false;
        self.start = self.at;
    }

    /// Whether the event so far is past the limit; gives up if it is.
    fn is_too_long(&mut self) -> bool {
        if self.at - self.start > self.limit as u64 {
            self.gave_up = true;
            self.line = Vec::new();
            self.data = Vec::new();
        }
        self.gave_up
    }
}

fn field(line: &[u8]) -> (&[u8], &[u8]) {
    // The field of a comment has no name.
    let (field, value) = match memchr(b':', line) {
        Some(colon) => (&line[..colon], &line[colon + 1..]),
        None => (line, &b""[..]),
    };
    (field, value.strip_prefix(b" ").unwrap_or(value))
}

/// A typical event: at most one `event:` line, one `data:` line, and a blank line.
struct PlainEvent<'b> {
    name: &'b str,
    data: &'b [u8],
    len: usize,
    ends_in_cr: bool,
}

impl<'b> PlainEvent<'b> {
    fn read(bytes: &'b [u8]) -> Option<Self> {
        // An event with other fields, or several lines of data, is put together line by line.
        let mut name = "";
        let mut data = None;
        let mut position = 0;
        loop {
            let rest = bytes.get(position..)?;
            let end = memchr2(b'\n', b'\r', rest)?;
            let is_cr = rest[end] == b'\r';
            if end == 0 {
                return Some(Self { name, data: data?, len: position + 1, ends_in_cr: is_cr });
            }
            match field(&rest[..end]) {
                (b"data", value) if data.is_none() => data = Some(value),
                (b"event", value) => name = std::str::from_utf8(value).ok()?,
                _ => return None,
            }
            let is_crlf = is_cr && *rest.get(end + 1)? == b'\n';
            position += end + 1 + usize::from(is_crlf);
        }
    }
}

/// Fuzz: the events do not depend on the cuts, at the limit too; they are in order, and each one's bytes by
/// themselves frame to the same event.
#[cfg(any(test, fuzzing))]
pub fn fuzz(bytes: &[u8]) {
    let cuts = InputCuts::new(bytes);
    for limit in [16, 1 << 20] {
        let whole = events_in(bytes, bytes.len().max(1), limit);
        for size in cuts.sizes() {
            assert_eq!(events_in(bytes, *size, limit), whole, "cut every {size} bytes");
        }
        for at in cuts.places() {
            let (first, second) = bytes.split_at(at);
            assert_eq!(events_of([first, second].into_iter(), limit), whole, "cut at {at}");
        }
        let has_error = whole.iter().any(|event| event.0 == "error");
        let ends = std::iter::once(0).chain(whole.iter().map(|event| event.3));
        for (before, (name, data, start, end)) in ends.zip(&whole) {
            assert!(start < end);
            assert!(*end <= bytes.len() as u64);
            if name != "error" {
                assert!(before <= *start || has_error);
                let own = &bytes[*start as usize..*end as usize];
                let lead: &[u8] = if *start == 0 { b"" } else { b"\n" }; // a BOM counts only at offset 0
                let retry = events_of([lead, own].into_iter(), 1 << 20);
                assert!(retry.last().is_some_and(|own| (&own.0, &own.1) == (name, data)));
            }
        }
    }
}

#[cfg(any(test, fuzzing))]
type FramedEvents = Vec<(String, Vec<u8>, u64, u64)>;

#[cfg(any(test, fuzzing))]
fn events_in(bytes: &[u8], size: usize, limit: usize) -> FramedEvents {
    events_of(bytes.chunks(size), limit)
}

#[cfg(any(test, fuzzing))]
fn events_of<'b>(chunks: impl Iterator<Item = &'b [u8]>, limit: usize) -> FramedEvents {
    let mut framer = Framer::new(limit);
    let mut events = Vec::new();
    let mut keep =
        |e: SseEvent<'_>| events.push((e.name.to_owned(), e.data.to_vec(), e.start, e.end));
    for chunk in chunks {
        framer.push(chunk, &mut keep);
    }
    framer.finish(keep);
    events
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(stream: &str, expected: &[(&str, &str)]) {
        let events = events_in(stream.as_bytes(), stream.len().max(1), 1 << 20);
        let seen: Vec<_> =
            events.iter().map(|(n, d, ..)| (n.as_str(), std::str::from_utf8(d).unwrap())).collect();
        assert_eq!(seen, expected, "{stream:?}");
        fuzz(stream.as_bytes());
    }

    #[test]
    fn written_event_can_be_read_again() {
        for (name, data) in [("", "{}"), ("error", "{}"), ("say", "two\nlines\n"), ("empty", "")] {
            check(&write_event(name, data), &[(name, data)]);
        }
    }

    #[test]
    fn line_ends_and_fields_are_read() {
        check("data: a\n\ndata: b\n\n", &[("", "a"), ("", "b")]);
        check("event: x\r\ndata: a\r\n\r\ndata:b\r\n\r\n", &[("x", "a"), ("", "b")]);
        check("data: a\r\rdata: b\r\r", &[("", "a"), ("", "b")]);
        check("data: a\n\r\ndata: b\r\n\ndata: c\r\n\r\n", &[("", "a"), ("", "b"), ("", "c")]);
        check("data: a\ndata:  b\ndata\n\n", &[("", "a\n b\n")]);
        check("data: 0\n\nevent: m\ndata: a\ndata: b\n\n", &[("", "0"), ("m", "a\nb")]);
        check("id: 1\nretry: 5\n: comment\ndata: a\n\n", &[("", "a")]);
        check("data: 0\n\nid: 1\nretry: 5\ndata: a\n\n", &[("", "0"), ("", "a")]);
        check(": ping\n\n: ping\n\nevent: lonely\n\ndata: a\n\n", &[("", "a")]);
        check(" data: a\n\n", &[("", "a")]);
        check("data: a\u{0}b\n\ndata: \u{0}\n\n", &[("", "a\u{0}b"), ("", "\u{0}")]);
        check("data\n\ndata:\n\n", &[("", ""), ("", "")]);
        check("datas: a\ndat: b\n\n", &[]);
        check("data: a\n \ndata: b\n\n", &[("", "a\nb")]);
    }

    #[test]
    fn bom_is_removed_from_stream_only() {
        check("\u{feff}data: a\n\ndata: b\n\n", &[("", "a"), ("", "b")]);
        check("\u{feff}\n\ndata: b\n\n", &[("", "b")]);
        check("data: a\n\n\u{feff}data: b\n\n", &[("", "a")]);
    }

    #[test]
    fn invalid_utf_8_stays_as_it_is() {
        let stream = b"event: \xff\ndata: \xff\xfe\n\nevent: \xff\ndata: \xc3\n\n";
        let events = events_in(stream, stream.len(), 100);
        let seen: Vec<_> = events.iter().map(|(n, d, ..)| (n.as_str(), d.as_slice())).collect();
        assert_eq!(seen, [("\u{fffd}", &b"\xff\xfe"[..]), ("\u{fffd}", &b"\xc3"[..])]);
        fuzz(stream);
    }

    #[test]
    fn error_line_is_event() {
        check("data: a\n\nerror: {\"code\":500}\n", &[("", "a"), ("error", "{\"code\":500}")]);
    }

    #[test]
    fn last_event_may_lack_its_blank_line() {
        check("data: a\n\ndata: [DONE]", &[("", "a"), ("", "[DONE]")]);
        let mut framer = Framer::new(100);
        framer.push(b"data: half", |_| panic!("not an event yet"));
        assert!(framer.is_inside());
    }

    #[test]
    fn offsets_cut_stream_exactly() {
        let stream = b": c\n\n: d\nevent: a\ndata: 1\n\ndata: 2\n\n";
        let mut framer = Framer::new(100);
        let mut spans = Vec::new();
        framer.push(stream, |e| spans.push((e.start as usize, e.end as usize)));
        assert_eq!(spans, [(9, 27), (27, 36)]);
        assert_eq!(&stream[27..36], b"data: 2\n\n");
    }

    #[test]
    fn event_that_is_whole_in_one_chunk_is_not_copied() {
        let stream = b"data: 0\n\nevent: a\ndata: 1\n\ndata: 2\r\n\r\n";
        let mut framer = Framer::new(100);
        let mut inside = 0;
        let range = stream.as_ptr_range();
        framer.push(stream, |e| inside += usize::from(range.contains(&e.data.as_ptr())));
        assert_eq!(inside, 2, "all but the stream's first");
    }

    #[test]
    fn too_long_event_ends_reading() {
        let long = format!("data: {}\n\n", "x".repeat(1 << 20));
        let at_limit = |limit: usize| {
            let mut framer = Framer::new(limit);
            let mut seen = None;
            framer.push(long.as_bytes(), |e| seen = Some(e.data.len()));
            framer.push(b"data: a\n\n", |_| {});
            (seen, framer.gave_up())
        };
        assert_eq!(at_limit(long.len()), (Some(1 << 20), false));
        assert_eq!(at_limit(long.len() - 1), (None, true));
        let mut framer = Framer::new(8);
        for _ in 0..100 {
            framer.push(b": c\n: c\n\n", |_| panic!("comments are no events"));
        }
        assert!(!framer.gave_up(), "comments do not add up to an event");
    }

    proptest! {
        #[test]
        fn any_cut_gives_same_events(bytes in proptest::collection::vec(prop_oneof![
            proptest::sample::select(b"data: event\n\r\r\n:x".to_vec()), any::<u8>()], 0..200)) {
            fuzz(&bytes);
        }

        #[test]
        fn any_lines_in_any_cut_give_same_events(lines in proptest::collection::vec(
            proptest::sample::select(vec!["data: a", "data:b", "event: n", ": c", "id: 1", "", "", "",
                "error: e", " data: s", "\u{feff}data: x", " "]), 0..20),
            ends in proptest::collection::vec(proptest::sample::select(vec!["\n", "\r\n", "\r"]), 20)) {
            let stream: String =
                lines.iter().zip(&ends).flat_map(|(line, end)| [*line, *end]).collect();
            fuzz(stream.as_bytes());
        }
    }
}
