//! Two replicas on one store, and one that dies in the middle: one summary, or none, and never two
//! different beginnings.

use hyper_util::client::proxy::matcher::Matcher;
use plimsoll::config::Mode;
use plimsoll::store::RecordKind;

use crate::play::{MARK, Play, policy, tokens, writes};
use crate::support::held::Held;
use crate::support::server::TestServer;

const SUMMARY: &str = "The person asks numbered questions.";

/// The other replica meets the same conversation while the first still writes: it asks nobody, and
/// uses what the first wrote.
#[tokio::test]
async fn another_replica_waits_for_the_summary_and_repeats_it() {
    let mut play = Play::of(policy()).await;
    let (_, question) = play.fills().await;
    let first = play.config.clone();
    play.restarts().await;
    for _ in 0..2 {
        play.turn(play.history.len() / 2).await;
    }
    assert!(play.more_summaries().is_empty(), "two at once");
    writes(question, SUMMARY).await;
    let one = loop {
        let scene = play.turn(play.history.len() / 2).await;
        if scene.bytes.contains(SUMMARY) {
            break scene;
        }
        assert!(play.history.len() < 60, "never used");
    };
    // The first replica knows nothing of that yet: it asks the store before it does anything.
    play.config = first;
    play.restarts().await;
    let other = play.turn(play.history.len() / 2).await;
    let begins = |bytes: &str| bytes[..bytes.rfind("Question").unwrap_or(0).min(400)].to_owned();
    assert_eq!(begins(&one.bytes), begins(&other.bytes));
    assert_eq!(one.sent["messages"][0], other.sent["messages"][0]);
}

/// A process that dies while its summary is written leaves none: the history is sent whole until its
/// claim has run out.
#[tokio::test]
async fn a_summary_that_died_with_its_process_is_none() {
    let mut policy = policy();
    policy.compact.timeout_s = 1;
    let mut play = Play::of(policy).await;
    let (_, question) = play.fills().await;
    // The process is gone before it heard the answer, without a stop.
    play.restarts().await;
    let scene = play.turn(play.history.len() / 2).await;
    assert_eq!(scene.sent["messages"].as_array().unwrap().len() + 1, play.history.len());
    // What was claimed and never written is given up in time, and then asked for again.
    play.counts("outcome=\"not_kept\"", 1).await;
    drop(question);
    play.turn(play.history.len() / 2).await;
    writes(play.summary().await, SUMMARY).await;
    play.is_written(1).await;
}

/// A stop gives back what was claimed: the next start need not wait until it has run out.
#[tokio::test]
async fn a_clean_stop_gives_its_claim_back() {
    let mut play = Play::of(policy()).await;
    let (_, question) = play.fills().await;
    let first = play.config.clone();
    play.server.stop();
    let next = TestServer::over(play.store.clone(), first, Matcher::builder().build()).await;
    let before = std::mem::replace(&mut play.server, next);
    before.drained().await;
    play.turn(play.history.len() / 2).await;
    writes(play.summary().await, SUMMARY).await;
    play.is_written(1).await;
    drop(question);
}

/// A store that cannot say who writes says nothing of others: nobody is waited for, and the next request tries
/// it again.
#[tokio::test]
async fn an_error_while_looking_for_a_claim_is_not_that_another_writes() {
    let mut policy = policy();
    // Longer than this test: who waited for another would wait past its end.
    policy.compact.timeout_s = 600;
    let store = Held::new();
    let mut play = Play::over(store.clone(), policy, Mode::Active).await;
    store.refuse(Some(RecordKind::Learned));
    while tokens(&play.turn(play.history.len() / 2).await) <= MARK {}
    play.counts("outcome=\"not_kept\"", 1).await;
    assert!(play.more_summaries().is_empty(), "it was asked for without a claim");
    store.refuse(None);
    play.turn(play.history.len() / 2).await;
    writes(play.summary().await, SUMMARY).await;
    play.is_written(1).await;
}
