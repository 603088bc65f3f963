//! Floor 4, keeping: facts that outlive the process.
//!
//! One small trait, one conformance suite that every backend passes. Records are written once; the
//! first write wins; nothing is updated. What is on its way is no record yet ([`drafts`]). A store that
//! fails costs us knowledge, never the client an answer.

pub mod calibrations;
pub mod claims;
pub mod drafts;
pub mod folder;
pub mod keyed;
pub mod late;
pub mod ledgers;
pub mod lessons;
pub mod memory;
pub mod precondition;
pub mod recall;
mod record;
pub mod sqlite;

#[cfg(test)]
mod conformance;

use self::record::SERIES_NAMES;
pub use self::record::{Record, RecordKind, Scope};

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;

use self::drafts::Draft;
use self::precondition::Precondition;
use crate::context::{Millis, SessionId, TenantId};

/// A pending answer of a store.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// What became of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// It is kept.
    Written,
    /// Another was first: this is what it wrote.
    Existed(Bytes),
}

/// A scope as a list shows it: kept as facts arrive, so that a list reads none of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScopeLine {
    /// Whose.
    pub scope: Scope,
    /// Where it stands in the list.
    pub cursor: Cursor,
    /// The time of its oldest record.
    pub began: Millis,
    /// The time of its newest turn.
    pub newest: Millis,
    /// How many records.
    pub records: u64,
    /// How many turns.
    pub turns: u64,
    /// Input of all turns, as it was reported, tokens.
    pub input: u64,
    /// Output of all turns, as it was reported, tokens.
    pub output: u64,
    /// What of the input came from a cache, tokens.
    pub cache_read: u64,
}

/// A place in the list of scopes, which goes from the one used last to the one used longest ago.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cursor {
    /// When the scope was last used: its newest record's time.
    pub used: Millis,
    /// The store's number of it.
    pub id: u64,
}

/// A part of the list of scopes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScopePage {
    /// The last line of the part before it; `None` at the beginning.
    pub after: Option<Cursor>,
    /// Lines to leave out then. Each costs a step; a cursor costs nothing.
    pub skip: usize,
    /// Most lines.
    pub count: usize,
}

impl ScopePage {
    /// The first lines of the list.
    pub fn first(count: usize) -> Self {
        Self { after: None, skip: 0, count }
    }
}

/// What one step of forgetting did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SweepStep {
    /// How many records went.
    pub records: u64,
    /// The scopes they were of, each gone as a whole.
    pub scopes: Vec<Scope>,
    /// There is, or may be, more to do.
    pub more: bool,
}

impl SweepStep {
    /// Both.
    pub fn join(&mut self, other: Self) {
        self.records += other.records;
        self.scopes.extend(other.scopes);
        self.more |= other.more;
    }
}

/// Why a store could not answer. Ours or the disk's fault, never the client's.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The store cannot be opened as it is; says what to do.
    #[error("{0}")]
    Unusable(String),
    /// The store's file is damaged, or no store; says what to do.
    #[error("{0}")]
    Damaged(String),
    /// The disk has no room for more; says what to do. What is kept can be read.
    #[error("{0}")]
    Full(String),
    /// It failed this time.
    #[error("the store failed: {0}")]
    Failed(String),
    /// It is closing, or too far behind to take more.
    #[error("the store is not taking writes")]
    Closed,
    /// The session was deleted after what is written was begun: nothing is kept of it.
    #[error("the session was deleted meanwhile")]
    Deleted,
    /// Whoever wrote it cancelled it: nothing is kept of it.
    #[error("the write was cancelled")]
    Cancelled,
}

/// Where facts are kept.
pub trait Store: Send + Sync + 'static {
    /// Writes records that are not there yet, all or none, durable when answered; one outcome each. A turn
    /// takes its draft away, and the place of a turn that was made of its draft. `only_if` is judged in the
    /// transaction that writes: where it does not hold, this fails with [`StoreError::Deleted`] or
    /// [`StoreError::Cancelled`], and nothing is kept.
    fn put(
        &self,
        scope: Scope,
        records: Vec<Record>,
        only_if: Precondition,
    ) -> StoreFuture<'_, Vec<WriteOutcome>>;

    /// The same, whatever happened to the scope.
    fn put_if_absent(
        &self,
        scope: Scope,
        records: Vec<Record>,
    ) -> StoreFuture<'_, Vec<WriteOutcome>> {
        self.put(scope, records, Precondition::default())
    }

    /// Keeps drafts, each in place of the one before it, and takes those away whose exchanges `ended` without
    /// a turn. It is also the beat of the instance that they are of. Those of scopes that were deleted since
    /// the draft was begun are left out.
    fn put_drafts(
        &self,
        instance: u64,
        drafts: Vec<Draft>,
        ended: Vec<u128>,
    ) -> StoreFuture<'_, ()>;

    /// Makes turns of the drafts of other instances, where those are gone: silent for `lease` while this store
    /// was looking, or ended before it was opened. Answers whose turns were made since it was asked last,
    /// one scope each. A draft whose turn is there goes.
    fn adopt_drafts(&self, instance: u64, lease: Duration) -> StoreFuture<'_, Vec<Scope>>;

    /// One record's value.
    fn get(&self, scope: Scope, kind: RecordKind, key: u128) -> StoreFuture<'_, Option<Bytes>>;

    /// What the values of a kind take in a scope, bytes.
    fn size(&self, scope: Scope, kind: RecordKind) -> StoreFuture<'_, u64>;

    /// The session of this tenant that has the first known of these signs; where several would have
    /// a sign, the first to write it.
    fn signed(&self, tenant: TenantId, signs: Vec<u128>) -> StoreFuture<'_, Option<SessionId>>;

    /// The scope that holds a fact; where several do, any. For whoever looks in, not for traffic: it
    /// may take time.
    fn holder(&self, kind: RecordKind, key: u128) -> StoreFuture<'_, Option<Scope>>;

    /// The `newest` facts in a scope and all its decisions, oldest first; signs and words are none.
    fn scan(&self, scope: Scope, newest: usize) -> StoreFuture<'_, Vec<Record>>;

    /// Scopes that hold turns, the one used last first.
    fn scopes(&self, page: ScopePage) -> StoreFuture<'_, Vec<ScopeLine>>;

    /// The scopes of a session id: one a tenant that uses it, whatever is kept of it, drafts too.
    fn scopes_named(&self, session: SessionId) -> StoreFuture<'_, Vec<Scope>>;

    /// Forgets a scope and its drafts; answers how many records went. Nobody finds it from then on; within
    /// seconds nothing of it is left on disk. What was begun before that is not kept afterwards
    /// ([`Precondition::since`]).
    fn drop_scope(&self, scope: Scope) -> StoreFuture<'_, u64>;

    /// One small step of forgetting: scopes last used before a time; then those used longest ago, while
    /// more than `max_bytes` are taken. A scope goes as a whole, because a decision is worth nothing
    /// without what it rests on; the one used last always stays, and so does what was learned. Fails
    /// where an earlier step could not be carried through.
    fn expire(&self, before: Millis, max_bytes: u64) -> StoreFuture<'_, SweepStep>;

    /// Whether it would answer now, for `/readyz`.
    fn ready(&self) -> StoreFuture<'_, ()>;

    /// The 32 random bytes that credentials are hashed with: made once, the same for every process
    /// on this store.
    fn tenant_key(&self) -> StoreFuture<'_, [u8; 32]>;
}
