//! What is learned from an exchange is stored before its end is seen, and a failing store never costs a reply.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use hyper_util::client::proxy::matcher::Matcher;
use plimsoll::context::{Outcome, Turn};
use plimsoll::dialect::Purpose;
use plimsoll::store::memory::MemoryStore;
use plimsoll::store::precondition::Precondition;
use plimsoll::store::wrapper::StoreWrapper;
use plimsoll::store::{
    LogPlace, Record, Scope, SessionGain, Store, StoreError, StoreFuture, WriteOutcome,
};
use plimsoll::telemetry::FailOpen;
use tokio::sync::Notify;

use crate::support::http1::{Call, Provider, Wire};
use crate::support::server::{TestServer, config};
use crate::support::{wire, within};

async fn ask(client: &mut Wire, body: &str) {
    client
        .send(format!(
            "POST /v1/messages HTTP/1.1\r\nhost: localhost\r\nx-api-key: k\r\nx-claude-code-session-id: \
             11111111-2222-3333-4444-555555555555\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        ))
        .await;
}

const SESSION: &str = "11111111-2222-3333-4444-555555555555";
const FIRST: &str = r#"{"model":"claude-sonnet-4-5","max_tokens":64,"messages":[{"role":"user","content":"Say hello."}]}"#;
const SECOND: &str = r#"{"model":"claude-sonnet-4-5","max_tokens":64,"messages":[{"role":"user","content":"Say hello."},{"role":"assistant","content":"Hello."},{"role":"user","content":"Again."}]}"#;
const REPLY: &str = r#"{"id":"msg_1","type":"message","role":"assistant","model":"claude-sonnet-4-5","content":[{"type":"thinking","thinking":"Hm.","signature":"c2ln"},{"type":"text","text":"Hello."}],"stop_reason":"end_turn","usage":{"input_tokens":11,"output_tokens":9}}"#;

/// The turns of the only session, read from the store as after a restart.
async fn kept(server: &TestServer, store: Arc<dyn Store>) -> Vec<Turn> {
    let fresh = plimsoll::store::ledgers::Ledgers::new(store);
    let scopes = server.ledgers.scopes_of(&SESSION.into()).await.unwrap();
    let Some(scope) = scopes.first() else { return Vec::new() };
    let copied = |ledger: &plimsoll::context::ledger::Ledger| {
        ledger.turns().map(|turn| Turn::clone(turn)).collect()
    };
    fresh.look(scope, copied).await.unwrap()
}

#[tokio::test]
async fn conversation_is_one_thread() {
    let provider = Provider::start().await;
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let matcher = Matcher::builder().build();
    let mut server = TestServer::over(store.clone(), config(&provider.base()), matcher).await;
    let mut client = Wire::connect(server.address).await;
    ask(&mut client, FIRST).await;
    let mut call = provider.call().await;
    call.answer("200 OK", REPLY).await;
    client.response().await;
    // The client has seen the end: the turn is already in the store.
    let turns = kept(&server, store.clone()).await;
    let [first] = turns.as_slice() else { panic!("{turns:?}") };
    assert_eq!(first.usage.input, Some(11));
    assert_eq!(first.usage.output, Some(9));
    assert_eq!(first.response.as_deref(), Some("msg_1"));
    assert_eq!(first.outcome, Outcome::Complete);
    assert_eq!(&*first.upstream, "up");
    assert_eq!(&*first.model, "claude-sonnet-4-5");
    assert_eq!(first.purpose, Purpose::Turn);
    assert_eq!(first.window, 200_000);
    assert_eq!(first.reserve, 16_000);
    let exchange = server.next_exchange().await;
    assert_eq!(exchange.id, first.exchange);
    assert_eq!(exchange.window, Some(200_000));
    assert_eq!(exchange.estimate, first.estimate);
    assert!(exchange.estimate.is_some());
    let reasoning = server
        .ledgers
        .look(&server.ledgers.scopes_of(&SESSION.into()).await.unwrap()[0], |ledger| {
            ledger.reasoning(first.after).cloned()
        })
        .await
        .unwrap()
        .expect("the reasoning of the reply");
    assert_eq!(reasoning.blocks.len(), 1);
    assert_eq!(reasoning.blocks[0].before, 0);
    assert!(reasoning.blocks[0].raw.contains("\"signature\":\"c2ln\""), "{reasoning:?}");

    ask(&mut client, SECOND).await;
    let mut call = call.wire.request().await;
    call.answer("200 OK", &REPLY.replace("msg_1", "msg_2")).await;
    client.response().await;
    let turns = kept(&server, store.clone()).await;
    let [first, second] = turns.as_slice() else { panic!("{turns:?}") };
    assert_eq!(second.position.parent.as_ref(), Some(&first.exchange));
    assert_eq!(second.position.thread, first.position.thread);
    let exchange = server.next_exchange().await;
    assert_eq!(exchange.thread.as_ref(), Some(&first.position.thread));
    assert_eq!(exchange.session, Some(SESSION.into()));
    assert_eq!(exchange.tenant.as_ref().map(|tenant| tenant.as_str().len()), Some(16));

    // The first call teaches the cost of its head; the second one has more content and the same reported input.
    let metrics = server.telemetry.render();
    let lessons = r#"plimsoll_calibration_lessons{model="claude-sonnet-4-5",upstream="up"} "#;
    let lessons = metrics.lines().find_map(|line| line.strip_prefix(lessons)?.parse::<f64>().ok());
    assert!(lessons >= Some(1.0), "{lessons:?}");

    // A refusal is not a turn, and a token count is not either.
    ask(&mut client, SECOND).await;
    let mut call = call.wire.request().await;
    call.answer("529 Overloaded", r#"{"type":"error","error":{"type":"overloaded_error"}}"#).await;
    client.response().await;
    assert_eq!(server.next_exchange().await.outcome, Outcome::Refused);
    assert_eq!(kept(&server, store).await.len(), 2);
}

#[tokio::test]
async fn partial_reply_is_turn_too() {
    let provider = Provider::start().await;
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let matcher = Matcher::builder().build();
    let mut server = TestServer::over(store.clone(), config(&provider.base()), matcher).await;
    let mut client = Wire::connect(server.address).await;
    ask(&mut client, wire::anthropic().request).await;
    let mut call = provider.call().await;
    call.begin_events().await;
    client.head().await;
    for event in &wire::anthropic().events[..5] {
        call.chunk(event).await;
        client.chunk().await;
    }
    drop(client);
    call.wire.gone().await;
    assert_eq!(server.next_exchange().await.outcome, Outcome::ClientLeft);
    server.stop();
    // A drain waits for turns that are being stored.
    let ledgers = server.ledgers.clone();
    server.drained().await;
    let scope = &ledgers.scopes_of(&SESSION.into()).await.unwrap()[0];
    let turn = ledgers.look(scope, |ledger| ledger.turns().next().cloned()).await.unwrap().unwrap();
    assert_eq!(turn.outcome, Outcome::ClientLeft);
    assert!(turn.usage.lower_bound);
}

/// A store that fails in one way or another.
struct Troubled {
    inner: MemoryStore,
    trouble: How,
    reached: Arc<Notify>,
    release: Arc<Notify>,
    held: AtomicBool,
}

#[derive(Clone, Copy, PartialEq)]
enum How {
    /// Every answer is an error.
    Fails,
    /// Loading a session panics.
    PanicsLoading,
    /// Writing panics.
    PanicsWriting,
    /// Loading a session waits until it is released.
    HangsLoading,
    /// Writing waits until it is released.
    HangsWriting,
}

impl Troubled {
    fn new(trouble: How) -> Arc<Self> {
        Arc::new(Self {
            inner: MemoryStore::default(),
            trouble,
            reached: Arc::default(),
            release: Arc::default(),
            held: AtomicBool::new(false),
        })
    }
}

fn failed<'a, T: Send + 'a>() -> StoreFuture<'a, T> {
    Box::pin(std::future::ready(Err(StoreError::Failed("by the script".into()))))
}

impl StoreWrapper for Troubled {
    fn inner(&self) -> Result<&dyn Store, StoreError> {
        Ok(&self.inner)
    }

    fn put(
        &self,
        scope: Scope,
        records: Vec<Record>,
        only_if: Precondition,
    ) -> StoreFuture<'_, Vec<WriteOutcome>> {
        match self.trouble {
            How::Fails => failed(),
            How::PanicsWriting => panic!("writing, by the script"),
            How::HangsWriting => Box::pin(async move {
                self.reached.notify_one();
                self.release.notified().await;
                self.held.store(true, Ordering::SeqCst);
                self.inner.put(scope, records, only_if).await
            }),
            How::PanicsLoading | How::HangsLoading => self.inner.put(scope, records, only_if),
        }
    }

    fn append(
        &self,
        scope: Scope,
        records: Vec<Record>,
        only_if: Precondition,
    ) -> StoreFuture<'_, ()> {
        let put = StoreWrapper::put(self, scope, records, only_if);
        Box::pin(async move { put.await.map(drop) })
    }

    fn scan_since(
        &self,
        scope: Scope,
        _: Instant,
        place: LogPlace,
    ) -> StoreFuture<'_, SessionGain> {
        let scan = StoreWrapper::scan(self, scope, usize::MAX);
        Box::pin(async move {
            Ok(SessionGain { place, records: scan.await?, ..SessionGain::default() })
        })
    }

    fn scan(&self, scope: Scope, newest: usize) -> StoreFuture<'_, Vec<Record>> {
        match self.trouble {
            How::Fails => failed(),
            How::PanicsLoading => panic!("loading, by the script"),
            How::HangsLoading => Box::pin(async {
                self.release.notified().await;
                Ok(Vec::new())
            }),
            How::PanicsWriting | How::HangsWriting => self.inner.scan(scope, newest),
        }
    }
}

async fn answered(provider: &Provider, server: &TestServer) -> (Wire, Call) {
    let mut client = Wire::connect(server.address).await;
    ask(&mut client, FIRST).await;
    let mut call = provider.call().await;
    assert_eq!(call.message.text(), FIRST);
    call.answer("200 OK", REPLY).await;
    (client, call)
}

/// Promise 2: whatever fails inside, the client gets what it would get without the proxy.
#[tokio::test]
async fn failing_store_never_changes_reply() {
    for (trouble, aside) in [
        (How::Fails, FailOpen::Store),
        (How::PanicsLoading, FailOpen::Store),
        (How::PanicsWriting, FailOpen::Panicked),
        (How::HangsLoading, FailOpen::Store),
        (How::HangsWriting, FailOpen::CommitLate),
    ] {
        let provider = Provider::start().await;
        let store = Troubled::new(trouble);
        let matcher = Matcher::builder().build();
        let mut server = TestServer::over(store.clone(), config(&provider.base()), matcher).await;
        let (mut client, _call) = answered(&provider, &server).await;
        let response = client.response().await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.text(), REPLY);
        let exchange = server.next_exchange().await;
        assert!(exchange.fail_open.contains(&aside), "{:?} for {aside:?}", exchange.fail_open);
        assert_eq!(exchange.outcome, Outcome::Complete);
        assert_eq!(exchange.usage.input, Some(11));
        store.release.notify_one();
    }
}

/// The turn of a client that left is not waited for, but its failure is recorded.
#[tokio::test]
async fn failed_turn_write_is_recorded_after_client_left() {
    for (trouble, aside) in
        [(How::PanicsWriting, FailOpen::Panicked), (How::Fails, FailOpen::Store)]
    {
        let provider = Provider::start().await;
        let store = Troubled::new(trouble);
        let matcher = Matcher::builder().build();
        let mut server = TestServer::over(store, config(&provider.base()), matcher).await;
        let script = wire::anthropic();
        let mut client = Wire::connect(server.address).await;
        ask(&mut client, script.request).await;
        let mut call = provider.call().await;
        call.begin_events().await;
        client.head().await;
        call.chunk(script.events[0]).await;
        client.chunk().await;
        drop(client);
        let exchange = server.next_exchange().await;
        assert_eq!(exchange.outcome, Outcome::ClientLeft);
        assert!(exchange.fail_open.contains(&aside), "{:?}", exchange.fail_open);
    }
}

/// Promise 8: the end of a reply is not seen before its turn is stored.
#[tokio::test]
async fn end_of_reply_waits_for_store() {
    let provider = Provider::start().await;
    let store = Troubled::new(How::HangsWriting);
    let mut config = config(&provider.base());
    config.limits.commit_ms = 60_000;
    let server = TestServer::over(store.clone(), config, Matcher::builder().build()).await;
    let script = wire::anthropic();
    let mut client = Wire::connect(server.address).await;
    ask(&mut client, script.request).await;
    let mut call = provider.call().await;
    call.begin_events().await;
    client.head().await;
    let (last, before) = script.events.split_last().unwrap();
    for event in before {
        call.chunk(event).await;
        assert_eq!(client.chunk().await, event.as_bytes());
    }
    call.chunk(last).await;
    within("the write", store.reached.notified()).await;
    tokio::select! {
        biased;
        early = client.chunk() => panic!("left before its turn was kept: {early:?}"),
        () = async { store.release.notify_one() } => {}
    }
    assert_eq!(client.chunk().await, last.as_bytes());
    assert!(store.held.load(Ordering::SeqCst));
}
