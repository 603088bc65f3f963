//! Session fingerprints: how a session is found again if its client names none.
//!
//! A turn leaves fingerprints, and later requests show them; a fingerprint belongs to the first session that
//! left it. Those that no other conversation is likely to show come first, then the others, each nearest to
//! the request's end first. Pure.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use foldhash::{HashMap, HashSet};
use tokio::time::Instant;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128, xxh3_128_with_seed};

use crate::context::ledger::{BoundaryHash, boundary_hashes};
use crate::context::{ExchangeId, Fact, Outcome, SessionId, TenantId};
use crate::dialect::{Chain, Conversation, HeldHistory, PartKey, Role};
use crate::store::{Record, RecordKind, Scope};

/// Most fingerprints in memory; past it, the oldest are dropped, and the store is asked.
pub(super) const IN_MEMORY: usize = 100_000;
/// Most fingerprints of one request that are looked up in a store.
const LOOKED_UP: usize = 64;
/// Most look-ups in flight that are remembered; past it, all are dropped, and later waits count from the
/// start.
pub(super) const LOOK_UPS: usize = 1024;

/// Fingerprints in memory.
#[derive(Default)]
pub(super) struct SessionFingerprints {
    scopes: HashMap<u128, Arc<Scope>>,
    /// Oldest first.
    order: VecDeque<u128>,
    /// How often sessions were deleted.
    forgotten: u64,
    /// When a look-up in the store began for requests without a known session, by the request's first
    /// fingerprint.
    look_ups: HashMap<u128, Instant>,
}

impl SessionFingerprints {
    /// Begins a look-up in the store for a request with these fingerprints. Returns when it began, for this
    /// request or for one that it continues.
    pub(super) fn begin_look_up(&mut self, tenant: &TenantId, fingerprints: &[u128]) -> Instant {
        let mut own =
            fingerprints.iter().map(|fingerprint| of_tenant(tenant, *fingerprint)).peekable();
        let first = own.peek().copied();
        let under_way =
            own.filter_map(|fingerprint| self.look_ups.get(&fingerprint)).min().copied();
        let since = under_way.unwrap_or_else(Instant::now);
        if self.look_ups.len() >= LOOK_UPS {
            self.look_ups.clear();
        }
        if let Some(first) = first {
            self.look_ups.insert(first, since);
        }
        since
    }

    /// Called when the store has answered or failed.
    pub(super) fn end_look_up(&mut self, tenant: &TenantId, own: u128) {
        self.look_ups.remove(&of_tenant(tenant, own));
    }

    /// The session of the first known one of these fingerprints.
    pub(super) fn session(&self, tenant: &TenantId, fingerprints: &[u128]) -> Option<SessionId> {
        let mut known = fingerprints
            .iter()
            .filter_map(|fingerprint| self.scopes.get(&of_tenant(tenant, *fingerprint)));
        known.next().map(|scope| scope.session.clone())
    }

    /// Adds a session's fingerprints; a fingerprint that is known keeps its session.
    pub(super) fn add(&mut self, scope: &Scope, fingerprints: &[Record]) {
        self.add_fingerprints(scope, fingerprints.iter().map(|fingerprint| fingerprint.key));
    }

    fn add_fingerprints(&mut self, scope: &Scope, fingerprints: impl IntoIterator<Item = u128>) {
        let scope = Arc::new(scope.clone());
        for fingerprint in fingerprints {
            let fingerprint = of_tenant(&scope.tenant, fingerprint);
            if self.scopes.contains_key(&fingerprint) {
                continue;
            }
            while self.scopes.len() >= IN_MEMORY {
                let Some(oldest) = self.order.pop_front() else { break };
                self.scopes.remove(&oldest);
            }
            self.scopes.insert(fingerprint, scope.clone());
            self.order.push_back(fingerprint);
        }
    }

    /// How often sessions were deleted so far; passed back with the store's answer.
    pub(super) fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Adds a session that the store found by other fingerprints of the request, unless a session was deleted
    /// since the question: it could be this one.
    pub(super) fn add_found(&mut self, scope: &Scope, fingerprint: u128, forgotten: u64) {
        if self.forgotten == forgotten {
            self.add_fingerprints(scope, [fingerprint]);
        }
    }

    pub(super) fn forget(&mut self, scopes: &[Scope]) {
        self.forgotten += 1;
        let gone: HashSet<&Scope> = scopes.iter().collect();
        self.scopes.retain(|_, of| !gone.contains(&**of));
        self.order.retain(|fingerprint| self.scopes.contains_key(fingerprint));
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        assert_eq!(self.scopes.len(), self.order.len());
        self.scopes.len()
    }
}

/// The fingerprint within one tenant: no other tenant's request can show it (invariant 11).
fn of_tenant(tenant: &TenantId, fingerprint: u128) -> u128 {
    xxh3_128_with_seed(&fingerprint.to_le_bytes(), xxh3_64(tenant.as_str().as_bytes()))
}

/// The fingerprints that a turn leaves: the end of its reply, its anchor keys and boundary, its response's
/// id, and the end of its request: if it has no complete reply, for whatever follows; if the request has a reply in it,
/// for an edited one. A request without a reply proves nothing: many conversations begin with the same words.
pub(super) fn left_by(fact: &Fact) -> Vec<Record> {
    let Fact::Turn(turn) = fact else { return Vec::new() };
    let mut fingerprints: Vec<u128> = boundary_hashes(turn).map(|boundary| boundary.0).collect();
    if turn.after != turn.position.chain {
        fingerprints.push(turn.after.0);
    }
    if turn.outcome != Outcome::Complete {
        fingerprints.push(turn.position.chain.0);
    }
    if turn.position.has_reply {
        fingerprints.push(BoundaryHash::of_end(turn.position.chain).0);
    }
    fingerprints.extend(turn.response.as_deref().map(of_response));
    let fingerprint =
        |key| Record { kind: RecordKind::Fingerprint, key, value: Bytes::new(), at: turn.at };
    fingerprints.into_iter().map(fingerprint).collect()
}

/// The fingerprints that a request shows, the most specific first.
pub(super) fn shown_by(conversation: &Conversation) -> Vec<u128> {
    let keyed: Vec<(PartKey, bool)> = conversation
        .parts()
        .filter_map(|part| Some((part.key?, part.role == Role::Assistant)))
        .collect();
    let chains: Vec<Chain> = conversation.chains().collect();
    let mut found_by = Vec::new();
    if let Some(HeldHistory::After(id)) = &conversation.held {
        found_by.push(of_response(id));
    }
    let first_reply = keyed.iter().position(|(_, answered)| *answered).unwrap_or(keyed.len());
    let mut boundary_hashes = Vec::new();
    for (index, (key, answered)) in keyed.iter().enumerate().rev() {
        let next = keyed.get(index + 1).map(|(_, next)| *next);
        // A turn ends where the role changes, or at the end.
        if next != Some(*answered) {
            found_by.push(chains[index].0);
        }
        if !*answered && next == Some(true) && index > first_reply {
            found_by.push(BoundaryHash::of_end(chains[index]).0);
        }
        if *answered {
            found_by.push(BoundaryHash::of_anchor_key(*key).0);
            let before = index.checked_sub(1).map(|before| keyed[before].0);
            boundary_hashes.extend(before.map(|before| BoundaryHash::of(before, *key).0));
        }
    }
    found_by.extend(boundary_hashes);
    found_by
}

/// The fingerprints of a request that the store is asked for: of both kinds, those nearest to its end.
pub(super) fn to_look_up(conversation: &Conversation, mut fingerprints: Vec<u128>) -> Vec<u128> {
    let answered = conversation.parts().filter(|part| part.role == Role::Assistant);
    let boundary_hashes =
        answered.filter(|part| part.key.is_some()).count().min(fingerprints.len());
    let found_by = fingerprints.len() - boundary_hashes;
    let far = LOOKED_UP * 3 / 4;
    if found_by > far {
        fingerprints.drain(far..found_by);
    }
    fingerprints.truncate(LOOKED_UP);
    fingerprints
}

/// The fingerprint of a response's id.
pub(super) fn of_response(id: &str) -> u128 {
    xxh3_128(id.as_bytes())
}

/// The fingerprint by which the rest of a turn's reply finds it, in a session that its client names.
pub(super) fn of_open_reply(fact: &Fact) -> Option<Record> {
    let Fact::Turn(turn) = fact else { return None };
    let response = turn.response.as_deref().filter(|_| turn.outcome != Outcome::Complete)?;
    let key = of_response(response);
    Some(Record { kind: RecordKind::Fingerprint, key, value: Bytes::new(), at: turn.at })
}

/// How the name of a session begins that its client does not name.
const UNNAMED: &str = "line-";

/// The name of a session that begins with an exchange. Within a process such names increase with time, so
/// that a store keeps new rows together and rewrites few pages.
pub(super) fn name_for(exchange: &ExchangeId) -> SessionId {
    format!("{UNNAMED}{exchange}").into()
}

/// Whether a session has such a name.
pub(super) fn is_unnamed(session: &SessionId) -> bool {
    session.as_str().starts_with(UNNAMED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::{self, Dialect};
    use crate::store::conformance::scope;

    fn conversation(messages: &[(&str, &[&str])]) -> Conversation {
        let message = |(role, texts): &(&str, &[&str])| {
            let text = |text: &&str| serde_json::json!({"type": "text", "text": text});
            let texts: Vec<_> = texts.iter().map(text).collect();
            serde_json::json!({"role": role, "content": texts})
        };
        let messages: Vec<_> = messages.iter().map(message).collect();
        let body = serde_json::json!({"model": "m", "max_tokens": 9, "messages": messages});
        dialect::read(Dialect::Anthropic, "/v1/messages", body.to_string().as_bytes())
    }

    /// A turn ends where the role changes, so these ends are looked up, from the last to the first.
    #[test]
    fn a_request_is_looked_up_by_the_possible_ends_of_its_turns() {
        let asked = conversation(&[
            ("user", &["one", "two"]),
            ("assistant", &["three", "four"]),
            ("user", &["five"]),
        ]);
        let chains: Vec<u128> = asked.chains().map(|chain| chain.0).collect();
        assert_eq!(chains.len(), 5);
        let ends: Vec<u128> =
            shown_by(&asked).into_iter().filter(|shown| chains.contains(shown)).collect();
        assert_eq!(ends, [chains[4], chains[3], chains[1]]);
    }

    #[test]
    fn a_request_that_continues_a_response_is_looked_up_by_response_id() {
        let mut asked = conversation(&[("user", &["one"])]);
        let shown = |id: &str, asked: &mut Conversation| {
            asked.held = Some(HeldHistory::After(id.into()));
            shown_by(asked)
        };
        let (one, other) = (shown("resp_1", &mut asked), shown("resp_2", &mut asked));
        assert_ne!(one[0], other[0]);
        assert_eq!(one[1..], other[1..]);
    }

    /// Of a long request only some fingerprints are looked up: mostly specific ones, and of each kind those nearest to
    /// its end.
    #[test]
    fn a_long_request_looks_up_the_nearest_fingerprints_of_both_kinds() {
        let texts: Vec<String> = (0..300).map(|n| format!("text {n}")).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let turns = texts.chunks(3);
        let messages: Vec<(&str, &[&str])> =
            turns.flat_map(|said| [("user", &said[..2]), ("assistant", &said[2..])]).collect();
        let long = conversation(&messages);
        let shown = shown_by(&long);
        let telling = shown.len() - 100;
        let wanted = to_look_up(&long, shown.clone());
        assert_eq!(wanted.len(), LOOKED_UP);
        assert_eq!(wanted[..48], shown[..48]);
        assert_eq!(wanted[48..], shown[telling..telling + 16]);
        let short = conversation(&messages[190..]);
        assert_eq!(to_look_up(&short, shown_by(&short)), shown_by(&short), "of a short one, all");
    }

    /// What the store found is added, unless a session was deleted since the query began.
    #[test]
    fn a_fingerprint_looked_up_before_a_deletion_is_not_added() {
        let (found, other) = (scope("t", "found"), scope("t", "other"));
        let mut known = SessionFingerprints::default();
        let before = known.forgotten();
        known.add_found(&found, 7, before);
        assert_eq!(known.session(&found.tenant, &[7]), Some(found.session.clone()));
        let forgotten = known.forgotten();
        for deleted in 1..=3 {
            known.forget(std::slice::from_ref(&other));
            assert_eq!(known.forgotten(), before + deleted, "each deletion is counted");
        }
        known.add_found(&found, 8, forgotten);
        assert_eq!(known.session(&found.tenant, &[8]), None);
        known.add_found(&found, 8, known.forgotten());
        assert_eq!(known.len(), 2);
        known.forget(std::slice::from_ref(&found));
        assert_eq!((known.session(&found.tenant, &[7, 8]), known.len()), (None, 0));
    }
}
