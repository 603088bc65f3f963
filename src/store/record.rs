//! What is kept, for whom, and of what kind.
//!
//! Nothing crosses a scope. What is kept once is not changed.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::context::{Millis, SessionId, TenantId};

/// How the names of series begin.
const SERIES: &str = "~learned ";
/// Those names, in order: from the first on, before the second.
pub(super) const SERIES_NAMES: (&str, &str) = (SERIES, "~learned!");

/// Whose facts: one credential's, in one session. Nothing crosses a scope (invariant 11).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Scope {
    /// Keyed hash of the credential, 16 hex digits.
    pub tenant: TenantId,
    /// The session.
    pub session: SessionId,
}

impl Scope {
    /// Where something is kept that is learned again and again.
    pub fn series(what: &str) -> Self {
        Self { tenant: TenantId::default(), session: format!("{SERIES}{what}").into() }
    }

    /// Whether it is such a place: only the newest of its facts counts, and a store keeps no more than
    /// a few.
    pub fn is_series(&self) -> bool {
        self.tenant == TenantId::default() && self.session.as_str().starts_with(SERIES)
    }
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
    /// asked for with [`Store::signed`](super::Store::signed) alone.
    Sign,
    /// Something learned about an upstream (`include_usage` refused, a window).
    Learned,
    /// The words of an exchange, where they are kept. Asked for with [`Store::get`](super::Store::get) alone.
    Words,
}

impl RecordKind {
    /// All of them.
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
        Self::ALL.into_iter().find(|kind| kind.name() == name)
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
