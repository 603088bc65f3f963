//! The names of keys, and of sessions in lists.
//!
//! All keys of a session have its name as hash tag, those of the list of sessions have `{index}`, so that a script has
//! its keys in one place.

use std::fmt;

use xxhash_rust::xxh3::{xxh3_64, xxh3_128_with_seed};

use crate::context::caps::SumKey;
use crate::context::{SessionId, TenantId};
use crate::store::{RecordKind, Scope};

/// Makes the names of keys.
pub(super) struct Keys {
    prefix: Box<str>,
}

/// The keys of a session.
pub(super) struct SessionKeys {
    pub(super) facts: String,
    pub(super) log: String,
    pub(super) meta: String,
    pub(super) fingerprints: String,
    pub(super) drafts: String,
    pub(super) gone: String,
    pub(super) notes: String,
}

impl SessionKeys {
    /// All, in the order in which scripts take them.
    pub(super) fn all(self) -> [String; 7] {
        [self.facts, self.log, self.meta, self.fingerprints, self.drafts, self.gone, self.notes]
    }
}

/// Where a fingerprint of a tenant is: all are spread over 65,536 hashes, which the server stores without a pointer for each
/// entry while they are small. 80 bits are enough: who finds a session looks whether this tenant has it.
pub(super) struct FingerprintPlace {
    hash: u16,
    field: u64,
}

impl FingerprintPlace {
    pub(super) fn new(tenant: &TenantId, key: u128) -> Self {
        let place = xxh3_128_with_seed(&key.to_le_bytes(), xxh3_64(tenant.as_str().as_bytes()));
        Self { hash: (place >> 64) as u16, field: place as u64 }
    }

    /// As it is listed by its session.
    pub(super) fn parse(listed: &str) -> Option<Self> {
        let (hash, field) = listed.split_at_checked(4)?;
        let hash = u16::from_str_radix(hash, 16).ok()?;
        Some(Self { hash, field: u64::from_str_radix(field, 16).ok()? })
    }
}

impl fmt::Display for FingerprintPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}{:016x}", self.hash, self.field)
    }
}

impl Keys {
    pub(super) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.into() }
    }

    pub(super) fn session(&self, scope: &Scope) -> SessionKeys {
        let base = format!("{}{{{}:{}}}", self.prefix, scope.tenant, scope.session);
        SessionKeys {
            facts: format!("{base}:facts"),
            log: format!("{base}:log"),
            meta: format!("{base}:meta"),
            fingerprints: format!("{base}:fingerprints"),
            drafts: format!("{base}:drafts"),
            gone: format!("{base}:gone"),
            notes: format!("{base}:notes"),
        }
    }

    pub(super) fn index(&self, name: &str) -> String {
        format!("{}{{index}}:{name}", self.prefix)
    }

    /// The tenants of a session's name.
    pub(super) fn name(&self, session: &SessionId) -> String {
        format!("{}{{index}}:name:{session}", self.prefix)
    }

    /// The hash that has a fingerprint, and its field there.
    pub(super) fn fingerprint(&self, place: &FingerprintPlace) -> (String, String) {
        let FingerprintPlace { hash, field } = place;
        (format!("{}fingerprints:{hash:04x}", self.prefix), format!("{field:016x}"))
    }

    pub(super) fn claim(&self, what: u128) -> String {
        self.index(&format!("claim:{what:032x}"))
    }

    /// The number of a process's last addition to sums.
    pub(super) fn added(&self, instance: u64) -> String {
        self.index(&format!("added:{instance:016x}"))
    }

    /// What was spent of a cap, or on a day.
    pub(super) fn sum(&self, sum: &SumKey) -> String {
        let SumKey { cap, subject, period, .. } = sum;
        self.index(&format!("spent:{cap}:{period}:{subject}"))
    }

    /// Live events, how many there ever were, and whether somebody listens.
    pub(super) fn events(&self) -> [String; 3] {
        ["events", "told", "listening"].map(|name| self.index(name))
    }

    /// The list of sessions: times of use, sizes, the sum of sizes.
    pub(super) fn list(&self) -> [String; 3] {
        ["used", "sizes", "bytes"].map(|name| self.index(name))
    }
}

/// The field of a record.
pub(super) fn field(kind: RecordKind, key: u128) -> String {
    format!("{}:{key:032x}", kind.layout().code)
}

/// The largest number that scripts can count with.
const LARGEST: u64 = (1 << 53) - 1;

/// A number, or the largest that scripts can count with.
pub(super) fn capped(number: u64) -> u64 {
    number.min(LARGEST)
}

/// The id of a scope, which orders those that were used at the same time; any client can read it as a number.
pub(super) fn id(scope: &Scope) -> u64 {
    xxh3_64(format!("{}\n{}", scope.tenant, scope.session).as_bytes()) >> 1
}

/// The name of a scope in lists: the server orders equals by it.
pub(super) fn member(scope: &Scope) -> String {
    format!("{:016x}:{}:{}", id(scope), scope.tenant, scope.session)
}

/// The scope of such a name.
pub(super) fn scope_of(member: &str) -> Option<Scope> {
    let (_, scope) = member.split_once(':')?;
    let (tenant, session) = scope.split_once(':')?;
    Some(Scope { tenant: tenant.into(), session: session.into() })
}
