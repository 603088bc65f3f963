//! A store that passes everything on to another one, for tests that change a few methods of a real store.
//!
//! A type that implements [`StoreWrapper`] is a [`Store`]. It overrides what it changes.

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::drafts::Draft;
use super::live_events::{ToldEvent, ToldEvents};
use super::notes::StoredNote;
use super::precondition::Precondition;
use super::{
    Record, RecordKind, Scope, ScopeLine, ScopePage, Store, StoreFuture, SweepStep, WriteOutcome,
};
use crate::context::caps::{AdditionId, Spending, SumChange, SumKey};
use crate::context::{Millis, SessionId, TenantId};

/// Declares the methods of a store twice: passed on to the inner store, and called on the wrapper.
macro_rules! passed_on {
    ($($name:ident($($argument:ident: $type:ty),*) -> $answer:ty;)*) => {
        /// A store around another one. What each method does stands at [`Store`].
        #[allow(missing_docs, reason = "the methods are those of `Store`")]
        pub trait StoreWrapper: Send + Sync + 'static {
            /// The store that it wraps.
            fn inner(&self) -> &dyn Store;

            $(fn $name(&self $(, $argument: $type)*) -> $answer {
                self.inner().$name($($argument),*)
            })*

            // By way of `put`, so that a wrapper that changes that one sees all that is written.
            fn append(
                &self,
                scope: Scope,
                records: Vec<Record>,
                only_if: Precondition,
            ) -> StoreFuture<'_, ()> {
                let put = StoreWrapper::put(self, scope, records, only_if);
                Box::pin(async move { put.await.map(drop) })
            }
        }

        impl<W: StoreWrapper> Store for W {
            $(fn $name(&self $(, $argument: $type)*) -> $answer {
                StoreWrapper::$name(self $(, $argument)*)
            })*

            fn append(
                &self,
                scope: Scope,
                records: Vec<Record>,
                only_if: Precondition,
            ) -> StoreFuture<'_, ()> {
                StoreWrapper::append(self, scope, records, only_if)
            }
        }
    };
}

passed_on! {
    put(scope: Scope, records: Vec<Record>, only_if: Precondition) -> StoreFuture<'_, Vec<WriteOutcome>>;
    put_drafts(instance: u64, drafts: Vec<Draft>, ended: Vec<u128>) -> StoreFuture<'_, ()>;
    adopt_drafts(instance: u64) -> StoreFuture<'_, Vec<Scope>>;
    is_shared() -> bool;
    get(scope: Scope, kind: RecordKind, key: u128) -> StoreFuture<'_, Option<Bytes>>;
    size(scope: Scope, kind: RecordKind) -> StoreFuture<'_, u64>;
    session_by_fingerprint(tenant: TenantId, fingerprints: Vec<u128>) -> StoreFuture<'_, Option<SessionId>>;
    holder(kind: RecordKind, key: u128) -> StoreFuture<'_, Option<Scope>>;
    scan(scope: Scope, newest: usize) -> StoreFuture<'_, Vec<Record>>;
    scopes(page: ScopePage) -> StoreFuture<'_, Vec<ScopeLine>>;
    scopes_named(session: SessionId) -> StoreFuture<'_, Vec<Scope>>;
    drop_scope(scope: Scope) -> StoreFuture<'_, u64>;
    expire(before: Millis, max_bytes: u64) -> StoreFuture<'_, SweepStep>;
    put_note(scope: Scope, note: StoredNote, known_since: Instant) -> StoreFuture<'_, ()>;
    remove_note(scope: Scope, note: StoredNote) -> StoreFuture<'_, bool>;
    claim(what: u128, holder: u64, lasts: Duration) -> StoreFuture<'_, bool>;
    release(what: u128, holder: u64) -> StoreFuture<'_, ()>;
    change_sums(id: AdditionId, sums: Vec<(SumKey, Spending)>, change: SumChange) -> StoreFuture<'_, Vec<Spending>>;
    cap_changes() -> StoreFuture<'_, Option<Bytes>>;
    replace_cap_changes(known: Option<Bytes>, new: Bytes) -> StoreFuture<'_, bool>;
    tell_events(events: Vec<ToldEvent>) -> StoreFuture<'_, ()>;
    events_since(place: Option<u64>) -> StoreFuture<'_, ToldEvents>;
    ready() -> StoreFuture<'_, ()>;
    tenant_key() -> StoreFuture<'_, [u8; 32]>;
}
