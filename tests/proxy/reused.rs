//! Connections that are kept between requests: one that the provider closed in the meantime is our
//! trouble, not the client's.

use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;

use crate::support::house::{House, config};
use crate::support::http1::{Call, Provider, Wire};

const ASK: &str =
    "POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 7\r\n\r\n{\"a\":1}";

#[tokio::test]
async fn a_connection_that_closed_while_idle_is_replaced() {
    let provider = Provider::start().await;
    let house = House::before(&provider.base()).await;
    let mut client = Wire::connect(house.address).await;
    client.send(ASK).await;
    let mut first = provider.call().await;
    first.answer("200 OK", "{}").await;
    assert_eq!(client.response().await.status(), 200);

    client.send(ASK).await;
    // It takes the request on the kept connection, and closes without a word.
    drop(first.wire.request().await);
    let mut again = provider.call().await;
    assert_eq!(again.message.body, b"{\"a\":1}");
    again.answer("200 OK", "{\"b\":2}").await;
    assert_eq!(client.response().await.text(), "{\"b\":2}");
}

#[tokio::test]
async fn a_fresh_connection_that_closes_is_not_asked_twice() {
    let provider = Provider::start().await;
    let house = House::before(&provider.base()).await;
    let mut client = Wire::connect(house.address).await;
    client.send(ASK).await;
    drop(provider.call().await);
    assert_eq!(client.response().await.status(), 502);
}

/// Connections that many used at once do not stay open for ever: a few are kept, the others are closed.
#[tokio::test]
async fn few_idle_connections_to_an_upstream_are_kept() {
    const KEPT: usize = 128;
    const MANY: usize = KEPT + 12;
    let provider = Provider::start().await;
    let mut config = config(&provider.base());
    config.limits.connections = MANY;
    let house = House::with(config).await;
    let (mut clients, mut calls) = (Vec::new(), Vec::new());
    for _ in 0..MANY {
        let mut client = Wire::connect(house.address).await;
        client.send("GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
        calls.push(provider.call().await);
        clients.push(client);
    }
    for (client, call) in clients.iter_mut().zip(&mut calls) {
        call.answer("200 OK", "{}").await;
        assert_eq!(client.response().await.status(), 200);
    }
    let gone = |mut call: Call| async move { call.wire.gone().await };
    let mut closed: FuturesUnordered<_> = calls.into_iter().map(gone).collect();
    for _ in KEPT..MANY {
        closed.next().await.unwrap();
    }
    let more = tokio::time::timeout(Duration::from_millis(300), closed.next()).await;
    assert!(more.is_err(), "one of those that are kept was closed");
}
