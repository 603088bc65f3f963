//! Where requests go: pooled connections to providers, plain or TLS, direct or through a proxy.
//!
//! HTTP/2 or HTTP/1.1 by ALPN; a second pool offers only HTTP/1.1, for upgrades. Roots are the
//! platform's with the bundled ones, and an extra CA. Must not know what requests mean; an error
//! says whether the provider could not be reached in time or failed.

use std::error::Error;
use std::future::Future;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http::header::{HeaderValue, PROXY_AUTHORIZATION};
use http::uri::Authority;
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio::net::TcpStream;
use tower_service::Service;

use super::body::Outgoing;
use crate::config::Config;

/// What any part of a connection can fail with.
pub(crate) type Trouble = Box<dyn Error + Send + Sync>;

/// Most bytes of one response that wait for a slow client, per HTTP/2 stream.
const STREAM_WINDOW: u32 = 128 * 1024;
/// Streams share a connection; one slow client must not use up the credit of the others.
const CONNECTION_WINDOW: u32 = 1 << 30;
/// Exchanges at once on one HTTP/2 connection, below the 100 that providers commonly allow.
const STREAMS_PER_LANE: usize = 64;
/// Connections to one HTTP/2 upstream, at most.
const LANES: usize = 16;
/// Response headers over HTTP/2, bytes; hyper's own limit of 16 KB is met by real policies and cookies.
const HEADER_LIST: u32 = 256 * 1024;
/// A peer that is silent this long is asked whether it is still there; connections die unnoticed
/// (NAT, sleeping machines), and thinking models are silent for minutes.
const SILENCE: Duration = Duration::from_secs(30);
/// How long it may take to answer that.
const SIGN_OF_LIFE: Duration = Duration::from_secs(15);
/// A kept connection that closes this soon after a request was closed before it. Later, the
/// provider may have begun to work on it, and it is not sent twice.
const CLOSED_WHILE_IDLE: Duration = Duration::from_secs(1);
/// Idle connections are kept this long.
const IDLE: Duration = Duration::from_secs(60);

/// Why an upstream gave no response.
#[derive(Debug)]
pub(crate) enum Unanswered {
    /// The client broke off the request's body.
    RequestBroken,
    /// It accepted no connection in time.
    TooSlow(String),
    /// It could not be reached, or broke off before its headers.
    Failed(String),
}

/// Pooled connections to all upstreams.
pub(crate) struct Pool {
    lanes: Vec<Client<Patient, Outgoing>>,
    http1: Client<Patient, Outgoing>,
    /// Our credentials for proxies that read plain requests, by the upstream that is behind them.
    credentials: Vec<(Authority, HeaderValue)>,
}

impl Pool {
    /// Pools as `config` asks for. `matcher` says which destinations go through a proxy.
    ///
    /// # Errors
    /// Where the extra CA cannot be read.
    pub(crate) fn new(config: &Config, matcher: Matcher) -> Result<Self, String> {
        let tls = tls_config(config)?;
        let patience = Duration::from_secs(config.limits.connect_s.max(1));
        let credentials = credentials(config, &matcher);
        let dial = Dial::new(tls.clone(), Arc::new(matcher));
        let patient = |connector| Patient { connector, patience };
        let any = HttpsConnectorBuilder::new().with_tls_config(tls.clone()).https_or_http();
        let any = any.enable_all_versions().wrap_connector(dial.clone());
        let one = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
        let one = one.enable_http1().wrap_connector(dial);
        Ok(Self {
            lanes: (0..LANES).map(|_| client().build(patient(any.clone()))).collect(),
            http1: client().build(patient(one)),
            credentials,
        })
    }

    /// Sends a request; answers once the response's headers are here. `at_once`: how many exchanges
    /// are under way, so that no HTTP/2 connection gets more streams than providers allow.
    pub(crate) async fn send(
        &self,
        mut request: Request<Outgoing>,
        at_once: usize,
    ) -> Result<Response<Incoming>, Unanswered> {
        self.authorize(&mut request);
        let lane = (at_once / STREAMS_PER_LANE).min(LANES - 1);
        answer(&self.lanes[lane], request).await
    }

    /// Sends a request over HTTP/1.1, which alone can be upgraded.
    pub(crate) async fn send_http1(
        &self,
        mut request: Request<Outgoing>,
    ) -> Result<Response<Incoming>, Unanswered> {
        self.authorize(&mut request);
        answer(&self.http1, request).await
    }

    /// Adds our credential for a proxy that reads plain requests; tunnels carry theirs in `CONNECT`.
    fn authorize(&self, request: &mut Request<Outgoing>) {
        if request.uri().scheme_str() != Some("http") {
            return;
        }
        let to = request.uri().authority();
        let found = self.credentials.iter().find(|(upstream, _)| Some(upstream) == to);
        if let Some((_, credential)) = found {
            request.headers_mut().insert(PROXY_AUTHORIZATION, credential.clone());
        }
    }
}

/// As [`Pool`] keeps them: nothing is asked but configured upstreams.
fn credentials(config: &Config, matcher: &Matcher) -> Vec<(Authority, HeaderValue)> {
    let plain = config.upstreams.iter().map(|upstream| &upstream.base);
    let plain = plain.filter(|base| base.scheme_str() == Some("http"));
    let credential = |base: &Uri| {
        let relay = matcher.intercept(base)?;
        Some((base.authority()?.clone(), relay.basic_auth()?.clone()))
    };
    plain.filter_map(credential).collect()
}

/// Asks, and asks once more where a connection that was kept idle turns out to be closed: a client
/// of its own would have opened another one. What streams through cannot be sent twice.
async fn answer(
    client: &Client<Patient, Outgoing>,
    request: Request<Outgoing>,
) -> Result<Response<Incoming>, Unanswered> {
    let (head, body) = request.into_parts();
    let again = body.copy().map(|body| Request::from_parts(head.clone(), body));
    let sent = Instant::now();
    let failed = match client.request(Request::from_parts(head, body)).await {
        Ok(response) => {
            if let Some(Answered(before)) = response.extensions().get() {
                before.store(true, Ordering::Relaxed);
            }
            return Ok(response);
        }
        Err(failed) => failed,
    };
    match again.filter(|_| sent.elapsed() < CLOSED_WHILE_IDLE && was_idle(&failed)) {
        Some(again) => client.request(again).await.map_err(|error| unanswered(&error)),
        None => Err(unanswered(&failed)),
    }
}

/// Whether a connection that had answered before closed without a byte of this answer.
fn was_idle(failed: &hyper_util::client::legacy::Error) -> bool {
    let mut extras = http::Extensions::new();
    if let Some(connection) = failed.connect_info() {
        connection.get_extras(&mut extras);
    }
    let reused = extras.get::<Answered>().is_some_and(|it| it.0.load(Ordering::Relaxed));
    let mut cause = failed.source();
    while let Some(error) = cause.filter(|_| reused) {
        let closed = error.downcast_ref::<hyper::Error>().is_some_and(|error| {
            error.is_incomplete_message() || error.is_closed() || error.is_canceled()
        });
        let broken = error.downcast_ref::<io::Error>().map(io::Error::kind);
        if closed || matches!(broken, Some(ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Marks a connection: whether it has answered before.
#[derive(Clone, Default)]
struct Answered(Arc<AtomicBool>);

fn client() -> hyper_util::client::legacy::Builder {
    let mut builder = Client::builder(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE)
        .http1_preserve_header_case(true)
        .http1_max_buf_size(super::BUFFER)
        .http1_max_headers(super::BUFFER / super::LEAST_HEADER)
        .http2_max_header_list_size(HEADER_LIST)
        .http2_keep_alive_interval(SILENCE)
        .http2_keep_alive_timeout(SIGN_OF_LIFE)
        .http2_initial_stream_window_size(STREAM_WINDOW)
        .http2_initial_connection_window_size(CONNECTION_WINDOW);
    builder
}

fn tls_config(config: &Config) -> Result<rustls::ClientConfig, String> {
    let mut roots = rustls::RootCertStore::empty();
    roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    // A platform without certificates (a scratch image) is fine: the bundled ones are there.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(path) = &config.extra_ca {
        let told = |error: &dyn std::fmt::Display| format!("extra_ca {}: {error}", path.display());
        for certificate in CertificateDer::pem_file_iter(path).map_err(|e| told(&e))? {
            let certificate = certificate.map_err(|e| told(&e))?;
            roots.add(certificate).map_err(|e| told(&e))?;
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

fn unanswered(error: &(dyn Error + 'static)) -> Unanswered {
    let mut words = error.to_string();
    let mut slow = false;
    let mut cause = error.source();
    while let Some(error) = cause {
        let timed_out = error.downcast_ref::<io::Error>().map(io::Error::kind);
        if error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_user) {
            return Unanswered::RequestBroken;
        }
        slow |= timed_out == Some(io::ErrorKind::TimedOut);
        let more = error.to_string();
        if !words.ends_with(&more) {
            words = format!("{words}: {more}");
        }
        cause = error.source();
    }
    if slow { Unanswered::TooSlow(words) } else { Unanswered::Failed(words) }
}

/// Gives up connecting, TLS and proxies included, when its patience ends.
#[derive(Clone)]
struct Patient {
    connector: HttpsConnector<Dial>,
    patience: Duration,
}

type Connecting = Pin<Box<dyn Future<Output = Result<MaybeHttpsStream<Dialled>, Trouble>> + Send>>;

impl Service<Uri> for Patient {
    type Response = MaybeHttpsStream<Dialled>;
    type Error = Trouble;
    type Future = Connecting;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Trouble>> {
        self.connector.poll_ready(cx)
    }

    fn call(&mut self, to: Uri) -> Connecting {
        let connecting = tokio::time::timeout(self.patience, self.connector.call(to));
        Box::pin(async move {
            connecting
                .await
                .unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
        })
    }
}

/// Opens connections: direct, or through the proxy that the environment names.
#[derive(Clone)]
struct Dial {
    direct: HttpConnector,
    /// To proxies, which may themselves speak TLS.
    proxies: HttpsConnector<HttpConnector>,
    matcher: Arc<Matcher>,
}

impl Dial {
    fn new(tls: rustls::ClientConfig, matcher: Arc<Matcher>) -> Self {
        let mut direct = HttpConnector::new();
        direct.enforce_http(false);
        direct.set_nodelay(true);
        direct.set_keepalive(Some(SILENCE));
        direct.set_keepalive_interval(Some(SIGN_OF_LIFE));
        direct.set_keepalive_retries(Some(3));
        let proxies = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
        let proxies = proxies.enable_http1().wrap_connector(direct.clone());
        Self { direct, proxies, matcher }
    }
}

/// A transport that knows whether requests on it must name the whole URI.
pub(crate) struct Dialled {
    stream: MaybeHttpsStream<TokioIo<TcpStream>>,
    /// A plain HTTP proxy reads our requests itself.
    relayed: bool,
}

type Dialling = Pin<Box<dyn Future<Output = Result<Dialled, Trouble>> + Send>>;

impl Service<Uri> for Dial {
    type Response = Dialled;
    type Error = Trouble;
    type Future = Dialling;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Trouble>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, to: Uri) -> Dialling {
        match self.matcher.intercept(&to) {
            None => direct(self.direct.clone(), to),
            Some(proxy) if to.scheme_str() == Some("https") => {
                tunnel(self.proxies.clone(), &proxy, to)
            }
            Some(proxy) => relay(self.proxies.clone(), &proxy),
        }
    }
}

fn direct(mut connector: HttpConnector, to: Uri) -> Dialling {
    let connecting = connector.call(to);
    Box::pin(async move {
        let stream = MaybeHttpsStream::Http(connecting.await?);
        Ok(Dialled { stream, relayed: false })
    })
}

fn tunnel(connector: HttpsConnector<HttpConnector>, proxy: &Intercept, to: Uri) -> Dialling {
    let mut tunnel = Tunnel::new(proxy.uri().clone(), connector);
    if let Some(credential) = proxy.basic_auth() {
        tunnel = tunnel.with_auth(credential.clone());
    }
    let connecting = tunnel.call(to);
    Box::pin(async move { Ok(Dialled { stream: connecting.await?, relayed: false }) })
}

fn relay(mut connector: HttpsConnector<HttpConnector>, proxy: &Intercept) -> Dialling {
    let connecting = connector.call(proxy.uri().clone());
    Box::pin(async move { Ok(Dialled { stream: connecting.await?, relayed: true }) })
}

impl Connection for Dialled {
    fn connected(&self) -> Connected {
        self.stream.connected().proxy(self.relayed).extra(Answered::default())
    }
}

impl hyper::rt::Read for Dialled {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl hyper::rt::Write for Dialled {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }
}
