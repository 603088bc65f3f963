//! Opens connections: plain or TLS, direct or through a proxy that the environment names.
//!
//! Trusts the platform's root certificates, the bundled ones, and an extra CA. Knows no requests, and stops
//! after a timeout. A connection is counted for as long as it is open.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use foldhash::HashMap;
use http::Uri;
use http::uri::Authority;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower_service::Service;

use super::dns::DnsResolver;
#[cfg(target_os = "linux")]
use super::limits::TCP_UNACKNOWLEDGED;
use super::limits::{TCP_PROBE, TCP_PROBE_INTERVAL};
use crate::proxy::http::arriving::ConnectionError;
use crate::proxy::http::transport::ConnectionSocket;
use crate::telemetry::{GaugeGuard, UpstreamMetrics};

/// An open connection, with TLS or without; how much is read from it depends on the memory left.
pub(super) type UpstreamTransport = ConnectionSocket<MaybeHttpsStream<DialedTransport>>;

/// The metrics of upstreams, by their address.
pub(super) type UpstreamGauges = Arc<HashMap<Authority, UpstreamMetrics>>;

/// The protocols that the connector offers by ALPN.
#[derive(Clone, Copy)]
pub(super) enum AlpnOffer {
    /// HTTP/2 or HTTP/1.1, as the upstream chooses.
    Any,
    /// HTTP/1.1 only.
    Http1,
}

impl Connector {
    pub(super) fn new(
        tls: rustls::ClientConfig,
        dial: Dialer,
        offer: AlpnOffer,
        timeout: Duration,
    ) -> Self {
        let builder = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
        let connector = match offer {
            AlpnOffer::Any => builder.enable_all_versions().wrap_connector(dial),
            AlpnOffer::Http1 => builder.enable_http1().wrap_connector(dial),
        };
        Self { connector, timeout }
    }
}

/// Opens connections within a timeout, which includes TLS and proxies.
#[derive(Clone)]
pub(super) struct Connector {
    connector: HttpsConnector<Dialer>,
    timeout: Duration,
}

type ConnectFuture =
    Pin<Box<dyn Future<Output = Result<UpstreamTransport, ConnectionError>> + Send>>;

impl Service<Uri> for Connector {
    type Response = UpstreamTransport;
    type Error = ConnectionError;
    type Future = ConnectFuture;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ConnectionError>> {
        self.connector.poll_ready(cx)
    }

    fn call(&mut self, to: Uri) -> ConnectFuture {
        let connecting = tokio::time::timeout(self.timeout, self.connector.call(to));
        Box::pin(async move {
            let stream = connecting
                .await
                .unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))?;
            let is_http2 = stream.connected().is_negotiated_h2();
            Ok(UpstreamTransport::of_upstream(stream, is_http2))
        })
    }
}

/// Opens connections: direct, or through the proxy that the environment names.
#[derive(Clone)]
pub(super) struct Dialer {
    /// For connections to proxies, which may themselves use TLS.
    proxies: HttpsConnector<HttpConnector<DnsResolver>>,
    matcher: Arc<Matcher>,
    gauges: UpstreamGauges,
}

impl Dialer {
    pub(super) fn new(tls: rustls::ClientConfig, matcher: Matcher, gauges: UpstreamGauges) -> Self {
        let proxies = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
        let proxies = proxies.enable_http1().wrap_connector(connector(DnsResolver));
        Self { proxies, matcher: Arc::new(matcher), gauges }
    }
}

fn connector(names: DnsResolver) -> HttpConnector<DnsResolver> {
    let mut connector = HttpConnector::new_with_resolver(names);
    // It also carries TLS, whose scheme is `https`.
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_keepalive(Some(TCP_PROBE));
    connector.set_keepalive_interval(Some(TCP_PROBE_INTERVAL));
    connector.set_keepalive_retries(Some(3));
    #[cfg(target_os = "linux")]
    connector.set_tcp_user_timeout(Some(TCP_UNACKNOWLEDGED));
    connector
}

/// A transport that knows whether its requests must have an absolute URI.
pub(crate) struct DialedTransport {
    stream: DialStream,
    /// A plain HTTP proxy reads our requests itself.
    relayed: bool,
    _open: Option<GaugeGuard>,
}

type DialStream = MaybeHttpsStream<TokioIo<TcpStream>>;
type DialFuture<T> = Pin<Box<dyn Future<Output = Result<T, ConnectionError>> + Send>>;

impl Service<Uri> for Dialer {
    type Response = DialedTransport;
    type Error = ConnectionError;
    type Future = DialFuture<DialedTransport>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectionError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, to: Uri) -> DialFuture<DialedTransport> {
        let metrics = to.authority().and_then(|authority| self.gauges.get(authority)).cloned();
        let (dialling, relayed) = match self.matcher.intercept(&to) {
            None => (direct(to), false),
            Some(proxy) if to.scheme_str() == Some("https") => {
                // A tunnel keeps the request secret from the proxy.
                (tunnel(self.proxies.clone(), &proxy, to), false)
            }
            Some(proxy) => (relay(self.proxies.clone(), &proxy), true),
        };
        Box::pin(async move {
            let stream = dialling.await?;
            let open = metrics.map(|metrics| metrics.connection());
            Ok(DialedTransport { stream, relayed, _open: open })
        })
    }
}

fn direct(to: Uri) -> DialFuture<DialStream> {
    let connecting = connector(DnsResolver).call(to);
    Box::pin(async move { Ok(MaybeHttpsStream::Http(connecting.await?)) })
}

fn tunnel(
    connector: HttpsConnector<HttpConnector<DnsResolver>>,
    proxy: &Intercept,
    to: Uri,
) -> DialFuture<DialStream> {
    let mut tunnel = Tunnel::new(proxy.uri().clone(), connector);
    if let Some(credential) = proxy.basic_auth() {
        tunnel = tunnel.with_auth(credential.clone());
    }
    let connecting = tunnel.call(to);
    Box::pin(async move { Ok(connecting.await?) })
}

fn relay(
    mut connector: HttpsConnector<HttpConnector<DnsResolver>>,
    proxy: &Intercept,
) -> DialFuture<DialStream> {
    let connecting = connector.call(proxy.uri().clone());
    Box::pin(connecting)
}

impl Connection for DialedTransport {
    fn connected(&self) -> Connected {
        self.stream.connected().proxy(self.relayed)
    }
}

impl hyper::rt::Read for DialedTransport {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl hyper::rt::Write for DialedTransport {
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
