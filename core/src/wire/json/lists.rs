//! Elements of lists that an earlier text had, too: the reader of a long text passes over them.
//!
//! Must not know what a list means, nor how an element is recognised.

/// An element that is known.
pub(crate) struct KnownElement {
    /// One past its last byte.
    pub(crate) end: usize,
    /// The values in it, itself and keys included.
    pub(crate) values: usize,
}

/// What the reader asks about the elements of lists, in the order of the text.
pub(crate) trait KnownElements {
    /// Whether any can be known.
    const EXIST: bool;

    /// Whether elements may be known of the array that begins here: the member `name` of an object, in so many arrays and
    /// objects.
    fn begin(&mut self, name: &[u8], depth: usize) -> bool;

    /// The element that begins at `at`, if it is known.
    fn known(&mut self, bytes: &[u8], at: usize) -> Option<KnownElement>;

    /// An element was read that was not known.
    fn add(&mut self, bytes: &[u8], start: usize, end: usize);
}

/// None is known.
pub(super) struct NoElements;

impl KnownElements for NoElements {
    const EXIST: bool = false;

    fn begin(&mut self, _name: &[u8], _depth: usize) -> bool {
        false
    }

    fn known(&mut self, _bytes: &[u8], _at: usize) -> Option<KnownElement> {
        None
    }

    fn add(&mut self, _bytes: &[u8], _start: usize, _end: usize) {}
}
