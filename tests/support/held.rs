//! A store whose reads and writes a test can block, or that refuses records of one kind.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use plimsoll::context::{Millis, SessionId, TenantId};
use plimsoll::store::drafts::Draft;
use plimsoll::store::memory::MemoryStore;
use plimsoll::store::notes::StoredNote;
use plimsoll::store::precondition::Precondition;
use plimsoll::store::{
    LogPlace, Record, RecordKind, Scope, ScopeLine, ScopePage, SessionGain, Store, StoreError,
    StoreFuture, SweepStep, WriteOutcome,
};
use tokio::sync::watch;

pub struct Held {
    pub inner: std::sync::Arc<dyn Store>,
    reads: watch::Sender<bool>,
    writes: watch::Sender<bool>,
    refused: Mutex<Option<RecordKind>>,
    /// How many facts were requested one by one, and after how many the store fails.
    gets: AtomicUsize,
    most_gets: AtomicUsize,
}

impl Held {
    pub fn over(inner: std::sync::Arc<dyn Store>) -> std::sync::Arc<Self> {
        let gate = || watch::channel(false).0;
        std::sync::Arc::new(Self {
            inner,
            reads: gate(),
            writes: gate(),
            refused: Mutex::default(),
            gets: AtomicUsize::new(0),
            most_gets: AtomicUsize::new(usize::MAX),
        })
    }

    pub fn new() -> std::sync::Arc<Self> {
        Self::over(std::sync::Arc::new(MemoryStore::default()))
    }

    pub fn hold_reads(&self, held: bool) {
        self.reads.send_replace(held);
    }

    pub fn hold_writes(&self, held: bool) {
        self.writes.send_replace(held);
    }

    /// How many facts were requested one by one.
    pub fn gets(&self) -> usize {
        self.gets.load(Ordering::Relaxed)
    }

    /// Answers this many more of them; then the store fails.
    pub fn fail_after(&self, gets: usize) {
        self.most_gets.store(self.gets() + gets, Ordering::Relaxed);
    }

    /// Refuses writes of this kind from now on; `None`: none.
    pub fn refuse(&self, kind: Option<RecordKind>) {
        *self.refused.lock().unwrap() = kind;
    }
}

/// Answers once the gate is open.
fn once<'a, T: Send + 'a>(
    gate: &watch::Sender<bool>,
    answer: StoreFuture<'a, T>,
) -> StoreFuture<'a, T> {
    let mut gate = gate.subscribe();
    Box::pin(async move {
        let _ = gate.wait_for(|held| !held).await;
        answer.await
    })
}

impl Store for Held {
    fn put(
        &self,
        scope: Scope,
        records: Vec<Record>,
        only_if: Precondition,
    ) -> StoreFuture<'_, Vec<WriteOutcome>> {
        let mut gate = self.writes.subscribe();
        Box::pin(async move {
            let _ = gate.wait_for(|held| !held).await;
            let refused = *self.refused.lock().unwrap();
            if records.iter().any(|record| Some(record.kind) == refused) {
                return Err(StoreError::Failed("the disk says no".to_owned()));
            }
            self.inner.put(scope, records, only_if).await
        })
    }

    fn put_drafts(
        &self,
        instance: u64,
        drafts: Vec<Draft>,
        ended: Vec<u128>,
    ) -> StoreFuture<'_, ()> {
        once(&self.writes, self.inner.put_drafts(instance, drafts, ended))
    }

    fn adopt_drafts(&self, instance: u64) -> StoreFuture<'_, Vec<Scope>> {
        once(&self.writes, self.inner.adopt_drafts(instance))
    }

    fn is_shared(&self) -> bool {
        self.inner.is_shared()
    }

    fn get(&self, scope: Scope, kind: RecordKind, key: u128) -> StoreFuture<'_, Option<Bytes>> {
        if self.gets.fetch_add(1, Ordering::Relaxed) >= self.most_gets.load(Ordering::Relaxed) {
            return Box::pin(async { Err(StoreError::Failed("the disk says no".to_owned())) });
        }
        let mut gate = self.reads.subscribe();
        Box::pin(async move {
            let _ = gate.wait_for(|held| !held).await;
            self.inner.get(scope, kind, key).await
        })
    }

    fn size(&self, scope: Scope, kind: RecordKind) -> StoreFuture<'_, u64> {
        once(&self.reads, self.inner.size(scope, kind))
    }

    fn session_by_fingerprint(
        &self,
        tenant: TenantId,
        fingerprints: Vec<u128>,
    ) -> StoreFuture<'_, Option<SessionId>> {
        once(&self.reads, self.inner.session_by_fingerprint(tenant, fingerprints))
    }

    fn holder(&self, kind: RecordKind, key: u128) -> StoreFuture<'_, Option<Scope>> {
        once(&self.reads, self.inner.holder(kind, key))
    }

    fn scan(&self, scope: Scope, newest: usize) -> StoreFuture<'_, Vec<Record>> {
        once(&self.reads, self.inner.scan(scope, newest))
    }

    fn scan_since(
        &self,
        scope: Scope,
        known_since: Instant,
        place: LogPlace,
    ) -> StoreFuture<'_, SessionGain> {
        once(&self.reads, self.inner.scan_since(scope, known_since, place))
    }

    fn put_note(
        &self,
        scope: Scope,
        note: StoredNote,
        known_since: Instant,
    ) -> StoreFuture<'_, ()> {
        once(&self.writes, self.inner.put_note(scope, note, known_since))
    }

    fn remove_note(&self, scope: Scope, note: StoredNote) -> StoreFuture<'_, bool> {
        once(&self.writes, self.inner.remove_note(scope, note))
    }

    fn scopes(&self, page: ScopePage) -> StoreFuture<'_, Vec<ScopeLine>> {
        once(&self.reads, self.inner.scopes(page))
    }

    fn scopes_named(&self, session: SessionId) -> StoreFuture<'_, Vec<Scope>> {
        once(&self.reads, self.inner.scopes_named(session))
    }

    fn drop_scope(&self, scope: Scope) -> StoreFuture<'_, u64> {
        once(&self.writes, self.inner.drop_scope(scope))
    }

    fn expire(&self, before: Millis, max_bytes: u64) -> StoreFuture<'_, SweepStep> {
        once(&self.writes, self.inner.expire(before, max_bytes))
    }

    fn claim(&self, what: u128, holder: u64, lasts: Duration) -> StoreFuture<'_, bool> {
        // A claim belongs to no session, as what was learned.
        if *self.refused.lock().unwrap() == Some(RecordKind::Learned) {
            return Box::pin(async { Err(StoreError::Failed("the disk says no".to_owned())) });
        }
        once(&self.writes, self.inner.claim(what, holder, lasts))
    }

    fn release(&self, what: u128, holder: u64) -> StoreFuture<'_, ()> {
        once(&self.writes, self.inner.release(what, holder))
    }

    fn ready(&self) -> StoreFuture<'_, ()> {
        once(&self.reads, self.inner.ready())
    }

    fn tenant_key(&self) -> StoreFuture<'_, [u8; 32]> {
        self.inner.tenant_key()
    }
}
