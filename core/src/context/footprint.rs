//! What values take in memory, with what an allocator and a hash map take beside them.
//!
//! Rounds up: what is bounded by it never takes more than is counted.

/// What an allocator takes for a block of so many bytes: sizes are rounded up, by an eighth at most.
pub(super) fn block(bytes: usize) -> usize {
    if bytes == 0 { 0 } else { (bytes + bytes / 16).next_multiple_of(16) }
}

pub(super) fn text(words: impl AsRef<str>) -> usize {
    block(words.as_ref().len())
}

pub(super) fn list<T>(list: &Vec<T>) -> usize {
    block(list.capacity() * size_of::<T>())
}

/// What an entry of a hash map takes: at most seven in eight places are taken, and a map that grows doubles.
pub(super) const fn entry<T>() -> usize {
    (size_of::<T>() + 1) * 12 / 7
}
