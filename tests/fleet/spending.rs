//! Spending caps hold for the fleet: one sum, whoever spends.

use std::sync::Arc;

use plimsoll::context::caps::{
    AdditionId, Cap, CapOrigin, CapPeriod, CapSubject, Spending, SumChange, SumKey,
};
use plimsoll::store::Store;
use plimsoll::store::memory::MemoryStore;
use plimsoll::store::redis::RedisStore;
use serde_json::json;

use crate::cluster::Cluster;
use crate::fleet::{Fleet, history};
use crate::server::{Engine, LIFE, Server};

const CLIENTS: usize = 50;
/// Tokens that all clients together may use.
const TOKENS: u64 = 60_000;

fn cap(tokens: u64) -> Cap {
    Cap {
        name: "all".into(),
        origin: CapOrigin::Configuration,
        of: CapSubject::All,
        only: None,
        per: CapPeriod::Month,
        dollars: None,
        tokens: Some(tokens),
    }
}

/// One client, which calls until it is refused; returns what its calls used.
async fn spend(fleet: Arc<Fleet>, client: usize) -> Vec<u64> {
    let session = format!("{client:08}-2222-3333-4444-555555555555");
    let mut spent = Vec::new();
    for call in 0.. {
        let replica = (client + call) % fleet.replicas.len();
        let history = history(&format!("Task {client}."), call % 4);
        let (status, answer) = fleet.send(replica, &session, &history).await;
        if status == 402 {
            break;
        }
        assert_eq!(status, 200, "{answer}");
        let usage = &answer["usage"];
        let tokens = |name: &str| usage[name].as_u64().unwrap_or(0);
        spent.push(
            tokens("input_tokens")
                + tokens("output_tokens")
                + tokens("cache_creation_input_tokens")
                + tokens("cache_read_input_tokens"),
        );
    }
    spent
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn caps_hold_for_all_replicas() {
    let server = Server::start(Engine::Redis).await;
    let fleet = Fleet::with_caps(server.settings("p:"), 4, vec![cap(TOKENS)]).await;
    let mut fleet = Arc::new(fleet);
    let clients: Vec<_> =
        (0..CLIENTS).map(|client| tokio::spawn(spend(fleet.clone(), client))).collect();
    let mut calls = Vec::new();
    for client in clients {
        calls.extend(client.await.unwrap());
    }
    let total: u64 = calls.iter().sum();
    let largest = calls.iter().max().copied().unwrap();
    assert!(total >= TOKENS, "{total}");
    assert!(total <= TOKENS + CLIENTS as u64 * largest, "{total}: a call each, of {largest}");
    // Were each replica to count alone, four times as much were spent.
    assert!(total < 2 * TOKENS, "{total}");
    let keys: Vec<String> = server.ask(&["KEYS", "p:{index}:spent:all:*"]).await;
    assert_eq!(keys.len(), 1);
    let mut counted: u64 = server.ask(&["HGET", &keys[0], "tokens"]).await;
    for call in 0..40 {
        if counted >= total {
            break;
        }
        let message = json!({"role": "user", "content": format!("Once more, {call}.")});
        let (status, _) = fleet.send(call % 4, "", &[message]).await;
        assert_eq!(status, 402);
        counted = server.ask(&["HGET", &keys[0], "tokens"]).await;
    }
    // On a busy machine the server may be too late for some: those are added with the next call, here one that is refused.
    assert_eq!(counted, total, "nothing is forgotten, and nothing counts twice");
    // One that starts later knows what was spent.
    let later = Arc::get_mut(&mut fleet).unwrap();
    later.add().await;
    let message = json!({"role": "user", "content": "More."});
    let (status, _) = later.send(4, "", &[message]).await;
    assert_eq!(status, 402);
}

/// Without its server each replica counts on from what it knows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn caps_hold_without_a_server() {
    let mut server = Server::start(Engine::Redis).await;
    let fleet = Fleet::with_caps(server.settings("p:"), 1, vec![cap(2_000)]).await;
    let message = |text: &str| vec![json!({"role": "user", "content": text})];
    let (status, _) = fleet.send(0, "", &message("First.")).await;
    assert_eq!(status, 200);
    server.kill();
    for call in 0..1000 {
        let (status, _) = fleet.send(0, "", &message(&format!("{call}"))).await;
        if status == 402 {
            return;
        }
    }
    panic!("nothing stops it");
}

/// What every store that processes share does with sums.
async fn spending_is_one_sum<S: Store>(store: Arc<S>) {
    let key = |subject: &str, ends| SumKey {
        cap: "ci:tag:hour".into(),
        subject: subject.into(),
        period: 7,
        ends,
    };
    let here = key("team=ci", Some(u64::MAX / 4096));
    let there = key("team:web {x}", None);
    let spent = |dollars, tokens| Spending { dollars, tokens };
    let id = |instance, number| AdditionId { instance, number };
    let adds = (1..=20).map(|instance| {
        let sums = vec![(here.clone(), spent(0.25, 3)), (there.clone(), spent(0.0, 1))];
        let store = store.clone();
        let id = id(instance, 1);
        tokio::spawn(async move { store.change_sums(id, sums, SumChange::Add).await.unwrap() })
    });
    let mut largest = 0;
    for one in adds.collect::<Vec<_>>() {
        largest = largest.max(one.await.unwrap()[0].tokens);
    }
    assert_eq!(largest, 60, "whoever is last sees all");
    let read = async |key: &SumKey| {
        let nothing = vec![(key.clone(), Spending::default())];
        store.change_sums(id(0, 0), nothing, SumChange::Add).await.unwrap()[0]
    };
    assert_eq!(read(&here).await, spent(5.0, 60));
    assert_eq!(read(&there).await, spent(0.0, 20));
    let again = vec![(here.clone(), spent(0.25, 3))];
    store.change_sums(id(20, 1), again.clone(), SumChange::Add).await.unwrap();
    assert_eq!(read(&here).await, spent(5.0, 60), "what is added again is added once");
    store.change_sums(id(20, 2), again, SumChange::Add).await.unwrap();
    assert_eq!(read(&here).await, spent(5.25, 63), "the next one is another");
    let raise = async |least| {
        store.change_sums(id(0, 0), vec![(here.clone(), least)], SumChange::Raise).await.unwrap()[0]
    };
    assert_eq!(raise(spent(4.0, 70)).await, spent(5.25, 70));
    assert_eq!(raise(spent(6.5, 1)).await, spent(6.5, 70));
    let next = SumKey { period: 8, ..here.clone() };
    assert_eq!(read(&next).await, Spending::default(), "another period");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sums_are_common_on_all_stores() {
    spending_is_one_sum(Arc::new(MemoryStore::default())).await;
    let server = Server::start(Engine::Valkey).await;
    spending_is_one_sum(Arc::new(RedisStore::new(server.settings("p:"), LIFE))).await;
    let cluster = Cluster::start(Engine::Redis).await;
    spending_is_one_sum(Arc::new(RedisStore::new(cluster.settings("p:"), LIFE))).await;
}
