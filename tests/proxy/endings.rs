//! Every ending: what breaks upstream breaks for the client, a client that leaves frees its upstream stream, and a
//! drain lets streams finish.

use http::{Request, Response};
use plimsoll::context::Outcome;
use plimsoll::proxy::DrainOutcome;
use tokio::io::AsyncWriteExt as _;

use crate::support::http1::{Provider, Wire};
use crate::support::server::{TestServer, config};
use crate::support::{h2, within};

const ASK: &str = "POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}";

#[tokio::test]
async fn truncated_body_with_length_is_truncated_for_client() {
    let provider = Provider::start().await;
    let server = TestServer::before(&provider.base()).await;
    let mut client = Wire::connect(server.address).await;
    client.send(ASK).await;
    let mut call = provider.call().await;
    call.send("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhello").await;
    client.head().await;
    assert_eq!(client.exactly(5).await, b"hello");
    drop(call);
    assert_eq!(client.rest().await.unwrap_or_default(), b"");
}

#[tokio::test]
async fn truncated_chunks_never_end_well() {
    for reset in [false, true] {
        let provider = Provider::start().await;
        let server = TestServer::before(&provider.base()).await;
        let mut client = Wire::connect(server.address).await;
        client.send(ASK).await;
        let mut call = provider.call().await;
        call.begin_events().await;
        call.chunk("data: 1\n\n").await;
        client.head().await;
        assert_eq!(client.chunk().await, b"data: 1\n\n");
        if reset {
            call.wire.reset();
        } else {
            drop(call);
        }
        // Nor is there a terminating chunk.
        assert_eq!(client.rest().await.unwrap_or_default(), b"");
    }
}

/// What arrived together with the break still reaches the client.
#[tokio::test]
async fn bytes_received_before_break_are_all_forwarded() {
    let heads = ["content-length: 999999", "transfer-encoding: chunked"];
    for (head, framed, sent) in [
        (heads[0], "data: 1\n\n", "data: 1\n\n"),
        (heads[1], "9\r\ndata: 1\n\n\r\n", "9\r\ndata: 1\n\n\r\n"),
    ] {
        let provider = Provider::start().await;
        let server = TestServer::before(&provider.base()).await;
        let mut client = Wire::connect(server.address).await;
        client.send(ASK).await;
        let mut call = provider.call().await;
        call.send(format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{framed}")).await;
        drop(call);
        client.head().await;
        let got = client.rest().await.unwrap();
        assert_eq!(String::from_utf8(got).unwrap(), sent);
    }

    let provider = Provider::start().await;
    let server = TestServer::before(&provider.base()).await;
    let mut client = h2::Client::connect(server.address).await;
    let request =
        Request::post("http://localhost/v1/messages").body(h2::whole("{}").await).unwrap();
    let answering = async {
        let mut call = provider.call().await;
        call.send(format!("HTTP/1.1 200 OK\r\n{}\r\n\r\n9\r\ndata: 1\n\n\r\n", heads[1])).await;
    };
    let (response, ()) = tokio::join!(client.request(request), answering);
    let mut body = response.into_body();
    assert_eq!(h2::next(&mut body).await.unwrap().unwrap(), "data: 1\n\n");
    assert!(h2::next(&mut body).await.unwrap().is_err());
}

#[tokio::test]
async fn truncated_body_resets_stream_of_http2_client() {
    let provider = Provider::start().await;
    let server = TestServer::before(&provider.base()).await;
    let mut client = h2::Client::connect(server.address).await;
    let request =
        Request::post("http://localhost/v1/messages").body(h2::whole("{}").await).unwrap();
    let answering = async {
        let mut call = provider.call().await;
        call.begin_events().await;
        call.chunk("data: 1\n\n").await;
        call
    };
    let (response, call) = tokio::join!(client.request(request), answering);
    let mut body = response.into_body();
    assert_eq!(h2::next(&mut body).await.unwrap().unwrap(), "data: 1\n\n");
    drop(call);
    let broken = h2::next(&mut body).await.expect("no clean end");
    assert!(broken.is_err(), "{broken:?}");
}

#[tokio::test]
async fn reset_http2_breaks_http1_client() {
    let mut provider = h2::Provider::start().await;
    let server = TestServer::with(provider.config()).await;
    let mut client = Wire::connect(server.address).await;
    client.send(ASK).await;
    let mut feed = provider.call().await.begin();
    feed.send_data("data: 1\n\n".into()).await.unwrap();
    client.head().await;
    assert_eq!(client.chunk().await, b"data: 1\n\n");
    feed.abort(std::io::Error::other("broken by the script"));
    assert_eq!(client.rest().await.unwrap_or_default(), b"");
}

#[tokio::test]
async fn leaving_cancels_upstream_at_once() {
    let provider = Provider::start().await;
    let server = TestServer::before(&provider.base()).await;

    let mut client = Wire::connect(server.address).await;
    client.send(ASK).await;
    let mut call = provider.call().await;
    call.begin_events().await;
    call.chunk("data: 1\n\n").await;
    client.head().await;
    drop(client);
    call.wire.gone().await;

    // Also while the proxy waits for the response's headers.
    let mut client = Wire::connect(server.address).await;
    client.send(ASK).await;
    let mut call = provider.call().await;
    drop(client);
    call.wire.gone().await;
}

#[tokio::test]
async fn http2_client_that_resets_its_stream_cancels_upstream() {
    let provider = Provider::start().await;
    let server = TestServer::before(&provider.base()).await;
    let mut client = h2::Client::connect(server.address).await;
    let request =
        Request::post("http://localhost/v1/messages").body(h2::whole("{}").await).unwrap();
    let answering = async {
        let mut call = provider.call().await;
        call.begin_events().await;
        call
    };
    let (response, mut call) = tokio::join!(client.request(request), answering);
    drop(response);
    call.wire.gone().await;
}

/// How a stream ends is the provider's matter, also if it says in it that it failed.
#[tokio::test]
async fn error_in_stream_does_not_break_it() {
    let provider = Provider::start().await;
    let server = TestServer::before(&provider.base()).await;
    let mut client = Wire::connect(server.address).await;
    client.send(ASK).await;
    let mut call = provider.call().await;
    call.begin_events().await;
    let error = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"x\"}}\n\n";
    call.chunk(error).await;
    call.end().await;
    assert_eq!(client.response().await.text(), error);
}

#[tokio::test]
async fn draining_finishes_streams() {
    let provider = Provider::start().await;
    let mut server = TestServer::before(&provider.base()).await;
    let mut idle = Wire::connect(server.address).await;
    let mut silent = Wire::connect(server.address).await;
    idle.send("GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    let mut call = provider.call().await;
    call.answer("200 OK", "{}").await;
    idle.response().await;
    let mut client = Wire::connect(server.address).await;
    client.send(ASK).await;
    let mut call = call.wire.request().await;
    call.begin_events().await;
    client.head().await;
    server.stop();
    call.chunk("data: 1\n\n").await;
    assert_eq!(client.chunk().await, b"data: 1\n\n");
    // An idle connection is closed after a few seconds, also one that never sent a request. The stream continues.
    idle.gone().await;
    silent.gone().await;
    assert!(tokio::net::TcpStream::connect(server.address).await.is_err());
    call.chunk("data: 2\n\n").await;
    assert_eq!(client.chunk().await, b"data: 2\n\n");
    call.end().await;
    assert_eq!(client.rest().await.unwrap(), b"0\r\n\r\n");
    assert_eq!(server.drained().await, DrainOutcome::Whole);
}

/// A request may be on its way when the signal to end comes, and a load balancer hears of the end later. Both requests are
/// answered, and their clients told to open another connection for the next.
#[tokio::test]
async fn draining_server_answers_requests_that_are_on_their_way() {
    let provider = Provider::start().await;
    let mut server = TestServer::before(&provider.base()).await;
    let mut kept = Wire::connect(server.address).await;
    let get = "GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n";
    kept.send(get).await;
    let mut call = provider.call().await;
    call.answer("200 OK", "{}").await;
    assert_eq!(kept.response().await.header("connection"), None);
    server.stop();
    let mut new = Wire::connect(server.address).await;
    for client in [&mut kept, &mut new] {
        client.send(get).await;
        call = call.wire.request().await;
        call.answer("200 OK", "{}").await;
        assert_eq!(client.response().await.header("connection"), Some("close"));
        client.gone().await;
    }
    // It does not wait once the last connection has ended.
    assert_eq!(server.drained().await, DrainOutcome::Whole);
}

/// A client that only ends its sending side cannot be told from one that has left, for whom the provider would write on at
/// a cost.
#[tokio::test]
async fn client_that_ends_its_sending_side_has_left() {
    let provider = Provider::start().await;
    let mut server = TestServer::before(&provider.base()).await;
    let mut client = Wire::connect(server.address).await;
    client.send(ASK).await;
    let mut call = provider.call().await;
    client.stream.shutdown().await.unwrap();
    within("the upstream to be let go", call.wire.gone()).await;
    assert_eq!(server.next_exchange().await.outcome, Outcome::ClientLeft);
}

#[tokio::test]
async fn late_drain_breaks_streams() {
    let provider = Provider::start().await;
    let mut config = config(&provider.base());
    config.limits.drain_s = 0;
    let mut server = TestServer::with(config).await;
    let mut client = Wire::connect(server.address).await;
    client.send(ASK).await;
    let mut call = provider.call().await;
    call.begin_events().await;
    call.chunk("data: 1\n\n").await;
    client.head().await;
    assert_eq!(client.chunk().await, b"data: 1\n\n");
    server.stop();
    assert_eq!(client.rest().await.unwrap_or_default(), b"");
    within("the upstream to be let go", call.wire.gone()).await;
    assert_eq!(server.drained().await, DrainOutcome::Broken(1));
}

/// The client is told to go away (GOAWAY without an error): it can open no more streams, and its open one continues.
#[tokio::test]
async fn http2_client_finishes_its_stream_during_drain() {
    let provider = Provider::start().await;
    let mut server = TestServer::before(&provider.base()).await;
    let stream = tokio::net::TcpStream::connect(server.address).await.unwrap();
    let (mut client, connection) = ::h2::client::handshake(stream).await.unwrap();
    let connection = tokio::spawn(connection);
    let post = || Request::post("http://localhost/v1/messages").body(()).unwrap();
    let (response, mut request_body) = client.send_request(post(), false).unwrap();
    request_body.send_data("{}".into(), true).unwrap();
    let mut call = provider.call().await;
    call.begin_events().await;
    let response = within("the response", response).await.unwrap();
    server.stop();
    let told_to_go_away = async {
        loop {
            match client.clone().ready().await {
                Ok(_) => tokio::task::yield_now().await,
                Err(error) => break error,
            }
        }
    };
    let error = within("GOAWAY", told_to_go_away).await;
    assert!(error.is_go_away(), "{error}");
    assert!(error.is_remote(), "{error}");
    assert_eq!(error.reason(), Some(::h2::Reason::NO_ERROR));
    assert!(client.send_request(post(), true).is_err(), "it opened another stream");

    call.chunk("data: 1\n\n").await;
    call.end().await;
    let mut body = response.into_body();
    let data = within("the body", body.data()).await.unwrap().unwrap();
    assert_eq!(data, "data: 1\n\n");
    while let Some(data) = within("the end of the body", body.data()).await {
        assert_eq!(data.unwrap(), "");
    }
    assert_eq!(server.drained().await, DrainOutcome::Whole);
    within("the connection to end", connection).await.unwrap().unwrap();
}

#[tokio::test]
async fn client_that_leaves_cancels_http2_upstreams_stream() {
    let mut provider = h2::Provider::start().await;
    let server = TestServer::with(provider.config()).await;
    let mut client = Wire::connect(server.address).await;
    client.send(ASK).await;
    let mut feed = provider.call().await.begin();
    client.head().await;
    drop(client);
    // The provider notices when it sends more.
    let noticed = async { while feed.send_data("data: 1\n\n".into()).await.is_ok() {} };
    within("the stream to be cancelled", noticed).await;
    // The connection stays open for others.
    let mut client = Wire::connect(server.address).await;
    client.send(ASK).await;
    let mut feed = provider.call().await.begin();
    feed.send_data("data: 2\n\n".into()).await.unwrap();
    client.head().await;
    assert_eq!(client.chunk().await, b"data: 2\n\n");
}

/// Over HTTP/2 the end may come after the last byte, in a frame of its own. An HTTP/1.1 client has the whole response by
/// then.
#[tokio::test]
async fn response_is_complete_with_last_byte_of_its_length() {
    for (status, outcome) in [(200, Outcome::Complete), (429, Outcome::Refused)] {
        let mut provider = h2::Provider::start().await;
        let mut server = TestServer::with(provider.config()).await;
        let mut client = Wire::connect(server.address).await;
        client.send(ASK).await;
        let (mut feed, body) = h2::body();
        let response = Response::builder().status(status).header("content-length", 2);
        drop(provider.call().await.answer(response.body(body).unwrap()));
        feed.send_data("{}".into()).await.unwrap();
        assert_eq!(client.response().await.status(), status);
        assert_eq!(server.next_exchange().await.outcome, outcome);
    }
}
