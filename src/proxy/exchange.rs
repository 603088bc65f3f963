//! One request, top to bottom (design §4).
//!
//! Reads like the list it implements. Nothing in here may cost the client an answer: what fails on
//! the way is left out, and the original goes on.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, Version};
use hyper::body::Incoming;
use tokio::sync::watch;

use super::account::Account;
use super::answer::Fault;
use super::body::Outgoing;
use super::headers::{self, Passing};
use super::route::{self, Route};
use super::tap::{Answer, Tap};
use super::upstream::Unanswered;
use super::{Phase, Proxy};
use crate::context::Outcome;

/// Answers one request.
pub(crate) async fn run(
    proxy: Arc<Proxy>,
    request: Request<Incoming>,
    phase: watch::Receiver<Phase>,
) -> Response<Answer> {
    let _ = phase;
    let path = request.uri().path();
    let mut account = Account::open(&proxy, request.method(), path);
    match answered(&proxy, request, &mut account).await {
        Ok(response) => tapped(response, account),
        Err(fault) => {
            let dialect = account.event.dialect;
            let response = fault.answer(dialect);
            account.event.status = Some(response.status().as_u16());
            account.event.outcome = Outcome::UpstreamFailed;
            response.map(|body| Answer::Ours(Some(body)))
        }
    }
}

/// The answer where there is no room for another connection.
pub(crate) fn turned(proxy: &Arc<Proxy>, request: &Request<Incoming>) -> Response<Bytes> {
    let mut account = Account::open(proxy, request.method(), request.uri().path());
    let response = Fault::Full.answer(None);
    account.event.status = Some(response.status().as_u16());
    account.event.outcome = Outcome::Turned;
    response
}

async fn answered(
    proxy: &Arc<Proxy>,
    request: Request<Incoming>,
    account: &mut Account,
) -> Result<Response<Incoming>, Fault> {
    if headers::size(request.headers()) > proxy.config.limits.header_bytes {
        return Err(Fault::HeadersTooLarge);
    }
    let (mut parts, body) = request.into_parts();
    let asked = parts.uri.clone();
    let route = route::route(&proxy.config.upstreams, &asked, &parts.headers, |_| None)
        .ok_or(Fault::NoUpstream)?;
    account.event.upstream = Some(route.upstream.name.clone());
    let name = &route.upstream.name;
    let uri = route::address(&route).ok_or(Fault::NoUpstream)?;
    parts.headers = outgoing_headers(std::mem::take(&mut parts.headers), &route, parts.version);
    parts.uri = uri;
    parts.version = Version::HTTP_11;
    let forwarded = Request::from_parts(parts, Outgoing::through(body));
    account.event.request_side_us = account.elapsed_us();
    let sent = Instant::now();
    let at_once = proxy.exchanges.load(Ordering::Relaxed);
    let response = proxy.pool.send(forwarded, at_once).await.map_err(|error| match error {
        Unanswered::TooSlow(why) => Fault::UpstreamTooSlow(name.clone(), why),
        Unanswered::Failed(why) => Fault::UpstreamFailed(name.clone(), why),
    })?;
    let _ = sent;
    account.event.headers_us = Some(account.elapsed_us());
    Ok(response)
}

fn outgoing_headers(
    headers: http::HeaderMap,
    route: &Route<'_>,
    version: Version,
) -> http::HeaderMap {
    let passing = Passing { upgrade: false, keep_chunked: true };
    let headers = headers::pass(headers, passing);
    let own = route.upstream.credential.as_ref();
    let mut headers = headers::without(headers, |name| {
        name == headers::MODE
            || name == headers::SESSION
            || (own.is_some() && route::is_credential(name))
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

fn tapped(response: Response<Incoming>, mut account: Account) -> Response<Answer> {
    let (mut parts, body) = response.into_parts();
    let passing = Passing { upgrade: false, keep_chunked: true };
    parts.headers = headers::pass(std::mem::take(&mut parts.headers), passing);
    parts.version = Version::HTTP_11;
    account.event.status = Some(parts.status.as_u16());
    let whole = if parts.status.as_u16() >= 400 { Outcome::Refused } else { Outcome::Complete };
    let tap = Tap::new(body, account, whole);
    Response::from_parts(parts, Answer::Tapped(Box::new(tap)))
}
