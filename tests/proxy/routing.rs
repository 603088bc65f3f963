//! Where a request goes: to the upstream that its path names, or nowhere.

use http::Request;

use crate::support::h2;
use crate::support::http1::{Provider, Wire};
use crate::support::server::{TestServer, config, upstream};

/// If the path has a typing error, key and prompt reach no upstream, and the error names the nearest upstream.
#[tokio::test]
async fn path_that_names_no_upstream_is_refused_and_nobody_gets_its_key() {
    let provider = Provider::start().await;
    let mut config = config(&provider.base());
    config.upstreams[0].name = "openai".into();
    config.upstreams.push(upstream("deepseek", &provider.base()));
    let mut server = TestServer::with(config).await;
    for (path, error) in [
        ("/deepseak/v1/chat/completions", "/error/code"),
        ("/deepseak/v1/responses", "/error/code"),
        ("/deepseak/v1/messages", "/error/type"),
        ("/deepseak/v1beta/models/m:generateContent", "/error/status"),
        ("/deepseak/anything", "/error/code"),
    ] {
        let mut client = Wire::connect(server.address).await;
        let key = "authorization: Bearer sk-1\r\nx-api-key: sk-1\r\napi-key: sk-1\r\n";
        client
            .send(format!(
                "POST {path} HTTP/1.1\r\nhost: localhost\r\n{key}content-length: 2\r\n\r\n{{}}"
            ))
            .await;
        let refused = client.response().await;
        let code = (refused.status(), refused.header("x-plimsoll-error"));
        assert_eq!(code, (404, Some("no_upstream")), "{path}");
        let value: serde_json::Value = serde_json::from_slice(&refused.body).unwrap();
        assert_eq!(value.pointer(error).unwrap(), "no_upstream", "{path}: {value}");
        let text = refused.text();
        assert!(text.contains("openai, deepseek. Nearest: /deepseek."), "{text}");
        let exchange = server.next_exchange().await;
        assert_eq!(exchange.status, Some(404), "{path}");
        assert_eq!(exchange.upstream.as_deref(), None, "{path}");
    }
    // The provider got none of these requests: its first connection is this one.
    let mut client = Wire::connect(server.address).await;
    client
        .send(
            "POST /deepseek/v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}",
        )
        .await;
    let mut call = provider.call().await;
    assert_eq!(call.message.first_line(), "POST /v1/messages HTTP/1.1");
    call.answer("200 OK", "{}").await;
    assert_eq!(client.response().await.status(), 200);
}

/// With only one upstream, a path must name it, too, or be a path of an API.
#[tokio::test]
async fn only_upstream_is_not_sent_what_was_meant_for_another() {
    let provider = Provider::start().await;
    let server = TestServer::before(&provider.base()).await;
    let mut client = Wire::connect(server.address).await;
    client
        .send(
            "POST /deepseek/v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}",
        )
        .await;
    assert_eq!(client.response().await.status(), 404);
    client.send("GET /up/anything/at%2Fall HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    let mut call = provider.call().await;
    assert_eq!(
        call.message.first_line(),
        "GET /anything/at%2Fall HTTP/1.1",
        "what is named takes all"
    );
    call.answer("200 OK", "{}").await;
    assert_eq!(client.response().await.status(), 200);
}

#[tokio::test]
async fn root_path_gets_greeting() {
    let mut server = TestServer::before("http://127.0.0.1:1").await;
    let mut client = Wire::connect(server.address).await;
    client.send("GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    let greeting = client.response().await;
    assert_eq!(greeting.status(), 200);
    assert_eq!(greeting.header("x-plimsoll-error"), None);
    assert!(greeting.text().contains("Plimsoll"), "{}", greeting.text());
    assert!(greeting.text().contains("\n  mode "), "{}", greeting.text());
    assert!(greeting.text().contains("http://127.0.0.1:1"), "{}", greeting.text());
    assert_eq!(server.next_exchange().await.status, Some(200));
    client.send("HEAD /?x=y HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    let probe = client.message(false).await;
    assert_eq!(probe.status(), 200);
    client.send("POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n").await;
    assert_eq!(client.response().await.status(), 404);
    let mut client = h2::Client::connect(server.address).await;
    let request = Request::head("http://localhost/").body(h2::whole("").await).unwrap();
    assert_eq!(client.request(request).await.status(), 200);
}
