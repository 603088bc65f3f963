//! One request, top to bottom (`docs/architecture.md` "Life of a request").
//!
//! Reads like that list. Nothing in here may cost the client its response: a step that fails is left out, and
//! the original is sent.

mod client_request;
mod count_estimate;
mod latest_request;
mod original_request;
mod outbound;
mod response_peek;
mod retry;
mod websocket;

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

use crate::config::{ServerLimits, UpgradePolicy, Upstream};
use crate::context::Outcome;
use crate::dialect::Dialect;
use crate::dialect::paths::is_inference;
use crate::proxy::compaction::summarize::SummaryJob;
use crate::proxy::exchange::client_request::{AnalyzedRequest, ClientRequest};
use crate::proxy::exchange::count_estimate::CountFallback;
use crate::proxy::exchange::outbound::OutboundRequest;
use crate::proxy::exchange::websocket::frames::FrameObserver;
use crate::proxy::exchange::websocket::tunnel;
use crate::proxy::exchange_recorder::ExchangeRecorder;
use crate::proxy::http::answer::{self, ProxyError};
use crate::proxy::http::body::{self, CollectOutcome, OutgoingBody};
use crate::proxy::http::headers::{self, HeaderDirection};
use crate::proxy::http::memory::MemoryShare;
use crate::proxy::http::pieces::CoalescedBody;
use crate::proxy::response::observe::ResponseObserver;
use crate::proxy::response::silence::{SilenceLimits, StreamSilence};
use crate::proxy::response::tap::{ResponseActions, ResponseBody, Tap};
use crate::proxy::response::usage_rewrite::{ResponseEdits, UsageAddition, UsageRewrite};
use crate::proxy::response::usage_strip::UsageStrip;
use crate::proxy::state::{Proxy, ServingPhase};
use crate::proxy::turn::pending::PendingExchange;
use crate::proxy::upstream::error::UpstreamError;
use crate::proxy::upstream::route;
use crate::telemetry::clock::now;
use crate::telemetry::{ClientTimeout, Exchange, FailOpen};

/// Handles one request.
pub(crate) async fn run(
    proxy: Arc<Proxy>,
    request: Request<Incoming>,
    memory: Arc<MemoryShare>,
    phase: watch::Receiver<ServingPhase>,
) -> Response<ResponseBody> {
    let mut recorder = ExchangeRecorder::open(&proxy, &request, &memory, phase);
    // 1. Accept: the connection has its permit, the headers have their limit.
    if headers::size(request.headers()) > proxy.config.limits.header_bytes {
        return ours(&ProxyError::HeadersTooLarge, recorder);
    }
    if *request.method() == Method::CONNECT {
        return ours(&ProxyError::NoForwardProxy, recorder);
    }
    let (head, body) = request.into_parts();
    let asked = ClientRequest::new(&head);
    recorder.event.dialect = asked.dialect;
    recorder.event.purpose = asked.purpose;
    if let Err(fault) = proxy.gate.judge(&head.uri, &head.headers, &proxy.credentials) {
        return ours(&fault, recorder);
    }
    if !recorder.take(headers::size(&head.headers)) {
        return ours(&ProxyError::Crowded, recorder);
    }
    // 2. Route.
    let greets = head.uri.path() == "/" && [Method::GET, Method::HEAD].contains(&head.method);
    let routed = match RoutedRequest::new(&proxy, head, asked.dialect) {
        Ok(routed) => routed,
        Err(ProxyError::NoUpstream { .. }) if greets => return greeted(recorder),
        Err(fault) => return ours(&fault, recorder),
    };
    recorder.event.upstream = Some(routed.upstream.name.clone());
    if routed.upgrade {
        return Box::pin(upgraded(&proxy, asked, routed, body, recorder)).await;
    }
    Box::pin(answered(&proxy, &asked, routed, body, recorder)).await
}

/// The response if there is no room for another connection.
pub(crate) fn turned(
    proxy: &Arc<Proxy>,
    request: &Request<Incoming>,
    phase: watch::Receiver<ServingPhase>,
) -> Response<Bytes> {
    let mut recorder = ExchangeRecorder::open(proxy, request, &proxy.memory.share(), phase);
    let judged = proxy.gate.judge(request.uri(), request.headers(), &proxy.credentials);
    let fault = judged.err().unwrap_or(ProxyError::Full);
    let response = fault.answer(None);
    recorder.event.status = Some(response.status().as_u16());
    recorder.event.outcome = fault.outcome();
    response
}

/// Records data that is not an HTTP request.
pub(crate) fn unread(proxy: &Proxy, fault: &ProxyError) {
    let mut event = Exchange::begun(proxy.next_id(), now(), "none", "");
    event.status = Some(fault.status().as_u16());
    event.outcome = fault.outcome();
    proxy.telemetry.tell(event);
}

/// A request with its upstream; its head is as the upstream gets it.
struct RoutedRequest<'p> {
    upstream: &'p Upstream,
    head: request::Parts,
    upgrade: bool,
}

impl<'p> RoutedRequest<'p> {
    fn new(
        proxy: &'p Proxy,
        mut head: request::Parts,
        spoken: Option<Dialect>,
    ) -> Result<Self, ProxyError> {
        let upstreams = &proxy.config.upstreams;
        let asked = head.uri.clone();
        let route = route::route(upstreams, &head.method, &asked, &head.headers, spoken);
        let route = route.ok_or_else(|| no_upstream(upstreams, &asked))?;
        let upstream = route.upstream;
        let is_wanted = |protocol: &str| is_wanted(upstream, protocol);
        let upgrade = headers::is_upgrade(&head.headers, is_wanted);
        if upstream.credential.is_some() && !is_inference(&head.method, route.path, upgrade) {
            return Err(ProxyError::PathRefused);
        }
        let address = route::address(&route, asked.path_and_query(), &proxy.credentials);
        head.uri = address.ok_or_else(|| no_upstream(upstreams, &asked))?;
        let headers = std::mem::take(&mut head.headers);
        head.headers = outgoing_headers(headers, proxy, upstream, head.version, upgrade);
        // The upstream's HTTP version is only known after connecting.
        head.version = Version::HTTP_11;
        Ok(Self { upstream, head, upgrade })
    }
}

/// The error for a request that no upstream takes.
fn no_upstream(upstreams: &[Upstream], asked: &Uri) -> ProxyError {
    ProxyError::NoUpstream {
        known: upstreams.iter().map(|upstream| upstream.name.clone()).collect(),
        nearest: route::nearest(upstreams, asked.path()).map(Into::into),
    }
}

/// Whether a connection may switch to this protocol. With the operator's credential, only WebSocket is
/// allowed.
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
    let mut headers = headers::pass(headers, HeaderDirection { upgrade, keep_chunked: true });
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

/// The upstream's headers as the client gets them. If the operator's credential was used, no web page may
/// read the response, whatever the upstream allows.
fn answered_headers(
    headers: HeaderMap,
    recorder: &ExchangeRecorder,
    passing: HeaderDirection,
) -> HeaderMap {
    let headers = headers::pass(headers, passing);
    let upstream = recorder.proxy.upstream(recorder.event.upstream.as_deref());
    match upstream.is_some_and(|upstream| upstream.credential.is_some()) {
        true => headers::without(headers, headers::opens_to_pages),
        false => headers,
    }
}

async fn answered(
    proxy: &Arc<Proxy>,
    asked: &ClientRequest,
    routed: RoutedRequest<'_>,
    body: Incoming,
    mut recorder: ExchangeRecorder,
) -> Response<ResponseBody> {
    let RoutedRequest { upstream, head, .. } = routed;
    let read = read_request(proxy, asked, head, body, &mut recorder).await;
    let CollectedRequest { outbound, mut pending, writer, count, here } = match read {
        Ok(read) => read,
        Err(fault) => return ours(&fault, recorder),
    };
    // The wait for a summary is reported separately.
    let waited = recorder.event.compaction_wait_us.unwrap_or(0);
    recorder.event.request_side_us = (here.elapsed().as_micros() as u64).saturating_sub(waited);
    if let Some(pending) = &mut pending {
        pending.count_where_wanted(proxy, outbound.going());
    }
    if let Some(count) = &count
        && let Some(counted) = count.answer_unasked(&mut recorder).await
    {
        return estimated(counted, recorder);
    }
    let head = count.as_ref().map(|_| outbound.going().0.clone());
    // 9. Forward.
    let (mut response, asked_usage) = match outbound.send(&mut pending, &mut recorder).await {
        Ok(sent) => sent,
        Err(error) => {
            if let Some(pending) = &mut pending {
                pending.requeue_messages(proxy).await;
            }
            return match error {
                UpstreamError::RequestBroken if recorder.body_timed_out() => {
                    ours(&ProxyError::BodyTooSlow, recorder)
                }
                error => ours(&fault(upstream, error), recorder),
            };
        }
    };
    let id = asked.provider_request_id(response.headers(), proxy, upstream);
    recorder.event.provider_request_id = id;
    if let (Some(count), Some(head)) = (count, head) {
        response = match count.answer_missing(response, &head, &mut recorder).await {
            Ok(counted) => return estimated(counted, recorder),
            Err(response) => response,
        };
    }
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let why = "it switched to a protocol that was not requested".to_owned();
        return ours(&fault(upstream, UpstreamError::Failed(why)), recorder);
    }
    if let Some(writer) = writer.filter(|_| response.status().is_success()) {
        writer.begin();
    }
    let unpruned = pending.as_ref().and_then(PendingExchange::usage_addition);
    let open = pending.map(|pending| pending.open(proxy));
    recorder.event.headers_us = Some(recorder.elapsed_us());
    // 10. Answer. 11. Observe. 12. End. 13. Tell.
    let observation = asked.answered_in().map(|dialect| {
        let limit = proxy.config.limits.reply_bytes;
        let status = response.status().as_u16();
        let memory = &recorder.memory;
        let progress = open.as_ref().map(|turn| (turn.latest(), turn.body()));
        ResponseObserver::new(dialect, status, response.headers(), limit, memory).noting(progress)
    });
    let settle = open.map(|turn| turn.settle(proxy.clone()));
    let actions = ResponseActions { observation, settle, ..ResponseActions::default() };
    tapped(response, recorder, actions, asked_usage, unpruned).await
}

/// A request whose body is collected, or streams through unread.
struct CollectedRequest {
    outbound: OutboundRequest,
    pending: Option<PendingExchange>,
    writer: Option<SummaryJob>,
    count: Option<CountFallback>,
    /// When its body was complete.
    here: Instant,
}

async fn read_request(
    proxy: &Proxy,
    asked: &ClientRequest,
    head: request::Parts,
    body: Incoming,
    recorder: &mut ExchangeRecorder,
) -> Result<CollectedRequest, ProxyError> {
    // 3. Body.
    let collected = match asked.read_as() {
        Some(_) => {
            let ServerLimits { body_bytes, body_s, .. } = proxy.config.limits;
            let bounds = (body_bytes, Duration::from_secs(body_s));
            body::collect(body, bounds, &recorder.memory).await
        }
        None => body::collect_unread(body, &recorder.memory).await,
    };
    let here = Instant::now();
    let mut analyzed = AnalyzedRequest::default();
    let outbound = match collected {
        CollectOutcome::Broken => return Err(ProxyError::RequestBroken),
        CollectOutcome::TimedOut => return Err(ProxyError::BodyTooSlow),
        CollectOutcome::Unread(body) => OutboundRequest::plain(head, recorder.counting(body)),
        CollectOutcome::TooLarge(body) => {
            recorder.stood_aside(FailOpen::BodyTooLarge);
            OutboundRequest::plain(head, recorder.counting(body))
        }
        CollectOutcome::NoMemory(body) => {
            recorder.stood_aside(FailOpen::MemoryBudget);
            OutboundRequest::plain(head, recorder.counting(body))
        }
        CollectOutcome::Whole { bytes, trailers } => {
            recorder.event.request_bytes = bytes.len() as u64;
            // 4. Read. 5. Open the ledger. 6. Plan. 7. Save.
            analyzed = asked.understand(&bytes, &head, recorder).await;
            // 8. Splice.
            let changes = std::mem::take(&mut analyzed.changes);
            OutboundRequest::edited(head, bytes, trailers, changes)
        }
    };
    let AnalyzedRequest { pending, writer, count, .. } = analyzed;
    Ok(CollectedRequest { outbound, pending, writer, count, here })
}

/// Forwards an upstream's response. `asked_usage`: the request asked for usage on the client's behalf.
/// `unpruned`: tokens that are added to the usage.
async fn tapped(
    response: Response<OutgoingBody>,
    mut recorder: ExchangeRecorder,
    mut actions: ResponseActions,
    asked_usage: bool,
    unpruned: Option<UsageAddition>,
) -> Response<ResponseBody> {
    let (mut parts, body) = response.into_parts();
    let passing = HeaderDirection { upgrade: false, keep_chunked: true };
    parts.headers = answered_headers(std::mem::take(&mut parts.headers), &recorder, passing);
    parts.version = Version::HTTP_11;
    let (most, memory) = (recorder.proxy.config.limits.reply_bytes, &recorder.memory);
    let upstream = recorder.proxy.upstream(recorder.event.upstream.as_deref());
    let host = upstream.and_then(|upstream| upstream.base.host()).unwrap_or_default();
    actions.altering = match unpruned {
        _ if asked_usage => altering(&mut parts, |kind, headers| {
            // A response that is not a stream has usage anyway.
            let is_whole = kind.starts_with("application/json");
            let hiding =
                UsageStrip::new(host, headers::codings(headers), memory).filter(|_| !is_whole);
            hiding.map(ResponseEdits::Hides)
        }),
        Some(unpruned) => altering(&mut parts, |kind, headers| {
            let codings = headers::codings(headers);
            Some(ResponseEdits::Retells(UsageRewrite::new(unpruned, kind, codings, most, memory)?))
        }),
        None => None,
    };
    actions.silence = silence(&parts.headers, &recorder);
    if !parts.status.is_success() {
        recorder.was_not_spared();
    }
    recorder.stamp(&mut parts.headers);
    recorder.event.status = Some(parts.status.as_u16());
    recorder.stream = Some(recorder.proxy.telemetry.stream());
    let refused = parts.status.is_client_error() || parts.status.is_server_error();
    let whole = if refused { Outcome::Refused } else { Outcome::Complete };
    let pieces = CoalescedBody::to_client(&recorder.memory);
    let mut tap = Box::new(Tap::new(body, recorder, actions, whole));
    tap.look_ahead().await;
    Response::from_parts(parts, ResponseBody::Tapped(tap, pieces))
}

/// Watches for silence in a stream. `headers`: as the client gets them.
fn silence(headers: &HeaderMap, recorder: &ExchangeRecorder) -> Option<StreamSilence> {
    let (event, limits) = (&recorder.event, &recorder.proxy.config.limits);
    let seconds = |wanted: u64| (wanted > 0).then(|| Duration::from_secs(wanted));
    let limits = SilenceLimits {
        silent: seconds(limits.silent_stream_s),
        keep_alive: seconds(limits.keep_alive_s),
    };
    let ours = event.request_side_us + event.compaction_wait_us.unwrap_or(0);
    let before = Duration::from_micros(event.headers_us.unwrap_or(0).saturating_sub(ours));
    let upstream = event.upstream.as_deref().unwrap_or_default();
    StreamSilence::new(event.dialect, upstream, headers, limits, before)
}

/// The edits of a response, if it can be edited: removes the usage that we asked for from a stream, or
/// changes the usage. The response then loses its length and its encoding.
fn altering(
    parts: &mut response::Parts,
    with: impl FnOnce(&str, &HeaderMap) -> Option<ResponseEdits>,
) -> Option<Box<ResponseEdits>> {
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

/// Responds with a greeting that says what Plimsoll is.
fn greeted(mut recorder: ExchangeRecorder) -> Response<ResponseBody> {
    let mut response = answer::greeting();
    recorder.stamp(response.headers_mut());
    recorder.event.status = Some(response.status().as_u16());
    recorder.event.outcome = Outcome::Complete;
    response.map(|body| ResponseBody::Ours(Some(body)))
}

/// Responds with an estimated count, instead of the upstream's.
fn estimated(
    mut response: Response<Bytes>,
    mut recorder: ExchangeRecorder,
) -> Response<ResponseBody> {
    recorder.stamp(response.headers_mut());
    recorder.event.status = Some(response.status().as_u16());
    recorder.event.outcome = Outcome::Complete;
    recorder.event.response_bytes = response.body().len() as u64;
    response.map(|body| ResponseBody::Ours(Some(body)))
}

/// Responds with an error of our own.
fn ours(fault: &ProxyError, mut recorder: ExchangeRecorder) -> Response<ResponseBody> {
    let mut response = fault.answer(recorder.event.dialect);
    recorder.stamp(response.headers_mut());
    recorder.event.status = Some(response.status().as_u16());
    recorder.event.outcome = fault.outcome();
    if *fault == ProxyError::BodyTooSlow {
        recorder.proxy.telemetry.client_timed_out(ClientTimeout::Body);
    }
    response.map(|body| ResponseBody::Ours(Some(body)))
}

fn fault(upstream: &Upstream, error: UpstreamError) -> ProxyError {
    match error {
        UpstreamError::RequestBroken => ProxyError::RequestBroken,
        UpstreamError::NoMemory => ProxyError::Crowded,
        UpstreamError::TooSlow(why) => ProxyError::UpstreamTooSlow(upstream.name.clone(), why),
        UpstreamError::Failed(why) => ProxyError::UpstreamFailed(upstream.name.clone(), why),
    }
}

/// Switches protocols: tunnels bytes unchanged, or refuses if policy says so.
async fn upgraded(
    proxy: &Proxy,
    asked: ClientRequest,
    routed: RoutedRequest<'_>,
    body: Incoming,
    mut recorder: ExchangeRecorder,
) -> Response<ResponseBody> {
    let RoutedRequest { upstream, head, .. } = routed;
    if upstream.upgrades == UpgradePolicy::Refuse {
        return ours(&ProxyError::UpgradeRefused, recorder);
    }
    let mut request = Request::from_parts(head, ());
    let client = hyper::upgrade::on(&mut request);
    let request = request.map(|()| OutgoingBody::request(body, &recorder.memory));
    let mut response = match proxy.pool.send_http1(request).await {
        Ok(response) => response,
        Err(error) => return ours(&fault(upstream, error), recorder),
    };
    recorder.event.headers_us = Some(recorder.elapsed_us());
    let id = asked.provider_request_id(response.headers(), proxy, upstream);
    recorder.event.provider_request_id = id;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return tapped(response, recorder, ResponseActions::default(), false, None).await;
    }
    recorder.event.status = Some(StatusCode::SWITCHING_PROTOCOLS.as_u16());
    let upstream = hyper::upgrade::on(&mut response);
    let read = asked.is_over_websocket();
    let frames = read.then(|| FrameObserver::new(Arc::new(asked), response.headers(), &recorder));
    let (mut parts, _) = response.into_parts();
    let passing = HeaderDirection { upgrade: true, keep_chunked: false };
    parts.headers = answered_headers(std::mem::take(&mut parts.headers), &recorder, passing);
    let place = recorder.memory.place();
    tokio::spawn(async move {
        tunnel::carry(client, upstream, recorder, frames).await;
        drop(place);
    });
    Response::from_parts(parts, ResponseBody::Ours(None))
}
