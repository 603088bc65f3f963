//! Ledgers of sessions: loaded once from the store, kept in memory, shared by all who look.
//!
//! A slow or dead store costs knowledge, never an answer: what it could not give is missing, what it
//! could not take stays in memory. The only waits are bounded by the caller's patience. Must not know
//! traffic; `now` is passed in.

mod at_hand;
mod drafts;
mod shelf;
mod signs;
mod wishes;
mod words;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_128;

use super::lessons::{Lessons, Terms};
use super::{Expired, Page, Put, Record, RecordKind, Scope, ScopeLine, Store, Trouble};
use crate::context::ledger::Ledger;
use crate::context::lineage::{Growth, Placed, place};
use crate::context::plan::Known;
use crate::context::{Fact, Millis, Sketched, Turn};
use crate::dialect::{Conversation, Role};
use at_hand::AllAtHand;
pub use at_hand::AtHand;
use drafts::Drafts;
pub use drafts::{DraftGuard, Latest};
use shelf::{Shelf, Shelves};
use signs::Signs;
pub use wishes::FOCUS_BYTES;
use wishes::Wishes;
pub use words::Room;

/// How long someone who looks in waits for a session that is not in memory.
const LOOK: Duration = Duration::from_secs(5);

/// All ledgers.
pub struct Ledgers {
    store: Arc<dyn Store>,
    /// The same store, for questions that traffic does not wait for.
    lookers: Arc<dyn Store>,
    shelves: Mutex<Shelves>,
    signs: Mutex<Signs>,
    wishes: Mutex<Wishes>,
    at_hand: Mutex<AllAtHand>,
    drafts: Arc<Drafts>,
    lessons: Lessons,
}

/// Memory for what is kept of sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptBytes {
    /// Their turns and decisions.
    pub sessions: usize,
    /// The newest request of each, with what was read of it.
    pub latest_requests: usize,
}

impl KeptBytes {
    /// The most that there may be.
    pub const LIMIT: Self = Self { sessions: shelf::BYTES, latest_requests: at_hand::BYTES };
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
    /// Whether decisions of shadow mode are wanted in place of the real ones.
    pub shadow: bool,
}

/// A request's place, held until it is dropped: later requests wait for it a little.
pub struct Opened {
    /// Whose facts it may use.
    pub scope: Scope,
    /// Its thread and parent.
    pub placed: Placed,
    /// What an estimate can grow from.
    pub anchor: Option<Anchor>,
    /// What is known of its parts.
    pub known: Known,
    /// The store did not answer: what it knows was not used.
    pub store_missed: bool,
    /// A record of the session was not understood and left out; told once.
    pub unread: bool,
    shelf: Arc<Shelf>,
    request: Box<str>,
    /// The client named the session: no sign is needed to find it again.
    named: bool,
}

/// What is known of a request that takes no place.
pub struct Peeked {
    /// Its session.
    pub session: Box<str>,
    /// What is known of its parts.
    pub known: Known,
    /// The store did not answer: what it knows was not used.
    pub store_missed: bool,
}

/// A turn whose reported usage measures its context, and what it had sent.
#[derive(Clone)]
pub struct Anchor {
    /// The turn.
    pub turn: Arc<Turn>,
    /// Its request, part by part.
    pub sketch: Vec<Sketched>,
}

impl Opened {
    /// New decisions for a request that was set `aside` then, each after what took back the one before it.
    pub fn anew(&self, facts: Vec<Fact>, aside: Option<Millis>) -> Vec<Fact> {
        let anew =
            |ledger: &Ledger| facts.into_iter().map(|fact| ledger.anew(fact, aside)).collect();
        self.shelf.look(anew)
    }

    /// What is known by now of the request's parts.
    pub fn look_again(&self, conversation: &Conversation, shadow: bool) -> Known {
        self.shelf.look(|ledger| Known::of(ledger, conversation, &self.placed, shadow))
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.shelf.settle(&self.request);
    }
}

impl Ledgers {
    /// Ledgers over `store`, with lessons by their usual terms.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self::with_lookers(store.clone(), store, Terms::default())
    }

    /// Ledgers over `store`, with lessons by these terms; who looks in asks `lookers`, the same store by
    /// another way.
    pub fn with_lookers(store: Arc<dyn Store>, lookers: Arc<dyn Store>, terms: Terms) -> Self {
        Self {
            lessons: Lessons::new(store.clone(), terms),
            store,
            lookers,
            shelves: Mutex::default(),
            signs: Mutex::default(),
            wishes: Mutex::default(),
            at_hand: Mutex::default(),
            drafts: Arc::new(Drafts::new()),
        }
    }

    /// What upstreams taught by refusing.
    pub fn lessons(&self) -> &Lessons {
        &self.lessons
    }

    /// Finds the session of a request, and its place in it.
    pub async fn open(&self, asked: Asked<'_>, conversation: &Conversation) -> Opened {
        let until = Instant::now() + asked.patience;
        let known = self.session(&asked, conversation, until).await;
        let begins = known.is_none();
        let session = known.unwrap_or_else(|| name_for(asked.request));
        let scope = Scope { tenant: asked.tenant.into(), session };
        let shelf = lock(&self.shelves).shelf(&scope);
        if begins {
            shelf.is_new();
        }
        let patience = until.saturating_duration_since(Instant::now());
        let store_missed = shelf.load(&self.store, &scope, patience).await.is_err();
        shelf.wait_for_parent(conversation, until).await;

        let (placed, anchor, known) = shelf.look(|ledger| {
            let placed = place(ledger, conversation, asked.request, asked.lane);
            let anchor = anchor(ledger, &placed);
            let known = Known::of(ledger, conversation, &placed, asked.shadow);
            (placed, anchor, known)
        });
        shelf.begin(asked.request, placed.standing.chain);
        let unread = shelf.has_unread();
        let (request, named) = (asked.request.into(), asked.session.is_some());
        Opened { scope, placed, anchor, known, store_missed, unread, shelf, request, named }
    }

    /// Looks a request up that takes no place: nothing waits for it, nothing grows from it, and what
    /// it belongs to need not exist. `None` where its session is not known.
    pub async fn peek(&self, asked: Asked<'_>, conversation: &Conversation) -> Option<Peeked> {
        let until = Instant::now() + asked.patience;
        let session = self.session(&asked, conversation, until).await?;
        let scope = Scope { tenant: asked.tenant.into(), session };
        let shelf = lock(&self.shelves).shelf(&scope);
        let patience = until.saturating_duration_since(Instant::now());
        let store_missed = shelf.load(&self.store, &scope, patience).await.is_err();
        let known = shelf.look(|ledger| {
            let placed = place(ledger, conversation, asked.request, asked.lane);
            Known::of(ledger, conversation, &placed, asked.shadow)
        });
        Some(Peeked { session: scope.session, known, store_missed })
    }

    async fn session(
        &self,
        asked: &Asked<'_>,
        conversation: &Conversation,
        until: Instant,
    ) -> Option<Box<str>> {
        match asked.session {
            Some(session) => Some(session.into()),
            None => self.session_of(asked.tenant, conversation, until).await,
        }
    }

    /// Keeps decisions before they reach the wire; answers those that hold: where another was first,
    /// its. Waits at most `patience`.
    ///
    /// # Errors
    /// The store's [`Trouble`]: nothing was decided then.
    pub async fn decide(
        &self,
        opened: &Opened,
        facts: Vec<Fact>,
        patience: Duration,
    ) -> Result<Vec<Fact>, Trouble> {
        let records: Vec<Record> = facts.iter().filter_map(record).collect();
        if records.len() != facts.len() {
            return Err(Trouble::Failed("a decision cannot be written".to_owned()));
        }
        let put = self.store.put_if_absent(opened.scope.clone(), records);
        let slow = |_| Trouble::Failed(format!("no answer within {patience:?}"));
        let puts = tokio::time::timeout(patience, put).await.map_err(slow)??;
        let won = facts.into_iter().zip(puts).filter_map(|(fact, put)| match put {
            Put::Written => Some(fact),
            // What cannot be read is left alone: nothing may stand in its place.
            Put::Existed(first) => serde_json::from_slice(&first).ok(),
        });
        let won: Vec<Fact> = won.collect();
        // Of a session that was forgotten meanwhile, nothing is decided.
        if !opened.shelf.hold(won.clone()) {
            return Err(Trouble::Closed);
        }
        // Nor again what was refused.
        let holds = |ledger: &Ledger| won.into_iter().filter(|fact| !ledger.voids(fact)).collect();
        Ok(opened.shelf.look(holds))
    }

    /// Keeps what an exchange taught: in memory at once, and durable when this is answered. The
    /// place is given up, so that requests which waited for it go on. Of a session that was forgotten
    /// meanwhile, nothing is kept.
    ///
    /// # Errors
    /// The store's [`Trouble`]; memory knows the turn all the same.
    pub async fn commit(&self, opened: Opened, facts: Vec<Fact>) -> Result<(), Trouble> {
        let scope = opened.scope.clone();
        let mut records: Vec<Record> = facts.iter().filter_map(record).collect();
        let signs: Vec<Record> = match opened.named {
            true => Vec::new(),
            false => facts.iter().flat_map(signs::left_by).collect(),
        };
        records.extend(signs.iter().cloned());
        let kept = opened.shelf.add(facts, || {
            lock(&self.signs).add(&scope, &signs);
            self.store.put_if_absent(scope, records)
        });
        drop(opened);
        match kept {
            Some(kept) => kept.await.map(drop),
            None => Ok(()),
        }
    }

    /// Keeps one fact of a session beside any exchange: in memory at once, then in the store.
    ///
    /// # Errors
    /// The store's [`Trouble`]; memory knows it all the same.
    pub async fn note(&self, scope: Scope, fact: Fact) -> Result<(), Trouble> {
        let shelf = lock(&self.shelves).shelf(&scope);
        let records = record(&fact).into_iter().collect();
        let kept = shelf.add(vec![fact], || self.store.put_if_absent(scope, records));
        match kept {
            Some(kept) => kept.await.map(drop),
            None => Ok(()),
        }
    }

    /// Keeps one fact of a session that another may have kept meanwhile: answers the one that holds.
    ///
    /// # Errors
    /// The store's [`Trouble`]: nothing is kept then.
    pub async fn settle(&self, scope: &Scope, fact: Fact) -> Result<Fact, Trouble> {
        let unwritten = || Trouble::Failed("a fact cannot be written".to_owned());
        let records = vec![record(&fact).ok_or_else(unwritten)?];
        let put = self.store.put_if_absent(scope.clone(), records).await?.into_iter().next();
        let won = match put {
            Some(Put::Existed(first)) => serde_json::from_slice(&first).map_err(|_| unwritten())?,
            Some(Put::Written) | None => fact,
        };
        let shelf = lock(&self.shelves).shelf(scope);
        shelf.hold(vec![won.clone()]).then_some(won).ok_or(Trouble::Closed)
    }

    /// Somebody wants a session compacted by its next request, with a look at `focus` above all;
    /// `false` where too many wishes wait.
    pub fn wish(&self, scope: Scope, focus: Option<Box<str>>) -> bool {
        lock(&self.wishes).add(scope, focus)
    }

    /// Keeps the newest request of a session at hand, for a while.
    pub fn keep_at_hand(&self, scope: Scope, one: AtHand) {
        lock(&self.at_hand).keep(scope, one);
    }

    /// The newest request of a session, where it is at hand.
    pub fn at_hand(&self, scope: &Scope) -> Option<Arc<AtHand>> {
        lock(&self.at_hand).of(scope)
    }

    /// What is kept in memory.
    pub fn kept(&self) -> KeptBytes {
        let sessions = lock(&self.shelves).bytes();
        KeptBytes { sessions, latest_requests: lock(&self.at_hand).bytes() }
    }

    /// Whether somebody wants a session compacted.
    pub fn is_wished(&self, scope: &Scope) -> bool {
        lock(&self.wishes).is_there(scope)
    }

    /// Whether somebody who wants it said what to look at above all.
    pub fn has_focus(&self, scope: &Scope) -> bool {
        lock(&self.wishes).has_focus(scope)
    }

    /// The wish is taken up: what to look at above all, if anything.
    pub fn take_wish(&self, scope: &Scope) -> Option<Option<Box<str>>> {
        lock(&self.wishes).take(scope)
    }

    /// Takes over what other processes kept of a session since it was loaded.
    ///
    /// # Errors
    /// The store's [`Trouble`]; what was known stays.
    pub async fn refresh(&self, scope: &Scope) -> Result<(), Trouble> {
        let shelf = lock(&self.shelves).shelf(scope);
        let records = self.store.scan(scope.clone(), shelf::FACTS).await?;
        let reading = tokio::task::spawn_blocking(move || shelf::ledger(&records).0);
        let ledger = reading.await.map_err(|error| Trouble::Failed(error.to_string()))?;
        shelf.join(&ledger);
        Ok(())
    }

    /// Claims a piece of work for `holder` until a time, unless another holds it. A claim that has run
    /// out, or is the holder's own, may be claimed again.
    ///
    /// # Errors
    /// The store's [`Trouble`]: nothing is claimed then.
    pub async fn claim(
        &self,
        what: &str,
        holder: u64,
        now: Millis,
        until: Millis,
    ) -> Result<bool, Trouble> {
        for attempt in 0..MOST_CLAIMS {
            let key = xxh3_128(format!("{what} #{attempt}").as_bytes());
            let value = format!("{holder:016x} {until}").into();
            let record = Record { kind: RecordKind::Learned, key, value, at: now };
            let put = self.store.put_if_absent(learned_scope(), vec![record]).await?;
            let Some(Put::Existed(first)) = put.into_iter().next() else { return Ok(true) };
            let first = String::from_utf8_lossy(&first);
            let (by, until) = first.split_once(' ').unwrap_or_default();
            if until.parse::<Millis>().is_ok_and(|until| until > now) {
                return Ok(by == format!("{holder:016x}"));
            }
        }
        Ok(false)
    }

    /// Sessions that hold turns, the one used last first.
    ///
    /// # Errors
    /// The store's [`Trouble`].
    pub async fn sessions(&self, page: Page) -> Result<Vec<ScopeLine>, Trouble> {
        self.lookers.scopes(page).await
    }

    /// The scopes of a session id: one a tenant that uses it.
    ///
    /// # Errors
    /// The store's [`Trouble`].
    pub async fn scopes_of(&self, session: &str) -> Result<Vec<Scope>, Trouble> {
        self.lookers.scopes_named(session.into()).await
    }

    /// The session of an exchange that became a turn, however long ago.
    ///
    /// # Errors
    /// The store's [`Trouble`].
    pub async fn scope_of_turn(&self, request: &str) -> Result<Option<Scope>, Trouble> {
        self.lookers.holder(RecordKind::Turn, turn_key(request)).await
    }

    /// Looks into a session's ledger, and leaves it in the store where it is not in memory: for who
    /// looks into many.
    ///
    /// # Errors
    /// The store's [`Trouble`].
    pub async fn glance<T: Send + 'static>(
        &self,
        scope: &Scope,
        look: impl FnOnce(&Ledger) -> T + Send + 'static,
    ) -> Result<T, Trouble> {
        let held = lock(&self.shelves).held(scope).filter(|shelf| shelf.is_loaded());
        if let Some(shelf) = held {
            return Ok(shelf.look(look));
        }
        let records = self.lookers.scan(scope.clone(), shelf::FACTS).await?;
        let looking = tokio::task::spawn_blocking(move || look(&shelf::ledger(&records).0));
        looking.await.map_err(|error| Trouble::Failed(error.to_string()))
    }

    /// Looks into a session's ledger. One that is not in memory stays in the store.
    ///
    /// # Errors
    /// The store's [`Trouble`], where it is not in memory.
    pub async fn look<T>(
        &self,
        scope: &Scope,
        look: impl FnOnce(&Ledger) -> T,
    ) -> Result<T, Trouble> {
        let held = lock(&self.shelves).held(scope);
        if let Some(shelf) = held {
            shelf.load(&self.store, scope, LOOK).await?;
            return Ok(shelf.look(look));
        }
        let slow = |_| Trouble::Failed(format!("no answer within {LOOK:?}"));
        let asking = self.lookers.scan(scope.clone(), shelf::FACTS);
        let records = tokio::time::timeout(LOOK, asking).await.map_err(slow)??;
        let reading = tokio::task::spawn_blocking(move || shelf::ledger(&records).0);
        let ledger = reading.await.map_err(|error| Trouble::Failed(error.to_string()))?;
        Ok(look(&ledger))
    }

    /// Forgets everything known of a session; answers how many records went.
    ///
    /// # Errors
    /// The store's [`Trouble`]; memory has forgotten all the same.
    pub async fn forget(&self, scope: &Scope) -> Result<u64, Trouble> {
        lock(&self.signs).forget(std::slice::from_ref(scope));
        lock(&self.at_hand).forget(scope);
        self.drafts.forget(scope);
        let shelf = lock(&self.shelves).remove(scope);
        let forgotten = match shelf {
            Some(shelf) => shelf.forget(|| self.store.drop_scope(scope.clone())),
            None => self.store.drop_scope(scope.clone()),
        };
        forgotten.await
    }

    /// The key of tenant hashes.
    ///
    /// # Errors
    /// The store's [`Trouble`].
    pub async fn tenant_key(&self) -> Result<[u8; 32], Trouble> {
        self.store.tenant_key().await
    }

    /// The newest of what was learned under a name again and again, and when.
    ///
    /// # Errors
    /// The store's [`Trouble`].
    pub async fn newest_learned(&self, what: &str) -> Result<Option<(Bytes, Millis)>, Trouble> {
        let newest = self.store.scan(Scope::series(what), 1).await?.pop();
        Ok(newest.map(|record| (record.value, record.at)))
    }

    /// Keeps what is learned again and again: the newest counts, the others go with time.
    ///
    /// # Errors
    /// The store's [`Trouble`].
    pub async fn learn_more(&self, what: &str, state: Bytes, now: Millis) -> Result<(), Trouble> {
        let record =
            Record { kind: RecordKind::Learned, key: u128::from(now), value: state, at: now };
        self.store.put_if_absent(Scope::series(what), vec![record]).await.map(drop)
    }

    /// One small step of forgetting what is past its time or room, in store and memory. A session that
    /// a request is about stays in memory until that has ended.
    ///
    /// # Errors
    /// The store's [`Trouble`].
    pub async fn expire(&self, before: Millis, max_bytes: u64) -> Result<Expired, Trouble> {
        let gone = self.store.expire(before, max_bytes).await?;
        if !gone.scopes.is_empty() {
            lock(&self.shelves).release(&gone.scopes);
            lock(&self.signs).forget(&gone.scopes);
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

    /// The session of a request whose client names none: that of its longest known prefix.
    async fn session_of(
        &self,
        tenant: &str,
        conversation: &Conversation,
        until: Instant,
    ) -> Option<Box<str>> {
        let signs = signs::shown_by(conversation);
        if let Some(session) = lock(&self.signs).session(tenant, &signs) {
            return Some(session);
        }
        let begins = conversation.held.is_none()
            && conversation.parts().all(|part| part.role != Role::Assistant);
        if begins {
            return None; // nothing was answered in it, so nothing is known of it
        }
        let signs = signs::asked_for(conversation, signs);
        let signed = self.store.signed(tenant.into(), signs);
        tokio::time::timeout_at(until, signed).await.ok()?.ok()?
    }
}

/// Most claims of one piece of work: who fails that often fails always.
const MOST_CLAIMS: usize = 32;

/// The name of a session that begins with an exchange. While a process runs such names grow with time, so
/// that a store keeps side by side what is new, and rewrites few pages for it.
fn name_for(request: &str) -> Box<str> {
    format!("line-{request}").into()
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

/// Most facts fit in so many bytes.
const RECORD_BYTES: usize = 2048;

fn record(fact: &Fact) -> Option<Record> {
    let (kind, key, at) = match fact {
        Fact::Turn(turn) => (RecordKind::Turn, turn_key(&turn.request), turn.at),
        Fact::Reasoning(reasoning) => (RecordKind::Reasoning, reasoning.after.0, reasoning.at),
        Fact::Cut(cut) => (RecordKind::Cut, anew(cut.about.0, cut.shadow, cut.after), cut.at),
        Fact::Echo(echo) => {
            (RecordKind::Echo, anew(echo.about.0, echo.shadow, echo.after), echo.at)
        }
        Fact::Aside(aside) => (RecordKind::Aside, xxh3_128(aside.request.as_bytes()), aside.at),
        Fact::TakenBack(taken) => (RecordKind::Aside, taken.key(), taken.at),
        Fact::Summary(one) => {
            (RecordKind::Summary, anew(one.address().0, one.shadow, one.after), one.at)
        }
        Fact::Compact(one) => {
            (RecordKind::Compact, anew(one.address().0, one.shadow, one.after), one.at)
        }
        Fact::Queued(queued) => (RecordKind::Queued, xxh3_128(queued.id.as_bytes()), queued.at),
        Fact::Said(said) => (RecordKind::Said, xxh3_128(said.id.as_bytes()), said.at),
    };
    let mut value = Vec::with_capacity(RECORD_BYTES);
    serde_json::to_writer(&mut value, fact).ok()?;
    Some(Record { kind, key, value: value.into(), at })
}

/// By what the turn of an exchange is kept.
fn turn_key(request: &str) -> u128 {
    xxh3_128(request.as_bytes())
}

/// Shadow decisions stand beside the real ones.
fn salted(about: u128, shadow: bool) -> u128 {
    if shadow { !about } else { about }
}

/// What is decided after a refusal stands beside what was decided before it.
fn anew(about: u128, shadow: bool, after: Option<Millis>) -> u128 {
    let about = salted(about, shadow);
    after.map_or(about, |at| about ^ xxh3_128(&at.to_le_bytes()))
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
