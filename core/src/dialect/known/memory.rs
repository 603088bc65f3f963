//! The memory of what was read of the newest requests, for all tenants.
//!
//! Lists are found by hashes of their elements. What was not used for long is forgotten first. Must not know what an
//! element means.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::HashMap;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::list::ElementList;
use crate::wire::memory::Memory;

/// Bytes of memory for an element by whose hash a list is found.
const SAMPLE: usize = 56;

/// What was read of the newest requests, for all tenants.
pub struct ElementMemory {
    /// Random, so that nobody can write two elements with one hash.
    seed: u64,
    /// Most bytes.
    limit: usize,
    bytes: Arc<AtomicUsize>,
    lists: Mutex<ListGenerations>,
}

/// The lists by hashes of their elements, each with the element's index. What was not used since the newer ones began is
/// forgotten when they are full.
pub(super) struct ListGenerations {
    pub(super) newer: HashMap<u128, ListSample>,
    older: HashMap<u128, ListSample>,
    /// Bytes of the lists that were stored in `newer`.
    newer_bytes: Arc<AtomicUsize>,
    memory: Box<dyn Memory>,
}

/// An element by which a list is found.
#[derive(Clone)]
pub(super) struct ListSample {
    pub(super) list: Arc<ElementList>,
    pub(super) index: usize,
}

impl ElementMemory {
    /// An empty memory of at most `limit` bytes, which `memory` has to grant. `seed` has to be random.
    pub fn new(seed: u64, limit: usize, memory: Box<dyn Memory>) -> Self {
        let generations = ListGenerations {
            newer: HashMap::default(),
            older: HashMap::default(),
            newer_bytes: Arc::default(),
            memory,
        };
        Self { seed, limit, bytes: Arc::default(), lists: Mutex::new(generations) }
    }

    /// The seed for the hashes of an owner's elements, in so-numbered a dialect.
    pub(super) fn seed(&self, owner: &[u8], dialect: u64) -> u64 {
        xxh3_64_with_seed(owner, self.seed ^ dialect)
    }

    /// Bytes that it holds.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn find(&self, hash: u128) -> Option<ListSample> {
        let mut lists = self.lists();
        if let Some(sample) = lists.newer.get(&hash) {
            return Some(sample.clone());
        }
        let sample = lists.older.remove(&hash)?;
        lists.newer.insert(hash, sample.clone());
        Some(sample)
    }

    /// `place`: whose list it is, and which. `continued`: the list that it replaces.
    pub(super) fn add(&self, place: u64, list: ElementList, continued: Option<&Arc<ElementList>>) {
        let samples = 1 + list.samples().count();
        let bytes = list.bytes() + samples * SAMPLE;
        let mut lists = self.lists();
        if let Some(continued) = continued {
            lists.forget(continued);
        }
        let counted = [self.bytes.clone(), lists.newer_bytes.clone()];
        let list = Arc::new(list.counted(bytes, counted));
        // A list may begin like the newest one.
        lists.newer.insert(u128::from(place), ListSample { list: list.clone(), index: 0 });
        for (index, hash) in list.samples() {
            lists.newer.insert(hash, ListSample { list: list.clone(), index });
        }
        let is_full = lists.newer_bytes.load(Ordering::Relaxed) > self.limit / 2;
        if is_full || self.bytes() > self.limit {
            lists.forget_older();
        }
        // Without memory nothing is remembered.
        for _ in 0..2 {
            if lists.memory.hold(self.bytes()) {
                return;
            }
            lists.forget_older();
        }
        lists.memory.hold(self.bytes());
    }

    pub(super) fn lists(&self) -> MutexGuard<'_, ListGenerations> {
        // Nothing in there panics between two changes that belong together.
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ListGenerations {
    fn forget(&mut self, list: &Arc<ElementList>) {
        for (_, hash) in list.samples() {
            for samples in [&mut self.newer, &mut self.older] {
                if samples.get(&hash).is_some_and(|sample| Arc::ptr_eq(&sample.list, list)) {
                    samples.remove(&hash);
                }
            }
        }
    }

    fn forget_older(&mut self) {
        self.older = std::mem::take(&mut self.newer);
        self.newer_bytes = Arc::default();
    }
}

impl std::fmt::Debug for ElementMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ElementMemory").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}
