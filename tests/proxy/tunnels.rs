//! Upgrades: carried byte for byte, or refused where policy says so.

use plimsoll::config::Upgrades;

use crate::support::house::{House, config};
use crate::support::http1::{Provider, Wire};
use crate::support::{digest, noise};

const UPGRADE: &str = "GET /v1/responses HTTP/1.1\r\nHost: me\r\nConnection: Upgrade\r\n\
    Upgrade: websocket\r\nSec-WebSocket-Key: k\r\nSec-WebSocket-Version: 13\r\n\
    openai-beta: responses_websockets=2026-02-06\r\n\r\n";
const SWITCHED: &str = "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\n\
    upgrade: websocket\r\nsec-websocket-accept: a\r\n\r\n";

#[tokio::test]
async fn bytes_pass_both_ways_until_each_side_ends() {
    let provider = Provider::start().await;
    let house = House::before(&provider.base()).await;
    let mut client = Wire::connect(house.address).await;
    client.send(UPGRADE).await;
    let mut call = provider.call().await;
    assert_eq!(
        call.message.lines()[1..],
        [
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Key: k",
            "Sec-WebSocket-Version: 13",
            "openai-beta: responses_websockets=2026-02-06",
        ]
    );
    call.send(SWITCHED).await;
    assert_eq!(client.head().await, SWITCHED.trim_end());

    let (up, down) = (noise(3, 300_000), noise(4, 500_000));
    let (_, _, got_up, got_down) = tokio::join!(
        async {},
        async {},
        async {
            client.send(&up).await;
            client.exactly(down.len()).await
        },
        async {
            let got = call.wire.exactly(up.len()).await;
            call.send(&down).await;
            got
        },
    );
    assert_eq!(digest(&got_up), digest(&down));
    assert_eq!(digest(&got_down), digest(&up));

    drop(call);
    assert_eq!(client.rest().await.unwrap(), b"");
}

#[tokio::test]
async fn a_refused_upgrade_is_the_upstreams_answer() {
    let provider = Provider::start().await;
    let house = House::before(&provider.base()).await;
    let mut client = Wire::connect(house.address).await;
    client.send(UPGRADE).await;
    let mut call = provider.call().await;
    call.answer("404 Not Found", "{\"error\":1}").await;
    let response = client.response().await;
    assert_eq!((response.status(), response.text()), (404, "{\"error\":1}"));
}

/// Codex falls back to HTTP at once on 426.
#[tokio::test]
async fn policy_refuses_with_426() {
    let provider = Provider::start().await;
    let mut config = config(&provider.base());
    config.upstreams[0].upgrades = Upgrades::Refuse;
    let house = House::with(config).await;
    let mut client = Wire::connect(house.address).await;
    client.send(UPGRADE).await;
    let response = client.response().await;
    assert_eq!(response.status(), 426);
    assert_eq!(response.header("x-plimsoll-error"), Some("upgrade_refused"));
}

/// Java's client offers h2c with every first request; that is no wish to leave HTTP.
#[tokio::test]
async fn an_h2c_offer_is_passed_over() {
    let provider = Provider::start().await;
    let house = House::before(&provider.base()).await;
    let mut client = Wire::connect(house.address).await;
    client
        .send(
            "POST /v1/messages HTTP/1.1\r\nhost: me\r\nConnection: Upgrade, HTTP2-Settings\r\n\
             Upgrade: h2c\r\nHTTP2-Settings: x\r\ncontent-length: 2\r\n\r\n{}",
        )
        .await;
    let mut call = provider.call().await;
    assert_eq!(call.message.lines()[1..], ["content-length: 2"]);
    call.answer("200 OK", "{}").await;
    assert_eq!(client.response().await.status(), 200);
}
