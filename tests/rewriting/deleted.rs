//! A deleted session stays deleted: exchanges in flight do not bring it back, whichever process deleted it, and later
//! requests begin a new session.

use std::net::SocketAddr;

use plimsoll::admin::view::ServerInfo;
use plimsoll::admin::{self, Admin};
use plimsoll::config::PriceList;
use plimsoll::context::policy::Policy;
use plimsoll::context::{Fact, QueuedMessage, SessionId};
use plimsoll::store::{Record, RecordKind, Scope};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::play::{Play, anthropic_reply, anthropic_request};
use crate::pruned::{eager, history};
use crate::support::http1::Wire;
use crate::support::looking::{TOKEN, access};
use crate::support::server::TestServer;

const MODEL: &str = "claude-sonnet-4-5";

fn reply(text: &str) -> Value {
    anthropic_reply("m1", MODEL, json!([{"type": "text", "text": text}]))
}

async fn admin(play: &Play, server: &TestServer) -> SocketAddr {
    let (_, draining) = watch::channel(false);
    let prices = PriceList::new(&play.config);
    let about = ServerInfo::new(&play.config, server.address, server.address, 1);
    let (ledgers, telemetry) = (server.ledgers.clone(), server.telemetry.clone());
    let admin = Admin::new(None, ledgers, telemetry, about, prices, access(), draining);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(admin::serve(admin, listener, std::future::pending()));
    address
}

/// Deletes a session by its id; returns the status.
async fn delete(admin: SocketAddr, session: &SessionId) -> u16 {
    let mut wire = Wire::connect(admin).await;
    let head = format!("DELETE /api/v1/sessions/{session} HTTP/1.1\r\nhost: {admin}");
    wire.send(format!("{head}\r\nauthorization: Bearer {TOKEN}\r\n\r\n")).await;
    wire.response().await.status()
}

async fn kept(play: &Play, scope: &Scope) -> Vec<Record> {
    play.store.scan(scope.clone(), 999).await.unwrap()
}

/// Plays the first exchange of a session, and returns its scope.
async fn begun(play: &mut Play) -> Scope {
    let scene = play.exchange(&anthropic_request(MODEL, &history(1)), &reply("Go on.")).await;
    let (tenant, session) = (scene.exchange.tenant.clone(), scene.exchange.session.clone());
    Scope { tenant: tenant.unwrap(), session: session.unwrap() }
}

async fn queue(server: &TestServer, scope: &Scope) {
    let text = "Mind the tide.".into();
    let queued = QueuedMessage { id: "one".into(), number: 1, at: 1, text, repeats: None };
    let queued = Fact::Queued(Box::new(queued));
    server.ledgers.store_fact_if_absent(&server.ledgers.handle(scope), queued).await.unwrap();
}

/// A turn, its decisions and its messages are in flight when another process deletes the session.
#[tokio::test]
async fn session_deleted_by_another_process_does_not_come_back() {
    for is_refused in [false, true] {
        let mut play = Play::of("/v1/messages", eager()).await;
        let scope = begun(&mut play).await;
        queue(&play.server, &scope).await;
        let mut client = play.send_request(&anthropic_request(MODEL, &history(6))).await;
        let mut call = play.provider.call().await;
        assert!(call.message.text().contains("Mind the tide."), "said");
        assert!(kept(&play, &scope).await.iter().any(|it| it.kind == RecordKind::Cut), "decided");
        let other = Play::over(play.store.clone(), "/v1/messages", play.config.mode, eager()).await;
        let elsewhere = admin(&other, &other.server).await;
        assert_eq!(delete(elsewhere, &scope.session).await, 200);
        let (status, answer) = match is_refused {
            false => ("200 OK", reply("Aye.")),
            true => ("529 Overloaded", json!({"error": {"message": "busy"}})),
        };
        call.answer(status, &answer.to_string()).await;
        client.response().await;
        drop(call);
        play.server.next_exchange().await;
        assert_eq!(kept(&play, &scope).await, [], "refused: {is_refused}");
        // The next request begins a new session, without the injected message.
        let scene = play.exchange(&anthropic_request(MODEL, &history(7)), &reply("Anew.")).await;
        assert!(!scene.bytes.contains("Mind the tide."));
        let turns: Vec<Record> = kept(&play, &scope).await;
        let turns = turns.iter().filter(|it| it.kind == RecordKind::Turn).count();
        assert_eq!(turns, 1, "refused: {is_refused}");
    }
}

/// A process forgets a session that another process deleted, and keeps the new session that begins then.
#[tokio::test]
async fn process_keeps_new_session_with_deleted_sessions_name() {
    let mut play = Play::of("/v1/messages", Policy::default()).await;
    let scope = begun(&mut play).await;
    queue(&play.server, &scope).await;
    let other = Play::over(play.store.clone(), "/v1/messages", play.config.mode, eager()).await;
    assert_eq!(delete(admin(&other, &other.server).await, &scope.session).await, 200);
    let scene = play.exchange(&anthropic_request(MODEL, &history(2)), &reply("Anew.")).await;
    assert!(!scene.bytes.contains("Mind the tide."), "the earlier queued message is not sent");
    let kinds: Vec<RecordKind> = kept(&play, &scope).await.iter().map(|it| it.kind).collect();
    assert_eq!(kinds, [RecordKind::Turn]);
    let scene = play.exchange(&anthropic_request(MODEL, &history(3)), &reply("Go on.")).await;
    assert!(!scene.bytes.contains("Mind the tide."));
    let turns = kept(&play, &scope).await;
    assert_eq!(turns.iter().filter(|it| it.kind == RecordKind::Turn).count(), 2);
}

/// A session can be found and deleted from its first request on, even if it has only queued messages.
#[tokio::test]
async fn empty_session_is_deleted() {
    let mut play = Play::of("/v1/messages", Policy::default()).await;
    let here = admin(&play, &play.server).await;
    assert_eq!(delete(here, &play.session.into()).await, 404);
    let mut client = play.send_request(&anthropic_request(MODEL, &history(1))).await;
    let mut call = play.provider.call().await;
    assert_eq!(delete(here, &play.session.into()).await, 200, "its first request is on its way");
    call.answer("200 OK", &reply("Go on.").to_string()).await;
    client.response().await;
    drop(call);
    let exchange = play.server.next_exchange().await;
    let scope = Scope { tenant: exchange.tenant.clone().unwrap(), session: play.session.into() };
    assert_eq!(kept(&play, &scope).await, []);
    queue(&play.server, &scope).await;
    play.restart().await;
    let here = admin(&play, &play.server).await;
    assert_eq!(kept(&play, &scope).await.len(), 1);
    assert_eq!(delete(here, &play.session.into()).await, 200, "it has queued messages");
    assert_eq!(kept(&play, &scope).await, []);
    assert_eq!(delete(here, &play.session.into()).await, 404);
}
