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

    fn put_drafts(
        &self,
        instance: u64,
        drafts: Vec<Draft>,
        ended: Vec<u128>,
    ) -> StoreFuture<'_, ()> {
        self.time(StoreOperation::Draft, self.store.put_drafts(instance, drafts, ended))
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

    fn get(&self, scope: Scope, kind: RecordKind, key: u128) -> StoreFuture<'_, Option<Bytes>> {
        self.time(StoreOperation::Get, self.store.get(scope, kind, key))
    }

    fn size(&self, scope: Scope, kind: RecordKind) -> StoreFuture<'_, u64> {
        self.time(StoreOperation::Get, self.store.size(scope, kind))
    }

    fn session_by_fingerprint(
        &self,
        tenant: TenantId,
        fingerprints: Vec<u128>,
    ) -> StoreFuture<'_, Option<SessionId>> {
        self.time(StoreOperation::Find, self.store.session_by_fingerprint(tenant, fingerprints))
    }

    fn holder(&self, kind: RecordKind, key: u128) -> StoreFuture<'_, Option<Scope>> {
        self.time(StoreOperation::Find, self.store.holder(kind, key))
    }

    fn scan(&self, scope: Scope, newest: usize) -> StoreFuture<'_, Vec<Record>> {
        self.time(StoreOperation::Scan, self.store.scan(scope, newest))
    }

    fn scan_since(
        &self,
        scope: Scope,
        known_since: Instant,
        place: LogPlace,
    ) -> StoreFuture<'_, SessionGain> {
        self.time(StoreOperation::Scan, self.store.scan_since(scope, known_since, place))
    }

    fn put_note(
        &self,
        scope: Scope,
        note: StoredNote,
        known_since: Instant,
    ) -> StoreFuture<'_, ()> {
        self.time(StoreOperation::Put, self.store.put_note(scope, note, known_since))
    }

    fn remove_note(&self, scope: Scope, note: StoredNote) -> StoreFuture<'_, bool> {
        self.time(StoreOperation::Put, self.store.remove_note(scope, note))
    }

    fn scopes(&self, page: ScopePage) -> StoreFuture<'_, Vec<ScopeLine>> {
        self.time(StoreOperation::Scopes, self.store.scopes(page))
    }

    fn scopes_named(&self, session: SessionId) -> StoreFuture<'_, Vec<Scope>> {
        self.time(StoreOperation::Find, self.store.scopes_named(session))
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

    fn expire(&self, before: Millis, max_bytes: u64) -> StoreFuture<'_, SweepStep> {
        self.time(StoreOperation::Expire, self.store.expire(before, max_bytes))
    }

    fn claim(&self, what: u128, holder: u64, lasts: Duration) -> StoreFuture<'_, bool> {
        self.time(StoreOperation::Put, self.store.claim(what, holder, lasts))
    }

    fn release(&self, what: u128, holder: u64) -> StoreFuture<'_, ()> {
        self.time(StoreOperation::Put, self.store.release(what, holder))
    }

    fn change_sums(
        &self,
        id: AdditionId,
        sums: Vec<(SumKey, Spending)>,
        change: SumChange,
    ) -> StoreFuture<'_, Vec<Spending>> {
        self.time(StoreOperation::Put, self.store.change_sums(id, sums, change))
    }

    fn cap_changes(&self) -> StoreFuture<'_, Option<Bytes>> {
        self.time(StoreOperation::Get, self.store.cap_changes())
    }

    fn replace_cap_changes(&self, known: Option<Bytes>, new: Bytes) -> StoreFuture<'_, bool> {
        self.time(StoreOperation::Put, self.store.replace_cap_changes(known, new))
    }

    fn tell_events(&self, events: Vec<ToldEvent>) -> StoreFuture<'_, ()> {
        self.time(StoreOperation::Put, self.store.tell_events(events))
    }

    fn events_since(&self, place: Option<u64>) -> StoreFuture<'_, ToldEvents> {
        self.time(StoreOperation::Get, self.store.events_since(place))
    }

    fn ready(&self) -> StoreFuture<'_, ()> {
        self.time(StoreOperation::Ready, self.store.ready())
    }

    fn tenant_key(&self) -> StoreFuture<'_, [u8; 32]> {
        self.time(StoreOperation::Get, self.store.tenant_key())
    }
}
