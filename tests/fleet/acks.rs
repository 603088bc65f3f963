//! What `store.ack` promises: what a write survives once it is acknowledged.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use plimsoll::store::redis::{RedisServer, RedisStore};
use plimsoll::store::{Record, RecordKind, Scope, Store, StoreError};

use crate::cluster::{Cluster, until};
use crate::sentinel::Watched;
use crate::server::{Engine, LIFE, Server};

fn scope(session: &str) -> Scope {
    Scope { tenant: "t".into(), session: session.into() }
}

fn turn(key: u128) -> Record {
    Record { kind: RecordKind::Turn, key, value: "a".into(), at: 10, turn: None }
}

async fn pair() -> (Server, Server) {
    let primary = Server::start(Engine::Redis).await;
    let port = primary.port.to_string();
    let options = ["--replicaof", "127.0.0.1", &port, "--repl-diskless-sync-delay", "0"];
    let replica = Server::with_options(Engine::Redis, &options).await;
    until("it follows", async || {
        replica.ask::<String>(&["INFO", "replication"]).await.contains("link_status:up")
    })
    .await;
    (primary, replica)
}

#[tokio::test]
async fn replicas_have_acknowledged_writes() {
    let (mut primary, replica) = pair().await;
    let settings = RedisServer { acks: 1, ..primary.settings("p:") };
    let store = RedisStore::new(settings, LIFE);
    for number in 0..200 {
        store.put_if_absent(scope("s"), vec![turn(number)]).await.unwrap();
        let turns: usize = replica.ask(&["HLEN", "p:{t:s}:facts"]).await;
        assert_eq!(turns as u128, number + 1, "it is there once it is acknowledged");
    }
    primary.kill();
    let _: String = replica.ask(&["REPLICAOF", "NO", "ONE"]).await;
    let promoted = RedisStore::new(replica.settings("p:"), LIFE);
    assert_eq!(promoted.scan(scope("s"), 999).await.unwrap().len(), 200);
}

/// Without its replica nothing is acknowledged, and reads do not wait for it.
#[tokio::test]
async fn missing_replicas_are_reported() {
    let (primary, replica) = pair().await;
    let settings = RedisServer { acks: 1, ..primary.settings("p:") };
    let store = RedisStore::new(settings, LIFE);
    store.put_if_absent(scope("s"), vec![turn(1)]).await.unwrap();
    replica.freeze();
    let writing = store.put_if_absent(scope("s"), vec![turn(2)]);
    let reading = async {
        let began = Instant::now();
        for _ in 0..20 {
            store.scan(scope("s"), 9).await.unwrap();
        }
        began.elapsed()
    };
    let (written, reading) = tokio::join!(writing, reading);
    let Err(StoreError::Failed(text)) = written else { panic!("{written:?}") };
    assert!(text.contains("0 of the 1 replicas"), "{text}");
    assert!(reading < Duration::from_millis(400), "{reading:?}");
    let alone = RedisStore::new(primary.settings("p:"), LIFE);
    alone.put_if_absent(scope("s"), vec![turn(3)]).await.unwrap();
    replica.thaw();
    until("it writes again", async || store.put_if_absent(scope("s"), vec![turn(4)]).await.is_ok())
        .await;
}

/// Writes from several tasks while `disturb` runs; returns how many writes were acknowledged, and how many of these are
/// lost afterwards.
async fn lost(settings: RedisServer, disturb: impl Future<Output = ()>) -> (usize, usize) {
    let store = RedisStore::new(RedisServer { acks: 1, ..settings }, LIFE);
    let stop = Arc::new(AtomicBool::new(false));
    let writers = (0..16).map(|writer| {
        let (store, stop) = (store.clone(), stop.clone());
        tokio::spawn(async move {
            let mut acknowledged = Vec::new();
            for number in 0.. {
                let scope = scope(&format!("{writer}-{}", number / 20));
                if store.put_if_absent(scope.clone(), vec![turn(number)]).await.is_ok() {
                    acknowledged.push((scope, number));
                }
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            acknowledged
        })
    });
    let writers: Vec<_> = writers.collect();
    tokio::time::sleep(Duration::from_millis(300)).await;
    disturb.await;
    until("writes are acknowledged again", async || {
        store.put_if_absent(scope("after"), vec![turn(1)]).await.is_ok()
    })
    .await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    stop.store(true, Ordering::Relaxed);
    // What reads may have a connection to a server that is gone.
    until("it is read again", async || {
        store.get(scope("after"), RecordKind::Turn, 1).await.is_ok()
    })
    .await;
    let mut acknowledged = Vec::new();
    for writer in writers {
        acknowledged.extend(writer.await.unwrap());
    }
    let mut missing = 0;
    for (scope, key) in &acknowledged {
        let mut kept = Ok(None);
        // On a busy machine one of many reads may be late.
        until("each is read", async || {
            kept = store.get(scope.clone(), RecordKind::Turn, *key).await;
            kept.is_ok()
        })
        .await;
        missing += usize::from(kept.unwrap().is_none());
    }
    (acknowledged.len(), missing)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_keeps_acknowledged_writes() {
    let mut cluster = Cluster::start(Engine::Valkey).await;
    let settings = cluster.settings("p:");
    let (acknowledged, missing) = lost(settings, async {
        cluster.nodes[1].kill();
        cluster.is_promoted(4).await;
        cluster.nodes[1].restart().await;
        cluster.is_whole().await;
    })
    .await;
    assert!(acknowledged > 100, "{acknowledged}");
    assert_eq!(missing, 0, "of {acknowledged}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_keep_acknowledged_writes() {
    let mut watched = Watched::start(Engine::Valkey).await;
    let settings = watched.settings("p:");
    let (acknowledged, missing) = lost(settings, async {
        watched.servers[0].kill();
        watched.new_primary(0).await;
    })
    .await;
    assert!(acknowledged > 100, "{acknowledged}");
    assert_eq!(missing, 0, "of {acknowledged}");
}
