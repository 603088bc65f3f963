//! One request, top to bottom (`docs/architecture.md` "The way of a request").
//!
//! Reads like the list it implements. Nothing in here may cost the client an answer: what fails on
//! the way is left out, and the original goes on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, COOKIE};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, Version,
    request, response,
};
use hyper::body::Incoming;
use tokio::sync::watch;

use super::account::Account;
use super::answer::{self, Fault};
use super::asked::Asked;
use super::body::{self, Collected, Outgoing};
use super::frames::Frames;
use super::headers::{self, Passing};
use super::included::Hiding;
use super::memory::MemoryShare;
use super::observe::Observation;
use super::outbound::Outbound;
use super::pieces::Pieces;
use super::retold::{Altering, Retelling, Unpruned};
use super::route;
use super::tap::{Answer, Doing, Tap};
use super::turn::Measure;
use super::upstream::Unanswered;
use super::{Phase, Proxy, counting, now, tunnel};
use crate::config::{Limits, Upgrades, Upstream};
use crate::context::Outcome;
use crate::dialect::Dialect;
use crate::dialect::paths::is_inference;
use crate::telemetry::{ClientTimeout, Exchange, FailOpen};

/// Answers one request.
pub(crate) async fn run(
    proxy: Arc<Proxy>,
    request: Request<Incoming>,
    memory: Arc<MemoryShare>,
    phase: watch::Receiver<Phase>,
) -> Response<Answer> {
    let mut account = Account::open(&proxy, &request, &memory, phase);
    // 1. Accept: the connection has its permit, the headers have their limit.
    if headers::size(request.headers()) > proxy.config.limits.header_bytes {
        return ours(&Fault::HeadersTooLarge, account);
    }
    if *request.method() == Method::CONNECT {
        return ours(&Fault::NoForwardProxy, account);
    }
    let (head, body) = request.into_parts();
    let asked = Asked::new(&head);
    account.event.dialect = asked.dialect;
    account.event.purpose = asked.purpose;
    if let Err(fault) = proxy.gate.judge(&head.uri, &head.headers, &proxy.credentials) {
        return ours(&fault, account);
    }
    if !account.take(headers::size(&head.headers)) {
        return ours(&Fault::Crowded, account);
    }
    // 2. Route.
    let greets = head.uri.path() == "/" && [Method::GET, Method::HEAD].contains(&head.method);
    let routed = match Routed::new(&proxy, head, asked.dialect) {
        Ok(routed) => routed,
        Err(Fault::NoUpstream { .. }) if greets => return greeted(account),
        Err(fault) => return ours(&fault, account),
    };
    account.event.upstream = Some(routed.upstream.name.clone());
    if routed.upgrade {
        return Box::pin(upgraded(&proxy, asked, routed, body, account)).await;
    }
    Box::pin(answered(&proxy, &asked, routed, body, account)).await
}

/// The answer where there is no room for another connection.
pub(crate) fn turned(
    proxy: &Arc<Proxy>,
    request: &Request<Incoming>,
    phase: watch::Receiver<Phase>,
) -> Response<Bytes> {
    let mut account = Account::open(proxy, request, &proxy.memory.share(), phase);
    let judged = proxy.gate.judge(request.uri(), request.headers(), &proxy.credentials);
    let fault = judged.err().unwrap_or(Fault::Full);
    let response = fault.answer(None);
    account.event.status = Some(response.status().as_u16());
    account.event.outcome = fault.outcome();
    response
}

/// Tells of what came and was no request.
pub(crate) fn unread(proxy: &Proxy, fault: &Fault) {
    let mut event = Exchange::begun(proxy.next_id(), now(), "none", "");
    event.status = Some(fault.status().as_u16());
    event.outcome = fault.outcome();
    proxy.telemetry.tell(event);
}

/// A request that knows where it goes; its head is as the upstream gets it.
struct Routed<'p> {
    upstream: &'p Upstream,
    head: request::Parts,
    upgrade: bool,
}

impl<'p> Routed<'p> {
    fn new(
        proxy: &'p Proxy,
        mut head: request::Parts,
        spoken: Option<Dialect>,
    ) -> Result<Self, Fault> {
        let upstreams = &proxy.config.upstreams;
        let asked = head.uri.clone();
        let route = route::route(upstreams, &head.method, &asked, &head.headers, spoken);
        let route = route.ok_or_else(|| no_upstream(upstreams, &asked))?;
        let upstream = route.upstream;
        let is_wanted = |protocol: &str| is_wanted(upstream, protocol);
        let upgrade = headers::is_upgrade(&head.headers, is_wanted);
        if upstream.credential.is_some() && !is_inference(&head.method, route.path, upgrade) {
            return Err(Fault::PathRefused);
        }
        let address = route::address(&route, asked.path_and_query(), &proxy.credentials);
        head.uri = address.ok_or_else(|| no_upstream(upstreams, &asked))?;
        let headers = std::mem::take(&mut head.headers);
        head.headers = outgoing_headers(headers, proxy, upstream, head.version, upgrade);
        // Which version the upstream speaks is found out when connecting.
        head.version = Version::HTTP_11;
        Ok(Self { upstream, head, upgrade })
    }
}

/// What is said of a request that no upstream takes.
fn no_upstream(upstreams: &[Upstream], asked: &Uri) -> Fault {
    Fault::NoUpstream {
        known: upstreams.iter().map(|upstream| upstream.name.clone()).collect(),
        nearest: route::nearest(upstreams, asked.path()).map(Into::into),
    }
}

/// Whether a connection may leave HTTP for a protocol. With the operator's credential only for the one that
/// models are asked over.
fn is_wanted(upstream: &Upstream, protocol: &str) -> bool {
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
    let mut headers = headers::pass(headers, Passing { upgrade, keep_chunked: true });
    if upgrade {
        headers::narrow_upgrade(&mut headers, |protocol| is_wanted(upstream, protocol));
    }
    let (own, credentials) = (upstream.credential.as_ref(), &proxy.credentials);
    let is_clients =
        |name: &HeaderName| credentials.is_header(name) || *name == COOKIE || headers::steers(name);
    let mut headers = headers::without_lines(headers, |name, value| {
        headers::is_for_us(name)
            || own.is_some() && is_clients(name)
            || credentials.is_token(name, value.as_bytes())
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
    headers::set_host(headers, &upstream.base)
}

/// An upstream's headers as the client gets them. What is asked with the operator's credential is no page's
/// business, whatever the upstream allows.
fn answered_headers(headers: HeaderMap, account: &Account, passing: Passing) -> HeaderMap {
    let headers = headers::pass(headers, passing);
    let upstream = account.proxy.upstream(account.event.upstream.as_deref());
    match upstream.is_some_and(|upstream| upstream.credential.is_some()) {
        true => headers::without(headers, headers::opens_to_pages),
        false => headers,
    }
}

async fn answered(
    proxy: &Arc<Proxy>,
    asked: &Asked,
    routed: Routed<'_>,
    body: Incoming,
    mut account: Account,
) -> Response<Answer> {
    // 3. Body.
    let collected = match asked.read_as() {
        Some(_) => {
            let Limits { body_bytes, body_s, .. } = proxy.config.limits;
            let bounds = (body_bytes, Duration::from_secs(body_s));
            body::collect(body, bounds, &account.memory).await
        }
        None => body::collect_unread(body, &account.memory).await,
    };
    let here = Instant::now();
    let (mut measure, mut writer) = (None, None);
    let Routed { upstream, head, .. } = routed;
    let outbound = match collected {
        Collected::Broken => return ours(&Fault::RequestBroken, account),
        Collected::TimedOut => return ours(&Fault::BodyTooSlow, account),
        Collected::Unread(body) => Outbound::plain(head, account.counting(body)),
        Collected::TooLarge(body) => {
            account.stood_aside(FailOpen::BodyTooLarge);
            Outbound::plain(head, account.counting(body))
        }
        Collected::NoMemory(body) => {
            account.stood_aside(FailOpen::MemoryBudget);
            Outbound::plain(head, account.counting(body))
        }
        Collected::Whole { bytes, trailers } => {
            account.event.request_bytes = bytes.len() as u64;
            // 4. Read. 5. Open the ledger. 6. Plan. 7. Save.
            let understood = asked.understand(&bytes, &head, &mut account).await;
            (measure, writer) = (understood.measure, understood.writer);
            // 8. Splice.
            Outbound::edited(head, bytes, trailers, understood.changes)
        }
    };
    // What a summary was waited for is told by itself.
    let waited = account.event.compaction_wait_us.unwrap_or(0);
    account.event.request_side_us = (here.elapsed().as_micros() as u64).saturating_sub(waited);
    if let Some(measure) = &mut measure {
        measure.awaits(counting::ask(proxy, measure, outbound.going()));
    }
    // 9. Forward.
    let (response, asked_usage) = match outbound.send(&mut measure, &mut account).await {
        Ok(sent) => sent,
        Err(error) => {
            if let Some(measure) = &mut measure {
                measure.unheard(proxy).await;
            }
            return match error {
                Unanswered::RequestBroken if account.body_timed_out() => {
                    ours(&Fault::BodyTooSlow, account)
                }
                error => ours(&fault(upstream, error), account),
            };
        }
    };
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let why = "it left HTTP for a protocol that nobody asked for".to_owned();
        return ours(&fault(upstream, Unanswered::Failed(why)), account);
    }
    if let Some(writer) = writer.filter(|_| response.status().is_success()) {
        writer.begin();
    }
    let unpruned = measure.as_ref().and_then(Measure::unpruned);
    let open = measure.map(|measure| measure.open(proxy));
    account.event.headers_us = Some(account.elapsed_us());
    // 10. Answer. 11. Observe. 12. End. 13. Tell.
    let observation = asked.answered_in().map(|dialect| {
        let limit = proxy.config.limits.reply_bytes;
        let status = response.status().as_u16();
        let memory = &account.memory;
        let progress = open.as_ref().map(|turn| (turn.latest(), turn.body()));
        Observation::new(dialect, status, response.headers(), limit, memory).noting(progress)
    });
    let settle = open.map(|turn| turn.settle(proxy.clone()));
    let doing = Doing { observation, altering: None, settle };
    tapped(response, account, doing, (asked_usage, unpruned)).await
}

/// An upstream's answer, on its way to the client. `asked_usage`: it answers a body that asked for
/// usage on our behalf. `unpruned`: what its usage is to be told with.
async fn tapped(
    response: Response<Outgoing>,
    mut account: Account,
    mut doing: Doing,
    (asked_usage, unpruned): (bool, Option<Unpruned>),
) -> Response<Answer> {
    let (mut parts, body) = response.into_parts();
    let passing = Passing { upgrade: false, keep_chunked: true };
    parts.headers = answered_headers(std::mem::take(&mut parts.headers), &account, passing);
    parts.version = Version::HTTP_11;
    let (most, memory) = (account.proxy.config.limits.reply_bytes, &account.memory);
    let upstream = account.proxy.upstream(account.event.upstream.as_deref());
    let host = upstream.and_then(|upstream| upstream.base.host()).unwrap_or_default();
    doing.altering = match unpruned {
        _ if asked_usage => altering(&mut parts, |kind, headers| {
            // What is no stream says nothing that was not asked.
            let is_whole = kind.starts_with("application/json");
            let hiding = Hiding::new(host, headers::codings(headers), memory).filter(|_| !is_whole);
            hiding.map(Altering::Hides)
        }),
        Some(unpruned) => altering(&mut parts, |kind, headers| {
            let codings = headers::codings(headers);
            Some(Altering::Retells(Retelling::new(unpruned, kind, codings, most, memory)?))
        }),
        None => None,
    };
    account.stamp(&mut parts.headers);
    account.event.status = Some(parts.status.as_u16());
    account.stream = Some(account.proxy.telemetry.stream());
    let refused = parts.status.is_client_error() || parts.status.is_server_error();
    let whole = if refused { Outcome::Refused } else { Outcome::Complete };
    let pieces = Pieces::to_client(&account.memory);
    let mut tap = Box::new(Tap::new(body, account, doing, whole));
    tap.look_ahead().await;
    Response::from_parts(parts, Answer::Tapped(tap, pieces))
}

/// What changes a response on its way, where it can be: hides what we asked for in a stream, or tells
/// another usage. Its length then changes, and it has no encoding any more.
fn altering(
    parts: &mut response::Parts,
    with: impl FnOnce(&str, &HeaderMap) -> Option<Altering>,
) -> Option<Box<Altering>> {
    if !parts.status.is_success() {
        return None;
    }
    let kind = parts.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let altering = with(kind.unwrap_or_default(), &parts.headers)?;
    let headers = std::mem::take(&mut parts.headers);
    parts.headers =
        headers::without(headers, |name| *name == CONTENT_LENGTH || *name == CONTENT_ENCODING);
    Some(Box::new(altering))
}

/// Says what this is.
fn greeted(mut account: Account) -> Response<Answer> {
    let mut response = answer::greeting();
    account.stamp(response.headers_mut());
    account.event.status = Some(response.status().as_u16());
    account.event.outcome = Outcome::Complete;
    response.map(|body| Answer::Ours(Some(body)))
}

/// An answer of our own.
fn ours(fault: &Fault, mut account: Account) -> Response<Answer> {
    let mut response = fault.answer(account.event.dialect);
    account.stamp(response.headers_mut());
    account.event.status = Some(response.status().as_u16());
    account.event.outcome = fault.outcome();
    if *fault == Fault::BodyTooSlow {
        account.proxy.telemetry.client_timed_out(ClientTimeout::Body);
    }
    response.map(|body| Answer::Ours(Some(body)))
}

fn fault(upstream: &Upstream, error: Unanswered) -> Fault {
    match error {
        Unanswered::RequestBroken => Fault::RequestBroken,
        Unanswered::NoMemory => Fault::Crowded,
        Unanswered::TooSlow(why) => Fault::UpstreamTooSlow(upstream.name.clone(), why),
        Unanswered::Failed(why) => Fault::UpstreamFailed(upstream.name.clone(), why),
    }
}

/// Leaves HTTP: tunnelled byte for byte, or refused where policy says so.
async fn upgraded(
    proxy: &Proxy,
    asked: Asked,
    routed: Routed<'_>,
    body: Incoming,
    mut account: Account,
) -> Response<Answer> {
    let Routed { upstream, head, .. } = routed;
    if upstream.upgrades == Upgrades::Refuse {
        return ours(&Fault::UpgradeRefused, account);
    }
    let mut request = Request::from_parts(head, ());
    let client = hyper::upgrade::on(&mut request);
    let request = request.map(|()| Outgoing::request(body, &account.memory));
    let mut response = match proxy.pool.send_http1(request).await {
        Ok(response) => response,
        Err(error) => return ours(&fault(upstream, error), account),
    };
    account.event.headers_us = Some(account.elapsed_us());
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return tapped(response, account, Doing::default(), (false, None)).await;
    }
    account.event.status = Some(StatusCode::SWITCHING_PROTOCOLS.as_u16());
    let upstream = hyper::upgrade::on(&mut response);
    let read = asked.is_over_websocket();
    let frames = read.then(|| Frames::new(Arc::new(asked), response.headers(), &account));
    let (mut parts, _) = response.into_parts();
    let passing = Passing { upgrade: true, keep_chunked: false };
    parts.headers = answered_headers(std::mem::take(&mut parts.headers), &account, passing);
    let place = account.memory.place();
    tokio::spawn(async move {
        tunnel::carry(client, upstream, account, frames).await;
        drop(place);
    });
    Response::from_parts(parts, Answer::Ours(None))
}
