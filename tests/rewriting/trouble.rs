//! Failures while a request is rewritten: the original is sent, and nothing is lost.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use plimsoll::config::{Mode, Tenants};
use plimsoll::context::plan::{Change, Decision};
use plimsoll::dialect::identity::ANONYMOUS;
use plimsoll::store::memory::MemoryStore;
use plimsoll::store::precondition::Precondition;
use plimsoll::store::sqlite::SqliteStore;
use plimsoll::store::wrapper::StoreWrapper;
use plimsoll::store::{
    LogPlace, Record, RecordKind, Scope, SessionGain, Store, StoreError, StoreFuture, WriteOutcome,
};
use plimsoll::telemetry::FailOpen;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::play::{Play, Scene, anthropic_reply, anthropic_request, message};
use crate::pruned::{eager, history};
use crate::support::within;

const MODEL: &str = "claude-sonnet-4-5";

/// A store that treats decisions in a special way.
struct StoreWithFault {
    inner: MemoryStore,
    fault: StoreFault,
    /// Lets it answer.
    answers: Notify,
}

#[derive(Clone, Copy)]
enum StoreFault {
    /// It fails in the middle of saving decisions.
    Fails,
    /// It never answers.
    Hangs,
    /// Another replica was first, and decided on another text.
    Loses,
    /// It saves everything and never returns what it has.
    Silent,
    /// It saves decisions at once, and answers only when it is told to.
    Late,
}

impl StoreWrapper for StoreWithFault {
    fn inner(&self) -> Result<&dyn Store, StoreError> {
        Ok(&self.inner)
    }

    fn put(
        &self,
        scope: Scope,
        records: Vec<Record>,
        only_if: Precondition,
    ) -> StoreFuture<'_, Vec<WriteOutcome>> {
        if !records.iter().any(|record| record.kind.is_decision()) {
            return self.inner.put(scope, records, only_if);
        }
        match self.fault {
            StoreFault::Fails => {
                Box::pin(async { Err(StoreError::Failed("the disk went away".to_owned())) })
            }
            StoreFault::Hangs => Box::pin(std::future::pending()),
            StoreFault::Silent => self.inner.put(scope, records, only_if),
            StoreFault::Late => Box::pin(async move {
                let kept = self.inner.put(scope, records, only_if).await;
                self.answers.notified().await;
                kept
            }),
            StoreFault::Loses => Box::pin(async move {
                let others = records.into_iter().map(|record| {
                    let text = String::from_utf8(record.value.to_vec()).unwrap();
                    let value = text.replace("Old tool result content cleared", "Cleared first");
                    Record { value: Bytes::from(value), ..record }
                });
                let others: Vec<Record> = others.collect();
                let firsts =
                    others.iter().map(|record| WriteOutcome::Existed(record.value.clone()));
                let firsts = firsts.collect();
                self.inner.put_if_absent(scope, others).await?;
                Ok(firsts)
            }),
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
        match self.fault {
            StoreFault::Silent => Box::pin(std::future::pending()),
            StoreFault::Fails | StoreFault::Hangs | StoreFault::Loses | StoreFault::Late => {
                self.inner.scan(scope, newest)
            }
        }
    }
}

async fn before(fault: StoreFault) -> Play {
    let store =
        Arc::new(StoreWithFault { inner: MemoryStore::default(), fault, answers: Notify::new() });
    Play::over(store, "/v1/messages", Mode::Active, eager()).await
}

/// Invariant 3: every edit that is sent is a saved fact.
#[tokio::test]
async fn invariant_3_what_cannot_be_saved_is_not_sent() {
    for fault in [StoreFault::Fails, StoreFault::Hangs] {
        let mut play = before(fault).await;
        let request = anthropic_request(MODEL, &history(6));
        let scene = play.exchange(&request, &anthropic_reply("m1", MODEL, json!([]))).await;
        assert_eq!(scene.bytes, request.to_string());
        assert!(scene.exchange.fail_open.contains(&FailOpen::Store));
        assert_eq!(scene.exchange.done.made.cut, 0);
    }
}

/// The writer is blocked while a decision is saved: the original is sent, and the decision is never written.
#[tokio::test]
async fn decision_whose_save_timed_out_is_void_in_store_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.db");
    let store = Arc::new(SqliteStore::open(&path).unwrap());
    let mut play = Play::over(store, "/v1/messages", Mode::Active, eager()).await;
    play.config.limits.store_ms = 200;
    play.restart().await;
    let in_the_way = rusqlite::Connection::open(&path).unwrap();
    in_the_way.execute_batch("BEGIN IMMEDIATE").unwrap();
    let request = anthropic_request(MODEL, &history(6));
    let mut client = play.send_request(&request).await;
    let mut call = play.provider.call().await;
    assert_eq!(call.message.text(), request.to_string(), "it is forwarded unchanged");
    call.answer("200 OK", &anthropic_reply("m1", MODEL, json!([])).to_string()).await;
    client.response().await;
    drop(call);
    in_the_way.execute_batch("ROLLBACK").unwrap();
    let exchange = play.server.next_exchange().await;
    let scope = Scope { tenant: exchange.tenant.clone().unwrap(), session: play.session.into() };
    let kept = async || play.store.scan(scope.clone(), 999).await.unwrap();
    // The turn is written after the decisions would have been.
    let written = async {
        while kept().await.iter().all(|it| it.kind != RecordKind::Turn) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within("the turn", written).await;
    assert!(kept().await.iter().all(|it| it.kind != RecordKind::Cut), "nothing was decided");
}

/// The decision was saved, but too late for its request: it applies from the next request on, here and in the store.
#[tokio::test]
async fn decision_that_is_saved_too_late_holds_from_next_request_on() {
    let store = Arc::new(StoreWithFault {
        inner: MemoryStore::default(),
        fault: StoreFault::Late,
        answers: Notify::new(),
    });
    let mut play = Play::over(store.clone(), "/v1/messages", Mode::Active, eager()).await;
    play.config.limits.store_ms = 100;
    play.restart().await;
    let request = anthropic_request(MODEL, &history(6));
    let scene = play.exchange(&request, &anthropic_reply("m1", MODEL, json!([]))).await;
    assert_eq!(scene.bytes, request.to_string(), "it is forwarded unchanged");
    let scope =
        Scope { tenant: scene.exchange.tenant.clone().unwrap(), session: play.session.into() };
    let kept = play.store.scan(scope.clone(), 999).await.unwrap();
    let kept = kept.iter().filter(|it| it.kind == RecordKind::Cut).count();
    assert!(kept > 0);
    store.answers.notify_one();
    let held = async {
        while play.server.ledgers.look(&scope, |it| it.cuts_holding(None).count()).await.unwrap()
            < kept
        {
            tokio::task::yield_now().await;
        }
    };
    within("what was kept to be known", held).await;
    let later = play.exchange(&request, &anthropic_reply("m1", MODEL, json!([]))).await;
    assert_eq!(later.exchange.done.made.cut as usize, kept);
}

/// The missing data may contain earlier decisions, or a suspension of the thread: nothing new is decided without it.
#[tokio::test]
async fn unread_store_decides_nothing() {
    let mut play = before(StoreFault::Silent).await;
    let request = anthropic_request(MODEL, &history(6));
    let scene = play.exchange(&request, &anthropic_reply("m1", MODEL, json!([]))).await;
    assert_eq!(scene.bytes, request.to_string());
    assert!(scene.exchange.fail_open.contains(&FailOpen::Store));
    assert!(scene.exchange.done.made.is_nothing(), "{:?}", scene.exchange.done);
}

/// A session with the maximum of decisions repeats them. That nothing new is decided is reported with its own reason.
#[tokio::test]
async fn session_full_of_decisions_repeats_them_and_says_so() {
    const MANY: u128 = (8 << 20) / (64 << 10) + 1;
    let mut play = Play::of("/v1/messages", eager()).await;
    let reply = anthropic_reply("m1", MODEL, json!([]));
    let first = play.exchange(&anthropic_request(MODEL, &history(6)), &reply).await;
    let made = first.exchange.done.made.cut;
    assert!(made > 0);
    let scope =
        Scope { tenant: first.exchange.tenant.clone().unwrap(), session: play.session.into() };
    let kept = play.store.scan(scope.clone(), 999).await.unwrap();
    let cut = kept.iter().find(|record| record.kind == RecordKind::Cut).unwrap();
    let mut value: Value = serde_json::from_slice(&cut.value).unwrap();
    let text = value.to_string().replace("Old tool result content cleared", &"w".repeat(64 << 10));
    value = serde_json::from_str(&text).unwrap();
    let others = (0..MANY).map(|number| {
        value["about"] = json!(format!("{number:032x}"));
        Record { key: number, value: value.to_string().into(), ..cut.clone() }
    });
    play.store.put_if_absent(scope, others.collect()).await.unwrap();
    play.restart().await;
    let full = play.exchange(&anthropic_request(MODEL, &history(12)), &reply).await;
    assert_eq!(full.exchange.fail_open, [FailOpen::Decisions]);
    assert_eq!(full.exchange.done.made.cut, made, "those before are repeated, and no more");
    assert_eq!(full.sent["messages"][2], first.sent["messages"][2]);
}

#[tokio::test]
async fn loser_of_store_race_sends_what_winner_decided() {
    let mut play = before(StoreFault::Loses).await;
    let request = anthropic_request(MODEL, &history(6));
    let reply = anthropic_reply("m1", MODEL, json!([]));
    let first = play.exchange(&request, &reply).await;
    assert_eq!(first.sent["messages"][2]["content"][0]["content"], "[Cleared first]");
    // This lasts, after a restart too.
    play.restart().await;
    assert_eq!(play.exchange(&request, &reply).await.bytes, first.bytes);
}

#[tokio::test]
async fn fact_that_is_not_understood_is_ignored_and_recorded() {
    let mut play = Play::of("/v1/messages", eager()).await;
    let reply = anthropic_reply("m1", MODEL, json!([]));
    play.exchange(&anthropic_request(MODEL, &history(3)), &reply).await;
    let scope = play.server.ledgers.scopes_of(&play.session.into()).await.unwrap().remove(0);
    let value = Bytes::from_static(b"{\"kind\":\"cut\",\"about\":\"nonsense\"}");
    let broken = Record { kind: RecordKind::Cut, key: 7, value, at: 1, turn: None };
    play.store.put_if_absent(scope, vec![broken]).await.unwrap();
    play.restart().await;
    let scene = play.exchange(&anthropic_request(MODEL, &history(6)), &reply).await;
    assert!(scene.exchange.fail_open.contains(&FailOpen::FactUnread));
    assert!(scene.exchange.done.made.cut > 0, "the others hold");
    let scene = play.exchange(&anthropic_request(MODEL, &history(7)), &reply).await;
    assert!(!scene.exchange.fail_open.contains(&FailOpen::FactUnread), "reported once");
}

/// A client whose calls and results do not match gets the provider's own error.
#[tokio::test]
async fn unpaired_calls_and_results_are_not_reordered_or_removed() {
    let mut play = Play::of("/v1/messages", eager()).await;
    let mut broken = history(6);
    broken.remove(3);
    broken.swap(1, 4);
    broken.push(message("assistant", json!([])));
    let request = anthropic_request(MODEL, &broken);
    let scene = play.exchange(&request, &anthropic_reply("m1", MODEL, json!([]))).await;
    let (sent, requested) = (&scene.sent["messages"], &request["messages"]);
    assert_eq!(sent.as_array().unwrap().len(), requested.as_array().unwrap().len());
    for (sent, requested) in sent.as_array().unwrap().iter().zip(requested.as_array().unwrap()) {
        assert_eq!(sent["role"], requested["role"]);
        let ids = |message: &serde_json::Value| {
            (message["content"][0]["tool_use_id"].clone(), message["content"][0]["id"].clone())
        };
        assert_eq!(ids(sent), ids(requested));
    }
}

/// A reply with reasoning, which the client drops in its next request with the credential `key`: that request, and its
/// exchange.
async fn asks_with_key(play: &mut Play, key: &'static str) -> (Value, Scene) {
    let thinking = json!({"type": "thinking", "thinking": "Mine.", "signature": "c2lnbmVk"});
    let call = json!({"type": "tool_use", "id": "toolu_01AbCdEfGh12", "name": "Read", "input": {}});
    let mut messages = vec![message("user", json!("Look."))];
    let reply = anthropic_reply("m1", MODEL, json!([thinking, call]));
    play.exchange(&anthropic_request(MODEL, &messages), &reply).await;
    messages.push(message("assistant", json!([call])));
    let result =
        json!({"type": "tool_result", "tool_use_id": "toolu_01AbCdEfGh12", "content": "."});
    messages.push(message("user", json!([result])));
    let request = anthropic_request(MODEL, &messages);
    play.key = key;
    let scene = play.exchange(&request, &reply).await;
    (request, scene)
}

fn steps(scene: &Scene) -> Vec<(Change, Decision)> {
    scene.exchange.done.steps.iter().map(|step| (step.change, step.decision)).collect()
}

/// Invariant 11: one tenant cannot reach facts of another, whatever session it names.
#[tokio::test]
async fn invariant_11_nothing_of_one_credential_reaches_another() {
    let mut play = Play::of("/v1/messages", eager()).await;
    let (request, scene) = asks_with_key(&mut play, "another").await;
    assert_eq!(scene.bytes, request.to_string());
    play.key = "k";
    let scene = play.exchange(&request, &anthropic_reply("m2", MODEL, json!([]))).await;
    assert_eq!(steps(&scene), [(Change::PutBack, Decision::New)]);
}

/// A client that renews its token in the middle of a session continues the session.
#[tokio::test]
async fn renewed_token_continues_session_if_all_are_one_tenant() {
    let mut play = Play::of("/v1/messages", eager()).await;
    play.config.tenants = Tenants::One;
    play.restart().await;
    let (_, scene) = asks_with_key(&mut play, "renewed").await;
    assert_eq!(steps(&scene), [(Change::PutBack, Decision::New)]);
    assert_eq!(scene.exchange.tenant, Some(ANONYMOUS.into()));
}

/// A body that its client signed would be refused after any change, by a status that says nothing about the change. So
/// it is forwarded unchanged.
#[tokio::test]
async fn request_that_its_client_signed_is_forwarded_unchanged() {
    let mut play = Play::of("/v1/messages", eager()).await;
    play.headers = "authorization: AWS4-HMAC-SHA256 Credential=AKIA/2026\r\n".to_owned();
    let request = anthropic_request(MODEL, &history(6));
    let scene = play.exchange(&request, &anthropic_reply("m1", MODEL, json!([]))).await;
    assert_eq!(scene.bytes, request.to_string());
    assert!(scene.exchange.done.made.is_nothing());
    assert!(scene.exchange.estimate.is_some());
    play.target = "/v1/chat/completions";
    let chat =
        json!({"model": "m", "stream": true, "messages": [{"role": "user", "content": "Hm."}]});
    assert_eq!(play.exchange(&chat, &json!({"choices": []})).await.bytes, chat.to_string());
}
