//! Stored records: their scope and kind.
//!
//! Nothing crosses a scope. A record never changes.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use strum::VariantArray;

use crate::context::{Millis, SessionId, TenantId, Turn};

/// The prefix of series names.
const SERIES: &str = "~learned ";
/// The range of those names: from the first, up to but not including the second.
pub(super) const SERIES_NAMES: (&str, &str) = (SERIES, "~learned!");

/// The owner of records: one credential, in one session. Nothing crosses a scope (invariant 11).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Scope {
    /// Keyed hash of the credential, 16 hex digits.
    pub tenant: TenantId,
    /// The session, as its client names it or as one was made up for it.
    pub session: SessionId,
}

impl Scope {
    /// The scope of data that is learned repeatedly.
    pub fn series(what: &str) -> Self {
        Self { tenant: TenantId::default(), session: format!("{SERIES}{what}").into() }
    }

    /// Whether it is such a scope: only the newest of its records counts, and a store keeps only a few.
    pub(super) fn is_series(&self) -> bool {
        self.tenant == TenantId::default() && self.session.as_str().starts_with(SERIES)
    }
}

/// The kind of fact in a record; part of its key. Files have the codes of [`RecordKind::layout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, VariantArray)]
pub enum RecordKind {
    /// A completed exchange.
    Turn,
    /// Reasoning of a reply.
    Reasoning,
    /// A tool result that was cut.
    Cut,
    /// A decision about reasoning: put back, left out, a stand-in.
    ReasoningDecision,
    /// A refused rewrite, or revoked decisions.
    Suspension,
    /// A summary that was written.
    Summary,
    /// A summary that is in use.
    Compact,
    /// A queued message.
    Queued,
    /// What happened to a queued message.
    InjectedMessage,
    /// A fingerprint by which an unnamed session is found. It has no value, and is only queried with
    /// [`Store::session_by_fingerprint`](super::Store::session_by_fingerprint).
    Fingerprint,
    /// Something learned about an upstream (`include_usage` refused, a window).
    Learned,
    /// The content of an exchange, if stored. Only queried with [`Store::get`](super::Store::get).
    Content,
}

/// What the key of a record is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordKey {
    /// It is a hash of content.
    Content,
    /// An id: of an exchange, a message, or of what was learned.
    Id,
}

/// What the value of a record holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordValue {
    /// A fact, which may contain hashes of content.
    Fact,
    /// Text as it came, or nothing.
    Plain,
}

/// How a kind of records is stored.
pub(super) struct RecordLayout {
    /// Its code in the file. Those of decisions are [`DECISIONS`] and above.
    pub(super) code: i64,
    pub(super) key: RecordKey,
    pub(super) value: RecordValue,
}

/// The first code of a decision.
const DECISIONS: i64 = 16;

impl RecordKind {
    /// All kinds.
    pub(super) const ALL: &[Self] = Self::VARIANTS;

    /// How records of this kind are stored: the one table of kinds.
    pub(super) fn layout(self) -> RecordLayout {
        use RecordKey::{Content, Id};
        use RecordValue::{Fact, Plain};
        let (code, key, value) = match self {
            Self::Turn => (1, Id, Fact),
            Self::Reasoning => (2, Content, Fact),
            Self::Learned => (3, Id, Fact),
            Self::Content => (4, Id, Plain),
            Self::Fingerprint => (5, Content, Plain),
            Self::Cut => (DECISIONS, Content, Fact),
            Self::ReasoningDecision => (17, Content, Fact),
            Self::Suspension => (18, Content, Fact),
            Self::Summary => (19, Content, Fact),
            Self::Compact => (20, Content, Fact),
            Self::Queued => (21, Id, Fact),
            Self::InjectedMessage => (22, Id, Fact),
        };
        RecordLayout { code, key, value }
    }

    /// Whether it records a decision about a conversation, which is needed as long as the conversation
    /// continues.
    pub fn is_decision(self) -> bool {
        self.layout().code >= DECISIONS
    }

    /// The kind with this code; `None` if a newer version wrote it.
    pub(super) fn coded(code: i64) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.layout().code == code)
    }
}

/// A stored fact.
#[derive(Clone, Debug)]
pub struct Record {
    /// What it is about. Records of two kinds may have the same key.
    pub kind: RecordKind,
    /// Its key, unique within scope and kind.
    pub key: u128,
    /// The fact as JSON.
    pub value: Bytes,
    /// When it was learned; used for expiry.
    pub at: Millis,
    /// The turn that the value was just made of: it need not be read from there.
    pub turn: Option<Arc<Turn>>,
}

impl PartialEq for Record {
    fn eq(&self, other: &Self) -> bool {
        let Self { kind, key, value, at, turn: _ } = self;
        (kind, key, value, at) == (&other.kind, &other.key, &other.value, &other.at)
    }
}

impl Eq for Record {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files have these codes, and queries compare them.
    #[test]
    fn kinds_have_their_stored_codes() {
        use RecordKind as Kind;
        let stored = [
            (Kind::Turn, 1, false),
            (Kind::Reasoning, 2, false),
            (Kind::Cut, 16, true),
            (Kind::ReasoningDecision, 17, true),
            (Kind::Suspension, 18, true),
            (Kind::Summary, 19, true),
            (Kind::Compact, 20, true),
            (Kind::Queued, 21, true),
            (Kind::InjectedMessage, 22, true),
            (Kind::Fingerprint, 5, false),
            (Kind::Learned, 3, false),
            (Kind::Content, 4, false),
        ];
        assert_eq!(stored.map(|(kind, ..)| kind), RecordKind::ALL);
        for (kind, code, is_decision) in stored {
            assert_eq!(kind.layout().code, code);
            assert_eq!(kind.is_decision(), is_decision, "{kind:?}");
            assert_eq!(RecordKind::coded(code), Some(kind));
        }
    }
}
