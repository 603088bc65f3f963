//! TLS on the listener: both protocols by ALPN, and certificates that change while it runs.

use std::sync::Arc;

use plimsoll::config::Tls;
use plimsoll::proxy::Proxy;
use plimsoll::store::ledgers::Ledgers;
use plimsoll::store::memory::MemoryStore;
use plimsoll::telemetry::Telemetry;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::http1::Provider;
use crate::support::server::{TestServer, config};
use crate::support::{h2, within};

async fn connect(
    server: &TestServer,
    authority: &std::path::Path,
    alpn: &[u8],
) -> std::io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
    let stream = TcpStream::connect(server.address).await?;
    let name = ServerName::try_from("localhost").unwrap();
    within("a handshake", h2::connector(authority, &[alpn]).connect(name, stream)).await
}

#[tokio::test]
async fn both_protocols_by_alpn() {
    let certificates = h2::certificates();
    let provider = Provider::start().await;
    let mut config = config(&provider.base());
    config.tls =
        Some(Tls { certificate: certificates.certificate.clone(), key: certificates.key.clone() });
    let server = TestServer::with(config).await;

    let mut stream = connect(&server, &certificates.authority, b"http/1.1").await.unwrap();
    stream
        .write_all(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        .await
        .unwrap();
    let mut call = provider.call().await;
    call.answer("200 OK", "{}").await;
    let mut answer = String::new();
    within("an answer", stream.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    assert!(answer.ends_with("{}"), "{answer}");

    let stream = connect(&server, &certificates.authority, b"h2").await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(b"h2".as_slice()));
    let builder = hyper::client::conn::http2::Builder::new(hyper_util::rt::TokioExecutor::new());
    let (mut sender, connection) =
        builder.handshake(hyper_util::rt::TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request =
        http::Request::get("https://localhost/v1/models").body(h2::whole("").await).unwrap();
    let (response, ()) = tokio::join!(within("an answer", sender.send_request(request)), async {
        let mut call = call.wire.request().await;
        call.answer("200 OK", "{}").await;
    });
    assert_eq!(response.unwrap().status(), 200);
}

#[tokio::test]
async fn new_certificate_is_taken_up_and_broken_one_is_not() {
    let certificates = h2::certificates();
    let mut config = config("http://127.0.0.1:1");
    let (certificate, key) = (certificates.certificate.clone(), certificates.key.clone());
    config.tls = Some(Tls { certificate: certificate.clone(), key: key.clone() });
    let server = TestServer::with(config).await;
    connect(&server, &certificates.authority, b"http/1.1").await.expect("the first certificate");

    std::fs::write(&certificate, "not a certificate at all").unwrap();
    connect(&server, &certificates.authority, b"http/1.1").await.expect("the first one still");

    h2::write_certificate(&certificate, &key);
    assert!(connect(&server, &certificates.authority, b"http/1.1").await.is_err());
    connect(&server, &certificate, b"http/1.1").await.expect("the new one");
}

#[tokio::test]
async fn listener_without_usable_certificate_does_not_start() {
    let mut config = config("http://127.0.0.1:1");
    config.tls =
        Some(Tls { certificate: "/nowhere/cert.pem".into(), key: "/nowhere/key.pem".into() });
    let ledgers = Arc::new(Ledgers::new(Arc::new(MemoryStore::default())));
    let telemetry = Telemetry::silent().unwrap();
    let Err(fault) = Proxy::new(Arc::new(config), ledgers, telemetry).await else {
        panic!("started without a certificate")
    };
    assert!(fault.contains("/nowhere/cert.pem"), "{fault}");
}
