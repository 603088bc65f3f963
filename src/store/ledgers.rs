//! Ledgers of sessions: loaded once from the store, kept in memory, shared by all who look.
//!
//! A slow or dead store costs knowledge, never an answer: what it could not give is missing, what it
//! could not take stays in memory. The only waits are bounded by the caller's patience. Must not know
//! traffic; `now` is passed in.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, OnceCell};
use xxhash_rust::xxh3::xxh3_128;

use super::{Record, RecordKind, Scope, ScopeLine, Store, Trouble};
use crate::context::ledger::{Joint, Ledger, joints};
use crate::context::lineage::{Growth, Placed, place};
use crate::context::{Fact, Millis, Outcome, Sketched, Turn};
use crate::dialect::{Chain, Conversation, Held, PartKey, Role};

/// Most sessions kept in memory; past it the one unused longest is loaded again when asked for.
const SESSIONS_IN_MEMORY: usize = 512;
/// Most signs by which sessions without a name are found in memory; past it the store is asked.
const SIGNS_IN_MEMORY: usize = 100_000;
/// Most signs of one request that the store is asked for, from its end.
const SIGNS_ASKED: usize = 32;

/// All ledgers.
pub struct Ledgers {
    store: Arc<dyn Store>,
    shelves: Mutex<Shelves>,
    signs: Mutex<Signs>,
}

#[derive(Default)]
struct Shelves {
    by_scope: HashMap<Scope, Arc<Shelf>>,
    /// Least recently used first.
    order: VecDeque<Scope>,
}

#[derive(Default)]
struct Signs {
    sessions: HashMap<(Box<str>, u128), Box<str>>,
    order: VecDeque<(Box<str>, u128)>,
}

/// One session in memory.
struct Shelf {
    ledger: OnceCell<Mutex<Ledger>>,
    /// Exchanges that have begun and whose turns are not known yet, with the chain each ends at.
    open: Mutex<HashMap<Box<str>, Chain>>,
    settled: Notify,
}

/// What a request asks to be placed by.
pub struct Asked<'a> {
    /// Keyed hash of the credential.
    pub tenant: &'a str,
    /// The session that the client names.
    pub session: Option<&'a str>,
    /// The thread that the client names.
    pub lane: Option<&'a str>,
    /// The exchange's id.
    pub request: &'a str,
    /// How long to wait for the turn before it, and for the store.
    pub patience: Duration,
}

/// A request's place, held until it is dropped: later requests wait for it a little.
pub struct Opened {
    /// Whose facts it may use.
    pub scope: Scope,
    /// Its thread and parent.
    pub placed: Placed,
    /// What an estimate can grow from.
    pub anchor: Option<Anchor>,
    /// The store did not answer: what it knows was not used.
    pub store_missed: bool,
    shelf: Arc<Shelf>,
    request: Box<str>,
    /// The client named the session: no sign is needed to find it again.
    named: bool,
}

/// A turn whose reported usage measures its context, and what it had sent.
#[derive(Clone)]
pub struct Anchor {
    /// The turn.
    pub turn: Arc<Turn>,
    /// Its request, part by part.
    pub sketch: Vec<Sketched>,
}

impl Drop for Opened {
    fn drop(&mut self) {
        lock(&self.shelf.open).remove(&self.request);
        self.shelf.settled.notify_waiters();
    }
}

impl Ledgers {
    /// Ledgers over `store`.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store, shelves: Mutex::default(), signs: Mutex::default() }
    }

    /// Finds the session of a request, and its place in it.
    pub async fn open(&self, asked: Asked<'_>, conversation: &Conversation) -> Opened {
        let known = match asked.session {
            Some(session) => Some(session.into()),
            None => self.session_of(&asked, conversation).await,
        };
        let begins = known.is_none();
        let session = known.unwrap_or_else(|| name_for(asked.request));
        let scope = Scope { tenant: asked.tenant.into(), session };
        let shelf = self.shelf(&scope);
        if begins {
            // The name is new, so the store can know nothing of it.
            drop(shelf.ledger.set(Mutex::default()));
        }
        let loaded = tokio::time::timeout(asked.patience, self.load(&scope, &shelf)).await;
        let store_missed = !matches!(loaded, Ok(Ok(())));
        shelf.wait_for_parent(conversation, asked.patience).await;

        let unknown = Mutex::default();
        let ledger = lock(shelf.ledger.get().unwrap_or(&unknown));
        let placed = place(&ledger, conversation, asked.request, asked.lane);
        let anchor = anchor(&ledger, &placed);
        drop(ledger);
        lock(&shelf.open).insert(asked.request.into(), placed.standing.chain);
        let (request, named) = (asked.request.into(), asked.session.is_some());
        Opened { scope, placed, anchor, store_missed, shelf, request, named }
    }

    /// Keeps what an exchange taught: in memory at once, and durable when this is answered. The
    /// place is given up, so that requests which waited for it go on.
    ///
    /// # Errors
    /// The store's [`Trouble`]; memory knows the turn all the same.
    pub async fn commit(&self, opened: Opened, facts: Vec<Fact>) -> Result<(), Trouble> {
        let scope = opened.scope.clone();
        let mut records: Vec<Record> = facts.iter().filter_map(record).collect();
        let signs = match opened.named {
            true => Vec::new(),
            false => facts.iter().flat_map(signs_of).collect(),
        };
        {
            let mut known = lock(&self.signs);
            signs.iter().for_each(|sign| known.add(&scope.tenant, sign.key, &scope.session));
        }
        records.extend(signs);
        let kept = self.store.put_if_absent(scope, records);
        if let Some(ledger) = opened.shelf.ledger.get() {
            add(ledger, facts);
            drop(opened);
            return kept.await.map(drop);
        }
        // The session was not loaded when it was opened. If the store takes the facts, the next
        // request loads them with all that came before; if not, memory begins with them.
        let kept = kept.await;
        if kept.is_err() {
            add(opened.shelf.ledger.get_or_init(|| async { Mutex::default() }).await, facts);
        }
        kept.map(drop)
    }

    /// Sessions that hold turns, newest first.
    ///
    /// # Errors
    /// The store's [`Trouble`].
    pub async fn sessions(&self, skip: usize, count: usize) -> Result<Vec<ScopeLine>, Trouble> {
        self.store.scopes(skip, count).await
    }

    /// The scopes of a session id: one a tenant that uses it.
    ///
    /// # Errors
    /// The store's [`Trouble`].
    pub async fn scopes_of(&self, session: &str) -> Result<Vec<Scope>, Trouble> {
        let mut found = Vec::new();
        const PAGE: usize = 500;
        for page in 0.. {
            let lines = self.store.scopes(page * PAGE, PAGE).await?;
            let last = lines.len() < PAGE;
            let named = lines.into_iter().filter(|line| &*line.scope.session == session);
            found.extend(named.map(|line| line.scope));
            if last {
                break;
            }
        }
        Ok(found)
    }

    /// Looks into a session's ledger.
    ///
    /// # Errors
    /// The store's [`Trouble`], where it is not in memory.
    pub async fn look<T>(
        &self,
        scope: &Scope,
        look: impl FnOnce(&Ledger) -> T,
    ) -> Result<T, Trouble> {
        let shelf = self.shelf(scope);
        self.load(scope, &shelf).await?;
        let unknown = Mutex::default();
        let ledger = lock(shelf.ledger.get().unwrap_or(&unknown));
        Ok(look(&ledger))
    }

    /// Forgets everything known of a session; answers how many records went.
    ///
    /// # Errors
    /// The store's [`Trouble`]; memory has forgotten all the same.
    pub async fn forget(&self, scope: &Scope) -> Result<u64, Trouble> {
        lock(&self.shelves).by_scope.remove(scope);
        lock(&self.signs)
            .sessions
            .retain(|(tenant, _), session| (tenant, &*session) != (&scope.tenant, &scope.session));
        self.store.drop_scope(scope.clone()).await
    }

    /// The key of tenant hashes.
    ///
    /// # Errors
    /// The store's [`Trouble`].
    pub async fn tenant_key(&self) -> Result<[u8; 32], Trouble> {
        self.store.tenant_key().await
    }

    /// Something learned about an upstream earlier.
    ///
    /// # Errors
    /// The store's [`Trouble`].
    pub async fn learned(&self, what: &str) -> Result<Option<Bytes>, Trouble> {
        self.store.get(learned_scope(), RecordKind::Learned, xxh3_128(what.as_bytes())).await
    }

    /// Keeps something learned about an upstream; the first lesson stays.
    ///
    /// # Errors
    /// The store's [`Trouble`].
    pub async fn learn(&self, what: &str, lesson: Bytes, now: Millis) -> Result<(), Trouble> {
        let key = xxh3_128(what.as_bytes());
        let record = Record { kind: RecordKind::Learned, key, value: lesson, at: now };
        self.store.put_if_absent(learned_scope(), vec![record]).await.map(drop)
    }

    /// Forgets what is past its time, in store and memory.
    ///
    /// # Errors
    /// The store's [`Trouble`].
    pub async fn expire(&self, before: Millis, max_bytes: u64) -> Result<u64, Trouble> {
        let gone = self.store.expire(before, max_bytes).await?;
        if gone > 0 {
            // What is still used is loaded again.
            *lock(&self.shelves) = Shelves::default();
            *lock(&self.signs) = Signs::default();
        }
        Ok(gone)
    }

    /// Whether the store answers.
    ///
    /// # Errors
    /// The store's [`Trouble`].
    pub async fn ready(&self) -> Result<(), Trouble> {
        self.store.ready().await
    }

    fn shelf(&self, scope: &Scope) -> Arc<Shelf> {
        lock(&self.shelves).shelf(scope)
    }

    async fn load(&self, scope: &Scope, shelf: &Shelf) -> Result<(), Trouble> {
        let load = || async {
            let mut ledger = Ledger::default();
            for record in self.store.scan(scope.clone()).await? {
                if let Ok(fact) = serde_json::from_slice(&record.value) {
                    ledger.add(fact);
                }
            }
            Ok(Mutex::new(ledger))
        };
        shelf.ledger.get_or_try_init(load).await.map(drop)
    }

    /// The session of a request whose client names none: that of its longest known prefix.
    async fn session_of(&self, asked: &Asked<'_>, conversation: &Conversation) -> Option<Box<str>> {
        let signs = signs_in(conversation);
        {
            let known = lock(&self.signs);
            let mut found = signs.iter().filter_map(|sign| known.session(asked.tenant, *sign));
            if let Some(session) = found.next() {
                return Some(session);
            }
        }
        let begins = conversation.held.is_none()
            && conversation.parts().all(|part| part.role != Role::Assistant);
        if begins {
            return None; // nothing was answered in it, so nothing is known of it
        }
        let in_store = async {
            for sign in signs.iter().take(SIGNS_ASKED) {
                let signed = self.store.signed(asked.tenant.into(), *sign);
                if let Some(session) = signed.await.ok()? {
                    return Some(session);
                }
            }
            None
        };
        tokio::time::timeout(asked.patience, in_store).await.ok().flatten()
    }
}

impl Shelf {
    fn new() -> Self {
        Self { ledger: OnceCell::new(), open: Mutex::default(), settled: Notify::new() }
    }

    /// Waits while an exchange is open that this request grew from, but no longer than `patience`.
    async fn wait_for_parent(&self, conversation: &Conversation, patience: Duration) {
        if lock(&self.open).is_empty() {
            return;
        }
        let chains: Vec<Chain> = conversation.chains().collect();
        let Some((_, before)) = chains.split_last() else { return };
        let settle = async {
            loop {
                let settled = self.settled.notified();
                tokio::pin!(settled);
                settled.as_mut().enable();
                if !lock(&self.open).values().any(|chain| before.contains(chain)) {
                    return;
                }
                settled.await;
            }
        };
        let _ = tokio::time::timeout(patience, settle).await;
    }
}

impl Shelves {
    fn shelf(&mut self, scope: &Scope) -> Arc<Shelf> {
        if let Some(shelf) = self.by_scope.get(scope) {
            let shelf = shelf.clone();
            if self.order.back() != Some(scope) {
                self.order.retain(|other| other != scope);
                self.order.push_back(scope.clone());
            }
            return shelf;
        }
        while self.by_scope.len() >= SESSIONS_IN_MEMORY {
            let Some(oldest) = self.order.pop_front() else { break };
            self.by_scope.remove(&oldest);
        }
        let shelf = Arc::new(Shelf::new());
        self.by_scope.insert(scope.clone(), shelf.clone());
        self.order.push_back(scope.clone());
        shelf
    }
}

impl Signs {
    fn session(&self, tenant: &str, sign: u128) -> Option<Box<str>> {
        self.sessions.get(&(tenant.into(), sign)).cloned()
    }

    fn add(&mut self, tenant: &str, sign: u128, session: &str) {
        let key = (Box::from(tenant), sign);
        if self.sessions.contains_key(&key) {
            return;
        }
        while self.sessions.len() >= SIGNS_IN_MEMORY {
            let Some(oldest) = self.order.pop_front() else { break };
            self.sessions.remove(&oldest);
        }
        self.sessions.insert(key.clone(), session.into());
        self.order.push_back(key);
    }
}

/// The name of a session that begins with an exchange.
fn name_for(request: &str) -> Box<str> {
    format!("line-{:016x}", xxh3_128(request.as_bytes()) as u64).into()
}

/// What an estimate can grow from: the nearest measured turn at or above the parent.
fn anchor(ledger: &Ledger, placed: &Placed) -> Option<Anchor> {
    if placed.growth == Growth::Held {
        return None;
    }
    let turn = ledger.anchor_at(placed.parent.as_ref()?)?.clone();
    let sketch = ledger.sketch(&turn)?;
    Some(Anchor { turn, sketch })
}

fn add(ledger: &Mutex<Ledger>, facts: Vec<Fact>) {
    let mut ledger = lock(ledger);
    facts.into_iter().for_each(|fact| ledger.add(fact));
}

fn record(fact: &Fact) -> Option<Record> {
    let (kind, key, at) = match fact {
        Fact::Turn(turn) => (RecordKind::Turn, xxh3_128(turn.request.as_bytes()), turn.at),
        Fact::Reasoning(reasoning) => (RecordKind::Reasoning, reasoning.after.0, reasoning.at),
    };
    Some(Record { kind, key, value: serde_json::to_vec(fact).ok()?.into(), at })
}

/// The signs by which a turn's session is found again by a request that names none: its reply's
/// end and joints, its response's id, and where it was not answered, its own end.
fn signs_of(fact: &Fact) -> Vec<Record> {
    let Fact::Turn(turn) = fact else { return Vec::new() };
    let mut signs: Vec<u128> = joints(turn).map(|joint| joint.0).collect();
    if turn.after != turn.standing.chain {
        signs.push(turn.after.0);
    }
    if turn.outcome != Outcome::Complete {
        signs.push(turn.standing.chain.0);
    }
    signs.extend(turn.response.as_deref().map(response_sign));
    let sign = |key| Record { kind: RecordKind::Sign, key, value: Bytes::new(), at: turn.at };
    signs.into_iter().map(sign).collect()
}

/// The signs in a request, nearest to its end first.
fn signs_in(conversation: &Conversation) -> Vec<u128> {
    let mut signs = Vec::new();
    let mut chain = Chain::START;
    let mut before: Option<PartKey> = None;
    for part in conversation.parts() {
        let Some(key) = part.key else { continue };
        chain = chain.then(key);
        if part.role == Role::Assistant {
            signs.extend(before.map(|before| Joint::of(before, key).0));
            signs.push(Joint::mark(key).0);
        }
        signs.push(chain.0);
        before = Some(key);
    }
    if let Some(Held::After(id)) = &conversation.held {
        signs.push(response_sign(id));
    }
    signs.reverse();
    signs
}

fn response_sign(id: &str) -> u128 {
    xxh3_128(id.as_bytes())
}

fn learned_scope() -> Scope {
    Scope { tenant: Box::default(), session: "~learned".into() }
}

/// A poisoned lock means that a reader panicked, not that the facts are wrong: they are only added.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
