//! The store that forgets with the process: for tests, and for those who want nothing on disk.
//!
//! Behaves as any other (`conformance`); nothing in it waits or fails.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::{Answer, Put, Record, RecordKind, Scope, ScopeLine, Store, Trouble};
use crate::context::Millis;

/// Facts in a map.
#[derive(Default)]
pub struct Memory {
    records: Mutex<BTreeMap<Scope, Vec<Record>>>,
    tenant_key: std::sync::OnceLock<[u8; 32]>,
}

impl Memory {
    fn records(&self) -> MutexGuard<'_, BTreeMap<Scope, Vec<Record>>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn found(records: &[Record], kind: RecordKind, key: u128) -> Option<&Record> {
    records.iter().find(|record| record.kind == kind && record.key == key)
}

fn answer<'a, T: Send + 'a>(value: T) -> Answer<'a, T> {
    Box::pin(std::future::ready(Ok(value)))
}

impl Store for Memory {
    fn put_if_absent(&self, scope: Scope, records: Vec<Record>) -> Answer<'_, Vec<Put>> {
        let mut all = self.records();
        let kept = all.entry(scope).or_default();
        let puts = records.into_iter().map(|record| {
            if let Some(first) = found(kept, record.kind, record.key) {
                return Put::Existed(first.value.clone());
            }
            kept.push(record);
            Put::Written
        });
        answer(puts.collect())
    }

    fn get(&self, scope: Scope, kind: RecordKind, key: u128) -> Answer<'_, Option<Bytes>> {
        let all = self.records();
        let record = all.get(&scope).and_then(|records| found(records, kind, key));
        answer(record.map(|record| record.value.clone()))
    }

    fn size(&self, scope: Scope, kind: RecordKind) -> Answer<'_, u64> {
        let all = self.records();
        let records = all.get(&scope).into_iter().flatten();
        let sizes = records.filter(|record| record.kind == kind);
        answer(sizes.map(|record| record.value.len() as u64).sum())
    }

    fn signed(&self, tenant: Box<str>, signs: Vec<u128>) -> Answer<'_, Option<Box<str>>> {
        let all = self.records();
        let holder = |sign| {
            let scopes = all.iter().filter(|(scope, _)| scope.tenant == tenant);
            let signed = scopes.filter_map(|(scope, records)| {
                Some((found(records, RecordKind::Sign, sign)?.at, scope.session.clone()))
            });
            signed.min().map(|(_, session)| session)
        };
        answer(signs.into_iter().find_map(holder))
    }

    fn holder(&self, kind: RecordKind, key: u128) -> Answer<'_, Option<Scope>> {
        let all = self.records();
        let holder = all.iter().find(|(_, records)| found(records, kind, key).is_some());
        answer(holder.map(|(scope, _)| scope.clone()))
    }

    fn scan(&self, scope: Scope, newest: usize) -> Answer<'_, Vec<Record>> {
        let mut records = self.records().get(&scope).cloned().unwrap_or_default();
        records.retain(|record| !matches!(record.kind, RecordKind::Sign | RecordKind::Words));
        records.sort_by_key(|record| record.at);
        let others = records.iter().filter(|record| !record.kind.is_decision()).count();
        let mut old = others.saturating_sub(newest);
        records.retain(|record| {
            let is_old = !record.kind.is_decision() && old > 0;
            old -= usize::from(is_old);
            !is_old
        });
        answer(records)
    }

    fn scopes(&self, skip: usize, count: usize) -> Answer<'_, Vec<ScopeLine>> {
        let all = self.records();
        let line = |(scope, records): (&Scope, &Vec<Record>)| {
            let turns = records.iter().filter(|record| record.kind == RecordKind::Turn);
            let newest = turns.map(|record| record.at).max()?;
            Some(ScopeLine { scope: scope.clone(), newest, records: records.len() as u64 })
        };
        let mut lines: Vec<ScopeLine> = all.iter().filter_map(line).collect();
        lines.sort_by(|a, b| b.newest.cmp(&a.newest).then_with(|| a.scope.cmp(&b.scope)));
        answer(lines.into_iter().skip(skip).take(count).collect())
    }

    fn drop_scope(&self, scope: Scope) -> Answer<'_, u64> {
        let gone = self.records().remove(&scope).map_or(0, |records| records.len() as u64);
        answer(gone)
    }

    fn expire(&self, before: Millis, max_bytes: u64) -> Answer<'_, u64> {
        let mut all = self.records();
        let size = |records: &Vec<Record>| -> u64 {
            records.iter().map(|record| record.value.len() as u64 + 64).sum()
        };
        let mut left: u64 = all.values().map(size).sum();
        let mut times: Vec<(Millis, u64)> = all
            .values()
            .flatten()
            .filter(|record| record.kind != RecordKind::Learned && !record.kind.is_decision())
            .map(|record| (record.at, record.value.len() as u64 + 64))
            .collect();
        times.sort_unstable();
        let mut keep_from = before;
        for (at, bytes) in times {
            if at >= before && left <= max_bytes {
                break;
            }
            left -= bytes;
            keep_from = keep_from.max(at + 1);
        }
        let mut gone = 0;
        for records in all.values_mut() {
            let had = records.len();
            let stays = |record: &Record| {
                let forever = record.kind == RecordKind::Learned || record.kind.is_decision();
                forever || record.at >= keep_from
            };
            records.retain(stays);
            let is_over = records.iter().all(|record| record.kind != RecordKind::Turn);
            records.retain(|record| !(is_over && record.kind.is_decision()));
            gone += (had - records.len()) as u64;
        }
        all.retain(|_, records| !records.is_empty());
        answer(gone)
    }

    fn ready(&self) -> Answer<'_, ()> {
        answer(())
    }

    fn tenant_key(&self) -> Answer<'_, [u8; 32]> {
        let key = match self.tenant_key.get() {
            Some(key) => Ok(*key),
            None => random().map(|key| *self.tenant_key.get_or_init(|| key)),
        };
        Box::pin(std::future::ready(key))
    }
}

/// 32 bytes of the system's randomness.
pub(super) fn random() -> Result<[u8; 32], Trouble> {
    let mut bytes = [0; 32];
    let filled = getrandom::fill(&mut bytes);
    filled
        .map_err(|error| Trouble::Unusable(format!("the system gives no randomness: {error}")))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn conforms() {
        crate::store::conformance::check(Memory::default).await;
    }
}
