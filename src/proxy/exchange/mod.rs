//! One request, top to bottom (`docs/architecture.md` "Life of a request").
//!
//! Reads like that list. Nothing in here may cost the client its response: a step that fails is left out, and
//! the original is sent.

mod client_request;
mod count_estimate;
mod count_request;
mod latest_request;
mod live_exchange;
mod original_request;
mod outbound;
mod planning;
mod request_origin;
mod respond;
mod retry;
mod room;
mod sending;
mod websocket;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, Version, request};
use tokio::sync::watch;

use self::client_request::ClientRequest;
pub(super) use self::latest_request::drop_credentials;
use self::live_exchange::{LiveExchange, OwnResponse, Received, Sent, reached_cap, refuse};
use self::planning::permitted;
use self::respond::response_headers;
use self::websocket::frames::FrameObserver;
use self::websocket::tunnel;
use crate::config::{UpgradePolicy, Upstream};
use crate::context::Outcome;
use crate::dialect::Dialect;
use crate::dialect::paths::is_inference;
use crate::proxy::http::answer::{self, ProxyError};
use crate::proxy::http::arriving::ClientBody;
use crate::proxy::http::body::OutgoingBody;
use crate::proxy::http::connection::ClientConnection;
use crate::proxy::http::headers::{self, HopByHopFilter};
use crate::proxy::http::path_tags;
use crate::proxy::http::upstream::route;
use crate::proxy::response::response_body::ResponseBody;
use crate::proxy::response::tap::ResponseActions;
use crate::proxy::state::exchange_recorder::ExchangeRecorder;
use crate::proxy::state::{Proxy, ServingPhase};
use crate::telemetry::TRACEPARENT;

/// Handles one request.
pub(super) async fn run(
    proxy: Arc<Proxy>,
    mut request: Request<ClientBody>,
    connection: Arc<ClientConnection>,
    phase: watch::Receiver<ServingPhase>,
) -> Response<ResponseBody> {
    path_tags::take(&mut request);
    let mut recorder = ExchangeRecorder::open(&proxy, &request, &connection, phase);
    // 1. Accept: the connection has its permit, the headers have their limit.
    if headers::size(request.headers()) > proxy.config.limits.header_bytes {
        return *refuse(&ProxyError::HeadersTooLarge, None, recorder);
    }
    if *request.method() == Method::CONNECT {
        return *refuse(&ProxyError::NoForwardProxy, None, recorder);
    }
    let (mut head, body) = request.into_parts();
    let client = Arc::new(ClientRequest::new(&head));
    let dialect = client.dialect;
    recorder.event.dialect = dialect;
    recorder.event.purpose = client.purpose;
    if let Err(fault) = proxy.client_access.check(&head.uri, &head.headers, &proxy.credentials) {
        return *refuse(&fault, dialect, recorder);
    }
    if proxy.exchanges.load(Ordering::Relaxed) > proxy.config.limits.requests() {
        return *refuse(&ProxyError::TooManyRequests, dialect, recorder);
    }
    // 2. Route.
    // Clients probe the root path, which no upstream has.
    let is_probe = head.uri.path() == "/" && [Method::GET, Method::HEAD].contains(&head.method);
    let greeting = match is_probe {
        true => Some(answer::greeting(&proxy.config, &head.uri, &head.headers)),
        false => None,
    };
    let upstream = match (route_request(&proxy, &mut head, dialect), greeting) {
        (Ok(upstream), _) => upstream,
        (Err(ProxyError::NoUpstream { .. }), Some(greeting)) => {
            return *live_exchange::answer(greeting, Outcome::Complete, recorder);
        }
        (Err(fault), _) => return *refuse(&fault, dialect, recorder),
    };
    recorder.event.upstream = Some(upstream.name.clone());
    // A signature may be over it.
    if proxy.config.otel.as_ref().is_some_and(|otel| otel.propagate)
        && let Some(traceparent) = recorder.traceparent()
        && !client.is_signed()
    {
        head.headers.insert(TRACEPARENT, traceparent);
    }
    let exchange = LiveExchange { recorder, client, upstream, phase: Received };
    let responded = match is_upgrade(&head, &exchange.upstream) {
        true => Box::pin(self::upgrade(exchange, head, body)).await,
        false => forward(exchange, head, body).await,
    };
    responded.unwrap_or_else(|own_response| *own_response)
}

async fn forward(
    exchange: LiveExchange<Received>,
    head: request::Parts,
    body: ClientBody,
) -> Result<Response<ResponseBody>, OwnResponse> {
    // Each phase has memory of its own: thousands may wait in the first, and the second needs most.
    let (exchange, head, body) = Box::pin(exchange.plan(head, body)).await?;
    let mut exchange = Box::pin(exchange.send(head, body)).await?;
    // 10. Answer. 11. Observe. 12. Settle. 13. Record.
    let actions = exchange.actions();
    Ok(Box::pin(exchange.respond(actions)).await)
}

pub(super) fn refuse_connection(
    proxy: &Arc<Proxy>,
    request: &Request<hyper::body::Incoming>,
    phase: watch::Receiver<ServingPhase>,
) -> Response<Bytes> {
    let mut recorder = ExchangeRecorder::open(proxy, request, &Arc::default(), phase);
    let checked = proxy.client_access.check(request.uri(), request.headers(), &proxy.credentials);
    // A page of another site must not learn that the proxy is full.
    let fault = checked.err().unwrap_or(ProxyError::TooManyConnections);
    let mut response = fault.answer(None);
    recorder.answer(&mut response, fault.outcome());
    response
}

/// The upstream of a request, which is looked up here and nowhere else; its head becomes as the upstream gets it.
fn route_request(
    proxy: &Proxy,
    head: &mut request::Parts,
    client_dialect: Option<Dialect>,
) -> Result<Arc<Upstream>, ProxyError> {
    let upstreams = &proxy.upstreams;
    let uri = head.uri.clone();
    let route = route::route(upstreams, &head.method, &uri, &head.headers, client_dialect);
    let route = route.ok_or_else(|| no_upstream(upstreams, &uri))?;
    let upstream = route.upstream;
    let upgrade = is_upgrade(head, upstream);
    if upstream.credential.is_some() && !is_inference(&head.method, route.path, upgrade) {
        return Err(ProxyError::PathRefused);
    }
    let address = route::address(&route, uri.path_and_query(), &proxy.credentials);
    head.uri = address.ok_or_else(|| no_upstream(upstreams, &uri))?;
    let headers = std::mem::take(&mut head.headers);
    head.headers = outgoing_headers(headers, proxy, upstream, head.version, upgrade);
    // The upstream's HTTP version is only known after connecting.
    head.version = Version::HTTP_11;
    Ok(upstream.clone())
}

fn is_upgrade(head: &request::Parts, upstream: &Upstream) -> bool {
    headers::is_upgrade(&head.headers, |protocol| is_wanted(upstream, protocol))
}

fn no_upstream(upstreams: &[Arc<Upstream>], uri: &Uri) -> ProxyError {
    ProxyError::NoUpstream {
        known: upstreams.iter().map(|upstream| upstream.name.clone()).collect(),
        nearest: route::nearest(upstreams, uri.path()).map(Into::into),
    }
}

fn is_wanted(upstream: &Upstream, protocol: &str) -> bool {
    // With the operator's credential, only WebSocket is allowed.
    !headers::is_http2(protocol)
        && (upstream.credential.is_none() || protocol.eq_ignore_ascii_case("websocket"))
}

fn outgoing_headers(
    headers: HeaderMap,
    proxy: &Proxy,
    upstream: &Upstream,
    version: Version,
    upgrade: bool,
) -> HeaderMap {
    let mut headers = headers::without_hop_by_hop(
        headers,
        HopByHopFilter { keep_upgrade: upgrade, keep_chunked: true },
    );
    if upgrade {
        headers::narrow_upgrade(&mut headers, |protocol| is_wanted(upstream, protocol));
    }
    let has_own = upstream.credential.is_some();
    if has_own {
        headers::narrow_subprotocols(&mut headers);
    }
    let mut headers = headers::without_lines(headers, |name, value| {
        headers::is_for_us(name)
            || has_own && !headers::may_join_credential(name)
            || proxy.credentials.is_token(name, value.as_bytes())
    });
    if let Some((name, secret)) = &upstream.credential
        && let Ok(mut value) = HeaderValue::from_str(&secret.0)
    {
        value.set_sensitive(true);
        headers.insert(name.clone(), value);
    }
    if version == Version::HTTP_2 {
        headers::join_cookies(&mut headers);
    }
    headers::set_host(headers, &upstream.base)
}

async fn upgrade(
    mut exchange: LiveExchange<Received>,
    head: request::Parts,
    body: ClientBody,
) -> Result<Response<ResponseBody>, OwnResponse> {
    if exchange.upstream.upgrades == UpgradePolicy::Refuse {
        return Err(exchange.refuse(&ProxyError::UpgradeRefused));
    }
    // Requests on a connection that is open are forwarded before they are read, so the connection is refused.
    let proxy = exchange.recorder.proxy.clone();
    if let Some(spender) = exchange.spender()
        && let Some(cap) = reached_cap(&proxy, &spender).await
    {
        return Err(exchange.refuse(&ProxyError::from_cap(&cap)));
    }
    let LiveExchange { recorder, client, upstream, .. } = &mut exchange;
    let mut request = Request::from_parts(head, ());
    let client_io = hyper::upgrade::on(&mut request);
    let body = OutgoingBody::request(permitted(body, upstream));
    let body = recorder.count_upload(body).timed(&recorder.sent);
    recorder.record_forwarded();
    let mut response = match proxy.pool.send_http1(request.map(|()| body)).await {
        Ok(response) => response,
        Err(error) => return Err(exchange.fail(error)),
    };
    let upstream_time = recorder.sent.elapsed();
    recorder.record_headers();
    let id = client.provider_request_id(response.headers(), &proxy, upstream);
    recorder.event.provider_request_id.clone_from(&id);
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        let phase =
            Sent { response, upstream_time, turn: None, added_usage: false, usage_addition: None };
        return Ok(exchange.into_phase(phase).respond(ResponseActions::default()).await);
    }
    let LiveExchange { mut recorder, client, upstream, .. } = exchange;
    recorder.event.status = Some(StatusCode::SWITCHING_PROTOCOLS.as_u16());
    let upstream_io = hyper::upgrade::on(&mut response);
    let (mut parts, _) = response.into_parts();
    let mut frames = None;
    if client.is_over_websocket() {
        let upstream = upstream.clone();
        frames = Some(FrameObserver::new(client, upstream, id, &parts.headers, &recorder));
    }
    let filter = HopByHopFilter { keep_upgrade: true, keep_chunked: false };
    parts.headers = response_headers(std::mem::take(&mut parts.headers), &upstream, filter);
    recorder.stamp(&mut parts.headers);
    // The connection's permit is held until the tunnel ends.
    let permit = recorder.connection.permit();
    tokio::spawn(async move {
        tunnel::carry(client_io, upstream_io, recorder, frames).await;
        drop(permit);
    });
    Ok(Response::from_parts(parts, ResponseBody::Ours(None)))
}
