//! What stands beside a value: the commas and brackets that a change of it has to mind.
//!
//! Looks at the bytes around a place, not at the whole text: a change costs what it touches, however
//! long the body is. The text must have been read as JSON; where it was not, there is no edit.

use bytes::Bytes;

use super::Span;
use crate::wire::json::{Document, Kind, Value};
use crate::wire::splice::Edit;

/// A replacement.
pub(in crate::dialect) fn edit(at: Span, with: impl Into<Bytes>) -> Edit {
    Edit { at, with: with.into() }
}

/// Bytes that come before the byte at a place.
pub(in crate::dialect) fn insert(at: usize, with: impl Into<Bytes>) -> Edit {
    edit(Span::new(at, at), with)
}

/// A JSON string of these words.
pub(in crate::dialect) fn literal(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// What is left beside items of a list, or members of an object, when they go.
pub(in crate::dialect) enum Removal {
    /// Others stay: what goes, one comma included.
    Shared(Span),
    /// Nothing else is there: the list or object, brackets included.
    Alone(Span),
}

/// Spans in order, and those that stand side by side in one list or object as one.
pub(in crate::dialect) fn runs(body: &[u8], mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_unstable();
    let mut runs: Vec<Span> = Vec::new();
    for span in spans {
        match runs.last_mut() {
            Some(last) if are_neighbours(body, *last, span) => last.end = span.end,
            _ => runs.push(span),
        }
    }
    runs
}

/// What goes with a run of list items or object members (each from its key to its value's end).
/// `None` where it is no such run. The comma before it goes rather than the one after, so that runs
/// which are taken out one by one from the end of a list do not meet.
pub(in crate::dialect) fn room(body: &[u8], run: Span) -> Option<Removal> {
    let (before, after) = (last_before(body, run.start)?, first_from(body, run.end)?);
    match (body[before], body[after]) {
        (b',', b',' | b']' | b'}') => Some(Removal::Shared(Span::new(before, run.end))),
        (b'[' | b'{', b',') => {
            Some(Removal::Shared(Span::new(run.start, first_from(body, after + 1)?)))
        }
        (b'[', b']') | (b'{', b'}') => Some(Removal::Alone(Span::new(before, after + 1))),
        _ => None,
    }
}

/// The edit that makes `member` the first of the object that begins at `start`.
pub(in crate::dialect) fn first_member(body: &[u8], start: usize, member: &str) -> Option<Edit> {
    let inside = start.checked_add(1).filter(|_| body.get(start) == Some(&b'{'))?;
    let comma = if body[first_from(body, inside)?] == b'}' { "" } else { "," };
    Some(insert(inside, format!("{member}{comma}")))
}

/// The edit that gives the object at `span` the value at a path of names. Objects on the way are
/// made where they are missing or `null`; `None` where the value is there, or no object is.
pub(in crate::dialect) fn set(body: &[u8], span: Span, path: &[&str], value: &str) -> Option<Edit> {
    let raw = span.of(body);
    let document = Document::read(raw).ok()?;
    let mut object: Value<'_> = document.root(raw)?;
    for (depth, name) in path.iter().enumerate() {
        if object.kind() != Kind::Object {
            return None;
        }
        let rest = path[depth + 1..].iter().rev();
        let made = rest.fold(value.to_owned(), |inner, name| format!("{{\"{name}\":{inner}}}"));
        let start = span.start + object.span().start;
        match object.get(name) {
            None => return first_member(body, start, &format!("\"{name}\":{made}")),
            Some(null) if null.is_null() => {
                return Some(edit(super::shifted(null.span(), span.start), made));
            }
            Some(there) => object = there,
        }
    }
    None
}

/// The edit that takes away the member of an object whose value stands at `value`.
pub(in crate::dialect) fn without_member(body: &[u8], value: Span) -> Option<Edit> {
    let colon = last_before(body, value.start).filter(|at| body[*at] == b':')?;
    let close = last_before(body, colon).filter(|at| body[*at] == b'"')?;
    // A name holds no quote of its own unless it is escaped, and none of those we take away is.
    let open = body.get(..close)?.iter().rposition(|byte| *byte == b'"')?;
    match room(body, Span::new(open, value.end))? {
        Removal::Shared(at) => Some(edit(at, "")),
        Removal::Alone(at) => Some(edit(at, "{}")),
    }
}

fn are_neighbours(body: &[u8], one: Span, two: Span) -> bool {
    let comma = first_from(body, one.end).filter(|at| body[*at] == b',');
    comma.and_then(|at| first_from(body, at + 1)) == Some(two.start)
}

/// The first byte from `at` on that is no white space.
fn first_from(body: &[u8], at: usize) -> Option<usize> {
    let rest = body.get(at..)?;
    Some(at + rest.iter().position(|byte| !is_space(*byte))?)
}

/// The last byte before `at` that is no white space.
fn last_before(body: &[u8], at: usize) -> Option<usize> {
    body.get(..at)?.iter().rposition(|byte| !is_space(*byte))
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\n' | b'\t' | b'\r')
}
