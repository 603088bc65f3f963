//! Session fingerprints: how a session is found again if its client names none.
//!
//! A turn leaves fingerprints, and later requests show them ([`SessionWitness`] says what each proves). Conversations may be
//! equal to the letter: of several sessions that left a fingerprint, the one is meant that nothing has continued from
//! there, then the one on the same connection, then the newest. A repeat of what one of them sent is the other's first
//! request if that one waits on its connection. Only what leaves a turn has continued one. Pure.

use std::borrow::Borrow;
use std::collections::VecDeque;
use std::sync::Arc;

use foldhash::{HashMap, HashSet};
use tokio::time::Instant;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128_with_seed};

use super::fingerprint_keys::{ShownFingerprint, Strength};
use crate::context::{ExchangeId, SessionId, SessionWitness, TenantId};
use crate::store::{Record, Scope};

/// Most fingerprints in memory; past it, the oldest are dropped, and the store is asked.
pub(super) const IN_MEMORY: usize = 100_000;
/// Most look-ups in flight that are remembered; past it, all are dropped, and later waits count from the
/// start.
pub(super) const LOOK_UPS: usize = 1024;

/// Most sessions that are remembered of those that left the same fingerprint, the newest.
const EQUAL_SESSIONS: usize = 8;
/// Where a request comes from, as far as its socket and headers show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestSource {
    /// The client's connection.
    pub connection: u64,
    /// A hash of what the client calls itself.
    pub agent: u64,
}

/// A session that a request was found to belong to.
pub(super) struct FoundSession {
    pub(super) session: SessionId,
    /// What decided that.
    pub(super) witness: SessionWitness,
    /// The fingerprint from which it is the first to go on.
    pub(super) continues: Option<u128>,
}

impl FoundSession {
    pub(super) fn new(session: SessionId, witness: SessionWitness) -> Self {
        Self { session, witness, continues: None }
    }
}

/// A session that left a fingerprint.
#[derive(Clone)]
struct FingerprintHolder {
    scope: Arc<Scope>,
    /// The connection of the request that left it.
    connection: u64,
    /// A request went on from there.
    is_continued: bool,
}

impl FingerprintHolder {
    fn rank(&self, source: RequestSource) -> (bool, bool) {
        (!self.is_continued, self.connection == source.connection)
    }
}

/// A session that left sentences of a reply.
struct SentenceMatch {
    holder: FingerprintHolder,
    /// The first one that the request shows.
    first: u128,
    sentences: usize,
}

/// Fingerprints in memory.
#[derive(Default)]
pub(super) struct SessionFingerprints {
    /// The sessions that left each fingerprint, oldest first.
    holders: HashMap<u128, Vec<FingerprintHolder>>,
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
    pub(super) fn begin_look_up(
        &mut self,
        tenant: &TenantId,
        fingerprints: &[ShownFingerprint],
    ) -> Instant {
        let keys: Vec<u128> =
            fingerprints.iter().map(|shown| of_tenant(tenant, shown.key)).collect();
        let under_way = keys.iter().filter_map(|key| self.look_ups.get(key)).min().copied();
        let since = under_way.unwrap_or_else(Instant::now);
        if self.look_ups.len() >= LOOK_UPS {
            // What is forgotten costs one more full wait.
            self.look_ups.clear();
        }
        if let Some(key) = keys.first() {
            self.look_ups.insert(*key, since);
        }
        since
    }

    pub(super) fn end_look_up(&mut self, tenant: &TenantId, own: u128) {
        self.look_ups.remove(&of_tenant(tenant, own));
    }

    /// Those that would say more than the first known one, if another process left them; none if no one is known. What a
    /// request itself adds leads to no other session.
    pub(super) fn newer_than_known(
        &self,
        tenant: &TenantId,
        fingerprints: &[ShownFingerprint],
    ) -> Vec<ShownFingerprint> {
        let known = fingerprints
            .iter()
            .position(|shown| self.holders.contains_key(&of_tenant(tenant, shown.key)));
        let newer = fingerprints.iter().take(known.unwrap_or_default());
        newer.filter(|shown| !shown.is_sent_again()).copied().collect()
    }

    /// The session of the first known one of these fingerprints. A request that `goes_on` continues it there, so that
    /// another request with the same fingerprint belongs to an equal session, if there is one.
    pub(super) fn session(
        &mut self,
        tenant: &TenantId,
        fingerprints: &[ShownFingerprint],
        source: RequestSource,
        goes_on: bool,
    ) -> Option<FoundSession> {
        let mut has_counted = false;
        fingerprints.iter().enumerate().find_map(|(index, fingerprint)| {
            if fingerprint.witness == SessionWitness::Sentence {
                // All of them are compared at once.
                let is_first = !std::mem::replace(&mut has_counted, true);
                return if is_first {
                    self.by_sentences(tenant, fingerprints, source, goes_on)
                } else {
                    None
                };
            }
            let key = of_tenant(tenant, fingerprint.key);
            let holders = self.holders.get(&key)?;
            let likely: Vec<Arc<Scope>> = if fingerprint.strength == Strength::Text {
                // A model may repeat itself in another session, which has not this one's history.
                let history = self.longest_history(tenant, &fingerprints[index + 1..]);
                if !history.is_empty() && !holders.iter().any(|it| history.contains(&it.scope)) {
                    return None;
                }
                history
            } else if holders.len() > 1 && fingerprint.is_request_end() {
                // Requests may be equal; the reply tells them apart, though the client edited it.
                let said = self.most_sentences(tenant, fingerprints).into_iter();
                said.map(|known| known.holder.scope).collect()
            } else {
                Vec::new()
            };
            // An equal session waits on this connection for what another one has sent before.
            if fingerprint.is_sent_again()
                && !self.waits_on(tenant, fingerprint, source.connection)
                && fingerprints
                    .get(index + 1)
                    .is_some_and(|reply| self.waits_on(tenant, reply, source.connection))
            {
                return None;
            }
            let holders = self.holders.get_mut(&key)?;
            // It was sent again before: this is an equal request of another session.
            if fingerprint.is_sent_again() && holders.iter().all(|holder| holder.is_continued) {
                return None;
            }
            let mut equals = likeliest(holders, &likely);
            let has_sentences = fingerprint.is_request_end() && !likely.is_empty();
            let witness = deciding(&equals, source).unwrap_or(match has_sentences {
                true => SessionWitness::Sentence,
                false => fingerprint.witness,
            });
            // The last of equals is used, which is the newest.
            let holder = equals.iter_mut().max_by_key(|holder| holder.rank(source))?;
            let continues = (goes_on && !holder.is_continued).then_some(fingerprint.key);
            holder.is_continued |= goes_on;
            Some(FoundSession { session: holder.scope.session.clone(), witness, continues })
        })
    }

    /// The sessions that left the longest known of these fingerprints that are histories of many parts.
    fn longest_history(
        &self,
        tenant: &TenantId,
        fingerprints: &[ShownFingerprint],
    ) -> Vec<Arc<Scope>> {
        let mut histories =
            fingerprints.iter().filter(|shown| shown.strength == Strength::LongHistory);
        let holders = histories.find_map(|shown| self.holders.get(&of_tenant(tenant, shown.key)));
        holders.into_iter().flatten().map(|holder| holder.scope.clone()).collect()
    }

    /// Whether a session that nothing has continued from there left a fingerprint on this connection.
    fn waits_on(&self, tenant: &TenantId, shown: &ShownFingerprint, connection: u64) -> bool {
        let holders = self.holders.get(&of_tenant(tenant, shown.key)).into_iter().flatten();
        holders.into_iter().any(|it| !it.is_continued && it.connection == connection)
    }

    /// The session whose reply has most of these sentences: a client edited the reply.
    fn by_sentences(
        &mut self,
        tenant: &TenantId,
        fingerprints: &[ShownFingerprint],
        source: RequestSource,
        goes_on: bool,
    ) -> Option<FoundSession> {
        let matches = self.most_sentences(tenant, fingerprints);
        let equals: Vec<&FingerprintHolder> = matches.iter().map(|known| &known.holder).collect();
        let witness = deciding(&equals, source).unwrap_or(SessionWitness::Sentence);
        // The last of equals is used, which is the newest.
        let found = matches.into_iter().max_by_key(|known| known.holder.rank(source))?;
        let continues = (goes_on && !found.holder.is_continued).then_some(found.first);
        let holders = self.holders.get_mut(&of_tenant(tenant, found.first));
        let holder = holders.into_iter().flatten().find(|it| it.scope == found.holder.scope)?;
        holder.is_continued |= goes_on;
        Some(FoundSession { session: holder.scope.session.clone(), witness, continues })
    }

    /// The sessions whose reply has most of these sentences.
    fn most_sentences(
        &self,
        tenant: &TenantId,
        fingerprints: &[ShownFingerprint],
    ) -> Vec<SentenceMatch> {
        let mut matches: Vec<SentenceMatch> = Vec::new();
        for shown in fingerprints.iter().filter(|shown| shown.witness == SessionWitness::Sentence) {
            let holders = self.holders.get(&of_tenant(tenant, shown.key));
            for holder in holders.into_iter().flatten() {
                let known = matches.iter_mut().find(|known| known.holder.scope == holder.scope);
                if let Some(known) = known {
                    known.sentences += 1;
                    known.holder.is_continued |= holder.is_continued;
                } else {
                    let holder = holder.clone();
                    matches.push(SentenceMatch { holder, first: shown.key, sentences: 1 });
                }
            }
        }
        let most = matches.iter().map(|known| known.sentences).max();
        matches.retain(|known| Some(known.sentences) == most);
        matches
    }

    /// The request that went on from there has left no turn.
    pub(super) fn reopen(&mut self, scope: &Scope, key: u128) {
        let holders = self.holders.get_mut(&of_tenant(&scope.tenant, key));
        let holder = holders.and_then(|holders| holders.iter_mut().find(|it| *it.scope == *scope));
        if let Some(holder) = holder {
            holder.is_continued = false;
        }
    }

    pub(super) fn add(&mut self, scope: &Scope, fingerprints: &[Record], connection: u64) {
        let keys = fingerprints.iter().map(|fingerprint| fingerprint.key);
        self.add_fingerprints(scope, keys, connection);
    }

    fn add_fingerprints(
        &mut self,
        scope: &Scope,
        fingerprints: impl IntoIterator<Item = u128>,
        connection: u64,
    ) {
        let scope = Arc::new(scope.clone());
        for fingerprint in fingerprints {
            let fingerprint = of_tenant(&scope.tenant, fingerprint);
            if !self.holders.contains_key(&fingerprint) {
                while self.holders.len() >= IN_MEMORY {
                    let Some(oldest) = self.order.pop_front() else { break };
                    self.holders.remove(&oldest);
                }
                self.order.push_back(fingerprint);
            }
            let holders = self.holders.entry(fingerprint).or_insert_with(|| Vec::with_capacity(1));
            holders.retain(|holder| holder.scope != scope);
            if holders.len() == EQUAL_SESSIONS {
                holders.remove(0);
            }
            let scope = scope.clone();
            holders.push(FingerprintHolder { scope, connection, is_continued: false });
        }
    }

    /// How often sessions were deleted so far; passed back with the store's answer.
    pub(super) fn forgotten(&self) -> u64 {
        self.forgotten
    }

    pub(super) fn add_found(&mut self, scope: &Scope, fingerprint: u128, forgotten: u64) {
        // If a session was deleted since the question, it could be this one.
        if self.forgotten == forgotten {
            self.add_fingerprints(scope, [fingerprint], 0);
        }
    }

    pub(super) fn forget(&mut self, scopes: &[Scope]) {
        self.forgotten += 1;
        // Once for all of them: each pass goes through all fingerprints.
        let forgotten: HashSet<&Scope> = scopes.iter().collect();
        self.holders.retain(|_, holders| {
            holders.retain(|holder| !forgotten.contains(&*holder.scope));
            !holders.is_empty()
        });
        self.order.retain(|fingerprint| self.holders.contains_key(fingerprint));
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        assert_eq!(self.holders.len(), self.order.len());
        self.holders.len()
    }
}

/// Those of these sessions; all if there are none.
fn likeliest<'h>(
    holders: &'h mut [FingerprintHolder],
    likely: &[Arc<Scope>],
) -> Vec<&'h mut FingerprintHolder> {
    let has_likely = holders.iter().any(|holder| likely.contains(&holder.scope));
    holders.iter_mut().filter(|holder| !has_likely || likely.contains(&holder.scope)).collect()
}

/// What decides between several sessions that left the same fingerprint; `None` if there is only one.
fn deciding(
    holders: &[impl Borrow<FingerprintHolder>],
    source: RequestSource,
) -> Option<SessionWitness> {
    if holders.len() < 2 {
        return None;
    }
    let holders = holders.iter().map(Borrow::borrow);
    let open = holders.clone().filter(|holder| !holder.is_continued).count();
    if open == 1 {
        return Some(SessionWitness::Open);
    }
    let candidates = holders.filter(|holder| open == 0 || !holder.is_continued);
    let same_connection =
        candidates.filter(|holder| holder.connection == source.connection).count();
    Some(if same_connection == 1 { SessionWitness::Connection } else { SessionWitness::Newest })
}

fn of_tenant(tenant: &TenantId, fingerprint: u128) -> u128 {
    // So no other tenant's request can show it (invariant 11).
    xxh3_128_with_seed(&fingerprint.to_le_bytes(), xxh3_64(tenant.as_str().as_bytes()))
}

/// How the name of a session begins that its client does not name.
const UNNAMED: &str = "line-";

pub(super) fn name_for(exchange: &ExchangeId) -> SessionId {
    // Within a process such names increase with time, so that a store keeps new rows together and
    // rewrites few pages.
    format!("{UNNAMED}{exchange}").into()
}

/// Whether the client does not name it.
pub(crate) fn is_unnamed(session: &SessionId) -> bool {
    session.as_str().starts_with(UNNAMED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::conformance::scope;

    fn prefix(key: u128) -> ShownFingerprint {
        ShownFingerprint::new(key, SessionWitness::Prefix)
    }

    /// Two equal conversations: each request continues the one that waits for it. If both wait, the connection decides, and
    /// without it the newer one is used.
    #[test]
    fn waiting_session_is_continued() {
        let source = |connection| RequestSource { connection, agent: 0 };
        let mut known = SessionFingerprints::default();
        let ask = |known: &mut SessionFingerprints, connection, goes_on| {
            let found = known.session(&"t".into(), &[prefix(7)], source(connection), goes_on);
            let found = found.unwrap();
            (found.session.to_string(), found.witness)
        };
        known.add_fingerprints(&scope("t", "a"), [7], 1);
        assert_eq!(ask(&mut known, 9, false), ("a".into(), SessionWitness::Prefix));
        known.add_fingerprints(&scope("t", "b"), [7], 2);
        assert_eq!(ask(&mut known, 1, false), ("a".into(), SessionWitness::Connection));
        assert_eq!(ask(&mut known, 9, true), ("b".into(), SessionWitness::Newest));
        assert_eq!(ask(&mut known, 2, true), ("a".into(), SessionWitness::Open));
        assert_eq!(ask(&mut known, 1, true), ("a".into(), SessionWitness::Connection));
        assert_eq!(ask(&mut known, 9, true), ("b".into(), SessionWitness::Newest));
        // The end of a turn is there again, for another continuation.
        known.add_fingerprints(&scope("t", "a"), [7], 1);
        assert_eq!(ask(&mut known, 9, true), ("a".into(), SessionWitness::Open));
        for more in 0..20 {
            known.add_fingerprints(&scope("t", &format!("{more}")), [7], 3);
        }
        assert_eq!(known.holders.values().map(Vec::len).sum::<usize>(), EQUAL_SESSIONS);
    }

    /// One conversation waits for an answer to what an equal one sends now: on the connection of the other, it is the other's
    /// first request.
    #[test]
    fn connection_tells_equal_request_from_repeat() {
        let repeated = ShownFingerprint { strength: Strength::SentAgain, ..prefix(8) };
        let asked = [repeated, prefix(7)];
        for (connection, session) in [(1, "a"), (2, "b"), (9, "a")] {
            let mut known = SessionFingerprints::default();
            known.add_fingerprints(&scope("t", "a"), [7], 1);
            known.add_fingerprints(&scope("t", "b"), [7], 2);
            known.add_fingerprints(&scope("t", "a"), [8], 1);
            let source = RequestSource { connection, agent: 0 };
            let found = known.session(&"t".into(), &asked, source, true).unwrap();
            assert_eq!(found.session.as_str(), session, "{connection}");
        }
    }

    /// Two equal requests, whose replies a client edited: what is left of the reply says whose it is, although the other
    /// session is the one that waits.
    #[test]
    fn sentence_decides_between_equals() {
        let source = RequestSource { connection: 9, agent: 0 };
        let end = ShownFingerprint::new(7, SessionWitness::RequestEnd);
        let said = |key| ShownFingerprint::new(key, SessionWitness::Sentence);
        let mut known = SessionFingerprints::default();
        known.add_fingerprints(&scope("t", "a"), [7, 1], 1);
        known.add_fingerprints(&scope("t", "b"), [7, 2], 2);
        let first = known.session(&"t".into(), &[end, said(1)], source, true).unwrap();
        assert_eq!(first.session.as_str(), "a");
        assert_eq!(first.witness, SessionWitness::Sentence);
        let again = known.session(&"t".into(), &[end, said(1)], source, true).unwrap();
        assert_eq!(again.session.as_str(), "a");
        // A sentence that none of them said decides nothing.
        let other = known.session(&"t".into(), &[end, said(3)], source, true).unwrap();
        assert_eq!(other.session.as_str(), "b");
        assert_eq!(other.witness, SessionWitness::Open);
    }

    /// A model says the same in two sessions: the one whose history stands before it is meant, although the other waits on the
    /// connection. Where that session did not say it, its history decides.
    #[test]
    fn history_tells_whose_text_it_is() {
        let source = RequestSource { connection: 2, agent: 0 };
        let text = ShownFingerprint {
            strength: Strength::Text,
            ..ShownFingerprint::new(7, SessionWitness::Call)
        };
        let history = ShownFingerprint { strength: Strength::LongHistory, ..prefix(1) };
        let mut known = SessionFingerprints::default();
        known.add_fingerprints(&scope("t", "a"), [1], 1);
        known.add_fingerprints(&scope("t", "b"), [7], 2);
        let found = |known: &mut SessionFingerprints, shown: &[ShownFingerprint]| {
            known.session(&"t".into(), shown, source, false).unwrap().session
        };
        assert_eq!(found(&mut known, &[text, history]).as_str(), "a");
        assert_eq!(found(&mut known, &[text, prefix(1)]).as_str(), "b", "a short one");
        known.add_fingerprints(&scope("t", "a"), [7], 1);
        assert_eq!(found(&mut known, &[text, history]).as_str(), "a");
        assert_eq!(found(&mut known, &[text]).as_str(), "b");
    }

    /// What the store found is added, unless a session was deleted since the query began.
    #[test]
    fn look_ups_do_not_undo_deletions() {
        let (found, other) = (scope("t", "found"), scope("t", "other"));
        let mut known = SessionFingerprints::default();
        let before = known.forgotten();
        known.add_found(&found, 7, before);
        let session = |known: &mut SessionFingerprints, keys: &[u128]| {
            let shown: Vec<_> = keys.iter().map(|key| prefix(*key)).collect();
            Some(
                known
                    .session(&scope("t", "found").tenant, &shown, RequestSource::default(), false)?
                    .session,
            )
        };
        assert_eq!(session(&mut known, &[7]), Some(found.session.clone()));
        let forgotten = known.forgotten();
        for deleted in 1..=3 {
            known.forget(std::slice::from_ref(&other));
            assert_eq!(known.forgotten(), before + deleted, "each deletion is counted");
        }
        known.add_found(&found, 8, forgotten);
        assert_eq!(session(&mut known, &[8]), None);
        known.add_found(&found, 8, known.forgotten());
        assert_eq!(known.len(), 2);
        known.forget(std::slice::from_ref(&found));
        assert_eq!(session(&mut known, &[7, 8]), None);
        assert_eq!(known.len(), 0);
    }
}
