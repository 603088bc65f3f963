//! Stored records: their scope and kind.
//!
//! Nothing crosses a scope. A record never changes.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::context::{Millis, SessionId, TenantId};

/// The prefix of series names.
const SERIES: &str = "~learned ";
/// The range of those names: from the first, up to but not including the second.
pub(super) const SERIES_NAMES: (&str, &str) = (SERIES, "~learned!");

/// The owner of records: one credential, in one session. Nothing crosses a scope (invariant 11).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Scope {
    /// Keyed hash of the credential, 16 hex digits.
    pub tenant: TenantId,
    /// The session.
    pub session: SessionId,
}

impl Scope {
    /// The scope of data that is learned repeatedly.
    pub fn series(what: &str) -> Self {
        Self { tenant: TenantId::default(), session: format!("{SERIES}{what}").into() }
    }

    /// Whether it is such a scope: only the newest of its records counts, and a store keeps only a few.
    pub(crate) fn is_series(&self) -> bool {
        self.tenant == TenantId::default() && self.session.as_str().starts_with(SERIES)
    }
}

/// The kind of fact in a record; part of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordKind {
    /// A completed exchange.
    Turn,
    /// Reasoning of a reply.
    Reasoning,
    /// A tool result that was cut.
    Cut,
    /// A decision about reasoning.
    Echo,
    /// A refused rewrite, or revoked decisions.
    Aside,
    /// A summary that was written.
    Summary,
    /// A summary that is in use.
    Compact,
    /// A queued message.
    Queued,
    /// What happened to a queued message.
    Said,
    /// A fingerprint by which an unnamed session is found. It has no value, and is only queried with
    /// [`Store::signed`](super::Store::signed).
    Sign,
    /// Something learned about an upstream (`include_usage` refused, a window).
    Learned,
    /// The content of an exchange, if stored. Only queried with [`Store::get`](super::Store::get).
    Words,
}

impl RecordKind {
    /// All kinds.
    pub const ALL: [Self; 12] = [
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

    /// Its name in the store.
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

    /// Whether it records a decision about a conversation, which is needed as long as the conversation
    /// continues.
    pub fn is_decision(self) -> bool {
        let rewrites = matches!(self, Self::Cut | Self::Echo | Self::Aside);
        rewrites || matches!(self, Self::Summary | Self::Compact | Self::Queued | Self::Said)
    }

    /// The kind with this name; `None` if a newer version wrote it.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// A stored fact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its kind.
    pub kind: RecordKind,
    /// Its key, unique within scope and kind.
    pub key: u128,
    /// The fact as JSON.
    pub value: Bytes,
    /// When it was learned; used for expiry.
    pub at: Millis,
}
