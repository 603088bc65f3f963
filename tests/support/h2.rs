//! Both ends of HTTP/2, by hyper, with bodies that the test feeds frame by frame.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt;
use http_body_util::channel::{Channel, Sender};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use plimsoll::config::Config;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::{server, within};

pub type Fault = std::io::Error;
pub type Body = Channel<Bytes, Fault>;

/// A body whose frames the test sends.
pub fn body() -> (Sender<Bytes, Fault>, Body) {
    Channel::new(8)
}

/// A complete body.
pub async fn whole(bytes: impl Into<Bytes>) -> Body {
    let (mut feed, body) = body();
    let bytes = bytes.into();
    if !bytes.is_empty() {
        feed.send_data(bytes).await.unwrap();
    }
    body
}

/// A client with one HTTP/2 connection.
pub struct Client {
    pub sender: SendRequest<Body>,
}

impl Client {
    /// Connects with HTTP/2 by prior knowledge.
    pub async fn connect(to: SocketAddr) -> Self {
        let stream = TcpStream::connect(to).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        Self { sender }
    }

    pub async fn request(&mut self, request: Request<Body>) -> Response<Incoming> {
        within("an HTTP/2 response", self.sender.send_request(request)).await.unwrap()
    }
}

/// The next data of a body; `None` at its end.
pub async fn next(body: &mut Incoming) -> Option<Result<Bytes, hyper::Error>> {
    loop {
        match within("a frame", body.frame()).await? {
            Ok(frame) => {
                if let Some(data) = frame.into_data().ok().filter(|data| !data.is_empty()) {
                    return Some(Ok(data));
                }
            }
            Err(error) => return Some(Err(error)),
        }
    }
}

/// The whole body and its trailers.
pub async fn read(body: Incoming) -> (Bytes, Option<HeaderMap>) {
    let collected = within("a body", body.collect()).await.unwrap();
    let trailers = collected.trailers().cloned();
    (collected.to_bytes(), trailers)
}

/// The certificates of one test, in a folder that is deleted with this.
pub struct Certificates {
    pub folder: tempfile::TempDir,
    pub authority: PathBuf,
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// A self-signed certificate for 127.0.0.1 and localhost.
pub fn certificates() -> Certificates {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (authority, certificate, key) = (path("ca.pem"), path("cert.pem"), path("key.pem"));
    write_certificate(&certificate, &key);
    std::fs::copy(&certificate, &authority).unwrap();
    Certificates { authority, certificate, key, folder }
}

/// Writes a fresh self-signed certificate and its key.
pub fn write_certificate(certificate: &std::path::Path, key: &std::path::Path) {
    let names = ["127.0.0.1".to_owned(), "localhost".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).unwrap();
    std::fs::write(certificate, made.cert.pem()).unwrap();
    std::fs::write(key, made.signing_key.serialize_pem()).unwrap();
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// TLS for a provider that offers `alpn`.
pub fn acceptor(certificates: &Certificates, alpn: &[&[u8]]) -> TlsAcceptor {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    let chain = CertificateDer::pem_file_iter(&certificates.certificate).unwrap();
    let chain = chain.map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_file(&certificates.key).unwrap();
    let mut config = rustls::ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    TlsAcceptor::from(Arc::new(config))
}

/// TLS for a client that trusts the certificate at `authority`.
pub fn connector(authority: &std::path::Path, alpn: &[&[u8]]) -> TlsConnector {
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority).unwrap()).unwrap();
    let mut config = rustls::ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    TlsConnector::from(Arc::new(config))
}

/// A request that reached the provider, and the sender of its response.
pub struct Call {
    pub request: Request<Incoming>,
    answer: oneshot::Sender<Response<Body>>,
}

impl Call {
    pub fn answer(self, response: Response<Body>) -> Incoming {
        assert!(self.answer.send(response).is_ok(), "the proxy gave the call up");
        self.request.into_body()
    }

    /// Responds with 200 and a body whose frames the test sends.
    pub fn begin(self) -> Sender<Bytes, Fault> {
        let (feed, body) = body();
        let response = Response::builder().header("content-type", "text/event-stream");
        drop(self.answer(response.body(body).unwrap()));
        feed
    }
}

/// A provider that speaks HTTP/2 over TLS.
pub struct Provider {
    address: SocketAddr,
    calls: mpsc::UnboundedReceiver<Call>,
    certificates: Certificates,
}

impl Provider {
    pub async fn start() -> Self {
        let certificates = certificates();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let tls = acceptor(&certificates, &[b"h2"]);
        let (arrived, calls) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let arrived = arrived.clone();
                let Ok(stream) = tls.accept(stream).await else { continue };
                let service = service_fn(move |request| call(arrived.clone(), request));
                let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                // The limit that most providers have for a connection.
                builder.max_concurrent_streams(100);
                tokio::spawn(builder.serve_connection(TokioIo::new(stream), service));
            }
        });
        Self { address, calls, certificates }
    }

    /// The configuration of a proxy in front of it that trusts its certificate.
    pub fn config(&self) -> Config {
        let mut config = server::config(&self.base());
        config.extra_ca = Some(self.certificates.authority.clone());
        config
    }

    pub fn base(&self) -> String {
        format!("https://{}", self.address)
    }

    pub async fn call(&mut self) -> Call {
        within("a call", self.calls.recv()).await.unwrap()
    }
}

type Answering = Pin<Box<dyn Future<Output = Result<Response<Body>, Fault>> + Send>>;

fn call(arrived: mpsc::UnboundedSender<Call>, request: Request<Incoming>) -> Answering {
    let (answer, answered) = oneshot::channel();
    let _ = arrived.send(Call { request, answer });
    Box::pin(async move { answered.await.map_err(std::io::Error::other) })
}
