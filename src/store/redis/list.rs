//! The list of sessions, and how sessions are found: by fingerprint, by name, by a record.
//!
//! It is written beside a session's own keys, so an entry may lead to a session that is gone: every reader looks.

use futures_util::future::try_join_all;
use redis::{FromRedisValue, RedisError};

use super::keys::{FingerprintPlace, SessionKeys, capped, field, id, member, scope_of};
use super::server::Connection;
use super::{Access, REMEMBERED, RedisStore, all, scripts};
use crate::context::{Millis, SessionId, TenantId};
use crate::store::{Cursor, RecordKind, Scope, ScopeLine, ScopePage, StoreError, SweepStep};

/// Most sessions that are looked at in one round trip.
const AT_ONCE: usize = 200;
/// Most sessions that are deleted in one step.
const SWEPT: usize = 32;

/// A place in the list of sessions.
struct Listed {
    scope: Scope,
    cursor: Cursor,
}

impl RedisStore {
    /// The session that has the first known one of these fingerprints.
    pub(super) async fn find(
        &self,
        tenant: &TenantId,
        fingerprints: &[u128],
    ) -> Result<Option<SessionId>, StoreError> {
        if fingerprints.is_empty() {
            return Ok(None);
        }
        let asks = fingerprints.iter().map(|fingerprint| {
            let place = FingerprintPlace::new(tenant, *fingerprint);
            let (hash, field) = self.keys.fingerprint(&place);
            let mut ask = redis::cmd("HGET");
            ask.arg(hash).arg(field);
            ask
        });
        let asks: Vec<redis::Cmd> = asks.collect();
        let sessions: Vec<Option<String>> =
            self.run(Access::Read, async |connection| all(&connection, &asks).await).await?;
        let mut scopes: Vec<Scope> = Vec::new();
        for session in sessions.into_iter().flatten() {
            let scope = Scope { tenant: tenant.clone(), session: session.as_str().into() };
            if !scopes.contains(&scope) {
                scopes.push(scope);
            }
        }
        let exist = self.of_each(Access::Read, &scopes, |keys| exists(&[keys.meta])).await?;
        let owner = scopes.into_iter().zip(exist).find(|(_, exists): &(Scope, u64)| *exists > 0);
        Ok(owner.map(|(scope, _)| scope.session))
    }

    /// Asks something of each session, in one round trip.
    async fn of_each<T: FromRedisValue>(
        &self,
        access: Access,
        scopes: &[Scope],
        ask: impl Fn(SessionKeys) -> redis::Cmd,
    ) -> Result<Vec<T>, StoreError> {
        if scopes.is_empty() {
            return Ok(Vec::new());
        }
        let asks = scopes.iter().map(|scope| ask(self.keys.session(scope)));
        let asks: Vec<redis::Cmd> = asks.collect();
        self.run(access, async |connection| all(&connection, &asks).await).await
    }

    /// A session that has a record, the most recently used first.
    pub(super) async fn find_holder(
        &self,
        kind: RecordKind,
        key: u128,
    ) -> Result<Option<Scope>, StoreError> {
        let mut cursor = None;
        loop {
            let page = self.page(cursor, AT_ONCE).await?;
            let Some(last) = page.last() else { return Ok(None) };
            cursor = Some(last.cursor);
            let scopes: Vec<Scope> = page.into_iter().map(|listed| listed.scope).collect();
            let have: Vec<bool> = self
                .of_each(Access::Other, &scopes, |keys| {
                    let mut ask = redis::cmd("HEXISTS");
                    ask.arg(keys.facts).arg(field(kind, key));
                    ask
                })
                .await?;
            if let Some((scope, _)) = scopes.into_iter().zip(have).find(|(_, has)| *has) {
                return Ok(Some(scope));
            }
        }
    }

    /// The next entries of the list, the most recently used first, at most `most`.
    async fn page(&self, after: Option<Cursor>, most: usize) -> Result<Vec<Listed>, StoreError> {
        let [used, ..] = self.keys.list();
        let mut offset = 0;
        loop {
            let mut command = redis::cmd("ZRANGE");
            // From the time itself on, because several sessions may have been used in the same millisecond.
            let newest = after.map_or("+inf".to_owned(), |after| after.used.to_string());
            command.arg(&used).arg(newest).arg("-inf").arg("BYSCORE").arg("REV");
            command.arg("LIMIT").arg(offset).arg(most).arg("WITHSCORES");
            let entries: Vec<(String, f64)> = self
                .run(Access::Other, async |mut connection| {
                    command.query_async(&mut connection).await
                })
                .await?;
            let is_last = entries.len() < most;
            offset += entries.len();
            let mut page = Vec::new();
            for (name, used) in entries {
                let Some(scope) = scope_of(&name) else { continue };
                let cursor = Cursor { used: used as Millis, id: id(&scope) };
                // Those of the same time that were seen before come first.
                if after.is_none_or(|after| cursor < after) {
                    page.push(Listed { scope, cursor });
                }
            }
            if is_last || !page.is_empty() {
                return Ok(page);
            }
        }
    }

    pub(super) async fn list(&self, page: ScopePage) -> Result<Vec<ScopeLine>, StoreError> {
        let mut lines = Vec::new();
        let mut cursor = page.after;
        let mut skip = page.skip;
        while lines.len() < page.count {
            let wanted = skip.saturating_add(page.count - lines.len());
            let entries = self.page(cursor, wanted.min(AT_ONCE)).await?;
            let Some(last) = entries.last() else { break };
            cursor = Some(last.cursor);
            let scopes: Vec<Scope> = entries.iter().map(|listed| listed.scope.clone()).collect();
            let sums: Vec<Vec<Option<u64>>> = self
                .of_each(Access::Other, &scopes, |keys| {
                    let mut ask = redis::cmd("HMGET");
                    ask.arg(keys.meta).arg(SUMS);
                    ask
                })
                .await?;
            for (Listed { scope, cursor }, sums) in entries.into_iter().zip(sums) {
                let Some(line) = line(scope, cursor, &sums) else { continue };
                if skip > 0 {
                    skip -= 1;
                } else if lines.len() < page.count {
                    lines.push(line);
                }
            }
        }
        Ok(lines)
    }

    /// The sessions of a name.
    pub(super) async fn named(&self, session: &SessionId) -> Result<Vec<Scope>, StoreError> {
        let mut command = redis::cmd("SMEMBERS");
        command.arg(self.keys.name(session));
        let tenants: Vec<String> = self
            .run(Access::Other, async |mut connection| command.query_async(&mut connection).await)
            .await?;
        let scopes: Vec<Scope> = tenants
            .iter()
            .map(|tenant| Scope { tenant: tenant.as_str().into(), session: session.clone() })
            .collect();
        let exist: Vec<u64> =
            self.of_each(Access::Other, &scopes, |keys| exists(&[keys.meta, keys.drafts])).await?;
        Ok(scopes.into_iter().zip(exist).filter(|(_, keys)| *keys > 0).map(|it| it.0).collect())
    }

    /// Deletes a session and returns how many records it had. `unless_since`: if it was used since then, it stays, and the
    /// answer is `None`.
    pub(super) async fn delete(
        &self,
        scope: &Scope,
        unless_since: Option<Millis>,
    ) -> Result<Option<u64>, StoreError> {
        let keys = self.keys.session(scope).all();
        let used = unless_since.map_or(String::new(), |used| used.to_string());
        let arguments = [used.into_bytes(), REMEMBERED.as_millis().to_string().into_bytes()];
        let reply: Vec<redis::Value> =
            self.script(Access::Other, &scripts::DROP, &keys, &arguments).await?;
        let mut reply = reply.into_iter();
        let Some(redis::Value::Int(records)) = reply.next() else {
            return Err(StoreError::Failed("Redis answered something else".to_owned()));
        };
        let [used, sizes, total] = self.keys.list();
        let Ok(records) = u64::try_from(records) else {
            // It was used meanwhile, so it is put back on the list.
            let mut again = redis::cmd("ZADD");
            again.arg(used).arg("GT").arg(unless_since).arg(member(scope));
            self.run(Access::Other, async |mut link| again.exec_async(&mut link).await).await?;
            return Ok(None);
        };
        let keys = [used, sizes, total, self.keys.name(&scope.session)];
        let unlisting = [member(scope).into_bytes(), scope.tenant.as_str().into()];
        let listed = reply.filter_map(|listed| redis::from_redis_value::<String>(listed).ok());
        let listed: Vec<String> = listed.collect();
        let is_on_request = unless_since.is_none();
        self.run(Access::Other, async |mut link| {
            scripts::UNLIST.run::<()>(&mut link, &keys, &unlisting).await?;
            if is_on_request {
                self.forget_events().exec_async(&mut link).await?;
            }
            let forgets = listed.iter().filter_map(|listed| FingerprintPlace::parse(listed));
            try_join_all(forgets.map(|place| self.forget_fingerprint(&link, place, scope))).await
        })
        .await?;
        Ok(Some(records))
    }

    async fn forget_fingerprint(
        &self,
        link: &Connection,
        place: FingerprintPlace,
        scope: &Scope,
    ) -> Result<(), RedisError> {
        let (hash, field) = self.keys.fingerprint(&place);
        let arguments = [field.into_bytes(), scope.session.as_str().into()];
        scripts::FORGET.run(&mut link.clone(), &[hash], &arguments).await
    }

    /// Deletes a few of the sessions that are too old or too many.
    pub(super) async fn sweep(
        &self,
        before: Millis,
        max_bytes: u64,
    ) -> Result<SweepStep, StoreError> {
        let [used, sizes, total] = self.keys.list();
        let keys = [used, sizes, total.clone()];
        let limits = [capped(before), capped(max_bytes), SWEPT as u64];
        let limits = limits.map(|limit| limit.to_string().into_bytes());
        let mut command = redis::cmd("GET");
        command.arg(total);
        let (expired, bytes): (Vec<(String, f64)>, Option<u64>) = self
            .run(Access::Other, async |mut link| {
                let expired = scripts::EXPIRED.run(&mut link, &keys, &limits).await?;
                Ok((expired, command.query_async(&mut link).await?))
            })
            .await?;
        self.bytes.store(bytes.unwrap_or_default(), std::sync::atomic::Ordering::Relaxed);
        let mut step = SweepStep { more: expired.len() == SWEPT, ..SweepStep::default() };
        for (name, used) in expired {
            let Some(scope) = scope_of(&name) else { continue };
            // One that the server deleted has no records any more.
            let records = self.delete(&scope, Some(used as Millis)).await?.unwrap_or_default();
            if records > 0 {
                step.records += records;
                step.scopes.push(scope);
            }
        }
        Ok(step)
    }
}

/// The fields of a session that its line in the list has.
const SUMS: &[&str] = &["began", "newest", "records", "turns", "input", "output", "cache_read"];

/// A session as it is listed; `None` if it has no turn, or is gone.
fn line(scope: Scope, cursor: Cursor, sums: &[Option<u64>]) -> Option<ScopeLine> {
    let &[began, newest, records, turns, input, output, cache_read] = sums else { return None };
    Some(ScopeLine {
        scope,
        cursor,
        began: began?,
        newest: newest?,
        records: records?,
        turns: turns.filter(|turns| *turns > 0)?,
        input: input.unwrap_or_default(),
        output: output.unwrap_or_default(),
        cache_read: cache_read.unwrap_or_default(),
    })
}

fn exists(keys: &[String]) -> redis::Cmd {
    let mut ask = redis::cmd("EXISTS");
    ask.arg(keys);
    ask
}
