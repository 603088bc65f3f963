//! What was spent before the start, or before a cap was set: read from the kept turns.
//!
//! Sessions are read newest first, and only those used in a period that still runs.

use std::time::Duration;

use super::Ledgers;
use super::caps::{CapBoard, turn_spender};
use super::lock::lock;
use crate::context::caps::{CapSums, Spender, Spending};
use crate::context::ledger::Ledger;
use crate::context::policy::DecisionMode;
use crate::context::{Millis, SessionNames, Turn};
use crate::store::{Scope, ScopePage};

/// If the store does not answer, it is asked again after this time.
const AGAIN: Duration = Duration::from_secs(5);
/// Sessions that are read in one step.
const PAGE: usize = 500;

/// A sum to add: who spent what, and when.
type Addition = (Spender, Spending, Millis);

impl Ledgers {
    /// What was spent, and what may be.
    pub fn caps(&self) -> &CapBoard {
        &self.caps
    }

    /// Adds what the kept turns of requests that arrived before `now` spent in the running periods. Waits for a store that
    /// does not answer. Returns how many sessions could not be read: theirs is missing.
    pub async fn read_spending(&self, now: Millis) -> usize {
        let since = lock(&self.caps.sums).since(now);
        let is_past = move |began: Millis, _| began < now;
        let reading = self.for_past_spending(since, is_past, |(spender, spending, at)| {
            lock(&self.caps.sums).add(&spender, spending, at);
        });
        let unread = reading.await;
        self.raise_common_sums(now).await;
        unread
    }

    /// Adds to these sums what the kept turns spent that ended until `now`. Returns how many sessions could not be read.
    pub(super) async fn add_past_spending(&self, now: Millis, sums: &mut CapSums) -> usize {
        let since = sums.since(now);
        // One in flight is added when it is stored.
        let is_past = move |_, ended: Millis| ended <= now;
        self.for_past_spending(since, is_past, |(spender, spending, at)| {
            sums.add(&spender, spending, at);
        })
        .await
    }

    async fn for_past_spending(
        &self,
        since: Millis,
        is_past: impl Fn(Millis, Millis) -> bool + Copy + Send + 'static,
        mut add: impl FnMut(Addition),
    ) -> usize {
        let mut page = ScopePage { after: None, skip: 0, count: PAGE };
        let mut unread = 0;
        loop {
            let Ok(lines) = self.sessions(page).await else {
                tokio::time::sleep(AGAIN).await;
                continue;
            };
            // Newest first: the rest was last used before.
            let used = lines.iter().filter(|line| line.cursor.used >= since);
            let mut count = 0;
            for line in used {
                count += 1;
                let scope = line.scope.clone();
                let spending = self.caps.pricing();
                let reading = self.look_at_one_of_many(&line.scope, move |ledger| {
                    additions(&scope, ledger, since, is_past, spending)
                });
                let Ok(additions) = reading.await else {
                    unread += 1;
                    continue;
                };
                for addition in additions {
                    add(addition);
                }
            }
            if count < PAGE {
                return unread;
            }
            page.after = lines.last().map(|line| line.cursor);
        }
    }
}

fn additions(
    scope: &Scope,
    ledger: &Ledger,
    since: Millis,
    is_past: impl Fn(Millis, Millis) -> bool,
    spending: impl Fn(&Turn) -> Spending,
) -> Vec<Addition> {
    let project = SessionNames::from_ledger(ledger).project;
    let mut additions = Vec::new();
    for turn in ledger.turns().filter(|turn| turn.at >= since && is_past(turn.at, turn.ended)) {
        let spender = turn_spender(scope, turn, project.as_deref());
        additions.push((spender, spending(turn), turn.at));
    }
    for one in ledger.summaries(DecisionMode::Active) {
        if one.at >= since && is_past(one.at, one.at) {
            let spender = Spender {
                tenant: scope.tenant.clone(),
                session: scope.session.clone(),
                project: project.clone(),
                tags: Vec::new(),
                upstream: one.upstream.clone(),
            };
            additions.push((spender, Spending::from_summary(one), one.at));
        }
    }
    additions
}
