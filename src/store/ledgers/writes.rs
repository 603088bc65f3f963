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
use super::{ContinuedEnd, Ledgers, fingerprint_keys, no_answer};
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

async fn write_decisions(
    store: Arc<dyn Store>,
    handle: SessionHandle,
    facts: Vec<Fact>,
    records: Vec<Record>,
    token: WriteToken,
) -> DecisionResult {
    // What is stored must be known here, too, or the next request decides differently.
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

async fn requeue(store: Arc<dyn Store>, handle: SessionHandle, won: Vec<Fact>) {
    // The request took them but was sent without them.
    let facts = inject::requeue_unsent(&won, &handle.exchange);
    let records: Vec<Record> = facts.iter().filter_map(record).collect();
    if records.is_empty() {
        return;
    }
    let scope = handle.scope.clone();
    let only_if = handle.cache.precondition();
    if let Some(write) = handle.cache.add(facts, || store.put(scope, records, only_if)) {
        // If the store cannot save it, it stays in memory.
        let _ = write.await;
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
        // All or none: half of a plan is another plan.
        if records.len() != facts.len() {
            return Err(StoreError::Failed("a decision cannot be written".to_owned()).into());
        }
        let (sender, answer) = oneshot::channel();
        let token = WriteToken::default();
        let store = self.store.clone();
        let handle = opened.handle();
        let mut decision = DecisionWrite {
            answer,
            token: token.clone(),
            store: store.clone(),
            handle: handle.clone(),
        };
        // A task of its own: once written, a decision applies, though nobody waits any more.
        tokio::spawn(async move {
            let won = write_decisions(store.clone(), handle.clone(), facts, records, token).await;
            if let Err(Ok(won)) = sender.send(won) {
                requeue(store, handle, won).await;
            }
        });
        let answer = tokio::time::timeout(timeout, &mut decision.answer)
            .await
            .map_err(|_| no_answer(timeout))?;
        let won = match answer.unwrap_or(Err(StoreError::Closed)) {
            Err(StoreError::Deleted) => {
                self.forget_deleted(&opened.scope, &opened.cache);
                return Err(StoreError::Deleted.into());
            }
            won => won?,
        };
        // Revoked decisions are left out.
        Ok(opened.cache.look(|ledger| won.into_iter().filter(|fact| !ledger.voids(fact)).collect()))
    }

    /// Stores what an exchange taught: in memory at once, and durably when this returns. Its place is
    /// released, so that requests which waited for it continue. For a session that was deleted meanwhile,
    /// nothing is stored.
    ///
    /// # Errors
    /// The store's [`StoreError`]; memory has the turn all the same.
    pub async fn commit(
        &self,
        mut opened: OpenedSession,
        facts: Vec<Fact>,
    ) -> Result<(), StoreError> {
        let scope = opened.scope.clone();
        let mut spending = Vec::new();
        let mut at = 0;
        for fact in &facts {
            if let Fact::Turn(turn) = fact {
                spending.extend(self.caps.add_turn(&opened, turn));
                at = turn.at;
                opened.continues.iter_mut().for_each(ContinuedEnd::leave_turn);
            }
        }
        let began = opened.began.into_std();
        let mut records: Vec<Record> = facts.iter().filter_map(record).collect();
        let fingerprints: Vec<Record> = match opened.named {
            true => facts.iter().filter_map(fingerprint_keys::of_open_reply).collect(),
            false => facts.iter().flat_map(fingerprint_keys::left_by).collect(),
        };
        records.extend(fingerprints.iter().cloned());
        let cache = opened.cache.clone();
        let connection = opened.connection;
        let copies = records.clone();
        let write = cache.add(facts, || {
            // Before the place is released: a request that waited for it looks for them.
            lock(&self.fingerprints).add(&scope, &fingerprints, connection);
            self.store.append(scope.clone(), records, cache.precondition())
        });
        // Its place is released: what it taught is in memory.
        drop(opened);
        let writing = async {
            match write {
                Some(write) => write.await,
                None => Err(StoreError::Deleted),
            }
        };
        let summing = self.add_to_common_sums(spending, at);
        let outcome = tokio::join!(writing, summing).0;
        match outcome {
            Err(StoreError::Deleted) => {
                self.forget_deleted(&scope, &cache);
                self.restart_session(scope, copies, began).await
            }
            outcome => outcome,
        }
    }

    async fn restart_session(
        &self,
        scope: Scope,
        records: Vec<Record>,
        began: std::time::Instant,
    ) -> Result<(), StoreError> {
        // If the exchange began after the deletion, and only used old data from memory, it is the
        // first of a new session.
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
        let write =
            cache.add(vec![fact], || self.store.put(scope.clone(), records, cache.precondition()));
        let Some(write) = write else { return Ok(()) };
        match write.await {
            Err(StoreError::Deleted) => {
                self.forget_deleted(scope, cache);
                Ok(())
            }
            outcome => outcome.map(drop),
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
        const UNWRITTEN: &str = "a fact cannot be written";
        let SessionHandle { scope, cache, .. } = handle;
        let records = vec![record(&fact).ok_or_else(|| StoreError::Failed(UNWRITTEN.to_owned()))?];
        let put = self.store.put(scope.clone(), records, cache.precondition()).await;
        if matches!(put, Err(StoreError::Deleted)) {
            self.forget_deleted(scope, cache);
        }
        let won = match put?.into_iter().next() {
            // The first write wins, and is what all processes apply.
            Some(WriteOutcome::Existed(first)) => serde_json::from_slice(&first)
                .map_err(|_| StoreError::Failed(UNWRITTEN.to_owned()))?,
            Some(WriteOutcome::Written) | None => {
                if let Fact::Summary(summary) = &fact {
                    // Counted by who stored it, so that several processes do not count it twice.
                    let spending = self.caps.add_summary(handle, summary);
                    self.add_to_common_sums(spending, summary.at).await;
                }
                fact
            }
        };
        cache.add_stored(vec![won.clone()]).then_some(won).ok_or(StoreError::Deleted)
    }

    /// The handle by which data of a session is written that belongs to no exchange.
    pub fn handle(&self, scope: &Scope) -> SessionHandle {
        let cache = lock(&self.caches).cache(scope);
        SessionHandle { scope: scope.clone(), cache, exchange: ExchangeId::default() }
    }
}
