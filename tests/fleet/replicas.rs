//! Replicas decide as one: the cases of docs/fleets.md, each between real proxies on a real server.

use serde_json::json;

use crate::fleet::{Fleet, cuts, history};
use crate::server::{Engine, Server};

const NAMED: &str = "11111111-2222-3333-4444-555555555555";

/// The turn before was answered by another replica: its cuts are repeated byte for byte, and none is made twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parent_elsewhere_is_known() {
    for engine in [Engine::Redis, Engine::Valkey] {
        let server = Server::start(engine).await;
        let fleet = Fleet::start(server.settings("p:"), 3).await;
        for session in [NAMED, ""] {
            let first = if session.is_empty() { "Read them all." } else { "Read some." };
            let mut before = fleet.sent(0, session, &history(first, 4)).await;
            assert!(cuts(&before) > 0);
            for count in 5..12 {
                let after = fleet.sent(count % 3, session, &history(first, count)).await;
                // The newest result before may be cut now, for it is old by now.
                let same = before.len() - 2;
                assert!(cuts(&after) >= cuts(&before));
                for (now, then) in after.iter().zip(&before).take(same) {
                    if cuts(std::slice::from_ref(then)) > 0 {
                        assert_eq!(now, then, "what was cut stays cut in the same way");
                    }
                }
                before = after;
            }
        }
    }
}

/// A replica that answered the turn before has what it needs, also if others answered in between on other branches.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parent_here_is_enough() {
    let server = Server::start(Engine::Redis).await;
    let fleet = Fleet::start(server.settings("p:"), 2).await;
    let trunk = history("Read them all.", 5);
    let sent = fleet.sent(0, NAMED, &trunk).await;
    let branch = |word: &str| {
        let mut branch = trunk.clone();
        branch.push(json!({"role": "assistant", "content": "Done."}));
        branch.push(json!({"role": "user", "content": word}));
        branch
    };
    for word in ["one", "two", "three"] {
        let here = fleet.sent(0, NAMED, &branch(word)).await;
        let there = fleet.sent(1, NAMED, &branch(word)).await;
        assert_eq!(here, there, "{word}");
        assert_eq!(here[..sent.len() - 2], sent[..sent.len() - 2]);
    }
}

/// A history that no replica has seen is planned by whoever gets it first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_parent_is_planned_once() {
    let server = Server::start(Engine::Redis).await;
    let fleet = Fleet::start(server.settings("p:"), 3).await;
    let first = fleet.sent(2, NAMED, &history("From elsewhere.", 8)).await;
    assert!(cuts(&first) > 0);
    for replica in [0, 1, 2] {
        assert_eq!(fleet.sent(replica, NAMED, &history("From elsewhere.", 8)).await, first);
    }
}

/// The same request at several replicas at once: the first decision that is saved wins, and all of them send it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn siblings_at_once_agree() {
    let server = Server::start(Engine::Redis).await;
    let fleet = Fleet::start(server.settings("p:"), 4).await;
    for round in 0..10 {
        let session = format!("{round}1111111-2222-3333-4444-555555555555");
        let history = history(&format!("Round {round}."), 6);
        fleet.provider.take_log();
        let sends = (0..4).map(|replica| fleet.send(replica, &session, &history));
        for (status, answer) in futures_util::future::join_all(sends).await {
            assert_eq!(status, 200, "{answer}");
        }
        let log = fleet.provider.take_log();
        assert_eq!(log.len(), 4);
        let sent = &log[0].request.body["messages"];
        assert!(cuts(sent.as_array().unwrap()) > 0);
        assert!(log.iter().all(|logged| logged.request.body["messages"] == *sent));
    }
}

/// A decision that could not be saved is not sent; once the server is back, the fleet decides anew and agrees.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_writes_are_not_sent() {
    let mut server = Server::start(Engine::Redis).await;
    let fleet = Fleet::start(server.settings("p:"), 2).await;
    let known = fleet.sent(0, NAMED, &history("Read them all.", 4)).await;
    assert!(cuts(&known) > 0);
    server.kill();
    let apart = fleet.sent(0, NAMED, &history("Read them all.", 8)).await;
    assert_eq!(cuts(&apart), cuts(&known), "what is known is repeated, nothing new is decided");
    let elsewhere = fleet.sent(1, NAMED, &history("Read them all.", 8)).await;
    assert_eq!(cuts(&elsewhere), 0, "the other one knows nothing of the session");
    server.restart().await;
    let mut replica = 0;
    loop {
        replica = 1 - replica;
        let after = fleet.sent(replica, NAMED, &history("Read them all.", 9)).await;
        let again = fleet.sent(1 - replica, NAMED, &history("Read them all.", 9)).await;
        if cuts(&after) > cuts(&known) && after == again {
            assert_eq!(after[..6], known[..6]);
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

/// A session that was deleted on one replica is gone on all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deletion_reaches_all() {
    let server = Server::start(Engine::Redis).await;
    let fleet = Fleet::start(server.settings("p:"), 2).await;
    for replica in [0, 1] {
        fleet.sent(replica, NAMED, &history("Read them all.", 4)).await;
    }
    let scope = fleet.replicas[0].ledgers.scopes_of(&NAMED.into()).await.unwrap().remove(0);
    assert!(fleet.replicas[0].ledgers.forget(&scope).await.unwrap() > 0);
    assert_eq!(
        fleet.replicas[1].ledgers.scopes_of(&NAMED.into()).await.unwrap().len(),
        1,
        "in memory"
    );
    fleet.sent(1, NAMED, &[json!({"role": "user", "content": "Anew."})]).await;
    let turns = fleet.replicas[1].ledgers.look(&scope, |ledger| ledger.turns().count()).await;
    assert_eq!(turns.unwrap(), 1);
}

/// Every replica shows the sessions of all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_sessions_are_listed_everywhere() {
    let server = Server::start(Engine::Redis).await;
    let mut fleet = Fleet::start(server.settings("p:"), 2).await;
    fleet.sent(0, NAMED, &history("Read them all.", 4)).await;
    fleet.sent(1, "", &history("Another.", 4)).await;
    fleet.add().await;
    for replica in &fleet.replicas {
        let page = plimsoll::store::ScopePage::first(9);
        assert_eq!(replica.ledgers.sessions(page).await.unwrap().len(), 2);
    }
}
