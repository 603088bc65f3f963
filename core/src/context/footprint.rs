//! The memory of values, including the overhead of allocator and hash map.
//!
//! Rounds up, so that a limit on it is a limit on the real memory.

/// The memory of a block of this many bytes: allocators round sizes up, by an eighth at most.
pub(super) fn block(bytes: usize) -> usize {
    if bytes == 0 { 0 } else { (bytes + bytes / 16).next_multiple_of(16) }
}

pub(super) fn text(text: impl AsRef<str>) -> usize {
    block(text.as_ref().len())
}

pub(super) fn list<T>(list: &Vec<T>) -> usize {
    block(list.capacity() * size_of::<T>())
}

/// The memory of a hash map entry: at most seven of eight slots are used, and a growing map doubles.
pub(super) const fn entry<T>() -> usize {
    (size_of::<T>() + 1) * 12 / 7
}
