//! What answers teach about counting: it is used at once, by other sessions, and after a restart.

use std::time::Duration;

use plimsoll::context::policy::Policy;
use plimsoll::store::Scope;
use serde_json::json;

use crate::play::{Play, answers, asks, message};

const MODEL: &str = "claude-sonnet-4-5";

#[tokio::test]
async fn a_second_session_starts_from_what_the_first_one_cost() {
    let mut play = Play::of("/v1/messages", Policy::default()).await;
    let request = asks(MODEL, &[message("user", json!("How deep is she?"))]);
    let reply = answers("m1", MODEL, json!([{"type": "text", "text": "Deep."}]));
    let first = play.asks(&request, &reply).await;
    let estimate = first.told.estimate.clone().unwrap();
    assert!(estimate.tokens < 200, "{estimate:?}");
    play.session = "another";
    let second = play.asks(&request, &reply).await;
    assert_eq!(second.told.estimate.as_ref().unwrap().tokens, 1800);
    assert_eq!(second.told.error(), Some(0));
    // Saved beside the traffic: a process that starts later knows it.
    let upstream = first.told.upstream.clone().unwrap();
    let session = format!("~learned counting {MODEL} behind {upstream}").into();
    let scope = Scope { tenant: Box::default(), session };
    let saved = async {
        while play.store.scan(scope.clone(), 1).await.unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), saved).await.expect("what was learned is saved");
    play.restarts().await;
    play.session = "a third";
    let third = play.asks(&request, &reply).await;
    assert_eq!(third.told.error(), Some(0));
    // Other instructions cost something else, and nobody claims to know.
    let mut other = request.clone();
    other["system"] = json!("You are anything but calm.");
    play.session = "a fourth";
    let fourth = play.asks(&other, &reply).await;
    assert!(fourth.told.estimate.as_ref().unwrap().tokens < 200);
}
