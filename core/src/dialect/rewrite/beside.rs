//! The commas and brackets around a value, which an edit of the value must adapt.
//!
//! Reads only the bytes around a place, so that an edit's cost does not depend on the length of the body. The
//! text must be valid JSON; otherwise there is no edit.

use bytes::Bytes;

use super::ranges::shifted;
use crate::dialect::Span;
use crate::wire::json::{Document, Kind, Value};
use crate::wire::splice::Edit;

pub(in crate::dialect) fn edit(at: Span, with: impl Into<Bytes>) -> Edit {
    Edit { at, with: with.into() }
}

pub(in crate::dialect) fn insert(at: usize, with: impl Into<Bytes>) -> Edit {
    edit(Span::new(at, at), with)
}

pub(in crate::dialect) fn literal(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// What is removed together with items of a list, or members of an object.
pub(in crate::dialect) enum Removal {
    /// Others remain: the removed range includes one comma.
    Shared(Span),
    /// Nothing else is there: the range of the list or object with its brackets.
    Alone(Span),
}

/// Sorts ranges, and joins those that are adjacent in one list or object.
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

/// The range to remove with a run of list items or object members (from key to end of value). `None` if it is
/// not such a run.
pub(in crate::dialect) fn room(body: &[u8], run: Span) -> Option<Removal> {
    let preceding = last_before(body, run.start)?;
    let following = first_from(body, run.end)?;
    match (body[preceding], body[following]) {
        // With the comma before, not the one after, so that runs that are removed separately from
        // the end of a list do not overlap.
        (b',', b',' | b']' | b'}') => Some(Removal::Shared(Span::new(preceding, run.end))),
        (b'[' | b'{', b',') => {
            Some(Removal::Shared(Span::new(run.start, first_from(body, following + 1)?)))
        }
        (b'[', b']') | (b'{', b'}') => Some(Removal::Alone(Span::new(preceding, following + 1))),
        _ => None,
    }
}

/// The edit that inserts `member` as the first of the object at `start`.
pub(in crate::dialect) fn first_member(body: &[u8], start: usize, member: &str) -> Option<Edit> {
    if body.get(start) != Some(&b'{') {
        return None;
    }
    let inside = start + 1;
    let comma = if body[first_from(body, inside)?] == b'}' { "" } else { "," };
    Some(insert(inside, format!("{member}{comma}")))
}

/// The edit that sets the value at a path of names in the object at `span`. Missing or `null` objects on the
/// way are made; `None` if the value exists, or something on the way is not an object.
pub(in crate::dialect) fn set(body: &[u8], span: Span, path: &[&str], value: &str) -> Option<Edit> {
    let raw = span.slice(body);
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
                return Some(edit(shifted(null.span(), span.start), made));
            }
            Some(inner) => object = inner,
        }
    }
    None
}

/// The edit that removes the member of an object whose value is at `value`.
pub(in crate::dialect) fn without_member(body: &[u8], value: Span) -> Option<Edit> {
    let colon = last_before(body, value.start).filter(|at| body[*at] == b':')?;
    let close = last_before(body, colon).filter(|at| body[*at] == b'"')?;
    // A name contains no quotes unless escaped, and the names removed here have none.
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

fn first_from(body: &[u8], at: usize) -> Option<usize> {
    let rest = body.get(at..)?;
    Some(at + rest.iter().position(|byte| !is_space(*byte))?)
}

fn last_before(body: &[u8], at: usize) -> Option<usize> {
    body.get(..at)?.iter().rposition(|byte| !is_space(*byte))
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\n' | b'\t' | b'\r')
}
