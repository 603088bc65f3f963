//! Spending that several processes add up on the store that they share: one sum for each cap and subject.
//!
//! What is spent is added there before the client sees the end of its reply, and all is read before a request is sent. So
//! past a cap only calls end that were in flight. If the store does not answer, each process counts on from what it knows, and
//! adds that with the next call: one whose answer was lost may count twice, and none is forgotten.

use std::collections::BTreeMap;

use super::Ledgers;
use super::caps::CapBoard;
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
        let mut additions = Additions { board: &self.caps, sums: Vec::new() };
        let changes = match change {
            SumChange::Add => additions.with_unconfirmed(sums),
            SumChange::Raise => sums,
        };
        let Ok(totals) = self.store.change_sums(changes.clone(), change).await else { return };
        additions.sums.clear();
        let mut states = Vec::new();
        for ((key, _), total) in changes.iter().zip(totals) {
            // Whoever has spent nothing is not listed.
            if total != Spending::default() {
                states.extend(lock(&self.caps.sums).raise(key, total, now));
            }
        }
        self.caps.tell(states);
    }
}

/// Additions on their way to the shared store. What is not confirmed, or given up in between, is added with the next ones.
struct Additions<'c> {
    board: &'c CapBoard,
    sums: Vec<(SumKey, Spending)>,
}

impl Additions<'_> {
    /// These, and those of earlier calls.
    fn with_unconfirmed(&mut self, sums: Vec<(SumKey, Spending)>) -> Vec<(SumKey, Spending)> {
        let mut unconfirmed = std::mem::take(&mut *lock(&self.board.unconfirmed));
        add(&mut unconfirmed, sums);
        self.sums = unconfirmed.into_iter().collect();
        self.sums.clone()
    }
}

impl Drop for Additions<'_> {
    fn drop(&mut self) {
        let spent = self.sums.drain(..).filter(|(_, spending)| *spending != Spending::default());
        add(&mut lock(&self.board.unconfirmed), spent);
    }
}

fn add(
    sums: &mut BTreeMap<SumKey, Spending>,
    additions: impl IntoIterator<Item = (SumKey, Spending)>,
) {
    for (key, spending) in additions {
        let sum = sums.entry(key).or_default();
        sum.dollars += spending.dollars;
        sum.tokens = sum.tokens.saturating_add(spending.tokens);
    }
}
