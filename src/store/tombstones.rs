//! Deletions of sessions are remembered, so that data in flight does not bring a session back.
//!
//! Only in memory: nothing in flight outlives the process.

use std::time::{Duration, Instant};

use foldhash::HashMap;

use super::record::Scope;

/// How long a deletion is remembered: nothing begun before it is in flight for longer.
const LIFE: Duration = Duration::from_secs(24 * 3600);
/// Most deletions that are remembered; past it, the oldest is dropped.
const MOST: usize = 10_000;

/// When sessions were deleted on request.
#[derive(Default)]
pub(super) struct Tombstones(HashMap<Scope, Instant>);

impl Tombstones {
    pub(super) fn add(&mut self, scope: Scope) {
        self.0.retain(|_, at| at.elapsed() < LIFE);
        self.0.insert(scope, Instant::now());
        if self.0.len() > MOST
            && let Some(oldest) = self.0.iter().min_by_key(|(_, at)| **at).map(|(id, _)| id.clone())
        {
            self.0.remove(&oldest);
        }
    }

    pub(super) fn is_deleted(&self, scope: &Scope, since: Instant) -> bool {
        self.0.get(scope).is_some_and(|at| since <= *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::conformance::scope;

    #[test]
    fn only_earlier_data_is_refused() {
        let mut tombstones = Tombstones::default();
        let before = Instant::now();
        tombstones.add(scope("t", "s"));
        assert!(tombstones.is_deleted(&scope("t", "s"), before));
        assert!(!tombstones.is_deleted(&scope("u", "s"), before));
        let later = Instant::now() + Duration::from_millis(1);
        assert!(!tombstones.is_deleted(&scope("t", "s"), later));
    }

    #[test]
    fn tombstones_are_limited() {
        const MINUTE: Duration = Duration::from_secs(60);
        let mut tombstones = Tombstones::default();
        let now = Instant::now();
        let name = |number: usize| scope("t", &number.to_string());
        tombstones.0.extend((0..MOST - 1).map(|number| (name(number), now - MINUTE)));
        tombstones.0.insert(name(5), now - 2 * MINUTE);
        tombstones.0.insert(name(MOST), now - LIFE);
        tombstones.add(name(MOST + 1));
        assert!(!tombstones.is_deleted(&name(MOST), now - 2 * LIFE), "long ago");
        assert_eq!(tombstones.0.len(), MOST, "at the limit");
        tombstones.add(name(MOST + 2));
        assert_eq!(tombstones.0.len(), MOST);
        assert!(!tombstones.0.contains_key(&name(5)), "the oldest");
        assert!(tombstones.0.contains_key(&name(0)));
        assert!(tombstones.0.contains_key(&name(MOST + 2)));
    }
}
