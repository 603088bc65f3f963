//! What providers last said of their limits, by upstream and credential.
//!
//! A response's headers replace what an earlier one said of the same limit. Bounded: past [`MOST_QUOTAS`] the one that was
//! told longest ago is forgotten. Decides nothing.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::context::{Millis, TenantId};
use crate::dialect::quota::{Quota, QuotaKind};

/// How many limits are kept.
const MOST_QUOTAS: usize = 1_000;

/// A limit of a credential at an upstream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct QuotaState {
    /// The upstream.
    pub upstream: Box<str>,
    /// The keyed hash of the credential; `None` if the request had none that is known.
    pub tenant: Option<TenantId>,
    /// The limit, as it was last reported.
    #[serde(flatten)]
    pub quota: Quota,
    /// When it was reported, ms since 1970.
    pub at: Millis,
    /// When it is used up if it is used as fast as so far in its window; absent if not before it is whole again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_up_at: Option<Millis>,
}

impl QuotaState {
    /// The share that is used now: nothing, once the limit is whole again.
    pub fn used(&self, now: Millis) -> f64 {
        match self.quota.resets_at {
            Some(resets_at) if resets_at <= now => 0.0,
            _ => self.quota.used,
        }
    }
}

type QuotaKey = (Box<str>, Option<TenantId>, QuotaKind);

/// The limits that are known.
#[derive(Default)]
pub(super) struct QuotaBoard(Mutex<BTreeMap<QuotaKey, QuotaState>>);

impl QuotaBoard {
    /// What a response said.
    pub(super) fn told(
        &self,
        upstream: &str,
        tenant: Option<&TenantId>,
        quotas: Vec<Quota>,
        at: Millis,
    ) {
        let mut states = self.states();
        for quota in quotas {
            let state = QuotaState {
                upstream: upstream.into(),
                tenant: tenant.cloned(),
                quota,
                at,
                used_up_at: quota.used_up_at(at),
            };
            states.insert((upstream.into(), tenant.cloned(), quota.kind), state);
        }
        while states.len() > MOST_QUOTAS {
            let oldest = states.iter().min_by_key(|(_, state)| state.at);
            let Some(key) = oldest.map(|(key, _)| key.clone()) else { break };
            states.remove(&key);
        }
    }

    /// The most used one first.
    pub(super) fn list(&self, now: Millis) -> Vec<QuotaState> {
        let mut list: Vec<QuotaState> = self.states().values().cloned().collect();
        list.sort_by(|one, other| other.used(now).total_cmp(&one.used(now)));
        list
    }

    /// The largest share that is used of each kind of limit at each upstream.
    pub(super) fn largest(&self, now: Millis) -> BTreeMap<(Box<str>, QuotaKind), f64> {
        let mut largest = BTreeMap::new();
        for state in self.states().values() {
            let used = largest.entry((state.upstream.clone(), state.quota.kind)).or_insert(0.0);
            *used = state.used(now).max(*used);
        }
        largest
    }

    fn states(&self) -> MutexGuard<'_, BTreeMap<QuotaKey, QuotaState>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(kind: QuotaKind, used: f64, resets_at: Option<u64>) -> Quota {
        Quota { kind, limit: None, used, resets_at }
    }

    #[test]
    fn newest_word_of_limit_counts_until_it_is_whole_again() {
        let board = QuotaBoard::default();
        let (alice, bob) = (TenantId::from("a"), TenantId::from("b"));
        board.told(
            "anthropic",
            Some(&alice),
            vec![quota(QuotaKind::FiveHours, 0.9, Some(1_000))],
            10,
        );
        board.told(
            "anthropic",
            Some(&alice),
            vec![quota(QuotaKind::FiveHours, 0.5, Some(1_000))],
            20,
        );
        board.told(
            "anthropic",
            Some(&bob),
            vec![quota(QuotaKind::FiveHours, 0.7, Some(2_000))],
            30,
        );
        let used: Vec<f64> = board.list(100).iter().map(|state| state.used(100)).collect();
        assert_eq!(used, [0.7, 0.5]);
        let key = ("anthropic".into(), QuotaKind::FiveHours);
        assert_eq!(board.largest(100)[&key], 0.7);
        assert_eq!(board.largest(2_000)[&key], 0.0);
    }

    #[test]
    fn limit_told_longest_ago_is_forgotten_first() {
        let board = QuotaBoard::default();
        for at in 0..=MOST_QUOTAS as u64 {
            let tenant = TenantId::from(at.to_string().as_str());
            board.told("u", Some(&tenant), vec![quota(QuotaKind::Tokens, 0.1, None)], at);
        }
        let list = board.list(0);
        assert_eq!(list.len(), MOST_QUOTAS);
        assert!(list.iter().all(|state| state.at > 0));
    }
}
