//! Floor 4: storage of facts that outlive the process.
//!
//! One small trait, and one conformance suite that every backend passes. Records are written once, the first
//! write wins, and nothing is updated. Exchanges in flight are not records yet ([`drafts`]). If the store
//! fails, knowledge is lost, never a response.

mod calibrations;
pub(super) mod deferred_store;
pub mod drafts;
pub(super) mod folder;
pub(super) mod keyed;
pub mod ledgers;
pub mod lessons;
pub mod live_events;
#[cfg(any(test, feature = "test-support"))]
#[path = "testing/memory.rs"]
pub mod memory;
pub mod notes;
mod packing;
pub mod precondition;
mod random;
pub mod recall;
mod record;
pub mod redis;
pub(super) mod served;
pub mod sqlite;
mod tombstones;
pub(crate) mod turn_columns;
pub mod wrapper;

#[cfg(any(test, feature = "test-support"))]
#[path = "testing/conformance.rs"]
pub mod conformance;

use self::record::SERIES_NAMES;
pub use self::record::{Record, RecordKind, Scope};

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

use bytes::Bytes;

use self::drafts::Draft;
use self::live_events::{ToldEvent, ToldEvents};
use self::notes::StoredNote;
use self::precondition::Precondition;
use crate::context::caps::{AdditionId, Spending, SumChange, SumKey};
use crate::context::{Millis, SessionId, TenantId};

/// The future of a store's answer.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// The result of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// It was saved.
    Written,
    /// Another write was first; this is what it wrote.
    Existed(Bytes),
}

/// A scope as it is listed: updated as records arrive, so that a list does not read them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScopeLine {
    /// The tenant and session that the line is about.
    pub scope: Scope,
    /// Its place in the list.
    pub cursor: Cursor,
    /// The time of its oldest record.
    pub began: Millis,
    /// The time of its newest turn.
    pub newest: Millis,
    /// How many records.
    pub records: u64,
    /// How many turns.
    pub turns: u64,
    /// Reported input of all turns, tokens.
    pub input: u64,
    /// Reported output of all turns, tokens.
    pub output: u64,
    /// The share of the input that came from a cache, tokens.
    pub cache_read: u64,
}

/// A place in the list of scopes, which is ordered from the most to the least recently used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cursor {
    /// When the scope was last used: its newest record's time.
    pub used: Millis,
    /// The store's id of the scope.
    pub id: u64,
}

/// A page of the list of scopes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScopePage {
    /// The last line of the page before; `None` at the beginning.
    pub after: Option<Cursor>,
    /// Lines to skip then. Each takes time; a cursor takes none.
    pub skip: usize,
    /// The most lines that are returned.
    pub count: usize,
}

impl ScopePage {
    /// The first lines of the list.
    pub fn first(count: usize) -> Self {
        Self { after: None, skip: 0, count }
    }
}

/// What one step of expiring did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SweepStep {
    /// How many records were deleted.
    pub records: u64,
    /// Their scopes, each deleted as a whole.
    pub scopes: Vec<Scope>,
    /// There is, or may be, more to do.
    pub more: bool,
}

impl SweepStep {
    fn join(&mut self, other: Self) {
        self.records += other.records;
        self.scopes.extend(other.scopes);
        self.more |= other.more;
    }
}

/// How far a reader has read what was written in a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogPlace {
    /// When the store first knew the session.
    pub born: u64,
    /// The writes since then that were read.
    pub length: u64,
}

/// What a session gained since a reader last looked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionGain {
    /// It was deleted since the reader first knew it: what the reader knows is void.
    pub is_deleted: bool,
    /// Where to read on the next time.
    pub place: LogPlace,
    /// The records, oldest first; without fingerprints and content.
    pub records: Vec<Record>,
    /// All its notes.
    pub notes: Vec<StoredNote>,
}

/// Why a store could not answer. The fault is ours or the disk's, never the client's.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The store cannot be opened; the message says what to do.
    #[error("{0}")]
    Unusable(String),
    /// Another process uses the data folder; the message says what to do.
    #[error("{0}")]
    InUse(String),
    /// The store's file is damaged, or is no store; the message says what to do.
    #[error("{0}")]
    Damaged(String),
    /// The disk is full; the message says what to do. Stored data can be read.
    #[error("{0}")]
    Full(String),
    /// It failed this time.
    #[error("the store failed: {0}")]
    Failed(String),
    /// It is closing, or too busy to accept more.
    #[error("the store is not taking writes")]
    Closed,
    /// The session was deleted after the write's data was created: nothing is stored.
    #[error("the session was deleted meanwhile")]
    Deleted,
    /// The writer cancelled it: nothing is stored.
    #[error("the write was cancelled")]
    Cancelled,
}

/// A place where facts are stored.
pub trait Store: Send + Sync + 'static {
    /// Writes records that do not exist yet, all or none, durably when it returns; one outcome each. A turn
    /// removes its draft, and replaces a turn that was made from its draft. `only_if` is checked in the
    /// transaction that writes: if it does not hold, this fails with [`StoreError::Deleted`] or
    /// [`StoreError::Cancelled`], and nothing is stored.
    fn put(
        &self,
        scope: Scope,
        records: Vec<Record>,
        only_if: Precondition,
    ) -> StoreFuture<'_, Vec<WriteOutcome>>;

    /// Writes records that do not exist yet, without a condition.
    fn put_if_absent(
        &self,
        scope: Scope,
        records: Vec<Record>,
    ) -> StoreFuture<'_, Vec<WriteOutcome>> {
        self.put(scope, records, Precondition::default())
    }

    /// Writes what an ended exchange taught, durably when it returns, like [`Store::put`] without its outcomes. Once
    /// it has returned, every query here sees it; people who read the file of a store may see it a second later.
    fn append(
        &self,
        scope: Scope,
        records: Vec<Record>,
        only_if: Precondition,
    ) -> StoreFuture<'_, ()> {
        let put = self.put(scope, records, only_if);
        Box::pin(async move { put.await.map(drop) })
    }

    /// Writes drafts, each replacing the one before it, and removes those whose exchanges `ended` without a
    /// turn. Drafts of scopes that were deleted since the draft was begun are left out.
    fn put_drafts(
        &self,
        instance: u64,
        drafts: Vec<Draft>,
        ended: Vec<u128>,
    ) -> StoreFuture<'_, ()>;

    /// Makes turns from the drafts of other instances that have ended: of all others, in a store that only one
    /// process uses. Returns the scopes of the turns. A draft whose turn exists is removed.
    fn adopt_drafts(&self, instance: u64) -> StoreFuture<'_, Vec<Scope>>;

    /// Whether several processes may use it at the same time. Only then they claim work, and read what others wrote.
    fn is_shared(&self) -> bool;

    /// One record's value.
    fn get(&self, scope: Scope, kind: RecordKind, key: u128) -> StoreFuture<'_, Option<Bytes>>;

    /// The size of the values of a kind in a scope, bytes.
    fn size(&self, scope: Scope, kind: RecordKind) -> StoreFuture<'_, u64>;

    /// The session of this tenant that has the first known one of these fingerprints; a fingerprint belongs
    /// to the first session that wrote it.
    fn session_by_fingerprint(
        &self,
        tenant: TenantId,
        fingerprints: Vec<u128>,
    ) -> StoreFuture<'_, Option<SessionId>>;

    /// A scope that contains a record. For the admin API, not for traffic: it may be slow.
    fn holder(&self, kind: RecordKind, key: u128) -> StoreFuture<'_, Option<Scope>>;

    /// The `newest` records in a scope and all its decisions, oldest first; without fingerprints and content.
    fn scan(&self, scope: Scope, newest: usize) -> StoreFuture<'_, Vec<Record>>;

    /// What a scope gained since `place`, for a reader that knows it since a time; it may be more. Only a store that
    /// several processes share is asked.
    fn scan_since(
        &self,
        scope: Scope,
        known_since: Instant,
        place: LogPlace,
    ) -> StoreFuture<'_, SessionGain> {
        let _ = known_since;
        let scan = self.scan(scope, usize::MAX);
        Box::pin(async move {
            Ok(SessionGain { place, records: scan.await?, ..SessionGain::default() })
        })
    }

    /// Sets a note of a session, unless that was deleted since a time. Only a store that several processes share is asked.
    fn put_note(
        &self,
        scope: Scope,
        note: StoredNote,
        known_since: Instant,
    ) -> StoreFuture<'_, ()> {
        let _ = (scope, note, known_since);
        Box::pin(std::future::ready(Ok(())))
    }

    /// Removes a note that still says this; else returns `false`.
    fn remove_note(&self, scope: Scope, note: StoredNote) -> StoreFuture<'_, bool> {
        let _ = (scope, note);
        Box::pin(std::future::ready(Ok(false)))
    }

    /// The scopes that have turns, the most recently used first.
    fn scopes(&self, page: ScopePage) -> StoreFuture<'_, Vec<ScopeLine>>;

    /// The scopes of a session id, one per tenant that uses it, including those with only drafts.
    fn scopes_named(&self, session: SessionId) -> StoreFuture<'_, Vec<Scope>>;

    /// Deletes a scope and its drafts; returns how many records were deleted. From then on it cannot be
    /// found; within seconds nothing of it is left on disk. Data that was begun before is not stored
    /// afterwards ([`Precondition::since`]).
    fn drop_scope(&self, scope: Scope) -> StoreFuture<'_, u64>;

    /// Deletes a small part of what is expired: first scopes last used before a time, then the least recently
    /// used, as long as more than `max_bytes` are used. A scope is deleted as a whole, because a decision is
    /// useless without its basis. The most recently used scope and everything learned always stay. Fails if
    /// an earlier step could not be completed.
    fn expire(&self, before: Millis, max_bytes: u64) -> StoreFuture<'_, SweepStep>;

    /// Takes a piece of work for `holder`, unless another one has it. It is free again after `lasts`, or when it is
    /// released. In a store of one process nobody else could have it.
    fn claim(&self, what: u128, holder: u64, lasts: Duration) -> StoreFuture<'_, bool> {
        let _ = (what, holder, lasts);
        // The result of the work has to be stored, so a store that cannot is found out now.
        Box::pin(async move { self.ready().await.map(|()| true) })
    }

    /// Gives back what `holder` has claimed, so that others need not wait.
    fn release(&self, what: u128, holder: u64) -> StoreFuture<'_, ()> {
        let _ = (what, holder);
        Box::pin(std::future::ready(Ok(())))
    }

    /// Changes sums of spending that several processes add up, and returns them: adding nothing reads them. What is added
    /// again is added once: what has a lower number than an earlier addition of its process, within a day, was added before. Only a store that several processes share is asked.
    fn change_sums(
        &self,
        id: AdditionId,
        sums: Vec<(SumKey, Spending)>,
        change: SumChange,
    ) -> StoreFuture<'_, Vec<Spending>> {
        let _ = (id, change);
        Box::pin(std::future::ready(Ok(sums.into_iter().map(|(_, spending)| spending).collect())))
    }

    /// What people changed of the caps, as one document. Only a store that several processes share is asked.
    fn cap_changes(&self) -> StoreFuture<'_, Option<Bytes>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Replaces that document, if it is still the known one; else returns `false`.
    fn replace_cap_changes(&self, known: Option<Bytes>, new: Bytes) -> StoreFuture<'_, bool> {
        let _ = (known, new);
        Box::pin(std::future::ready(Ok(false)))
    }

    /// Tells other processes of live events, if anybody listens at one of them. Only a store that several processes share is asked.
    fn tell_events(&self, events: Vec<ToldEvent>) -> StoreFuture<'_, ()> {
        let _ = events;
        Box::pin(std::future::ready(Ok(())))
    }

    /// The live events that were told since a place, also by this process; without one, only where to begin.
    fn events_since(&self, place: Option<u64>) -> StoreFuture<'_, ToldEvents> {
        let _ = place;
        Box::pin(std::future::ready(Ok(ToldEvents::default())))
    }

    /// Whether it can answer now, for `/readyz`.
    fn ready(&self) -> StoreFuture<'_, ()>;

    /// The 32 random bytes for the hashes of credentials: made once, the same for every process on this
    /// store.
    fn tenant_key(&self) -> StoreFuture<'_, [u8; 32]>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweep_steps_add_up() {
        let step = |session: &str, more| {
            let scopes = vec![Scope { tenant: "t".into(), session: session.into() }];
            SweepStep { records: 2, scopes, more }
        };
        for (first, second) in [(false, false), (false, true), (true, false)] {
            let mut both = step("a", first);
            both.join(step("b", second));
            assert_eq!(both.records, 4);
            assert_eq!(both.more, first || second);
            assert_eq!(both.scopes, [step("a", false).scopes, step("b", false).scopes].concat());
        }
    }
}
