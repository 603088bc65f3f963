//! Pooled connections to providers, plain or TLS, direct or through a proxy.
//!
//! HTTP/2 if the provider speaks it, with streams counted per connection ([`http2`], [`lanes`]); else
//! HTTP/1.1 ([`http1`]), which alone supports upgrades. Must not know what requests mean. An error says
//! whether the provider was too slow or failed.

mod dial;
mod dns;
pub(in crate::proxy) mod error;
mod http1;
mod http2;
mod lanes;
mod limits;
pub(in crate::proxy) mod relays;
pub(in crate::proxy) mod route;

use std::sync::Arc;
use std::time::Duration;

use foldhash::HashMap;
use http::header::{HeaderValue, PROXY_AUTHORIZATION};
use http::uri::Authority;
use http::{Request, Response, Uri};
use hyper_util::client::proxy::matcher::Matcher;

use crate::config::Config;
use crate::proxy::http::body::OutgoingBody;
use crate::proxy::http::upstream::dial::{AlpnOffer, Connector, Dialer, UpstreamGauges};
use crate::proxy::http::upstream::error::UpstreamError;
use crate::proxy::http::upstream::http1::{Http1, SendError};
use crate::proxy::http::upstream::http2::{Http2, SendOutcome};
use crate::telemetry::Telemetry;
use crate::tls;

/// Pooled connections to all upstreams.
pub(crate) struct UpstreamPool {
    /// The upstreams that may speak HTTP/2, by address.
    http2: HashMap<Authority, Arc<Http2>>,
    http1: Http1,
    /// Our credentials for proxies that read plain requests, by the upstream behind the proxy.
    credentials: Vec<(Authority, HeaderValue)>,
}

impl UpstreamPool {
    /// Pools for this configuration. `matcher` says which destinations go through a proxy.
    ///
    /// # Errors
    /// If the extra CA cannot be read.
    pub(crate) fn new(
        config: &Config,
        matcher: Matcher,
        telemetry: &Telemetry,
    ) -> Result<Self, String> {
        let tls = tls::client_config(config)?;
        let timeout = Duration::from_secs(config.limits.connect_s.max(1));
        let credentials = credentials(config, &matcher);
        let gauges = gauges(config, telemetry);
        let dial = Dialer::new(tls.clone(), matcher, gauges.clone());
        let any = Connector::new(tls.clone(), dial.clone(), AlpnOffer::Any, timeout);
        let http1 = Connector::new(tls, dial, AlpnOffer::Http1, timeout);
        let http1 = Http1::new(http1, gauges.clone());
        let secure = config.upstreams.iter().map(|upstream| &upstream.base);
        // Only TLS can agree on HTTP/2.
        let secure = secure.filter(|base| base.scheme_str() == Some("https"));
        let http2 = secure.filter_map(|base| {
            let authority = base.authority()?;
            let metrics = gauges.get(authority)?.clone();
            let spares = http1.spares();
            let http2 = Http2::new(base.clone(), any.clone(), timeout, spares, metrics);
            Some((authority.clone(), Arc::new(http2)))
        });
        Ok(Self { http2: http2.collect(), http1, credentials })
    }

    /// Sends a request; returns when the response's headers have arrived.
    pub(crate) async fn send(
        &self,
        mut request: Request<OutgoingBody>,
    ) -> Result<Response<OutgoingBody>, UpstreamError> {
        self.authorize(&mut request);
        // Boxed, because these futures are large, and those around them are moved several times.
        let Some(http2) = self.http2(request.uri()) else {
            let sending = Box::pin(self.http1.send(request));
            return sending.await.map_err(|error| error.unanswered());
        };
        let request = match Box::pin(http2.send(request)).await? {
            SendOutcome::Answered(response) => return Ok(response),
            SendOutcome::Http1(request) => request,
        };
        Box::pin(self.http1.send(request)).await.map_err(|error| {
            // It may speak HTTP/2 when it is back.
            if matches!(error, SendError::Connect(_)) {
                http2.forget_http1();
            }
            error.unanswered()
        })
    }

    fn http2(&self, uri: &Uri) -> Option<&Arc<Http2>> {
        // Without TLS there is no ALPN to choose HTTP/2 by.
        if uri.scheme_str() != Some("https") {
            return None;
        }
        self.http2.get(uri.authority()?)
    }

    /// Sends a request over HTTP/1.1, which upgrades require.
    pub(crate) async fn send_http1(
        &self,
        mut request: Request<OutgoingBody>,
    ) -> Result<Response<OutgoingBody>, UpstreamError> {
        self.authorize(&mut request);
        Box::pin(self.http1.send(request)).await.map_err(|error| error.unanswered())
    }

    fn authorize(&self, request: &mut Request<OutgoingBody>) {
        // Tunnels send our credential in `CONNECT`, not in each request.
        if request.uri().scheme_str() != Some("http") {
            return;
        }
        let to = request.uri().authority();
        let credential = self.credentials.iter().find(|(upstream, _)| Some(upstream) == to);
        if let Some((_, credential)) = credential {
            request.headers_mut().insert(PROXY_AUTHORIZATION, credential.clone());
        }
    }
}

fn gauges(config: &Config, telemetry: &Telemetry) -> UpstreamGauges {
    let mut gauges = HashMap::default();
    for upstream in &config.upstreams {
        // If upstreams share an address, it has the name of the first.
        if let Some(authority) = upstream.base.authority() {
            let metrics = gauges.entry(authority.clone());
            metrics.or_insert_with(|| telemetry.upstream(&upstream.name));
        }
    }
    Arc::new(gauges)
}

fn credentials(config: &Config, matcher: &Matcher) -> Vec<(Authority, HeaderValue)> {
    let mut credentials = Vec::new();
    for base in config.upstreams.iter().map(|upstream| &upstream.base) {
        if base.scheme_str() == Some("http")
            && let Some(authority) = base.authority()
            && let Some(relay) = matcher.intercept(base)
            && let Some(credential) = relay.basic_auth()
        {
            credentials.push((authority.clone(), credential.clone()));
        }
    }
    credentials
}
