//! Spending that several processes add up on the store that they share: one sum for each cap and subject, and one for the day.
//!
//! What is spent is added there before the client sees the end of its reply, and all is read before a request is sent. So
//! past a cap only calls end that were in flight. A process sends one addition at a time, with what all its calls spent
//! meanwhile. If the store does not answer, the process counts on from what it knows, and sends the addition again with the
//! next call, under the same number, so that the store adds it once.

use tokio::sync::MutexGuard;

use super::Ledgers;
use super::caps::{SumAddition, project_of};
use super::lock::lock;
use crate::clock::now;
use crate::context::Millis;
use crate::context::caps::{AdditionId, CapState, Spender, Spending, SumChange, SumKey};
use crate::store::recall::ReadBudget;
use crate::store::{Scope, StoreError};

/// Most sums that are changed in one step.
const AT_ONCE: usize = 200;
/// Most sums with something that waits for the store; past it, some of that is forgotten there.
const UNSENT: usize = 10_000;

impl Ledgers {
    /// The fullest cap of a spender, by what all processes spent, as far as the store says that within the time that a
    /// request has for reads. `fresh`: sums that were just read.
    pub(crate) async fn fullest_cap(
        &self,
        spender: &Spender,
        fresh: &[SumKey],
        reads: &ReadBudget,
    ) -> Option<CapState> {
        let at = now();
        if self.is_shared() && self.caps.has_caps() {
            let mut keys = lock(&self.caps.sums).keys(spender, at);
            keys.retain(|key| !fresh.contains(key));
            if !keys.is_empty() {
                // What it knew before counts if this comes too late.
                let _ = reads.wait(self.read_sums(keys, at)).await;
            }
        }
        self.caps.fullest(spender, at)
    }

    /// The sums of a request's caps, as far as its spender is known before its session is read.
    pub(super) fn sums_to_read(&self, spender: Option<&Spender>, scope: &Scope) -> Vec<SumKey> {
        let Some(spender) = spender else { return Vec::new() };
        let cache = lock(&self.caches).held(scope);
        let spender = Spender {
            tenant: scope.tenant.clone(),
            session: scope.session.clone(),
            project: cache.and_then(|cache| cache.look(project_of)),
            ..spender.clone()
        };
        lock(&self.caps.sums).keys(&spender, now())
    }

    /// Reads what all processes spent of everything that is listed here.
    pub(crate) async fn refresh_all_caps(&self, now: Millis) {
        if self.is_shared() {
            let running = lock(&self.caps.sums).running(now);
            self.read_sums(running.into_iter().map(|(key, _)| key).collect(), now).await;
        }
    }

    /// Lets the common sums be at least as large as those here, which were read from the kept turns.
    pub(super) async fn raise_common_sums(&self, now: Millis) {
        if self.is_shared() {
            let running = lock(&self.caps.sums).running(now);
            for sums in running.chunks(AT_ONCE) {
                let _ = self
                    .change_sums(AdditionId::default(), sums.to_vec(), SumChange::Raise, now)
                    .await;
            }
        }
    }

    /// Adds what a call spent to the common sums, and learns what they are then.
    pub(super) async fn add_to_common_sums(&self, sums: Vec<(SumKey, Spending)>, now: Millis) {
        if sums.is_empty() || !self.is_shared() {
            return;
        }
        {
            let mut unsent = lock(&self.caps.unsent);
            for (key, spending) in sums {
                unsent.entry(key).or_default().join(spending);
            }
            while unsent.len() > UNSENT {
                unsent.pop_first();
            }
        }
        // Whoever waits here finds its own sent by who was before it, or sends it with that of all behind it.
        let addition = self.caps.addition.lock().await;
        self.confirm_additions(addition, now).await;
    }

    pub(super) async fn read_sums(&self, keys: Vec<SumKey>, now: Millis) {
        if keys.is_empty() {
            return;
        }
        // While an addition is under way, whoever sends it sees to the rest.
        if let Ok(addition) = self.caps.addition.try_lock() {
            self.confirm_additions(addition, now).await;
        }
        let sums: Vec<_> = keys.into_iter().map(|key| (key, Spending::default())).collect();
        for some in sums.chunks(AT_ONCE) {
            let _ =
                self.change_sums(AdditionId::default(), some.to_vec(), SumChange::Add, now).await;
        }
    }

    /// Sends the last addition again if it is not confirmed, then what was spent since.
    async fn confirm_additions(&self, mut addition: MutexGuard<'_, SumAddition>, now: Millis) {
        for _ in 0..2 {
            if addition.sums.is_empty() {
                let mut unsent = lock(&self.caps.unsent);
                while addition.sums.len() < AT_ONCE
                    && let Some(sum) = unsent.pop_first()
                {
                    addition.sums.push(sum);
                }
                if addition.sums.is_empty() {
                    return;
                }
                addition.number += 1;
            }
            let id = AdditionId { instance: self.drafts.instance(), number: addition.number };
            if self.change_sums(id, addition.sums.clone(), SumChange::Add, now).await.is_err() {
                return;
            }
            addition.sums.clear();
        }
    }

    /// Changes common sums, and learns what they are then.
    async fn change_sums(
        &self,
        id: AdditionId,
        sums: Vec<(SumKey, Spending)>,
        change: SumChange,
        now: Millis,
    ) -> Result<(), StoreError> {
        let keys: Vec<SumKey> = sums.iter().map(|(key, _)| key.clone()).collect();
        let totals = self.store.change_sums(id, sums, change).await?;
        let mut states = Vec::new();
        for (key, total) in keys.iter().zip(totals) {
            // Whoever has spent nothing is not listed.
            if total != Spending::default() {
                states.extend(lock(&self.caps.sums).raise(key, total, now));
            }
        }
        self.caps.tell(states);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::context::caps::CapSums;
    use crate::store::memory::MemoryStore;
    use crate::store::wrapper::StoreWrapper;
    use crate::store::{Store, StoreFuture};

    /// Takes its time, and loses the answer to the first change.
    #[derive(Default)]
    struct SlowSums {
        inner: MemoryStore,
        changes: AtomicUsize,
    }

    impl StoreWrapper for SlowSums {
        fn inner(&self) -> Result<&dyn Store, StoreError> {
            Ok(&self.inner)
        }

        fn change_sums(
            &self,
            id: AdditionId,
            sums: Vec<(SumKey, Spending)>,
            change: SumChange,
        ) -> StoreFuture<'_, Vec<Spending>> {
            let is_first = self.changes.fetch_add(1, Ordering::Relaxed) == 0;
            Box::pin(async move {
                tokio::task::yield_now().await;
                let totals = self.inner.change_sums(id, sums, change).await?;
                if is_first { Err(StoreError::Closed) } else { Ok(totals) }
            })
        }
    }

    /// Calls that end at once cost few changes, and each is counted once although an answer was lost.
    #[tokio::test]
    async fn calls_that_end_together_are_added_together() {
        const CALLS: u64 = 100;
        let store = Arc::new(SlowSums::default());
        let ledgers = Ledgers::new(store.clone());
        let (key, spent) = (CapSums::day_key(1), Spending { dollars: 0.5, tokens: 2 });
        let calls = (0..CALLS).map(|_| ledgers.add_to_common_sums(vec![(key.clone(), spent)], 1));
        futures_util::future::join_all(calls).await;
        assert_eq!(ledgers.caps.today(1), Spending { dollars: 50.0, tokens: 2 * CALLS });
        assert!(store.changes.load(Ordering::Relaxed) <= 4, "{:?}", store.changes);
    }
}
