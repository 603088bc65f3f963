//! A store that reports how long its operations take, and hands its turns to the warehouse.
//!
//! Stores know nothing about metrics and the warehouse, and these nothing about stores; this connects them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::context::caps::{AdditionId, Spending, SumChange, SumKey};
use crate::context::{Millis, SessionId, TenantId};
use crate::store::drafts::Draft;
use crate::store::live_events::{ToldEvent, ToldEvents};
use crate::store::notes::StoredNote;
use crate::store::precondition::Precondition;
use crate::store::{
    LogPlace, Record, RecordKind, Scope, ScopeLine, ScopePage, SessionGain, Store, StoreError,
    StoreFuture, SweepStep, WriteOutcome,
};
use crate::telemetry::{StoreOperation, Telemetry};
use crate::warehouse::TurnSink;

/// Of a session with turns of a killed process, records that are looked at for these.
const INTERRUPTED: usize = 1024;

/// Measures every operation of the inner store.
pub(super) struct TimedStore {
    pub(super) store: Arc<dyn Store>,
    pub(super) telemetry: Arc<Telemetry>,
    /// Where its turns go, too.
    pub(super) warehouse: Option<TurnSink>,
}

impl TimedStore {
    fn time<'a, T: Send + 'a>(
        &'a self,
        operation: StoreOperation,
        answer: StoreFuture<'a, T>,
    ) -> StoreFuture<'a, T> {
        Box::pin(async move {
            let began = Instant::now();
            let answer = answer.await;
            self.telemetry.store_took(operation, began.elapsed(), answer.is_ok());
            answer
        })
    }

    /// The same for a write, whose turns go to the warehouse, too.
    fn write<'a, T: Send + 'a>(
        &'a self,
        scope: Scope,
        records: Vec<Record>,
        write: impl FnOnce(Scope, Vec<Record>) -> StoreFuture<'a, T>,
    ) -> StoreFuture<'a, T> {
        let Some(warehouse) = &self.warehouse else {
            return self.time(StoreOperation::Put, write(scope, records));
        };
        let turns = warehouse.turns(&scope, &records);
        let written = self.time(StoreOperation::Put, write(scope, records));
        Box::pin(async move {
            let outcome = written.await;
            // A turn that the store cannot take was paid for, too.
            if !matches!(outcome, Err(StoreError::Deleted | StoreError::Cancelled)) {
                warehouse.write(turns);
            }
            outcome
        })
    }
}

/// Declares methods that only measure the inner store, each as an operation.
macro_rules! timed {
    ($($name:ident($($argument:ident: $type:ty),*) -> $answer:ty: $operation:ident;)*) => {
        $(fn $name(&self $(, $argument: $type)*) -> StoreFuture<'_, $answer> {
            self.time(StoreOperation::$operation, self.store.$name($($argument),*))
        })*
    };
}

impl Store for TimedStore {
    fn put(
        &self,
        scope: Scope,
        records: Vec<Record>,
        only_if: Precondition,
    ) -> StoreFuture<'_, Vec<WriteOutcome>> {
        self.write(scope, records, |scope, records| self.store.put(scope, records, only_if))
    }

    fn append(
        &self,
        scope: Scope,
        records: Vec<Record>,
        only_if: Precondition,
    ) -> StoreFuture<'_, ()> {
        self.write(scope, records, |scope, records| self.store.append(scope, records, only_if))
    }

    fn adopt_drafts(&self, instance: u64) -> StoreFuture<'_, Vec<Scope>> {
        let adopting = self.time(StoreOperation::Draft, self.store.adopt_drafts(instance));
        let Some(warehouse) = &self.warehouse else { return adopting };
        Box::pin(async move {
            let scopes = adopting.await?;
            for scope in &scopes {
                if let Ok(records) = self.scan(scope.clone(), INTERRUPTED).await {
                    warehouse.write(warehouse.turns(scope, &records));
                }
            }
            Ok(scopes)
        })
    }

    fn is_shared(&self) -> bool {
        self.store.is_shared()
    }

    fn drop_scope(&self, scope: Scope) -> StoreFuture<'_, u64> {
        let dropped = self.time(StoreOperation::Drop, self.store.drop_scope(scope.clone()));
        Box::pin(async move {
            let outcome = dropped.await;
            // What was written before is in the queue by now.
            if let Some(warehouse) = &self.warehouse {
                warehouse.delete(&scope);
            }
            outcome
        })
    }

    timed! {
        put_drafts(instance: u64, drafts: Vec<Draft>, ended: Vec<u128>) -> (): Draft;
        get(scope: Scope, kind: RecordKind, key: u128) -> Option<Bytes>: Get;
        size(scope: Scope, kind: RecordKind) -> u64: Get;
        session_by_fingerprint(tenant: TenantId, fingerprints: Vec<u128>) -> Option<SessionId>: Find;
        holder(kind: RecordKind, key: u128) -> Option<Scope>: Find;
        scan(scope: Scope, newest: usize) -> Vec<Record>: Scan;
        scan_since(scope: Scope, known_since: Instant, place: LogPlace) -> SessionGain: Scan;
        put_note(scope: Scope, note: StoredNote, known_since: Instant) -> (): Put;
        remove_note(scope: Scope, note: StoredNote) -> bool: Put;
        scopes(page: ScopePage) -> Vec<ScopeLine>: Scopes;
        scopes_named(session: SessionId) -> Vec<Scope>: Find;
        expire(before: Millis, max_bytes: u64) -> SweepStep: Expire;
        claim(what: u128, holder: u64, lasts: Duration) -> bool: Put;
        release(what: u128, holder: u64) -> (): Put;
        change_sums(id: AdditionId, sums: Vec<(SumKey, Spending)>, change: SumChange) -> Vec<Spending>: Put;
        cap_changes() -> Option<Bytes>: Get;
        replace_cap_changes(known: Option<Bytes>, new: Bytes) -> bool: Put;
        tell_events(events: Vec<ToldEvent>) -> (): Put;
        events_since(place: Option<u64>) -> ToldEvents: Get;
        ready() -> (): Ready;
        tenant_key() -> [u8; 32]: Get;
    }
}
