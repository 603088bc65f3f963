//! Every limit, at it and past it: the error says what happened, and whose fault it is.

use std::time::{Duration, Instant};

use http::Request;

use crate::support::http1::{Message, Provider, Wire};
use crate::support::server::{TestServer, config};
use crate::support::{h2, within};

fn code(message: &Message) -> (u16, &str) {
    (message.status(), message.header("x-plimsoll-error").unwrap_or("none"))
}

async fn ask(server: &TestServer, path: &str) -> Message {
    let mut client = Wire::connect(server.address).await;
    client
        .send(format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{{}}"))
        .await;
    client.response().await
}

#[tokio::test]
async fn one_request_too_many_is_refused() {
    let provider = Provider::start().await;
    let mut config = config(&provider.base());
    // Room for one connection, and so for two requests at once, which an HTTP/2 connection can have.
    config.limits.process_bytes = Some(170 << 10);
    config.limits.connections = Some(1);
    let server = TestServer::with(config).await;
    let mut client = h2::Client::connect(server.address).await;
    let get = |body| Request::get("http://localhost/v1/models").body(body).unwrap();
    let first = tokio::spawn(client.sender.send_request(get(h2::whole("").await)));
    let mut first_call = provider.call().await;
    let second = tokio::spawn(client.sender.send_request(get(h2::whole("").await)));
    let mut second_call = provider.call().await;
    let refused = client.request(get(h2::whole("").await)).await;
    assert_eq!(refused.status(), 503);
    assert_eq!(refused.headers()["x-plimsoll-error"], "too_many_requests_at_once");
    first_call.answer("200 OK", "{}").await;
    second_call.answer("200 OK", "{}").await;
    assert_eq!(first.await.unwrap().unwrap().status(), 200);
    assert_eq!(second.await.unwrap().unwrap().status(), 200);
}

#[tokio::test]
async fn one_connection_too_many_is_refused() {
    let provider = Provider::start().await;
    let mut config = config(&provider.base());
    config.limits.connections = Some(1);
    let server = TestServer::with(config).await;
    let mut client = Wire::connect(server.address).await;
    client.send("GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    let mut call = provider.call().await;
    let turned = ask(&server, "/v1/messages").await;
    assert_eq!(code(&turned), (503, "too_many_connections"));
    assert!(turned.text().contains("limits.connections"), "{}", turned.text());
    // The connection that was accepted is served.
    call.answer("200 OK", "{}").await;
    assert_eq!(client.response().await.status(), 200);
    drop(client);
    // A free place can be used again; the proxy needs a moment to notice.
    let mut next = Box::pin(call.wire.request());
    loop {
        let mut client = Wire::connect(server.address).await;
        client.send("GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
        tokio::select! {
            mut call = &mut next => {
                call.answer("200 OK", "{}").await;
                assert_eq!(client.response().await.status(), 200);
                break;
            }
            turned = client.response() => assert_eq!(turned.status(), 503),
        }
    }
}

/// However many connections there are, each gets 503 or is counted as closed.
#[tokio::test]
async fn every_connection_past_limit_hears_503_or_is_counted() {
    const MANY: usize = 100;
    let provider = Provider::start().await;
    let mut config = config(&provider.base());
    config.limits.connections = Some(1);
    let server = TestServer::with(config).await;
    let mut client = Wire::connect(server.address).await;
    client.send("GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    let _call = provider.call().await;
    // Connections without a request use up all places for individual 503 responses.
    let mut silent = Vec::new();
    for _ in 0..MANY {
        silent.push(Wire::connect(server.address).await);
    }
    let turned = || -> [u64; 2] {
        let page = server.telemetry.render();
        ["answered", "closed"].map(|end| {
            let series = format!("plimsoll_connections_turned_total{{end=\"{end}\"}} ");
            page.lines().find_map(|line| line.strip_prefix(&*series)?.parse().ok()).unwrap()
        })
    };
    let counting = async {
        while turned().iter().sum::<u64>() < MANY as u64 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within("each to be counted", counting).await;
    assert_eq!(turned(), [0, MANY as u64]);
    assert_eq!(ask(&server, "/v1/messages").await.status(), 503);
    within("that, too", async {
        while turned() != [1, MANY as u64] {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

/// While a few connections are refused, each 503 is an exchange that can be found by its id; in a flood it is not.
#[tokio::test]
async fn each_503_past_limit_has_headers_of_our_other_errors() {
    let provider = Provider::start().await;
    let mut config = config(&provider.base());
    (config.limits.connections, config.request_id_header) = (Some(1), true);
    let mut server = TestServer::with(config).await;
    let mut client = Wire::connect(server.address).await;
    client.send("GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    let _call = provider.call().await;
    for others in [0, 100] {
        // Connections without a request use up all places for individual 503 responses.
        let mut silent = Vec::new();
        for _ in 0..others {
            silent.push(Wire::connect(server.address).await);
        }
        let refused = within("a 503", refused(&server)).await;
        assert_eq!(code(&refused), (503, "too_many_connections"), "{}", refused.head);
        assert_eq!(refused.header("retry-after"), Some("1"));
        assert_eq!(refused.lines().iter().filter(|it| it.starts_with("connection:")).count(), 1);
        let id = refused.header("x-plimsoll-request-id").unwrap();
        if others > 0 {
            // A flood does not push other exchanges out of the lists.
            server.expect_no_exchange();
            continue;
        }
        let exchange = server.next_exchange().await;
        assert_eq!(id, exchange.id.as_str());
        assert_eq!(exchange.timing.response_bytes, refused.body.len() as u64);
        assert!(exchange.timing.response_bytes > 0);
    }
}

/// The response on a connection past the limit, which may be closed if its request came too late.
async fn refused(server: &TestServer) -> Message {
    loop {
        let mut client = Wire::connect(server.address).await;
        client.send("GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
        if client.begins().await {
            return client.response().await;
        }
    }
}

/// Requests that are refused, and one that is none; a response to HEAD has no body.
#[tokio::test]
async fn responses_of_our_own_count_as_bytes_of_responses() {
    let provider = Provider::start().await;
    let mut config = config(&provider.base());
    config.request_id_header = true;
    let mut server = TestServer::with(config).await;
    for (line, status) in [
        ("GET /nowhere HTTP/1.1", 404),
        ("HEAD /nowhere HTTP/1.1", 404),
        ("GET / HTTP/1.1", 200),
        ("GET /v1/mo dels HTTP/1.1", 400),
    ] {
        let mut client = Wire::connect(server.address).await;
        client.send(format!("{line}\r\nhost: localhost\r\n\r\n")).await;
        let response = client.message(!line.starts_with("HEAD")).await;
        assert_eq!(response.status(), status, "{line}");
        let exchange = server.next_exchange().await;
        assert_eq!(exchange.timing.response_bytes, response.body.len() as u64, "{line}");
        assert_eq!(response.header("x-plimsoll-request-id"), Some(exchange.id.as_str()), "{line}");
    }
}

#[tokio::test]
async fn headers_at_limit_pass_and_past_it_are_refused() {
    let provider = Provider::start().await;
    let mut config = config(&provider.base());
    config.limits.header_bytes = 1000;
    let server = TestServer::with(config).await;
    let mut client = Wire::connect(server.address).await;
    // With their separators, "host: localhost" and "x:" are 17 and 5 bytes.
    let request = |filler: usize| {
        format!("GET /v1/models HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n", "a".repeat(filler))
    };
    client.send(request(1000 - 22)).await;
    let mut call = provider.call().await;
    call.answer("200 OK", "{}").await;
    assert_eq!(client.response().await.status(), 200);
    client.send(request(1001 - 22)).await;
    let refused = client.response().await;
    assert_eq!(code(&refused), (431, "headers_too_large"));
}

#[tokio::test]
async fn unreachable_upstream_is_502() {
    let provider = Provider::start().await;
    let base = provider.base();
    drop(provider);
    let server = TestServer::before(&base).await;
    let refused = ask(&server, "/v1/messages").await;
    assert_eq!(code(&refused), (502, "upstream_failed"));
    assert!(refused.text().contains("\\\"up\\\""), "{}", refused.text());
    let value: serde_json::Value = serde_json::from_slice(&refused.body).unwrap();
    assert_eq!(value["type"], "error", "Anthropic's error shape: {value}");
}

#[tokio::test]
async fn upstream_that_hangs_up_before_its_headers_is_502() {
    let provider = Provider::start().await;
    let server = TestServer::before(&provider.base()).await;
    let (refused, ()) = tokio::join!(ask(&server, "/v1/chat/completions"), async {
        drop(provider.call().await);
    });
    assert_eq!(code(&refused), (502, "upstream_failed"));
    let value: serde_json::Value = serde_json::from_slice(&refused.body).unwrap();
    assert_eq!(value["error"]["code"], "upstream_failed", "OpenAI's error shape: {value}");
}

#[tokio::test]
async fn missing_tls_handshake_is_504() {
    let provider = Provider::start().await;
    let mut config = config(&provider.base().replace("http:", "https:"));
    config.limits.connect_s = 1;
    let server = TestServer::with(config).await;
    let (refused, silent) =
        tokio::join!(ask(&server, "/v1beta/models/m:generateContent"), provider.accept());
    drop(silent);
    assert_eq!(code(&refused), (504, "upstream_too_slow"));
    let value: serde_json::Value = serde_json::from_slice(&refused.body).unwrap();
    assert_eq!(value["error"]["code"], 504, "Gemini's error shape: {value}");
}

#[tokio::test]
async fn connect_request_is_refused_with_hint_about_base_url() {
    let provider = Provider::start().await;
    let server = TestServer::before(&provider.base()).await;
    let mut client = Wire::connect(server.address).await;
    client.send("CONNECT api.openai.com:443 HTTP/1.1\r\nhost: api.openai.com:443\r\n\r\n").await;
    let refused = client.response().await;
    assert_eq!(code(&refused), (405, "no_forward_proxy"));
    assert!(refused.text().contains("base URL"), "{}", refused.text());
}

#[tokio::test]
async fn missing_headers_time_out_and_slow_reply_does_not() {
    let provider = Provider::start().await;
    let mut config = config(&provider.base());
    config.limits.header_s = 1;
    let server = TestServer::with(config).await;
    // Nothing, half of HTTP/2's preface, half of a request's headers.
    for half in ["", "PRI * HTTP/2.0\r\n", "GET /v1/models HTTP/1.1\r\nhost: localhos"] {
        let mut client = Wire::connect(server.address).await;
        client.send(half).await;
        let began = Instant::now();
        client.gone().await;
        assert!(began.elapsed() >= Duration::from_millis(900), "{half:?} was closed too early");
    }
    // A response may take longer than that. Afterwards the connection may be idle for the same time again.
    let mut client = Wire::connect(server.address).await;
    client.send("GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    let mut call = provider.call().await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    call.answer("200 OK", "{}").await;
    assert_eq!(client.response().await.status(), 200);
    client.send("GET /v1/models HTTP/1.1\r\n").await;
    client.gone().await;
}

#[tokio::test]
async fn idle_http2_connection_is_closed_and_slow_reply_is_not() {
    let provider = Provider::start().await;
    let mut config = config(&provider.base());
    config.limits.header_s = 1;
    let server = TestServer::with(config).await;
    let mut client = h2::Client::connect(server.address).await;
    let request = || async {
        http::Request::get("http://localhost/v1/models").body(h2::whole("").await).unwrap()
    };
    let (response, wire) = tokio::join!(client.request(request().await), async {
        let mut call = provider.call().await;
        tokio::time::sleep(Duration::from_millis(1500)).await;
        call.answer("200 OK", "{}").await;
        call.wire
    });
    assert_eq!(h2::read(response.into_body()).await.0, "{}");
    within("the idle connection to close", async {
        while !client.sender.is_closed() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    counted(&server, "plimsoll_client_timeouts_total{kind=\"idle\"} 1").await;
    // A new connection is served as usual.
    let mut client = h2::Client::connect(server.address).await;
    let (response, ()) = tokio::join!(client.request(request().await), async {
        let mut call = wire.request().await;
        call.answer("200 OK", "{}").await;
    });
    assert_eq!(response.status(), 200);
}

/// For a body that is collected, and for one that streams through.
#[tokio::test]
async fn request_body_that_stalls_is_given_up_at_both_ends() {
    let provider = Provider::start().await;
    let mut config = config(&provider.base());
    config.limits.body_s = 1;
    let server = TestServer::with(config).await;
    for (number, path) in ["/v1/messages", "/v1/files"].into_iter().enumerate() {
        let mut client = Wire::connect(server.address).await;
        client
            .send(format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{{"))
            .await;
        if path == "/v1/files" {
            let mut upstream = provider.accept().await;
            upstream.gone().await;
        }
        let refused = client.response().await;
        assert_eq!(code(&refused), (408, "body_too_slow"), "{path}");
        client.gone().await;
        let line = format!("plimsoll_client_timeouts_total{{kind=\"body\"}} {}", number + 1);
        counted(&server, &line).await;
    }
    // Nor is an upgrade kept waiting by its body.
    let mut client = Wire::connect(server.address).await;
    client
        .send("GET /v1/responses HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\ncontent-length: 9\r\n\r\n{")
        .await;
    provider.accept().await.gone().await;
    assert_eq!(code(&client.response().await), (408, "body_too_slow"));
    // A slow body is not a stalled one.
    let mut client = Wire::connect(server.address).await;
    client.send("POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\n\r\n").await;
    for byte in ["{", " ", " ", "}"] {
        tokio::time::sleep(Duration::from_millis(400)).await;
        client.send(byte).await;
    }
    let mut call = provider.call().await;
    call.answer("200 OK", "{}").await;
    assert_eq!(client.response().await.status(), 200);
}

/// Over HTTP/2 the upstream's error does not say that the body was aborted.
#[tokio::test]
async fn request_body_that_stalls_is_not_http2_upstreams_failure() {
    let mut provider = h2::Provider::start().await;
    let mut config = provider.config();
    config.limits.body_s = 1;
    let server = TestServer::with(config).await;
    let mut client = Wire::connect(server.address).await;
    client.send("POST /v1/files HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{").await;
    let _call = provider.call().await;
    assert_eq!(code(&client.response().await), (408, "body_too_slow"));
    counted(&server, "plimsoll_client_timeouts_total{kind=\"body\"} 1").await;
}

/// Waits until the metrics contain this line.
async fn counted(server: &TestServer, line: &str) {
    let waiting = async {
        while !server.telemetry.render().lines().any(|it| it == line) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within(line, waiting).await;
}
