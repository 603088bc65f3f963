//! Requests and responses pass as they are: bodies by digest, heads line by line.

use crate::support::house::House;
use crate::support::http1::{Provider, Wire};

#[tokio::test]
async fn a_request_passes_line_by_line() {
    let provider = Provider::start().await;
    let house = House::before(&provider.base()).await;
    let mut client = Wire::connect(house.address).await;
    client
        .send("POST /v1/files?x=%2F&y HTTP/1.1\r\nHost: me\r\nX-One: 1\r\nconnection: keep-alive, x-drop\r\nx-drop: 1\r\nX-Stainless-Lang: js\r\nAuthorization: Bearer k\r\nx-plimsoll-session: s\r\ncontent-length: 5\r\nX-One: 2\r\n\r\nhello")
        .await;
    let mut call = provider.call().await;
    assert_eq!(call.message.first_line(), "POST /v1/files?x=%2F&y HTTP/1.1");
    let host = provider.base().replace("http://", "Host: ");
    assert_eq!(
        call.message.lines(),
        [
            host.as_str(),
            "X-One: 1",
            "X-One: 2",
            "X-Stainless-Lang: js",
            "Authorization: Bearer k",
            "content-length: 5"
        ]
    );
    assert_eq!(call.message.body, b"hello");
    call.send("HTTP/1.1 201 Fine By Me\r\nX-RateLimit-Remaining: 3\r\nrequest-id: r\r\nretry-after-ms: 5\r\nKeep-Alive: timeout=5\r\nContent-Length: 2\r\n\r\nok").await;
    let response = client.response().await;
    assert_eq!(response.first_line(), "HTTP/1.1 201 Fine By Me");
    assert_eq!(
        response.lines(),
        ["X-RateLimit-Remaining: 3", "request-id: r", "retry-after-ms: 5", "Content-Length: 2"]
    );
    assert_eq!(response.text(), "ok");
}
