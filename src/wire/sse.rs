//! Event streams by framing: bytes in, in any cuts, events out, each with its place in the stream.
//!
//! The WHATWG event-stream rules, and two kindnesses that real providers need: white space before a
//! field name is skipped, and a bare `error:` line is an event of its own (`deviations.md`). Bounded:
//! an event past the limit ends the reading, not the stream. Must not know what the data means.

use memchr::memchr2;

/// One event as it was framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// The `event:` field; empty where none was given.
    pub name: &'a str,
    /// The `data:` lines, joined by `\n`.
    pub data: &'a [u8],
    /// Stream offset of its first byte (comments before it count to it).
    pub start: u64,
    /// Stream offset after its blank line. Of a final CRLF only the CR is counted.
    pub end: u64,
}

/// Cuts a byte stream into events.
#[derive(Debug)]
pub struct Framer {
    limit: usize,
    /// The unfinished line that ended the last push.
    line: Vec<u8>,
    name: String,
    data: Vec<u8>,
    has_data: bool,
    /// Offset of the next byte.
    at: u64,
    start: u64,
    after_cr: bool,
    gave_up: bool,
}

impl Framer {
    /// A framer at the start of a stream. `limit`: most bytes of one event.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            line: Vec::new(),
            name: String::new(),
            data: Vec::new(),
            has_data: false,
            at: 0,
            start: 0,
            after_cr: false,
            gave_up: false,
        }
    }

    /// Whether an event was longer than the limit; nothing is framed after that.
    pub fn gave_up(&self) -> bool {
        self.gave_up
    }

    /// Whether the bytes so far end inside an event.
    pub fn is_inside(&self) -> bool {
        self.has_data || !self.line.is_empty() || !self.name.is_empty()
    }

    /// The next bytes, cut anywhere; `each` gets every event they complete.
    pub fn push(&mut self, mut bytes: &[u8], mut each: impl FnMut(Event<'_>)) {
        while !bytes.is_empty() && !self.gave_up {
            if std::mem::take(&mut self.after_cr) && bytes[0] == b'\n' {
                self.skip(1);
                bytes = &bytes[1..];
                continue;
            }
            let Some(end) = memchr2(b'\n', b'\r', bytes) else {
                self.at += bytes.len() as u64;
                self.line.extend_from_slice(bytes);
                self.check_limit();
                return;
            };
            self.after_cr = bytes[end] == b'\r';
            self.at += end as u64 + 1;
            if self.line.is_empty() {
                self.take_line(&bytes[..end], &mut each);
            } else {
                let mut line = std::mem::take(&mut self.line);
                line.extend_from_slice(&bytes[..end]);
                self.take_line(&line, &mut each);
                line.clear();
                self.line = line;
            }
            bytes = &bytes[end + 1..];
        }
    }

    /// The stream has ended whole: what stands without its blank line is an event too, because some
    /// providers leave the last one out.
    pub fn finish(&mut self, mut each: impl FnMut(Event<'_>)) {
        let line = std::mem::take(&mut self.line);
        if !line.is_empty() && !self.gave_up {
            self.take_line(&line, &mut each);
        }
        self.dispatch(&mut each);
    }

    /// Steps over bytes that belong to no event when none has begun.
    fn skip(&mut self, count: u64) {
        let between = self.start == self.at;
        self.at += count;
        if between {
            self.start = self.at;
        }
    }

    fn take_line(&mut self, line: &[u8], each: &mut impl FnMut(Event<'_>)) {
        let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line).trim_ascii_start();
        if line.is_empty() {
            self.dispatch(each);
            return;
        }
        let (field, value) = match memchr::memchr(b':', line) {
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, &b""[..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"data" => {
                if self.has_data {
                    self.data.push(b'\n');
                }
                self.has_data = true;
                self.data.extend_from_slice(value);
                self.check_limit();
            }
            b"event" => {
                self.name.clear();
                self.name.push_str(&String::from_utf8_lossy(value));
            }
            b"error" => {
                each(Event { name: "error", data: value, start: self.start, end: self.at });
            }
            _ => {}
        }
    }

    fn dispatch(&mut self, each: &mut impl FnMut(Event<'_>)) {
        if self.has_data && !self.gave_up {
            each(Event { name: &self.name, data: &self.data, start: self.start, end: self.at });
        }
        self.name.clear();
        self.data.clear();
        self.has_data = false;
        self.start = self.at;
    }

    fn check_limit(&mut self) {
        if self.line.len() + self.data.len() > self.limit {
            self.gave_up = true;
            self.line = Vec::new();
            self.data = Vec::new();
        }
    }
}

/// Fuzz: whatever the cuts, the events are the same.
#[doc(hidden)]
pub fn fuzz(bytes: &[u8]) {
    let whole = framed(bytes, bytes.len().max(1));
    for size in [1, 2, 3, 7] {
        assert_eq!(framed(bytes, size), whole, "cut every {size} bytes");
    }
}

fn framed(bytes: &[u8], size: usize) -> Vec<(String, Vec<u8>, u64)> {
    let mut framer = Framer::new(1 << 20);
    let mut events = Vec::new();
    let mut keep = |e: Event<'_>| events.push((e.name.to_owned(), e.data.to_vec(), e.start));
    for chunk in bytes.chunks(size) {
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
        let events = framed(stream.as_bytes(), stream.len().max(1));
        let seen: Vec<_> =
            events.iter().map(|(n, d, _)| (n.as_str(), std::str::from_utf8(d).unwrap())).collect();
        assert_eq!(seen, expected, "{stream:?}");
        fuzz(stream.as_bytes());
    }

    #[test]
    fn line_ends_and_fields() {
        check("data: a\n\ndata: b\n\n", &[("", "a"), ("", "b")]);
        check("event: x\r\ndata: a\r\n\r\ndata:b\r\n\r\n", &[("x", "a"), ("", "b")]);
        check("data: a\r\rdata: b\r\r", &[("", "a"), ("", "b")]);
        check("\u{feff}data: a\n\n", &[("", "a")]);
        check("data: a\ndata:  b\ndata\n\n", &[("", "a\n b\n")]);
        check("id: 1\nretry: 5\n: comment\ndata: a\n\n", &[("", "a")]);
        check(": ping\n\n: ping\n\nevent: lonely\n\ndata: a\n\n", &[("", "a")]);
        check(" data: a\n\n", &[("", "a")]);
        check("data: a\u{0}b\n\n", &[("", "a\u{0}b")]);
    }

    #[test]
    fn an_error_line_is_an_event() {
        check("data: a\n\nerror: {\"code\":500}\n", &[("", "a"), ("error", "{\"code\":500}")]);
    }

    #[test]
    fn the_last_event_may_lack_its_blank_line() {
        check("data: a\n\ndata: [DONE]", &[("", "a"), ("", "[DONE]")]);
        let mut framer = Framer::new(100);
        framer.push(b"data: half", |_| panic!("not an event yet"));
        assert!(framer.is_inside());
    }

    #[test]
    fn offsets_cut_the_stream_exactly() {
        let stream = b": c\n\nevent: a\ndata: 1\n\ndata: 2\n\n";
        let mut framer = Framer::new(100);
        let mut spans = Vec::new();
        framer.push(stream, |e| spans.push((e.start as usize, e.end as usize)));
        assert_eq!(spans, [(5, 23), (23, 32)]);
        assert_eq!(&stream[23..32], b"data: 2\n\n");
    }

    #[test]
    fn a_long_event_ends_the_reading_only() {
        let long = format!("data: {}\n\n", "x".repeat(1 << 20));
        let mut framer = Framer::new(2 << 20);
        let mut seen = 0;
        framer.push(long.as_bytes(), |e| seen = e.data.len());
        assert_eq!(seen, 1 << 20);
        let mut framer = Framer::new(1 << 10);
        framer.push(long.as_bytes(), |_| panic!("past the limit"));
        assert!(framer.gave_up());
        framer.push(b"data: a\n\n", |_| panic!("it gave up"));
    }

    proptest! {
        #[test]
        fn any_cut_gives_the_same_events(bytes in proptest::collection::vec(prop_oneof![
            proptest::sample::select(b"data: event\n\r\r\n:x".to_vec()), any::<u8>()], 0..200)) {
            fuzz(&bytes);
        }
    }
}
