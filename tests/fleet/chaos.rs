//! Servers are killed, frozen and started again, and slots move, while sessions run: no client notices, and the fleet
//! recovers by itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use plimsoll::store::redis::RedisServer;
use tokio::task::JoinHandle;

use crate::cluster::Cluster;
use crate::fleet::{Fleet, cuts, history};
use crate::sentinel::Watched;
use crate::server::{Engine, Server};

const SESSIONS: usize = 40;

/// Sessions that run on three replicas, each turn at another one.
struct Load {
    fleet: Arc<Fleet>,
    stop: Arc<AtomicBool>,
    turns: Arc<AtomicUsize>,
    sessions: Vec<JoinHandle<()>>,
}

impl Load {
    async fn start(server: RedisServer) -> Self {
        let fleet = Arc::new(Fleet::start(server, 3).await);
        let stop = Arc::new(AtomicBool::new(false));
        let turns = Arc::new(AtomicUsize::new(0));
        let sessions = (0..SESSIONS)
            .map(|number| tokio::spawn(run(fleet.clone(), number, stop.clone(), turns.clone())));
        let sessions = sessions.collect();
        let load = Self { fleet, stop, turns, sessions };
        load.goes_on().await;
        load
    }

    /// Waits until every session has had some turns more.
    async fn goes_on(&self) {
        let turns = self.turns.load(Ordering::Relaxed) + 3 * SESSIONS;
        let until = Instant::now() + Duration::from_secs(30);
        while self.turns.load(Ordering::Relaxed) < turns {
            assert!(Instant::now() < until, "traffic does not flow");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Ends it: nothing was refused, and the fleet decides as one again.
    async fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        for session in self.sessions {
            session.await.unwrap();
        }
        let log = self.fleet.provider.take_log();
        let refused = log.iter().filter(|logged| logged.verdict.broken_rule().is_some()).count();
        assert_eq!(refused, 0, "the provider refused nothing");
        let until = Instant::now() + Duration::from_secs(20);
        for round in 0.. {
            let session = format!("99999999-2222-3333-4444-{round:012}");
            let history = history(&format!("Afterwards {round}."), 8);
            let mut sent = Vec::new();
            for replica in 0..3 {
                sent.push(self.fleet.sent(replica, &session, &history).await);
            }
            if cuts(&sent[0]) > 0 && sent.iter().all(|one| *one == sent[0]) {
                return;
            }
            assert!(Instant::now() < until, "the fleet does not recover");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// One session: grows turn by turn, each at another replica, until it is told to stop.
async fn run(fleet: Arc<Fleet>, number: usize, stop: Arc<AtomicBool>, turns: Arc<AtomicUsize>) {
    let session = format!("{number:08}-2222-3333-4444-555555555555");
    let first = format!("Task {number}.");
    let mut count = 1;
    while !stop.load(Ordering::Relaxed) {
        let replica = (number + count) % fleet.replicas.len();
        let began = Instant::now();
        let (status, answer) = fleet.send(replica, &session, &history(&first, count)).await;
        assert_eq!(status, 200, "{answer}");
        assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
        turns.fetch_add(1, Ordering::Relaxed);
        count = if count == 12 { 1 } else { count + 1 };
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_servers_cost_no_client_anything() {
    let mut server = Server::start(Engine::Redis).await;
    let load = Load::start(server.settings("p:")).await;
    for round in 0..4 {
        if round % 2 == 0 {
            server.kill();
        } else {
            server.freeze();
        }
        tokio::time::sleep(Duration::from_millis(1200)).await;
        load.goes_on().await;
        if round % 2 == 0 {
            server.restart().await;
        } else {
            server.thaw();
        }
        load.goes_on().await;
    }
    load.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_fails_over_under_load() {
    let mut cluster = Cluster::start(Engine::Redis).await;
    let load = Load::start(cluster.settings("p:")).await;
    cluster.nodes[0].kill();
    cluster.is_promoted(3).await;
    load.goes_on().await;
    cluster.nodes[0].restart().await;
    cluster.is_whole().await;
    load.goes_on().await;
    let key: String = cluster.nodes[1].ask(&["RANDOMKEY"]).await;
    let slot: u16 = cluster.nodes[1].ask(&["CLUSTER", "KEYSLOT", &key]).await;
    assert!(cluster.move_slot(slot, 1, 2).await > 0);
    load.goes_on().await;
    cluster.nodes[2].freeze();
    cluster.is_promoted(5).await;
    load.goes_on().await;
    cluster.nodes[2].thaw();
    cluster.is_whole().await;
    load.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_fail_over_under_load() {
    let mut watched = Watched::start(Engine::Redis).await;
    let load = Load::start(watched.settings("p:")).await;
    watched.servers[0].kill();
    let primary = watched.new_primary(0).await;
    load.goes_on().await;
    watched.servers[0].restart().await;
    // Two of three sentinels are enough to fail over, and one that hangs delays nobody.
    watched.freeze_sentinel(2);
    watched.servers[primary].freeze();
    watched.new_primary(primary).await;
    watched.servers[primary].thaw();
    load.goes_on().await;
    load.end().await;
}
