//! One request, top to bottom (design §4).
//!
//! Reads like the list it implements. Nothing in here may cost the client an answer: what fails on
//! the way is left out, and the original goes on.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Version, request};
use hyper::body::Incoming;
use tokio::sync::watch;

use super::account::Account;
use super::answer::Fault;
use super::body::{self, Collected, Outgoing};
use super::headers::{self, Passing};
use super::route::{self, Route};
use super::tap::{Answer, Tap};
use super::upstream::Unanswered;
use super::{Phase, Proxy, tunnel};
use crate::config::{Upgrades, Upstream};
use crate::context::Outcome;
use crate::telemetry::FailOpen;

/// Answers one request.
pub(crate) async fn run(
    proxy: Arc<Proxy>,
    request: Request<Incoming>,
    phase: watch::Receiver<Phase>,
) -> Response<Answer> {
    let mut account = Account::open(&proxy, request.method(), request.uri().path());
    // 1. Accept: the connection has its permit, the headers have their limit.
    if headers::size(request.headers()) > proxy.config.limits.header_bytes {
        return ours(&Fault::HeadersTooLarge, account);
    }
    // 2. Route.
    let (parts, body) = request.into_parts();
    let Some(routed) = Routed::new(&proxy, parts) else {
        return ours(&Fault::NoUpstream, account);
    };
    account.event.upstream = Some(routed.upstream.name.clone());
    if routed.upgrade {
        return Box::pin(upgraded(&proxy, routed, body, account, phase)).await;
    }
    Box::pin(answered(&proxy, routed, body, account)).await
}

/// The answer where there is no room for another connection.
pub(crate) fn turned(proxy: &Arc<Proxy>, request: &Request<Incoming>) -> Response<Bytes> {
    let mut account = Account::open(proxy, request.method(), request.uri().path());
    let response = Fault::Full.answer(None);
    account.event.status = Some(response.status().as_u16());
    account.event.outcome = Outcome::Turned;
    response
}

/// A request that knows where it goes; its head is as the upstream gets it.
struct Routed<'p> {
    upstream: &'p Upstream,
    head: request::Parts,
    upgrade: bool,
}

impl<'p> Routed<'p> {
    fn new(proxy: &'p Proxy, mut head: request::Parts) -> Option<Self> {
        let asked = head.uri.clone();
        let route = route::route(&proxy.config.upstreams, &asked, &head.headers, None)?;
        let upgrade = headers::is_upgrade(&head.headers);
        head.uri = route::address(&route)?;
        let headers = std::mem::take(&mut head.headers);
        head.headers = outgoing_headers(headers, &route, head.version, upgrade);
        // Which version the upstream speaks is found out when connecting.
        head.version = Version::HTTP_11;
        Some(Self { upstream: route.upstream, head, upgrade })
    }
}

fn outgoing_headers(
    headers: HeaderMap,
    route: &Route<'_, '_>,
    version: Version,
    upgrade: bool,
) -> HeaderMap {
    let headers = headers::pass(headers, Passing { upgrade, keep_chunked: true });
    let own = route.upstream.credential.as_ref();
    let mut headers = headers::without(headers, |name| {
        headers::is_for_us(name) || (own.is_some() && route::is_credential(name))
    });
    if let Some((name, secret)) = own
        && let Ok(mut value) = HeaderValue::from_str(&secret.0)
    {
        value.set_sensitive(true);
        headers.insert(name.clone(), value);
    }
    if version == Version::HTTP_2 {
        headers::join_cookies(&mut headers);
    }
    headers::set_host(headers, &route.upstream.base)
}

async fn answered(
    proxy: &Proxy,
    routed: Routed<'_>,
    body: Incoming,
    mut account: Account,
) -> Response<Answer> {
    let Routed { upstream, head, .. } = routed;
    // 3. Body.
    let outgoing = Outgoing::through(body);
    // 9. Forward.
    account.event.request_side_us = account.elapsed_us();
    let at_once = proxy.exchanges.load(Ordering::Relaxed);
    let sent = proxy.pool.send(Request::from_parts(head, outgoing), at_once).await;
    account.event.headers_us = Some(account.elapsed_us());
    // 10. Answer.
    match sent {
        Ok(response) => tapped(response, account),
        Err(error) => ours(&fault(upstream, error), account),
    }
}

/// An upstream's answer, on its way to the client.
fn tapped(response: Response<Incoming>, mut account: Account) -> Response<Answer> {
    let (mut parts, body) = response.into_parts();
    let passing = Passing { upgrade: false, keep_chunked: true };
    parts.headers = headers::pass(std::mem::take(&mut parts.headers), passing);
    parts.version = Version::HTTP_11;
    account.event.status = Some(parts.status.as_u16());
    let refused = parts.status.is_client_error() || parts.status.is_server_error();
    let whole = if refused { Outcome::Refused } else { Outcome::Complete };
    let tap = Tap::new(body, account, whole);
    Response::from_parts(parts, Answer::Tapped(Box::new(tap)))
}

/// An answer of our own.
fn ours(fault: &Fault, mut account: Account) -> Response<Answer> {
    let response = fault.answer(account.event.dialect);
    account.event.status = Some(response.status().as_u16());
    account.event.outcome = fault.outcome();
    response.map(|body| Answer::Ours(Some(body)))
}

fn fault(upstream: &Upstream, error: Unanswered) -> Fault {
    match error {
        Unanswered::RequestBroken => Fault::RequestBroken,
        Unanswered::TooSlow(why) => Fault::UpstreamTooSlow(upstream.name.clone(), why),
        Unanswered::Failed(why) => Fault::UpstreamFailed(upstream.name.clone(), why),
    }
}

/// Leaves HTTP: tunnelled byte for byte, or refused where policy says so.
async fn upgraded(
    proxy: &Proxy,
    routed: Routed<'_>,
    body: Incoming,
    mut account: Account,
    phase: watch::Receiver<Phase>,
) -> Response<Answer> {
    let Routed { upstream, head, .. } = routed;
    if upstream.upgrades == Upgrades::Refuse {
        return ours(&Fault::UpgradeRefused, account);
    }
    let mut request = Request::from_parts(head, ());
    let client = hyper::upgrade::on(&mut request);
    let request = request.map(|()| Outgoing::through(body));
    let mut response = match proxy.pool.send_http1(request).await {
        Ok(response) => response,
        Err(error) => return ours(&fault(upstream, error), account),
    };
    account.event.headers_us = Some(account.elapsed_us());
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return tapped(response, account);
    }
    account.event.status = Some(StatusCode::SWITCHING_PROTOCOLS.as_u16());
    let upstream = hyper::upgrade::on(&mut response);
    tokio::spawn(tunnel::carry(client, upstream, account, phase));
    let (mut parts, _) = response.into_parts();
    let passing = Passing { upgrade: true, keep_chunked: false };
    parts.headers = headers::pass(std::mem::take(&mut parts.headers), passing);
    Response::from_parts(parts, Answer::Ours(None))
}
