//! A requested compaction is carried out: refused and cancelled requests do not lose it, requests beside the
//! conversation do not use it, and it is deleted with its session.

use plimsoll::context::Outcome;
use plimsoll::context::policy::{Policy, SummaryEngine};
use plimsoll::store::{Scope, ScopePage};
use serde_json::json;

use crate::play::{Play, policy, send_summary};

const SUMMARY: &str = "The person asks numbered questions.";

/// A policy that compacts only on request.
fn on_request() -> Policy {
    let mut policy = policy();
    policy.compact.engine = SummaryEngine::Off;
    policy
}

/// A session of a few turns with a requested compaction.
async fn requested() -> (Play, Scope) {
    let mut play = Play::of(on_request()).await;
    for number in 0..4 {
        play.turn(number).await;
    }
    let scope = play.server.ledgers.sessions(ScopePage::first(1)).await.unwrap().remove(0).scope;
    let focus = Some("The second question.".into());
    assert!(play.server.ledgers.request_compaction(scope.clone(), focus).await.unwrap());
    (play, scope)
}

/// The next turn starts the summary, and the turn after it uses the summary.
async fn is_carried_out(play: &mut Play, scope: &Scope) {
    play.turn(7).await;
    let question = play.next_summary_request().await;
    assert!(question.message.text().contains("Look above all at this: The second question."));
    send_summary(question, SUMMARY).await;
    play.wait_until_written(1).await;
    assert!(play.turn(8).await.bytes.contains(SUMMARY));
    assert!(!play.server.ledgers.has_pending_compaction(scope));
}

/// Another process gets the next request, and the one that was asked learns that it is done.
#[tokio::test]
async fn another_replica_carries_out_requested_compaction() {
    let (mut play, scope) = requested().await;
    play.restart().await;
    is_carried_out(&mut play, &scope).await;
    let asked = &play.others[0].ledgers;
    asked.look(&scope, |_| ()).await.unwrap();
    assert!(!asked.has_pending_compaction(&scope));
}

#[tokio::test]
async fn requested_compaction_outlives_refused_request() {
    let (mut play, scope) = requested().await;
    play.add_user_message(4, 120);
    play.history.push(json!({"role": "user", "content": crate::play::TOO_LONG}));
    let mut client = play.send_request().await;
    assert_eq!(client.response().await.status(), 400);
    play.server.next_exchange().await;
    play.history.truncate(8);
    assert!(play.take_summary_bodies().is_empty());
    assert!(play.server.ledgers.has_pending_compaction(&scope), "it waits again");
    is_carried_out(&mut play, &scope).await;
}

#[tokio::test]
async fn requested_compaction_outlives_request_whose_client_leaves() {
    let (mut play, scope) = requested().await;
    play.add_user_message(4, 120);
    play.history.push(json!({"role": "user", "content": crate::play::NEVER}));
    for times in 1..=2 {
        let client = play.send_request().await;
        play.wait_until_received(crate::play::NEVER, times).await;
        assert!(!play.server.ledgers.has_pending_compaction(&scope), "the request took it up");
        drop(client);
        let exchange = play.server.next_exchange().await;
        assert_eq!(exchange.outcome, Outcome::ClientLeft);
        let pending = async {
            while !play.server.ledgers.has_pending_compaction(&scope) {
                tokio::task::yield_now().await;
            }
        };
        crate::support::within("the wish waits again", pending).await;
    }
    play.history.truncate(8);
    assert!(play.take_summary_bodies().is_empty());
    is_carried_out(&mut play, &scope).await;
}

#[tokio::test]
async fn requested_compaction_outlives_provider_that_fails_to_write() {
    let (mut play, scope) = requested().await;
    play.turn(5).await;
    let mut question = play.next_summary_request().await;
    question.answer("529 Overloaded", r#"{"error":{"message":"busy"}}"#).await;
    play.wait_for_count("outcome=\"upstream_failed\"", 1).await;
    let pending = async {
        while !play.server.ledgers.has_pending_compaction(&scope) {
            tokio::task::yield_now().await;
        }
    };
    crate::support::within("the wish waits again", pending).await;
}

#[tokio::test]
async fn sub_agent_does_not_take_requested_compaction() {
    let (mut play, scope) = requested().await;
    let main = std::mem::take(&mut play.history);
    // As long as the main line, with other text.
    for number in 0..9 {
        let role = if number % 2 == 0 { "user" } else { "assistant" };
        let text = format!("Chart {number}. ").repeat(40);
        play.history.push(json!({"role": role, "content": text}));
    }
    play.system = "You search.";
    let client = play.send_request().await;
    play.read_reply(client).await;
    assert!(play.take_summary_bodies().is_empty());
    assert!(play.server.ledgers.has_pending_compaction(&scope));
    (play.history, play.system) = (main, "You are calm.");
    is_carried_out(&mut play, &scope).await;
}

#[tokio::test]
async fn requested_compaction_and_its_summary_are_deleted_with_session() {
    let (mut play, scope) = requested().await;
    play.turn(5).await;
    let question = play.next_summary_request().await;
    play.server.ledgers.forget(&scope).await.unwrap();
    send_summary(question, SUMMARY).await;
    play.wait_for_count("outcome=\"not_kept\"", 1).await;
    assert_eq!(play.store.scan(scope.clone(), 99).await.unwrap(), []);
    assert!(!play.server.ledgers.has_pending_compaction(&scope));
}
