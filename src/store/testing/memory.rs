//! A store in memory, for tests: lost with the process.
//!
//! Behaves like any other store (`conformance`); nothing in it waits or fails. Tests use it as the store that several
//! processes share.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;

use super::drafts::Draft;
use super::live_events::{ToldEvent, ToldEvents};
use super::notes::StoredNote;
use super::precondition::Precondition;
use super::random::random;
use super::tombstones::Tombstones;
use super::{
    Cursor, LogPlace, Record, RecordKind, Scope, ScopeLine, ScopePage, SessionGain, Store,
    StoreError, StoreFuture, SweepStep, WriteOutcome,
};
use crate::context::caps::{AdditionId, Spending, SumChange, SumKey};
use crate::context::{Millis, Outcome, SessionId, TenantId};
use crate::dialect::Usage;

/// Most records of a series that are kept.
const SERIES: usize = 8;

/// Records in a map.
#[derive(Default)]
pub struct MemoryStore {
    records: Mutex<BTreeMap<Scope, Vec<Record>>>,
    /// Drafts by key, each with its instance.
    drafts: Mutex<BTreeMap<u128, (u64, Draft)>>,
    tombstones: Mutex<Tombstones>,
    tenant_key: std::sync::OnceLock<[u8; 32]>,
    /// The holder of each piece of work, and until when.
    claims: Mutex<BTreeMap<u128, (u64, Instant)>>,
    sums: Mutex<SpendingSums>,
    cap_changes: Mutex<Option<Bytes>>,
    events: Mutex<Vec<ToldEvent>>,
    notes: Mutex<BTreeMap<(Scope, u128), Bytes>>,
}

#[derive(Debug, Default)]
struct SpendingSums {
    sums: BTreeMap<SumKey, Spending>,
    /// The last number of each process's additions.
    added: BTreeMap<u64, u64>,
}

impl MemoryStore {
    fn drafts(&self) -> MutexGuard<'_, BTreeMap<u128, (u64, Draft)>> {
        self.drafts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notes(&self) -> MutexGuard<'_, BTreeMap<(Scope, u128), Bytes>> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn records(&self) -> MutexGuard<'_, BTreeMap<Scope, Vec<Record>>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tombstones(&self) -> MutexGuard<'_, Tombstones> {
        self.tombstones.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_deleted(&self, scope: &Scope, since: Instant) -> bool {
        self.tombstones().is_deleted(scope, since)
    }
}

fn found(records: &[Record], kind: RecordKind, key: u128) -> Option<&Record> {
    records.iter().find(|record| record.kind == kind && record.key == key)
}

/// How a turn ended, and whether its input was reported.
fn outcome(turn: &Record) -> Option<(Outcome, bool)> {
    let value: Value = serde_json::from_slice(&turn.value).ok()?;
    let outcome = serde_json::from_value(value["outcome"].clone()).ok()?;
    Some((outcome, value["usage"]["input"].is_u64()))
}

/// Whether a record is a turn without its whole reply or its usage, and `later` the same turn with it.
fn is_completed_by(first: &Record, later: &Record) -> bool {
    if first.kind != RecordKind::Turn {
        return false;
    }
    match (outcome(first), outcome(later)) {
        (Some((Outcome::Complete, false)), Some((Outcome::Complete, true))) => true,
        (Some((first, _)), Some((later, _))) => first.is_completed_by(later),
        _ => false,
    }
}

fn used(records: &[Record]) -> Option<Millis> {
    records.iter().map(|record| record.at).max()
}

fn has_lessons(records: &[Record]) -> bool {
    records.iter().any(|record| record.kind == RecordKind::Learned)
}

fn size(records: &[Record]) -> u64 {
    // Roughly, with what is beside the values.
    records.iter().map(|record| record.value.len() as u64 + 64).sum()
}

/// A scope as it is listed; `None` if it has no turn.
fn line(scope: &Scope, records: &[Record]) -> Option<ScopeLine> {
    let turns: Vec<&Record> =
        records.iter().filter(|record| record.kind == RecordKind::Turn).collect();
    let usages = turns.iter().map(|turn| {
        let value: Value = serde_json::from_slice(&turn.value).unwrap_or_default();
        Usage::deserialize(&value["usage"]).unwrap_or_default()
    });
    let mut input = 0u64;
    let mut output = 0u64;
    let mut cache_read = 0u64;
    for usage in usages {
        for (_, one) in usage.billed() {
            input = input.saturating_add(one.input.unwrap_or(0));
            output = output.saturating_add(one.output.unwrap_or(0));
            cache_read = cache_read.saturating_add(one.cache_read.unwrap_or(0));
        }
    }
    let name = format!("{}\n{}", scope.tenant, scope.session);
    // At most as large as the ids of other stores.
    let id = xxhash_rust::xxh3::xxh3_64(name.as_bytes()) >> 1;
    Some(ScopeLine {
        scope: scope.clone(),
        cursor: Cursor { used: used(records)?, id },
        began: records.iter().map(|record| record.at).min()?,
        newest: turns.iter().map(|turn| turn.at).max()?,
        records: records.len() as u64,
        turns: turns.len() as u64,
        input,
        output,
        cache_read,
    })
}

fn answer<'a, T: Send + 'a>(value: T) -> StoreFuture<'a, T> {
    Box::pin(std::future::ready(Ok(value)))
}

impl Store for MemoryStore {
    fn put(
        &self,
        scope: Scope,
        records: Vec<Record>,
        only_if: Precondition,
    ) -> StoreFuture<'_, Vec<WriteOutcome>> {
        let mut records_by_scope = self.records();
        if only_if.since.is_some_and(|since| self.is_deleted(&scope, since)) {
            return Box::pin(std::future::ready(Err(StoreError::Deleted)));
        }
        if !only_if.token.is_none_or(|token| token.begin()) {
            return Box::pin(std::future::ready(Err(StoreError::Cancelled)));
        }
        let is_series = scope.is_series();
        let stored = records_by_scope.entry(scope).or_default();
        let mut outcomes = Vec::new();
        for record in records {
            if record.kind == RecordKind::Turn {
                self.drafts().remove(&record.key);
            }
            if let Some(first) = found(stored, record.kind, record.key) {
                if !is_completed_by(first, &record) {
                    outcomes.push(WriteOutcome::Existed(first.value.clone()));
                    continue;
                }
                stored.retain(|other| (other.kind, other.key) != (record.kind, record.key));
            }
            stored.push(record);
            outcomes.push(WriteOutcome::Written);
        }
        if is_series {
            stored.sort_by_key(|record| std::cmp::Reverse(record.at));
            stored.truncate(SERIES);
        }
        answer(outcomes)
    }

    fn put_drafts(
        &self,
        instance: u64,
        drafts: Vec<Draft>,
        ended: Vec<u128>,
    ) -> StoreFuture<'_, ()> {
        let mut drafts_by_key = self.drafts();
        for draft in drafts {
            if !self.is_deleted(&draft.scope, draft.since) {
                drafts_by_key.insert(draft.record.key, (instance, draft));
            }
        }
        for key in ended {
            drafts_by_key.remove(&key);
        }
        answer(())
    }

    fn adopt_drafts(&self, instance: u64) -> StoreFuture<'_, Vec<Scope>> {
        let drafts: Vec<Draft> = {
            let mut drafts_by_key = self.drafts();
            let others = drafts_by_key.extract_if(.., |_, (owner, _)| *owner != instance);
            others.map(|(_, (_, draft))| draft).collect()
        };
        Box::pin(async move {
            let mut scopes = Vec::new();
            for Draft { scope, record, .. } in drafts {
                let outcomes = self.put_if_absent(scope.clone(), vec![record]).await?;
                if outcomes.contains(&WriteOutcome::Written) {
                    scopes.push(scope);
                }
            }
            Ok(scopes)
        })
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn get(&self, scope: Scope, kind: RecordKind, key: u128) -> StoreFuture<'_, Option<Bytes>> {
        let records_by_scope = self.records();
        let record = records_by_scope.get(&scope).and_then(|records| found(records, kind, key));
        answer(record.map(|record| record.value.clone()))
    }

    fn size(&self, scope: Scope, kind: RecordKind) -> StoreFuture<'_, u64> {
        let records_by_scope = self.records();
        let records = records_by_scope.get(&scope).into_iter().flatten();
        let sizes = records.filter(|record| record.kind == kind);
        answer(sizes.map(|record| record.value.len() as u64).sum())
    }

    fn session_by_fingerprint(
        &self,
        tenant: TenantId,
        fingerprints: Vec<u128>,
    ) -> StoreFuture<'_, Option<SessionId>> {
        let records_by_scope = self.records();
        for fingerprint in fingerprints {
            let scopes = records_by_scope.iter().filter(|(scope, _)| scope.tenant == tenant);
            let sessions = scopes.filter_map(|(scope, records)| {
                let record = found(records, RecordKind::Fingerprint, fingerprint)?;
                Some((record.at, scope.session.clone()))
            });
            if let Some((_, session)) = sessions.max() {
                return answer(Some(session));
            }
        }
        answer(None)
    }

    fn holder(&self, kind: RecordKind, key: u128) -> StoreFuture<'_, Option<Scope>> {
        let records_by_scope = self.records();
        let holder =
            records_by_scope.iter().find(|(_, records)| found(records, kind, key).is_some());
        answer(holder.map(|(scope, _)| scope.clone()))
    }

    fn scan(&self, scope: Scope, newest: usize) -> StoreFuture<'_, Vec<Record>> {
        let mut records = self.records().get(&scope).cloned().unwrap_or_default();
        records
            .retain(|record| !matches!(record.kind, RecordKind::Fingerprint | RecordKind::Content));
        records.sort_by_key(|record| record.at);
        let others = records.iter().filter(|record| !record.kind.is_decision()).count();
        // Decisions are always needed, so only others are left out.
        let mut surplus = others.saturating_sub(newest);
        records.retain(|record| {
            let is_old = !record.kind.is_decision() && surplus > 0;
            surplus -= usize::from(is_old);
            !is_old
        });
        answer(records)
    }

    fn scan_since(
        &self,
        scope: Scope,
        known_since: Instant,
        place: LogPlace,
    ) -> StoreFuture<'_, SessionGain> {
        let is_deleted = self.is_deleted(&scope, known_since);
        let scan = self.scan(scope.clone(), usize::MAX);
        let notes = self.notes();
        let notes = notes.iter().filter(|((noted, _), _)| *noted == scope);
        let notes =
            notes.map(|((_, key), text)| StoredNote { key: *key, text: text.clone() }).collect();
        Box::pin(async move { Ok(SessionGain { is_deleted, place, records: scan.await?, notes }) })
    }

    fn put_note(
        &self,
        scope: Scope,
        note: StoredNote,
        known_since: Instant,
    ) -> StoreFuture<'_, ()> {
        if !self.is_deleted(&scope, known_since) {
            self.notes().insert((scope, note.key), note.text);
        }
        answer(())
    }

    fn remove_note(&self, scope: Scope, note: StoredNote) -> StoreFuture<'_, bool> {
        let mut notes = self.notes();
        let name = (scope, note.key);
        let is_there = notes.get(&name) == Some(&note.text);
        if is_there {
            notes.remove(&name);
        }
        answer(is_there)
    }

    fn scopes(&self, page: ScopePage) -> StoreFuture<'_, Vec<ScopeLine>> {
        let records_by_scope = self.records();
        let mut lines: Vec<ScopeLine> =
            records_by_scope.iter().filter_map(|(scope, records)| line(scope, records)).collect();
        lines.sort_by_key(|line| std::cmp::Reverse(line.cursor));
        let rest =
            lines.into_iter().filter(|line| page.after.is_none_or(|after| line.cursor < after));
        answer(rest.skip(page.skip).take(page.count).collect())
    }

    fn scopes_named(&self, session: SessionId) -> StoreFuture<'_, Vec<Scope>> {
        let records_by_scope = self.records();
        let drafts = self.drafts();
        let on_their_way = drafts.values().map(|(_, draft)| &draft.scope);
        let sessions = records_by_scope
            .iter()
            .filter(|(_, records)| !records.is_empty() && !has_lessons(records));
        let named = sessions.map(|(scope, _)| scope).chain(on_their_way);
        let named: BTreeSet<&Scope> = named.filter(|scope| scope.session == session).collect();
        answer(named.into_iter().cloned().collect())
    }

    fn drop_scope(&self, scope: Scope) -> StoreFuture<'_, u64> {
        let mut records_by_scope = self.records();
        self.tombstones().add(scope.clone());
        self.drafts().retain(|_, (_, draft)| draft.scope != scope);
        self.notes().retain(|(noted, _), _| *noted != scope);
        answer(records_by_scope.remove(&scope).map_or(0, |records| records.len() as u64))
    }

    fn expire(&self, before: Millis, max_bytes: u64) -> StoreFuture<'_, SweepStep> {
        let mut records_by_scope = self.records();
        let mut total: u64 = records_by_scope.values().map(|records| size(records)).sum();
        let mut lines: Vec<(Millis, Scope, u64)> = records_by_scope
            .iter()
            .filter(|(_, records)| !has_lessons(records))
            .filter_map(|(scope, records)| Some((used(records)?, scope.clone(), size(records))))
            .collect();
        lines.sort();
        lines.pop(); // the most recently used one stays
        let mut expired = SweepStep::default();
        for (used, scope, bytes) in lines {
            if used >= before && total <= max_bytes {
                break;
            }
            total -= bytes;
            let records = records_by_scope.remove(&scope).unwrap_or_default();
            expired.records += records.len() as u64;
            expired.scopes.push(scope);
        }
        answer(expired)
    }

    fn claim(&self, what: u128, holder: u64, lasts: Duration) -> StoreFuture<'_, bool> {
        let mut claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        claims.retain(|_, (_, until)| *until > Instant::now());
        let (held_by, until) = claims.entry(what).or_insert((holder, Instant::now()));
        let is_own = *held_by == holder;
        if is_own {
            *until = Instant::now() + lasts;
        }
        answer(is_own)
    }

    fn release(&self, what: u128, holder: u64) -> StoreFuture<'_, ()> {
        let mut claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        if claims.get(&what).is_some_and(|(held_by, _)| *held_by == holder) {
            claims.remove(&what);
        }
        answer(())
    }

    fn change_sums(
        &self,
        id: AdditionId,
        sums: Vec<(SumKey, Spending)>,
        change: SumChange,
    ) -> StoreFuture<'_, Vec<Spending>> {
        let mut known = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        let adds = sums.iter().any(|(_, spending)| *spending != Spending::default());
        let last = known.added.entry(id.instance).or_default();
        let is_repeated = change == SumChange::Add && adds && id.number <= *last;
        if change == SumChange::Add && adds {
            *last = id.number.max(*last);
        }
        let totals = sums.into_iter().map(|(key, spending)| {
            let sum = known.sums.entry(key).or_default();
            match change {
                SumChange::Add if is_repeated => {}
                SumChange::Add => sum.join(spending),
                SumChange::Raise => sum.raise(spending),
            }
            *sum
        });
        answer(totals.collect())
    }

    fn cap_changes(&self) -> StoreFuture<'_, Option<Bytes>> {
        answer(self.cap_changes.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    fn replace_cap_changes(&self, known: Option<Bytes>, new: Bytes) -> StoreFuture<'_, bool> {
        let mut kept = self.cap_changes.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = *kept == known;
        if is_known {
            *kept = Some(new);
        }
        answer(is_known)
    }

    fn tell_events(&self, events: Vec<ToldEvent>) -> StoreFuture<'_, ()> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).extend(events);
        answer(())
    }

    fn events_since(&self, place: Option<u64>) -> StoreFuture<'_, ToldEvents> {
        let told = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let from = place.map_or(told.len(), |place| place as usize);
        let events = told[from..].to_vec();
        answer(ToldEvents { place: told.len() as u64, missed: 0, events })
    }

    fn ready(&self) -> StoreFuture<'_, ()> {
        answer(())
    }

    fn tenant_key(&self) -> StoreFuture<'_, [u8; 32]> {
        let key = match self.tenant_key.get() {
            Some(key) => Ok(*key),
            None => random().map(|key| *self.tenant_key.get_or_init(|| key)),
        };
        Box::pin(std::future::ready(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn conforms() {
        crate::store::conformance::check(MemoryStore::default).await;
    }
}
