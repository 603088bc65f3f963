//! Edits by splicing: the original bytes are cut and joined, never rewritten.
//!
//! Guards invariants 1 and 2: without an edit the result is the same allocation, and outside the edited
//! ranges every byte is the original's. Must not know what the bytes mean.

use bytes::Bytes;

use super::json::Span;

/// One replacement: `with` replaces the bytes at `at`. An empty `at` inserts before that byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// The range of the original that is replaced.
    pub at: Span,
    /// The bytes that replace it.
    pub with: Bytes,
}

/// Why edits cannot be applied together; the original is sent then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EditConflict {
    /// Two edits touch the same bytes, or insert at the same position.
    #[error("two edits overlap at byte {0}")]
    Overlap(usize),
    /// An edit lies outside the body, or ends before it starts.
    #[error("an edit lies outside the body, at byte {0}")]
    Outside(usize),
}

/// Checks whether edits can be applied together to a body of `length` bytes.
///
/// # Errors
/// The first [`EditConflict`] of them.
pub(crate) fn check(edits: &[Edit], length: usize) -> Result<(), EditConflict> {
    let mut places: Vec<Span> = edits.iter().map(|edit| edit.at).collect();
    places.sort_unstable();
    let mut end = 0;
    let mut previous = None;
    for at in places {
        if at.start > at.end || at.end > length {
            return Err(EditConflict::Outside(at.start));
        }
        // Of two insertions at one place, nobody knows which one comes first.
        if at.start < end || previous == Some(at) {
            return Err(EditConflict::Overlap(at.start));
        }
        end = at.end;
        previous = Some(at);
    }
    Ok(())
}

/// Applies edits, and returns the result as a list of slices in order: unchanged ranges share the original's
/// allocation.
///
/// # Errors
/// An [`EditConflict`] if edits overlap or lie outside the body; no edit is applied then.
pub fn splice(body: &Bytes, mut edits: Vec<Edit>) -> Result<Vec<Bytes>, EditConflict> {
    if edits.is_empty() {
        return Ok(vec![body.clone()]);
    }
    check(&edits, body.len())?;
    edits.sort_by_key(|edit| edit.at);
    // Each edit has an unchanged range before it, and one follows the last.
    let mut slices = Vec::with_capacity(edits.len() * 2 + 1);
    let mut done = 0;
    for edit in edits {
        push(&mut slices, body.slice(done..edit.at.start));
        push(&mut slices, edit.with);
        done = edit.at.end;
    }
    push(&mut slices, body.slice(done..));
    Ok(slices)
}

/// The body with the edits applied; the body itself if they cannot be applied.
pub(crate) fn applied(body: &[u8], edits: &[Edit]) -> Vec<u8> {
    if check(edits, body.len()).is_err() {
        return body.to_vec();
    }
    let mut sorted: Vec<&Edit> = edits.iter().collect();
    sorted.sort_by_key(|edit| edit.at);
    let mut edited = Vec::with_capacity(body.len());
    let mut done = 0;
    for edit in sorted {
        edited.extend_from_slice(&body[done..edit.at.start]);
        edited.extend_from_slice(&edit.with);
        done = edit.at.end;
    }
    edited.extend_from_slice(&body[done..]);
    edited
}

/// The range of the original body that a range of the edited body came from; for inserted bytes, the range of
/// their edit.
pub(crate) fn origin(edits: &[Edit], at: Span) -> Span {
    let mut sorted: Vec<&Edit> = edits.iter().collect();
    sorted.sort_by_key(|edit| edit.at);
    let mut shift = 0isize;
    let mut start = None;
    let mut end = None;
    for edit in sorted {
        let begins = edit.at.start.saturating_add_signed(shift);
        let ends = begins + edit.with.len();
        if start.is_none() && at.start < ends {
            let is_before = at.start < begins;
            start = Some(if is_before { unshifted(at.start, shift) } else { edit.at.start });
        }
        if end.is_none() && at.end <= ends {
            let is_before = at.end <= begins;
            end = Some(if is_before { unshifted(at.end, shift) } else { edit.at.end });
        }
        shift += edit.with.len() as isize - edit.at.len() as isize;
    }
    let start = start.unwrap_or(unshifted(at.start, shift));
    Span::new(start, end.unwrap_or(unshifted(at.end, shift)).max(start))
}

fn unshifted(position: usize, shift: isize) -> usize {
    position.saturating_add_signed(-shift)
}

/// Edits of the original that have the same effect as applying `first`, which yields `middle`, and then
/// `second` to that. `None` if `second` cannot be applied.
pub(crate) fn compose(first: &[Edit], middle: &[u8], second: Vec<Edit>) -> Option<Vec<Edit>> {
    check(&second, middle.len()).ok()?;
    let mut first: Vec<&Edit> = first.iter().collect();
    first.sort_by_key(|edit| edit.at);
    // All edits with their range in `middle`; an edit of `first` shifts all that follows it.
    let mut shift = 0isize;
    let mut merged: Vec<(Span, Option<&Edit>, Option<Bytes>)> = Vec::new();
    for edit in first {
        let start = edit.at.start.checked_add_signed(shift)?;
        merged.push((Span::new(start, start + edit.with.len()), Some(edit), None));
        shift += edit.with.len() as isize - edit.at.len() as isize;
    }
    merged.extend(second.into_iter().map(|edit| (edit.at, None, Some(edit.with))));
    merged.sort_by_key(|(at, ..)| *at);
    let mut composed = Vec::new();
    let mut unshift = 0isize;
    let mut rest = &merged[..];
    while let Some((at, ..)) = rest.first() {
        // Edits that touch become one, because only their common range exists in the original.
        let begin = at.start;
        let mut end = at.end;
        let mut count = 1;
        while let Some((next, ..)) = rest.get(count)
            && next.start <= end
        {
            end = end.max(next.end);
            count += 1;
        }
        let (group, after) = rest.split_at(count);
        let from = begin.checked_add_signed(unshift)?;
        let mut with = Vec::new();
        let mut done = begin;
        for (at, of_first, of_second) in group {
            if let Some(edit) = of_first {
                unshift += edit.at.len() as isize - edit.with.len() as isize;
            }
            if let Some(new) = of_second {
                with.extend_from_slice(middle.get(done..at.start)?);
                with.extend_from_slice(new);
                done = at.end;
            }
        }
        with.extend_from_slice(middle.get(done..end)?);
        let to = end.checked_add_signed(unshift)?;
        // Bytes between the edits of a group are written again, because they lie in one range.
        composed.push(Edit { at: Span::new(from, to), with: with.into() });
        rest = after;
    }
    Some(composed)
}

fn push(slices: &mut Vec<Bytes>, slice: Bytes) {
    if !slice.is_empty() {
        slices.push(slice);
    }
}

/// Fuzz: edits drawn from the bytes are refused, or leave every byte outside them unchanged.
#[cfg(any(test, fuzzing))]
pub fn fuzz(bytes: &[u8]) {
    let (places, text) = bytes.split_at(bytes.len().min(12));
    let body = Bytes::copy_from_slice(text);
    let edits: Vec<Edit> = places
        .chunks_exact(2)
        .map(|place| Span::new(usize::from(place[0]), usize::from(place[1])))
        .map(|at| Edit { at, with: Bytes::from_static(b"<edit>") })
        .collect();
    let Ok(slices) = splice(&body, edits.clone()) else { return };
    let removed: usize = edits.iter().map(|edit| edit.at.len()).sum();
    let out = slices.concat();
    assert_eq!(out.len(), body.len() - removed + edits.len() * b"<edit>".len());
    let first = edits.iter().map(|edit| edit.at.start).min().unwrap_or(body.len());
    let last = edits.iter().map(|edit| edit.at.end).max().unwrap_or(0);
    assert!(out.starts_with(&body[..first]));
    assert!(out.ends_with(&body[last..]));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn edit(start: usize, end: usize, with: &'static str) -> Edit {
        Edit { at: Span::new(start, end), with: Bytes::from_static(with.as_bytes()) }
    }

    fn joined(body: &str, edits: Vec<Edit>) -> Result<String, EditConflict> {
        let slices = splice(&Bytes::copy_from_slice(body.as_bytes()), edits)?;
        Ok(String::from_utf8(slices.concat()).unwrap())
    }

    #[test]
    fn invariant_1_no_edit_is_no_copy() {
        let body = Bytes::from_static(b"untouched");
        let slices = splice(&body, Vec::new()).unwrap();
        assert_eq!(slices.len(), 1);
        assert_eq!(slices[0].as_ptr(), body.as_ptr());
    }

    #[test]
    fn splice_replaces_and_removes() {
        assert_eq!(
            joined("abcdef", vec![edit(4, 5, ""), edit(1, 2, "BBB"), edit(3, 3, "+")]).unwrap(),
            "aBBBc+df"
        );
        assert_eq!(joined("abc", vec![edit(3, 3, "d"), edit(0, 0, "_")]).unwrap(), "_abcd");
    }

    #[test]
    fn edited_range_maps_to_original() {
        // abcdefgh becomes aXXXXdegh: bc is replaced by XXXX, f is removed.
        let edits = [edit(5, 6, ""), edit(1, 3, "XXXX")];
        let of = |start, end| origin(&edits, Span::new(start, end));
        for ((start, end), (from, to)) in [
            ((0, 1), (0, 1)),
            ((1, 5), (1, 3)),
            ((2, 3), (1, 3)),
            ((5, 7), (3, 5)),
            ((7, 9), (6, 8)),
            ((0, 9), (0, 8)),
        ] {
            assert_eq!(of(start, end), Span::new(from, to), "{start}..{end}");
        }
        assert_eq!(origin(&[], Span::new(2, 3)), Span::new(2, 3));
    }

    #[test]
    fn edits_that_overlap_or_lie_outside_are_refused() {
        assert_eq!(
            joined("abc", vec![edit(0, 2, ""), edit(1, 3, "")]),
            Err(EditConflict::Overlap(1))
        );
        assert_eq!(
            joined("abc", vec![edit(1, 1, "x"), edit(1, 1, "y")]),
            Err(EditConflict::Overlap(1))
        );
        assert_eq!(joined("abc", vec![edit(2, 4, "")]), Err(EditConflict::Outside(2)));
        assert_eq!(joined("abc", vec![edit(2, 1, "")]), Err(EditConflict::Outside(2)));
    }

    proptest! {
        /// Invariant 2: taking the edits back gives the original, byte for byte.
        #[test]
        fn invariant_2_bytes_outside_edits_are_originals(
            body in proptest::collection::vec(any::<u8>(), 0..200),
            cuts in proptest::collection::btree_set(0usize..200, 0..8),
        ) {
            let body = Bytes::from(body);
            let cuts: Vec<usize> = cuts.into_iter().filter(|c| *c <= body.len()).collect();
            let spans: Vec<Span> = cuts.chunks_exact(2).map(|c| Span::new(c[0], c[1])).collect();
            let edits = spans.iter().map(|at| Edit { at: *at, with: Bytes::from_static(b"<edit>") });
            let out = splice(&body, edits.collect()).unwrap().concat();
            let (mut from_out, mut from_body) = (0, 0);
            for span in spans {
                let kept = span.start - from_body;
                prop_assert_eq!(&out[from_out..from_out + kept], &body[from_body..span.start]);
                from_out += kept + b"<edit>".len();
                from_body = span.end;
            }
            prop_assert_eq!(&out[from_out..], &body[from_body..]);
        }

        /// Edits of edits are edits.
        #[test]
        fn composed_edits_equal_edits_applied_one_after_other(
            body in proptest::collection::vec(any::<u8>(), 0..60),
            one in proptest::collection::btree_set(0usize..60, 0..8),
            two in proptest::collection::btree_set(0usize..90, 0..8),
        ) {
            let edits = |cuts: std::collections::BTreeSet<usize>, length: usize, with: &'static str| {
                let cuts: Vec<usize> = cuts.into_iter().filter(|c| *c <= length).collect();
                cuts.chunks_exact(2).map(|c| edit(c[0], c[1], with)).collect::<Vec<_>>()
            };
            let first = edits(one, body.len(), "<one>");
            let middle = applied(&body, &first);
            let second = edits(two, middle.len(), "2");
            let composed = compose(&first, &middle, second.clone()).unwrap();
            prop_assert_eq!(applied(&body, &composed), applied(&middle, &second));
        }

        #[test]
        fn invariant_8_never_panics(bytes in proptest::collection::vec(0u8..40, 0..60)) {
            fuzz(&bytes);
        }
    }
}
