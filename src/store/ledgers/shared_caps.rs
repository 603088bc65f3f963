//! Spending that several processes add up on the store that they share: one sum for each cap and subject.
//!
//! What is spent is added there before the client sees the end of its reply, and all is read before a request is sent. So
//! past a cap only calls end that were in flight. If the store does not answer, each process counts on from what it knows.

use super::Ledgers;
use super::lock::lock;
use crate::context::Millis;
use crate::context::caps::{Spender, Spending, SumChange, SumKey};
use crate::store::recall::ReadBudget;

/// Most sums that are changed in one step.
const AT_ONCE: usize = 200;

impl Ledgers {
    /// Reads what all processes spent of the caps of a spender, within the time that a request has for reads.
    pub(crate) async fn refresh_caps(&self, spender: &Spender, now: Millis, reads: &ReadBudget) {
        if !self.is_shared() || !self.caps.has_caps() {
            return;
        }
        let keys = lock(&self.caps.sums).keys(spender, now).into_iter();
        let sums = keys.map(|key| (key, Spending::default())).collect();
        // What it knew before counts if this comes too late.
        let _ = reads.wait(self.change_sums(sums, SumChange::Add, now)).await;
    }

    /// Reads what all processes spent of everything that is listed here.
    pub(crate) async fn refresh_all_caps(&self, now: Millis) {
        self.change_all(SumChange::Add, now).await;
    }

    /// Lets the common sums be at least as large as those here, which were read from the kept turns.
    pub(super) async fn raise_common_sums(&self, now: Millis) {
        self.change_all(SumChange::Raise, now).await;
    }

    async fn change_all(&self, change: SumChange, now: Millis) {
        if !self.is_shared() {
            return;
        }
        let mut sums = lock(&self.caps.sums).running(now);
        if change == SumChange::Add {
            sums.iter_mut().for_each(|(_, spending)| *spending = Spending::default());
        }
        for some in sums.chunks(AT_ONCE) {
            self.change_sums(some.to_vec(), change, now).await;
        }
    }

    /// Changes common sums, and learns what they are then.
    pub(super) async fn change_sums(
        &self,
        sums: Vec<(SumKey, Spending)>,
        change: SumChange,
        now: Millis,
    ) {
        if sums.is_empty() || !self.is_shared() {
            return;
        }
        let keys: Vec<SumKey> = sums.iter().map(|(key, _)| key.clone()).collect();
        let Ok(totals) = self.store.change_sums(sums, change).await else { return };
        let mut states = Vec::new();
        for (key, total) in keys.iter().zip(totals) {
            // Whoever has spent nothing is not listed.
            if total != Spending::default() {
                states.extend(lock(&self.caps.sums).raise(key, total, now));
            }
        }
        self.caps.tell(states);
    }
}
