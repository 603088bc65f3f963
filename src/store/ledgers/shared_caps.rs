//! Spending that several processes add up on the store that they share: one sum for each cap and subject, and one for the day.
//!
//! What is spent is added there before the client sees the end of its reply, and all is read before a request is sent. So
//! past a cap only calls end that were in flight. If the store does not answer, each process counts on from what it knows, and
//! sends its additions again with the next call, in their order and numbered, so that the store adds each once.

use std::sync::atomic::Ordering;

use super::Ledgers;
use super::caps::SumAddition;
use super::lock::lock;
use crate::clock::now;
use crate::context::Millis;
use crate::context::caps::{AdditionId, CapState, Spender, Spending, SumChange, SumKey};
use crate::store::StoreError;
use crate::store::recall::ReadBudget;

/// Most sums that are changed in one step.
const AT_ONCE: usize = 200;
/// Most additions that one call sends.
const SENT_TOGETHER: usize = 50;
/// Most additions that wait for the store; past it, the oldest are forgotten there.
const UNCONFIRMED: usize = 10_000;

impl Ledgers {
    /// The fullest cap of a spender, by what all processes spent, as far as the store says that within the time that a
    /// request has for reads.
    pub(crate) async fn fullest_cap(
        &self,
        spender: &Spender,
        reads: &ReadBudget,
    ) -> Option<CapState> {
        let at = now();
        if self.is_shared() && self.caps.has_caps() {
            let keys = lock(&self.caps.sums).keys(spender, at);
            // What it knew before counts if this comes too late.
            let _ = reads.wait(self.read_sums(keys, at)).await;
        }
        self.caps.fullest(spender, at)
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
            let mut unconfirmed = lock(&self.caps.unconfirmed);
            let instance = self.drafts.instance();
            let number = self.caps.additions.fetch_add(1, Ordering::Relaxed) + 1;
            unconfirmed.push_back(SumAddition { id: AdditionId { instance, number }, sums });
            if unconfirmed.len() > UNCONFIRMED {
                unconfirmed.pop_front();
            }
        }
        self.confirm_additions(now).await;
    }

    pub(super) async fn read_sums(&self, keys: Vec<SumKey>, now: Millis) {
        self.confirm_additions(now).await;
        let sums: Vec<_> = keys.into_iter().map(|key| (key, Spending::default())).collect();
        for some in sums.chunks(AT_ONCE) {
            let _ =
                self.change_sums(AdditionId::default(), some.to_vec(), SumChange::Add, now).await;
        }
    }

    /// Sends the oldest additions that are not confirmed. Not all at once: a client waits for the end of its reply.
    async fn confirm_additions(&self, now: Millis) {
        for _ in 0..SENT_TOGETHER {
            let oldest = lock(&self.caps.unconfirmed).front().cloned();
            let Some(SumAddition { id, sums }) = oldest else { return };
            if self.change_sums(id, sums, SumChange::Add, now).await.is_err() {
                return;
            }
            // Another call may have confirmed it, too.
            lock(&self.caps.unconfirmed).retain(|addition| addition.id != id);
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
