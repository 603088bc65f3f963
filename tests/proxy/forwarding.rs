//! Requests and responses are forwarded unchanged: bodies are compared by digest, heads line by line.

use http::{HeaderMap, Request};
use hyper_util::client::proxy::matcher::Matcher;
use plimsoll::config::Secret;

use crate::support::http1::{Provider, Wire};
use crate::support::server::{TestServer, config};
use crate::support::{digest, h2, noise, within};

#[tokio::test]
async fn end_to_end_headers_are_forwarded_unchanged_and_in_order() {
    let provider = Provider::start().await;
    let server = TestServer::before(&provider.base()).await;
    let mut client = Wire::connect(server.address).await;
    client
        .send(
            "POST /v1/files?x=%2F&y HTTP/1.1\r\nHost: localhost\r\nX-One: 1\r\n\
             connection: keep-alive, x-drop\r\nx-drop: 1\r\nX-Stainless-Lang: js\r\n\
             Authorization: Bearer k\r\nanthropic-beta: a\r\nx-plimsoll-session: s\r\n\
             x-plimsoll-mode: observe\r\ncontent-length: 5\r\nX-One: 2\r\n\r\nhello",
        )
        .await;
    let mut call = provider.call().await;
    assert_eq!(call.message.first_line(), "POST /v1/files?x=%2F&y HTTP/1.1");
    let host = provider.base().replace("http://", "Host: ");
    // hyper groups lines with the same name.
    assert_eq!(
        call.message.lines(),
        [
            host.as_str(),
            "X-One: 1",
            "X-One: 2",
            "X-Stainless-Lang: js",
            "Authorization: Bearer k",
            "anthropic-beta: a",
            "content-length: 5",
        ]
    );
    assert_eq!(call.message.body, b"hello");
    call.send(
        "HTTP/1.1 201 Fine By Me\r\nX-RateLimit-Remaining: 3\r\nrequest-id: r\r\n\
         retry-after-ms: 5\r\nKeep-Alive: timeout=5\r\nContent-Length: 2\r\n\r\nok",
    )
    .await;
    let response = client.response().await;
    assert_eq!(response.first_line(), "HTTP/1.1 201 Fine By Me");
    assert_eq!(
        response.lines(),
        ["X-RateLimit-Remaining: 3", "request-id: r", "retry-after-ms: 5", "Content-Length: 2"]
    );
    assert_eq!(response.text(), "ok");
}

/// Conversations are collected, other bodies stream through: the framing is the same in both cases.
#[tokio::test]
async fn body_framing_is_same_on_both_sides() {
    for path in ["/v1/messages", "/v1/files"] {
        let provider = Provider::start().await;
        let server = TestServer::before(&provider.base()).await;
        let mut client = Wire::connect(server.address).await;
        client
            .send(format!(
                "POST {path} HTTP/1.1\r\nhost: localhost\r\nTransfer-Encoding: chunked\r\n\
                 trailer: x-sum\r\n\r\n5\r\n{{\"a\":\r\n2\r\n1}}\r\n0\r\nx-sum: 7\r\n\r\n"
            ))
            .await;
        let mut call = provider.call().await;
        assert_eq!(call.message.text(), "{\"a\":1}");
        assert_eq!(call.message.header("content-length"), None);
        assert!(call.message.lines().contains(&"Transfer-Encoding: chunked"), "{path}");
        assert_eq!(call.message.trailers, ["x-sum: 7"], "{path}");
        call.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n")
            .await;
        let response = client.response().await;
        assert_eq!(response.chunks, Some(vec![2]));
        assert_eq!(response.lines(), ["Transfer-Encoding: chunked"]);

        client
            .send(format!(
                "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{{}}"
            ))
            .await;
        let mut call = call.wire.request().await;
        assert_eq!(call.message.header("content-length"), Some("2"));
        assert_eq!(call.message.header("transfer-encoding"), None);
        call.answer("200 OK", "{}").await;
        assert_eq!(client.response().await.header("content-length"), Some("2"));
    }
}

#[tokio::test]
async fn bodies_of_32_mb_pass_both_ways() {
    let sent = noise(1, 32 << 20);
    let answered = noise(2, 32 << 20);
    for path in ["/v1/messages", "/v1/files"] {
        let provider = Provider::start().await;
        let server = TestServer::before(&provider.base()).await;
        let mut client = Wire::connect(server.address).await;
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n",
            sent.len()
        );
        let asking = async {
            client.send(head).await;
            client.send(&sent).await;
            client.response().await
        };
        let answering = async {
            let mut call = provider.call().await;
            assert_eq!(call.message.header("content-length"), Some("33554432"));
            assert_eq!(digest(&call.message.body), digest(&sent));
            call.send(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", answered.len()))
                .await;
            call.send(&answered).await;
        };
        let (response, ()) = tokio::join!(asking, answering);
        assert_eq!(digest(&response.body), digest(&answered), "{path}");
    }
}

#[tokio::test]
async fn expect_100_continue_is_honoured() {
    for path in ["/v1/messages", "/v1/files"] {
        let provider = Provider::start().await;
        let server = TestServer::before(&provider.base()).await;
        let mut client = Wire::connect(server.address).await;
        client
            .send(format!(
                "POST {path} HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n"
            ))
            .await;
        client.expect("HTTP/1.1 100 Continue\r\n\r\n").await;
        client.send("{}").await;
        let mut call = provider.call().await;
        assert_eq!(call.message.text(), "{}");
        call.send("HTTP/1.1 100 Continue\r\n\r\n").await;
        call.answer("200 OK", "{}").await;
        assert_eq!(client.response().await.status(), 200, "{path}");
    }
}

#[tokio::test]
async fn empty_answers_keep_headers() {
    let provider = Provider::start().await;
    let server = TestServer::before(&provider.base()).await;
    let mut client = Wire::connect(server.address).await;
    client.send("HEAD /v1/files HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    let mut call = provider.call().await;
    assert_eq!(call.message.first_line(), "HEAD /v1/files HTTP/1.1");
    call.send("HTTP/1.1 200 OK\r\ncontent-length: 1234\r\netag: x\r\n\r\n").await;
    let response = client.message(false).await;
    assert_eq!(response.lines(), ["content-length: 1234", "etag: x"]);

    client.send("GET /v1/files HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    let mut call = call.wire.request().await;
    assert_eq!(call.message.header("content-length"), None);
    assert_eq!(call.message.header("transfer-encoding"), None);
    call.send("HTTP/1.1 304 Not Modified\r\netag: x\r\n\r\n").await;
    assert_eq!(client.message(false).await.lines(), ["etag: x"]);

    client.send("DELETE /v1/files HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    let mut call = call.wire.request().await;
    call.send("HTTP/1.1 204 No Content\r\nx-a: b\r\n\r\n").await;
    let response = client.message(false).await;
    assert_eq!(response.status(), 204);
    assert_eq!(response.lines(), vec!["x-a: b"]);

    client.send("POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n").await;
    let mut call = call.wire.request().await;
    assert_eq!(call.message.header("content-length"), Some("0"));
    call.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
    let response = client.response().await;
    assert_eq!(response.status(), 200);
    assert_eq!(response.header("content-length"), Some("0"));
}

#[tokio::test]
async fn errors_of_upstream_pass_unchanged() {
    let provider = Provider::start().await;
    let server = TestServer::before(&provider.base()).await;
    let mut client = Wire::connect(server.address).await;
    client
        .send("POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}")
        .await;
    let mut call = provider.call().await;
    let page = "<html><body>502 Bad Gateway</body></html>";
    call.send(format!(
        "HTTP/1.1 502 Bad Gateway\r\nserver: cloudflare\r\ncontent-type: text/html\r\n\
         retry-after: 7\r\ncontent-length: {}\r\n\r\n{page}",
        page.len()
    ))
    .await;
    let response = client.response().await;
    assert_eq!(response.status(), 502);
    assert_eq!(response.header("retry-after"), Some("7"));
    assert_eq!(response.header("x-plimsoll-error"), None);
    assert_eq!(response.text(), page);
}

#[tokio::test]
async fn http2_in_and_http1_out() {
    let provider = Provider::start().await;
    let server = TestServer::before(&provider.base()).await;
    let mut client = h2::Client::connect(server.address).await;
    let request = Request::post("http://localhost/v1/messages?beta=true")
        .header("content-length", "2")
        .header("cookie", "a=1")
        .header("cookie", "b=2")
        .body(h2::whole("{}").await)
        .unwrap();
    let asking = client.request(request);
    let answering = async {
        let mut call = provider.call().await;
        assert_eq!(call.message.first_line(), "POST /v1/messages?beta=true HTTP/1.1");
        assert_eq!(call.message.header("cookie"), Some("a=1; b=2"));
        assert_eq!(call.message.header("content-length"), Some("2"));
        let host = provider.base().replace("http://", "");
        assert_eq!(call.message.header("host"), Some(host.as_str()));
        call.send(
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\nrequest-id: r\r\n\r\n\
             2\r\n{}\r\n0\r\nx-sum: 9\r\n\r\n",
        )
        .await;
    };
    let (response, ()) = tokio::join!(asking, answering);
    assert_eq!(response.version(), http::Version::HTTP_2);
    assert_eq!(response.headers()["request-id"], "r");
    let (body, trailers) = h2::read(response.into_body()).await;
    assert_eq!(body, "{}");
    assert_eq!(trailers.unwrap()["x-sum"], "9");
}

#[tokio::test]
async fn http1_in_and_http2_out_by_alpn() {
    let mut provider = h2::Provider::start().await;
    let server = TestServer::with(provider.config()).await;
    let mut client = Wire::connect(server.address).await;
    client
        .send("POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nX-A: b\r\nte: trailers\r\ncontent-length: 2\r\n\r\n{}")
        .await;
    let call = provider.call().await;
    assert_eq!(call.request.version(), http::Version::HTTP_2);
    assert_eq!(call.request.headers()["x-a"], "b");
    assert_eq!(call.request.headers().get("host"), None);
    assert_eq!(call.request.uri().to_string(), format!("{}/v1/messages", provider.base()));
    let (mut feed, body) = h2::body();
    let response = http::Response::builder().header("trailer", "x-sum").body(body).unwrap();
    let (sent, _) = h2::read(call.answer(response)).await;
    assert_eq!(sent, "{}");
    feed.send_data("one".into()).await.unwrap();
    let head = client.head().await;
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    assert_eq!(client.chunk().await, b"one");
    let trailers = HeaderMap::from_iter([("x-sum".parse().unwrap(), "3".parse().unwrap())]);
    feed.send_trailers(trailers).await.unwrap();
    drop(feed);
    client.expect("0\r\nx-sum: 3\r\n\r\n").await;
}

/// A server whose upstream has the operator's key.
async fn server_with_a_key(provider: &Provider) -> TestServer {
    let mut config = config(&provider.base());
    config.upstreams[0].credential =
        Some((http::HeaderName::from_static("x-api-key"), Secret("own".into())));
    TestServer::with(config).await
}

#[tokio::test]
async fn upstream_credential_replaces_client_credential() {
    let provider = Provider::start().await;
    let server = server_with_a_key(&provider).await;
    let mut client = Wire::connect(server.address).await;
    client
        .send("GET /v1/models?key=c HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer c\r\nx-api-key: c\r\n\r\n")
        .await;
    let mut call = provider.call().await;
    assert_eq!(call.message.first_line(), "GET /v1/models HTTP/1.1");
    assert_eq!(call.message.header("x-api-key"), Some("own"));
    assert_eq!(call.message.header("authorization"), None);
    call.answer("200 OK", "{}").await;
    assert_eq!(client.response().await.status(), 200);
}

/// A gateway may take trailers for headers, which are dropped beside the operator's credential.
#[tokio::test]
async fn trailers_do_not_join_upstream_credential() {
    let provider = Provider::start().await;
    let server = server_with_a_key(&provider).await;
    let mut client = Wire::connect(server.address).await;
    for (path, body) in [("/v1/messages", "{\"a\":1}"), ("/v1/messages/count_tokens", "[]")] {
        let length = body.len();
        client
            .send(format!(
                "POST {path} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\
                 trailer: x-portkey-config\r\n\r\n{length:x}\r\n{body}\r\n0\r\nx-portkey-config: c\r\n\r\n"
            ))
            .await;
        let mut call = provider.call().await;
        assert_eq!(call.message.text(), body);
        assert!(call.message.trailers.is_empty(), "{path}: {:?}", call.message.trailers);
        call.answer("200 OK", "{}").await;
        assert_eq!(client.response().await.status(), 200);
    }
}

#[tokio::test]
async fn plain_upstream_is_reached_through_http_proxy() {
    let relay = Provider::start().await;
    let matcher = Matcher::builder().http(relay.base().replace("://", "://u:p@")).build();
    let server = TestServer::through(config("http://provider.example/base"), matcher).await;
    let mut client = Wire::connect(server.address).await;
    client.send("GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    let mut call = relay.call().await;
    assert_eq!(call.message.first_line(), "GET http://provider.example/base/v1/models HTTP/1.1");
    assert_eq!(call.message.header("host"), Some("provider.example"));
    assert_eq!(call.message.header("proxy-authorization"), Some("Basic dTpw"));
    call.answer("200 OK", "{}").await;
    assert_eq!(client.response().await.text(), "{}");
}

#[tokio::test]
async fn tls_upstream_is_reached_through_https_proxy_and_no_proxy_is_honoured() {
    let mut provider = h2::Provider::start().await;
    let relay = Provider::start().await;
    let config = provider.config();
    let builder = || Matcher::builder().https(relay.base());
    let server = TestServer::through(config.clone(), builder().build()).await;
    let mut client = Wire::connect(server.address).await;
    client.send("GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    let mut tunnel = relay.call().await;
    let authority = provider.base().replace("https://", "");
    assert_eq!(tunnel.message.first_line(), format!("CONNECT {authority} HTTP/1.1"));
    tunnel.send("HTTP/1.1 200 OK\r\n\r\n").await;
    let mut beyond = tokio::net::TcpStream::connect(&authority).await.unwrap();
    tokio::spawn(async move {
        tokio::io::copy_bidirectional(&mut tunnel.wire.stream, &mut beyond).await
    });
    let call = provider.call().await;
    drop(call.begin());
    assert_eq!(client.response().await.status(), 200);

    let direct = TestServer::through(config, builder().no("127.0.0.1").build()).await;
    let mut client = Wire::connect(direct.address).await;
    client.send("GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    drop(within("a direct call", provider.call()).await.begin());
    assert_eq!(client.response().await.status(), 200);
}

/// A body that ends with its connection has an end, and a client of HTTP/1.0 gets no chunks.
#[tokio::test]
async fn close_delimited_bodies_pass() {
    let provider = Provider::start().await;
    let server = TestServer::before(&provider.base()).await;
    let mut client = Wire::connect(server.address).await;
    client.send("GET /v1/files HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    let mut call = provider.call().await;
    call.send("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nall of it").await;
    drop(call);
    assert_eq!(client.response().await.text(), "all of it");

    let mut old = Wire::connect(server.address).await;
    old.send("GET /v1/files HTTP/1.0\r\nhost: localhost\r\n\r\n").await;
    let mut call = provider.call().await;
    call.begin_events().await;
    call.chunk("data: 1\n\n").await;
    call.end().await;
    let got = String::from_utf8(old.rest().await.unwrap()).unwrap();
    assert!(got.ends_with("\r\n\r\ndata: 1\n\n"), "{got}");
    assert!(!got.contains("chunked"), "{got}");
}

/// More streams than one HTTP/2 connection may carry do not wait for each other.
#[tokio::test]
async fn more_streams_than_http2_connection_allows_go_on_together() {
    const STREAMS: usize = 220;
    let mut provider = h2::Provider::start().await;
    let mut config = provider.config();
    config.limits.connections = Some(STREAMS);
    let server = TestServer::with(config).await;
    let mut open = Vec::new();
    for _ in 0..STREAMS {
        let mut client = Wire::connect(server.address).await;
        client.send("GET /v1/files HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
        let feed = provider.call().await.begin();
        client.head().await;
        open.push((client, feed));
    }
    for (client, feed) in &mut open {
        feed.send_data("one".into()).await.unwrap();
        assert_eq!(client.chunk().await, b"one");
    }
}

#[tokio::test]
async fn exchange_id_header_if_configured() {
    let provider = Provider::start().await;
    let mut config = config(&provider.base());
    config.request_id_header = true;
    let mut server = TestServer::with(config).await;
    let mut client = Wire::connect(server.address).await;
    client.send("GET /v1/files HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    let mut call = provider.call().await;
    call.answer("200 OK", "{}").await;
    let response = client.response().await;
    let exchange = server.next_exchange().await;
    assert_eq!(response.header("x-plimsoll-request-id"), Some(exchange.id.as_str()));
}
