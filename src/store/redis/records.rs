//! Records of a session: written in one script, read from a place in its log on.
//!
//! What the script has to know of a turn is read here and goes beside it.

use std::time::Instant;

use redis::Value;
use serde::Deserialize;

use super::keys::{FingerprintPlace, SessionKeys, capped, member};
use super::scripts::ScriptCall;
use super::values::{restored, stored};
use super::{Access, RedisStore, all, scripts};
use crate::context::TenantId;
use crate::dialect::Usage;
use crate::store::notes::StoredNote;
use crate::store::precondition::{Precondition, WriteToken};
use crate::store::{LogPlace, Record, RecordKind, Scope, SessionGain, StoreError, WriteOutcome};

/// Most records of a series that are kept.
const SERIES: &str = "8";
/// How long a series lives that nobody adds to, ms: models change within that time.
const SERIES_LIFE: &str = "7776000000";

/// The size of a record beside its value, bytes, roughly.
fn row(kind: RecordKind) -> usize {
    if kind == RecordKind::Fingerprint { 100 } else { 200 }
}

/// What the script has to know of a turn.
#[derive(Deserialize, Default)]
#[serde(default)]
struct TurnSums {
    outcome: Option<String>,
    usage: Option<Usage>,
}

fn push(arguments: &mut Vec<Vec<u8>>, argument: impl ToString) {
    arguments.push(argument.to_string().into_bytes());
}

/// A record of a tenant as the script takes it.
fn push_record(arguments: &mut Vec<Vec<u8>>, tenant: &TenantId, record: &Record, stored: Vec<u8>) {
    push(arguments, record.kind.layout().code);
    match record.kind {
        RecordKind::Fingerprint => push(arguments, FingerprintPlace::new(tenant, record.key)),
        _ => push(arguments, format_args!("{:032x}", record.key)),
    }
    push(arguments, capped(record.at));
    arguments.push(stored);
    let turn: TurnSums = match record.kind {
        RecordKind::Turn => serde_json::from_slice(&record.value).unwrap_or_default(),
        _ => TurnSums::default(),
    };
    let mut sums = [0u64; 3];
    for (_, usage) in turn.usage.iter().flat_map(Usage::billed) {
        for (sum, part) in sums.iter_mut().zip([usage.input, usage.output, usage.cache_read]) {
            *sum = sum.saturating_add(part.unwrap_or(0));
        }
    }
    let is_counted = turn.usage.is_some_and(|usage| usage.input.is_some());
    let outcome = match turn.outcome.as_deref() {
        // Its usage may come later, and then takes its place.
        Some("complete") if !is_counted => "uncounted",
        // A word of its own in the log.
        Some(outcome) if !outcome.contains(char::is_whitespace) => outcome,
        _ => "-",
    };
    push(arguments, outcome);
    for sum in sums {
        push(arguments, capped(sum));
    }
}

impl RedisStore {
    pub(super) async fn put_records(
        &self,
        scope: &Scope,
        records: &[Record],
        only_if: &Precondition,
    ) -> Result<Vec<WriteOutcome>, StoreError> {
        if records.is_empty() {
            return Ok(Vec::new());
        }
        let is_learned = records.iter().any(|record| record.kind == RecordKind::Learned);
        let mut arguments = Vec::with_capacity(3 + 8 * records.len());
        // The age of what is written.
        arguments.push(Vec::new());
        push(
            &mut arguments,
            match (is_learned, scope.is_series()) {
                (false, _) => self.life.as_millis().to_string(),
                (true, true) => SERIES_LIFE.to_owned(),
                (true, false) => String::new(),
            },
        );
        push(&mut arguments, if scope.is_series() { SERIES } else { "" });
        let mut bytes = 0;
        for record in records {
            let stored = stored(record);
            bytes += stored.len() + row(record.kind);
            push_record(&mut arguments, &scope.tenant, record, stored);
        }
        // Last of all: once it is sent, it cannot be cancelled.
        if !only_if.token.as_ref().is_none_or(WriteToken::begin) {
            return Err(StoreError::Cancelled);
        }
        let keys = self.keys.session(scope).all();
        let call = ScriptCall { keys: &keys, since: only_if.since, arguments: &arguments };
        let writing = self.put_script(call);
        let put = match is_learned {
            true => writing.await,
            // In the same round trip. Without it, the session is found once it is written to again; if the session was
            // deleted, readers find none behind it.
            false => tokio::join!(writing, self.list_session(scope, records, bytes)).0,
        }?;
        let mut outcomes = put.into_iter();
        if !matches!(outcomes.next(), Some(Value::BulkString(status)) if status == b"ok") {
            return Err(StoreError::Deleted);
        }
        let mut drafted = self.drafted();
        for record in records.iter().filter(|record| record.kind == RecordKind::Turn) {
            drafted.remove(&record.key);
        }
        Ok(outcomes.map(outcome).collect())
    }

    /// Puts a session on the list, with what it gained, and its fingerprints beside it.
    async fn list_session(&self, scope: &Scope, records: &[Record], bytes: usize) {
        let life = self.life.as_millis().to_string();
        let newest_time = records.iter().map(|record| record.at).max().unwrap_or_default();
        let [used, sizes, total] = self.keys.list();
        let keys = [used, sizes, total, self.keys.name(&scope.session)];
        let mut arguments = vec![member(scope).into_bytes()];
        push(&mut arguments, capped(newest_time));
        push(&mut arguments, bytes);
        push(&mut arguments, &scope.tenant);
        push(&mut arguments, &life);
        let fingerprints = records.iter().filter(|it| it.kind == RecordKind::Fingerprint);
        let marks = fingerprints.flat_map(|fingerprint| {
            let place = FingerprintPlace::new(&scope.tenant, fingerprint.key);
            let (hash, field) = self.keys.fingerprint(&place);
            let mut set = redis::cmd("HSET");
            set.arg(&hash).arg(field).arg(scope.session.as_str());
            let mut lives = redis::cmd("PEXPIRE");
            lives.arg(hash).arg(&life);
            [set, lives]
        });
        let marks: Vec<redis::Cmd> = marks.collect();
        let listing = self.run(Access::Beside, async |connection| {
            let marking = all::<()>(&connection, &marks);
            let indexing = async {
                scripts::INDEX.run::<()>(&mut connection.clone(), &keys, &arguments).await
            };
            tokio::try_join!(indexing, marking).map(drop)
        });
        // The caller's session is written: what failed here shows in the state of the store.
        let _ = listing.await;
    }

    /// The newest records of a session, and all its decisions.
    pub(super) async fn newest(
        &self,
        scope: &Scope,
        newest: usize,
    ) -> Result<Vec<Record>, StoreError> {
        let gain = self.read(scope, None, LogPlace::default()).await?;
        Ok(only_newest(gain.records, newest))
    }

    /// What a session gained since a place in its log, oldest first.
    pub(super) async fn read(
        &self,
        scope: &Scope,
        known_since: Option<Instant>,
        place: LogPlace,
    ) -> Result<SessionGain, StoreError> {
        let SessionKeys { facts, log, meta, gone, notes, .. } = self.keys.session(scope);
        // The age of what the reader knows.
        let mut arguments = vec![Vec::new()];
        push(&mut arguments, place.born);
        push(&mut arguments, place.length);
        let keys = [facts, log, meta, gone, notes];
        let call = ScriptCall { keys: &keys, since: known_since, arguments: &arguments };
        let reply: Vec<Value> = self.call(Access::Read, &scripts::SCAN, call).await?;
        let mut reply = reply.into_iter();
        let mut number = || redis::from_redis_value::<u64>(reply.next().unwrap_or(Value::Nil));
        let (is_deleted, born, length) = match (number(), number(), number()) {
            (Ok(is_deleted), Ok(born), Ok(length)) => (is_deleted == 1, born, length),
            _ => return Err(StoreError::Failed("Redis answered something else".to_owned())),
        };
        let notes = reply.next().map(redis::from_redis_value::<Vec<(String, Vec<u8>)>>);
        let notes = notes.and_then(Result::ok).unwrap_or_default();
        let mut records = Vec::new();
        while let (Some(Value::BulkString(entry)), Some(Value::BulkString(value))) =
            (reply.next(), reply.next())
        {
            records.extend(record(&entry, value));
        }
        // A later version of the same turn comes later.
        records.sort_by_key(|record: &Record| record.at);
        let place = LogPlace { born, length };
        let notes = notes.into_iter().filter_map(note).collect();
        Ok(SessionGain { is_deleted, place, records, notes })
    }

    pub(super) async fn set_note(
        &self,
        scope: &Scope,
        note: &StoredNote,
        known_since: Instant,
    ) -> Result<(), StoreError> {
        let SessionKeys { notes, gone, .. } = self.keys.session(scope);
        let mut arguments = vec![Vec::new(), note_field(note.key), note.text.to_vec()];
        push(&mut arguments, self.life.as_millis());
        let call =
            ScriptCall { keys: &[notes, gone], since: Some(known_since), arguments: &arguments };
        let _: u64 = self.call(Access::Other, &scripts::NOTE, call).await?;
        Ok(())
    }

    pub(super) async fn unset_note(
        &self,
        scope: &Scope,
        note: &StoredNote,
    ) -> Result<bool, StoreError> {
        let SessionKeys { notes, .. } = self.keys.session(scope);
        let arguments = [note_field(note.key), note.text.to_vec()];
        let removed: u64 =
            self.script(Access::Other, &scripts::FORGET, &[notes], &arguments).await?;
        Ok(removed == 1)
    }
}

fn outcome(put: Value) -> WriteOutcome {
    match put {
        Value::BulkString(value) => WriteOutcome::Existed(restored(value).unwrap_or_default()),
        _ => WriteOutcome::Written,
    }
}

fn note_field(key: u128) -> Vec<u8> {
    format!("{key:032x}").into_bytes()
}

fn note((key, text): (String, Vec<u8>)) -> Option<StoredNote> {
    Some(StoredNote { key: u128::from_str_radix(&key, 16).ok()?, text: text.into() })
}

/// A record by its entry in the log; `None` if a newer version wrote it.
fn record(entry: &[u8], value: Vec<u8>) -> Option<Record> {
    let mut words = std::str::from_utf8(entry).ok()?.split(' ');
    let (code, key) = words.next()?.split_once(':')?;
    let at = words.next()?.parse().ok()?;
    let kind = RecordKind::coded(code.parse().ok()?)?;
    let key = u128::from_str_radix(key, 16).ok()?;
    Some(Record { kind, key, value: restored(value)?, at, turn: None })
}

/// The newest records, and all decisions.
fn only_newest(mut records: Vec<Record>, newest: usize) -> Vec<Record> {
    let others = records.iter().filter(|record| !record.kind.is_decision()).count();
    let mut surplus = others.saturating_sub(newest);
    records.retain(|record| {
        let is_old = !record.kind.is_decision() && surplus > 0;
        surplus -= usize::from(is_old);
        !is_old
    });
    records
}
