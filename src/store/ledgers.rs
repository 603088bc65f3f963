//! Ledgers of sessions: loaded once from the store, kept in memory, shared by all who look.
//!
//! A slow or dead store costs knowledge, never an answer: what it could not give is missing, what it
//! could not take stays in memory. The only waits are bounded by the caller's patience. Must not know
//! traffic; `now` is passed in.

mod drafts;
mod fingerprints;
mod late_writes;
mod latest_requests;
mod parsers;
mod pending_compactions;
mod session_cache;
mod writes;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_128;

use super::calibrations::Calibrations;
use super::claims::Claims;
use super::lessons::{LessonTerms, Lessons};
use super::recall::{LookupOutcome, ReadBudget};
use super::{Record, RecordKind, Scope, ScopeLine, ScopePage, Store, StoreError, SweepStep};
use crate::context::ledger::Ledger;
use crate::context::lineage::{Growth, Placement, place};
use crate::context::plan::RecordedDecisions;
use crate::context::{ExchangeId, Fact, Millis, SessionId, SketchPart, TenantId, Turn};
use crate::dialect::{Conversation, Role};
use drafts::Drafts;
pub use drafts::{DraftGuard, DraftProgress};
use fingerprints::SessionFingerprints;
pub use late_writes::SessionRoom;
use latest_requests::LatestRequests;
pub use latest_requests::{LatestRequest, ProviderRecount, RecountError};
use pending_compactions::PendingCompactions;
pub use pending_compactions::{ClaimedCompaction, FOCUS_BYTES, PENDING_TTL};
use session_cache::{SessionCache, SessionCaches};
pub use writes::DecisionError;

/// How long someone who looks in waits for a session that is not in memory.
const LOOK: Duration = Duration::from_secs(5);

/// All ledgers.
pub struct Ledgers {
    store: Arc<dyn Store>,
    /// The same store, for questions that traffic does not wait for.
    lookers: Arc<dyn Store>,
    caches: Mutex<SessionCaches>,
    signs: Arc<Mutex<SessionFingerprints>>,
    pending_compactions: Mutex<PendingCompactions>,
    latest_requests: Mutex<LatestRequests>,
    drafts: Arc<Drafts>,
    lessons: Lessons,
    calibrations: Calibrations,
    claims: Claims,
}

/// Memory for what is kept of sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptBytes {
    /// Their turns and decisions.
    pub sessions: usize,
    /// The decisions of the one that has most of them.
    pub decisions: usize,
    /// The newest request of each, with what was read of it.
    pub latest_requests: usize,
}

impl KeptBytes {
    /// The most that there may be.
    pub const LIMIT: Self = Self {
        sessions: session_cache::BYTES,
        decisions: session_cache::DECISIONS,
        latest_requests: latest_requests::BYTES,
    };
}

/// What a request asks to be placed by.
pub struct SessionLookup<'a> {
    /// Keyed hash of the credential.
    pub tenant: &'a TenantId,
    /// The session that the client names.
    pub session: Option<&'a SessionId>,
    /// The thread that the client names.
    pub client_thread: Option<&'a str>,
    /// Its exchange.
    pub exchange: &'a ExchangeId,
    /// How long to wait for the turn before it.
    pub timeout: Duration,
    /// How long to wait for the store.
    pub reads: &'a ReadBudget,
    /// Whether decisions of shadow mode are wanted in place of the real ones.
    pub shadow: bool,
}

/// A request's place, held until it is dropped: later requests wait for it a little.
pub struct OpenedSession {
    /// Whose facts it may use.
    pub scope: Scope,
    /// Its thread and parent.
    pub placed: Placement,
    /// What an estimate can grow from.
    pub anchor: Option<AnchorTurn>,
    /// What is known of its parts.
    pub known: RecordedDecisions,
    /// The store did not answer: what it knows was not used.
    pub store_missed: bool,
    /// A record of the session was not understood and left out; told once.
    pub unread: bool,
    /// How long it may still wait for the store, now that its session is loaded.
    pub reads: ReadBudget,
    cache: Arc<SessionCache>,
    exchange: ExchangeId,
    began: Instant,
    /// The client named the session: no sign is needed to find it again.
    named: bool,
}

/// What is known of a request that takes no place.
pub struct SessionPeek {
    /// Its session.
    pub session: SessionId,
    /// What is known of its parts.
    pub known: RecordedDecisions,
    /// The store did not answer: what it knows was not used.
    pub store_missed: bool,
}

/// A turn whose reported usage measures its context, and what it had sent.
#[derive(Clone)]
pub struct AnchorTurn {
    /// The turn.
    pub turn: Arc<Turn>,
    /// Its request, part by part.
    pub sketch: Vec<SketchPart>,
}

impl OpenedSession {
    /// The place of a request on the cache of its session, by what is known there now.
    fn at(
        asked: &SessionLookup<'_>,
        conversation: &Conversation,
        scope: Scope,
        cache: Arc<SessionCache>,
        began: Instant,
        store_missed: bool,
    ) -> Self {
        let (placed, anchor, known) = cache.look(|ledger| {
            let placed = place(ledger, conversation, asked.exchange, asked.client_thread);
            let anchor = anchor(ledger, &placed);
            let known = RecordedDecisions::of(ledger, conversation, &placed, asked.shadow);
            (placed, anchor, known)
        });
        cache.begin(asked.exchange.clone(), placed.position.chain);
        Self {
            unread: cache.has_unread(),
            reads: asked.reads.after_first_load(),
            exchange: asked.exchange.clone(),
            named: asked.session.is_some(),
            scope,
            placed,
            anchor,
            known,
            store_missed,
            cache,
            began,
        }
    }

    /// New decisions for a request that was `suspended` then, each after what took back the one before it.
    pub fn after_suspension(&self, facts: Vec<Fact>, suspended: Option<Millis>) -> Vec<Fact> {
        let dated = |ledger: &Ledger| {
            facts.into_iter().map(|fact| ledger.after_suspension(fact, suspended)).collect()
        };
        self.cache.look(dated)
    }

    /// What is known by now of the request's parts.
    pub fn look_again(&self, conversation: &Conversation, shadow: bool) -> RecordedDecisions {
        self.cache.look(|ledger| RecordedDecisions::of(ledger, conversation, &self.placed, shadow))
    }
}

impl Drop for OpenedSession {
    fn drop(&mut self) {
        self.cache.settle(&self.exchange);
    }
}

impl Ledgers {
    /// Ledgers over `store`, with lessons by their usual terms.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self::with_lookers(store.clone(), store, LessonTerms::default())
    }

    /// Ledgers over `store`, with lessons by these terms; who looks in asks `lookers`, the same store by
    /// another way.
    pub fn with_lookers(
        store: Arc<dyn Store>,
        lookers: Arc<dyn Store>,
        terms: LessonTerms,
    ) -> Self {
        Self {
            lessons: Lessons::new(store.clone(), terms),
            calibrations: Calibrations::new(store.clone()),
            claims: Claims::new(store.clone()),
            store,
            lookers,
            caches: Mutex::default(),
            signs: Arc::default(),
            pending_compactions: Mutex::default(),
            latest_requests: Mutex::default(),
            drafts: Arc::new(Drafts::new()),
        }
    }

    /// What upstreams taught by refusing.
    pub fn lessons(&self) -> &Lessons {
        &self.lessons
    }

    /// What counting has learned.
    pub fn calibrations(&self) -> &Calibrations {
        &self.calibrations
    }

    /// Who does which piece of work.
    pub fn claims(&self) -> &Claims {
        &self.claims
    }

    /// Finds the session of a request, and its place in it. `None` where the store did not say in time whether
    /// it has one: such a request takes no place, so that the next one finds its session.
    pub async fn open(
        &self,
        asked: SessionLookup<'_>,
        conversation: &Conversation,
    ) -> Option<OpenedSession> {
        let began = Instant::now();
        let (session, begins) = match self.session(&asked, conversation).await {
            LookupOutcome::Found(session) => (session, false),
            LookupOutcome::None => (fingerprints::name_for(asked.exchange), true),
            LookupOutcome::Late => return None,
        };
        let scope = Scope { tenant: asked.tenant.clone(), session };
        let cache = lock(&self.caches).cache(&scope);
        if begins {
            cache.is_new();
        }
        let store_missed = cache.load(&self.store, &scope, asked.reads).await.is_err();
        cache.wait_for_parent(conversation, Instant::now() + asked.timeout).await;
        Some(OpenedSession::at(&asked, conversation, scope, cache, began, store_missed))
    }

    /// Looks a request up that takes no place: nothing waits for it, nothing grows from it, and what
    /// it belongs to need not exist.
    pub async fn peek(
        &self,
        asked: SessionLookup<'_>,
        conversation: &Conversation,
    ) -> LookupOutcome<SessionPeek> {
        let session = match self.session(&asked, conversation).await {
            LookupOutcome::Found(session) => session,
            LookupOutcome::None => return LookupOutcome::None,
            LookupOutcome::Late => return LookupOutcome::Late,
        };
        let scope = Scope { tenant: asked.tenant.clone(), session };
        let cache = lock(&self.caches).cache(&scope);
        let store_missed = cache.load(&self.store, &scope, asked.reads).await.is_err();
        let known = cache.look(|ledger| {
            let placed = place(ledger, conversation, asked.exchange, asked.client_thread);
            RecordedDecisions::of(ledger, conversation, &placed, asked.shadow)
        });
        LookupOutcome::Found(SessionPeek { session: scope.session, known, store_missed })
    }

    async fn session(
        &self,
        asked: &SessionLookup<'_>,
        conversation: &Conversation,
    ) -> LookupOutcome<SessionId> {
        match asked.session {
            Some(session) => LookupOutcome::Found(session.clone()),
            None => self.session_of(asked, conversation).await,
        }
    }

    /// Keeps the newest request of a session at hand, for a while, unless it was forgotten meanwhile.
    pub fn keep_latest_request(&self, opened: &OpenedSession, one: LatestRequest) {
        opened
            .cache
            .unless_forgotten(|| lock(&self.latest_requests).keep(opened.scope.clone(), one));
    }

    /// The newest request of a session, where it is at hand.
    pub fn latest_request(&self, scope: &Scope) -> Option<Arc<LatestRequest>> {
        lock(&self.latest_requests).of(scope)
    }

    /// What is kept in memory.
    pub fn kept(&self) -> KeptBytes {
        let (sessions, decisions) = {
            let caches = lock(&self.caches);
            (caches.bytes(), caches.most_decisions())
        };
        KeptBytes { sessions, decisions, latest_requests: lock(&self.latest_requests).bytes() }
    }

    /// Takes over what other processes kept of a session since it was loaded.
    ///
    /// # Errors
    /// The store's [`StoreError`]; what was known stays.
    pub async fn refresh(&self, scope: &Scope) -> Result<(), StoreError> {
        let cache = lock(&self.caches).cache(scope);
        let records = self.store.scan(scope.clone(), session_cache::FACTS).await?;
        let ledger = parsers::parse(move || session_cache::ledger(&records).0).await?;
        cache.join(&ledger);
        Ok(())
    }

    /// Sessions that hold turns, the one used last first.
    ///
    /// # Errors
    /// The store's [`StoreError`].
    pub async fn sessions(&self, page: ScopePage) -> Result<Vec<ScopeLine>, StoreError> {
        self.lookers.scopes(page).await
    }

    /// The scopes of a session id: one a tenant that uses it, whether it holds turns or only what is on its
    /// way.
    ///
    /// # Errors
    /// The store's [`StoreError`].
    pub async fn scopes_of(&self, session: &SessionId) -> Result<Vec<Scope>, StoreError> {
        let mut scopes = self.lookers.scopes_named(session.clone()).await?;
        scopes.extend(lock(&self.caches).named(session));
        scopes.sort();
        scopes.dedup();
        Ok(scopes)
    }

    /// The session of an exchange that became a turn, however long ago.
    ///
    /// # Errors
    /// The store's [`StoreError`].
    pub async fn scope_of_turn(&self, exchange: &ExchangeId) -> Result<Option<Scope>, StoreError> {
        self.lookers.holder(RecordKind::Turn, turn_key(exchange)).await
    }

    /// Looks into a session's ledger, and leaves it in the store where it is not in memory: for who
    /// looks into many.
    ///
    /// # Errors
    /// The store's [`StoreError`].
    pub async fn glance<T: Send + 'static>(
        &self,
        scope: &Scope,
        look: impl FnOnce(&Ledger) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let held = lock(&self.caches).held(scope).filter(|cache| cache.is_loaded());
        if let Some(cache) = held {
            return Ok(cache.look(look));
        }
        let records = self.lookers.scan(scope.clone(), session_cache::FACTS).await?;
        parsers::parse(move || look(&session_cache::ledger(&records).0)).await
    }

    /// Looks into a session's ledger. One that is not in memory stays in the store.
    ///
    /// # Errors
    /// The store's [`StoreError`], where it is not in memory.
    pub async fn look<T>(
        &self,
        scope: &Scope,
        look: impl FnOnce(&Ledger) -> T,
    ) -> Result<T, StoreError> {
        let held = lock(&self.caches).held(scope);
        if let Some(cache) = held {
            cache.load(&self.store, scope, &ReadBudget::new(LOOK)).await?;
            return Ok(cache.look(look));
        }
        let slow = |_| StoreError::Failed(format!("no answer within {LOOK:?}"));
        let asking = self.lookers.scan(scope.clone(), session_cache::FACTS);
        let records = tokio::time::timeout(LOOK, asking).await.map_err(slow)??;
        let ledger = parsers::parse(move || session_cache::ledger(&records).0).await?;
        Ok(look(&ledger))
    }

    /// Forgets everything known of a session; answers how many records went. What is in flight of it is not
    /// kept, here and in other processes; what its client asks from then on begins a new session.
    ///
    /// # Errors
    /// The store's [`StoreError`]; memory has forgotten all the same.
    pub async fn forget(&self, scope: &Scope) -> Result<u64, StoreError> {
        let cache = lock(&self.caches).remove(scope);
        let forgotten = match cache {
            Some(cache) => cache.forget(|| self.store.drop_scope(scope.clone())),
            None => self.store.drop_scope(scope.clone()),
        };
        // After the cache: who holds it brings nothing back.
        lock(&self.signs).forget(std::slice::from_ref(scope));
        lock(&self.latest_requests).forget(scope);
        lock(&self.pending_compactions).forget(scope);
        self.drafts.forget(scope);
        let forgotten = forgotten.await;
        self.forget_late(scope);
        forgotten
    }

    /// Who asked while the store forgot may have read what it still had: that goes, too. What was asked since then
    /// is read again.
    fn forget_late(&self, scope: &Scope) {
        let late = lock(&self.caches).remove(scope);
        if let Some(late) = late {
            drop(late.forget(|| Box::pin(std::future::ready(Ok(())))));
        }
    }

    /// The key of tenant hashes.
    ///
    /// # Errors
    /// The store's [`StoreError`].
    pub async fn tenant_key(&self) -> Result<[u8; 32], StoreError> {
        self.store.tenant_key().await
    }

    /// One small step of forgetting what is past its time or room, in store and memory. A session that
    /// a request is about stays in memory until that has ended.
    ///
    /// # Errors
    /// The store's [`StoreError`].
    pub async fn expire(&self, before: Millis, max_bytes: u64) -> Result<SweepStep, StoreError> {
        lock(&self.pending_compactions).expire();
        let gone = self.store.expire(before, max_bytes).await?;
        if !gone.scopes.is_empty() {
            lock(&self.caches).release(&gone.scopes);
            lock(&self.signs).forget(&gone.scopes);
        }
        Ok(gone)
    }

    /// Whether the store answers.
    ///
    /// # Errors
    /// The store's [`StoreError`].
    pub async fn ready(&self) -> Result<(), StoreError> {
        self.store.ready().await
    }

    /// The session of a request whose client names none: that of its longest known prefix. An answer that
    /// comes late is remembered for the next request of the conversation.
    async fn session_of(
        &self,
        asked: &SessionLookup<'_>,
        conversation: &Conversation,
    ) -> LookupOutcome<SessionId> {
        let signs = fingerprints::shown_by(conversation);
        let known = lock(&self.signs).session(asked.tenant, &signs);
        if let Some(session) = known {
            return LookupOutcome::Found(session);
        }
        let begins = conversation.held.is_none()
            && conversation.parts().all(|part| part.role != Role::Assistant);
        if begins {
            return LookupOutcome::None; // nothing was answered in it, so nothing is known of it
        }
        let own = signs.first().copied();
        let since = lock(&self.signs).look_up(asked.tenant, &signs);
        let wanted = fingerprints::asked_for(conversation, signs);
        let (store, known) = (self.store.clone(), self.signs.clone());
        let (tenant, forgotten) = (asked.tenant.clone(), lock(&known).forgotten());
        let asking = tokio::spawn(async move {
            let session = store.signed(tenant.clone(), wanted).await;
            own.into_iter().for_each(|own| lock(&known).looked_up(&tenant, own));
            let session = session?;
            if let (Some(session), Some(own)) = (&session, own) {
                let scope = Scope { tenant, session: session.clone() };
                lock(&known).add_found(&scope, own, forgotten);
            }
            Ok::<_, StoreError>(session)
        });
        match asked.reads.wait_again(since, asking).await {
            Some(Ok(Ok(Some(session)))) => LookupOutcome::Found(session),
            Some(Ok(Ok(None))) => LookupOutcome::None,
            Some(Ok(Err(_)) | Err(_)) | None => LookupOutcome::Late,
        }
    }
}

/// What an estimate can grow from: the nearest measured turn at or above the parent.
fn anchor(ledger: &Ledger, placed: &Placement) -> Option<AnchorTurn> {
    if placed.growth == Growth::Held {
        return None;
    }
    let turn = ledger.anchor_at(placed.parent.as_ref()?)?.clone();
    let sketch = ledger.sketch(&turn)?;
    Some(AnchorTurn { turn, sketch })
}

/// Most facts fit in so many bytes.
const RECORD_BYTES: usize = 2048;

fn record(fact: &Fact) -> Option<Record> {
    let (kind, key, at) = match fact {
        Fact::Turn(turn) => (RecordKind::Turn, turn_key(&turn.exchange), turn.at),
        Fact::Reasoning(reasoning) => (RecordKind::Reasoning, reasoning.after.0, reasoning.at),
        Fact::Cut(cut) => {
            (RecordKind::Cut, decision_address(cut.about.0, cut.shadow, cut.after), cut.at)
        }
        Fact::Echo(echo) => {
            (RecordKind::Echo, decision_address(echo.about.0, echo.shadow, echo.after), echo.at)
        }
        // Beside the cuts: it is kept by a hash of what it changes, as they are.
        Fact::Repair(repair) => {
            (RecordKind::Cut, decision_address(repair.about.0, false, repair.after), repair.at)
        }
        Fact::Aside(suspended) => {
            (RecordKind::Aside, xxh3_128(suspended.exchange.as_str().as_bytes()), suspended.at)
        }
        Fact::TakenBack(taken) => (RecordKind::Aside, taken.key(), taken.at),
        Fact::Summary(one) => {
            (RecordKind::Summary, decision_address(one.address().0, one.shadow, one.after), one.at)
        }
        Fact::Compact(one) => {
            (RecordKind::Compact, decision_address(one.address().0, one.shadow, one.after), one.at)
        }
        Fact::Queued(queued) => (RecordKind::Queued, xxh3_128(queued.id.as_bytes()), queued.at),
        Fact::Said(said) => (RecordKind::Said, xxh3_128(said.id.as_bytes()), said.at),
    };
    let mut value = Vec::with_capacity(RECORD_BYTES);
    serde_json::to_writer(&mut value, fact).ok()?;
    Some(Record { kind, key, value: value.into(), at })
}

/// By what the turn of an exchange is kept.
fn turn_key(exchange: &ExchangeId) -> u128 {
    xxh3_128(exchange.as_str().as_bytes())
}

/// Shadow decisions stand beside the real ones.
fn salted(about: u128, shadow: bool) -> u128 {
    if shadow { !about } else { about }
}

/// What is decided after a refusal stands beside what was decided before it.
fn decision_address(about: u128, shadow: bool, after: Option<Millis>) -> u128 {
    let about = salted(about, shadow);
    after.map_or(about, |at| about ^ xxh3_128(&at.to_le_bytes()))
}

/// A poisoned lock means that a reader panicked, not that the facts are wrong: they are only added.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
