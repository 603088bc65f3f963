//! A store that passes everything on to another one, for stores that change a few methods of a real one.
//!
//! A type that implements [`StoreWrapper`] is a [`Store`]. It overrides what it changes.

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::drafts::Draft;
use super::live_events::{ToldEvent, ToldEvents};
use super::notes::StoredNote;
use super::precondition::Precondition;
use super::{
    LogPlace, Record, RecordKind, Scope, ScopeLine, ScopePage, SessionGain, Store, StoreError,
    StoreFuture, SweepStep, WriteOutcome,
};
use crate::context::caps::{AdditionId, Spending, SumChange, SumKey};
use crate::context::{Millis, SessionId, TenantId};

/// Declares the methods of a store twice: passed on to the inner store, and called on the wrapper.
macro_rules! passed_on {
    ($($name:ident($($argument:ident: $type:ty),*) -> $answer:ty;)*) => {
        /// A store around another one. What each method does stands at [`Store`].
        #[allow(missing_docs, reason = "the methods are those of `Store`")]
        pub trait StoreWrapper: Send + Sync + 'static {
            /// The store that it wraps; an error is the answer to every call.
            fn inner(&self) -> Result<&dyn Store, StoreError>;

            fn is_shared(&self) -> bool {
                self.inner().is_ok_and(Store::is_shared)
            }

            $(fn $name(&self $(, $argument: $type)*) -> StoreFuture<'_, $answer> {
                match self.inner() {
                    Ok(store) => store.$name($($argument),*),
                    Err(error) => Box::pin(std::future::ready(Err(error))),
                }
            })*
        }

        impl<W: StoreWrapper> Store for W {
            fn is_shared(&self) -> bool {
                StoreWrapper::is_shared(self)
            }

            $(fn $name(&self $(, $argument: $type)*) -> StoreFuture<'_, $answer> {
                StoreWrapper::$name(self $(, $argument)*)
            })*
        }
    };
}

passed_on! {
    put(scope: Scope, records: Vec<Record>, only_if: Precondition) -> Vec<WriteOutcome>;
    append(scope: Scope, records: Vec<Record>, only_if: Precondition) -> ();
    put_drafts(instance: u64, drafts: Vec<Draft>, ended: Vec<u128>) -> ();
    adopt_drafts(instance: u64) -> Vec<Scope>;
    get(scope: Scope, kind: RecordKind, key: u128) -> Option<Bytes>;
    size(scope: Scope, kind: RecordKind) -> u64;
    session_by_fingerprint(tenant: TenantId, fingerprints: Vec<u128>) -> Option<SessionId>;
    holder(kind: RecordKind, key: u128) -> Option<Scope>;
    scan(scope: Scope, newest: usize) -> Vec<Record>;
    scan_since(scope: Scope, known_since: Instant, place: LogPlace) -> SessionGain;
    scopes(page: ScopePage) -> Vec<ScopeLine>;
    scopes_named(session: SessionId) -> Vec<Scope>;
    drop_scope(scope: Scope) -> u64;
    expire(before: Millis, max_bytes: u64) -> SweepStep;
    put_note(scope: Scope, note: StoredNote, known_since: Instant) -> ();
    remove_note(scope: Scope, note: StoredNote) -> bool;
    claim(what: u128, holder: u64, lasts: Duration) -> bool;
    release(what: u128, holder: u64) -> ();
    change_sums(id: AdditionId, sums: Vec<(SumKey, Spending)>, change: SumChange) -> Vec<Spending>;
    cap_changes() -> Option<Bytes>;
    replace_cap_changes(known: Option<Bytes>, new: Bytes) -> bool;
    tell_events(events: Vec<ToldEvent>) -> ();
    events_since(place: Option<u64>) -> ToldEvents;
    ready() -> ();
    tenant_key() -> [u8; 32];
}
