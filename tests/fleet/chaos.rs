//! The server is killed and started again while sessions run: no client notices.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::fleet::{Fleet, history};
use crate::server::{Engine, Server};

const SESSIONS: usize = 40;

/// One session: grows turn by turn, each at another replica, until it is told to stop.
async fn run(fleet: Arc<Fleet>, number: usize, stop: Arc<AtomicBool>, turns: Arc<AtomicUsize>) {
    let session = format!("{number:08}-2222-3333-4444-555555555555");
    let first = format!("Task {number}.");
    let mut count = 1;
    while !stop.load(Ordering::Relaxed) {
        let replica = (number + count) % fleet.replicas.len();
        let began = std::time::Instant::now();
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
    let fleet = Arc::new(Fleet::start(&server, 3).await);
    let stop = Arc::new(AtomicBool::new(false));
    let turns = Arc::new(AtomicUsize::new(0));
    let sessions: Vec<_> = (0..SESSIONS)
        .map(|number| tokio::spawn(run(fleet.clone(), number, stop.clone(), turns.clone())))
        .collect();
    for round in 0..4 {
        tokio::time::sleep(Duration::from_millis(1500)).await;
        if round % 2 == 0 {
            server.kill();
        } else {
            server.freeze();
        }
        tokio::time::sleep(Duration::from_millis(1500)).await;
        if round % 2 == 0 {
            server.restart().await;
        } else {
            server.thaw();
        }
    }
    stop.store(true, Ordering::Relaxed);
    for session in sessions {
        session.await.unwrap();
    }
    let refused =
        fleet.provider.take_log().iter().filter(|it| it.verdict.broken_rule().is_some()).count();
    assert_eq!(refused, 0, "the provider refused nothing");
    assert!(turns.load(Ordering::Relaxed) > SESSIONS);
}
