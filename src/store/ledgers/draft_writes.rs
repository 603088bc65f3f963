//! Drafts of exchanges in flight are written to the store, and those of dead processes become turns.
//!
//! One task does it; no exchange waits for it ([`super::drafts`]).

use std::time::{Duration, Instant};

use super::drafts::{DraftBatch, DraftGuard, DueDraft};
use super::lock::lock;
use super::{Ledgers, OpenedSession, fingerprint_keys, session_cache};
use crate::context::{Fact, Millis, Turn};
use crate::store::drafts::Draft;
use crate::store::precondition::Precondition;
use crate::store::{RecordKind, Scope, StoreError};

impl Ledgers {
    /// Begins the draft of an exchange: `turn` is what is stored if the process is killed. It is written once
    /// the exchange has lasted for `delay`.
    pub(crate) fn draft(&self, opened: &OpenedSession, turn: Turn, delay: Duration) -> DraftGuard {
        self.drafts.begin(opened.scope.clone(), opened.cache.born(), turn, delay)
    }

    /// Ready when there are drafts to write, now or soon.
    pub(crate) async fn wait_for_drafts(&self) {
        self.drafts.wait_for_work().await;
    }

    /// Writes the drafts that are due.
    ///
    /// # Errors
    /// The store's [`StoreError`]: they are written later, if their exchanges are still in flight.
    pub(crate) async fn write_drafts(&self, now: Millis) -> Result<(), StoreError> {
        let Some(DraftBatch { due, ended }) = self.drafts.due() else { return Ok(()) };
        let drafts: Vec<Draft> = due.iter().filter_map(|due| due.draft(now)).collect();
        let keys: Vec<u128> = due.iter().map(DueDraft::key).collect();
        if drafts.is_empty() && ended.is_empty() {
            // Nothing has arrived since they were written.
            return Ok(());
        }
        let instance = self.drafts.instance();
        let written = self.store.put_drafts(instance, drafts, ended.clone()).await;
        match &written {
            Ok(()) => self.drafts.wrote(&keys),
            Err(_) => {
                let unwritten = due.iter().filter(|due| due.is_first);
                let unwritten: Vec<u128> = unwritten.map(DueDraft::key).collect();
                self.drafts.failed(&unwritten, ended);
            }
        }
        written
    }

    /// Makes turns from the drafts of processes that were killed; returns how many.
    ///
    /// # Errors
    /// The store's [`StoreError`].
    pub(crate) async fn adopt_drafts(&self) -> Result<usize, StoreError> {
        let mut scopes = self.store.adopt_drafts(self.drafts.instance()).await?;
        let count = scopes.len();
        scopes.sort();
        scopes.dedup();
        for scope in scopes {
            self.find_interrupted(&scope).await?;
            // A session that is not in memory is read when it is needed.
            if lock(&self.caches).held(&scope).is_some() {
                self.reload(&scope).await?;
            }
        }
        Ok(count)
    }

    async fn find_interrupted(&self, scope: &Scope) -> Result<(), StoreError> {
        // The rest of an interrupted reply may still be read by its id.
        let records = self.store.scan(scope.clone(), session_cache::FACTS).await?;
        let facts = records.iter().filter(|record| record.kind == RecordKind::Turn);
        let facts = facts.filter_map(|turn| serde_json::from_slice(&turn.value).ok());
        let prints =
            facts.filter_map(|fact: Fact| fingerprint_keys::of_open_reply(&fact)).collect();
        self.store.put(scope.clone(), prints, Precondition::since(Instant::now())).await.map(drop)
    }
}
