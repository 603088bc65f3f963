//! Writes the results of exchanges to their session: decisions, turns, and later data.
//!
//! Every write is conditional: the session was not deleted since it was first known here. So a deleted
//! session stays deleted, whoever deleted it. After a write that timed out, its data is either both stored
//! and known here, or neither.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::lock::lock;
use super::opened_session::{OpenedSession, SessionHandle};
use super::records::record;
use super::session_cache;
use super::{Ledgers, fingerprints};
use crate::context::ledger::Ledger;
use crate::context::{ExchangeId, Fact, inject};
use crate::store::precondition::{Precondition, WriteToken};
use crate::store::{Record, Scope, Store, StoreError, WriteOutcome};

type DecisionResult = Result<Vec<Fact>, StoreError>;

/// A decision that is being written, as long as somebody waits for it. If it is dropped, it is cancelled; if
/// it is too late for that, the decision applies all the same, and messages that it took are queued again.
struct DecisionWrite {
    answer: oneshot::Receiver<DecisionResult>,
    token: WriteToken,
    store: Arc<dyn Store>,
    handle: SessionHandle,
}

impl Drop for DecisionWrite {
    fn drop(&mut self) {
        self.token.cancel();
        self.answer.close();
        // The answer arrived although nobody waits for it any more.
        if let (Ok(Ok(won)), Ok(runtime)) =
            (self.answer.try_recv(), tokio::runtime::Handle::try_current())
        {
            runtime.spawn(requeue(self.store.clone(), self.handle.clone(), won));
        }
    }
}

/// Why nothing is decided for a request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DecisionError {
    /// Its session has reached the limit of decisions, which are repeated.
    #[error("the session has reached its limit of decisions")]
    TooMany,
    /// The store did not save it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Writes decisions, and adds those that apply to the ledger, whether anybody still waits or not.
async fn write_decisions(
    store: Arc<dyn Store>,
    handle: SessionHandle,
    facts: Vec<Fact>,
    records: Vec<Record>,
    token: WriteToken,
) -> DecisionResult {
    let only_if = Precondition { token: Some(token), ..handle.cache.precondition() };
    let puts = store.put(handle.scope.clone(), records, only_if).await?;
    let won = facts.into_iter().zip(puts).filter_map(|(fact, put)| match put {
        WriteOutcome::Written => Some(fact),
        // An unreadable record is left alone, and nothing replaces it.
        WriteOutcome::Existed(first) => serde_json::from_slice(&first).ok(),
    });
    let won: Vec<Fact> = won.collect();
    // For a session that was deleted meanwhile, nothing is decided.
    match handle.cache.add_stored(won.clone()) {
        true => Ok(won),
        false => Err(StoreError::Deleted),
    }
}

/// Queues messages again that a request took but did not send.
async fn requeue(store: Arc<dyn Store>, handle: SessionHandle, won: Vec<Fact>) {
    let facts = inject::requeue_unsent(&won, &handle.exchange);
    let records: Vec<Record> = facts.iter().filter_map(record).collect();
    if records.is_empty() {
        return;
    }
    let (scope, only_if) = (handle.scope.clone(), handle.cache.precondition());
    if let Some(kept) = handle.cache.add(facts, || store.put(scope, records, only_if)) {
        // If the store cannot save it, it stays in memory.
        let _ = kept.await;
    }
}

impl OpenedSession {
    /// Bytes that decisions for smaller images may still use in its session.
    pub(crate) fn room_for_pictures(&self) -> usize {
        session_cache::PICTURES.saturating_sub(self.cache.look(Ledger::decision_bytes))
    }
}

impl Ledgers {
    /// Saves decisions before they are sent; returns those that apply: if another process was first, its
    /// decision. Waits at most `timeout`. A session with [`session_cache::DECISIONS`] bytes of decisions gets
    /// no more.
    ///
    /// # Errors
    /// Why nothing was decided for this request. A write in progress that could not be cancelled may still be
    /// saved, and applies from then on.
    pub(crate) async fn decide(
        &self,
        opened: &OpenedSession,
        mut facts: Vec<Fact>,
        timeout: Duration,
    ) -> Result<Vec<Fact>, DecisionError> {
        if opened.cache.look(Ledger::decision_bytes) >= session_cache::DECISIONS {
            // Injected messages are not counted as decisions.
            facts.retain(|fact| matches!(fact, Fact::InjectedMessage(_)));
            if facts.is_empty() {
                return Err(DecisionError::TooMany);
            }
        }
        let records: Vec<Record> = facts.iter().filter_map(record).collect();
        if records.len() != facts.len() {
            return Err(StoreError::Failed("a decision cannot be written".to_owned()).into());
        }
        let (sender, answer) = oneshot::channel();
        let token = WriteToken::default();
        let (store, handle) = (self.store.clone(), opened.handle());
        let mut decision = DecisionWrite { answer, token, store, handle };
        let (store, handle) = (decision.store.clone(), decision.handle.clone());
        let token = decision.token.clone();
        tokio::spawn(async move {
            let won = write_decisions(store.clone(), handle.clone(), facts, records, token).await;
            if let Err(Ok(won)) = sender.send(won) {
                requeue(store, handle, won).await;
            }
        });
        let timed_out = |_| StoreError::Failed(format!("no answer within {timeout:?}"));
        let answer =
            tokio::time::timeout(timeout, &mut decision.answer).await.map_err(timed_out)?;
        let won = match answer.unwrap_or(Err(StoreError::Closed)) {
            Err(StoreError::Deleted) => {
                self.forget_deleted(&opened.scope, &opened.cache);
                return Err(StoreError::Deleted.into());
            }
            won => won?,
        };
        // Revoked decisions are left out.
        let holds = |ledger: &Ledger| won.into_iter().filter(|fact| !ledger.voids(fact)).collect();
        Ok(opened.cache.look(holds))
    }

    /// Stores what an exchange taught: in memory at once, and durably when this returns. Its place is
    /// released, so that requests which waited for it continue. For a session that was deleted meanwhile,
    /// nothing is stored.
    ///
    /// # Errors
    /// The store's [`StoreError`]; memory has the turn all the same.
    pub async fn commit(&self, opened: OpenedSession, facts: Vec<Fact>) -> Result<(), StoreError> {
        let (scope, began) = (opened.scope.clone(), opened.began.into_std());
        let mut records: Vec<Record> = facts.iter().filter_map(record).collect();
        let fingerprints: Vec<Record> = match opened.named {
            true => facts.iter().filter_map(fingerprints::of_open_reply).collect(),
            false => facts.iter().flat_map(fingerprints::left_by).collect(),
        };
        records.extend(fingerprints.iter().cloned());
        let (cache, connection) = (opened.cache.clone(), opened.connection);
        let copies = records.clone();
        let kept = cache.add(facts, || {
            lock(&self.fingerprints).add(&scope, &fingerprints, connection);
            self.store.put(scope.clone(), records, cache.precondition())
        });
        drop(opened);
        let kept = match kept {
            Some(kept) => kept.await,
            None => Err(StoreError::Deleted),
        };
        match kept {
            Err(StoreError::Deleted) => {
                self.forget_deleted(&scope, &cache);
                self.restart_session(scope, copies, began).await
            }
            kept => kept.map(drop),
        }
    }

    /// Stores the result of an exchange whose session was deleted: if the exchange began after that, and only
    /// used old data from memory, it is the first of a new session.
    async fn restart_session(
        &self,
        scope: Scope,
        records: Vec<Record>,
        began: std::time::Instant,
    ) -> Result<(), StoreError> {
        let only_if = Precondition::since(began);
        match self.store.put(scope.clone(), records.clone(), only_if).await {
            Err(StoreError::Deleted) => Ok(()),
            put => {
                put?;
                lock(&self.caches).cache(&scope).join(&session_cache::ledger(&records).ledger);
                Ok(())
            }
        }
    }

    /// Stores one fact of a session beside its exchange: in memory at once, then in the store. For a session
    /// that was deleted meanwhile, nothing is stored.
    ///
    /// # Errors
    /// The store's [`StoreError`]; memory has it all the same.
    pub(crate) async fn store_fact(
        &self,
        handle: &SessionHandle,
        fact: Fact,
    ) -> Result<(), StoreError> {
        let SessionHandle { scope, cache, .. } = handle;
        let records = record(&fact).into_iter().collect();
        let put = || self.store.put(scope.clone(), records, cache.precondition());
        match cache.add(vec![fact], put) {
            Some(kept) => match kept.await {
                Err(StoreError::Deleted) => {
                    self.forget_deleted(scope, cache);
                    Ok(())
                }
                kept => kept.map(drop),
            },
            None => Ok(()),
        }
    }

    /// Stores one fact of a session that another process may have stored meanwhile: returns the one that
    /// applies.
    ///
    /// # Errors
    /// The store's [`StoreError`]: nothing is stored then.
    pub async fn store_fact_if_absent(
        &self,
        handle: &SessionHandle,
        fact: Fact,
    ) -> Result<Fact, StoreError> {
        let unwritten = || StoreError::Failed("a fact cannot be written".to_owned());
        let SessionHandle { scope, cache, .. } = handle;
        let records = vec![record(&fact).ok_or_else(unwritten)?];
        let put = self.store.put(scope.clone(), records, cache.precondition()).await;
        if matches!(put, Err(StoreError::Deleted)) {
            self.forget_deleted(scope, cache);
        }
        let won = match put?.into_iter().next() {
            Some(WriteOutcome::Existed(first)) => {
                serde_json::from_slice(&first).map_err(|_| unwritten())?
            }
            Some(WriteOutcome::Written) | None => fact,
        };
        cache.add_stored(vec![won.clone()]).then_some(won).ok_or(StoreError::Deleted)
    }

    /// The handle by which data of a session is written that belongs to no exchange.
    pub fn handle(&self, scope: &Scope) -> SessionHandle {
        let cache = lock(&self.caches).cache(scope);
        SessionHandle { scope: scope.clone(), cache, exchange: ExchangeId::default() }
    }
}
