//! Signs: how a session is found again whose client names none.
//!
//! A turn leaves signs, a later request shows them; the first session to leave a sign keeps it. Signs
//! that no other conversation is likely to show come before those that one might, and of these the
//! nearest to the request's end. Pure.

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

/// Most signs kept in memory; past it the oldest go, and the store is asked.
pub(super) const IN_MEMORY: usize = 100_000;
/// Most signs of one request that a store is asked for.
const ASKED: usize = 64;
/// Most look-ups under way that are remembered; past it all are forgotten, and waited for as if new.
pub(super) const LOOK_UPS: usize = 1024;

/// Signs in memory.
#[derive(Default)]
pub(super) struct SessionFingerprints {
    scopes: HashMap<u128, Arc<Scope>>,
    /// Oldest first.
    order: VecDeque<u128>,
    /// How often sessions were forgotten.
    forgotten: u64,
    /// When the store was asked for requests whose session is not known yet, by their own sign.
    look_ups: HashMap<u128, Instant>,
}

impl SessionFingerprints {
    /// The store is asked for the session of a request that shows these signs: since when it is, for this request
    /// or one that it grew from.
    pub(super) fn look_up(&mut self, tenant: &TenantId, signs: &[u128]) -> Instant {
        let mut own = signs.iter().map(|sign| of_tenant(tenant, *sign)).peekable();
        let first = own.peek().copied();
        let under_way = own.filter_map(|sign| self.look_ups.get(&sign)).min().copied();
        let since = under_way.unwrap_or_else(Instant::now);
        if self.look_ups.len() >= LOOK_UPS {
            self.look_ups.clear();
        }
        if let Some(first) = first {
            self.look_ups.insert(first, since);
        }
        since
    }

    /// The store has answered, or failed.
    pub(super) fn looked_up(&mut self, tenant: &TenantId, own: u128) {
        self.look_ups.remove(&of_tenant(tenant, own));
    }

    /// The session of the first of these signs that is known.
    pub(super) fn session(&self, tenant: &TenantId, signs: &[u128]) -> Option<SessionId> {
        let mut known = signs.iter().filter_map(|sign| self.scopes.get(&of_tenant(tenant, *sign)));
        known.next().map(|scope| scope.session.clone())
    }

    /// Remembers what a session left; a sign that is known stays where it is.
    pub(super) fn add(&mut self, scope: &Scope, signs: &[Record]) {
        self.add_signs(scope, signs.iter().map(|sign| sign.key));
    }

    fn add_signs(&mut self, scope: &Scope, signs: impl IntoIterator<Item = u128>) {
        let scope = Arc::new(scope.clone());
        for sign in signs {
            let sign = of_tenant(&scope.tenant, sign);
            if self.scopes.contains_key(&sign) {
                continue;
            }
            while self.scopes.len() >= IN_MEMORY {
                let Some(oldest) = self.order.pop_front() else { break };
                self.scopes.remove(&oldest);
            }
            self.scopes.insert(sign, scope.clone());
            self.order.push_back(sign);
        }
    }

    /// How often sessions were forgotten so far: who asks the store for one says so when it answers.
    pub(super) fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Remembers a session that the store found by other signs of the same request, unless one was
    /// forgotten since it was asked: that could be this one.
    pub(super) fn add_found(&mut self, scope: &Scope, sign: u128, forgotten: u64) {
        if self.forgotten == forgotten {
            self.add_signs(scope, [sign]);
        }
    }

    pub(super) fn forget(&mut self, scopes: &[Scope]) {
        self.forgotten += 1;
        let gone: HashSet<&Scope> = scopes.iter().collect();
        self.scopes.retain(|_, of| !gone.contains(&**of));
        self.order.retain(|sign| self.scopes.contains_key(sign));
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        assert_eq!(self.scopes.len(), self.order.len());
        self.scopes.len()
    }
}

/// A sign of one tenant: no other tenant's request shows it (invariant 11).
fn of_tenant(tenant: &TenantId, sign: u128) -> u128 {
    xxh3_128_with_seed(&sign.to_le_bytes(), xxh3_64(tenant.as_str().as_bytes()))
}

/// The signs that a turn leaves: its reply's end, its marks and its boundary, its response's id, and
/// where it was not answered, its own end.
pub(super) fn left_by(fact: &Fact) -> Vec<Record> {
    let Fact::Turn(turn) = fact else { return Vec::new() };
    let mut signs: Vec<u128> = boundary_hashes(turn).map(|boundary| boundary.0).collect();
    if turn.after != turn.position.chain {
        signs.push(turn.after.0);
    }
    if turn.outcome != Outcome::Complete {
        signs.push(turn.position.chain.0);
    }
    signs.extend(turn.response.as_deref().map(of_response));
    let sign = |key| Record { kind: RecordKind::Sign, key, value: Bytes::new(), at: turn.at };
    signs.into_iter().map(sign).collect()
}

/// The signs that a request shows, the most telling first.
pub(super) fn shown_by(conversation: &Conversation) -> Vec<u128> {
    let keyed: Vec<(PartKey, bool)> = conversation
        .parts()
        .filter_map(|part| Some((part.key?, part.role == Role::Assistant)))
        .collect();
    let chains: Vec<Chain> = conversation.chains().collect();
    let mut telling = Vec::new();
    if let Some(HeldHistory::After(id)) = &conversation.held {
        telling.push(of_response(id));
    }
    let mut boundary_hashes = Vec::new();
    for (index, (key, answered)) in keyed.iter().enumerate().rev() {
        // A turn ends where the other side goes on, or nobody does.
        if keyed.get(index + 1).is_none_or(|(_, next)| next != answered) {
            telling.push(chains[index].0);
        }
        if *answered {
            telling.push(BoundaryHash::of_anchor_key(*key).0);
            let before = index.checked_sub(1).map(|before| keyed[before].0);
            boundary_hashes.extend(before.map(|before| BoundaryHash::of(before, *key).0));
        }
    }
    telling.extend(boundary_hashes);
    telling
}

/// Of a request's signs, those that a store is asked for: from both kinds those nearest to its end.
pub(super) fn asked_for(conversation: &Conversation, mut signs: Vec<u128>) -> Vec<u128> {
    let answered = conversation.parts().filter(|part| part.role == Role::Assistant);
    let boundary_hashes = answered.filter(|part| part.key.is_some()).count().min(signs.len());
    let telling = signs.len() - boundary_hashes;
    let far = ASKED * 3 / 4;
    if telling > far {
        signs.drain(far..telling);
    }
    signs.truncate(ASKED);
    signs
}

fn of_response(id: &str) -> u128 {
    xxh3_128(id.as_bytes())
}

/// The name of a session that begins with an exchange. While a process runs such names grow with time, so
/// that a store keeps side by side what is new, and rewrites few pages for it.
pub(super) fn name_for(exchange: &ExchangeId) -> SessionId {
    format!("line-{exchange}").into()
}
