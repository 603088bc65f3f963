//! The data of an event as one text, and where each piece of it is in the event.
//!
//! The data of an event are its `data:` lines, joined by line feeds (HTML, Server-sent events). Edits of the text
//! become edits of the lines: what is between them stays. Knows no JSON.

use std::borrow::Cow;

use crate::wire::json::Span;

const BOM: &[u8] = b"\xef\xbb\xbf";
const FIELD: &[u8] = b"data:";

/// The data of one event.
pub(super) struct EventData<'e> {
    pub(super) text: Cow<'e, [u8]>,
    /// The values of its `data:` lines, in the event.
    lines: Vec<Span>,
}

impl<'e> EventData<'e> {
    pub(super) fn new(event: &'e [u8]) -> Self {
        let mut lines = Vec::new();
        let mut start = if event.starts_with(BOM) { BOM.len() } else { 0 };
        while start < event.len() {
            let LineEnd { end, next } =
                line_end(event, start).unwrap_or(LineEnd { end: event.len(), next: event.len() });
            let line = event[start..end].trim_ascii_start();
            if line.starts_with(FIELD) {
                lines.push(Span::new(end - line.len() + FIELD.len(), end));
            }
            start = next;
        }
        let text = match lines.as_slice() {
            [] => Cow::Borrowed(&event[..0]),
            [line] => Cow::Borrowed(line.slice(event)),
            several => {
                let values: Vec<&[u8]> = several.iter().map(|line| line.slice(event)).collect();
                Cow::Owned(values.join(&b'\n'))
            }
        };
        Self { text, lines }
    }

    pub(super) fn ranges(&self, of: Span) -> Vec<Span> {
        let mut ranges = Vec::new();
        let mut begins = 0;
        for line in &self.lines {
            let ends = begins + (line.end - line.start);
            let from = of.start.max(begins);
            let to = of.end.min(ends);
            if from < to {
                let start = line.start + from - begins;
                ranges.push(Span::new(start, start + to - from));
            }
            // The line feed that joins it to the next line.
            begins = ends + 1;
        }
        ranges
    }
}

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

fn line_end(bytes: &[u8], start: usize) -> Option<LineEnd> {
    let end = start + memchr::memchr2(b'\n', b'\r', bytes.get(start..)?)?;
    // A CR at the end of the bytes may be half of a CRLF, unless lines end with CR alone.
    let is_alone = end == start && start > 0 && bytes[start - 1] == b'\r';
    let length = match (bytes[end], bytes.get(end + 1)) {
        (b'\n', _) => 1,
        (_, Some(b'\n')) => 2,
        (_, Some(_)) => 1,
        (_, None) if is_alone => 1,
        (_, None) => return None,
    };
    Some(LineEnd { end, next: end + length })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_joined_and_found_again() {
        let event = b": c\r\ndata: {\"a\":\r\nid: 7\r\n data:1,\r\ndata: \"b\":2}\r\n\r\n";
        let data = EventData::new(event);
        assert_eq!(&*data.text, b" {\"a\":\n1,\n \"b\":2}");
        let pieces = |from, to| {
            let ranges = data.ranges(Span::new(from, to)).into_iter();
            ranges
                .map(|it| String::from_utf8_lossy(it.slice(event)).into_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(pieces(2, 5), ["\"a\""]);
        assert_eq!(pieces(5, 12), [":", "1,", " \""]);
        assert_eq!(&*EventData::new(b"event: x\n\n").text, b"");
        assert_eq!(&*EventData::new(b"\xef\xbb\xbfdata:x").text, b"x", "no end, and a BOM");
    }
}
