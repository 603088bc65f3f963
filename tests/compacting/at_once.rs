//! Compaction requested through the admin API: a preview, a start at once if the summariser has a credential of its
//! own, and a clear reason if it cannot be done.

use std::net::SocketAddr;

use plimsoll::admin::view::ServerInfo;
use plimsoll::admin::{self, Admin};
use plimsoll::config::PriceList;
use plimsoll::config::{Secret, Upstream};
use plimsoll::context::plan::{Change, Decision, DecisionReason};
use plimsoll::context::policy::SummaryEngine;
use plimsoll::dialect::Dialect;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::play::{Play, policy, send_summary};
use crate::support::http1::Wire;
use crate::support::looking::{TOKEN, access};

const SUMMARY: &str = "The person asks numbered questions.";

/// The admin listener of a play's server.
async fn admin(play: &Play) -> SocketAddr {
    let (_, draining) = watch::channel(false);
    let (ledgers, telemetry) = (play.server.ledgers.clone(), play.server.telemetry.clone());
    let prices = PriceList::new(&play.config);
    let about = ServerInfo::new(&play.config, play.server.address, play.server.address, 1);
    let admin = Admin::new(None, ledgers, telemetry, about, prices, access(), draining);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(admin::serve(admin, listener, std::future::pending()));
    address
}

/// Requests compaction; `query` begins with `?` unless it is empty.
async fn compact(admin: SocketAddr, session: &str, query: &str) -> (u16, Value) {
    let mut wire = Wire::connect(admin).await;
    let path = format!("/api/v1/sessions/{session}/compact{query}");
    let head = format!("POST {path} HTTP/1.1\r\nhost: {admin}\r\ncontent-length: 0");
    wire.send(format!("{head}\r\nauthorization: Bearer {TOKEN}\r\n\r\n")).await;
    let answer = wire.response().await;
    (answer.status(), serde_json::from_str(answer.text()).unwrap_or_default())
}

#[tokio::test]
async fn dry_run_says_what_compaction_would_save_and_does_nothing() {
    let mut play = Play::of(policy()).await;
    for number in 0..5 {
        play.turn(number).await;
    }
    let admin = admin(&play).await;
    let (status, looked) = compact(admin, "s", "?dry_run=true").await;
    assert_eq!(status, 200, "{looked}");
    let number = |name: &str| looked[name].as_u64().unwrap();
    assert_eq!(number("messages"), play.history.len() as u64 - 1);
    assert!((1..number("messages")).contains(&number("messages_cut")), "{looked}");
    assert!(number("tokens_after") < number("tokens_before"), "{looked}");
    assert_eq!(looked["engine"], "summary");
    assert_eq!(looked["upstream"], "up");
    let dollars = |name: &str| looked[name].as_f64().unwrap();
    let saved = (number("tokens_before") - number("tokens_after")) as f64;
    assert!((dollars("saved_per_call_cold") - saved * 3.0 / 1e6).abs() < 1e-9, "{looked}");
    assert!(dollars("saved_per_call_cached") < dollars("saved_per_call_cold"));
    assert!(dollars("cost_of_writing") > 0.0);
    play.turn(5).await;
    assert!(play.take_summary_bodies().is_empty(), "nothing was done");

    // Only the client has a credential: its next request starts the compaction.
    let (status, requested) = compact(admin, "s", "").await;
    assert_eq!(status, 200);
    assert_eq!(requested["begins"], "next_request");
    assert!(play.take_summary_bodies().is_empty());
    play.turn(6).await;
    drop(play.next_summary_request().await);
}

/// The provider refuses to compact after the request that the preview is of: the model is named as the writer.
#[tokio::test]
async fn dry_run_does_not_name_provider_that_refused_to_compact() {
    let mut policy = policy();
    policy.compact.engine = SummaryEngine::Auto;
    let mut play = Play::of(policy).await;
    let (_, mut question) = play.fill_to_mark().await;
    let admin = admin(&play).await;
    let (_, looked) = compact(admin, "s", "?dry_run=true").await;
    assert_eq!(looked["engine"], "provider", "{looked}");
    let refused = r#"{"type":"error","error":{"type":"invalid_request_error","message":"compaction: Extra inputs are not permitted"}}"#;
    question.answer("400 Bad Request", refused).await;
    drop(question);
    drop(play.next_summary_request().await);
    let (_, looked) = compact(admin, "s", "?dry_run=true").await;
    assert_eq!(looked["engine"], "summary", "{looked}");
}

#[tokio::test]
async fn summariser_with_credential_of_its_own_is_asked_at_once() {
    let mut policy = policy();
    policy.compact.upstream = Some("summariser".into());
    let mut play = Play::of(policy).await;
    play.config.upstreams.push(Upstream {
        name: "summariser".into(),
        dialects: vec![Dialect::Anthropic],
        credential: Some(("x-api-key".parse().unwrap(), Secret("own".into()))),
        ..play.config.upstreams[0].clone()
    });
    play.restart().await;
    for number in 0..5 {
        play.turn(number).await;
    }
    let admin = admin(&play).await;
    let (status, requested) = compact(admin, "s", "?focus=the%20second").await;
    assert_eq!(status, 200, "{requested}");
    assert_eq!(requested["begins"], "now", "{requested}");
    let question = play.next_summary_request().await;
    let head = &question.message.head;
    assert!(head.contains("x-api-key: own\r\n"), "{head}");
    assert!(!head.contains("x-api-key: k"), "{head}");
    assert!(question.message.text().contains("Look above all at this: the second"));
    let (status, twice) = compact(admin, "s", "").await;
    assert_eq!(status, 409, "{twice}");
    assert_eq!(twice["error"]["code"], "under_way", "{twice}");
    send_summary(question, SUMMARY).await;
    play.wait_until_written(1).await;
    let scene = play.turn(5).await;
    assert!(scene.bytes.contains(SUMMARY), "the next request uses it");
    let step = &scene.exchange.done.steps[0];
    assert_eq!(step.change, Change::Compacted);
    assert_eq!(step.decision, Decision::New);
    assert_eq!(step.why, DecisionReason::Requested);
}

#[tokio::test]
async fn compaction_that_cannot_be_done_is_refused_with_reason() {
    let mut play = Play::of(policy()).await;
    play.turn(0).await;
    let admin = admin(&play).await;
    for query in ["", "?dry_run=true"] {
        let (status, answer) = compact(admin, "nobody", query).await;
        assert_eq!(status, 404, "{answer}");
        assert_eq!(answer["error"]["code"], "not_found", "{answer}");
        let (status, answer) = compact(admin, "s", query).await;
        assert_eq!(status, 409, "{answer}");
        assert_eq!(answer["error"]["code"], "nothing_to_cut", "{answer}");
    }
    let (status, answer) = compact(admin, "s", "?dry_run=perhaps").await;
    assert_eq!(status, 400);
    assert_eq!(answer["error"]["code"], "bad_query");
    let (status, _) = compact(admin, "s", &format!("?focus={}", "x".repeat(1 << 20))).await;
    assert!((400..500).contains(&status), "{status}");
    // The conversation continues, and no compaction is pending.
    for number in 1..5 {
        play.turn(number).await;
    }
    assert!(play.take_summary_bodies().is_empty());
    // A history is held in memory only: after a restart it is missing until the next request.
    play.restart().await;
    let admin = self::admin(&play).await;
    let (status, answer) = compact(admin, "s", "?dry_run=true").await;
    assert_eq!(status, 409, "{answer}");
    assert_eq!(answer["error"]["code"], "not_at_hand", "{answer}");
    play.turn(5).await;
    assert_eq!(compact(admin, "s", "?dry_run=true").await.0, 200);
}
