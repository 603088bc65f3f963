//! The children of an array or object, one after the other.
//!
//! Each node knows where its subtree ends, so none of them is walked through.

use super::Value;

pub(super) struct Children<'d> {
    pub(super) parent: Value<'d>,
    pub(super) next: usize,
    pub(super) end: usize,
}

impl<'d> Iterator for Children<'d> {
    type Item = Value<'d>;

    fn next(&mut self) -> Option<Value<'d>> {
        if self.next >= self.end {
            return None;
        }
        let value = Value { index: self.next, ..self.parent };
        self.next = value.node().next as usize;
        Some(value)
    }
}
