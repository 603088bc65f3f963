//! The memory of values, including the overhead of allocator and hash map.
//!
//! Rounds up, so that a limit on it is a limit on the real memory.

pub(super) fn block_bytes(bytes: usize) -> usize {
    // Allocators round sizes up, by an eighth at most.
    if bytes == 0 { 0 } else { (bytes + bytes / 16).next_multiple_of(16) }
}

pub(super) fn text_bytes(text: impl AsRef<str>) -> usize {
    block_bytes(text.as_ref().len())
}

pub(super) fn list_bytes<T>(list: &Vec<T>) -> usize {
    block_bytes(list.capacity() * size_of::<T>())
}

pub(super) const fn entry_bytes<T>() -> usize {
    // At most seven of eight slots are used, and a growing map doubles.
    (size_of::<T>() + 1) * 12 / 7
}
