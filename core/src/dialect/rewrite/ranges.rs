//! Ranges of a body that contain each other, or are counted from the start of a message.
//!
//! Nothing here looks at bytes.

use crate::dialect::Span;

/// Whether the outer range contains the inner one.
pub(in crate::dialect) fn within(inner: Span, outer: Span) -> bool {
    inner.start >= outer.start && inner.end <= outer.end
}

/// A range in a message's bytes as a range in the body.
pub(super) fn shifted(span: Span, by: usize) -> Span {
    Span::new(span.start + by, span.end + by)
}
