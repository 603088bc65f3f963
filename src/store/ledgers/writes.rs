//! What exchanges leave in their session: decisions, turns, and what comes for it later.
//!
//! Everything is written on the condition that the session was not deleted since it was first known here, so
//! that a deleted one stays deleted, whoever deleted it. What a write that timed out left is not kept, or
//! known here: never one without the other.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::late_writes::SessionRoom;
use super::session_cache::{self, SessionCache};
use super::{Ledgers, OpenedSession, fingerprints, lock, record};
use crate::context::ledger::Ledger;
use crate::context::{ExchangeId, Fact, inject};
use crate::store::precondition::{Precondition, WriteToken};
use crate::store::{Record, Scope, Store, StoreError, WriteOutcome};

type DecisionResult = Result<Vec<Fact>, StoreError>;

/// A decision that is being written, for as long as somebody waits for it. Dropped, it is cancelled; where it is
/// too late for that, it holds all the same, and words that it took wait again.
struct DecisionWrite {
    answer: oneshot::Receiver<DecisionResult>,
    token: WriteToken,
    store: Arc<dyn Store>,
    room: SessionRoom,
}

impl Drop for DecisionWrite {
    fn drop(&mut self) {
        self.token.cancel();
        self.answer.close();
        // It came while nobody looked.
        if let (Ok(Ok(won)), Ok(runtime)) =
            (self.answer.try_recv(), tokio::runtime::Handle::try_current())
        {
            runtime.spawn(requeue(self.store.clone(), self.room.clone(), won));
        }
    }
}

/// Why nothing is decided for a request.
#[derive(Debug, thiserror::Error)]
pub enum DecisionError {
    /// Its session has as many decisions as one may have. They are repeated.
    #[error("the session has reached its limit of decisions")]
    TooMany,
    /// The store did not keep it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Writes decisions, and knows those that hold from then on, whether anybody still waits or not.
async fn decided(
    store: Arc<dyn Store>,
    room: SessionRoom,
    facts: Vec<Fact>,
    records: Vec<Record>,
    token: WriteToken,
) -> DecisionResult {
    let only_if = Precondition { token: Some(token), ..room.cache.precondition() };
    let puts = store.put(room.scope.clone(), records, only_if).await?;
    let won = facts.into_iter().zip(puts).filter_map(|(fact, put)| match put {
        WriteOutcome::Written => Some(fact),
        // What cannot be read is left alone: nothing may stand in its place.
        WriteOutcome::Existed(first) => serde_json::from_slice(&first).ok(),
    });
    let won: Vec<Fact> = won.collect();
    // Of a session that was forgotten meanwhile, nothing is decided.
    match room.cache.hold(won.clone()) {
        true => Ok(won),
        false => Err(StoreError::Deleted),
    }
}

/// Words that a request took which never had them wait again.
async fn requeue(store: Arc<dyn Store>, room: SessionRoom, won: Vec<Fact>) {
    let facts = inject::untaken(&won, &room.exchange);
    let records: Vec<Record> = facts.iter().filter_map(record).collect();
    if records.is_empty() {
        return;
    }
    let (scope, only_if) = (room.scope.clone(), room.cache.precondition());
    if let Some(kept) = room.cache.add(facts, || store.put(scope, records, only_if)) {
        // What the store cannot take stays in memory.
        let _ = kept.await;
    }
}

impl OpenedSession {
    /// Bytes that decisions to make pictures smaller may still take of its session.
    pub fn room_for_pictures(&self) -> usize {
        session_cache::PICTURES.saturating_sub(self.cache.look(Ledger::decision_bytes))
    }
}

impl Ledgers {
    /// Keeps decisions before they reach the wire; answers those that hold: where another was first,
    /// its. Waits at most `timeout`. Of a session that has [`session_cache::DECISIONS`] bytes of them no more are kept.
    ///
    /// # Errors
    /// Why nothing was decided for this request. A write that was under way and could not be cancelled may
    /// still be kept; it holds from then on.
    pub async fn decide(
        &self,
        opened: &OpenedSession,
        mut facts: Vec<Fact>,
        timeout: Duration,
    ) -> Result<Vec<Fact>, DecisionError> {
        if opened.cache.look(Ledger::decision_bytes) >= session_cache::DECISIONS {
            // Words that somebody had said are none.
            facts.retain(|fact| matches!(fact, Fact::Said(_)));
            if facts.is_empty() {
                return Err(DecisionError::TooMany);
            }
        }
        let records: Vec<Record> = facts.iter().filter_map(record).collect();
        if records.len() != facts.len() {
            return Err(StoreError::Failed("a decision cannot be written".to_owned()).into());
        }
        let (told, answer) = oneshot::channel();
        let token = WriteToken::default();
        let (store, room) = (self.store.clone(), opened.room());
        let mut decision = DecisionWrite { answer, token, store, room };
        let (store, room) = (decision.store.clone(), decision.room.clone());
        let token = decision.token.clone();
        tokio::spawn(async move {
            let won = decided(store.clone(), room.clone(), facts, records, token).await;
            if let Err(Ok(won)) = told.send(won) {
                requeue(store, room, won).await;
            }
        });
        let slow = |_| StoreError::Failed(format!("no answer within {timeout:?}"));
        let answer = tokio::time::timeout(timeout, &mut decision.answer).await.map_err(slow)?;
        let won = match answer.unwrap_or(Err(StoreError::Closed)) {
            Err(StoreError::Deleted) => {
                self.was_deleted(&opened.scope, &opened.cache);
                return Err(StoreError::Deleted.into());
            }
            won => won?,
        };
        // Nor again what was refused.
        let holds = |ledger: &Ledger| won.into_iter().filter(|fact| !ledger.voids(fact)).collect();
        Ok(opened.cache.look(holds))
    }

    /// Keeps what an exchange taught: in memory at once, and durable when this is answered. The
    /// place is given up, so that requests which waited for it go on. Of a session that was forgotten
    /// meanwhile, nothing is kept.
    ///
    /// # Errors
    /// The store's [`StoreError`]; memory knows the turn all the same.
    pub async fn commit(&self, opened: OpenedSession, facts: Vec<Fact>) -> Result<(), StoreError> {
        let (scope, began) = (opened.scope.clone(), opened.began.into_std());
        let mut records: Vec<Record> = facts.iter().filter_map(record).collect();
        let signs: Vec<Record> = match opened.named {
            true => Vec::new(),
            false => facts.iter().flat_map(fingerprints::left_by).collect(),
        };
        records.extend(signs.iter().cloned());
        let cache = opened.cache.clone();
        let again = records.clone();
        let kept = cache.add(facts, || {
            lock(&self.signs).add(&scope, &signs);
            self.store.put(scope.clone(), records, cache.precondition())
        });
        drop(opened);
        let kept = match kept {
            Some(kept) => kept.await,
            None => Err(StoreError::Deleted),
        };
        match kept {
            Err(StoreError::Deleted) => {
                self.was_deleted(&scope, &cache);
                self.begin_again(scope, again, began).await
            }
            kept => kept.map(drop),
        }
    }

    /// Keeps what an exchange left whose session was deleted: where it began after that, and only remembered the
    /// old one, it is the first of a new one.
    async fn begin_again(
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
                lock(&self.caches).cache(&scope).join(&session_cache::ledger(&records).0);
                Ok(())
            }
        }
    }

    /// Another process deleted a session: what was known of it here goes.
    fn was_deleted(&self, scope: &Scope, cache: &Arc<SessionCache>) {
        lock(&self.caches).remove_cache(scope, cache);
        drop(cache.forget(|| Box::pin(std::future::ready(Ok(())))));
        lock(&self.signs).forget(std::slice::from_ref(scope));
        lock(&self.latest_requests).forget(scope);
        lock(&self.pending_compactions).forget(scope);
    }

    /// Keeps one fact of a session beside its exchange: in memory at once, then in the store. Of a session that
    /// was forgotten meanwhile, nothing is kept.
    ///
    /// # Errors
    /// The store's [`StoreError`]; memory knows it all the same.
    pub async fn note(&self, room: &SessionRoom, fact: Fact) -> Result<(), StoreError> {
        let SessionRoom { scope, cache, .. } = room;
        let records = record(&fact).into_iter().collect();
        let put = || self.store.put(scope.clone(), records, cache.precondition());
        match cache.add(vec![fact], put) {
            Some(kept) => match kept.await {
                Err(StoreError::Deleted) => {
                    self.was_deleted(scope, cache);
                    Ok(())
                }
                kept => kept.map(drop),
            },
            None => Ok(()),
        }
    }

    /// Keeps one fact of a session that another may have kept meanwhile: answers the one that holds.
    ///
    /// # Errors
    /// The store's [`StoreError`]: nothing is kept then.
    pub async fn settle(&self, room: &SessionRoom, fact: Fact) -> Result<Fact, StoreError> {
        let unwritten = || StoreError::Failed("a fact cannot be written".to_owned());
        let SessionRoom { scope, cache, .. } = room;
        let records = vec![record(&fact).ok_or_else(unwritten)?];
        let put = self.store.put(scope.clone(), records, cache.precondition()).await;
        if matches!(put, Err(StoreError::Deleted)) {
            self.was_deleted(scope, cache);
        }
        let won = match put?.into_iter().next() {
            Some(WriteOutcome::Existed(first)) => {
                serde_json::from_slice(&first).map_err(|_| unwritten())?
            }
            Some(WriteOutcome::Written) | None => fact,
        };
        cache.hold(vec![won.clone()]).then_some(won).ok_or(StoreError::Deleted)
    }

    /// Where something may go that comes for a session now, beside any exchange.
    pub fn room(&self, scope: &Scope) -> SessionRoom {
        let cache = lock(&self.caches).cache(scope);
        SessionRoom { scope: scope.clone(), cache, exchange: ExchangeId::default() }
    }
}
