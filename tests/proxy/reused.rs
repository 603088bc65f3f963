//! Connections that are kept between requests: one that the provider closed in the meantime is our
//! trouble, not the client's.

use crate::support::house::House;
use crate::support::http1::{Provider, Wire};

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
