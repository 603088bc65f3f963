//! Floor 4, keeping: facts that outlive the process.
//!
//! One small trait, one conformance suite that every backend passes. Records are written once; the
//! first write wins; nothing is updated. A store that fails costs us knowledge, never the client an
//! answer.

pub mod folder;
pub mod keyed;
pub mod ledgers;
pub mod lessons;
pub mod memory;
pub mod sqlite;

#[cfg(test)]
mod conformance;

use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::context::Millis;

/// A pending answer of a store.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, Trouble>> + Send + 'a>>;

/// Whose facts: one credential's, in one session. Nothing crosses a scope (invariant 11).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Scope {
    /// Keyed hash of the credential, 16 hex digits.
    pub tenant: Box<str>,
    /// The session.
    pub session: Box<str>,
}

/// What kind of fact a record holds; part of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordKind {
    /// A completed exchange.
    Turn,
    /// Reasoning of a reply.
    Reasoning,
    /// A tool result that was cut.
    Cut,
    /// What was decided about reasoning.
    Echo,
    /// A rewrite that was refused.
    Aside,
    /// A summary that was written.
    Summary,
    /// A summary that was taken into use.
    Compact,
    /// Words that wait to be said.
    Queued,
    /// What became of them.
    Said,
    /// A sign by which a session is found that its client does not name. It has no value, and is
    /// asked for with [`Store::signed`] alone.
    Sign,
    /// Something learned about an upstream (`include_usage` refused, a window).
    Learned,
    /// The words of an exchange, where they are kept. Asked for with [`Store::get`] alone.
    Words,
}

impl RecordKind {
    /// Its name, as it is kept.
    pub fn name(self) -> &'static str {
        match self {
            RecordKind::Turn => "turn",
            RecordKind::Reasoning => "reasoning",
            RecordKind::Cut => "cut",
            RecordKind::Echo => "echo",
            RecordKind::Aside => "aside",
            RecordKind::Summary => "summary",
            RecordKind::Compact => "compact",
            RecordKind::Queued => "queued",
            RecordKind::Said => "said",
            RecordKind::Sign => "sign",
            RecordKind::Learned => "learned",
            RecordKind::Words => "words",
        }
    }

    /// Whether it says what was done to a conversation: as long as that goes on, it is needed.
    pub fn is_decision(self) -> bool {
        let rewrites = matches!(self, Self::Cut | Self::Echo | Self::Aside);
        rewrites || matches!(self, Self::Summary | Self::Compact | Self::Queued | Self::Said)
    }

    /// The kind of that name; `None` where a newer version wrote it.
    pub fn named(name: &str) -> Option<Self> {
        let all = [
            Self::Turn,
            Self::Reasoning,
            Self::Cut,
            Self::Echo,
            Self::Aside,
            Self::Summary,
            Self::Compact,
            Self::Queued,
            Self::Said,
            Self::Sign,
            Self::Learned,
            Self::Words,
        ];
        all.into_iter().find(|kind| kind.name() == name)
    }
}

/// One fact as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its kind.
    pub kind: RecordKind,
    /// What it is about, unique within scope and kind.
    pub key: u128,
    /// The fact, JSON.
    pub value: Bytes,
    /// When it was learned; expiry goes by it.
    pub at: Millis,
}

/// What became of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Put {
    /// It is kept.
    Written,
    /// Another was first: this is what it wrote.
    Existed(Bytes),
}

/// A scope as a list shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScopeLine {
    /// Whose.
    pub scope: Scope,
    /// The newest record's time.
    pub newest: Millis,
    /// How many records.
    pub records: u64,
}

/// Why a store could not answer. Ours or the disk's fault, never the client's.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Trouble {
    /// The store cannot be opened as it is; says what to do.
    #[error("{0}")]
    Unusable(String),
    /// It failed this time.
    #[error("the store failed: {0}")]
    Failed(String),
    /// It is closing, or too far behind to take more.
    #[error("the store is not taking writes")]
    Closed,
}

/// Where facts are kept.
pub trait Store: Send + Sync + 'static {
    /// Writes records that are not there yet, all or none, durable when answered; one outcome each.
    fn put_if_absent(&self, scope: Scope, records: Vec<Record>) -> Answer<'_, Vec<Put>>;

    /// One record's value.
    fn get(&self, scope: Scope, kind: RecordKind, key: u128) -> Answer<'_, Option<Bytes>>;

    /// What the values of a kind take in a scope, bytes.
    fn size(&self, scope: Scope, kind: RecordKind) -> Answer<'_, u64>;

    /// The session of this tenant that has the first known of these signs; where several would have
    /// a sign, the first to write it.
    fn signed(&self, tenant: Box<str>, signs: Vec<u128>) -> Answer<'_, Option<Box<str>>>;

    /// The scope that holds a fact; where several do, any. For whoever looks in, not for traffic: it
    /// may take time.
    fn holder(&self, kind: RecordKind, key: u128) -> Answer<'_, Option<Scope>>;

    /// The `newest` facts in a scope and all its decisions, oldest first; signs and words are none.
    fn scan(&self, scope: Scope, newest: usize) -> Answer<'_, Vec<Record>>;

    /// Scopes that hold turns, newest first, `count` from `skip` on.
    fn scopes(&self, skip: usize, count: usize) -> Answer<'_, Vec<ScopeLine>>;

    /// Forgets a scope; answers how many records went.
    fn drop_scope(&self, scope: Scope) -> Answer<'_, u64>;

    /// Forgets what is older than `before`, then the oldest until `max_bytes` suffice; answers how
    /// many records went. Decisions stay as long as a turn of their scope does.
    fn expire(&self, before: Millis, max_bytes: u64) -> Answer<'_, u64>;

    /// Whether it would answer now, for `/readyz`.
    fn ready(&self) -> Answer<'_, ()>;

    /// The 32 random bytes that credentials are hashed with: made once, the same for every process
    /// on this store.
    fn tenant_key(&self) -> Answer<'_, [u8; 32]>;
}
