//! Lines that break, stall or end early: an answer arrives although its request was not read, a break stays a break,
//! and nothing is held for what nobody reads.

use std::io::Write as _;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use plimsoll::config::Tls;
use plimsoll::context::Outcome;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;

use crate::support::http1::{Provider, Wire};
use crate::support::server::{TestServer, config};
use crate::support::{digest, h2, noise, within};

/// Waits until no memory for bodies is held.
async fn holds_nothing(server: &TestServer) {
    let name = "plimsoll_memory_held_bytes{kind=\"request\"} ";
    let held = || {
        let metrics = server.telemetry.render();
        metrics.lines().find_map(|line| line.strip_prefix(name)).unwrap().to_owned()
    };
    let mut tries = 0;
    while held() != "0" {
        assert!(tries < 500, "{} bytes are held", held());
        tries += 1;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Sends a whole request before it reads anything, as simple clients do.
async fn send_all(client: &mut Wire, path: &str, length: usize) {
    let head =
        format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n");
    client.send(head).await;
    let piece = vec![b' '; 1 << 20];
    for _ in 0..length / piece.len() {
        client.send(&piece).await;
    }
}

const UPLOAD: usize = 48 << 20;

#[tokio::test]
async fn upstream_that_answers_before_it_reads_holds_nothing() {
    // Read up to the limit of bodies, and not read at all.
    for path in ["/v1/messages", "/v1/files"] {
        let provider = Provider::start().await;
        let mut server = TestServer::before(&provider.base()).await;
        let mut client = Wire::connect(server.address).await;
        let answering = async {
            let mut wire = provider.accept().await;
            wire.head().await;
            wire.send("HTTP/1.1 401 Unauthorized\r\ncontent-length: 2\r\n\r\n{}").await;
            wire
        };
        let (_, mut wire) = tokio::join!(send_all(&mut client, path, UPLOAD), answering);
        assert_eq!(client.response().await.status(), 401, "{path}");
        assert_eq!(server.next_exchange().await.outcome, Outcome::Refused);
        // The connection to the upstream, which would have to be read, is closed; the client's is not.
        wire.gone().await;
        holds_nothing(&server).await;
        client.send("GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
        provider.call().await.answer("200 OK", "{}").await;
        assert_eq!(client.response().await.status(), 200);
    }
}

#[tokio::test]
async fn http2_upstream_that_answers_before_it_reads_holds_nothing() {
    let certificates = h2::certificates();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut config = config(&format!("https://{}", listener.local_addr().unwrap()));
    config.extra_ca = Some(certificates.authority.clone());
    let tls = h2::acceptor(&certificates, &[b"h2"]);
    let (tell, mut reset) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut connection =
            ::h2::server::handshake(tls.accept(stream).await.unwrap()).await.unwrap();
        while let Some(Ok((request, mut respond))) = connection.accept().await {
            let answer = Response::builder().status(413).body(()).unwrap();
            let mut sending = respond.send_response(answer, false).unwrap();
            sending.send_data(Bytes::from_static(b"{}"), true).unwrap();
            let (mut body, tell) = (request.into_body(), tell.clone());
            // Its window is never opened again.
            tokio::spawn(async move {
                while let Some(Ok(_)) = body.data().await {}
                let _ = tell.send(());
            });
        }
    });
    let server = TestServer::with(config).await;
    for path in ["/v1/messages", "/v1/files"] {
        let mut client = Wire::connect(server.address).await;
        send_all(&mut client, path, UPLOAD).await;
        assert_eq!(client.response().await.status(), 413, "{path}");
        within("the stream to be reset", reset.recv()).await.unwrap();
        holds_nothing(&server).await;
        let metrics = server.telemetry.render();
        assert!(metrics.contains("plimsoll_upstream_streams{upstream=\"up\"} 0\n"));
    }
}

/// An upstream that closes with unread data resets the connection. Its answer may be larger than one read.
#[tokio::test]
async fn answer_before_reset_arrives_whole() {
    let provider = Provider::start().await;
    let server = TestServer::before(&provider.base()).await;
    let answer = noise(5, 40_000);
    let mut client = Wire::connect(server.address).await;
    let answering = async {
        let mut wire = provider.accept().await;
        wire.head().await;
        let head = format!("HTTP/1.1 413 Too Large\r\ncontent-length: {}\r\n\r\n", answer.len());
        wire.send(head).await;
        wire.send(&answer).await;
        drop(wire);
    };
    tokio::join!(send_all(&mut client, "/v1/files", UPLOAD), answering);
    let response = client.response().await;
    assert_eq!(response.status(), 413);
    assert_eq!(digest(&response.body), digest(&answer));
}

/// Our own errors come before a body is read, too.
#[tokio::test]
async fn error_of_ours_reaches_client_that_sends_first() {
    let provider = Provider::start().await;
    let mut config = config(&provider.base());
    config.upstreams[0].dialects.clear();
    config.upstreams[0].prefix = Some("/up".into());
    let server = TestServer::with(config).await;
    let mut client = Wire::connect(server.address).await;
    send_all(&mut client, "/nowhere", UPLOAD).await;
    assert_eq!(client.response().await.status(), 404);
    // The upstream closes without an answer.
    let (_, ()) = tokio::join!(send_all(&mut client, "/up/v1/files", UPLOAD), async {
        provider.accept().await.head().await;
    });
    assert_eq!(client.response().await.status(), 502);
    holds_nothing(&server).await;
}

/// An HTTP/2 client that resets its stream without an error has not sent a whole request.
#[tokio::test]
async fn reset_request_never_ends_well() {
    let provider = Provider::start().await;
    let server = TestServer::before(&provider.base()).await;
    let stream = TcpStream::connect(server.address).await.unwrap();
    let (mut sender, connection) = ::h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let request = Request::post("http://localhost/v1/files").body(()).unwrap();
    let (_response, mut body) = sender.send_request(request, false).unwrap();
    body.send_data(Bytes::from_static(b"one"), false).unwrap();
    let mut wire = provider.accept().await;
    wire.head().await;
    assert_eq!(wire.chunk().await, b"one");
    body.send_reset(::h2::Reason::NO_ERROR);
    assert_eq!(wire.rest().await.unwrap_or_default(), b"", "no last chunk");
}

/// The client would have seen that its gzip is cut; it gets the body decoded.
#[tokio::test]
async fn cut_compressed_stream_breaks() {
    let provider = Provider::start().await;
    let server = TestServer::before(&provider.base()).await;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(b": a comment\n\n").unwrap();
    let whole = encoder.finish().unwrap();
    for (length, is_cut) in [(whole.len(), false), (whole.len() - 9, true)] {
        let mut client = Wire::connect(server.address).await;
        let ask = r#"{"model":"gpt-4o","stream":true,"messages":[{"role":"user","content":"Hi"}]}"#;
        client
            .send(format!(
                "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
                 content-length: {}\r\n\r\n{ask}",
                ask.len()
            ))
            .await;
        let mut call = provider.call().await;
        call.send(
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: gzip\r\n\
             transfer-encoding: chunked\r\n\r\n",
        )
        .await;
        call.chunk(&whole[..length]).await;
        call.end().await;
        client.head().await;
        let got = client.rest().await.unwrap_or_default();
        assert_eq!(got.ends_with(b"0\r\n\r\n"), !is_cut, "{:?}", String::from_utf8_lossy(&got));
    }
}

/// Both sides of a tunnel over TLS: what their sockets take at once is small.
#[tokio::test]
async fn tls_message_arrives_whole() {
    let certificates = h2::certificates();
    let tls = h2::acceptor(&certificates, &[b"http/1.1"]);
    let small = || {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(64 * 1024).unwrap();
        socket
    };
    let socket = small();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(8).unwrap();
    let mut config = config(&format!("https://{}", listener.local_addr().unwrap()));
    config.extra_ca = Some(certificates.authority.clone());
    config.tls =
        Some(Tls { certificate: certificates.certificate.clone(), key: certificates.key.clone() });
    let server = TestServer::with(config).await;
    let connecting = async {
        let stream = small().connect(server.address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let connector = h2::connector(&certificates.authority, &[b"http/1.1"]);
        let mut client = connector.connect(name, stream).await.unwrap();
        send(
            &mut client,
            b"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",
        )
        .await;
        read_head(&mut client).await;
        client
    };
    let accepting = async {
        let (stream, _) = within("a connection", listener.accept()).await.unwrap();
        let mut upstream = tls.accept(stream).await.unwrap();
        read_head(&mut upstream).await;
        send(&mut upstream, b"HTTP/1.1 101 Switching\r\nconnection: Upgrade\r\nupgrade: x\r\n\r\n")
            .await;
        upstream
    };
    let (mut client, mut upstream) = tokio::join!(connecting, accepting);
    for length in [700_000, 300_001] {
        let message = noise(length as u64, length);
        let ((), got) =
            tokio::join!(send(&mut client, &message), read_slowly(&mut upstream, length));
        assert_eq!(digest(&got), digest(&message), "up");
        let ((), got) =
            tokio::join!(send(&mut upstream, &message), read_slowly(&mut client, length));
        assert_eq!(digest(&got), digest(&message), "down");
    }
}

/// Reads so slowly that the proxy's socket is full when the last byte comes.
async fn read_slowly(from: &mut (impl AsyncRead + Unpin), length: usize) -> Vec<u8> {
    let mut got = Vec::new();
    while got.len() < length {
        tokio::time::sleep(Duration::from_millis(1)).await;
        let mut piece = vec![0; (length - got.len()).min(16 * 1024)];
        let read = within("the rest of a message", from.read(&mut piece)).await.unwrap();
        assert!(read > 0, "it ended after {}", got.len());
        got.extend_from_slice(&piece[..read]);
    }
    got
}

async fn send(to: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) {
    within("bytes to be taken", to.write_all(bytes)).await.unwrap();
    within("bytes to leave", to.flush()).await.unwrap();
}

async fn read_head(from: &mut (impl AsyncRead + Unpin)) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(within("a head", from.read_u8()).await.unwrap());
    }
}

/// The first request of a connection may have 1,010 interim responses, of which the client gets none.
#[tokio::test]
async fn upstream_that_sends_1xx_for_ever_is_given_up() {
    const MOST: usize = 1010;
    let provider = Provider::start().await;
    let server = TestServer::before(&provider.base()).await;
    for (interim, status) in [(MOST, 200), (MOST + 1, 502)] {
        let mut client = Wire::connect(server.address).await;
        client.send("POST /v1/messages HTTP/1.1\r\nhost: localhost\r\n").await;
        client.send("content-length: 2\r\n\r\n{}").await;
        let mut call = provider.call().await;
        call.send("HTTP/1.1 102 Processing\r\n\r\n".repeat(interim)).await;
        if status == 200 {
            call.send("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}").await;
        }
        let answer = client.response().await;
        assert_eq!(answer.status(), status, "after {interim}");
        if status == 502 {
            assert!(answer.text().contains("too many 1xx"), "{}", answer.text());
            call.wire.gone().await;
        }
    }
}
