//! The single pass over a JSON text, which yields the range of every value.
//!
//! Checks structure, not every control character, as providers do. Must not recurse, and does not panic.

use super::lists::{KnownElement, KnownElements};
use super::strings::closing_quote;

/// A byte range of a body, `start..end`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

impl Span {
    /// The range `start..end`.
    pub fn new(start: usize, end: usize) -> Self {
        Self { start, end }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.end.saturating_sub(self.start)
    }

    /// Whether the range is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes in the range; empty if it does not fit `body`.
    pub fn slice<'b>(&self, body: &'b [u8]) -> &'b [u8] {
        body.get(self.start..self.end).unwrap_or_default()
    }
}

/// The kind of a JSON value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `null`
    Null,
    /// `true` or `false`
    Bool,
    /// A number, in whatever form it was written.
    Number,
    /// A string, quotes included in its range.
    String,
    /// `[…]`
    Array,
    /// `{…}`
    Object,
}

/// Why bytes are not one JSON value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// The bytes end inside a value.
    #[error("the JSON ends too early, at byte {0}")]
    Ends(usize),
    /// A byte that cannot stand here.
    #[error("not JSON at byte {0}")]
    Unexpected(usize),
    /// Nested deeper than [`MAX_DEPTH`].
    #[error("JSON nested deeper than {MAX_DEPTH} at byte {0}")]
    TooDeep(usize),
    /// More values than [`most_values`](super::most_values) allows for a text of that length.
    #[error("more JSON values than are read, at byte {0}")]
    TooMany(usize),
    /// Longer than a `u32` can address.
    #[error("JSON longer than 4 GiB")]
    TooLong,
}

/// The deepest nesting that is read; a deeper body is opaque. Real requests stay below 30.
pub(super) const MAX_DEPTH: usize = 512;

/// One value, in 16 bytes: its range, and where its subtree ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    pub(super) start: u32,
    pub(super) end: u32,
    /// Index of the first node after this one's subtree.
    pub(super) next: u32,
    pub(super) kind: Kind,
    /// A string with at least one backslash.
    pub(super) escaped: bool,
    /// A known element of a list, whose members were not read.
    pub(super) passed_over: bool,
}

/// Reads the value that begins at `start`, with at most `most` values, into `nodes`. Returns how many values are in
/// elements that were passed over.
pub(super) fn scan(
    bytes: &[u8],
    start: usize,
    most: usize,
    nodes: &mut Vec<Node>,
    elements: &mut impl KnownElements,
) -> Result<usize, JsonError> {
    let mut scanner = Scanner {
        bytes,
        at: start,
        open: NONE,
        depth: 0,
        most,
        nodes,
        hidden: 0,
        list: NONE,
        element: NONE,
        elements,
    };
    scanner.run()?;
    Ok(scanner.hidden)
}

/// The state of the single pass.
struct Scanner<'b, 'n, E> {
    bytes: &'b [u8],
    at: usize,
    /// The innermost open array or object. While it is open, its `end` holds the index of the one around it:
    /// so no memory is needed besides the nodes.
    open: u32,
    /// The number of open arrays and objects.
    depth: usize,
    /// The most values that are read.
    most: usize,
    nodes: &'n mut Vec<Node>,
    /// The values of elements that were passed over.
    hidden: usize,
    /// The open list whose elements may be known.
    list: u32,
    /// The open element of that list.
    element: u32,
    elements: &'n mut E,
}

/// No array or object is open.
const NONE: u32 = u32::MAX;

impl<E: KnownElements> Scanner<'_, '_, E> {
    fn run(&mut self) -> Result<(), JsonError> {
        if self.bytes.len() >= u32::MAX as usize {
            return Err(JsonError::TooLong);
        }
        loop {
            let byte = self.next()?;
            if self.nodes.len() + self.hidden >= self.most {
                return Err(JsonError::TooMany(self.at));
            }
            if E::EXIST && self.list != NONE && self.open == self.list && self.pass_over()? {
                if self.close()? {
                    return Ok(());
                }
                continue;
            }
            if let Some(kind) = container(byte) {
                if self.depth == MAX_DEPTH {
                    return Err(JsonError::TooDeep(self.at));
                }
                if E::EXIST && kind == Kind::Array && self.list == NONE && self.begins_list() {
                    self.list = self.nodes.len() as u32;
                }
                // Until it is closed, the end of a container is the index of the one around it.
                let parent = std::mem::replace(&mut self.open, self.nodes.len() as u32);
                self.push(kind, self.at, parent as usize, false);
                self.at += 1;
                self.depth += 1;
                if self.next()? != closer(kind) {
                    self.key_in(kind)?;
                    continue;
                }
            } else {
                self.scalar(byte)?;
            }
            if self.close()? {
                return Ok(());
            }
        }
    }

    /// Whether the array that begins here is a list whose elements may be known.
    fn begins_list(&mut self) -> bool {
        let Some(parent) = self.nodes.get(self.open as usize) else { return false };
        if parent.kind != Kind::Object {
            return false;
        }
        // In an object, the last node is the key.
        let Some(key) = self.nodes.last() else { return false };
        let name = Span::new(key.start as usize + 1, key.end as usize - 1).slice(self.bytes);
        self.elements.begin(name, self.depth)
    }

    /// Passes over the element that begins here, if it is known.
    fn pass_over(&mut self) -> Result<bool, JsonError> {
        let Some(KnownElement { end, values }) = self.elements.known(self.bytes, self.at) else {
            self.element = self.nodes.len() as u32;
            return Ok(false);
        };
        self.push(Kind::Object, self.at, end, false);
        if let Some(element) = self.nodes.last_mut() {
            element.passed_over = true;
        }
        self.hidden += values - 1;
        self.at = end;
        // As if each of its values had been read.
        if self.nodes.len() + self.hidden > self.most {
            return Err(JsonError::TooMany(self.at));
        }
        Ok(true)
    }

    fn end_element(&mut self) {
        if self.open == self.list && self.element != NONE {
            let start = self.nodes[self.element as usize].start as usize;
            self.elements.add(self.bytes, start, self.at);
            self.element = NONE;
        }
    }

    /// Runs after a complete value: closes arrays and objects that end here, and skips the comma before the
    /// next value. Returns true if the outermost value is complete and only white space follows.
    fn close(&mut self) -> Result<bool, JsonError> {
        while self.open != NONE {
            if E::EXIST {
                self.end_element();
            }
            let byte = self.next()?;
            let next_index = self.nodes.len() as u32;
            let top = &mut self.nodes[self.open as usize];
            let kind = top.kind;
            self.at += 1;
            if byte == closer(kind) {
                if E::EXIST && self.open == self.list {
                    self.list = NONE;
                }
                self.open = std::mem::replace(&mut top.end, self.at as u32);
                top.next = next_index;
                self.depth -= 1;
            } else if byte == b',' {
                self.key_in(kind)?;
                return Ok(false);
            } else {
                return Err(JsonError::Unexpected(self.at - 1));
            }
        }
        if self.next().is_ok() { Err(JsonError::Unexpected(self.at)) } else { Ok(true) }
    }

    fn key_in(&mut self, kind: Kind) -> Result<(), JsonError> {
        // In an object, reads the key and its colon; in an array, nothing.
        if kind != Kind::Object {
            return Ok(());
        }
        if self.next()? != b'"' {
            return Err(JsonError::Unexpected(self.at));
        }
        self.string()?;
        if self.next()? != b':' {
            return Err(JsonError::Unexpected(self.at));
        }
        self.at += 1;
        Ok(())
    }

    fn scalar(&mut self, first: u8) -> Result<(), JsonError> {
        match first {
            b'"' => self.string(),
            b'-' | b'0'..=b'9' => {
                let start = self.at;
                let digits = self.bytes[start..].iter();
                self.at += digits
                    .take_while(|b| matches!(b, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E'))
                    .count();
                self.push(Kind::Number, start, self.at, false);
                Ok(())
            }
            b't' => self.literal(b"true", Kind::Bool),
            b'f' => self.literal(b"false", Kind::Bool),
            b'n' => self.literal(b"null", Kind::Null),
            _ => Err(JsonError::Unexpected(self.at)),
        }
    }

    fn literal(&mut self, word: &[u8], kind: Kind) -> Result<(), JsonError> {
        let start = self.at;
        let rest = &self.bytes[start..];
        if !rest.starts_with(word) {
            let short = word.starts_with(rest);
            let end = self.bytes.len();
            return Err(if short { JsonError::Ends(end) } else { JsonError::Unexpected(start) });
        }
        self.at += word.len();
        self.push(kind, start, self.at, false);
        Ok(())
    }

    // Runs for every key and most values: a call would cost half as much as reading a short string.
    #[inline(always)]
    fn string(&mut self) -> Result<(), JsonError> {
        let start = self.at;
        let closed = closing_quote(self.bytes, start + 1);
        let (quote, escaped) = closed.ok_or(JsonError::Ends(self.bytes.len()))?;
        self.at = quote + 1;
        self.push(Kind::String, start, self.at, escaped);
        Ok(())
    }

    fn push(&mut self, kind: Kind, start: usize, end: usize, escaped: bool) {
        if self.nodes.len() == self.nodes.capacity() {
            // Doubling, but never past the values that are allowed.
            let remaining = (self.most + 2).saturating_sub(self.nodes.len()).max(8);
            self.nodes.reserve_exact(self.nodes.len().clamp(8, remaining));
        }
        let next = self.nodes.len() as u32 + 1;
        self.nodes.push(Node {
            start: start as u32,
            end: end as u32,
            next,
            kind,
            escaped,
            passed_over: false,
        });
    }

    fn next(&mut self) -> Result<u8, JsonError> {
        // The next byte that is not white space, without consuming it.
        loop {
            let byte = self.peek()?;
            if !matches!(byte, b' ' | b'\n' | b'\t' | b'\r') {
                return Ok(byte);
            }
            self.at += 1;
        }
    }

    fn peek(&self) -> Result<u8, JsonError> {
        self.bytes.get(self.at).copied().ok_or(JsonError::Ends(self.bytes.len()))
    }
}

fn container(byte: u8) -> Option<Kind> {
    match byte {
        b'{' => Some(Kind::Object),
        b'[' => Some(Kind::Array),
        _ => None,
    }
}

fn closer(kind: Kind) -> u8 {
    if kind == Kind::Object { b'}' } else { b']' }
}
