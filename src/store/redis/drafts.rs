//! Drafts of exchanges in flight, and what becomes of those whose process was killed.
//!
//! A process is alive as long as it asks for the drafts of others, which it does every few seconds.

use std::collections::hash_map::Entry;
use std::sync::{MutexGuard, PoisonError};

use foldhash::HashMap;

use super::keys::{SessionKeys, member, scope_of};
use super::scripts::ScriptCall;
use super::{Access, REMEMBERED, RedisStore, scripts};
use crate::store::drafts::Draft;
use crate::store::{Record, RecordKind, Scope, StoreError, WriteOutcome};

/// A process that has not asked for so long is dead, ms.
const ALIVE: u64 = 20_000;
/// Most drafts of this process whose scopes are remembered.
const DRAFTED: usize = 100_000;

impl RedisStore {
    pub(super) async fn write_drafts(
        &self,
        instance: u64,
        drafts: &[Draft],
        ended: &[u128],
    ) -> Result<(), StoreError> {
        let instance = format!("{instance:016x}");
        let life = REMEMBERED.as_millis().to_string();
        for draft in drafts {
            let SessionKeys { drafts, gone, .. } = self.keys.session(&draft.scope);
            let Record { key, value, at, .. } = &draft.record;
            let mut text = format!("{instance} {at} ").into_bytes();
            text.extend_from_slice(value);
            let arguments =
                [Vec::new(), format!("{key:032x}").into_bytes(), text, life.clone().into()];
            let keys = [drafts, gone];
            let since = Some(draft.since);
            let call = ScriptCall { keys: &keys, since, arguments: &arguments };
            let written: u64 = self.call(Access::Other, &scripts::DRAFT, call).await?;
            // None is written of a session that was deleted meanwhile.
            if written > 0 {
                self.list_draft(&instance, draft).await?;
            }
        }
        for key in ended {
            let Some(scope) = self.drafted().remove(key) else { continue };
            let mut removed = redis::cmd("HDEL");
            removed.arg(self.keys.session(&scope).drafts).arg(format!("{key:032x}"));
            self.run(Access::Other, async |mut link| removed.exec_async(&mut link).await).await?;
        }
        Ok(())
    }

    async fn list_draft(&self, instance: &str, draft: &Draft) -> Result<(), StoreError> {
        // Notes where the draft is, once.
        {
            let mut drafted = self.drafted();
            // A note may be repeated, and a draft that is not removed ends with its life.
            if drafted.len() >= DRAFTED {
                drafted.clear();
            }
            match drafted.entry(draft.record.key) {
                Entry::Occupied(_) => return Ok(()),
                Entry::Vacant(place) => _ = place.insert(draft.scope.clone()),
            }
        }
        let Scope { tenant, session } = &draft.scope;
        let drafting = self.keys.index(&format!("drafting:{instance}"));
        let name = self.keys.name(session);
        let life = REMEMBERED.as_millis() as u64;
        let mut noted = redis::pipe();
        noted.cmd("SADD").arg(&drafting).arg(member(&draft.scope)).ignore();
        noted.cmd("PEXPIRE").arg(&drafting).arg(life).ignore();
        noted.cmd("SADD").arg(self.keys.index("drafting")).arg(instance).ignore();
        noted.cmd("SADD").arg(&name).arg(tenant.as_str()).ignore();
        // Only a name without a turn has no end yet.
        noted.cmd("PEXPIRE").arg(&name).arg(life).arg("NX").ignore();
        self.run(Access::Other, async |mut link| noted.exec_async(&mut link).await).await
    }

    /// Makes turns from the drafts of dead processes; returns their scopes.
    pub(super) async fn adopt(&self, instance: u64) -> Result<Vec<Scope>, StoreError> {
        let own_name = format!("{instance:016x}");
        let index = self.keys.index("drafting");
        let mut pipeline = redis::pipe();
        let alive = self.keys.index(&format!("alive:{own_name}"));
        // Who looks for the drafts of the dead says that it lives.
        pipeline.cmd("SET").arg(alive).arg(1).arg("PX").arg(ALIVE).ignore();
        pipeline.cmd("SMEMBERS").arg(&index);
        let (instances,): (Vec<String>,) =
            self.run(Access::Other, async |mut link| pipeline.query_async(&mut link).await).await?;
        let mut adopted = Vec::new();
        for other in instances.into_iter().filter(|other| *other != own_name) {
            let drafting = self.keys.index(&format!("drafting:{other}"));
            let mut pipeline = redis::pipe();
            pipeline.cmd("EXISTS").arg(self.keys.index(&format!("alive:{other}")));
            pipeline.cmd("SMEMBERS").arg(&drafting);
            let (is_alive, members): (bool, Vec<String>) = self
                .run(Access::Other, async |mut link| pipeline.query_async(&mut link).await)
                .await?;
            // Its exchanges are still in flight.
            if is_alive {
                continue;
            }
            for scope in members.iter().filter_map(|name| scope_of(name)) {
                adopted.extend(self.adopt_in(&scope, &other).await?);
            }
            // Last: if this process ends before, another one adopts what is left.
            let mut done = redis::pipe();
            done.cmd("DEL").arg(&drafting).ignore();
            done.cmd("SREM").arg(&index).arg(&other).ignore();
            self.run(Access::Other, async |mut link| done.exec_async(&mut link).await).await?;
        }
        Ok(adopted)
    }

    /// Makes turns from the drafts that a process has in a session.
    async fn adopt_in(&self, scope: &Scope, instance: &str) -> Result<Vec<Scope>, StoreError> {
        let mut command = redis::cmd("HGETALL");
        command.arg(self.keys.session(scope).drafts);
        let drafts: HashMap<String, Vec<u8>> =
            self.run(Access::Other, async |mut link| command.query_async(&mut link).await).await?;
        let mut adopted = Vec::new();
        for (key, text) in drafts {
            let mut words = text.splitn(3, |byte| *byte == b' ');
            let is_theirs = words.next() == Some(instance.as_bytes());
            let at = words.next().and_then(|at| std::str::from_utf8(at).ok()?.parse().ok());
            let key = u128::from_str_radix(&key, 16).ok();
            let (true, Some(at), Some(key), Some(value)) = (is_theirs, at, key, words.next())
            else {
                continue;
            };
            let value = bytes::Bytes::copy_from_slice(value);
            let turn = Record { kind: RecordKind::Turn, key, value, at, turn: None };
            // This also removes the draft. If another process was faster, the turn exists.
            let put = self.put_records(scope, &[turn], &Default::default()).await?;
            if put == [WriteOutcome::Written] {
                adopted.push(scope.clone());
            }
        }
        Ok(adopted)
    }

    pub(super) fn drafted(&self) -> MutexGuard<'_, HashMap<u128, Scope>> {
        self.drafted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
