//! The ledgers of sessions: loaded once from the store, then kept in memory and shared.
//!
//! A slow or dead store costs knowledge, never a response: what it did not return is missing, and what it did
//! not save stays in memory. All waits have a timeout from the caller. Must not know traffic; `now` is an
//! argument.

mod beside;
mod cap_changes;
mod caps;
mod claimed_compactions;
mod content;
mod continued_end;
mod draft_writes;
mod drafts;
mod fingerprint_keys;
mod fingerprints;
mod late_replies;
mod latest_requests;
mod live_events;
mod lock;
mod opened_session;
mod parsers;
mod past_spending;
mod pending_compactions;
mod records;
mod session_cache;
mod session_note;
mod shared;
mod shared_caps;
mod summary_failures;
mod writes;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use super::calibrations::Calibrations;
use super::lessons::{LessonTerms, Lessons};
use super::recall::{LookupOutcome, ReadBudget};
use super::{RecordKind, Scope, ScopeLine, ScopePage, Store, StoreError, SweepStep};
use crate::clock::now;
use crate::context::ledger::Ledger;
use crate::context::lineage::place;
use crate::context::plan::RecordedDecisions;
use crate::context::{ExchangeId, Millis, SessionId, SessionWitness};
use crate::dialect::{Conversation, Purpose, Role};
use beside::{Opening, OpeningRequest, SessionsInUse};
pub(crate) use cap_changes::CapChangeError;
pub use caps::{CapBoard, TurnCost};
pub(crate) use claimed_compactions::ClaimedCompaction;
use continued_end::ContinuedEnd;
use drafts::Drafts;
pub(crate) use drafts::{DraftGuard, DraftProgress};
use fingerprint_keys::ShownFingerprint;
pub use fingerprints::RequestSource;
pub(crate) use fingerprints::is_unnamed;
use fingerprints::{FoundSession, SessionFingerprints};
use latest_requests::LatestRequests;
pub(crate) use latest_requests::{LatestRequest, ProviderRecount, RecountError, TokenCountFuture};
use lock::lock;
pub(crate) use opened_session::SessionPeek;
pub use opened_session::{AnchorTurn, OpenedSession, SessionHandle, SessionLookup};
use pending_compactions::PendingCompactions;
pub(crate) use pending_compactions::{FOCUS_BYTES, PENDING_TTL};
use records::turn_key;
use session_cache::{KnownSession, SessionCaches};
pub(crate) use writes::DecisionError;

/// How long a query of the admin API waits for a session that is not in memory.
const LOOK: Duration = Duration::from_secs(5);

/// The ledgers of all sessions.
pub struct Ledgers {
    store: Arc<dyn Store>,
    /// The same store, for queries that traffic does not wait for.
    admin_store: Arc<dyn Store>,
    caches: Mutex<SessionCaches>,
    fingerprints: Arc<Mutex<SessionFingerprints>>,
    in_use: Mutex<SessionsInUse>,
    pending_compactions: Mutex<PendingCompactions>,
    latest_requests: Mutex<LatestRequests>,
    drafts: Arc<Drafts>,
    lessons: Lessons,
    calibrations: Calibrations,
    caps: CapBoard,
}

/// Memory for cached session data, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CacheBytes {
    /// Turns and decisions of all sessions.
    pub sessions: usize,
    /// Decisions of the session that has most.
    pub decisions: usize,
    /// The latest request of each session, with what was parsed of it.
    pub latest_requests: usize,
}

impl CacheBytes {
    /// The limits.
    pub(crate) const LIMIT: Self = Self {
        sessions: session_cache::BYTES,
        decisions: session_cache::DECISIONS,
        latest_requests: latest_requests::BYTES,
    };
}

impl Ledgers {
    /// Ledgers over `store`, with the default terms for lessons.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self::with_admin_store(store.clone(), store, LessonTerms::default())
    }

    /// Ledgers over `store`, with these terms for lessons. The admin API uses `admin_store`, the same store with
    /// other readers.
    pub fn with_admin_store(
        store: Arc<dyn Store>,
        admin_store: Arc<dyn Store>,
        terms: LessonTerms,
    ) -> Self {
        Self {
            lessons: Lessons::new(store.clone(), terms),
            calibrations: Calibrations::new(store.clone()),
            store,
            admin_store,
            caches: Mutex::default(),
            fingerprints: Arc::default(),
            in_use: Mutex::default(),
            pending_compactions: Mutex::default(),
            latest_requests: Mutex::default(),
            drafts: Arc::new(Drafts::new()),
            caps: CapBoard::default(),
        }
    }

    /// What refusals of upstreams taught.
    pub fn lessons(&self) -> &Lessons {
        &self.lessons
    }

    /// What was learned about counting tokens.
    pub(crate) fn calibrations(&self) -> &Calibrations {
        &self.calibrations
    }

    /// Finds the session of a request, and its place there. `None` if the store did not say in time whether
    /// it has the session: the request then gets no place, and the next one will find the session.
    pub async fn open(
        &self,
        lookup: SessionLookup<'_>,
        conversation: &Conversation,
    ) -> Option<OpenedSession> {
        let began = Instant::now();
        let is_turn = conversation.purpose == Purpose::Turn;
        let opening = match lookup.session {
            None if begins(conversation) => Some(Opening::new(conversation, lookup.body)),
            _ => None,
        };
        let opening = opening.as_ref();
        let FoundSession { session, witness: found_by, continues } =
            match self.find_session(&lookup, conversation, is_turn, opening).await {
                LookupOutcome::Found(found) => found,
                LookupOutcome::None => {
                    let session = fingerprints::name_for(lookup.exchange);
                    FoundSession::new(session, SessionWitness::New)
                }
                LookupOutcome::Late => return None,
            };
        let scope = Scope { tenant: lookup.tenant.clone(), session };
        let continues =
            continues.map(|key| ContinuedEnd::new(self.fingerprints.clone(), scope.clone(), key));
        let is_new = found_by == SessionWitness::New;
        // A call that came first may turn out to belong to a conversation that begins after it.
        let is_new_call = conversation.purpose == Purpose::Side && is_new;
        if is_turn && found_by != SessionWitness::Client || is_new_call {
            let purpose = conversation.purpose;
            lock(&self.in_use).set(&scope, is_new, lookup.source, began, opening, purpose);
        }
        let fresh_sums = match self.is_shared() {
            true => self.sums_to_read(lookup.spender.as_ref(), &scope),
            false => Vec::new(),
        };
        let reading_sums = async {
            if !fresh_sums.is_empty() {
                let reading = self.read_sums(fresh_sums.clone(), now());
                // What it knew before counts if they come too late.
                let _ = tokio::time::timeout(lookup.timeout, reading).await;
            }
        };
        // In one round trip.
        let (KnownSession { cache, store_missed }, ()) =
            tokio::join!(self.known_session(&scope, is_new, lookup.reads), reading_sums);
        // The reply before may still be being stored: its turn is the parent of this request.
        cache.wait_for_parent(conversation, Instant::now() + lookup.timeout).await;
        let mut opened =
            OpenedSession::at(&lookup, conversation, scope, cache, began, store_missed);
        opened.origin.found_by = Some(found_by);
        opened.continues = continues;
        opened.fresh_sums = fresh_sums;
        Some(opened)
    }

    /// Looks up a request that takes no place: nothing waits for it or continues it, and it need not have a
    /// session.
    pub(crate) async fn peek(
        &self,
        lookup: SessionLookup<'_>,
        conversation: &Conversation,
    ) -> LookupOutcome<SessionPeek> {
        let session = match self.find_session(&lookup, conversation, false, None).await {
            LookupOutcome::Found(found) => found.session,
            LookupOutcome::None => return LookupOutcome::None,
            LookupOutcome::Late => return LookupOutcome::Late,
        };
        let scope = Scope { tenant: lookup.tenant.clone(), session };
        let KnownSession { cache, store_missed } =
            self.known_session(&scope, false, lookup.reads).await;
        let decisions = cache.look(|ledger| {
            let placed = place(ledger, conversation, lookup.exchange, lookup.client_thread);
            RecordedDecisions::from_ledger(ledger, conversation, &placed, lookup.decisions)
        });
        LookupOutcome::Found(SessionPeek { session: scope.session, known: decisions, store_missed })
    }

    /// The session of a request: the one that the client names, or else the one that its fingerprints show. `goes_on`: it
    /// is a turn, which continues the session. `opening`: what the user says in it, if nothing was replied in it yet and it
    /// takes a place.
    async fn find_session(
        &self,
        lookup: &SessionLookup<'_>,
        conversation: &Conversation,
        goes_on: bool,
        opening: Option<&Opening>,
    ) -> LookupOutcome<FoundSession> {
        match lookup.session {
            Some(session) => {
                LookupOutcome::Found(FoundSession::new(session.clone(), SessionWitness::Client))
            }
            None => self.find_by_fingerprints(lookup, conversation, goes_on, opening).await,
        }
    }

    /// Keeps the latest request of a session for a while, unless the session was deleted meanwhile.
    pub(crate) fn keep_latest_request(
        &self,
        opened: &OpenedSession,
        request: Arc<dyn LatestRequest>,
    ) {
        opened
            .cache
            .unless_forgotten(|| lock(&self.latest_requests).keep(opened.scope.clone(), request));
    }

    /// Drops the credentials of clients whose latest requests are kept for longer than `life`.
    pub(crate) fn drop_credentials(&self, life: Duration) {
        lock(&self.latest_requests).drop_credentials(life);
    }

    /// The latest request of a session, if it is still kept, and no other process got a later one on its thread.
    pub(crate) async fn latest_request(&self, scope: &Scope) -> Option<Arc<dyn LatestRequest>> {
        let latest = lock(&self.latest_requests).get(scope)?;
        if !self.is_shared() {
            return Some(latest);
        }
        let has_later = self.look(scope, |ledger| {
            // One in flight is no turn yet.
            let turn = ledger.turn(latest.exchange())?;
            let thread = &turn.position.thread;
            Some(ledger.turns().any(|other| other.position.thread == *thread && other.at > turn.at))
        });
        match has_later.await {
            Ok(Some(true)) => None,
            // What is not known now is not said.
            Ok(_) | Err(_) => Some(latest),
        }
    }

    /// The memory that is used now.
    pub(crate) fn cached(&self) -> CacheBytes {
        let (sessions, decisions) = {
            let caches = lock(&self.caches);
            (caches.bytes(), caches.most_decisions())
        };
        CacheBytes { sessions, decisions, latest_requests: lock(&self.latest_requests).bytes() }
    }

    /// The sessions that have turns, the most recently used first.
    ///
    /// # Errors
    /// The store's [`StoreError`].
    pub async fn sessions(&self, page: ScopePage) -> Result<Vec<ScopeLine>, StoreError> {
        self.admin_store.scopes(page).await
    }

    /// The scopes of a session id, one per tenant that uses it, including those with only exchanges in
    /// flight.
    ///
    /// # Errors
    /// The store's [`StoreError`].
    pub async fn scopes_of(&self, session: &SessionId) -> Result<Vec<Scope>, StoreError> {
        let mut scopes = self.admin_store.scopes_named(session.clone()).await?;
        // Exchanges in flight are only in memory.
        scopes.extend(lock(&self.caches).named(session));
        scopes.sort();
        scopes.dedup();
        Ok(scopes)
    }

    /// The session of a stored turn, by its exchange.
    ///
    /// # Errors
    /// The store's [`StoreError`].
    pub(crate) async fn scope_of_turn(
        &self,
        exchange: &ExchangeId,
    ) -> Result<Option<Scope>, StoreError> {
        self.admin_store.holder(RecordKind::Turn, turn_key(exchange)).await
    }

    /// Reads a session's ledger, for callers that read many sessions: it is not loaded into memory, `look` runs on a
    /// thread for parsing, and there is no timeout.
    ///
    /// # Errors
    /// The store's [`StoreError`].
    pub(crate) async fn look_at_one_of_many<T: Send + 'static>(
        &self,
        scope: &Scope,
        look: impl FnOnce(&Ledger) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        // The lock must not be held while `look` runs.
        let held = lock(&self.caches).held(scope);
        let loaded = held.filter(|cache| cache.is_loaded() && !self.is_shared());
        if let Some(cache) = loaded {
            // A long session takes milliseconds, which are not the async threads'.
            return parsers::parse(move || cache.look(look)).await;
        }
        let records = self.admin_store.scan(scope.clone(), session_cache::FACTS).await?;
        parsers::parse(move || look(&session_cache::ledger(&records).ledger)).await
    }

    /// Reads a session's ledger, and waits for the store at most [`LOOK`]. A session that is not in memory is read
    /// from the store, and not kept.
    ///
    /// # Errors
    /// The store's [`StoreError`], if it is not in memory.
    pub async fn look<T>(
        &self,
        scope: &Scope,
        look: impl FnOnce(&Ledger) -> T,
    ) -> Result<T, StoreError> {
        let cached = lock(&self.caches).held(scope);
        if let Some(cache) = cached {
            // What is known here is shown even if the others' cannot be read now.
            let _ = tokio::time::timeout(LOOK, self.refresh(scope)).await;
            cache.load(&self.store, scope, &ReadBudget::new(LOOK)).await?;
            return Ok(cache.look(look));
        }
        let scan = self.admin_store.scan(scope.clone(), session_cache::FACTS);
        let records = tokio::time::timeout(LOOK, scan).await.map_err(|_| no_answer(LOOK))??;
        let ledger = parsers::parse(move || session_cache::ledger(&records).ledger).await?;
        Ok(look(&ledger))
    }

    /// Deletes everything known about a session; returns how many records were deleted. Exchanges in flight
    /// are not saved, here and in other processes; what its client sends from then on begins a new session.
    ///
    /// # Errors
    /// The store's [`StoreError`]; memory has forgotten it all the same.
    pub async fn forget(&self, scope: &Scope) -> Result<u64, StoreError> {
        let cache = lock(&self.caches).remove(scope);
        let forgotten = match cache {
            Some(cache) => cache.forget(|| self.store.drop_scope(scope.clone())),
            None => self.store.drop_scope(scope.clone()),
        };
        // After the cache was marked, so that users of the cache bring nothing back.
        lock(&self.fingerprints).forget(std::slice::from_ref(scope));
        lock(&self.in_use).forget(std::slice::from_ref(scope));
        lock(&self.latest_requests).forget(scope);
        lock(&self.pending_compactions).forget(scope);
        self.drafts.forget(scope);
        let forgotten = forgotten.await;
        self.forget_late(scope);
        forgotten
    }

    fn forget_late(&self, scope: &Scope) {
        // Requests during the deletion may have loaded old data, which is removed, too. Later ones
        // read from the store again.
        let late = lock(&self.caches).remove(scope);
        if let Some(late) = late {
            drop(late.forget(|| Box::pin(std::future::ready(Ok(())))));
        }
    }

    /// The key for the hashes of credentials.
    ///
    /// # Errors
    /// The store's [`StoreError`].
    pub(crate) async fn tenant_key(&self) -> Result<[u8; 32], StoreError> {
        self.store.tenant_key().await
    }

    /// Deletes a small part of what is too old or too large, in store and memory. A session with requests in
    /// flight stays in memory until they end.
    ///
    /// # Errors
    /// The store's [`StoreError`].
    pub(crate) async fn expire(
        &self,
        before: Millis,
        max_bytes: u64,
    ) -> Result<SweepStep, StoreError> {
        self.expire_compactions().await;
        let expired = self.store.expire(before, max_bytes).await?;
        if !expired.scopes.is_empty() {
            lock(&self.caches).release(&expired.scopes);
            lock(&self.fingerprints).forget(&expired.scopes);
            lock(&self.in_use).forget(&expired.scopes);
        }
        Ok(expired)
    }

    /// Whether the store answers.
    ///
    /// # Errors
    /// The store's [`StoreError`].
    pub(crate) async fn ready(&self) -> Result<(), StoreError> {
        self.store.ready().await
    }

    async fn find_by_fingerprints(
        &self,
        lookup: &SessionLookup<'_>,
        conversation: &Conversation,
        goes_on: bool,
        opening: Option<&Opening>,
    ) -> LookupOutcome<FoundSession> {
        // The longest known prefix decides: shorter ones belong to more conversations.
        let SessionLookup { tenant, source, client_thread, .. } = *lookup;
        let near = fingerprint_keys::shown_by_end(conversation);
        let near = fingerprint_keys::of_client_thread(near, client_thread);
        if !self.is_shared()
            && let Some(session) = lock(&self.fingerprints).session(tenant, &near, source, goes_on)
        {
            return LookupOutcome::Found(session);
        }
        // Without a reply it shows nothing else.
        let is_beginning = begins(conversation);
        let fingerprints = match is_beginning {
            true => near,
            false => {
                let plain_fingerprints = fingerprint_keys::shown_by(conversation);
                fingerprint_keys::of_client_thread(plain_fingerprints, client_thread)
            }
        };
        if self.is_shared() {
            // Another process may have answered since: what is known here may be of an equal conversation.
            let newer = lock(&self.fingerprints).newer_than_known(tenant, &fingerprints);
            if !newer.is_empty()
                && let LookupOutcome::Found(session) = self.ask_store(lookup, &newer).await
            {
                return LookupOutcome::Found(session);
            }
        }
        // These were looked for above, if no other process could have left them.
        if (self.is_shared() || !is_beginning)
            && let Some(session) =
                lock(&self.fingerprints).session(tenant, &fingerprints, source, goes_on)
        {
            return LookupOutcome::Found(session);
        }
        if is_beginning {
            // It has no reply of the model, so the store knows nothing about it.
            let Some(opening) = opening else { return LookupOutcome::None };
            let request = OpeningRequest { tenant, source, at: Instant::now(), opening };
            let mut in_use = lock(&self.in_use);
            let found = match conversation.purpose {
                Purpose::Side | Purpose::Compaction => in_use.find_conversation(&request),
                Purpose::Turn => {
                    in_use.find_call(&request).map(|session| (session, SessionWitness::Quote))
                }
                _ => None,
            };
            return match found {
                Some((session, witness)) => {
                    LookupOutcome::Found(FoundSession::new(session, witness))
                }
                None => LookupOutcome::None,
            };
        }
        self.ask_store(lookup, &fingerprints).await
    }

    /// Asks the store for the session of the first known one of these fingerprints.
    async fn ask_store(
        &self,
        lookup: &SessionLookup<'_>,
        fingerprints: &[ShownFingerprint],
    ) -> LookupOutcome<FoundSession> {
        let request_key = fingerprints.first().map(|fingerprint| fingerprint.key);
        let since = lock(&self.fingerprints).begin_look_up(lookup.tenant, fingerprints);
        let wanted = fingerprint_keys::to_look_up(fingerprints);
        let store = self.store.clone();
        let cached = self.fingerprints.clone();
        let tenant = lookup.tenant.clone();
        let forgotten = lock(&cached).forgotten();
        // Signatures of a conversation that was rewound come again in another session.
        let lasting = fingerprints.iter().find(|shown| shown.witness != SessionWitness::Signature);
        let lasting = lasting.map(|shown| shown.key);
        // A task of its own: a late answer serves the next request, though this one has gone on.
        let lookup_task = tokio::spawn(async move {
            let answer = store.session_by_fingerprint(tenant.clone(), wanted).await;
            let Some(key) = request_key else { return answer };
            lock(&cached).end_look_up(&tenant, key);
            let session = answer?;
            if let (Some(session), Some(key)) = (&session, lasting) {
                let scope = Scope { tenant, session: session.clone() };
                lock(&cached).add_found(&scope, key, forgotten);
            }
            Ok(session)
        });
        match lookup.reads.wait_once_more(since, lookup_task).await {
            Some(Ok(Ok(Some(session)))) => {
                LookupOutcome::Found(FoundSession::new(session, SessionWitness::Stored))
            }
            Some(Ok(Ok(None))) => LookupOutcome::None,
            Some(Ok(Err(_)) | Err(_)) | None => LookupOutcome::Late,
        }
    }
}

/// Whether a conversation has no reply of the model.
fn begins(conversation: &Conversation) -> bool {
    conversation.held.is_none() && conversation.parts().all(|part| part.role != Role::Assistant)
}

fn no_answer(timeout: Duration) -> StoreError {
    StoreError::Failed(format!("no answer within {timeout:?}"))
}

#[cfg(test)]
mod tests;
