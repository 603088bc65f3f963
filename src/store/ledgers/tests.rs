use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;

use super::records::record;
use super::session_cache::SessionCache;
use super::*;
use crate::context::edited::reply_keys;
use crate::context::lineage::{Growth, Placement};
use crate::context::plan::DecisionReason;
use crate::context::policy::{DecisionMode, SummaryAuthor};
use crate::context::{
    CompactionRecord, Cut, DecisionEpoch, Fact, Outcome, PromptSection, ReasoningRecord,
    Replacement, Sketch, SketchPart, TenantId, Turn,
};
use crate::dialect::models::Family;
use crate::dialect::reading::{BodyEnd, Framing, ResponseReader};
use crate::dialect::{self, Chain, Dialect, PartKey, Usage};
use crate::store::drafts::Draft;
use crate::store::memory::MemoryStore;
use crate::store::precondition::Precondition;
use crate::store::wrapper::StoreWrapper;
use crate::store::{LogPlace, Record, SessionGain, StoreFuture, WriteOutcome};

mod caches;
mod drafts;
mod model;
#[allow(unreachable_pub, reason = "integration tests have it, too")]
#[path = "../../../tests/support/orders.rs"]
mod orders;
mod replicas;

const LONG: Duration = Duration::from_secs(20);

fn ledgers(store: &Arc<MemoryStore>) -> Ledgers {
    Ledgers::new(store.clone())
}

fn lookup(tenant: &str, session: Option<&str>, exchange: &str) -> SessionLookup<'static> {
    SessionLookup {
        tenant: leaked(tenant.into()),
        session: session.map(|session| leaked(session.into())),
        client_thread: None,
        exchange: leaked(exchange.into()),
        timeout: LONG,
        reads: budget(LONG),
        decisions: DecisionMode::Active,
        source: Default::default(),
        body: &[],
        spender: None,
    }
}

/// Leaks the value: a test process ends soon.
fn leaked<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

fn budget(whole: Duration) -> &'static ReadBudget {
    leaked(ReadBudget::new(whole))
}

/// A lookup that waits for nothing.
fn lookup_without_wait(session: Option<&str>, exchange: &str) -> SessionLookup<'static> {
    let timeout = Duration::from_millis(1);
    SessionLookup { timeout, reads: budget(timeout), ..lookup("t", session, exchange) }
}

fn conversation(messages: &str) -> Conversation {
    let body = format!(r#"{{"model":"m","max_tokens":9,"messages":[{messages}]}}"#);
    dialect::read(Dialect::Anthropic, "/v1/messages", body.as_bytes())
}

fn user(text: &str) -> String {
    format!(r#"{{"role":"user","content":"{text}"}}"#)
}

fn model(text: &str) -> String {
    format!(r#"{{"role":"assistant","content":"{text}"}}"#)
}

fn turn(opened: &OpenedSession, answer: &str) -> Fact {
    let mut reading = ResponseReader::new(Dialect::Anthropic, 200, Framing::Json, 1 << 20);
    reading.push(format!(r#"{{"id":"msg-{answer}","content":[{{"type":"text","text":"{answer}"}}],"stop_reason":"end_turn","usage":{{"input_tokens":9,"output_tokens":1}}}}"#).as_bytes());
    let reply = reading.finish(BodyEnd::Whole);
    let sketched =
        |key| SketchPart { key, tokens: 1, place: PromptSection::History, by_length: false };
    Fact::Turn(Arc::new(Turn {
        exchange: opened.exchange.clone(),
        position: opened.placed.position.clone(),
        after: reply.chain_after(opened.placed.position.chain),
        response: reply.id.clone(),
        at: 1,
        ended: 2,
        upstream: "u".into(),
        model: "m".into(),
        usage: Usage { input: Some(9), output: Some(1), ..Usage::default() },
        stop: reply.stop,
        outcome: Outcome::Complete,
        sketch: Sketch { added: vec![sketched(PartKey(1))], ..Sketch::default() },
        reply: reply.parts.iter().filter_map(|part| part.key).map(sketched).collect(),
        anchor_keys: reply_keys(&opened.placed.position, &reply),
        ..Turn::empty(Dialect::Anthropic, Family::Claude)
    }))
}

/// Opens, answers and commits a turn. Returns its scope and place.
async fn add_turn(
    ledgers: &Ledgers,
    lookup: SessionLookup<'_>,
    messages: &str,
    answer: &str,
) -> (Scope, Placement) {
    let opened = ledgers.open(lookup, &conversation(messages)).await.unwrap();
    let seen = (opened.scope.clone(), opened.placed.clone());
    let fact = turn(&opened, answer);
    ledgers.commit(opened, vec![fact]).await.unwrap();
    seen
}

#[tokio::test]
async fn sessions_survive_restart() {
    let store = Arc::new(MemoryStore::default());
    let (_, first) =
        add_turn(&ledgers(&store), lookup("t", Some("s"), "1"), &user("hi"), "A").await;
    let next = [user("hi"), model("A"), user("go")].join(",");
    let opened =
        ledgers(&store).open(lookup("t", Some("s"), "2"), &conversation(&next)).await.unwrap();
    assert_eq!(opened.placed.position.thread, first.position.thread);
    assert_eq!(opened.anchor.as_ref().unwrap().turn.exchange, "1");
    assert!(!opened.store_missed);
}

#[tokio::test]
async fn unnamed_sessions_are_found() {
    let store = Arc::new(MemoryStore::default());
    let ours = ledgers(&store);
    let (first, _) = add_turn(&ours, lookup("t", None, "1"), &user("hi"), "A").await;
    let (alike, _) = add_turn(&ours, lookup("t", None, "2"), &user("hi"), "B").await;
    assert_ne!(first, alike, "conversations with the same beginning are not the same session");
    let of_first = [user("hi"), model("A"), user("go")].join(",");
    let of_alike = [user("hi"), model("B"), user("go")].join(",");
    assert_eq!(add_turn(&ours, lookup("t", None, "3"), &of_first, "C").await.0, first);
    // Also in another process: the store has the fingerprints.
    assert_eq!(add_turn(&ledgers(&store), lookup("t", None, "4"), &of_alike, "D").await.0, alike);
}

/// A client that edits replies is found by the end of its last request, from the second turn on, and after a restart.
#[tokio::test]
async fn edited_sessions_are_found() {
    let store = Arc::new(MemoryStore::default());
    let ours = ledgers(&store);
    let (first, _) = add_turn(&ours, lookup("t", None, "1"), &user("hi"), "A").await;
    let second = [user("hi"), model("a"), user("go")].join(",");
    let (second_scope, _) = add_turn(&ours, lookup("t", None, "2"), &second, "B").await;
    assert_ne!(second_scope, first, "others begin with the same words");
    let third = [second.clone(), model("b"), user("on")].join(",");
    let (scope, placed) = add_turn(&ours, lookup("t", None, "3"), &third, "C").await;
    assert_eq!(scope, second_scope.clone());
    assert_eq!(placed.growth, Growth::Grows);
    let fourth = [third, model("c"), user("end")].join(",");
    let (scope, placed) = add_turn(&ledgers(&store), lookup("t", None, "4"), &fourth, "D").await;
    assert_eq!(scope, second_scope.clone());
    assert_eq!(placed.growth, Growth::Grows);
    let (again, _) = add_turn(&ours, lookup("t", None, "5"), &second, "E").await;
    assert_ne!(again, second_scope, "it only repeats the request");
    let (other, _) = add_turn(&ours, lookup("u", None, "6"), &fourth, "D").await;
    assert_ne!(other.session, second_scope.session);
}

/// From the first reply on if a sentence of it is left, of two with equal prompts, also after a restart.
#[tokio::test]
async fn edited_first_replies_are_found() {
    let store = Arc::new(MemoryStore::default());
    let ours = ledgers(&store);
    let answers = ["Aye. So it is.", "Nay. So it is."];
    let mut begun = Vec::new();
    for (exchange, answer) in ["1", "2"].into_iter().zip(answers) {
        begun.push(add_turn(&ours, lookup("t", None, exchange), &user("hi"), answer).await);
    }
    for (number, answer) in answers.into_iter().enumerate() {
        let next = [user("hi"), model(&format!("{answer} -- m")), user("go")].join(",");
        for ledgers in [&ours, &ledgers(&store)] {
            let exchange = format!("next-{number}");
            let opened = ledgers.open(lookup("t", None, &exchange), &conversation(&next)).await;
            let opened = opened.unwrap();
            assert_eq!(opened.scope, begun[number].0);
            assert_eq!(opened.placed.position.thread, begun[number].1.position.thread);
            assert_eq!(opened.placed.growth, Growth::Grows);
        }
    }
}

#[tokio::test]
async fn invariant_11_one_tenant_does_not_find_anothers_session() {
    let store = Arc::new(MemoryStore::default());
    let ours = ledgers(&store);
    let (first, _) = add_turn(&ours, lookup("a", None, "1"), &user("hi"), "A").await;
    let next = [user("hi"), model("A"), user("go")].join(",");
    let (other, placed) = add_turn(&ours, lookup("b", None, "2"), &next, "B").await;
    assert_ne!(other.session, first.session);
    assert_eq!(placed.growth, Growth::Begins);
    let (_, placed) =
        add_turn(&ours, lookup("b", Some(first.session.as_str()), "3"), &next, "B").await;
    assert_eq!(placed.growth, Growth::Begins, "a guessed session id opens nothing");
}

#[tokio::test]
async fn requests_wait_for_their_parent() {
    let store = Arc::new(MemoryStore::default());
    let ours = Arc::new(ledgers(&store));
    let before = ours.open(lookup("t", Some("s"), "1"), &conversation(&user("hi"))).await.unwrap();
    let fact = turn(&before, "A");
    let waiting = {
        let ours = ours.clone();
        tokio::spawn(async move {
            let next = [user("hi"), model("A"), user("go")].join(",");
            let opened =
                ours.open(lookup("t", Some("s"), "2"), &conversation(&next)).await.unwrap();
            opened.placed.growth
        })
    };
    while Arc::strong_count(&before.cache) <= 2 {
        tokio::task::yield_now().await; // until the other request holds the cache too
    }
    assert!(!waiting.is_finished());
    ours.commit(before, vec![fact]).await.unwrap();
    assert_eq!(waiting.await.unwrap(), Growth::Grows);
}

#[tokio::test]
async fn waits_are_short_and_own() {
    let store = Arc::new(MemoryStore::default());
    let ours = ledgers(&store);
    let _open = ours.open(lookup("t", Some("s"), "1"), &conversation(&user("hi"))).await.unwrap();
    // Another conversation of the session does not wait (the wait would take LONG).
    ours.open(lookup("t", Some("s"), "2"), &conversation(&user("other"))).await.unwrap();
    let next = conversation(&[user("hi"), model("A"), user("go")].join(","));
    let opened = ours.open(lookup_without_wait(Some("s"), "3"), &next).await.unwrap();
    assert_eq!(opened.placed.growth, Growth::Begins);
}

#[tokio::test]
async fn forgotten_session_is_gone() {
    let store = Arc::new(MemoryStore::default());
    let ours = ledgers(&store);
    let (scope, _) = add_turn(&ours, lookup("t", None, "1"), &user("hi"), "A").await;
    assert_eq!(ours.look(&scope, |ledger| ledger.turns().count()).await.unwrap(), 1);
    assert!(ours.forget(&scope).await.unwrap() > 0);
    assert!(ours.look(&scope, Ledger::is_empty).await.unwrap());
    let next = [user("hi"), model("A"), user("go")].join(",");
    let (again, placed) = add_turn(&ours, lookup("t", None, "2"), &next, "B").await;
    assert_ne!(again, scope);
    assert_eq!(placed.growth, Growth::Begins);
}

/// A store that answers no lookup, and takes nothing.
#[derive(Default)]
struct Dead(MemoryStore);

impl StoreWrapper for Dead {
    fn inner(&self) -> Result<&dyn Store, StoreError> {
        Ok(&self.0)
    }

    fn put(&self, _: Scope, _: Vec<Record>, _: Precondition) -> StoreFuture<'_, Vec<WriteOutcome>> {
        Box::pin(std::future::ready(Err(StoreError::Closed)))
    }

    fn append(&self, _: Scope, _: Vec<Record>, _: Precondition) -> StoreFuture<'_, ()> {
        Box::pin(std::future::ready(Err(StoreError::Closed)))
    }

    fn put_drafts(&self, _: u64, _: Vec<Draft>, _: Vec<u128>) -> StoreFuture<'_, ()> {
        Box::pin(std::future::ready(Err(StoreError::Closed)))
    }

    fn session_by_fingerprint(
        &self,
        _: TenantId,
        _: Vec<u128>,
    ) -> StoreFuture<'_, Option<SessionId>> {
        Box::pin(std::future::pending())
    }

    fn scan_since(
        &self,
        _: Scope,
        _: std::time::Instant,
        _: LogPlace,
    ) -> StoreFuture<'_, SessionGain> {
        Box::pin(std::future::pending())
    }
}

#[tokio::test]
async fn sessions_outlive_store_failures() {
    let ours = Ledgers::new(Arc::new(Dead::default()));
    let ask = |request| lookup_without_wait(Some("s"), request);
    let opened = ours.open(ask("1"), &conversation(&user("hi"))).await.unwrap();
    assert!(opened.store_missed);
    let fact = turn(&opened, "A");
    assert!(ours.commit(opened, vec![fact]).await.is_err());
    // The turn is known in memory all the same.
    let next = conversation(&[user("hi"), model("A"), user("go")].join(","));
    assert_eq!(ours.open(ask("2"), &next).await.unwrap().placed.growth, Growth::Grows);
}

/// A store whose scans wait for a permit.
struct Slow {
    inner: MemoryStore,
    go: tokio::sync::Semaphore,
    /// Whether lookups by fingerprint wait, too.
    is_held: std::sync::atomic::AtomicBool,
    scans: std::sync::atomic::AtomicUsize,
}

impl Slow {
    fn new() -> Arc<Self> {
        let go = tokio::sync::Semaphore::new(0);
        Arc::new(Self { inner: MemoryStore::default(), go, is_held: false.into(), scans: 0.into() })
    }
}

impl StoreWrapper for Slow {
    fn inner(&self) -> Result<&dyn Store, StoreError> {
        Ok(&self.inner)
    }

    // What is in memory is not read again.
    fn is_shared(&self) -> bool {
        false
    }

    fn session_by_fingerprint(
        &self,
        tenant: TenantId,
        fingerprints: Vec<u128>,
    ) -> StoreFuture<'_, Option<SessionId>> {
        Box::pin(async move {
            if self.is_held.load(Relaxed) {
                self.go.acquire().await.unwrap().forget();
            }
            self.inner.session_by_fingerprint(tenant, fingerprints).await
        })
    }

    fn scan(&self, scope: Scope, newest: usize) -> StoreFuture<'_, Vec<Record>> {
        self.scans.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        Box::pin(async move {
            self.go.acquire().await.unwrap().forget();
            self.inner.scan(scope, newest).await
        })
    }
}

#[tokio::test]
async fn late_answers_are_merged() {
    let store = Slow::new();
    let before = Ledgers::new(store.clone());
    store.go.add_permits(1);
    add_turn(&before, lookup("t", Some("s"), "1"), &user("hi"), "A").await;

    let ours = Ledgers::new(store.clone());
    let ask = |request| lookup_without_wait(Some("s"), request);
    let second = [user("hi"), model("A"), user("two")].join(",");
    let opened = ours.open(ask("2"), &conversation(&second)).await.unwrap();
    assert!(opened.store_missed);
    assert_eq!(opened.placed.growth, Growth::Begins);
    let fact = turn(&opened, "B");
    ours.commit(opened, vec![fact]).await.unwrap();
    // The result of the scan is used, although its request no longer waits.
    store.go.add_permits(1);
    let third = [user("hi"), model("A"), user("other")].join(",");
    loop {
        let opened = ours.open(lookup("t", Some("s"), "3"), &conversation(&third)).await.unwrap();
        if !opened.store_missed {
            assert_eq!(opened.placed.position.parent, Some("1".into()));
            break;
        }
        tokio::task::yield_now().await;
    }
    let known = |ledger: &Ledger| ledger.turns().map(|turn| turn.exchange.clone()).collect();
    let scope = Scope { tenant: "t".into(), session: "s".into() };
    let turns: Vec<ExchangeId> = ours.look(&scope, known).await.unwrap();
    assert_eq!(turns, ["1", "2"], "what the store knew stands before what came since");
    assert_eq!(store.scans.load(std::sync::atomic::Ordering::SeqCst), 2, "one scan a process");
}

/// If the store answers too late, a session may still be there: no new one is begun in its place.
#[tokio::test]
async fn late_look_ups_begin_no_session() {
    let store = Slow::new();
    let before = Ledgers::new(store.clone());
    let (scope, _) = add_turn(&before, lookup("t", None, "1"), &user("hi"), "A").await;

    let ours = Ledgers::new(store.clone());
    store.is_held.store(true, Relaxed);
    let second = conversation(&[user("hi"), model("A"), user("two")].join(","));
    assert!(ours.open(lookup_without_wait(None, "2"), &second).await.is_none());
    let peeked = ours.peek(lookup_without_wait(None, "2"), &second).await;
    assert!(matches!(peeked, LookupOutcome::Late));
    // This request contains no reply, so the store need not be asked.
    assert!(ours.open(lookup_without_wait(None, "3"), &conversation(&user("new"))).await.is_some());
    store.go.add_permits(99);
    loop {
        // The late result is known without another query.
        let peeked = ours.peek(lookup_without_wait(None, "2"), &second).await;
        if let LookupOutcome::Found(SessionPeek { session, .. }) = peeked {
            assert_eq!(session, scope.session);
            break;
        }
        tokio::task::yield_now().await;
    }
    let third = [user("hi"), model("A"), user("two"), model("lost"), user("three")].join(",");
    let opened = ours.open(lookup("t", None, "4"), &conversation(&third)).await.unwrap();
    assert_eq!(opened.scope, scope);
    assert_eq!(opened.placed.position.parent, Some("1".into()));
}

#[tokio::test]
async fn sessions_in_use_are_kept() {
    let store = Arc::new(MemoryStore::default());
    let ours = ledgers(&store);
    add_turn(&ours, lookup("t", Some("old"), "0"), &user("old"), "O").await;
    let open = ours.open(lookup("t", Some("s"), "1"), &conversation(&user("hi"))).await.unwrap();
    add_turn(&ours, lookup("t", Some("young"), "00"), &user("young"), "N").await;
    let gone = ours.expire(2, u64::MAX).await.unwrap();
    assert_eq!(gone.scopes, [Scope { tenant: "t".into(), session: "old".into() }]);
    assert!(lock(&ours.caches).held(&gone.scopes[0]).is_none(), "it is gone from memory, too");
    assert!(lock(&ours.caches).held(&open.scope).is_some());
    for n in 0..session_cache::SESSIONS + 10 {
        let session = format!("other-{n}");
        ours.open(lookup("t", Some(&session), &session), &conversation(&user("hi"))).await.unwrap();
    }
    // The ledger is read during the exchange: the session still has only one cache.
    let scope = open.scope.clone();
    assert!(ours.look(&scope, Ledger::is_empty).await.unwrap());
    let fact = turn(&open, "A");
    ours.commit(open, vec![fact]).await.unwrap();
    let next = conversation(&[user("hi"), model("A"), user("go")].join(","));
    let next = ours.open(lookup("t", Some("s"), "2"), &next).await.unwrap();
    assert_eq!(next.placed.growth, Growth::Grows);
}

#[tokio::test]
async fn turns_of_deleted_sessions_vanish() {
    let store = Arc::new(MemoryStore::default());
    let ours = ledgers(&store);
    let open = ours.open(lookup("t", Some("s"), "1"), &conversation(&user("hi"))).await.unwrap();
    let scope = open.scope.clone();
    ours.forget(&scope).await.unwrap();
    let fact = turn(&open, "A");
    ours.commit(open, vec![fact]).await.unwrap();
    assert!(ours.look(&scope, Ledger::is_empty).await.unwrap());
    assert_eq!(store.scan(scope, 99).await.unwrap(), []);
}

#[tokio::test]
async fn rare_content_beats_small_talk() {
    const LONG_ANSWER: &str = "The draught of this ship is three metres and a half, fully loaded.";
    let store = Arc::new(MemoryStore::default());
    let ours = ledgers(&store);
    // Two conversations that end with the same short reply.
    add_turn(&ours, lookup("t", None, "1"), &user("thanks"), "Bye").await;
    let (ship, _) =
        add_turn(&ours, lookup("t", None, "2"), &user("Monday: how deep?"), LONG_ANSWER).await;
    let talk = |day: &str| {
        [user(&format!("{day}: how deep?")), model(LONG_ANSWER), user("thanks")].join(",")
    };
    let (second, _) = add_turn(&ours, lookup("t", None, "3"), &talk("Tuesday"), "Bye").await;
    let third = [talk("Wednesday"), model("Bye"), user("again")].join(",");
    assert_eq!(second, ship);
    assert_eq!(add_turn(&ours, lookup("t", None, "4"), &third, "X").await.0, ship);
    assert_eq!(add_turn(&ledgers(&store), lookup("t", None, "5"), &third, "Y").await.0, ship);
}

/// A tenant has another id in each store, and the same one after a restart.
#[tokio::test]
async fn each_store_has_tenant_key() {
    let (here, there) = (Arc::new(MemoryStore::default()), Arc::new(MemoryStore::default()));
    let key = ledgers(&here).tenant_key().await.unwrap();
    assert_eq!(ledgers(&here).tenant_key().await.unwrap(), key);
    assert_ne!(ledgers(&there).tenant_key().await.unwrap(), key);
}

fn cut(about: u128, words: &str) -> Cut {
    Cut {
        about: PartKey(about),
        part: None,
        at: 1,
        exchange: "1".into(),
        content: Replacement::Text(words.into()),
        keep_media: false,
        was: 2,
        tokens: 1,
        why: DecisionReason::Always,
        shadow: false,
        epoch: None,
    }
}

/// Past the limit nothing new is decided for a session, and earlier decisions apply, also after a restart.
#[tokio::test]
async fn decisions_of_session_are_limited() {
    let store = Arc::new(MemoryStore::default());
    let ours = ledgers(&store);
    let opened = ours.open(lookup("t", Some("s"), "1"), &conversation("")).await.unwrap();
    let words = "w".repeat(64 << 10);
    let mut kept = 0;
    loop {
        let fact = Fact::Cut(Box::new(cut(kept as u128 + 1, &words)));
        match ours.decide(&opened, vec![fact], LONG).await {
            Ok(held) => assert_eq!(held.len(), 1),
            Err(DecisionError::TooMany) => break,
            Err(DecisionError::Store(trouble)) => panic!("{trouble}"),
        }
        kept += 1;
    }
    assert!(ours.cached().decisions >= CacheBytes::LIMIT.decisions);
    let held = |ledger: &Ledger| {
        let holds =
            |number: &usize| ledger.cut(*number as u128 + 1, DecisionMode::Active, None).is_some();
        ((0..kept + 9).filter(holds).count(), ledger.decision_bytes())
    };
    for ledgers in [ours, ledgers(&store)] {
        let (number, bytes) = ledgers.look(&opened.scope, held).await.unwrap();
        assert_eq!(number, kept);
        assert!(
            (session_cache::DECISIONS..session_cache::DECISIONS + (128 << 10)).contains(&bytes),
            "{bytes}"
        );
    }
}

/// As many as `docs/limits.md` says, the newest ones. A decision is read however old it is.
#[tokio::test]
async fn all_decisions_are_loaded() {
    const MORE: usize = 100;
    let folder = crate::store::conformance::folder();
    let store =
        Arc::new(crate::store::sqlite::SqliteStore::open(&folder.path().join("p.db")).unwrap());
    let ours = Ledgers::new(store.clone());
    let opened = ours.open(lookup("t", Some("s"), "1"), &conversation("")).await.unwrap();
    let cut = Fact::Cut(Box::new(cut(7, "w")));
    ours.decide(&opened, vec![cut], LONG).await.unwrap();
    let reasoning = |number: usize| {
        let reasoning = ReasoningRecord {
            after: Chain(number as u128),
            at: 2 + number as u64,
            prefix: Chain(0),
            model: "m".into(),
            upstream: "u".into(),
            ..ReasoningRecord::default()
        };
        record(&Fact::Reasoning(Box::new(reasoning))).unwrap()
    };
    let all: Vec<Record> = (0..session_cache::FACTS + MORE).map(reasoning).collect();
    for some in all.chunks(1000) {
        store.put_if_absent(opened.scope.clone(), some.to_vec()).await.unwrap();
    }
    let known = |ledger: &Ledger| {
        let knows = |number: &usize| ledger.reasoning(Chain(*number as u128)).is_some();
        let known: Vec<usize> = (0..session_cache::FACTS + MORE).filter(knows).collect();
        (known, ledger.cut(7, DecisionMode::Active, None).is_some())
    };
    let (read, has_cut) = Ledgers::new(store).look(&opened.scope, known).await.unwrap();
    assert!(read.into_iter().eq(MORE..session_cache::FACTS + MORE), "the newest");
    assert!(has_cut, "its decisions whole");
}

/// A refusal revokes earlier decisions on its branch. A later decision about the same place neither loses against an
/// earlier one nor hides it from other branches, also after a restart.
#[tokio::test]
async fn decisions_after_refusals_differ() {
    let store = Arc::new(MemoryStore::default());
    let scope = Scope { tenant: "t".into(), session: "s".into() };
    let decided = |words: &str, epoch: Option<DecisionEpoch>| {
        let compact = CompactionRecord {
            about: Chain(1),
            near: Vec::new(),
            is_own: true,
            at: 1,
            exchange: "1".into(),
            raw: words.into(),
            was: 2,
            tokens: 1,
            by: SummaryAuthor::Summary,
            why: DecisionReason::Threshold,
            upstream: Box::default(),
            model: Box::default(),
            spent: Usage::default(),
            dollars: None,
            took: 0,
            carries: None,
            shadow: false,
            epoch: None,
        };
        let cut = self::cut(1, words);
        let facts = [Fact::Compact(Box::new(compact)), Fact::Cut(Box::new(cut))];
        facts.map(|fact| fact.in_epoch(epoch))
    };
    let refused = Some(DecisionEpoch::of_suspension(20));
    for (words, epoch) in [("first", None), ("anew", refused), ("late", refused)] {
        for fact in decided(words, epoch) {
            let ledgers = ledgers(&store);
            ledgers.store_fact(&ledgers.handle(&scope), fact).await.unwrap();
        }
    }
    let holding = |epoch| {
        move |ledger: &Ledger| {
            let cut = ledger.cut(1, DecisionMode::Active, epoch).map(|cut| cut.content.clone());
            let summaries = ledger.compacts_holding(DecisionMode::Active, epoch);
            (cut, summaries.map(|one| one.raw.clone()).collect::<Vec<_>>())
        }
    };
    for (epoch, words) in [(None, "first"), (refused, "anew")] {
        let held = ledgers(&store).look(&scope, holding(epoch)).await.unwrap();
        let cut = Replacement::Text(words.into());
        assert_eq!(held, (Some(cut), vec![words.into()]), "{epoch:?}");
    }
}

fn shown(key: u128) -> fingerprint_keys::ShownFingerprint {
    fingerprint_keys::ShownFingerprint::new(key, SessionWitness::Prefix)
}

#[tokio::test]
async fn fingerprints_in_memory_are_bounded() {
    let mut known = SessionFingerprints::default();
    let scope = Scope { tenant: "t".into(), session: "s".into() };
    let fingerprint =
        |key| Record { kind: RecordKind::Fingerprint, key, value: Bytes::new(), at: 0, turn: None };
    let fingerprints: Vec<Record> = (0..fingerprints::IN_MEMORY as u128).map(fingerprint).collect();
    known.add(&scope, &fingerprints, 0);
    let session = |known: &mut SessionFingerprints, tenant: &str, key| {
        let found = known.session(&tenant.into(), &[shown(key)], RequestSource::default(), false);
        found.map(|found| found.session.to_string())
    };
    assert_eq!(session(&mut known, "t", 0).as_deref(), Some("s"));
    assert_eq!(known.len(), fingerprints::IN_MEMORY);
    known.add(&scope, &[fingerprint(u128::MAX)], 0);
    assert_eq!(known.len(), fingerprints::IN_MEMORY);
    assert_eq!(session(&mut known, "t", 0), None);
    assert_eq!(session(&mut known, "u", u128::MAX), None);
    known.forget(std::slice::from_ref(&scope));
    assert_eq!(known.len(), 0);
}

#[tokio::test]
async fn remembered_look_ups_are_bounded() {
    let mut known = SessionFingerprints::default();
    let (here, there): (TenantId, TenantId) = ("t".into(), "u".into());
    let first = known.begin_look_up(&here, &[shown(0)]);
    assert_eq!(
        known.begin_look_up(&here, &[shown(7), shown(0)]),
        first,
        "a request that grew from it"
    );
    assert_ne!(known.begin_look_up(&there, &[shown(0)]), first);
    for fingerprint in 3..fingerprints::LOOK_UPS as u128 {
        known.begin_look_up(&here, &[shown(fingerprint + 100)]);
    }
    assert_eq!(known.begin_look_up(&here, &[shown(0)]), first, "at the limit");
    known.begin_look_up(&here, &[shown(1)]);
    known.end_look_up(&here, 0);
    assert_ne!(known.begin_look_up(&here, &[shown(0)]), first, "the store has answered");
    assert_ne!(known.begin_look_up(&here, &[shown(7)]), first, "past the limit all went");
}

#[tokio::test]
async fn sessions_in_memory_are_bounded() {
    let store = Arc::new(MemoryStore::default());
    let ours = ledgers(&store);
    for n in 0..session_cache::SESSIONS + 10 {
        let session = format!("s{n}");
        ours.open(lookup("t", Some(&session), "1"), &conversation("")).await.unwrap();
        assert!(lock(&ours.caches).len() <= session_cache::SESSIONS);
    }
    assert!(lock(&ours.caches).len() > session_cache::SESSIONS * 3 / 4, "most are still here");
}

/// Decisions of shadow mode, and those after a refusal, are stored beside the others, with keys of their own.
#[test]
fn no_two_decisions_share_key() {
    let place = |about: u128, shadow, epoch| {
        let cut = Cut { shadow, epoch, ..cut(about, "w") };
        record(&Fact::Cut(Box::new(cut))).unwrap().key
    };
    let mut places: Vec<u128> = (0..128)
        .flat_map(|bit| {
            let about = 1 << bit;
            [(false, None), (true, None), (false, Some(20)), (true, Some(20)), (false, Some(21))]
                .map(|(shadow, at)| place(about, shadow, at.map(DecisionEpoch::of_suspension)))
        })
        .collect();
    places.sort_unstable();
    places.dedup();
    assert_eq!(places.len(), 5 * 128);
}

/// A record that cannot be read is left out, and reported once.
#[tokio::test]
async fn unreadable_records_are_reported() {
    let store = Arc::new(MemoryStore::default());
    add_turn(&ledgers(&store), lookup("t", Some("s"), "1"), &user("hi"), "A").await;
    let broken = crate::store::conformance::turn(7, "not a fact", 1);
    store
        .put_if_absent(Scope { tenant: "t".into(), session: "s".into() }, vec![broken])
        .await
        .unwrap();
    let ours = ledgers(&store);
    for (exchange, unread) in [("2", true), ("3", false)] {
        let next = conversation(&[user("hi"), model("A"), user("go")].join(","));
        let opened = ours.open(lookup("t", Some("s"), exchange), &next).await.unwrap();
        let parent = opened.placed.position.parent.is_some();
        assert_eq!(opened.unread, unread, "the rest is known");
        assert!(parent, "the rest is known");
        let fact = turn(&opened, "B");
        ours.commit(opened, vec![fact]).await.unwrap();
    }
    let other = ours.open(lookup("t", Some("u"), "4"), &conversation(&user("hi"))).await.unwrap();
    assert!(!other.unread);
}

/// A request is placed by what all processes know of its session.
#[tokio::test]
async fn requests_read_other_processes() {
    let store = Arc::new(MemoryStore::default());
    let (ours, theirs) = (ledgers(&store), ledgers(&store));
    let (scope, _) = add_turn(&ours, lookup("t", Some("s"), "1"), &user("hi"), "A").await;
    let second = [user("hi"), model("A"), user("go")].join(",");
    add_turn(&theirs, lookup("t", Some("s"), "2"), &second, "B").await;
    let third = conversation(&[second.as_str(), &model("B"), &user("on")].join(","));
    let opened = ours.open(lookup("t", Some("s"), "3"), &third).await.unwrap();
    assert_eq!(opened.placed.position.parent, Some("2".into()));
    assert!(!opened.store_missed);
    drop(opened);
    theirs.forget(&scope).await.unwrap();
    let opened = ours.open(lookup("t", Some("s"), "4"), &third).await.unwrap();
    assert_eq!(opened.placed.position.parent, None, "another process deleted it");
}

/// A session without a name is found where another process answered it last, not where this one did.
#[tokio::test]
async fn newest_fingerprints_are_asked_for() {
    let store = Arc::new(MemoryStore::default());
    let (ours, theirs) = (ledgers(&store), ledgers(&store));
    let (first, _) = add_turn(&ours, lookup("t", None, "1"), &user("hi"), "A").await;
    // An equal beginning, which another process knows as another session.
    let (other, _) = add_turn(&theirs, lookup("t", None, "2"), &user("hi"), "A").await;
    assert_ne!(first, other);
    let second = [user("hi"), model("A"), user("go")].join(",");
    let (continued, _) = add_turn(&theirs, lookup("t", None, "3"), &second, "B").await;
    assert_eq!(continued, other);
    let third = [second.as_str(), &model("B"), &user("on")].join(",");
    let (found, _) = add_turn(&ours, lookup("t", None, "4"), &third, "C").await;
    assert_eq!(found, other);
}

/// What other processes wrote for a session is shown here.
#[tokio::test]
async fn looks_read_other_processes() {
    let store = Arc::new(MemoryStore::default());
    let (ours, theirs) = (ledgers(&store), ledgers(&store));
    let (scope, _) = add_turn(&ours, lookup("t", Some("s"), "1"), &user("hi"), "A").await;
    let next = [user("hi"), model("A"), user("go")].join(",");
    add_turn(&theirs, lookup("t", Some("s"), "2"), &next, "B").await;
    let count = |ledger: &Ledger| ledger.turns().count();
    assert_eq!(ours.look(&scope, count).await.unwrap(), 2);
    ours.refresh(&scope).await.unwrap();
    assert_eq!(ours.look(&scope, count).await.unwrap(), 2, "once");
}

/// Images are made smaller only while other decisions still have room.
#[tokio::test]
async fn decisions_take_room_from_pictures() {
    let ours = ledgers(&Arc::new(MemoryStore::default()));
    let opened = ours.open(lookup("t", Some("s"), "1"), &conversation("")).await.unwrap();
    assert_eq!(opened.room_for_pictures(), session_cache::PICTURES);
    for about in 1..9 {
        let cut = Fact::Cut(Box::new(cut(about, &"w".repeat(1 << 20))));
        ours.decide(&opened, vec![cut], LONG).await.unwrap();
        let room = session_cache::PICTURES.saturating_sub(ours.cached().decisions);
        assert_eq!(opened.room_for_pictures(), room);
    }
    assert_eq!(opened.room_for_pictures(), 0);
}

#[tokio::test]
async fn ledgers_are_ready_with_store() {
    let path = std::path::Path::new("/dev/null/p.db");
    let store = crate::store::deferred_store::DeferredStore::new(path);
    let trouble = Ledgers::new(Arc::new(store)).ready().await.unwrap_err().to_string();
    assert!(trouble.contains("is not open yet"), "{trouble}");
    ledgers(&Arc::new(MemoryStore::default())).ready().await.unwrap();
}

/// A compaction that was claimed waits again unless it was carried out, or its session is gone.
#[tokio::test]
async fn dropped_compactions_wait_again() {
    let ours = Arc::new(ledgers(&Arc::new(MemoryStore::default())));
    let opened = ours.open(lookup("t", Some("s"), "1"), &conversation(&user("hi"))).await.unwrap();
    let (scope, handle) = (opened.scope.clone(), || opened.handle());
    assert!(ours.claim_compaction(handle()).is_none());
    assert!(!ours.has_pending_compaction(&scope));
    assert!(ours.request_compaction(scope.clone(), None).await.unwrap());
    assert!(ours.has_pending_compaction(&scope));
    assert!(!ours.has_focus(&scope));
    assert!(ours.request_compaction(scope.clone(), Some("the ship".into())).await.unwrap());
    assert!(ours.has_focus(&scope));
    let claimed = ours.claim_compaction(handle()).unwrap();
    assert_eq!(claimed.focus(), Some("the ship"));
    assert!(!ours.has_pending_compaction(&scope), "nobody else carries it out");
    drop(claimed);
    assert!(ours.has_focus(&scope));
    let mut claimed = ours.claim_compaction(handle()).unwrap();
    claimed.close();
    drop(claimed);
    assert!(!ours.has_pending_compaction(&scope));
    let claimed = ours.claim_new_compaction(handle(), None);
    assert_eq!(claimed.focus(), None);
    assert!(!ours.has_pending_compaction(&scope));
    drop(claimed);
    assert!(ours.has_pending_compaction(&scope));
    let claimed = ours.claim_compaction(handle()).unwrap();
    ours.forget(&scope).await.unwrap();
    drop(claimed);
    assert!(!ours.has_pending_compaction(&scope), "its session was deleted");
}

/// If nobody waits for a decision any more, it is neither stored nor known. The next decision applies.
#[tokio::test]
async fn late_decisions_are_cancelled() {
    let folder = crate::store::conformance::folder();
    let store = crate::store::sqlite::SqliteStore::open(&folder.path().join("p.db")).unwrap();
    let ours = Ledgers::new(Arc::new(store.clone()));
    let opened = ours.open(lookup("t", Some("s"), "1"), &conversation("")).await.unwrap();
    let decide = |words: &str, timeout| {
        let cut = Fact::Cut(Box::new(cut(1, words)));
        ours.decide(&opened, vec![cut], timeout)
    };
    let holder = rusqlite::Connection::open(store.path()).unwrap();
    holder.execute_batch("BEGIN IMMEDIATE").unwrap();
    let late = decide("late", Duration::from_millis(10)).await;
    assert!(matches!(late, Err(DecisionError::Store(StoreError::Failed(_)))), "{late:?}");
    holder.execute_batch("ROLLBACK").unwrap();
    let won = decide("next", LONG).await.unwrap().remove(0);
    assert!(matches!(won, Fact::Cut(cut) if cut.content == Replacement::Text("next".into())));
}

/// Another process deleted the session: an exchange that began after that is the first of a new one, and one that was
/// in flight is not stored. Nothing that was known before is known after.
#[tokio::test]
async fn deletions_elsewhere_are_noticed() {
    let store = Arc::new(MemoryStore::default());
    let (ours, theirs) = (ledgers(&store), ledgers(&store));
    let (scope, _) = add_turn(&ours, lookup("t", Some("s"), "1"), &user("hi"), "A").await;
    let known = |ledger: &Ledger| ledger.turns().map(|turn| turn.exchange.clone()).collect();
    let known = async || -> Vec<ExchangeId> { ours.look(&scope, known).await.unwrap() };
    let next = [user("hi"), model("A"), user("go")].join(",");
    let in_flight = ours.open(lookup("t", Some("s"), "2"), &conversation(&next)).await.unwrap();
    theirs.forget(&scope).await.unwrap();
    let fact = turn(&in_flight, "B");
    ours.commit(in_flight, vec![fact]).await.unwrap();
    assert!(known().await.is_empty());
    assert_eq!(store.scan(scope.clone(), 9).await.unwrap(), vec![]);
    add_turn(&ours, lookup("t", Some("s"), "3"), &user("hi"), "C").await;
    theirs.forget(&scope).await.unwrap();
    add_turn(&ours, lookup("t", Some("s"), "4"), &user("ho"), "D").await;
    assert_eq!(known().await, ["4"]);
    assert_eq!(store.scan(scope.clone(), 9).await.unwrap().len(), 1);
}
