//! Unusual HTTP messages: two lengths at once, many headers, odd targets, and bytes that are no request.

use http::Request;

use crate::support::h2;
use crate::support::http1::{Provider, Wire};
use crate::support::server::TestServer;

/// RFC 9112, Message Body Length: chunked has priority over a content length.
#[tokio::test]
async fn response_with_content_length_and_chunks_is_read_as_chunked() {
    let provider = Provider::start().await;
    let server = TestServer::before(&provider.base()).await;
    let both = "HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\nx-a: b\r\n\r\n\
                5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n";
    let mut client = Wire::connect(server.address).await;
    client.send("GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    let mut call = provider.call().await;
    call.send(both).await;
    let answer = client.response().await;
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.text(), "hello world");
    assert_eq!(answer.header("content-length"), None);
    assert_eq!(answer.header("x-a"), Some("b"));

    let mut client = h2::Client::connect(server.address).await;
    let request = Request::get("http://localhost/v1/models").body(h2::whole("").await).unwrap();
    let (response, ()) = tokio::join!(client.request(request), async {
        call.wire.request().await.send(both).await;
    });
    assert_eq!(response.headers().get("content-length"), None);
    assert_eq!(h2::read(response.into_body()).await.0, "hello world");
}

#[tokio::test]
async fn a_304_keeps_the_length_that_it_names() {
    let provider = Provider::start().await;
    let server = TestServer::before(&provider.base()).await;
    let mut client = Wire::connect(server.address).await;
    client.send("GET /v1/files HTTP/1.1\r\nhost: localhost\r\nif-none-match: x\r\n\r\n").await;
    let mut call = provider.call().await;
    call.send("HTTP/1.1 304 Not Modified\r\netag: x\r\ncontent-length: 4711\r\n\r\n").await;
    let answer = client.message(false).await;
    assert_eq!(answer.status(), 304);
    assert_eq!(answer.lines(), ["etag: x", "content-length: 4711"]);
    // The connection can be used again.
    client.send("GET /v1/files HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    let mut call = call.wire.request().await;
    call.answer("200 OK", "{}").await;
    assert_eq!(client.response().await.text(), "{}");
}

#[tokio::test]
async fn a_101_that_nobody_asked_for_is_a_502() {
    let provider = Provider::start().await;
    let mut server = TestServer::before(&provider.base()).await;
    for upgrade in ["", "connection: upgrade\r\nupgrade: h2c\r\n"] {
        let mut client = Wire::connect(server.address).await;
        let head = format!("GET /v1/models HTTP/1.1\r\nhost: localhost\r\n{upgrade}\r\n");
        client.send(head).await;
        let mut call = provider.call().await;
        call.send(
            "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
        )
        .await;
        let answer = client.response().await;
        assert_eq!(answer.status(), 502, "{upgrade:?}");
        assert_eq!(answer.header("x-plimsoll-error"), Some("upstream_failed"));
        assert_eq!(server.next_exchange().await.status, Some(502));
    }
}

/// A target with bytes that no URI may have is refused with advice, and is not forwarded.
#[tokio::test]
async fn target_with_bytes_that_no_uri_may_have_is_refused() {
    let provider = Provider::start().await;
    let server = TestServer::before(&provider.base()).await;
    for target in ["/up/a`b", "/up/a?q=\"b\"", "/up/a<b", "/up/a>b"] {
        let mut client = Wire::connect(server.address).await;
        client.send(format!("GET {target} HTTP/1.1\r\nhost: localhost\r\n\r\n")).await;
        let answer = tokio::select! {
            answer = client.response() => answer,
            _ = provider.accept() => panic!("{target} goes somewhere"),
        };
        assert_eq!(answer.status(), 400, "{target}");
        assert_eq!(answer.header("x-plimsoll-error"), Some("malformed_request"), "{target}");
        assert!(answer.text().contains("%60"), "{}", answer.text());
        assert!(answer.text().contains("%22"), "{}", answer.text());
    }
}

/// As many headers as Plimsoll reads of an HTTP/1 message (`docs/limits.md`).
const MOST_HEADERS: usize = 100;

/// Header lines `x-0: 0`, `x-1: 1` and so on.
fn numbered_headers(count: usize) -> String {
    (0..count).map(|at| format!("x-{at}: {at}\r\n")).collect()
}

#[tokio::test]
async fn many_headers_pass_both_ways() {
    // The request has a host, and its response a length.
    const MANY: usize = MOST_HEADERS - 1;
    let lines = numbered_headers(MANY);
    let (last, value) = (format!("x-{}", MANY - 1), (MANY - 1).to_string());
    let provider = Provider::start().await;
    let server = TestServer::before(&provider.base()).await;
    let mut client = Wire::connect(server.address).await;
    client.send(format!("GET /v1/models HTTP/1.1\r\nhost: localhost\r\n{lines}\r\n")).await;
    let mut call = provider.call().await;
    assert_eq!(call.message.header(&last), Some(value.as_str()));
    call.send(format!("HTTP/1.1 200 OK\r\n{lines}content-length: 2\r\n\r\n{{}}")).await;
    let answer = client.response().await;
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.lines().len(), MANY + 1);
    assert_eq!(answer.header(&last), Some(value.as_str()));
}

#[tokio::test]
async fn too_many_headers_are_refused() {
    let lines = numbered_headers(MOST_HEADERS);
    let provider = Provider::start().await;
    let server = TestServer::before(&provider.base()).await;
    let mut client = Wire::connect(server.address).await;
    client.send(format!("GET /v1/models HTTP/1.1\r\nhost: localhost\r\n{lines}\r\n")).await;
    let answer = client.response().await;
    assert_eq!(answer.status(), 431);
    assert_eq!(answer.header("x-plimsoll-error"), Some("headers_too_large"));
    let mut client = Wire::connect(server.address).await;
    client.send("GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    let mut call = provider.call().await;
    call.send(format!("HTTP/1.1 200 OK\r\n{lines}content-length: 2\r\n\r\n{{}}")).await;
    let answer = client.response().await;
    assert_eq!(answer.status(), 502);
    assert_eq!(answer.header("x-plimsoll-error"), Some("upstream_failed"));
}

/// Errors before there is a request carry our header, too, and are counted.
#[tokio::test]
async fn malformed_requests_get_error_header_and_are_counted() {
    let server = TestServer::before("http://127.0.0.1:1").await;
    let long = format!("GET /v1/{} HTTP/1.1\r\nhost: localhost\r\n\r\n", "a".repeat(70_000));
    let large = format!("GET / HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n", "a".repeat(200_000));
    for (bytes, status) in [
        ("NONSENSE\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost localhost\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: x\r\n\r\n", 400),
        (long.as_str(), 414),
        (large.as_str(), 431),
    ] {
        let mut client = Wire::connect(server.address).await;
        client.send(bytes).await;
        let answer = client.response().await;
        assert_eq!(answer.status(), status, "{}", &bytes[..bytes.len().min(80)]);
        assert!(answer.header("x-plimsoll-error").is_some(), "{status}");
    }
    let page = server.telemetry.render();
    let counted = page.lines().filter(|line| line.starts_with("plimsoll_requests_total{"));
    let counted: f64 =
        counted.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum();
    assert_eq!(counted, 5.0, "{page}");
}

#[tokio::test]
async fn odd_bytes_in_path_are_unchanged() {
    let provider = Provider::start().await;
    let server = TestServer::before(&provider.base()).await;
    for target in
        ["/up/a'b(c)d", "/up/a|b{c}d", "/up/a^b", "/up/a\"b", "/up/a?q='()|{}^`", "/v1/files/a|b"]
    {
        let mut client = Wire::connect(server.address).await;
        client.send(format!("GET {target} HTTP/1.1\r\nhost: localhost\r\n\r\n")).await;
        let call = tokio::time::timeout(std::time::Duration::from_secs(5), provider.call()).await;
        let mut call = call.unwrap_or_else(|_| panic!("{target} did not go through"));
        let sent = target.strip_prefix("/up").unwrap_or(target);
        assert_eq!(call.message.first_line(), format!("GET {sent} HTTP/1.1"));
        call.answer("200 OK", "{}").await;
        assert_eq!(client.response().await.status(), 200);
    }
}
