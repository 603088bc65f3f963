//! Two replicas with one store, one of which may die: there is one summary or none, and never two different beginnings.

use hyper_util::client::proxy::matcher::Matcher;
use plimsoll::config::Mode;
use plimsoll::store::RecordKind;

use crate::play::{MARK, Play, policy, send_summary, tokens};
use crate::support::held::Held;
use crate::support::server::TestServer;

const SUMMARY: &str = "The person asks numbered questions.";

/// The other replica gets the same conversation while the first still writes: it requests no summary, and uses the one
/// that the first wrote.
#[tokio::test]
async fn another_replica_waits_for_summary_and_repeats_it() {
    let mut play = Play::of(policy()).await;
    let (_, question) = play.fill_to_mark().await;
    let first = play.config.clone();
    play.restart().await;
    for _ in 0..2 {
        play.turn(play.history.len() / 2).await;
    }
    assert!(play.take_summary_bodies().is_empty(), "two at once");
    send_summary(question, SUMMARY).await;
    let one = loop {
        let scene = play.turn(play.history.len() / 2).await;
        if scene.bytes.contains(SUMMARY) {
            break scene;
        }
        assert!(play.history.len() < 60, "never used");
    };
    // The first replica does not know of it yet: it asks the store first.
    play.config = first;
    play.restart().await;
    let other = play.turn(play.history.len() / 2).await;
    let begins = |bytes: &str| bytes[..bytes.rfind("Question").unwrap_or(0).min(400)].to_owned();
    assert_eq!(begins(&one.bytes), begins(&other.bytes));
    assert_eq!(one.sent["messages"][0], other.sent["messages"][0]);
}

/// If a process dies while its summary is written, there is no summary: the history is sent whole until the claim has
/// expired.
#[tokio::test]
async fn lost_summary_is_requested_again_once_its_claim_expires() {
    let mut policy = policy();
    policy.compact.timeout_s = 1;
    // The earlier process is not really gone, and fails.
    policy.compact.cool_down_s = 0;
    let mut play = Play::of(policy).await;
    let (_, question) = play.fill_to_mark().await;
    // The process is gone before it got the reply, without a clean stop.
    play.restart().await;
    let scene = play.turn(play.history.len() / 2).await;
    assert_eq!(scene.sent["messages"].as_array().unwrap().len() + 1, play.history.len());
    // The expired claim is given up, and the summary is requested again.
    play.wait_for_count("outcome=\"not_kept\"", 1).await;
    drop(question);
    play.turn(play.history.len() / 2).await;
    send_summary(play.next_summary_request().await, SUMMARY).await;
    play.wait_until_written(1).await;
}

/// Another process writes the summary, and another thread of the session has one: that is not the one to wait for.
#[tokio::test]
async fn foreign_summary_ends_no_wait() {
    let mut policy = policy();
    policy.compact.timeout_s = 1;
    let mut play = Play::of(policy).await;
    let (_, question) = play.fill_to_mark().await;
    send_summary(question, SUMMARY).await;
    play.wait_until_written(1).await;
    play.history.clear();
    let mut number = 100;
    while tokens(&play.turn(number).await) <= MARK {
        number += 1;
    }
    let question = play.next_summary_request().await;
    play.restart().await;
    play.turn(number + 1).await;
    // It waited until the claim had expired.
    play.wait_for_count("outcome=\"not_kept\"", 1).await;
    drop(question);
}

/// A clean stop releases the claim, so the next start need not wait until it expires.
#[tokio::test]
async fn clean_stop_gives_its_claim_back() {
    let mut play = Play::of(policy()).await;
    let (_, question) = play.fill_to_mark().await;
    let first = play.config.clone();
    play.server.stop();
    let next = TestServer::over(play.store.clone(), first, Matcher::builder().build()).await;
    let before = std::mem::replace(&mut play.server, next);
    before.drained().await;
    play.turn(play.history.len() / 2).await;
    send_summary(play.next_summary_request().await, SUMMARY).await;
    play.wait_until_written(1).await;
    drop(question);
}

/// A summary that failed or was written holds up no later process: its claim was given back.
#[tokio::test]
async fn ended_summary_returns_claim() {
    let mut policy = policy();
    policy.compact.cool_down_s = 0;
    let mut play = Play::of(policy).await;
    let (_, mut question) = play.fill_to_mark().await;
    question.answer("500 Internal Server Error", "{}").await;
    play.wait_for_count("outcome=\"upstream_failed\"", 1).await;
    play.restart().await;
    play.turn(play.history.len() / 2).await;
    send_summary(play.next_summary_request().await, SUMMARY).await;
    play.wait_until_written(1).await;
}

/// After a failure no replica asks for a summary, until the history is small or the thread has cooled down.
#[tokio::test]
async fn failed_summary_cools_all_replicas_down() {
    let mut play = Play::of(policy()).await;
    let (_, mut question) = play.fill_to_mark().await;
    question.answer("500 Internal Server Error", "{}").await;
    play.wait_for_count("outcome=\"upstream_failed\"", 1).await;
    play.restart().await;
    for _ in 0..2 {
        play.turn(play.history.len() / 2).await;
    }
    assert!(play.take_summary_bodies().is_empty());
    play.history.truncate(2);
    play.turn(1).await;
    play.fill_to_mark().await;
}

/// If the store cannot say who writes the summary, no other writer is assumed: no request waits, and the next one tries
/// again.
#[tokio::test]
async fn store_error_is_not_taken_for_claim_of_another_process() {
    let mut policy = policy();
    // Longer than this test may take: a request that waited for another writer would exceed it.
    policy.compact.timeout_s = 600;
    let store = Held::new();
    let mut play = Play::over(store.clone(), policy, Mode::Active).await;
    store.refuse(Some(RecordKind::Learned));
    while tokens(&play.turn(play.history.len() / 2).await) <= MARK {}
    play.wait_for_count("outcome=\"not_kept\"", 1).await;
    assert!(play.take_summary_bodies().is_empty(), "it was asked for without a claim");
    store.refuse(None);
    play.turn(play.history.len() / 2).await;
    send_summary(play.next_summary_request().await, SUMMARY).await;
    play.wait_until_written(1).await;
}
