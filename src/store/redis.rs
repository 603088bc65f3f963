//! A store that several processes share: a Redis or Valkey server (docs/fleets.md). README.md lists its keys.
//!
//! What belongs to one session has keys with its name as hash tag, and is written by one script. The list of sessions
//! and fingerprints are written beside it, in the same round trip, and readers look whether their session exists. The
//! client is the crate `redis`: maintained, async, and able to run over a stream that we open, so that TLS, roots and
//! time limits are ours.

mod drafts;
mod events;
mod keys;
mod link;
mod list;
mod records;
mod scripts;
mod server;
mod sums;
mod values;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use foldhash::HashMap;
use futures_util::future::try_join_all;
use redis::RedisError;

use self::keys::{Keys, SessionKeys, field};
use self::link::Link;
use self::scripts::{Acks, Script, ScriptCall};
use self::server::Connection;
pub use self::server::{RedisServer, ServerTls};
use super::drafts::Draft;
use super::live_events::{ToldEvent, ToldEvents};
use super::notes::StoredNote;
use super::precondition::Precondition;
use super::random::random;
use super::{
    LogPlace, Record, RecordKind, Scope, ScopeLine, ScopePage, SessionGain, Store, StoreError,
    StoreFuture, SweepStep, WriteOutcome,
};
use crate::context::caps::{AdditionId, Spending, SumChange, SumKey};
use crate::context::{Millis, SessionId, TenantId};

/// How long a deletion on request is remembered: nothing begun before it is in flight for longer.
const REMEMBERED: Duration = Duration::from_secs(24 * 3600);
/// How long a write waits for replicas.
const ACKS_WITHIN: Duration = Duration::from_millis(500);

/// A store on a Redis or Valkey server. Clones share it.
#[derive(Clone)]
pub struct RedisStore {
    link: Arc<Link>,
    /// For writes that replicas must have, if some must: what waits for these delays nothing else.
    acked: Option<(Arc<Link>, Acks)>,
    keys: Arc<Keys>,
    /// How long a session lives that nobody uses and nobody sweeps.
    life: Duration,
    /// The scopes of the drafts that this process wrote.
    drafted: Arc<Mutex<HashMap<u128, Scope>>>,
    /// The errors of the last write of traffic, of what is written beside it, and of the last read, if they failed.
    failures: Arc<Mutex<[Option<StoreError>; 3]>>,
    /// Bytes of all sessions, as last seen.
    bytes: Arc<AtomicU64>,
    is_for_admin: bool,
}

/// A kind of access.
#[derive(Clone, Copy)]
enum Access {
    Write,
    /// What is written beside a session.
    Beside,
    Read,
    /// Nothing that traffic waits for.
    Other,
}

impl RedisStore {
    /// The store on a server, which is connected to when it is needed. Sessions that nobody used for `life` are
    /// deleted by the server, whether a process sweeps or not.
    pub fn new(server: RedisServer, life: Duration) -> Self {
        let keys = Arc::new(Keys::new(&server.prefix));
        let link = Link::new(server);
        let replicas = link.replicas();
        let acks = Acks { replicas, within: ACKS_WITHIN };
        Self {
            acked: (replicas > 0).then(|| (link.another(), acks)),
            link,
            keys,
            life,
            drafted: Arc::default(),
            failures: Arc::default(),
            bytes: Arc::default(),
            is_for_admin: false,
        }
    }

    /// The same over a connection of its own: what the admin API reads delays no request.
    pub(crate) fn for_admin(&self) -> Self {
        Self { link: self.link.another(), is_for_admin: true, ..self.clone() }
    }

    /// Why data is not saved or not read: the server does not answer, or the last write or read failed.
    pub(crate) fn failure(&self) -> Option<StoreError> {
        let acked = self.acked.as_ref().and_then(|(link, _)| link.trouble());
        if let Some(trouble) = self.link.trouble().or(acked) {
            return Some(trouble);
        }
        let failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.iter().flatten().next().cloned()
    }

    /// Bytes of all sessions, as last seen.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Runs commands on the connection.
    async fn run<T, F>(
        &self,
        access: Access,
        commands: impl FnOnce(Connection) -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, RedisError>>,
    {
        self.noted(access, self.link.run(commands).await)
    }

    /// Remembers whether the last access of a kind failed.
    fn noted<T>(&self, access: Access, answer: Result<T, StoreError>) -> Result<T, StoreError> {
        if !self.is_for_admin && !matches!(access, Access::Other) {
            let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
            failures[access as usize] = answer.as_ref().err().cloned();
        }
        answer
    }

    /// Writes records of a session; replicas have them too, if they must.
    async fn put_script(&self, call: ScriptCall<'_>) -> Result<Vec<redis::Value>, StoreError> {
        let Some((link, acks)) = &self.acked else {
            return self.call(Access::Write, &scripts::PUT, call).await;
        };
        let answer = link.run(async |mut connection| {
            scripts::PUT.run_with_acks(&mut connection, call, *acks).await
        });
        let answer = match answer.await {
            // It is on the primary, and may be lost with it: nobody is told that it is safe.
            Ok((_, replicas)) if replicas < acks.replicas => Err(link.too_few(replicas, acks)),
            answer => answer.map(|(put, _)| put),
        };
        self.noted(Access::Write, answer)
    }

    /// Runs a script on the keys of a session.
    async fn script<T: redis::FromRedisValue>(
        &self,
        access: Access,
        script: &Script,
        keys: &[String],
        arguments: &[Vec<u8>],
    ) -> Result<T, StoreError> {
        self.call(access, script, ScriptCall { keys, since: None, arguments }).await
    }

    /// Runs a script on the keys of a session, with what only some are told.
    async fn call<T: redis::FromRedisValue>(
        &self,
        access: Access,
        script: &Script,
        call: ScriptCall<'_>,
    ) -> Result<T, StoreError> {
        self.run(access, async |mut connection| script.run_call(&mut connection, call).await).await
    }
}

/// Runs commands, each on the node of its key, in one round trip.
async fn all<T: redis::FromRedisValue>(
    connection: &Connection,
    commands: &[redis::Cmd],
) -> Result<Vec<T>, RedisError> {
    let runs = commands.iter().map(|command| {
        let mut connection = connection.clone();
        async move { command.query_async(&mut connection).await }
    });
    try_join_all(runs).await
}

impl Store for RedisStore {
    fn put(
        &self,
        scope: Scope,
        records: Vec<Record>,
        only_if: Precondition,
    ) -> StoreFuture<'_, Vec<WriteOutcome>> {
        Box::pin(async move { self.put_records(&scope, &records, &only_if).await })
    }

    fn put_drafts(
        &self,
        instance: u64,
        drafts: Vec<Draft>,
        ended: Vec<u128>,
    ) -> StoreFuture<'_, ()> {
        Box::pin(async move { self.write_drafts(instance, &drafts, &ended).await })
    }

    fn adopt_drafts(&self, instance: u64) -> StoreFuture<'_, Vec<Scope>> {
        Box::pin(async move { self.adopt(instance).await })
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn get(&self, scope: Scope, kind: RecordKind, key: u128) -> StoreFuture<'_, Option<Bytes>> {
        Box::pin(async move {
            let SessionKeys { facts, .. } = self.keys.session(&scope);
            let mut command = redis::cmd("HGET");
            command.arg(facts).arg(field(kind, key));
            let value: Option<Vec<u8>> = self
                .run(Access::Other, async |mut connection| {
                    command.query_async(&mut connection).await
                })
                .await?;
            Ok(value.and_then(values::restored))
        })
    }

    fn size(&self, scope: Scope, kind: RecordKind) -> StoreFuture<'_, u64> {
        Box::pin(async move {
            let SessionKeys { facts, .. } = self.keys.session(&scope);
            let kind = format!("{}:", kind.layout().code).into_bytes();
            self.script(Access::Other, &scripts::SIZE, &[facts], &[kind]).await
        })
    }

    fn session_by_fingerprint(
        &self,
        tenant: TenantId,
        fingerprints: Vec<u128>,
    ) -> StoreFuture<'_, Option<SessionId>> {
        Box::pin(async move { self.find(&tenant, &fingerprints).await })
    }

    fn holder(&self, kind: RecordKind, key: u128) -> StoreFuture<'_, Option<Scope>> {
        Box::pin(async move { self.find_holder(kind, key).await })
    }

    fn scan(&self, scope: Scope, newest: usize) -> StoreFuture<'_, Vec<Record>> {
        Box::pin(async move { self.newest(&scope, newest).await })
    }

    fn scan_since(
        &self,
        scope: Scope,
        known_since: Instant,
        place: LogPlace,
    ) -> StoreFuture<'_, SessionGain> {
        Box::pin(async move { self.read(&scope, Some(known_since), place).await })
    }

    fn put_note(
        &self,
        scope: Scope,
        note: StoredNote,
        known_since: Instant,
    ) -> StoreFuture<'_, ()> {
        Box::pin(async move { self.set_note(&scope, &note, known_since).await })
    }

    fn remove_note(&self, scope: Scope, note: StoredNote) -> StoreFuture<'_, bool> {
        Box::pin(async move { self.unset_note(&scope, &note).await })
    }

    fn scopes(&self, page: ScopePage) -> StoreFuture<'_, Vec<ScopeLine>> {
        Box::pin(async move { self.list(page).await })
    }

    fn scopes_named(&self, session: SessionId) -> StoreFuture<'_, Vec<Scope>> {
        Box::pin(async move { self.named(&session).await })
    }

    fn drop_scope(&self, scope: Scope) -> StoreFuture<'_, u64> {
        Box::pin(async move { Ok(self.delete(&scope, None).await?.unwrap_or_default()) })
    }

    fn expire(&self, before: Millis, max_bytes: u64) -> StoreFuture<'_, SweepStep> {
        Box::pin(async move { self.sweep(before, max_bytes).await })
    }

    fn claim(&self, what: u128, holder: u64, lasts: Duration) -> StoreFuture<'_, bool> {
        Box::pin(async move {
            let key = self.keys.claim(what);
            let holder = format!("{holder:016x}").into_bytes();
            let lasts = (lasts.as_millis().max(1)).to_string().into_bytes();
            let taken: u64 =
                self.script(Access::Other, &scripts::CLAIM, &[key], &[holder, lasts]).await?;
            Ok(taken == 1)
        })
    }

    fn release(&self, what: u128, holder: u64) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let key = self.keys.claim(what);
            let holder = format!("{holder:016x}").into_bytes();
            self.script(Access::Other, &scripts::DELETE_IF, &[key], &[holder]).await
        })
    }

    fn change_sums(
        &self,
        id: AdditionId,
        sums: Vec<(SumKey, Spending)>,
        change: SumChange,
    ) -> StoreFuture<'_, Vec<Spending>> {
        Box::pin(async move { self.change(id, &sums, change).await })
    }

    fn cap_changes(&self) -> StoreFuture<'_, Option<Bytes>> {
        Box::pin(async move { self.kept_cap_changes().await })
    }

    fn replace_cap_changes(&self, known: Option<Bytes>, new: Bytes) -> StoreFuture<'_, bool> {
        Box::pin(async move { self.replace_kept_cap_changes(known, new).await })
    }

    fn tell_events(&self, events: Vec<ToldEvent>) -> StoreFuture<'_, ()> {
        Box::pin(async move { self.tell(&events).await })
    }

    fn events_since(&self, place: Option<u64>) -> StoreFuture<'_, ToldEvents> {
        Box::pin(async move { self.told(place).await })
    }

    fn ready(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let ping = redis::cmd("PING");
            let answer = self
                .run(Access::Other, async |mut connection| ping.exec_async(&mut connection).await)
                .await;
            // Without it traffic flows, as without a file.
            answer.map_err(|trouble| StoreError::Unusable(trouble.to_string()))
        })
    }

    fn tenant_key(&self) -> StoreFuture<'_, [u8; 32]> {
        Box::pin(async move {
            let new_key = blake3::Hash::from_bytes(random()?).to_hex();
            let key = self.keys.index("tenant-key");
            let mut pipeline = redis::pipe();
            // The first process makes it, and all read it back.
            pipeline.cmd("SET").arg(&key).arg(new_key.as_str()).arg("NX").ignore();
            pipeline.cmd("GET").arg(&key);
            let (key,): (String,) = self
                .run(Access::Other, async |mut connection| {
                    pipeline.query_async(&mut connection).await
                })
                .await?;
            let key = blake3::Hash::from_hex(&key)
                .map_err(|_| StoreError::Failed("the tenant key in Redis is none".to_owned()))?;
            Ok(*key.as_bytes())
        })
    }
}
