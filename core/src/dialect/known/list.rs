//! What was read of one list of a request: its elements in order, in about 50 bytes for each part.
//!
//! Must not know how a reading is written.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// So many elements at the beginning of a list are found by their hash, and of the others one in [`EACH`].
const FIRST: usize = 8;
/// See [`FIRST`].
const EACH: u64 = 8;

/// The elements of a list.
#[derive(Debug, Default)]
pub(super) struct ElementList {
    pub(super) elements: Vec<ListElement>,
    /// What was read of them, one after the other.
    pub(super) readings: Vec<u8>,
    /// The memory that it takes, and the sums that it is in.
    counted: Option<(usize, [Arc<AtomicUsize>; 2])>,
}

/// One element.
#[derive(Clone, Copy, Debug)]
pub(super) struct ListElement {
    hash: [u64; 2],
    /// Its length in bytes.
    pub(super) length: u32,
    /// Where its reading begins.
    reading: u32,
}

impl ListElement {
    pub(super) fn hash(&self) -> u128 {
        u128::from(self.hash[0]) << 64 | u128::from(self.hash[1])
    }
}

impl ElementList {
    /// Adds an element, whose reading was appended from `reading` on.
    pub(super) fn push(&mut self, hash: u128, length: usize, reading: usize) {
        let hash = [(hash >> 64) as u64, hash as u64];
        // Bodies are shorter than 4 GiB.
        let (length, reading) = (length as u32, reading as u32);
        self.elements.push(ListElement { hash, length, reading });
    }

    /// What was read of an element.
    pub(super) fn reading(&self, index: usize) -> &[u8] {
        let start =
            self.elements.get(index).map_or(self.readings.len(), |one| one.reading as usize);
        let next = self.elements.get(index + 1);
        let end = next.map_or(self.readings.len(), |next| next.reading as usize);
        self.readings.get(start..end).unwrap_or_default()
    }

    /// Index and hash of the elements by which the list is found.
    pub(super) fn samples(&self) -> impl Iterator<Item = (usize, u128)> + '_ {
        let elements = self.elements.iter().map(ListElement::hash).enumerate();
        elements.filter(|(index, hash)| is_sample(*index, *hash))
    }

    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>()
            + self.elements.capacity() * size_of::<ListElement>()
            + self.readings.capacity()
    }

    /// The same, counted in these sums for as long as it is there.
    pub(super) fn counted(mut self, bytes: usize, sums: [Arc<AtomicUsize>; 2]) -> Self {
        for sum in &sums {
            sum.fetch_add(bytes, Ordering::Relaxed);
        }
        self.counted = Some((bytes, sums));
        self
    }
}

/// Whether a list is found by its element at this index.
pub(super) fn is_sample(index: usize, hash: u128) -> bool {
    index < FIRST || (hash as u64).is_multiple_of(EACH)
}

impl Drop for ElementList {
    fn drop(&mut self) {
        let Some((bytes, sums)) = &self.counted else { return };
        for sum in sums {
            sum.fetch_sub(*bytes, Ordering::Relaxed);
        }
    }
}
